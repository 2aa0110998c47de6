//! The settings of all sources, of which the earlier ones win.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use clap::builder::{OsStr, Resettable};
use clap::{Arg, Command, Id};

use super::error::{ConfigError, Problem};
use super::file::{self, Entry};
use super::options::{Options, Setting};
use super::{Surroundings, FILE_OPTION};

/// The values of options that the command line leaves out.
pub(super) struct Settings {
    options: Options,
    /// The options that the command line has, or a source that was added before.
    decided: Vec<Id>,
    values: BTreeMap<Id, Vec<OsString>>,
}

impl Settings {
    /// Returns no settings yet; `given` says which options the command line has.
    pub fn new(options: Options, given: impl Fn(&Arg) -> bool) -> Settings {
        let decided = options.iter().filter(|option| given(option)).map(|option| option.get_id().clone()).collect();
        Settings { options, decided, values: BTreeMap::new() }
    }

    /// Adds those of the environment. A variable that is empty counts as not set.
    pub fn add_environment(&mut self, surroundings: &Surroundings) -> Result<(), ConfigError> {
        let mut read: Vec<(String, Setting)> = Vec::new();
        for option in self.options.iter() {
            let variable = variable(option);
            let value = (surroundings.variable)(&variable).filter(|value| !value.is_empty());
            let Some(value) = value else { continue };
            let setting = Setting::of_variable(option, value);
            if let Err(what) = setting.check().and_then(|()| self.fits(&setting, &variable, &read)) {
                return Err(ConfigError::Variable { variable, what });
            }
            read.push((variable, setting));
        }
        self.add(read);
        Ok(())
    }

    /// Adds those of the file that the command line or the environment names, or of the standard one if it exists.
    pub fn add_file(&mut self, named: Option<PathBuf>, surroundings: &Surroundings) -> Result<(), ConfigError> {
        let of_environment = || self.values.get(FILE_OPTION)?.first().map(PathBuf::from);
        let named = named.or_else(of_environment);
        let path = named.as_deref().unwrap_or(surroundings.standard_file);
        let entries = match file::read(path) {
            Err(ConfigError::Unreadable { why, .. }) if named.is_none() && why.kind() == ErrorKind::NotFound => {
                return Ok(())
            }
            read => read?,
        };
        self.add_entries(path, entries)?;
        self.values.insert(FILE_OPTION.into(), vec![path.into()]);
        Ok(())
    }

    fn add_entries(&mut self, path: &Path, entries: Vec<Entry>) -> Result<(), ConfigError> {
        let mut read: Vec<(String, Setting)> = Vec::new();
        for entry in entries {
            let line = entry.line;
            let setting = self.options.setting(entry).and_then(|setting| {
                setting.check()?;
                self.fits(&setting, setting.name(), &read).map(|()| setting)
            });
            let setting = setting.map_err(|what| ConfigError::Line { path: path.to_owned(), line, what })?;
            read.push((setting.name().to_owned(), setting));
        }
        self.add(read);
        Ok(())
    }

    /// Fails if a setting and one of the same source exclude each other. Each has its name there.
    fn fits(&self, setting: &Setting, name: &str, others: &[(String, Setting)]) -> Result<(), Problem> {
        let excludes = |other: &Setting| {
            !setting.is_off() && !other.is_off() && self.options.exclude(setting.option.get_id(), other.option.get_id())
        };
        match others.iter().find(|(_, other)| excludes(other)) {
            Some((other, _)) => Err(Problem::Conflict { key: name.to_owned(), other: other.clone() }),
            None => Ok(()),
        }
    }

    /// Adds the settings of a source that neither the command line nor an earlier source decides.
    fn add(&mut self, read: Vec<(String, Setting)>) {
        let earlier = self.decided.clone();
        for (_, setting) in read {
            let id = setting.option.get_id();
            if earlier.iter().any(|decided| decided == id || self.options.exclude(decided, id)) {
                continue;
            }
            self.decided.extend((!setting.is_off()).then(|| id.clone()));
            self.values.entry(id.clone()).or_insert(setting.values);
        }
    }

    /// Gives the values to the options that all commands have.
    pub fn give_all(&self, cli: Command) -> Command {
        cli.mut_args(|option| if option.is_global_set() { self.with_value(option) } else { option })
    }

    /// Gives the values to the options of a command.
    pub fn give(&self, command: Command) -> Command {
        let is_set = |id: &Id| self.values.contains_key(id);
        let groups = command.get_groups().filter(|group| group.get_args().any(is_set));
        let groups: Vec<Id> = groups.map(|group| group.get_id().clone()).collect();
        let command =
            groups.iter().fold(command, |command, id| command.mut_group(id.as_str(), |group| group.required(false)));
        command.mut_args(|option| {
            let is_excluded = self.decided.iter().any(|id| self.options.exclude(id, option.get_id()));
            // The variables of the environment have been read.
            let option = self.with_value(option).env(Resettable::<OsStr>::Reset);
            if is_excluded {
                return not_required(option);
            }
            option
        })
    }

    fn with_value(&self, option: Arg) -> Arg {
        match self.values.get(option.get_id()) {
            Some(values) => not_required(option).default_values(values),
            None => option,
        }
    }
}

/// Returns the option, which the command line need not have any more.
fn not_required(option: Arg) -> Arg {
    option.required(false).required_unless_present(Resettable::<Id>::Reset)
}

/// Returns the name of an option's variable: `ARMTRACE_MAX_OVERHEAD`.
fn variable(option: &Arg) -> String {
    let name = option.get_long().unwrap_or_default();
    format!("ARMTRACE_{}", name.replace(['-', '.'], "_").to_uppercase())
}
