use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;

use clap::CommandFactory;

use super::{apply, Surroundings};
use crate::commands::{Cli, Command, Overview};

/// What there is besides the words of a command line.
#[derive(Default)]
struct Case<'a> {
    environment: &'a [(&'a str, &'a str)],
    /// The text of the standard file.
    file: Option<&'a str>,
}

/// The standard file's name, which stands for its path in errors.
const FILE: &str = "armtrace.toml";

impl Case<'_> {
    fn of_file(text: &str) -> Case<'_> {
        Case { file: Some(text), ..Case::default() }
    }

    fn of_environment<'a>(environment: &'a [(&'a str, &'a str)]) -> Case<'a> {
        Case { environment, file: None }
    }

    /// Parses a line, or returns the error, a setting's or the command line's.
    fn parse(&self, line: &str) -> Result<Cli, String> {
        let folder = tempfile::tempdir().expect("a folder");
        let standard_file = folder.path().join(FILE);
        if let Some(text) = self.file {
            std::fs::write(&standard_file, text).expect("a file");
        }
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        let variable = |name: &str| {
            let found = self.environment.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| OsString::from(value))
        };
        let surroundings = Surroundings { variable: &variable, standard_file: &standard_file };
        let folder = format!("{}/", folder.path().display());
        let (command, words) =
            apply(Cli::command(), words, &surroundings).map_err(|error| error.to_string().replace(&folder, ""))?;
        Cli::parse_with(command, words).map_err(|error| error.to_string())
    }

    fn run(&self, line: &str) -> super::super::run::RunArgs {
        match self.parse(line).unwrap_or_else(|error| panic!("{line}: {error}")) {
            Cli { command: Some(Command::Run(args)), .. } | Cli { run: Some(Overview(args)), .. } => args,
            other => panic!("{line}: {other:?}"),
        }
    }

    fn error(&self, line: &str) -> String {
        self.parse(line).expect_err(line)
    }
}

#[test]
fn the_command_line_goes_before_the_environment_and_that_before_the_file() {
    let file = Case::of_file("max-overhead = '3%'");
    let both = Case { environment: &[("ARMTRACE_MAX_OVERHEAD", "2%")], ..file };
    for (run, with_option) in [
        ("armtrace run --pid 1", "armtrace run --pid 1 --max-overhead 4%"),
        ("armtrace --pid 1", "armtrace --max-overhead 4% --pid 1"),
    ] {
        let share = |case: &Case, line| case.run(line).attach.max_overhead;
        assert_eq!(share(&Case::default(), run), 0.01);
        assert_eq!(share(&file, run), 0.03);
        assert_eq!(share(&both, run), 0.02);
        assert_eq!(share(&both, with_option), 0.04);
        // The usual value is a choice too.
        assert_eq!(share(&both, &with_option.replace("4%", "1%")), 0.01);
    }
}

/// Every option of `run`, and a value that is not its usual one.
const VALUES: &[(&str, &str)] = &[
    ("pid", "70"),
    ("discover", ""),
    ("symbols", "/x"),
    ("max-overhead", "2%"),
    ("sample-hz", "7"),
    ("statements", "digest"),
    ("ask-statements", ""),
    ("handoffs", "node"),
    ("hardware-events", ""),
    ("mysql", "mysql://u@h:1"),
    ("defaults-file", "/y"),
    ("keep", "5m"),
    ("dump-to", "/v"),
    ("dump-when-waiting", "20"),
    ("dump-when-statement", "1m"),
    ("listen", "127.0.0.1:1"),
    ("web.config.file", "/z"),
    ("allowed-hosts", "a,b"),
    ("cache-dir", "/w"),
    ("no-probes", ""),
    ("watch", "log_sys"),
    ("accept-crash-risk", ""),
    ("format", "json"),
    ("json", ""),
    ("log-format", "json"),
    ("log-level", "debug"),
];

/// Returns a line of a file that sets an option; `value` is empty for a switch.
fn line_of(option: &str, value: &str) -> String {
    let is_number = value.parse::<u32>().is_ok();
    match value {
        "" => format!("{option} = true\n"),
        number if is_number => format!("{option} = {number}\n"),
        text => format!("{option} = \"{text}\"\n"),
    }
}

#[test]
fn every_option_can_be_set_in_every_way() {
    let cli = Cli::command();
    let run = cli.find_subcommand("run").expect("run");
    let options = run.get_arguments().chain(cli.get_arguments().filter(|option| option.is_global_set()));
    let names = options.filter_map(clap::Arg::get_long).filter(|name| *name != "config");
    assert_eq!(names.collect::<BTreeSet<_>>(), VALUES.iter().map(|(name, _)| *name).collect());

    for (option, value) in VALUES {
        let base = match *option {
            "pid" | "discover" => "armtrace run --config FILE",
            "accept-crash-risk" | "format" | "json" => "armtrace run --pid 1 --config FILE --watch x",
            _ => "armtrace run --pid 1 --config FILE",
        };
        let folder = tempfile::tempdir().expect("a folder");
        let [empty, full] = ["empty", "full"].map(|name| folder.path().join(name).display().to_string());
        std::fs::write(&empty, "").expect("a file");
        std::fs::write(&full, line_of(option, value)).expect("a file");
        let in_words = |case: Case, line: &str, file: &str| {
            let parsed = case.parse(&line.replace("FILE", file)).unwrap_or_else(|error| panic!("{option}: {error}"));
            format!("{parsed:?}").replace(file, "FILE")
        };
        let given = if value.is_empty() { format!("{base} --{option}") } else { format!("{base} --{option} {value}") };
        let expected = in_words(Case::default(), &given, &empty);
        let variable = format!("ARMTRACE_{}", option.to_uppercase().replace(['-', '.'], "_"));
        let environment = [(variable.as_str(), if value.is_empty() { "yes" } else { *value })];
        assert_eq!(in_words(Case::of_environment(&environment), base, &empty), expected, "{variable}");
        assert_eq!(in_words(Case::default(), base, &full), expected, "{option} in a file");
    }
}

#[test]
fn what_is_required_may_be_in_the_file() {
    let file = Case::of_file("pid = 7\nlisten = ':1'");
    assert_eq!(file.run("armtrace run").pid, Some(7));
    assert_eq!(file.run("armtrace --max-overhead 2%").pid, Some(7));
    assert_eq!(file.run("armtrace --pid 8").pid, Some(8));
    let all = Case::of_file("discover = true\npid = 7");
    assert!(all.error("armtrace run").contains(":2: pid cannot be set together with discover"));
    let all = Case::of_file("discover = true").run("armtrace run");
    assert!(all.discover && all.pid.is_none());
    assert!(!Case::of_file("discover = true").run("armtrace --pid 1").discover);
    assert_eq!(Case::of_file("pid = 7").run("armtrace --discover").pid, None);
    assert!(Case::of_file("listen = ':1'").error("armtrace run").contains("--pid <PID>"));
    assert_eq!(Case::of_environment(&[("ARMTRACE_PID", "9")]).run("armtrace run").pid, Some(9));
}

#[test]
fn only_run_has_settings_of_its_own() {
    let bad = Case { environment: &[("ARMTRACE_PID", "x"), ("ARMTRACE_MAX_OVERHEAD", "x")], file: Some("x") };
    let list = bad.parse("armtrace").unwrap();
    assert!(list.command.is_none() && list.run.is_none());
    for other in ["armtrace record --pid 1 -o x", "armtrace doctor", "armtrace replay run", "armtrace top"] {
        bad.parse(other).unwrap_or_else(|error| panic!("{other}: {error}"));
    }
    let error = bad.error("armtrace run --pid 1");
    assert!(error.contains("x\": not a "), "{error}");
    for help in ["armtrace run --help", "armtrace --help", "armtrace --version"] {
        assert!(!bad.error(help).contains("ARMTRACE_PID"), "{help}");
    }
}

#[test]
fn every_command_takes_its_log_from_the_environment() {
    let debug = Case::of_environment(&[("ARMTRACE_LOG_LEVEL", "debug")]);
    for line in ["armtrace", "armtrace top", "armtrace run --pid 1", "armtrace --pid 1", "armtrace report x"] {
        assert_eq!(debug.parse(line).unwrap().log_level, "debug", "{line}");
    }
    assert_eq!(debug.parse("armtrace top --log-level error").unwrap().log_level, "error");
    let wrong = Case::of_environment(&[("ARMTRACE_LOG_LEVEL", "=x=")]).error("armtrace top");
    assert!(wrong.starts_with("ARMTRACE_LOG_LEVEL in the environment: log-level = \"=x=\": invalid"), "{wrong}");
}

/// Otherwise an option of the command line would have no effect, or would not be possible any more.
#[test]
fn an_option_of_the_line_drops_settings_that_it_excludes() {
    let file = Case::of_file("defaults-file = '/x'\nlisten = ':1'\nno-probes = true\njson = true");
    let run = file.run("armtrace --pid 1 --mysql mysql://u@h");
    assert!(run.attach.mysql.is_some() && run.attach.defaults_file.is_none());
    let watch = file.run("armtrace --pid 1 --watch x --format text");
    assert!(!watch.attach.no_probes && !watch.json);
    let environment = [("ARMTRACE_MYSQL", "mysql://u@h")];
    let run = Case { environment: &environment, ..file }.run("armtrace --pid 1");
    assert!(run.attach.mysql.is_some() && run.attach.defaults_file.is_none());
    let run = Case::of_environment(&environment).run("armtrace --pid 1 --defaults-file x");
    assert!(run.attach.mysql.is_none() && run.attach.defaults_file.is_some());
}

#[test]
fn a_variable_can_turn_off_what_the_file_turns_on() {
    let file = "hardware-events = true";
    for (value, expected) in [("false", false), ("0", false), ("Off", false), ("no", false), ("1", true), ("", true)] {
        let environment = [("ARMTRACE_HARDWARE_EVENTS", value)];
        let run = Case { environment: &environment, file: Some(file) }.run("armtrace --pid 1");
        assert_eq!(run.attach.hardware_events, expected, "{value:?}");
    }
}

#[test]
fn a_wrong_setting_is_one_error_with_its_place_and_what_would_be_right() {
    for (text, expected) in [
        ("\nmax-overhed = 1", ":2: there is no setting max-overhed: did you mean max-overhead?"),
        ("max_overhead = 1", ":1: there is no setting max_overhead: did you mean max-overhead?"),
        ("[web]\nconfig.fil = 'x'", ":2: there is no setting web.config.fil: did you mean web.config.file?"),
        ("config = 'x'", ":1: there is no setting config: "),
        (
            "help = true",
            ":1: there is no setting help: they are the options of `armtrace run --help`, without dashes in front",
        ),
        ("max-overhead = '2x'", ":1: max-overhead = \"2x\": not a share: write 1% or 0.01"),
        ("max-overhead = 2", ":1: max-overhead = \"2\": a share must be above 0% and at most 100%"),
        ("sample-hz = 1001", ":1: sample-hz = \"1001\": 1001 is not in 0..=1000"),
        ("handoffs = 'cores'", ":1: handoffs = \"cores\": possible are auto, node, cache, core, off"),
        ("log-level = '=x='", ":1: log-level = \"=x=\": invalid filter directive"),
        ("listen = 'x'", ":1: listen = \"x\": "),
        ("listen = ''", ":1: listen = \"\": "),
        ("hardware-events = 'yes'", ":1: hardware-events is a string or a number: it takes true or false"),
        ("max-overhead = true", ":1: max-overhead is true or false: it takes a string or a number"),
        ("listen = [':1']", ":1: listen is an array: it takes a string or a number"),
        ("allowed-hosts = 2026-01-01", ":1: allowed-hosts is a date: it takes a string or an array of strings"),
        (
            "defaults-file = 'x'\nmysql = 'secret'",
            ":2: mysql cannot be set together with defaults-file: remove one of them",
        ),
        ("mysql = 5.5.5", ":1: not TOML: "),
    ] {
        let error = Case::of_file(text).error("armtrace --pid 1");
        let found = error.strip_prefix(FILE).unwrap_or_else(|| panic!("{error}"));
        assert!(found.starts_with(expected) && found.lines().count() == 1, "{text}: {error}");
        assert!(!found.contains("secret"), "{found}");
    }
}

#[test]
fn a_wrong_variable_is_named() {
    let error = |environment| Case::of_environment(environment).error("armtrace --pid 1");
    let expected = "ARMTRACE_HANDOFFS in the environment: handoffs = \"x\": possible are auto, node, cache, core, off";
    assert_eq!(error(&[("ARMTRACE_HANDOFFS", "x")]), expected);
    let expected = "ARMTRACE_NO_PROBES in the environment: no-probes = \"2\": possible are true, false";
    assert_eq!(error(&[("ARMTRACE_NO_PROBES", "2")]), expected);
    let expected = "ARMTRACE_WATCH in the environment: ARMTRACE_WATCH cannot be set together with ARMTRACE_LISTEN: \
        remove one of them";
    assert_eq!(error(&[("ARMTRACE_WATCH", "x"), ("ARMTRACE_LISTEN", ":1")]), expected);
}

#[test]
fn a_file_that_is_named_must_exist_and_is_the_only_one() {
    let standard = Case::of_file("max-overhead = '3%'");
    let missing = standard.error("armtrace --pid 1 --config /no/such");
    assert!(missing.starts_with("cannot read the settings in /no/such: No such file"), "{missing}");
    let missing = Case { environment: &[("ARMTRACE_CONFIG", "/no/such")], ..standard }.error("armtrace --pid 1");
    assert!(missing.starts_with("cannot read the settings in /no/such: No such file"), "{missing}");
    let none = standard.run("armtrace --pid 1 --config /dev/null");
    assert_eq!((none.attach.max_overhead, none.config.config.as_deref()), (0.01, Some(Path::new("/dev/null"))));
    assert!(Case::default().run("armtrace --pid 1").config.config.is_none());
    assert!(standard.run("armtrace --pid 1").config.config.is_some());
}

/// A command of which one of two options is required, as clap says it.
fn alternatives() -> clap::Command {
    let group = clap::ArgGroup::new("which").args(["pid", "all"]);
    let pid = clap::Arg::new("pid").long("pid").required_unless_present("all");
    let all = clap::Arg::new("all").long("all").action(clap::ArgAction::SetTrue).conflicts_with("pid");
    let run = clap::Command::new("run").group(group).args([pid, all, clap::Arg::new("config").long("config")]);
    clap::Command::new("armtrace").subcommand(run)
}

#[test]
fn one_of_two_options_may_be_in_the_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let standard_file = folder.path().join(FILE);
    std::fs::write(&standard_file, "all = true").expect("a file");
    let matches = |words: &[&str]| {
        let surroundings = Surroundings { variable: &|_| None, standard_file: &standard_file };
        let words = words.iter().map(OsString::from).collect();
        let (mut command, words) = apply(alternatives(), words, &surroundings).expect("settings");
        let matches = command.try_get_matches_from_mut(words).expect("matches");
        let (_, run) = matches.subcommand().expect("run");
        (run.get_one::<String>("pid").cloned(), run.get_flag("all"))
    };
    assert_eq!(matches(&["armtrace", "run"]), (None, true));
    assert_eq!(matches(&["armtrace", "run", "--pid", "1"]), (Some("1".to_owned()), false));
}
