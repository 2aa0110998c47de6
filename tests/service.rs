//! The unit of the service: how little it may do, and that it may do what armtrace needs.

use std::collections::BTreeSet;
use std::process::Command;

const UNIT: &str = "packaging/armtrace.service";

/// The largest exposure level, of 10, that the unit may have.
const MOST_EXPOSED: f64 = 4.0;

fn read(path: &str) -> String {
    let full = format!("{}/{path}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(full).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the words of a setting of the unit, which may be in it several times.
fn setting(unit: &str, name: &str) -> BTreeSet<String> {
    let lines = unit.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    lines.flat_map(str::split_whitespace).map(str::to_owned).collect()
}

#[test]
fn the_unit_is_hardened() {
    let analyze = |arguments: &[&str]| {
        Command::new("systemd-analyze").args(arguments).current_dir(env!("CARGO_MANIFEST_DIR")).output()
    };
    // Since systemd 250.
    let knows = analyze(&["--help"]).is_ok_and(|help| String::from_utf8_lossy(&help.stdout).contains("--offline"));
    if !knows {
        eprintln!("skipped: the_unit_is_hardened: there is no systemd-analyze that analyses a file");
        return;
    }
    let output = analyze(&["security", "--offline=true", "--no-pager", UNIT]).expect("systemd-analyze");
    let text = String::from_utf8_lossy(&output.stdout);
    let (_, level) = text.split_once("Overall exposure level").unwrap_or_else(|| panic!("{text}{output:?}"));
    let level = level.split_whitespace().find_map(|word| word.parse::<f64>().ok()).expect("a level");
    assert!(level <= MOST_EXPOSED, "{level}:\n{text}");
}

/// `SECURITY.md` lists what `run` keeps.
#[test]
fn the_unit_has_the_capabilities_that_are_documented() {
    let page = read("SECURITY.md");
    let (_, kept) = page.split_once("- all capabilities but ").expect("the list");
    let (kept, _) = kept.split_once(';').expect("its end");
    let words = kept.split(|c: char| !(c.is_ascii_uppercase() || c == '_')).filter(|word| word.starts_with("CAP_"));
    let documented: BTreeSet<String> = words.map(str::to_owned).chain(["CAP_SYS_ADMIN".to_owned()]).collect();
    assert_eq!(setting(&read(UNIT), "CapabilityBoundingSet"), documented);
}

#[test]
fn the_unit_hides_nothing_that_is_read() {
    let unit = read(UNIT);
    for name in ["PrivateUsers", "PrivatePIDs", "ProtectProc", "ProtectKernelTunables", "ProtectKernelLogs"] {
        assert!(setting(&unit, name).is_empty(), "{name}");
    }
    let filter = setting(&unit, "SystemCallFilter");
    assert!(!filter.contains("@debug") && !filter.contains("~@debug"), "{filter:?}");
}
