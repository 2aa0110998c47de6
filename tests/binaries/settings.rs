//! Whether the servers have the settings and the latches that advice names, with the defaults that it states.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{ensure, Context, Result};
use armtrace::advice::{entries, settings};
use lab::releases::Release;

/// Settings whose defaults a server lowers where it may open few files.
const LOWERED: [&str; 2] = ["table_open_cache", "table_open_cache_instances"];

/// Returns the settings of a server with their defaults, as its program lists them.
fn listed(release: Release) -> Result<BTreeMap<String, String>> {
    let (folder, program) = (release.folder()?, release.program()?);
    let inside = Path::new("/").join(program.strip_prefix(&folder)?);
    // A server with a root file system of its own needs the libraries in there.
    let is_rooted = inside.starts_with("/usr");
    let mut command = Command::new(if is_rooted { Path::new("chroot") } else { &program });
    if is_rooted {
        command.arg(&folder).arg(&inside).arg("--no-defaults");
    } else {
        let messages = format!("--lc-messages-dir={}", folder.join("share").display());
        command.env("LD_LIBRARY_PATH", folder.join("private")).args(["--no-defaults", &messages]);
    }
    let output = command.args(["--user=root", "--verbose", "--help"]).output()?;
    ensure!(output.status.success(), "{}: {}", release.name(), String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    let (_, table) = text.split_once("\n-----").context("no table of settings")?;
    let row = |line: &str| {
        let (name, value) = line.split_once(' ')?;
        Some((name.replace('-', "_"), value.trim().to_owned()))
    };
    Ok(table.lines().skip(1).filter_map(row).collect())
}

/// Returns a value as the data has it.
fn value(listed: &str) -> &str {
    match listed {
        "TRUE" => "ON",
        "FALSE" => "OFF",
        other => other,
    }
}

#[test]
fn servers_have_the_settings_that_advice_names() -> Result<()> {
    for release in Release::chosen() {
        let (flavor, listed) = (if release.is_mysql() { "mysql" } else { "mariadb" }, listed(release)?);
        ensure!(listed.len() > 300, "{}: {} settings", release.name(), listed.len());
        // A package's version is that of its series, which some settings are younger than.
        let version = if release.version().matches('.').count() > 1 || release.version().starts_with("9.") {
            release.version().to_owned()
        } else {
            format!("{}.999", release.version())
        };
        for (name, setting) in settings() {
            let has = listed.contains_key(name);
            ensure!(
                setting.exists(flavor, &version).is_none_or(|claimed| claimed == has),
                "{name} in {}: it is there: {has}",
                release.name()
            );
            let default = setting.default_in(flavor, &version).filter(|_| !LOWERED.contains(&name.as_str()));
            if let (Some(default), Some(there)) = (default, listed.get(name)) {
                ensure!(value(there) == default, "{name} in {}: {there}, not {default}", release.name());
            }
        }
    }
    Ok(())
}

/// Every latch that advice is about has its name in the program of a server of the lab. `buf_block_lock` is armtrace's.
#[test]
fn servers_have_the_latches_that_advice_is_about() -> Result<()> {
    let mut missing: Vec<&str> = entries().iter().flat_map(|entry| &entry.latches).map(String::as_str).collect();
    missing.retain(|latch| *latch != "innodb/buf_block_lock");
    for release in Release::chosen() {
        let program = std::fs::read(release.program()?)?;
        missing.retain(|latch| {
            let name = latch.rsplit('/').next().unwrap_or(latch);
            let name = format!("{name}\0");
            memchr::memmem::find(&program, name.as_bytes()).is_none()
        });
    }
    ensure!(missing.is_empty(), "in no server: {missing:?}");
    Ok(())
}
