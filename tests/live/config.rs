//! Settings in a file and in the environment are in effect.

use std::ffi::OsStr;
use std::process::Command;

use anyhow::{ensure, Result};

use lab::agent::{changed_sites, program, Agent};
use lab::releases::Release;
use lab::server::{Options, Server};

/// With probes, the server's code has breakpoints in it; the file says that there are to be none.
#[test]
fn settings_of_a_file_are_in_effect() -> Result<()> {
    let server = Server::start(Release::MYSQL_9_7, &Options::default())?;
    let file = tempfile::NamedTempFile::with_suffix(".toml")?;
    std::fs::write(file.path(), "no-probes = true\nmax-overhead = \"5%\"\n")?;

    let agent = Agent::attach_with(&server, &[OsStr::new("--config"), file.path().as_os_str()])?;
    let sites = changed_sites(server.pid())?;
    ensure!(sites.is_empty(), "the file forbids probes: {sites:?}");
    agent.stop()?;

    let mut command = Command::new(program());
    command.env("ARMTRACE_CONFIG", file.path()).env("ARMTRACE_NO_PROBES", "false");
    let agent = Agent::attach_by(command, &server)?;
    ensure!(!changed_sites(server.pid())?.is_empty(), "the environment, which goes before the file, allows probes");
    agent.stop()?;
    server.stop()?;
    Ok(())
}
