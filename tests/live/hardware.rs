//! Hardware events, if this machine has counters.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use armtrace::attach::{Countable, Counter, Whose};
use armtrace::measure::hardware::{EventSampler, Sampled};
use armtrace::symbols::Arch;

use lab::agent::{doctor, Agent, Sample};
use lab::releases::Release;
use lab::server::{wait_for, Options, Server};

const COUNT: &str = "armtrace_perf_events_total";

fn events<'s>(samples: &'s [Sample], metric: &str) -> BTreeSet<&'s str> {
    samples.iter().filter(|s| s.name == metric).filter_map(|s| s.labels.get("event").map(String::as_str)).collect()
}

/// The agent exports exactly the events that `doctor` has seen counting, and `doctor` explains all others. On a machine
/// without counters, like most virtual machines, no events are exported and `doctor` says which machines have counters.
#[test]
fn hardware_events_are_counted_or_explained() -> Result<()> {
    let server = Server::start(Release::MARIADB_11_4, &Options::default())?;
    let report = doctor(server.pid())?["hardware"].clone();
    let listed = report["events"].as_array().context("doctor lists no events")?;
    ensure!(!listed.is_empty(), "{report}");
    let (counting, others): (Vec<_>, Vec<_>) = listed.iter().partition(|event| event["counts"] == true);
    let expected: BTreeSet<&str> = counting.iter().filter_map(|event| event["event"].as_str()).collect();
    for event in &others {
        ensure!(event["why"].as_str().is_some_and(|why| !why.is_empty()), "doctor does not explain {event}");
    }
    if report["has_counters"] == false {
        ensure!(expected.is_empty(), "there are no counters, but these events count: {expected:?}");
        let advice = report["advice"].as_str().context("doctor does not say which machines have counters")?;
        ensure!(advice.contains("bare metal"), "{advice}");
    }
    let agent = Agent::attach_with(&server, &[OsStr::new("--hardware-events")])?;
    // The same thread counts barriers after it has opened the events.
    let samples = wait_for("the count of barriers", Duration::from_secs(30), || {
        let samples = agent.scrape()?;
        Ok(samples.iter().any(|s| s.name == "armtrace_barriers_static").then_some(samples))
    })?;
    println!("{} of {} events count here: {expected:?}", expected.len(), listed.len());
    ensure!(events(&samples, COUNT) == expected, "{:?} instead of {expected:?}", events(&samples, COUNT));
    for ratio in samples.iter().filter(|s| s.name == "armtrace_perf_event_running_ratio") {
        ensure!((0.0..=1.0).contains(&ratio.value), "{ratio:?}");
    }
    agent.stop()?;
    server.stop()
}

const PAGES: usize = 10_000;
/// Enough rounds for the kernel to adapt the sampling period to the rate of faults.
const ROUNDS: usize = 100;

/// Writes to [`PAGES`] new pages. It is not inlined, so that its faults are at a known address.
#[inline(never)]
fn touch_new_pages() {
    const PAGE: usize = 4096;
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping, unmapped below, in which each page is written once.
    unsafe {
        let memory = libc::mmap(std::ptr::null_mut(), PAGES * PAGE, protection, flags, -1, 0);
        assert_ne!(memory, libc::MAP_FAILED);
        libc::madvise(memory, PAGES * PAGE, libc::MADV_NOHUGEPAGE);
        for page in 0..PAGES {
            memory.cast::<u8>().add(page * PAGE).write_volatile(1);
        }
        libc::munmap(memory, PAGES * PAGE);
    }
}

/// Page faults can be sampled on every machine, even without counters. Samples must be at the code that touches new
/// pages, account for as many faults as there were, and come only from the traced process.
#[test]
fn page_faults_are_sampled_where_they_happen() -> Result<()> {
    // What happens in the last sampling period is in no sample. Where the machine stalled, the kernel has made that
    // period long.
    const ATTEMPTS: usize = 3;
    let shares = (0..ATTEMPTS).map(|_| sampled_share_of_faults()).collect::<Result<Vec<f64>>>()?;
    ensure!(shares.iter().all(|share| (0.8..=1.02).contains(share)), "{shares:.3?} of the faults");
    ensure!(shares.iter().any(|share| *share >= 0.98), "{shares:.3?} of the faults");
    Ok(())
}

/// Returns which part of the page faults of this process were sampled.
fn sampled_share_of_faults() -> Result<f64> {
    const PAGE_FAULTS: Countable = Countable { kind: 1, config: 2, config1: 0 };
    let events = || vec![Sampled { name: "page-faults", what: PAGE_FAULTS }];
    let own = std::process::id() as i32;
    let mut sampler = EventSampler::start(own, Arch::HOST, events(), 1000)?;
    let others = EventSampler::start(1, Arch::HOST, events(), 1000)?;
    (0..ROUNDS).for_each(|_| touch_new_pages());
    sampler.pause();
    touch_new_pages();
    let samples = sampler.take()?;
    let all: u64 = samples.iter().map(|sample| sample.count).sum();
    let begin = touch_new_pages as *const () as u64;
    let at_code: u64 = samples.iter().filter(|s| (begin..begin + 1000).contains(&s.address)).map(|s| s.count).sum();
    let probe = sampler.probe(None)?;
    println!(
        "{all} faults, {at_code} of {} at the code, in {} samples at {} addresses",
        ROUNDS * PAGES,
        probe.hits,
        samples.len()
    );
    ensure!(samples.iter().all(|sample| sample.event == "page-faults"));
    let mut lost = Vec::new();
    sampler.add_lost(&mut lost)?;
    ensure!(probe.hits > 50 && lost.iter().all(|(_, samples)| *samples == 0), "{probe:?}, lost: {lost:?}");
    ensure!(at_code as f64 > 0.98 * all as f64, "{at_code} of {all} faults");
    let is_misattributed = others.take()?.iter().any(|s| (begin..begin + 1000).contains(&s.address));
    ensure!(!is_misattributed, "another process has this one's events");
    ensure!(sampler.take()?.is_empty(), "a paused sampler has samples, or samples were returned twice");
    sampler.resume()?;
    touch_new_pages();
    let resumed: u64 = sampler.take()?.iter().map(|sample| sample.count).sum();
    ensure!((1..2 * PAGES as u64).contains(&resumed), "{resumed} of {PAGES} faults after a pause");
    Ok(at_code as f64 / (ROUNDS * PAGES) as f64)
}

#[inline(never)]
fn count_to(limit: u64) {
    (0..limit).for_each(|n| _ = std::hint::black_box(n));
}

/// Cycles are sampled in the same way, if the machine has counters.
#[test]
fn cycles_are_sampled_where_they_are_spent() -> Result<()> {
    const CYCLES: Countable = Countable { kind: 0, config: 0, config1: 0 };
    let counter = match Counter::open(CYCLES, Whose::Own) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
            println!("this machine has no counters");
            return Ok(());
        }
        other => other?,
    };
    let events = vec![Sampled { name: "cycles", what: CYCLES }];
    let sampler = EventSampler::start(std::process::id() as i32, Arch::HOST, events, 1000)?;
    let before = counter.read()?.count;
    count_to(1_000_000_000);
    let spent = counter.read()?.count - before;
    let begin = count_to as *const () as u64;
    let samples = sampler.take()?;
    let at_code: u64 = samples.iter().filter(|s| (begin..begin + 1000).contains(&s.address)).map(|s| s.count).sum();
    println!("{at_code} of {spent} cycles at the code, in {} samples", sampler.probe(None)?.hits);
    let share = at_code as f64 / spent as f64;
    ensure!((0.8..=1.2).contains(&share), "{share:.3} of the cycles");
    Ok(())
}
