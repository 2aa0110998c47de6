//! What `--help` prints besides the options: one screen for each command, with examples. Long explanations are in the
//! documentation.

use clap::error::{ContextKind, ContextValue, Error, ErrorKind};
use clap::{ArgMatches, Args, Command, FromArgMatches, Id};

macro_rules! overview {
    () => {
        "\
Examples:
  armtrace                               # list the servers of this host
  sudo armtrace --pid $(pidof mysqld)    # show what one waits for"
    };
}

/// The layout of the overview, which has no room for empty lines. `{after-help}` would have one before it.
pub(super) const TEMPLATE: &str =
    concat!("{about}\n{usage-heading} {usage}\nCommands:\n{subcommands}\nOptions:\n{options}\n", overview!());

/// The same examples for the manual page.
pub(super) const OVERVIEW: &str = overview!();

pub(super) const RUN: &str = "\
Examples:
  sudo armtrace --pid $(pidof mysqld)
  sudo armtrace --discover --listen 127.0.0.1:9500 --max-overhead 0.5%
  sudo armtrace --pid $(pidof mysqld) --watch trx_sys_mutex";

pub(super) const TOP: &str = "\
Examples:
  sudo armtrace top
  sudo armtrace top --pid $(pidof mariadbd) --delay 5s";

pub(super) const RECORD: &str = "\
Examples:
  sudo armtrace record --pid $(pidof mysqld) -o x86.rec
  sudo armtrace record --pid $(pidof mysqld) --duration 5m --label threads=64 -o 64.rec";

pub(super) const DUMP: &str = "\
Examples:
  sudo armtrace dump -o spike.rec
  sudo armtrace dump --target mysql.service --last 5m -o spike.rec
  sudo armtrace dump --when-waiting 20 -o spike.rec";

pub(super) const REPLAY: &str = "\
Examples:
  armtrace replay x86.rec
  armtrace replay x86.rec --top --loop
  armtrace replay x86.rec --speed 10 --stay --listen 127.0.0.1:9500";

pub(super) const EXPORT: &str = "\
Examples:
  armtrace export *.rec --format parquet --output fleet
  armtrace export x86.rec arm.rec --format perfetto > both.json
  armtrace export x86.rec --format pprof > x86.pb.gz
  armtrace export x86.rec --format json | jq 'select(.wait_seconds > 1)'";

pub(super) const REPORT: &str = "\
Examples:
  armtrace report x86.rec
  armtrace report x86.rec --format html > x86.html";

pub(super) const COMPARE: &str = "\
Examples:
  armtrace compare x86.rec arm.rec
  armtrace compare x86.rec arm.rec --usd-a 0.35 --usd-b 0.27 --format html > both.html
  armtrace compare --by threads 16.rec 32.rec 64.rec
  armtrace compare --prometheus http://prom:9090 --a 'job=\"x86\"' --b 'job=\"arm\"'";

pub(super) const DOCTOR: &str = "\
Examples:
  armtrace doctor
  sudo armtrace doctor --pid $(pidof mysqld)";

pub(super) const AUDIT: &str = "\
Examples:
  armtrace audit /usr/sbin/mysqld
  armtrace audit mysqld-x86_64 mysqld-aarch64";

pub(super) const SYMBOLS: &str = "\
Examples:
  armtrace symbols export mariadbd.debug -o mariadbd.symbols
  sudo armtrace --pid $(pidof mariadbd) --symbols mariadbd.symbols";

pub(super) const GENERATE: &str = "\
Examples:
  armtrace generate /tmp/armtrace
  sudo armtrace generate /usr/local/share/armtrace";

/// Arguments of a command that is the default, and runs if a server is given or all are. The overview shows only the
/// arguments for that: the command's own help has them all.
#[derive(Clone, Debug)]
pub(super) struct Overview<A>(pub A);

impl<A: FromArgMatches> FromArgMatches for Overview<A> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        A::from_arg_matches(matches).map(Overview)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        self.0.update_from_arg_matches(matches)
    }
}

impl<A: Args> Args for Overview<A> {
    fn group_id() -> Option<Id> {
        A::group_id()
    }

    fn augment_args(command: Command) -> Command {
        A::augment_args(command).mut_args(|argument| match argument.get_id().as_str() {
            "pid" => argument,
            "discover" => argument,
            // A variable of the environment is no wish to run the command.
            _ if argument.get_env().is_some() => argument.hide(true),
            _ => argument.hide(true).requires("RunArgs"),
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        A::augment_args_for_update(command)
    }
}

/// Adds the next step to an error about the server's process ID.
pub(super) fn with_tip(mut error: Error) -> Error {
    use ErrorKind::{ArgumentConflict, InvalidValue, MissingRequiredArgument, UnknownArgument, ValueValidation};
    let has_usage = [ArgumentConflict, InvalidValue, MissingRequiredArgument, UnknownArgument, ValueValidation]
        .contains(&error.kind());
    if has_usage && error.to_string().contains("--pid <PID>") {
        let tip = "give the ID of one server (`armtrace` alone lists those of this host), or --discover";
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use crate::commands::Cli;

    /// A terminal of usual size, and a large one.
    const USUAL: (usize, usize) = (80, 24);
    const LARGE: (usize, usize) = (100, 45);

    /// The commands with more options than a terminal of usual size has lines.
    const LONG: [&str; 4] = ["run", "top", "record", "compare"];

    /// Returns the arguments that lead to each command, `help` excepted.
    fn all() -> Vec<Vec<String>> {
        let names = |command: &clap::Command| command.get_subcommands().map(|c| c.get_name().to_owned()).collect();
        let cli = Cli::command();
        let commands: Vec<String> = names(&cli);
        let nested = cli.get_subcommands().flat_map(|command| {
            let nested: Vec<String> = names(command);
            nested.into_iter().map(|name| vec![command.get_name().to_owned(), name])
        });
        let all = std::iter::once(vec![]).chain(commands.into_iter().map(|name| vec![name])).chain(nested);
        all.collect()
    }

    /// Returns what a command prints on a terminal of this width.
    fn help(path: &[String], option: &str, width: usize) -> String {
        let arguments = std::iter::once("armtrace").chain(path.iter().map(String::as_str)).chain([option]);
        let error = Cli::command().term_width(width).try_get_matches_from(arguments).expect_err("help");
        error.to_string()
    }

    #[test]
    fn every_help_fits_on_a_screen() {
        for path in all() {
            for option in ["-h", "--help"] {
                for (width, height) in [USUAL, LARGE] {
                    let text = help(&path, option, width);
                    let is_long = path.first().is_some_and(|name| LONG.contains(&name.as_str()));
                    let height = if is_long { LARGE.1 } else { height };
                    let widest = text.lines().map(|line| line.chars().count()).max().unwrap_or(0);
                    assert!(text.lines().count() <= height && widest <= width, "{path:?} {option} {width}:\n{text}");
                }
            }
        }
    }

    /// `pidof` prints nothing, or several IDs, or is forgotten.
    #[test]
    fn an_error_about_the_process_names_the_next_step() {
        for words in ["run", "--pid", "--pid x", "--pid 0", "--pid 12 34", "record -o x", "--listen :1"] {
            let words = std::iter::once("armtrace").chain(words.split(' '));
            let error = super::with_tip(Cli::try_parse_from(words).expect_err("an error")).to_string();
            assert!(error.contains("tip: give the ID of one server (`armtrace` alone"), "{error}");
        }
        let other = super::with_tip(Cli::try_parse_from(["armtrace", "report"]).expect_err("an error")).to_string();
        assert!(!other.contains("tip"), "{other}");
    }

    #[test]
    fn every_help_ends_with_examples_that_can_be_run() {
        for path in all() {
            let text = help(&path, "--help", LARGE.0);
            let (_, examples) = text.split_once("\nExamples:\n").unwrap_or_else(|| panic!("{path:?}:\n{text}"));
            for line in examples.lines() {
                let line = line.replace("$(pidof mysqld)", "1").replace("$(pidof mariadbd)", "1");
                let words = shlex::split(&line).expect("words");
                let words = words.iter().skip_while(|word| *word == "sudo").take_while(|word| *word != ">");
                Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{line}: {error}"));
            }
            assert!(examples.lines().count() >= 2, "{path:?}:\n{text}");
        }
    }
}
