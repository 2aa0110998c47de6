//! Labels: what identifies a server, and how servers are chosen.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::str::FromStr;
use std::sync::LazyLock;

use crate::export;

/// Names of labels and their values.
pub type Labels = BTreeMap<String, String>;

/// The metric that has a series for each server.
pub const INFO: &str = "armtrace_target_info";

/// What the labels of servers are to match, as PromQL writes it between braces: `arch="x86_64", job=~"db.*"`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matchers(String);

/// The text is no list of matchers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write label=\"value\", with commas between several, such as 'arch=\"x86_64\", job=~\"db.*\"'")]
pub struct MatchersError;

impl FromStr for Matchers {
    type Err = MatchersError;

    fn from_str(text: &str) -> Result<Matchers, MatchersError> {
        let mut rest = text.trim();
        let mut all = Vec::new();
        while !rest.is_empty() {
            let (matcher, after) = matcher(rest).ok_or(MatchersError)?;
            all.push(matcher);
            let after = after.trim_start();
            rest = match after.strip_prefix(',') {
                Some(next) => next.trim_start(),
                None if after.is_empty() => "",
                None => return Err(MatchersError),
            };
        }
        Ok(Matchers(all.join(", ")))
    }
}

/// Splits the first matcher off, and returns what follows it.
fn matcher(text: &str) -> Option<(String, &str)> {
    let name = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|length| *length > 0)?;
    let (name, rest) = text.split_at(name);
    (!name.starts_with(|c: char| c.is_ascii_digit())).then_some(())?;
    let rest = rest.trim_start();
    let operator = ["=~", "!~", "!=", "="].into_iter().find(|operator| rest.starts_with(operator))?;
    let rest = rest[operator.len()..].trim_start();
    let (value, rest) = (quoted(rest)?, rest);
    Some((format!("{name}{operator}{value}"), &rest[value.len()..]))
}

/// Returns the quoted text at the beginning, with its quotes.
fn quoted(text: &str) -> Option<&str> {
    let mut is_escaped = false;
    let inner = text.strip_prefix('"')?;
    for (at, c) in inner.char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => return Some(&text[..at + 2]),
            '\n' => return None,
            _ => {}
        }
    }
    None
}

impl Matchers {
    /// Returns the selector of the series that say which servers there are.
    pub(super) fn info(&self) -> String {
        format!("{INFO}{{{}}}", self.0)
    }
}

impl Display for Matchers {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "any labels" } else { &self.0 })
    }
}

/// Returns what identifies a server among the labels of one of its series: those that Prometheus and whoever configured
/// it have added, and `target`. `own` are the other labels of the metric itself.
///
/// Labels that describe the server are left out of all series, so that a configuration that adds one of the same name,
/// or renames armtrace's to `exported_…`, tells no server apart from itself.
pub fn identity(labels: &Labels, own: &[&str]) -> Labels {
    let is_identity = |name: &str| {
        let name = name.strip_prefix("exported_").unwrap_or(name);
        name != "__name__" && !own.contains(&name) && !DESCRIPTIVE.contains(&name)
    };
    labels.iter().filter(|(name, _)| is_identity(name)).map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// The labels that describe a server.
static DESCRIPTIVE: LazyLock<&[&str]> =
    LazyLock::new(|| export::families().find(|family| family.name == INFO).map_or(&[], |family| family.labels));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matchers_are_those_of_promql() {
        let parsed = |text: &str| text.parse::<Matchers>().map(|matchers| matchers.0);
        assert_eq!(parsed(r#"arch="x86_64""#).unwrap(), r#"arch="x86_64""#);
        assert_eq!(parsed(r#" job =~ "a,b|c\"}" , env!="x", "#).unwrap(), r#"job=~"a,b|c\"}", env!="x""#);
        assert_eq!(parsed("").unwrap(), "");
        for bad in
            ["x86_64", "arch=x86_64", r#"arch="x"#, r#"1a="x""#, r#"a="x" b="y""#, r#"a=="x""#, r#"a="x"} or up{"#]
        {
            assert_eq!(parsed(bad), Err(MatchersError), "{bad}");
        }
        assert_eq!("".parse::<Matchers>().unwrap().info(), "armtrace_target_info{}");
    }

    #[test]
    fn a_server_is_identified_by_what_prometheus_adds() {
        let labels = |pairs: &[(&str, &str)]| -> Labels {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        let instance = [("instance", "db1:9435"), ("job", "armtrace"), ("target", "mysqld-3306")];
        let info = [("__name__", INFO), ("arch", "x86_64"), ("version", "9.7.4"), ("exported_arch", "x86_64")];
        let wait = [("latch", "trx_mutex"), ("arch", "x86_64")];
        let expected = labels(&instance);
        assert_eq!(identity(&labels(&[&instance[..], &info].concat()), &[]), expected);
        assert_eq!(identity(&labels(&[&instance[..], &wait].concat()), &["latch"]), expected);
    }
}
