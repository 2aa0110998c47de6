//! What the agent is allowed to do: it keeps no privilege that it does not need, and needs none that is not documented.

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{ensure, Context, Result};

use lab::agent::{readable_program, Agent};
use lab::load::Load;
use lab::releases::Release;
use lab::server::{wait_for, Options, Server};

/// The capabilities that docs/how-to/install.md requires, and the ones that it recommends.
const REQUIRED: &str = "+bpf,+perfmon,+sys_ptrace";
const RECOMMENDED: &str = "+bpf,+perfmon,+sys_ptrace,+dac_read_search";

/// The bits of CAP_SYS_MODULE, CAP_SYS_RAWIO, CAP_DAC_OVERRIDE, CAP_SETUID and CAP_NET_ADMIN.
const HARMFUL: u64 = 1 << 16 | 1 << 17 | 1 << 1 | 1 << 7 | 1 << 12;
/// The bit of CAP_SYS_ADMIN.
const ADMIN: u64 = 1 << 21;

/// Returns whether the kernel lets only CAP_SYS_ADMIN use performance events, as Debian's does.
fn perf_needs_admin() -> Result<bool> {
    let level: i32 = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid")?.trim().parse()?;
    Ok(level > 2)
}

/// Returns a field of the status of each thread of a process. A thread may end meanwhile.
fn of_threads(pid: i32, field: &str) -> Result<Vec<String>> {
    let field_of = |status: String| -> Result<String> {
        let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(":"));
        Ok(line.with_context(|| format!("no {field} in {status}"))?.trim().to_owned())
    };
    let threads = fs::read_dir(format!("/proc/{pid}/task"))?.flatten();
    let fields: Vec<String> = threads
        .filter_map(|thread| fs::read_to_string(thread.path().join("status")).ok())
        .map(field_of)
        .collect::<Result<_>>()?;
    ensure!(!fields.is_empty(), "no threads of {pid}");
    Ok(fields)
}

/// Returns whether the agent knows waits of a latch, with time asleep if that is wanted, and the cost of its probes.
fn measures(agent: &Agent, sleeps: bool) -> Result<()> {
    let wanted: &[&str] = &["armtrace_latch_wait_seconds_count", "armtrace_probe_cost_seconds_total"];
    let asleep: &[&str] = if sleeps { &["armtrace_latch_sleep_seconds_total"] } else { &[] };
    wait_for("waits and costs", Duration::from_secs(20), || {
        let samples = agent.scrape()?;
        let is_there = |name: &&&str| samples.iter().any(|sample| sample.name == **name && sample.value > 0.0);
        let missing = wanted.iter().chain(asleep).find(|name| !is_there(name));
        Ok(missing.is_none().then_some(()))
    })
}

#[test]
fn what_is_not_needed_is_given_up() -> Result<()> {
    let server = Server::start(Release::MARIADB_11_4, &Options::default())?;
    let load = Load::start(&server, "oltp_update_index", 16)?;
    let agent = Agent::attach(&server)?;
    measures(&agent, true)?;
    for field in ["CapEff", "CapPrm", "CapBnd"] {
        for held in of_threads(agent.pid(), field)? {
            let held = u64::from_str_radix(&held, 16)?;
            ensure!(held != 0 && held & HARMFUL == 0, "{field} is {held:x}");
            ensure!(held & ADMIN == 0 || perf_needs_admin()?, "{field} is {held:x}");
        }
    }
    for (field, expected) in [("NoNewPrivs", "1"), ("Seccomp", "2")] {
        let all = of_threads(agent.pid(), field)?;
        ensure!(all.iter().all(|value| value == expected), "{field} is {all:?}");
    }
    let (status, _) = agent.stop()?;
    ensure!(status.success(), "{status}");
    load.stop()?;
    server.shut_down()
}

#[test]
fn the_documented_capabilities_are_enough() -> Result<()> {
    let server = Server::start(Release::MYSQL_9_7, &Options::default())?;
    let load = Load::start(&server, "oltp_update_index", 16)?;
    let (_folder, program) = readable_program()?;
    for (capabilities, sleeps) in [(REQUIRED, false), (RECOMMENDED, true)] {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
        command
            .args(["--inh-caps", "--ambient-caps", "--bounding-set"].map(|set| format!("{set}=-all,{capabilities}")));
        let agent = Agent::attach_by(
            {
                command.arg(&program);
                command
            },
            &server,
        )?;
        measures(&agent, sleeps)?;
        let errors = agent.errors()?;
        ensure!(!errors.contains("thread_exit"), "{errors}");
        ensure!(!sleeps || errors.is_empty(), "{errors}");
        agent.stop()?;
    }
    load.stop()?;
    server.shut_down()
}
