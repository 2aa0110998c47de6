//! Settings in a file and in the environment are in effect.

use std::ffi::OsStr;
use std::time::Duration;

use anyhow::{ensure, Result};

use lab::agent::{changed_sites, without_terminal, Agent};
use lab::releases::Release;
use lab::server::{wait_for, Options, Server};

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

    let mut command = without_terminal();
    command.env("ARMTRACE_CONFIG", file.path()).env("ARMTRACE_NO_PROBES", "false");
    let agent = Agent::attach_by(command, &server)?;
    ensure!(!changed_sites(server.pid())?.is_empty(), "the environment, which goes before the file, allows probes");

    // Of one server, only the log changes while it is measured.
    std::fs::write(file.path(), "max-overhead = \"7%\"\n")?;
    agent.signal(libc::SIGHUP);
    wait_for("an answer", Duration::from_secs(10), || {
        Ok(agent.errors()?.contains("only the next start changes what is measured").then_some(()))
    })?;
    ensure!(!changed_sites(server.pid())?.is_empty(), "SIGHUP has detached the probes");
    agent.stop()?;
    server.stop()?;
    Ok(())
}
