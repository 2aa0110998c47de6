//! Who holds the latches that threads wait for.

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{ensure, Result};

use lab::agent::{Agent, Sample};
use lab::load::Load;
use lab::releases::Release;
use lab::server::{Options, Server};

const BLOCKED_BY: &str = "armtrace_latch_blocked_by_seconds_total";

/// Returns the seconds waited so far, by what the holder did.
fn seconds(samples: &[Sample]) -> BTreeMap<String, f64> {
    let mut sums = BTreeMap::new();
    for sample in samples.iter().filter(|sample| sample.name == BLOCKED_BY) {
        *sums.entry(sample.labels["holder_state"].clone()).or_default() += sample.value;
    }
    sums
}

/// Programs that keep all CPUs busy, until this is dropped.
struct Burners(Vec<Child>);

impl Burners {
    fn start(count: usize) -> Result<Burners> {
        let burn = |_| Command::new("sh").args(["-c", "while :; do :; done"]).stdin(Stdio::null()).spawn();
        Ok(Burners((0..count).map(burn).collect::<std::io::Result<_>>()?))
    }
}

impl Drop for Burners {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// With more threads than CPUs, holders lose theirs, and who waits for a free latch has none.
fn preempted_holders_are_seen(release: Release) -> Result<()> {
    const WINDOW: Duration = Duration::from_secs(12);
    let server = Server::start(release, &Options::default())?;
    let mut load = Load::start(&server, "oltp_update_index", 64)?;
    load.wait_running()?;
    let agent = Agent::attach(&server)?;
    let burners = Burners::start(8)?;
    sleep(Duration::from_secs(3));
    let before = seconds(&agent.scrape()?);
    sleep(WINDOW);
    let after = seconds(&agent.scrape()?);
    drop(burners);
    agent.stop()?;
    load.stop()?;
    server.stop()?;
    let of = |state: &str| after.get(state).unwrap_or(&0.0) - before.get(state).unwrap_or(&0.0);
    let all: f64 = after.values().sum::<f64>() - before.values().sum::<f64>();
    let held: f64 = ["running", "preempted", "io", "network", "latch", "asleep", "call"].map(of).iter().sum();
    let (preempted, known) = (of("preempted") / held, 1.0 - of("unknown") / all);
    println!("{}: {preempted:.2} of {held:.1} s preempted, {known:.2} of {all:.1} s known", release.name());
    ensure!(held > 1.0 && known > 0.05, "hardly a holder was seen: {held:.1} s of {all:.1} s");
    ensure!(preempted >= 0.25, "only {preempted:.2} preempted");
    Ok(())
}

#[test]
fn preempted_holders_are_seen_on_mysql() -> Result<()> {
    preempted_holders_are_seen(Release::MYSQL_8_0_31)
}

#[test]
fn preempted_holders_are_seen_on_mariadb() -> Result<()> {
    preempted_holders_are_seen(Release::MARIADB_11_4)
}
