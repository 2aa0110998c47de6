//! `armtrace run --watch LATCH`: finds the latch that most wait for, watches its cache line, tells who touches it, and ends.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;

use super::output::{json, print};
use super::session::{self, Ends};
use super::{Format, RunArgs};
use crate::agent::Agent;
use crate::attach::{online_cpus, Division, Places, SYSTEM};
use crate::failure::Failure;
use crate::model::{LineWatch, Moves, WatchedWord};
use crate::probe::watch::{self, Allowance, Burst, Scene, ServerCode, Sightings};
use crate::target::Target;
use crate::ui;

/// How often is looked at who waits.
const LOOK: Duration = Duration::from_millis(10);
/// For how long at least and at most, once somebody was seen to wait for the latch, and how many waiters are enough.
const LEAST_LOOKING: Duration = Duration::from_secs(1);
const MOST_LOOKING: Duration = Duration::from_secs(5);
const ENOUGH_WAITERS: u64 = 100;
/// How long to wait for somebody to wait for the latch.
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) fn watch(args: &RunArgs, wanted: &str) -> Result<(), Failure> {
    if !watch::atomics_survive() {
        return Err(Failure::privilege(
            "--watch: this CPU has no atomic instructions (LSE), and threads that update a latch by exclusive loads and stores \
             do not get on while it is watched",
        ));
    }
    let target = session::open(&args.attach)?;
    let refused = |error: io::Error| Failure::privilege(format!("--watch: {}", watch::refusal(&error)));
    // Tells whether watchpoints work at all, before anything is attached.
    let hit_ns = watch::hit_cost_ns().map_err(refused)?;
    let failed = |e: io::Error| Failure::running(format!("cannot start: {e}"));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().map_err(failed)?;
    let is_over = end_of(&runtime, &target).map_err(failed)?;
    let mut agent = Agent::attach(target, 0, Division::Off)?;
    runtime.spawn_blocking(agent.keep_within(args.attach.max_overhead));
    let seen = look(&agent, wanted, &is_over);
    agent.detach();
    let seen = seen?;
    let Ok(name) = seen.meant(wanted) else { return Ok(()) };
    let Some(hottest) = seen.hottest(name) else { return Ok(()) };
    let latch = hottest.latch;
    let line_bytes = watch::line_bytes();
    let allowance = Allowance { share: args.attach.max_overhead, hit_ns };
    let begin = Instant::now();
    let pid = agent.target.pid;
    let bursts = watch::watch(pid, latch.address, line_bytes, allowance, || is_over.load(Ordering::Relaxed));
    let bursts = bursts.map_err(refused)?;
    let seconds = begin.elapsed().as_secs_f64();
    if agent.target.ended() {
        return Err(Failure::target(format!("process {pid} has ended")));
    }
    let before = agent.source().bytes_before(latch);
    let range = latch.address.saturating_sub(before)..latch.address.saturating_add(latch.bytes);
    let words = words(&agent.target, latch.address, range, &seen, &bursts);
    let mut moves = Moves::default();
    words.iter().for_each(|word| moves.add(&word.moves));
    let (mine, all) = hottest.waiters;
    let hits = bursts.iter().map(|burst| burst.touches.len() as u64).sum();
    let of_server = |burst: &Burst| burst.touches.iter().filter(|touch| touch.pid == pid as u32).count() as u64;
    let found = LineWatch {
        latch: name.to_owned(),
        address: format!("{:#x}", latch.address),
        instances: hottest.instances,
        waiters_share: if all == 0 { 1.0 } else { mine as f64 / all as f64 },
        line_bytes,
        cpus: online_cpus().len(),
        bursts: bursts.len(),
        burst_ms: watch::BURST.as_millis() as u64,
        hits_per_burst: watch::LIMIT,
        seconds,
        hits,
        hits_of_others: hits - bursts.iter().map(of_server).sum::<u64>(),
        ns_per_hit: Some(hit_ns),
        verdict: watch::verdict(&words),
        words,
        moves,
    };
    print(&match args.format {
        Format::Text => ui::watch::text(&found),
        Format::Json => json(&found)?,
    })
}

/// Becomes true when the user or the server ends it.
fn end_of(runtime: &Runtime, target: &Target) -> io::Result<Arc<AtomicBool>> {
    let is_over = Arc::new(AtomicBool::new(false));
    let mut ends = {
        let _entered = runtime.enter();
        Ends::new(target)?
    };
    let over = Arc::clone(&is_over);
    runtime.spawn(async move {
        ends.wait().await;
        over.store(true, Ordering::Relaxed);
    });
    Ok(is_over)
}

/// Looks at who waits for what until it is clear which latch is meant and which of them is waited for most.
fn look(agent: &Agent, wanted: &str, is_over: &AtomicBool) -> Result<Sightings, Failure> {
    let source = agent.source();
    let mut seen = Sightings::default();
    let begin = Instant::now();
    let mut first = None;
    while !is_over.load(Ordering::Relaxed) {
        seen.add_waiters(source.waited_for_now()?);
        seen.add_last(source.waited_for_last()?);
        let meant = seen.meant(wanted);
        if !matches!(&meant, Err(names) if names.is_empty()) {
            let since = first.get_or_insert_with(Instant::now).elapsed();
            let waiters = meant.as_ref().map_or(0, |name| seen.waiters(name));
            if since >= MOST_LOOKING || (since >= LEAST_LOOKING && waiters >= ENOUGH_WAITERS) {
                break;
            }
        } else if begin.elapsed() >= PATIENCE {
            break;
        }
        std::thread::sleep(LOOK);
    }
    if agent.target.ended() {
        return Err(Failure::target(format!("process {} has ended", agent.target.pid)));
    }
    let interrupted = is_over.load(Ordering::Relaxed);
    if let Err(names) = seen.meant(wanted) {
        let names: Vec<String> = names.into_iter().map(str::to_owned).collect();
        if !names.is_empty() {
            return Err(Failure::usage(format!("--watch {wanted} may mean any of {}: name one", names.join(", "))));
        }
        if !interrupted {
            return Err(nobody_waited(wanted, &seen));
        }
    }
    Ok(seen)
}

fn nobody_waited(wanted: &str, seen: &Sightings) -> Failure {
    let waited_for: Vec<&str> = seen.names().collect();
    let instead = if waited_for.is_empty() { "nothing".to_owned() } else { waited_for.join(", ") };
    Failure::running(format!(
        "--watch {wanted}: in {}s nobody waited for a latch of such a name.\nWaited for were: {instead}",
        PATIENCE.as_secs()
    ))
}

/// What the bursts say of each word, with names for the latch's neighbours.
fn words(target: &Arc<Target>, word: u64, latch: Range<u64>, seen: &Sightings, bursts: &[Burst]) -> Vec<WatchedWord> {
    let places = Places::of(Division::Auto, Path::new(SYSTEM));
    let scene = Scene { pid: target.pid as u32, word, latch, places: places.as_ref() };
    let mut code = ServerCode::new(target);
    let mut words = watch::words(&scene, bursts, &mut |touch| code.at(touch));
    for word in words.iter_mut().filter(|word| !word.is_latch) {
        let address = scene.word.wrapping_add_signed(word.offset);
        // An object may begin within the word.
        let places = [address, address + watch::WORD / 2];
        let other = places.iter().find_map(|at| seen.at(*at)).map(|latch| latch.name.event.clone());
        let object = || places.iter().find_map(|at| target.static_object(*at));
        word.object = other.or_else(|| {
            object().map(|(name, offset)| match offset {
                0 => name,
                _ => format!("{name}+{offset}"),
            })
        });
    }
    words
}
