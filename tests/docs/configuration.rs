//! The reference of the configuration and the file of the service have every option of `run`, in lines that are right.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};

use armtrace::commands::Cli;
use clap::CommandFactory;

use super::read;

const REFERENCE: &str = "docs/reference/configuration.md";

/// Returns the names of the options that have settings.
fn options() -> BTreeSet<String> {
    let cli = Cli::command();
    let run = cli.find_subcommand("run").expect("run");
    let all = run.get_arguments().chain(cli.get_arguments().filter(|option| option.is_global_set()));
    let names = all.filter_map(clap::Arg::get_long).filter(|name| *name != "config");
    names.map(str::to_owned).collect()
}

/// Returns the rows of the page's table: setting, variable, and line in the file.
fn rows(page: &str) -> Vec<[String; 3]> {
    let cells = |line: &str| -> Option<[String; 3]> {
        let cells = line.strip_prefix("| `")?.strip_suffix("` |")?.split("` | `");
        cells.map(str::to_owned).collect::<Vec<_>>().try_into().ok()
    };
    page.lines().filter_map(cells).collect()
}

/// The process that armtrace is asked to measure, and misses if all settings are right.
const NO_PROCESS: &str = "2147483647";

/// Returns what armtrace says of a file that has this text.
fn verdict(text: &str) -> String {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), text).expect("a file");
    let mut command = Command::new(env!("CARGO_BIN_EXE_armtrace"));
    let command = command.args(["--pid", NO_PROCESS, "--config"]).arg(file.path());
    let output = command.stdin(Stdio::null()).output().expect("armtrace");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn every_setting_is_documented() {
    let rows = rows(&read(REFERENCE));
    assert_eq!(rows.iter().map(|[setting, ..]| setting.clone()).collect::<BTreeSet<_>>(), options());
    for [setting, variable, line] in &rows {
        assert_eq!(*variable, format!("ARMTRACE_{}", setting.to_uppercase().replace(['-', '.'], "_")));
        assert!(line.starts_with(&format!("{setting} = ")), "{line}");
    }
}

#[test]
fn the_lines_for_the_file_are_right() {
    let page = read(REFERENCE);
    let (_, example) = page.split_once("```toml\n").expect("an example");
    let (example, _) = example.split_once("```").expect("its end");
    let lines = rows(&page).into_iter().map(|[setting, _, line]| (setting, line));
    for (setting, mut text) in lines.chain([("the example".to_owned(), example.to_owned())]) {
        // They say nothing of how to ask, or of where to write.
        if ["ask-statements", "dump-when-statement"].contains(&setting.as_str()) {
            text.push_str("\nmysql = \"mysql://u@h\"");
        }
        if setting.starts_with("dump-when-") {
            text.push_str("\ndump-to = \"/x\"");
        }
        let said = verdict(&text);
        assert!(said.contains(NO_PROCESS), "{setting}: {text}: {said}");
    }
    assert!(verdict("no = 1").contains(":1: there is no setting no"));
}

/// The options that a service has no use for: which server it measures, how to ask it, and those of `--watch`.
const NOT_OF_A_SERVICE: [&str; 9] =
    ["accept-crash-risk", "ask-statements", "discover", "format", "json", "mysql", "pid", "symbols", "watch"];

#[test]
fn the_file_of_the_service_has_every_option_switched_off() {
    let text = read("packaging/armtrace.toml");
    assert!(text.lines().all(|line| line.is_empty() || line.starts_with('#')), "{text}");
    let lines: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# ")).filter(|l| l.contains(" = ")).collect();
    let names: BTreeSet<String> = lines.iter().filter_map(|line| Some(line.split_once(" = ")?.0.to_owned())).collect();
    let mut expected = options();
    expected.retain(|option| !NOT_OF_A_SERVICE.contains(&option.as_str()));
    assert_eq!(names, expected);
    let said = verdict(&lines.join("\n"));
    assert!(said.contains(NO_PROCESS), "{said}");
}
