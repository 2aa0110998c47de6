//! How large the programs are, and how long they run: what grows is seen here.

use std::os::fd::{FromRawFd, OwnedFd};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use libbpf_rs::query::{ProgInfoIter, ProgramInfo};

use crate::agent::Agent;
use crate::load::Load;
use crate::server::{Family, Options, Server};

/// Most that a run may take on average, in nanoseconds. On the machine of docs/overhead.md the averages are 182 to 1,815; this
/// is for slower machines that do something else too.
const MOST_NS: f64 = 5000.0;
/// Most that the verifier may have to look at. Kernels give up at a million; docs/overhead.md has the figures of today.
const MOST_VERIFIED: u32 = 40_000;

/// Has the kernel time all programs while it lives.
fn time_programs() -> Result<OwnedFd> {
    // SAFETY: takes a number and returns a descriptor that nobody else has, or a negative error.
    let fd = unsafe { libbpf_rs::libbpf_sys::bpf_enable_stats(libbpf_rs::libbpf_sys::BPF_STATS_RUN_TIME) };
    ensure!(fd >= 0, "bpf_enable_stats: {}", std::io::Error::from_raw_os_error(-fd));
    // SAFETY: as above.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The programs of armtrace's latch probes that are loaded.
fn programs() -> Vec<ProgramInfo> {
    let ours = |name: &str| {
        ["latch_", "futex_", "thread_exit", "cpu_sample", "getcpu_"].iter().any(|begin| name.starts_with(begin))
    };
    ProgInfoIter::default().filter(|p| p.name.to_str().is_some_and(ours)).collect()
}

fn are_small_and_quick(family: Family) -> Result<()> {
    let server = Server::start(family, &Options::default())?;
    let mut load = Load::start(&server, "oltp_update_index", 32)?;
    load.wait_running()?;
    let agent = Agent::attach_without_budget(&server)?;
    let timing = time_programs()?;
    let before = programs();
    sleep(Duration::from_secs(5));
    let after = programs();
    drop(timing);
    agent.stop()?;
    load.stop()?;
    server.stop()?;
    ensure!(after.len() >= 4, "only {} programs", after.len());
    let mut runs = 0;
    for program in &after {
        let name = program.name.to_string_lossy();
        let earlier = before.iter().find(|p| p.id == program.id).context("a program that was not there before")?;
        let count = program.run_cnt - earlier.run_cnt;
        let mean = (program.run_time_ns - earlier.run_time_ns) as f64 / count.max(1) as f64;
        println!(
            "{}: {name}: {count} runs of {mean:.0} ns, {} instructions verified",
            family.name(),
            program.verified_insns
        );
        ensure!(mean <= MOST_NS, "{name} takes {mean:.0} ns");
        ensure!(
            program.verified_insns <= MOST_VERIFIED,
            "{name} takes {} instructions to verify",
            program.verified_insns
        );
        runs += count;
    }
    ensure!(runs >= 100, "only {runs} runs");
    Ok(())
}

#[test]
fn programs_on_mysql_are_quick() -> Result<()> {
    are_small_and_quick(Family::Mysql97)
}

#[test]
fn programs_on_mariadb_are_quick() -> Result<()> {
    are_small_and_quick(Family::Mariadb114)
}
