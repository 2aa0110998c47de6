//! The scripts that prepare a machine and run what it allows, on machines that are made up: programs in a folder stand
//! for its apt and its compilers.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

const LAB: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/lab");

/// A machine whose apt has some packages, of which some are installed.
struct Machine {
    folder: TempDir,
}

impl Machine {
    fn new(known: &[&str], installed: &[&str]) -> Machine {
        let machine = Machine { folder: tempfile::tempdir().expect("a temporary folder") };
        let either = |packages: &[&str]| if packages.is_empty() { "''".to_owned() } else { packages.join("|") };
        machine.program("dpkg-query", &format!("case ${{@: -1}} in {}) printf installed ;; esac", either(installed)));
        machine.program("apt-cache", &format!("case $2 in {}) echo '  Candidate: 1' ;; esac", either(known)));
        machine.program("apt-get", &format!("echo \"$@\" >>{}", machine.path("log")));
        machine.program("sudo", "[ \"$1\" != -n ] || shift; exec \"$@\"");
        // Keeps the real machine as it is.
        machine.program("tee", "cat >/dev/null");
        machine.program("chmod", "");
        machine.program("mount", "");
        machine
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().expect("a path in UTF-8").to_owned()
    }

    fn program(&self, name: &str, text: &str) {
        fs::write(self.path(name), format!("#!/bin/bash\n{text}\n")).expect("a program");
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(0o755)).expect("an executable program");
    }

    fn run(&self, script: &str) -> Output {
        let path = format!("{}:{}", self.folder.path().display(), std::env::var("PATH").expect("a path"));
        let mut bash = Command::new("bash");
        bash.args(["-euo", "pipefail", "-c", script, LAB]).env("PATH", path).env("HOME", self.folder.path());
        for variable in ["ARMTRACE_MAVEN_REPOSITORY", "SUDO_USER", "ARMTRACE_REQUIRE_LIVE", "CLANG_FORMAT"] {
            bash.env_remove(variable);
        }
        bash.output().expect("bash")
    }

    /// Returns the commands that setup gave to apt.
    fn set_up(&self, arguments: &str) -> Vec<String> {
        let output = self.run(&format!("{LAB}/setup {arguments}"));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let log = fs::read_to_string(self.path("log")).unwrap_or_default();
        log.lines().map(str::to_owned).collect()
    }

    /// Takes root and sudo away, and gives a recent cargo.
    fn without_privilege(self) -> Machine {
        self.program("id", "echo 1000");
        self.program("sudo", "exit 1");
        self.program("cargo", "[ $1 != --version ] || echo cargo 99.0.0");
        self.program("clang", "");
        self
    }

    /// Returns the URL that Maven's settings on this machine lead to.
    fn maven_repository(&self, settings: &str) -> String {
        fs::create_dir_all(self.path(".m2")).expect("a folder");
        fs::write(self.path(".m2/settings.xml"), settings).expect("settings");
        let output = self.run(&format!(". {LAB}/lib.sh; maven_repository"));
        String::from_utf8(output.stdout).expect("UTF-8").trim().to_owned()
    }
}

/// The packages of a demo's server that have one name everywhere.
const COMMON: [&str; 6] = ["sysbench", "curl", "ca-certificates", "unzip", "libnuma1", "libcrypt1"];

fn install(packages: &str) -> String {
    format!("-qq install -y --no-install-recommends {packages}")
}

#[test]
fn the_demo_takes_the_packages_that_apt_has() {
    let of = |libaio| Machine::new(&[&COMMON[..], &["mariadb-client-core", libaio]].concat(), &["util-linux"]);
    for libaio in ["libaio1", "libaio1t64"] {
        let wanted = format!("sysbench curl ca-certificates unzip {libaio} libnuma1 libcrypt1 mariadb-client-core");
        assert_eq!(of(libaio).set_up("demo"), [install(&wanted)]);
    }
}

#[test]
fn any_alternative_that_is_installed_will_do() {
    let installed = [&COMMON[..], &["mariadb-client-core", "libaio1t64", "util-linux"]].concat();
    let machine = Machine::new(&["libaio1"], &installed);
    assert_eq!(machine.set_up("demo mysql-8.0.31"), [""; 0]);
}

#[test]
fn old_libraries_are_installed_only_where_apt_has_them() {
    let installed = [&COMMON[..], &["libaio1", "util-linux"]].concat();
    assert_eq!(Machine::new(&[], &installed).set_up("demo mariadb-11.4"), [""; 0]);
    let old = Machine::new(&["libncurses5", "libtinfo5"], &installed);
    assert_eq!(old.set_up("demo mariadb-11.4"), [install("libncurses5 libtinfo5")]);
}

#[test]
fn a_package_that_apt_does_not_know_is_named() {
    let machine = Machine::new(&COMMON, &["util-linux", "mariadb-client-core"]);
    let output = machine.run(&format!("{LAB}/setup demo"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && errors.contains("apt has no package libaio1|libaio1t64"), "{errors}");
    assert_eq!(fs::read_to_string(machine.path("log")).expect("a log"), "-qq update\n");
}

#[test]
fn maven_artifacts_come_from_the_mirror_in_its_settings() {
    let machine = Machine::new(&[], &[]);
    let mirror = |of: &str| format!("<mirror><id>m</id><mirrorOf>{of}</mirrorOf><url>file:///{of}</url></mirror>");
    for of in ["central", "*", "external:*"] {
        let settings = format!("<settings><mirrors>{}\n{}</mirrors></settings>", mirror("other"), mirror(of));
        assert_eq!(machine.maven_repository(&settings), format!("file:///{of}"));
    }
    machine.program("unzip", "echo '<url>file:///built-in</url>'");
    machine.program("dpkg-deb", "");
    machine.program("tar", "");
    for none in [format!("<!-- {} -->", mirror("central")), mirror("*,!central"), String::new()] {
        assert_eq!(machine.maven_repository(&none), "file:///built-in", "{none}");
    }
}

#[test]
fn the_demo_shows_a_recording_where_nothing_can_be_traced() {
    let machine = Machine::new(&[], &["libelf-dev", "zlib1g-dev", "pkg-config", "make", "gcc", "libc6-dev"]);
    let machine = machine.without_privilege();
    fs::create_dir(machine.path("demo")).expect("a folder");
    machine.program("demo/armtrace", "echo \"$@\"");
    let output = machine.run(&format!("cd /; CARGO_TARGET_DIR={} DEMO_SECONDS=4 {LAB}/demo", machine.path("")));
    let (shown, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}");
    assert!(said.contains("tracing takes root, and sudo does not give it here: showing a recording"), "{said}");
    let command = shown.lines().next().expect("the arguments of armtrace");
    let file = command.strip_prefix("replay --loop ").and_then(|rest| rest.split(' ').next()).expect("a replay");
    assert!(Path::new(file).exists(), "{file}");
}

#[test]
fn what_cannot_be_installed_is_named_unless_everything_is_required() {
    let machine = Machine::new(&["shellcheck", "prometheus"], &["git"]).without_privilege();
    let said = |variable: &str| {
        let output = machine.run(&format!("{variable} {LAB}/setup test"));
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (ends_well, text) = said("");
    assert!(ends_well, "{text}");
    for line in [
        "setup: installing takes root, and sudo does not give it here",
        "setup: missing: shellcheck",
        "setup: missing: prometheus",
        "setup: missing: clang-format-16 or clang-format",
    ] {
        assert!(text.lines().any(|l| l == line), "no {line} in {text}");
    }
    assert!(!text.contains("missing: git"), "{text}");
    let (ends_well, text) = said("ARMTRACE_REQUIRE_LIVE=1");
    assert!(!ends_well && text.contains("sudo does not give it here: install what Debian calls"), "{text}");
    assert!(!Path::new(&machine.path("log")).exists(), "apt has been asked to install something");
}

/// A machine without privileges and without clang-format, but with shellcheck, whose make prints what cargo would.
fn tester() -> Machine {
    let machine = Machine::new(&[], &[]).without_privilege();
    machine.program("shellcheck", "");
    fs::remove_file(machine.path("tee")).expect("the one that writes nothing");
    machine.program(
        "make",
        "case $* in
        *unit-tests*) printf '%s\\n' 'test a::b ... ignored, slow: make test-all' \
            'test result: ok. 7 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out' \
            'test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out' ;;
        *clippy*) [ ! -e ${0%/*}/broken ] ;;
        esac",
    );
    machine
}

const SUITE: &str = "CLANG_FORMAT=clang-format-0 suite fmt-check lint unit binaries live guest";

/// Runs the parts of `make test`, and returns whether all is well and what was printed: progress, summary.
fn suite(machine: &Machine, variable: &str) -> (bool, String, String) {
    let output = machine.run(&format!("PATH=$PATH:{LAB}; {variable} {SUITE}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    // The seconds, at the end of a row, differ.
    let rows =
        text(&output.stdout).lines().map(|row| row.split_whitespace().collect::<Vec<_>>().join(" ") + "\n").collect();
    (output.status.success(), text(&output.stderr), rows)
}

#[test]
fn what_a_machine_does_not_allow_is_skipped_and_named() {
    let machine = tester();
    let (ends_well, said, rows) = suite(&machine, "");
    assert!(ends_well, "{said}{rows}");
    assert!(said.contains("suite: 4 of 6: binaries (then live, guest)\n"), "{said}");
    for row in [
        "\nfmt-check 1 0 1 ",
        "\nlint 2 0 0 ",
        "\nlive 0 0 1 ",
        "\nskipped here:\n",
        "\nfmt-check-bpf: not installed: clang-format-0\n",
        "\nbinaries: the lab fetches servers as root, and sudo does not give that here\n",
        "\nlive: tracing takes root, and sudo does not give it here\n",
        "\nleft to make test-all: 1\na::b: slow: make test-all\n",
    ] {
        assert!(rows.contains(row), "no {row} in {rows}");
    }
}

#[test]
fn a_required_test_that_is_skipped_is_a_failure() {
    let (ends_well, said, rows) = suite(&tester(), "ARMTRACE_REQUIRE_LIVE=1");
    assert!(!ends_well && said.contains("a skip is a failure, because ARMTRACE_REQUIRE_LIVE is 1"), "{said}");
    assert!(rows.contains("\nnot run: lint unit binaries live guest\n"), "{rows}");
}

#[test]
fn a_part_that_fails_is_the_last_and_in_the_summary() {
    let machine = tester();
    machine.program("broken", "");
    let (ends_well, said, rows) = suite(&machine, "");
    assert!(!ends_well, "{said}{rows}");
    assert!(rows.contains("\nlint 1 1 0 ") && rows.contains("\nnot run: unit binaries live guest\n"), "{rows}");
}

#[test]
fn the_tests_that_failed_are_found_in_what_was_printed() {
    let machine = Machine::new(&[], &[]);
    let printed =
        "test pages::a ... FAILED\ntest pages::b ... ok\n\nfailures:\n\n---- pages::a stdout ----\n    0.2s\n\
                   Error: x\n   0: live::pages::a\n\nfailures:\n    pages::a\n    top::c_2::d\n\n\
                   test result: FAILED. 1 passed; 2 failed\n\n    not::this\n";
    let output = machine.run(&format!(". {LAB}/lib.sh; printf %s '{printed}' | failed_tests"));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "pages::a\ntop::c_2::d\n");
}
