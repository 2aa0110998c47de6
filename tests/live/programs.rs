//! The size and the run time of the BPF programs, to catch regressions.

use std::collections::BTreeMap;
use std::os::fd::{FromRawFd, OwnedFd};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use libbpf_rs::query::{ProgInfoIter, ProgramInfo};

use lab::agent::Agent;
use lab::load::Load;
use lab::releases::Release;
use lab::server::{wait_for, Options, Server};

/// The longest mean run time, in nanoseconds. On the machine of docs/explanation/overhead.md the means are 182 to
/// 1,815; this limit allows for slower and busier machines.
const MOST_NS: f64 = 5000.0;
/// The fewest windows, and the most. The least mean counts, because other load on the machine, and its host, make runs
/// longer and never shorter: while a program seems slow, there is another window.
const WINDOWS: std::ops::RangeInclusive<usize> = 3..=15;
/// The least number of runs for which a window's mean counts.
const LEAST_RUNS: u64 = 100;
/// The most instructions that the verifier may process. The kernel's limit is a million; docs/explanation/overhead.md
/// has the current figures.
const MOST_VERIFIED: u32 = 40_000;

/// Makes the kernel time all BPF programs while the returned descriptor is open.
fn time_programs() -> Result<OwnedFd> {
    // SAFETY: takes a number and returns a new descriptor, or a negative error.
    let fd = unsafe { libbpf_rs::libbpf_sys::bpf_enable_stats(libbpf_rs::libbpf_sys::BPF_STATS_RUN_TIME) };
    ensure!(fd >= 0, "bpf_enable_stats: {}", std::io::Error::from_raw_os_error(-fd));
    // SAFETY: as above.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Returns the loaded programs of armtrace's probes.
fn programs() -> Vec<ProgramInfo> {
    let ours = |name: &str| {
        ["latch_", "lock_", "futex_", "thread_exit", "cpu_sample", "getcpu_"]
            .iter()
            .any(|begin| name.starts_with(begin))
    };
    ProgInfoIter::default().filter(|p| p.name.to_str().is_some_and(ours)).collect()
}

/// Returns a program's number of runs and their nanoseconds between each reading and the next.
fn windows(program: &ProgramInfo, readings: &[Vec<ProgramInfo>]) -> Result<Vec<(u64, u64)>> {
    let of = |reading: &Vec<ProgramInfo>| {
        let found = reading.iter().find(|p| p.id == program.id).map(|p| (p.run_cnt, p.run_time_ns));
        found.context("a program is missing in a reading")
    };
    let totals = readings.iter().map(of).collect::<Result<Vec<_>>>()?;
    Ok(totals.windows(2).map(|pair| (pair[1].0 - pair[0].0, pair[1].1 - pair[0].1)).collect())
}

/// Returns the least mean run time of a program, in nanoseconds, and its number of runs. There is no mean without a
/// window of enough runs.
fn least_mean(program: &ProgramInfo, readings: &[Vec<ProgramInfo>]) -> Result<(Option<f64>, u64)> {
    let windows = windows(program, readings)?;
    let busy = windows.iter().filter(|(runs, _)| *runs >= LEAST_RUNS);
    let mean = busy.map(|(runs, ns)| *ns as f64 / *runs as f64).min_by(f64::total_cmp);
    Ok((mean, windows.iter().map(|(runs, _)| runs).sum()))
}

fn is_quick(program: &ProgramInfo, readings: &[Vec<ProgramInfo>]) -> Result<bool> {
    Ok(least_mean(program, readings)?.0.is_none_or(|mean| mean <= MOST_NS))
}

fn are_small_and_quick(release: Release) -> Result<()> {
    let server = Server::start(release, &Options::default())?;
    let mut load = Load::start(&server, "oltp_update_index", 32)?;
    load.wait_running()?;
    let agent = Agent::attach_without_budget(&server)?;
    let timing = time_programs()?;
    let mut readings = vec![programs()];
    let mut all_quick = false;
    while readings.len() <= *WINDOWS.start() || (readings.len() <= *WINDOWS.end() && !all_quick) {
        sleep(Duration::from_secs(2));
        readings.push(programs());
        let all = readings[0].iter().map(|program| is_quick(program, &readings));
        all_quick = all.collect::<Result<Vec<_>>>()?.into_iter().all(|quick| quick);
    }
    drop(timing);
    agent.stop()?;
    load.stop()?;
    server.stop()?;
    let programs = &readings[0];
    ensure!(programs.len() >= 4, "only {} programs", programs.len());
    let mut runs = 0;
    for program in programs {
        let name = program.name.to_string_lossy();
        let (mean, count) = least_mean(program, &readings)?;
        println!(
            "{}: {name}: {count} runs, mean {mean:.0?} ns in the best of {} windows, {} instructions verified",
            release.name(),
            readings.len() - 1,
            program.verified_insns
        );
        ensure!(mean.is_none_or(|mean| mean <= MOST_NS), "{name} takes {mean:.0?} ns");
        ensure!(
            program.verified_insns <= MOST_VERIFIED,
            "{name} takes {} instructions to verify",
            program.verified_insns
        );
        runs += count;
    }
    ensure!(runs >= LEAST_RUNS, "only {runs} runs");
    Ok(())
}

#[test]
fn programs_on_mysql_are_quick() -> Result<()> {
    are_small_and_quick(Release::MYSQL_9_7)
}

#[test]
#[ignore = "as on MySQL: make test-all"]
fn programs_on_mariadb_are_quick() -> Result<()> {
    are_small_and_quick(Release::MARIADB_11_4)
}

/// Returns the programs that a process has descriptors of, with the number of these.
fn program_descriptors(pid: i32) -> Result<BTreeMap<u32, usize>> {
    let mut descriptors = BTreeMap::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fdinfo"))?.flatten() {
        let info = std::fs::read_to_string(entry.path()).unwrap_or_default();
        let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        // A link has the number of its program too.
        if let Some(id) = field("prog_id").filter(|_| field("link_type").is_none()) {
            *descriptors.entry(id.trim().parse()?).or_default() += 1;
        }
    }
    Ok(descriptors)
}

/// Whoever asks the kernel how often it skipped a program has a descriptor for that, in addition to that by which the
/// program is attached.
#[test]
fn skipped_runs_of_all_programs_are_counted() -> Result<()> {
    let server = Server::start(Release::MYSQL_9_7, &Options::default())?;
    let agent = Agent::attach(&server)?;
    let counted = |begin: &str| -> Result<bool> {
        let descriptors = program_descriptors(agent.pid())?;
        let is_ours = |program: &ProgramInfo| program.name.to_str().is_some_and(|name| name.starts_with(begin));
        let of: Vec<_> = ProgInfoIter::default().filter(is_ours).filter_map(|p| descriptors.get(&p.id)).collect();
        Ok(!of.is_empty() && of.iter().all(|descriptors| **descriptors >= 2))
    };
    for begin in ["latch_", "futex_", "thread_exit", "cpu_sample", "checksum_"] {
        // Those that count checksums are loaded a moment later.
        wait_for(&format!("somebody who counts skipped runs of {begin}"), Duration::from_secs(10), || {
            Ok(counted(begin)?.then_some(()))
        })?;
    }
    let causes = agent.metrics()?.matches("reason=\"program_skipped\"").count();
    ensure!(causes == 1, "{causes} series of skipped programs");
    agent.stop()?;
    server.stop()
}
