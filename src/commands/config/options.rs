//! The options that have settings: their names, their values, and which exclude each other.

use std::error::Error as _;
use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, Command, Id};

use super::error::Problem;
use super::file::{Entry, Value};
use super::FILE_OPTION;

/// The options that have settings.
pub(super) struct Options {
    all: Vec<Arg>,
    /// Pairs of which a command line can have only one.
    exclusive: Vec<(Id, Id)>,
}

impl Options {
    /// Returns the options that all commands have, and those of one command.
    pub fn new(cli: &Command, command: Option<&Command>) -> Options {
        let shared = cli.get_arguments().filter(|option| option.is_global_set());
        let own = command.into_iter().flat_map(Command::get_arguments);
        let all = own.chain(shared).filter(|option| option.get_long().is_some()).cloned().collect();
        Options { all, exclusive: command.map(exclusive).unwrap_or_default() }
    }

    pub fn iter(&self) -> impl Iterator<Item = &Arg> {
        self.all.iter()
    }

    /// Returns those that can be in a file.
    fn of_file(&self) -> impl Iterator<Item = &Arg> {
        self.all.iter().filter(|option| option.get_id() != FILE_OPTION)
    }

    pub fn exclude(&self, a: &Id, b: &Id) -> bool {
        self.exclusive.iter().any(|(one, other)| [(one, other), (other, one)].contains(&(a, b)))
    }

    /// Returns the setting of a line of a file.
    ///
    /// # Errors
    /// Fails if there is no such option, or if it takes other values.
    pub fn setting(&self, entry: Entry) -> Result<Setting, Problem> {
        let Some(option) = self.of_file().find(|option| option.get_long() == Some(&entry.key)) else {
            let similar = self.similar(&entry.key);
            return Err(Problem::Unknown { key: entry.key, similar });
        };
        let values = values(option, entry.value).map_err(|(is, takes)| Problem::Type { key: entry.key, is, takes })?;
        Ok(Setting { option: option.clone(), values })
    }

    /// Returns the name that is most similar to one that does not exist.
    fn similar(&self, key: &str) -> Option<String> {
        let error = alone(self.of_file()).try_get_matches_from([format!("--{key}")]).err()?;
        match error.get(ContextKind::SuggestedArg)? {
            ContextValue::String(option) => Some(option.trim_start_matches('-').to_owned()),
            _ => None,
        }
    }
}

/// Returns the pairs of a command's options that exclude each other.
fn exclusive(command: &Command) -> Vec<(Id, Id)> {
    let conflicts = command.get_arguments().flat_map(|option| {
        let others = command.get_arg_conflicts_with(option).into_iter();
        others.map(|other| (option.get_id().clone(), other.get_id().clone()))
    });
    let alternatives = command.get_groups().filter(|group| !(*group).clone().is_multiple()).flat_map(|group| {
        let members: Vec<&Id> = group.get_args().collect();
        let pairs = members.iter().enumerate().flat_map(|(place, a)| members[..place].iter().map(move |b| (*a, *b)));
        pairs.map(|(a, b)| (a.clone(), b.clone())).collect::<Vec<_>>()
    });
    conflicts.chain(alternatives).collect()
}

/// Returns what an option is given by a value of a file.
///
/// # Errors
/// Fails with the value's type, and those that the option takes.
fn values(option: &Arg, value: Value) -> Result<Vec<OsString>, (&'static str, &'static str)> {
    let takes_many = option.get_value_delimiter().is_some() || matches!(option.get_action(), ArgAction::Append);
    let is = match value {
        Value::Switch(on) if is_switch(option) => return Ok(vec![on.to_string().into()]),
        Value::One(text) if !is_switch(option) => return Ok(vec![text.into()]),
        Value::Many(texts) if takes_many => return Ok(texts.into_iter().map(OsString::from).collect()),
        Value::Switch(_) => "true or false",
        Value::One(_) => "a string or a number",
        Value::Many(_) => "an array",
        Value::Other(kind) => kind,
    };
    let takes = match (is_switch(option), takes_many) {
        (true, _) => "true or false",
        (false, true) => "a string or an array of strings",
        (false, false) => "a string or a number",
    };
    Err((is, takes))
}

/// An option and the value that it is to have.
pub(super) struct Setting {
    pub option: Arg,
    pub values: Vec<OsString>,
}

impl Setting {
    /// Returns the setting of a variable of the environment, which says in more ways whether a switch is on.
    pub fn of_variable(option: &Arg, value: OsString) -> Setting {
        let value = match value.to_str().filter(|_| is_switch(option)).map(str::to_ascii_lowercase).as_deref() {
            Some("true" | "yes" | "on" | "1") => "true".into(),
            Some("false" | "no" | "off" | "0") => "false".into(),
            _ => value,
        };
        Setting { option: option.clone(), values: vec![value] }
    }

    /// Returns the option's name.
    pub fn name(&self) -> &str {
        name(&self.option)
    }

    /// Returns whether it turns a switch off, which excludes nothing.
    pub fn is_off(&self) -> bool {
        is_switch(&self.option) && self.values == ["false"]
    }

    /// Fails if the option does not take a value.
    pub fn check(&self) -> Result<(), Problem> {
        for value in &self.values {
            let mut word = OsString::from(format!("--{}=", self.name()));
            word.push(value);
            if let Err(error) = alone([&self.option]).try_get_matches_from([word]) {
                let shown = (!self.option.is_hide_env_values_set()).then(|| value.to_string_lossy().into_owned());
                return Err(Problem::Value { key: self.name().to_owned(), value: shown, why: reason(&error) });
            }
        }
        Ok(())
    }
}

fn name(option: &Arg) -> &str {
    option.get_long().unwrap_or_default()
}

fn is_switch(option: &Arg) -> bool {
    matches!(option.get_action(), ArgAction::SetTrue)
}

/// Returns a command that has only these options, without what relates them to others.
fn alone<'a>(options: impl IntoIterator<Item = &'a Arg>) -> Command {
    let bare = |option: &Arg| {
        let action = if is_switch(option) { ArgAction::Set } else { option.get_action().clone() };
        let bare = Arg::new(option.get_id().clone()).long(name(option).to_owned()).action(action);
        bare.value_parser(option.get_value_parser().clone()).value_delimiter(option.get_value_delimiter())
    };
    let options = options.into_iter().map(bare);
    Command::new("alone").no_binary_name(true).disable_help_flag(true).args(options)
}

/// Returns what is wrong with a value, without the option's name and the value.
fn reason(error: &clap::Error) -> String {
    match (error.kind(), error.get(ContextKind::ValidValue), error.source()) {
        (ErrorKind::InvalidValue, Some(ContextValue::Strings(values)), _) if !values.is_empty() => {
            format!("possible are {}", values.join(", "))
        }
        (_, _, Some(source)) => source.to_string(),
        (kind, ..) => kind.to_string(),
    }
}
