//! `armtrace generate`: the manual pages and the completions of shells, for packages. It is in no help, because users
//! have them already.

use std::fs::{create_dir_all, File};
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::roff::{roman, Roff};
use clap_mangen::Man;

use super::{Cli, Failure};

#[derive(Args, Clone, Debug)]
pub(super) struct GenerateArgs {
    /// Folder in which man/ and completions/ are made
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
}

/// The shells, and what each calls the file of its completions.
const SHELLS: [(Shell, &str); 3] =
    [(Shell::Bash, "armtrace"), (Shell::Zsh, "_armtrace"), (Shell::Fish, "armtrace.fish")];

/// The manual's section: commands of users.
const SECTION: &str = "1";

/// The files of the page of `run`.
const FILES: [(&str, &str); 2] = [
    ("/etc/armtrace/armtrace.toml", "Values of options that the command line and the environment leave out."),
    ("/var/cache/armtrace", "What the service has fetched from debuginfod."),
];

/// Writes all of them.
pub(super) fn generate(args: &GenerateArgs) -> Result<(), Failure> {
    let written = write_all(&args.folder);
    written.map_err(|why| Failure::Write { path: args.folder.clone(), why })
}

fn write_all(folder: &Path) -> io::Result<()> {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let (pages, completions) = (folder.join("man"), folder.join("completions"));
    create_dir_all(&pages)?;
    create_dir_all(&completions)?;
    for (name, page) in all_pages(&command) {
        std::fs::write(pages.join(format!("{name}.{SECTION}")), page?)?;
    }
    for (shell, file) in SHELLS {
        let mut file = File::create(completions.join(file))?;
        clap_complete::generate(shell, &mut visible(&command), "armtrace", &mut file);
    }
    Ok(())
}

/// Returns a command line without the commands that are hidden, which some shells would complete.
fn visible(command: &Command) -> Command {
    let commands = command.get_subcommands().filter(|command| !command.is_hide_set());
    Command::new("armtrace").args(command.get_arguments().cloned()).subcommands(commands.cloned())
}

/// Returns the page of each command that is not hidden, by name.
fn all_pages(command: &Command) -> Vec<(String, io::Result<Vec<u8>>)> {
    let commands = command.get_subcommands().filter(|command| !command.is_hide_set());
    let name = command.get_display_name().unwrap_or(command.get_name()).to_owned();
    let page = page(command, &name);
    std::iter::once((name, page)).chain(commands.flat_map(all_pages)).collect()
}

fn page(command: &Command, name: &str) -> io::Result<Vec<u8>> {
    let source = concat!("armtrace ", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command.clone()).title(name.to_uppercase()).section(SECTION).source(source);
    let man = man.date(date()).manual("Waits of MySQL and MariaDB");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.get_subcommands().any(|command| !command.is_hide_set()) {
        man.render_subcommands_section(&mut page)?;
    }
    rest(command, name).to_writer(&mut page)?;
    Ok(page)
}

/// Returns the date of the revision, which is in the version; empty if it is not known.
fn date() -> &'static str {
    let date = env!("ARMTRACE_VERSION").rsplit_once(", ").map(|(_, date)| date);
    date.map(|date| date.trim_end_matches(')')).unwrap_or_default()
}

/// Returns what follows the options: examples, files, and other pages.
fn rest(command: &Command, name: &str) -> Roff {
    let mut rest = Roff::new();
    let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    if let Some((_, examples)) = after.split_once("Examples:\n") {
        rest.control("SH", ["EXAMPLES"]).control("nf", []);
        for line in examples.lines() {
            rest.text([roman(line.trim())]);
        }
        rest.control("fi", []);
    }
    if name == "armtrace-run" {
        rest.control("SH", ["FILES"]);
        for (file, what) in FILES {
            rest.control("TP", []).text([roman(file)]).text([roman(what)]);
        }
    }
    if let Some((parent, _)) = name.rsplit_once('-') {
        rest.control("SH", ["SEE ALSO"]).control("BR", [parent, &format!("({SECTION})")]);
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages() -> Vec<(String, String)> {
        let mut command = Cli::command().disable_help_subcommand(true);
        command.build();
        let text = |page: io::Result<Vec<u8>>| String::from_utf8(page.expect("a page")).expect("UTF-8");
        all_pages(&command).into_iter().map(|(name, page)| (name, text(page))).collect()
    }

    #[test]
    fn every_command_has_a_page_with_its_options_and_examples() {
        let pages = pages();
        let names: Vec<&str> = pages.iter().map(|(name, _)| name.as_str()).collect();
        let mut expected = vec!["armtrace".to_owned()];
        for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            expected.push(format!("armtrace-{}", command.get_name()));
            expected
                .extend(command.get_subcommands().map(|c| format!("armtrace-{}-{}", command.get_name(), c.get_name())));
        }
        assert_eq!(names, expected);
        for (name, page) in &pages {
            let title = format!(".TH {} {SECTION} ", name.to_uppercase());
            let parts = [title.as_str(), ".SH NAME", ".SH SYNOPSIS", ".SH OPTIONS", ".SH EXAMPLES"];
            assert!(parts.iter().all(|part| page.contains(part)), "{name}:\n{page}");
        }
        let (_, run) = pages.iter().find(|(name, _)| name == "armtrace-run").expect("a page");
        assert!(run.contains("max\\-overhead") && run.contains("/etc/armtrace/armtrace.toml"), "{run}");
    }

    /// Runs a checker on each file of a folder, and returns what it says; nothing where it is not installed.
    fn complaints(checker: &[&str], folder: &Path) -> String {
        let files = std::fs::read_dir(folder).expect("a folder").map(|file| file.expect("a file").path());
        let mut command = std::process::Command::new(checker[0]);
        let Ok(output) = command.args(&checker[1..]).args(files).output() else {
            eprintln!("skipped: there is no {}", checker[0]);
            return String::new();
        };
        let said = [output.stdout, output.stderr].concat();
        String::from_utf8_lossy(&said).into_owned()
    }

    #[test]
    fn pages_are_well_formed() {
        let folder = tempfile::tempdir().expect("a folder");
        write_all(folder.path()).expect("written");
        assert_eq!(complaints(&["mandoc", "-T", "lint", "-W", "warning"], &folder.path().join("man")), "");
    }

    #[test]
    fn every_shell_completes_every_command() {
        let folder = tempfile::tempdir().expect("a folder");
        write_all(folder.path()).expect("written");
        for (_, file) in SHELLS {
            let text = std::fs::read_to_string(folder.path().join("completions").join(file)).expect("a file");
            for word in ["record", "discover", "max-overhead", "symbols"] {
                assert!(text.contains(word), "{file}: {word}");
            }
            assert!(!text.contains("generate"), "{file}");
        }
    }
}
