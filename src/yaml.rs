//! Reads YAML as far as a configuration needs it: no aliases, no tags, no key twice, and every value is text.

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, StrInput};
use serde_json::{Map, Value};

/// The most levels of lists and mappings in each other.
const MOST_LEVELS: usize = 16;

/// The place and the reason where text is not such YAML.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct YamlError {
    line: usize,
    what: String,
}

impl YamlError {
    fn new(line: usize, what: impl Into<String>) -> YamlError {
        YamlError { line, what: what.into() }
    }
}

impl From<ScanError> for YamlError {
    fn from(error: ScanError) -> YamlError {
        YamlError::new(error.marker().line(), error.info())
    }
}

/// Returns the only document of a text, or null if there is none.
///
/// # Errors
/// Fails where the text is no YAML, or more than is understood here.
pub fn parse(text: &str) -> Result<Value, YamlError> {
    let mut reader = Reader(Parser::new_from_str(text));
    let mut document = None;
    while let Some((event, line)) = reader.next()? {
        match event {
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentStart(_) | Event::DocumentEnd => {}
            _ if document.is_some() => return Err(YamlError::new(line, "a second document")),
            event => document = Some(reader.value(event, line, MOST_LEVELS)?),
        }
    }
    Ok(document.unwrap_or(Value::Null))
}

struct Reader<'t>(Parser<'t, StrInput<'t>>);

impl<'t> Reader<'t> {
    fn next(&mut self) -> Result<Option<(Event<'t>, usize)>, YamlError> {
        let next = self.0.next().transpose()?;
        Ok(next.map(|(event, span)| (event, span.start.line())))
    }

    /// Returns the event that the YAML so far requires.
    fn required(&mut self, line: usize) -> Result<(Event<'t>, usize), YamlError> {
        self.next()?.ok_or_else(|| YamlError::new(line, "the file ends too early"))
    }

    /// Returns the value that begins with an event.
    fn value(&mut self, event: Event<'t>, line: usize, levels: usize) -> Result<Value, YamlError> {
        let Some(levels) = levels.checked_sub(1) else {
            return Err(YamlError::new(line, format!("more than {MOST_LEVELS} levels")));
        };
        match event {
            Event::Scalar(text, style, ..) if is_null(&text, style) => Ok(Value::Null),
            Event::Scalar(text, ..) => Ok(Value::String(text.into_owned())),
            Event::SequenceStart(..) => self.list(line, levels),
            Event::MappingStart(..) => self.mapping(line, levels),
            Event::Alias(_) => Err(YamlError::new(line, "aliases are not supported: write the value out")),
            _ => Err(YamlError::new(line, "a value is missing")),
        }
    }

    fn list(&mut self, line: usize, levels: usize) -> Result<Value, YamlError> {
        let mut list = Vec::new();
        loop {
            match self.required(line)? {
                (Event::SequenceEnd, _) => return Ok(Value::Array(list)),
                (event, line) => list.push(self.value(event, line, levels)?),
            }
        }
    }

    fn mapping(&mut self, line: usize, levels: usize) -> Result<Value, YamlError> {
        let mut mapping = Map::new();
        loop {
            let (key, line) = match self.required(line)? {
                (Event::MappingEnd, _) => return Ok(Value::Object(mapping)),
                (Event::Scalar(key, ..), line) => (key.into_owned(), line),
                (_, line) => return Err(YamlError::new(line, "a name is expected")),
            };
            let (event, value_line) = self.required(line)?;
            let value = self.value(event, value_line, levels)?;
            if mapping.contains_key(&key) {
                return Err(YamlError::new(line, format!("{key} is given twice")));
            }
            mapping.insert(key, value);
        }
    }
}

fn is_null(text: &str, style: ScalarStyle) -> bool {
    style == ScalarStyle::Plain && ["", "~", "null"].contains(&text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn error(text: &str) -> String {
        parse(text).expect_err(text).to_string()
    }

    #[test]
    fn values_are_text_lists_and_mappings() {
        let text =
            "# a comment\na:\n  b: 'x: y'\n  c: [1, \"2\"]\n  d:\n    - true\nk: |\n  one\n  two\nn:\nempty: ''\n";
        let value = json!({
            "a": {"b": "x: y", "c": ["1", "2"], "d": ["true"]}, "k": "one\ntwo\n", "n": null, "empty": ""
        });
        assert_eq!(parse(text), Ok(value));
        assert_eq!(parse("---\na: b\n...\n"), Ok(json!({"a": "b"})));
        assert_eq!(parse(" \n# nothing\n"), Ok(Value::Null));
    }

    #[test]
    fn what_is_not_understood_is_refused_with_its_line() {
        assert_eq!(error("a: 1\nb: 2\na: 3\n"), "line 3: a is given twice");
        assert_eq!(error("a: &x 1\nb: *x\n"), "line 2: aliases are not supported: write the value out");
        assert_eq!(error("a: 1\n---\nb: 2\n"), "line 3: a second document");
        assert_eq!(error("[a, b]: c\n"), "line 1: a name is expected");
        assert!(error("a: 1\n b: 2\n").starts_with("line 2: "));
        assert!(error("a: [1,\n").starts_with("line "));
        assert!(error(&"[".repeat(20)).contains("more than 16 levels"));
    }
}
