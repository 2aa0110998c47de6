//! The NUMA nodes that a server's threads run on, for machines with several nodes like the guests of `tests/vm`.

use std::collections::BTreeMap;
use std::fs;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use armtrace::host::{Domains, Machine, Topology};

use crate::handoffs::pin;
use lab::agent::doctor;
use lab::load::Load;
use lab::releases::Release;
use lab::server::{wait_for, Options, Server};

const BALANCING: &str = "/proc/sys/kernel/numa_balancing";

/// Counts threads by the node of the CPU that each ran on last, from `/proc/PID/task/TID/stat`.
fn by_stat(pid: i32, topology: &Topology) -> Result<BTreeMap<String, u64>> {
    let mut threads = BTreeMap::new();
    for task in procfs::process::Process::new(pid)?.tasks()? {
        let cpu = task?.stat()?.processor.context("stat has no CPU")?;
        let node = topology.name(topology.of_cpu[cpu as usize]).context("a CPU without a node")?;
        *threads.entry(node.to_owned()).or_default() += 1;
    }
    Ok(threads)
}

fn by_doctor(pid: i32) -> Result<BTreeMap<String, u64>> {
    Ok(serde_json::from_value(doctor(pid)?["server"]["threads"]["by_node"].clone())?)
}

/// `doctor` reports the same threads by node as the kernel, follows them to another node, and sees NUMA balancing. On a
/// machine with one node it reports nothing about nodes.
#[test]
fn doctor_reports_threads_by_node() -> Result<()> {
    let server = Server::start(Release::MYSQL_9_7, &Options::default())?;
    let pid = server.pid();
    let Some(topology) = Machine::this().topology(Domains::Node) else {
        ensure!(
            doctor(pid)?["server"]["threads"].is_null(),
            "doctor reports threads by node on a machine with one node"
        );
        return server.stop();
    };
    let mut load = Load::start(&server, "oltp_update_index", 16)?;
    load.wait_running()?;
    fs::write(BALANCING, "1").context("switching NUMA balancing on")?;
    for (number, node) in (1..).zip(&topology.names) {
        let cpus = (0..topology.of_cpu.len()).filter(|&cpu| topology.of_cpu[cpu] == number).map(|cpu| cpu.to_string());
        pin(pid, &cpus.collect::<Vec<_>>().join(","))?;
        sleep(Duration::from_secs(5));
        let (reported, counted) = (by_doctor(pid)?, by_stat(pid, &topology)?);
        println!("on node {node}: {reported:?}, by stat {counted:?}");
        let of = |threads: &BTreeMap<String, u64>| threads.get(node).copied().unwrap_or(0);
        let all: u64 = counted.values().sum();
        ensure!(reported.values().sum::<u64>().abs_diff(all) <= 2, "{reported:?} are not {all} threads");
        // A sleeping thread counts for the node where it ran last.
        ensure!(of(&reported).abs_diff(of(&counted)) <= 2 && of(&reported) >= 16, "{reported:?}, by stat {counted:?}");
    }
    let balancing = wait_for("NUMA balancing to scan the server", Duration::from_secs(120), || {
        let balancing = doctor(pid)?["server"]["threads"]["balancing"].clone();
        Ok(balancing["local_faults"].as_u64().filter(|faults| *faults > 0).map(|_| balancing))
    })?;
    println!("balancing: {balancing}");
    load.stop()?;
    server.stop()
}
