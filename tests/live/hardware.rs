//! Hardware events, as far as this machine counts any.

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

/// What doctor has seen counting is exported, and nothing else; of all others it says why. On a machine without counters, as most virtual
/// ones are, that is: none, and where they would be.
#[test]
fn hardware_events_are_counted_or_explained() -> Result<()> {
    let server = Server::start(Release::MARIADB_11_4, &Options::default())?;
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

const PAGES: usize = 10_000;
/// The kernel finds out by and by after how many faults to interrupt.
const ROUNDS: usize = 100;

/// Writes to so many new pages, in code that is nowhere else.
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

/// Page faults are an event that every kernel samples, on machines without counters too: they come from the code that touches
/// new pages, about as many as there were, and only those of the process that is looked at.
#[test]
fn events_are_sampled_where_they_happen() -> Result<()> {
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
    let there: u64 = samples.iter().filter(|s| (begin..begin + 1000).contains(&s.address)).map(|s| s.count).sum();
    let probe = sampler.probe(None)?;
    println!(
        "{all} faults, {there} of {} there, in {} samples at {} places",
        ROUNDS * PAGES,
        probe.hits,
        samples.len()
    );
    ensure!(samples.iter().all(|sample| sample.event == "page-faults"));
    ensure!(probe.hits > 50 && sampler.lost()? == 0, "{probe:?}, {} lost", sampler.lost()?);
    let share = there as f64 / (ROUNDS * PAGES) as f64;
    ensure!((0.9..=1.1).contains(&share) && there as f64 > 0.9 * all as f64, "{share:.3} of the faults, {all} in all");
    let far = others.take()?.iter().any(|s| (begin..begin + 1000).contains(&s.address));
    ensure!(!far, "another process has this one's events");
    ensure!(sampler.take()?.is_empty(), "it rests, or has been asked already");
    sampler.resume()?;
    touch_new_pages();
    ensure!(!sampler.take()?.is_empty(), "it goes on");
    Ok(())
}

#[inline(never)]
fn count_to(turns: u64) {
    (0..turns).for_each(|turn| _ = std::hint::black_box(turn));
}

/// The same of an event that CPUs count, where they count any.
#[test]
fn cycles_are_sampled_where_they_are_spent() -> Result<()> {
    const CYCLES: Countable = Countable { kind: 0, config: 0, config1: 0 };
    let counter = match Counter::open(CYCLES, Whose::Own) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
            println!("no counters here");
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
    let there: u64 = samples.iter().filter(|s| (begin..begin + 1000).contains(&s.address)).map(|s| s.count).sum();
    println!("{there} of {spent} cycles there, in {} samples", sampler.probe(None)?.hits);
    let share = there as f64 / spent as f64;
    ensure!((0.8..=1.2).contains(&share), "{share:.3} of the cycles");
    Ok(())
}
