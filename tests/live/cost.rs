//! What being traced costs the server.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{ensure, Result};

use crate::agent::Agent;
use crate::load::Load;
use crate::server::{Family, Options, Server};

/// Attached and detached by turns inside one continuous load: neighbouring windows see the same machine.
const PAIRS: usize = 10;
/// The first second after a change belongs to neither side.
const SETTLE: usize = 1;
const SECONDS: usize = 3;

/// The loss that fails the test. The goal is 2 %; single windows on a small shared machine differ by ten, so that
/// the median of ten pairs is only known to some percent.
const LIMIT: f64 = 0.06;

/// Mean transactions a second from now on.
fn throughput(load: &Load) -> Result<f64> {
    sleep(Duration::from_secs(SETTLE as u64));
    let from = load.tps_by_second()?.len();
    sleep(Duration::from_millis(1000 * SECONDS as u64 + 500));
    let seconds = load.tps_by_second()?;
    let window = &seconds[from..seconds.len().min(from + SECONDS)];
    ensure!(!window.is_empty(), "no report from the load");
    Ok(window.iter().sum::<f64>() / window.len() as f64)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn cost(family: Family) -> Result<()> {
    let server = Server::start(family, &Options::default())?;
    let mut load = Load::start(&server, "oltp_update_index", 16)?;
    load.wait_running()?;
    sleep(Duration::from_secs(2));
    let mut ratios = Vec::new();
    for _ in 0..PAIRS {
        let without = throughput(&load)?;
        let agent = Agent::attach(&server)?;
        let with = throughput(&load)?;
        agent.stop()?;
        ratios.push(with / without);
        println!("{}: without {without:.0}, with {with:.0} transactions/s, ratio {:.3}", family.name(), with / without);
    }
    let report = load.stop()?;
    ensure!(report.errors == 0 && report.reconnects == 0, "{report:?}");
    server.stop()?;
    let typical = median(ratios);
    println!("{}: median ratio {typical:.3} of {PAIRS} pairs", family.name());
    ensure!(typical >= 1.0 - LIMIT, "tracing costs {:.1} % of the throughput", 100.0 * (1.0 - typical));
    Ok(())
}

#[test]
fn tracing_mysql_costs_little() -> Result<()> {
    cost(Family::Mysql97)
}

#[test]
fn tracing_mariadb_costs_little() -> Result<()> {
    cost(Family::Mariadb114)
}
