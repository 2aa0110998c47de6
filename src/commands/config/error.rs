//! What can be wrong with settings in a file or in the environment.

use std::io;
use std::path::PathBuf;

/// The reason why settings cannot be used.
#[derive(Debug, thiserror::Error)]
#[cfg_attr(test, derive(strum::VariantNames, strum::IntoStaticStr))]
pub enum ConfigError {
    /// The file cannot be read.
    #[error(
        "cannot read the settings in {}: {why}\nnext: give a file that this user may read, with --config FILE",
        .path.display()
    )]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: io::Error,
    },
    /// A line of the file is wrong.
    #[error("{}:{line}: {what}", .path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The number of the line, from 1.
        line: usize,
        /// What is wrong with it.
        what: Problem,
    },
    /// A variable of the environment is wrong.
    #[error("{variable} in the environment: {what}")]
    Variable {
        /// Its name.
        variable: String,
        /// What is wrong with it.
        what: Problem,
    },
}

/// What is wrong with one setting, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The file is larger than settings can be.
    #[error("no settings: the file has more than {0} bytes")]
    TooLarge(u64),
    /// The file is not text.
    #[error("not UTF-8, as TOML has to be")]
    NotText,
    /// The line is not TOML.
    #[error("not TOML: {0}")]
    Syntax(String),
    /// No option has this name.
    #[error("there is no setting {key}: {}", nearest(.similar.as_deref()))]
    Unknown {
        /// The name.
        key: String,
        /// The most similar one that exists.
        similar: Option<String>,
    },
    /// The same setting is in the file twice, once with dots and once in quotes.
    #[error("{0} is set for the second time")]
    Twice(String),
    /// The value is of another type.
    #[error("{key} is {is}: it takes {takes}")]
    Type {
        /// The setting.
        key: String,
        /// The type in the file.
        is: &'static str,
        /// The types that are possible.
        takes: &'static str,
    },
    /// The option does not take the value.
    #[error("{}: {why}", setting(.key, .value.as_deref()))]
    Value {
        /// The setting.
        key: String,
        /// The value; `None` if it may be secret.
        value: Option<String>,
        /// What is wrong with it, or what is possible.
        why: String,
    },
    /// Another setting in the same place excludes this one.
    #[error("{key} cannot be set together with {other}: remove one of them")]
    Conflict {
        /// The setting.
        key: String,
        /// The other setting.
        other: String,
    },
}

/// Says which name may have been meant.
fn nearest(similar: Option<&str>) -> String {
    match similar {
        Some(similar) => format!("did you mean {similar}?"),
        None => "they are the options of `armtrace run --help`, without dashes in front".to_owned(),
    }
}

fn setting(key: &str, value: Option<&str>) -> String {
    match value {
        Some(value) => format!("{key} = {value:?}"),
        None => key.to_owned(),
    }
}
