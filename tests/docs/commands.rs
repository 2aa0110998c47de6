//! The commands in the documentation can be run: armtrace accepts its arguments, make has the targets, scripts exist.

use std::collections::BTreeSet;

use armtrace::commands::Cli;
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser as _};
use pulldown_cmark::{CodeBlockKind, Event, Parser, Tag, TagEnd};

use super::{pages, read, root};

/// The page that has every option.
const REFERENCE: &str = "docs/reference/cli.md";
const MAKEFILES: [&str; 3] = ["Makefile", "packaging/dist.mk", "tests/vm/vm.mk"];

/// Returns the command lines of a page: all lines of shell scripts, and those behind a `$` in other blocks.
fn command_lines(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut block: Option<(bool, String)> = None;
    for event in Parser::new(text) {
        match event {
            Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(language))) => {
                block = Some((&*language == "sh", String::new()));
            }
            Event::Text(text) => {
                if let Some((_, script)) = &mut block {
                    script.push_str(&text);
                }
            }
            Event::End(TagEnd::CodeBlock) => {
                let Some((is_script, script)) = block.take() else { continue };
                let joined = script.replace("\\\n", " ");
                let found = joined.lines().filter_map(|line| line.strip_prefix("$ ").or(is_script.then_some(line)));
                lines.extend(found.map(str::to_owned));
            }
            _ => {}
        }
    }
    lines
}

/// Replaces what the shell would, and what stands for a process: `$(…)`, `PID`.
fn substituted(line: &str) -> String {
    let mut text = line.to_owned();
    while let Some((before, rest)) = text.split_once("$(") {
        let mut depth = 1;
        let end = rest.find(|c| {
            depth += i32::from(c == '(') - i32::from(c == ')');
            depth == 0
        });
        text = format!("{before}1{}", end.map_or("", |end| &rest[end + 1..]));
    }
    text.replace("--pid PID", "--pid 1")
}

/// Returns the words of each simple command in a line, without `sudo`, its options and variables, and redirections.
fn commands(line: &str) -> Vec<Vec<String>> {
    let words = shlex::split(&substituted(line)).unwrap_or_default();
    let parts = words.split(|word| ["|", "&&", ";", "||"].contains(&word.as_str()));
    let simple = parts.map(|words| {
        let is_prefix = |word: &&String| *word == "sudo" || word.starts_with("--preserve-env") || word.contains('=');
        let words = words.iter().skip_while(is_prefix);
        words.take_while(|word| ![">", "<", "2>", "&"].contains(&word.as_str())).cloned().collect()
    });
    simple.filter(|words: &Vec<String>| !words.is_empty()).collect()
}

fn targets() -> BTreeSet<String> {
    let text: String = MAKEFILES.map(read).concat();
    let rules = text.lines().filter(|line| !line.starts_with(['\t', '#', ' ', '.']));
    let names = rules.filter_map(|line| line.split_once(':')).filter(|(_, rest)| !rest.starts_with('='));
    names.flat_map(|(names, _)| names.split_whitespace()).map(str::to_owned).collect()
}

/// Returns what is wrong with a command, if it is one of the project's.
fn problem(words: &[String], targets: &BTreeSet<String>) -> Option<String> {
    let program = words[0].as_str();
    if program == "armtrace" || program.ends_with("/armtrace") {
        let error = Cli::try_parse_from(words).err()?;
        let is_help = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
        return (!is_help).then(|| error.to_string());
    }
    if program == "make" {
        let named = words[1..].iter().filter(|word| !word.contains('='));
        let unknown: Vec<_> = named.filter(|target| !targets.contains(*target)).collect();
        return (!unknown.is_empty()).then(|| format!("no such target: {unknown:?}"));
    }
    let is_ours = ["scripts/", "tests/", "packaging/"].iter().any(|folder| program.starts_with(folder));
    (is_ours && !root().join(program).is_file()).then(|| format!("no such script: {program}"))
}

#[test]
fn commands_can_be_run() {
    let targets = targets();
    let mut seen = 0;
    let mut wrong = Vec::new();
    for page in pages() {
        for line in command_lines(&read(&page)) {
            for words in commands(&line) {
                seen += usize::from(words[0] == "armtrace");
                wrong.extend(problem(&words, &targets).map(|why| format!("{page}: {line}\n  {why}")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen > 30, "only {seen} commands of armtrace were found");
}

#[test]
fn the_reference_has_every_option() {
    let page = read(REFERENCE);
    let cli = Cli::command();
    let all = std::iter::once(&cli)
        .chain(cli.get_subcommands())
        .chain(cli.get_subcommands().flat_map(clap::Command::get_subcommands));
    let options = all.flat_map(|command| {
        let longs = command.get_arguments().filter(|argument| !argument.is_hide_set()).filter_map(clap::Arg::get_long);
        longs.map(|long| format!("--{long}")).collect::<Vec<_>>()
    });
    let missing: BTreeSet<String> = options.filter(|option| !page.contains(&format!("`{option}"))).collect();
    let commands = cli.get_subcommands().map(|command| command.get_name().to_owned());
    let unknown: Vec<String> = commands.filter(|name| !page.contains(&format!("`{name}"))).collect();
    assert!(missing.is_empty() && unknown.is_empty(), "{REFERENCE} lacks {missing:?} and {unknown:?}");
}

#[test]
fn wrong_commands_are_found() {
    let targets = BTreeSet::from(["demo".to_owned()]);
    let wrong = |line: &str| commands(line).iter().filter_map(|words| problem(words, &targets)).count();
    for right in [
        "sudo armtrace --pid $(pidof mysqld)   # comment --no-such",
        "sudo DEBUGINFOD_URLS=https://example.org armtrace top --pid $(docker inspect -f '{{.State.Pid}}' $(x)) | less",
        "armtrace report a.rec --format html > a.html",
        "armtrace --help && make demo SERVER=mariadb-11.4",
        "sudo pkill -USR1 armtrace",
        "scripts/sweep --anything",
    ] {
        assert_eq!(wrong(right), 0, "{right}");
    }
    for bad in [
        "armtrace run",
        "armtrace report",
        "sudo armtrace --pid 1 --no-such",
        "true && target/release/armtrace nothing",
        "make nothing",
        "scripts/nothing",
    ] {
        assert_eq!(wrong(bad), 1, "{bad}");
    }
}

#[test]
fn command_lines_are_found() {
    let text = "```sh\na \\\n  b\nc\n```\n\n```\n$ d\noutput\n```\n";
    assert_eq!(command_lines(text), ["a    b", "c", "d"]);
}
