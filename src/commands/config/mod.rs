//! Settings of `armtrace run` from the environment and from a file: values of the options that the command line leaves
//! out.
//!
//! They become the options' default values. So the same parsers read them, and rules among options (required ones,
//! conflicts) hold for what the command line says only.

mod error;
mod file;
mod options;
mod settings;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command};

pub use self::error::{ConfigError, Problem};
use self::options::Options;
use self::settings::Settings;

/// The file that is read if there is no other. It may be missing.
const STANDARD_FILE: &str = "/etc/armtrace/armtrace.toml";

/// The command that has settings.
const COMMAND: &str = "run";

/// The option that names the file, and that cannot be in it.
const FILE_OPTION: &str = "config";

/// The option that names the file.
#[derive(Args, Clone, Debug)]
pub(super) struct ConfigArgs {
    /// TOML file with values of these options
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// What surrounds a command line.
pub(super) struct Surroundings<'a> {
    /// Returns a variable of the environment.
    pub variable: &'a dyn Fn(&str) -> Option<OsString>,
    /// The file that is read without `--config`, if it exists.
    pub standard_file: &'a Path,
}

impl Surroundings<'_> {
    /// Those of this process.
    pub fn of_process() -> Surroundings<'static> {
        Surroundings { variable: &|name| std::env::var_os(name), standard_file: Path::new(STANDARD_FILE) }
    }
}

/// Gives the options of `run` that the command line leaves out the values that they have in the environment, or in the
/// file; other commands have such values of the options that all commands share, from the environment. Returns the
/// definition of the command line with these values, and its words, among which `run` is written out.
///
/// # Errors
/// Fails if a setting is wrong. What is wrong with the command line itself is found when the words are parsed.
pub(super) fn apply(
    cli: Command,
    mut words: Vec<OsString>,
    surroundings: &Surroundings,
) -> Result<(Command, Vec<OsString>), ConfigError> {
    // If the line is wrong or asks for help, there is nothing to add.
    let Ok(line) = cli.clone().ignore_errors(true).try_get_matches_from(&words) else { return Ok((cli, words)) };
    let own = run_matches(&cli, &line);
    let command = own.and_then(|_| cli.find_subcommand(COMMAND));
    let given = |option: &Arg| is_given(&line, option) || own.is_some_and(|own| is_given(own, option));
    let mut settings = Settings::new(Options::new(&cli, command), given);
    settings.add_environment(surroundings)?;
    let Some(own) = own else { return Ok((settings.give_all(cli), words)) };
    settings.add_file(own.get_one(FILE_OPTION).cloned(), surroundings)?;
    if line.subcommand().is_none() {
        // An option's default value is no reason for clap to choose the command.
        words.insert(1, COMMAND.into());
    }
    let cli = settings.give_all(cli).mut_subcommand(COMMAND, |run| settings.give(run));
    Ok((cli, words))
}

/// Returns the arguments of `run` in a command line, if that is its command: because the line says so, or because it
/// has an option of `run` and no command.
fn run_matches<'a>(cli: &Command, line: &'a ArgMatches) -> Option<&'a ArgMatches> {
    match line.subcommand() {
        Some((name, own)) => Some(own).filter(|_| name == COMMAND),
        None => {
            let mut options = cli.get_arguments().filter(|option| !option.is_global_set());
            options.any(|option| is_given(line, option)).then_some(line)
        }
    }
}

/// Returns whether a command line has this option.
fn is_given(matches: &ArgMatches, option: &Arg) -> bool {
    let id = option.get_id().as_str();
    matches.try_contains_id(id).is_ok() && matches.value_source(id) == Some(ValueSource::CommandLine)
}

#[cfg(test)]
mod tests;
