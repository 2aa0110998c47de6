//! The scripts that prepare a machine, on machines that are made up: programs in a folder stand for its apt.

use std::fs;
use std::os::unix::fs::PermissionsExt;
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
        bash.env_remove("ARMTRACE_MAVEN_REPOSITORY").env_remove("SUDO_USER").output().expect("bash")
    }

    /// Returns the commands that setup gave to apt.
    fn set_up(&self, arguments: &str) -> Vec<String> {
        let output = self.run(&format!("{LAB}/setup {arguments}"));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let log = fs::read_to_string(self.path("log")).unwrap_or_default();
        log.lines().map(str::to_owned).collect()
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
