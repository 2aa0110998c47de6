//! The units of PromQL expressions, as far as the names of metrics tell them.

use std::collections::BTreeSet;

/// A unit: powers of seconds and of bytes. Threads, CPUs, shares and everything that is counted have neither.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unit {
    /// The power of seconds, doubled, because variances have roots.
    half_seconds: i32,
    bytes: i32,
}

/// A plain number, such as one of threads or a share.
pub const NUMBER: Unit = Unit { half_seconds: 0, bytes: 0 };
/// Seconds.
pub const SECONDS: Unit = Unit { half_seconds: 2, bytes: 0 };
/// Seconds for each byte, or KiB.
pub const SECONDS_PER_BYTE: Unit = Unit { half_seconds: 2, bytes: -1 };
/// Events per second, and hertz.
pub const PER_SECOND: Unit = Unit { half_seconds: -2, bytes: 0 };
/// Bytes.
pub const BYTES: Unit = Unit { half_seconds: 0, bytes: 1 };

impl Unit {
    fn times(self, other: Unit, power: i32) -> Unit {
        Unit { half_seconds: self.half_seconds + power * other.half_seconds, bytes: self.bytes + power * other.bytes }
    }

    /// Returns the unit of a metric, from its name. The operations of a recording rule are part of its name.
    pub fn of_metric(name: &str) -> Unit {
        let (metric, operation) = match name.split(':').collect::<Vec<_>>()[..] {
            [_, metric, operation] => (metric, operation),
            _ => (name, ""),
        };
        let is_number = ["_seconds_count", "_seconds_bucket"].iter().any(|part| metric.contains(part));
        let unit = if operation.starts_with("ratio") || is_number {
            NUMBER
        } else if metric.contains("_seconds_squared") {
            SECONDS.times(SECONDS, 1)
        } else if metric.contains("_seconds") {
            SECONDS
        } else if metric.contains("_hertz") {
            PER_SECOND
        } else if metric.contains("_bytes") {
            BYTES
        } else {
            NUMBER
        };
        if operation.starts_with("rate") {
            unit.times(PER_SECOND, 1)
        } else {
            unit
        }
    }
}

/// What is known of an expression.
#[derive(Debug, Default)]
pub struct Examined {
    /// Its unit.
    pub unit: Unit,
    /// The metrics that are summed over servers: neither `instance` nor `target` is left.
    pub summed: BTreeSet<String>,
}

/// Examines an expression, in which variables of Grafana have been replaced.
///
/// # Errors
/// Fails if it adds, or compares, values of different units, and if it has something that is not understood here.
pub fn examine(promql: &str) -> Result<Examined, String> {
    let tokens = tokens(promql);
    let mut reader = Reader { tokens: &tokens, at: 0, sums: 0, summed: BTreeSet::new() };
    let unit = reader.binary(0).map_err(|why| format!("{why}: {promql}"))?.unit;
    if reader.at < tokens.len() {
        return Err(format!("{:?} is not understood: {promql}", tokens[reader.at]));
    }
    Ok(Examined { unit, summed: reader.summed })
}

/// Splits an expression into words, numbers and signs. Selectors and ranges are left out.
fn tokens(promql: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut rest = promql.trim_start();
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_ascii_alphanumeric() || "_:.".contains(c);
        let length = match first {
            '{' => closing(rest),
            '[' => rest.find(']').map_or(rest.len(), |end| end + 1),
            c if is_word(c) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
            _ if [">=", "<=", "==", "!="].iter().any(|sign| rest.starts_with(sign)) => 2,
            _ => 1,
        };
        if !['{', '['].contains(&first) {
            tokens.push(rest[..length].to_owned());
        }
        rest = rest[length..].trim_start();
    }
    tokens
}

/// Returns the length of a selector, whose strings may have braces.
fn closing(selector: &str) -> usize {
    let mut is_quoted = false;
    let end = selector.char_indices().find(|&(_, c)| {
        is_quoted ^= c == '"';
        c == '}' && !is_quoted
    });
    end.map_or(selector.len(), |(at, _)| at + 1)
}

/// A part of an expression.
#[derive(Clone, Copy)]
struct Part {
    unit: Unit,
    /// Whether it is a number that is written out, which fits every unit.
    is_literal: bool,
}

const AGGREGATIONS: [&str; 7] = ["sum", "max", "min", "avg", "count", "topk", "quantile"];
/// From the loosest to the tightest.
const OPERATORS: [&[&str]; 5] =
    [&["or"], &["and", "unless"], &["==", "!=", ">", "<", ">=", "<="], &["+", "-"], &["*", "/"]];

struct Reader<'t> {
    tokens: &'t [String],
    at: usize,
    /// How many of the sums around this place sum over servers.
    sums: usize,
    summed: BTreeSet<String>,
}

impl Reader<'_> {
    fn peek(&self) -> &str {
        self.tokens.get(self.at).map_or("", String::as_str)
    }

    fn next(&mut self) -> String {
        self.at += 1;
        self.tokens.get(self.at - 1).cloned().unwrap_or_default()
    }

    fn takes(&mut self, token: &str) -> bool {
        let is_next = self.peek() == token;
        self.at += usize::from(is_next);
        is_next
    }

    fn binary(&mut self, level: usize) -> Result<Part, String> {
        let Some(operators) = OPERATORS.get(level) else { return self.primary() };
        let mut left = self.binary(level + 1)?;
        while operators.contains(&self.peek()) {
            let operator = self.next();
            while ["on", "ignoring", "group_left", "group_right"].contains(&self.peek()) {
                self.next();
                self.labels();
            }
            left = joined(left, &operator, self.binary(level + 1)?)?;
        }
        Ok(left)
    }

    /// Reads a list of labels in brackets, if there is one.
    fn labels(&mut self) -> Vec<String> {
        let mut labels = Vec::new();
        if self.takes("(") {
            while !self.takes(")") && self.at < self.tokens.len() {
                labels.push(self.next());
            }
        }
        labels
    }

    fn primary(&mut self) -> Result<Part, String> {
        if self.takes("(") {
            let part = self.binary(0)?;
            return if self.takes(")") { Ok(part) } else { Err(format!("{:?} for )", self.peek())) };
        }
        let word = self.next();
        if word.starts_with(|c: char| c.is_ascii_digit()) {
            return Ok(Part { unit: NUMBER, is_literal: true });
        }
        if AGGREGATIONS.contains(&&*word) {
            return self.aggregation(&word);
        }
        if self.peek() == "(" {
            return self.function(&word);
        }
        if !word.starts_with(|c: char| c.is_ascii_alphabetic()) {
            return Err(format!("{word:?} is not understood"));
        }
        if self.sums > 0 {
            self.summed.insert(word.clone());
        }
        Ok(Part { unit: Unit::of_metric(&word), is_literal: false })
    }

    fn aggregation(&mut self, word: &str) -> Result<Part, String> {
        let keeps = match self.next_if_grouping() {
            Some((true, labels)) => ["instance", "target"].iter().all(|kept| labels.iter().any(|label| label == kept)),
            Some((false, labels)) => !labels.iter().any(|label| ["instance", "target"].contains(&&**label)),
            None => false,
        };
        let is_over_servers = word == "sum" && !keeps;
        self.sums += usize::from(is_over_servers);
        let part = self.arguments();
        self.sums -= usize::from(is_over_servers);
        let unit = part?.last().map_or(NUMBER, |part| part.unit);
        Ok(Part { unit: if word == "count" { NUMBER } else { unit }, is_literal: false })
    }

    /// Reads `by (…)` or `without (…)`. Returns whether it is `by`, and the labels.
    fn next_if_grouping(&mut self) -> Option<(bool, Vec<String>)> {
        let is_by = self.takes("by");
        (is_by || self.takes("without")).then(|| (is_by, self.labels()))
    }

    fn function(&mut self, word: &str) -> Result<Part, String> {
        let first = self.at;
        let arguments = self.arguments()?;
        let Some(argument) = arguments.first() else { return Err(format!("{word} without arguments")) };
        let unit = match word {
            "rate" => argument.unit.times(PER_SECOND, 1),
            "sqrt" => Unit { half_seconds: argument.unit.half_seconds / 2, ..argument.unit },
            "histogram_quantile" => {
                let within = &self.tokens[first..self.at];
                let of_times = within.iter().any(|token| token.contains("_seconds_bucket"));
                if of_times {
                    SECONDS
                } else {
                    NUMBER
                }
            }
            "increase" | "label_replace" | "vector" | "round" => argument.unit,
            _ => return Err(format!("{word} is not understood")),
        };
        Ok(Part { unit, is_literal: word == "vector" })
    }

    fn arguments(&mut self) -> Result<Vec<Part>, String> {
        let mut parts = Vec::new();
        if !self.takes("(") {
            return Err(format!("{:?} for (", self.peek()));
        }
        while !self.takes(")") {
            if self.peek() == "\"" {
                self.string();
            } else {
                parts.push(self.binary(0)?);
            }
            if self.peek() != ")" && !self.takes(",") {
                return Err(format!("{:?} in arguments", self.peek()));
            }
        }
        Ok(parts)
    }

    /// Reads a string, whose words and signs are tokens.
    fn string(&mut self) {
        self.next();
        while self.at < self.tokens.len() && !self.takes("\"") {
            self.next();
        }
    }
}

fn joined(left: Part, operator: &str, right: Part) -> Result<Part, String> {
    let unit = match operator {
        "*" => left.unit.times(right.unit, 1),
        "/" => left.unit.times(right.unit, -1),
        "and" | "unless" => left.unit,
        _ if left.unit == right.unit || right.is_literal => left.unit,
        _ if left.is_literal => right.unit,
        _ => return Err(format!("{operator} of different units, {:?} and {:?}", left.unit, right.unit)),
    };
    Ok(Part { unit, is_literal: left.is_literal && right.is_literal })
}
