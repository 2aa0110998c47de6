//! Hardware events, as far as this machine counts any.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::time::Duration;

use anyhow::{ensure, Context, Result};

use crate::agent::{doctor, Agent, Sample};
use crate::server::{wait_for, Family, Options, Server};

const COUNT: &str = "armtrace_perf_events_total";

fn events<'s>(samples: &'s [Sample], metric: &str) -> BTreeSet<&'s str> {
    samples.iter().filter(|s| s.name == metric).filter_map(|s| s.labels.get("event").map(String::as_str)).collect()
}

/// What doctor has seen counting is exported, and nothing else; of all others it says why. On a machine without counters, as most virtual
/// ones are, that is: none, and where they would be.
#[test]
fn hardware_events_are_counted_or_explained() -> Result<()> {
    let server = Server::start(Family::Mariadb114, &Options::default())?;
    let said = doctor(server.pid())?["hardware"].clone();
    let listed = said["events"].as_array().context("doctor lists no events")?;
    ensure!(!listed.is_empty(), "{said}");
    let (counting, others): (Vec<_>, Vec<_>) = listed.iter().partition(|event| event["counts"] == true);
    let expected: BTreeSet<&str> = counting.iter().filter_map(|event| event["event"].as_str()).collect();
    for event in &others {
        ensure!(event["why"].as_str().is_some_and(|why| !why.is_empty()), "nothing explains {event}");
    }
    if said["has_counters"] == false {
        ensure!(expected.is_empty(), "there are no counters, but {expected:?}");
        let advice = said["advice"].as_str().context("nothing says where there would be counters")?;
        ensure!(advice.contains("bare metal"), "{advice}");
    }
    let agent = Agent::attach_with(&server, &[OsStr::new("--hardware-events")])?;
    // What the same thread does behind it.
    let samples = wait_for("the count of barriers", Duration::from_secs(30), || {
        let samples = agent.scrape()?;
        Ok(samples.iter().any(|s| s.name == "armtrace_barriers_static").then_some(samples))
    })?;
    println!("{} of {} events count here: {expected:?}", expected.len(), listed.len());
    ensure!(events(&samples, COUNT) == expected, "{:?}, not {expected:?}", events(&samples, COUNT));
    for ratio in samples.iter().filter(|s| s.name == "armtrace_perf_event_running_ratio") {
        ensure!((0.0..=1.0).contains(&ratio.value), "{ratio:?}");
    }
    agent.stop()?;
    server.stop()
}
