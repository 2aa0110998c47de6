//! The number of sleeps, compared with bpftrace.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{ensure, Result};

use lab::agent::{by_latch, Agent};
use lab::load::Load;
use lab::releases::Release;
use lab::server::{Options, Server};
use lab::tracer::Tracer;

/// How far the two counts may differ.
const TOLERANCE: f64 = 0.02;

/// Counts, with bpftrace, the futex waits of MySQL's threads in the sync array, where they sleep for InnoDB's latches
/// and for nothing else.
fn count_with_bpftrace(pid: i32, program: &str) -> Result<Tracer> {
    let uprobe = |kind: &str, function: &str| format!("{kind}:{program}:{function} /pid == {pid}/");
    let (reserve, wait) = (
        "_Z23sync_array_reserve_cellP12sync_array_tPvmN2ut8LocationE",
        "_Z21sync_array_wait_eventP12sync_array_tRP11sync_cell_t",
    );
    let probes = format!(
        "{} {{ @in[tid] = 1; }} {} {{ delete(@in[tid]); }} {} {{ @in[tid] = 1; }} {} {{ delete(@in[tid]); }} \
         tracepoint:syscalls:sys_enter_futex \
           /@in[tid] && ((args->op & 127) == 0 || (args->op & 127) == 9)/ {{ @asleep[tid] = 1; }} \
         tracepoint:syscalls:sys_exit_futex \
           /@asleep[tid]/ {{ if (args->ret != -11) {{ @sleeps = count(); }} delete(@asleep[tid]); }} \
         END {{ clear(@in); clear(@asleep); }}",
        uprobe("uprobe", wait),
        uprobe("uretprobe", wait),
        uprobe("uprobe", reserve),
        uprobe("uretprobe", reserve),
    );
    Tracer::start(&probes)
}

fn program(release: Release) -> Result<String> {
    Ok(release.program()?.display().to_string())
}

#[test]
fn sleeps_agree_with_bpftrace() -> Result<()> {
    let server = Server::start(Release::MYSQL_9_7, &Options::default())?;
    // Both tracers count from before the load until after it, so they see the same waits.
    let agent = Agent::attach_without_budget(&server)?;
    let counter = count_with_bpftrace(server.pid(), &program(Release::MYSQL_9_7)?)?;
    let mut load = Load::start(&server, "oltp_update_index", 32)?;
    load.wait_running()?;
    sleep(Duration::from_secs(4));
    let report = load.stop()?;
    sleep(Duration::from_secs(1));
    let theirs = counter.stop()?.value("@sleeps")?;
    let ours = by_latch(&agent.scrape()?, "armtrace_latch_sleeps_total");
    // armtrace counts a sleep for a mutex inside the sync array twice: in the wait that it is part of, and as its own
    // wait.
    let inside = ["/sync_array_mutex", "/event_os_mutex"];
    let is_counted = |latch: &str| latch.contains("/innodb/") && !inside.iter().any(|i| latch.ends_with(i));
    let ours: f64 = ours.iter().filter(|(latch, _)| is_counted(latch)).map(|(_, sleeps)| sleeps).sum();
    println!("armtrace: {ours} sleeps, bpftrace: {theirs}, in {} transactions", report.transactions);
    ensure!(theirs > 100.0, "too few sleeps to compare: {theirs}");
    ensure!((ours / theirs - 1.0).abs() <= TOLERANCE, "armtrace counts {ours} sleeps, bpftrace {theirs}");
    agent.stop()?;
    server.stop()
}
