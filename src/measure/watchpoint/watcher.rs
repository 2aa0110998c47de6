//! Finds the threads that access a latch's cache line, given the latch's name: observes which latches of that name
//! threads wait for, watches the line of the one with the most waiters, and names what was seen.

use std::io;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::find::{Sightings, Wanted};
use super::judge::{verdict, words, Burst, Scene};
use super::points::{hit_cost_ns, WORD};
use super::{atomics_survive, may_kill, refusal, watch, Allowance, CrashRisk, ServerCode, BURST, LIMIT};
use crate::host::{Domains, Machine};
use crate::measure::latch::{Counted, LatchCollector, WaitedFor};
use crate::measure::watchpoint::{LineWatch, Moves, WatchedWord};
use crate::server::Target;

/// The interval at which waiting threads are observed.
const LOOK: Duration = Duration::from_millis(10);
/// How long to observe at least and at most, after a thread was seen waiting for the latch, and how many waiters are
/// enough.
const LEAST_LOOKING: Duration = Duration::from_secs(1);
const MOST_LOOKING: Duration = Duration::from_secs(5);
const ENOUGH_WAITERS: u64 = 100;
/// How long to wait for a thread to wait for the latch.
const PATIENCE: Duration = Duration::from_secs(30);

/// The reason why a latch's line was not watched.
#[derive(Debug, thiserror::Error)]
#[cfg_attr(test, derive(strum::VariantNames, strum::IntoStaticStr))]
pub enum Unwatched {
    /// See [`atomics_survive`].
    #[error(
        "this CPU has no atomic instructions (LSE), so threads that update a latch with exclusive loads and stores make no \
         progress while it is watched"
    )]
    NoAtomics,
    /// See [`may_kill`].
    #[error(
        "in a virtual machine on x86, a watched access can kill the server: some hypervisors garble debug exceptions. \
         To watch nevertheless, give --accept-crash-risk"
    )]
    MayKill,
    /// The kernel provides no watchpoint, or the CPU reports nothing.
    #[error("{}", refusal(.0))]
    Refused(io::Error),
    /// The name matches several latches that threads wait for: their event names.
    #[error("the name may mean any of {}: choose one of them", .0.join(", "))]
    Unclear(Vec<String>),
    /// No thread waited for such a latch: the event names of what was waited for instead.
    #[error("no thread waited for a latch of that name within {}s", PATIENCE.as_secs())]
    NobodyWaited(Vec<String>),
    /// The process with this ID has ended.
    #[error("process {0} has ended")]
    Ended(i32),
    /// The waiting threads cannot be read.
    #[error(transparent)]
    Unreadable(#[from] anyhow::Error),
}

impl Allowance {
    /// Returns what bursts may take on this machine: `share` of a process's CPU time, 0 to 1. Measures the cost of a
    /// reported access, which takes a few milliseconds.
    ///
    /// # Errors
    /// Fails when this machine cannot watch a server's latches, or not without a risk that is not accepted.
    pub fn of_share(share: f64, risk: CrashRisk) -> Result<Allowance, Unwatched> {
        if !atomics_survive() {
            return Err(Unwatched::NoAtomics);
        }
        if risk == CrashRisk::Refuse && may_kill() {
            return Err(Unwatched::MayKill);
        }
        Ok(Allowance { share, hit_ns: hit_cost_ns().map_err(Unwatched::Refused)? })
    }
}

/// Watches lines of one server's latches.
pub struct Watcher {
    /// The server.
    pub target: Arc<Target>,
    /// The probes that show which threads wait.
    pub latches: Arc<LatchCollector>,
    /// What bursts may take from the server.
    pub allowance: Allowance,
}

impl Watcher {
    /// Observes which threads wait for what, until it is clear which latch is meant and which instance is most waited
    /// for, or until `is_over` returns true.
    ///
    /// # Errors
    /// Fails when no thread waits for such a latch, when the name matches several, or when the waiting threads cannot
    /// be read.
    pub fn look(&self, wanted: &Wanted, mut is_over: impl FnMut() -> bool) -> Result<Sightings, Unwatched> {
        let mut seen = Sightings::default();
        let mut counted = Counted::new();
        // Waits from before the observation do not count.
        self.latches.waited_for_last(&mut counted)?;
        let begin = Instant::now();
        let mut first = None;
        loop {
            let is_over = is_over();
            self.expect_alive()?;
            if is_over {
                break;
            }
            seen.add_waiters(self.latches.waited_for_now()?);
            seen.add_last(self.latches.waited_for_last(&mut counted)?);
            let meant = seen.meant(wanted);
            if !matches!(&meant, Err(names) if names.is_empty()) {
                let since = first.get_or_insert_with(Instant::now).elapsed();
                let waiters = meant.map_or(0, |name| seen.waiters(name));
                if since >= MOST_LOOKING || (since >= LEAST_LOOKING && waiters >= ENOUGH_WAITERS) {
                    break;
                }
            } else if begin.elapsed() >= PATIENCE {
                let instead = seen.names().map(str::to_owned).collect();
                return Err(Unwatched::NobodyWaited(instead));
            }
            sleep(LOOK);
        }
        match seen.meant(wanted) {
            Err(names) if !names.is_empty() => Err(Unwatched::Unclear(names.into_iter().map(str::to_owned).collect())),
            _ => Ok(seen),
        }
    }

    /// Watches the line of the latch that is meant and that most threads were seen waiting for, until each word was
    /// watched several times, or until `is_over`, which receives the bursts so far, returns true. Returns `None` if no
    /// such latch was seen.
    ///
    /// # Errors
    /// Fails when the kernel refuses, or when the server ends.
    pub fn watch(
        &self,
        wanted: &Wanted,
        seen: &Sightings,
        mut is_over: impl FnMut(&[Burst]) -> bool,
    ) -> Result<Option<LineWatch>, Unwatched> {
        let Some((name, hottest)) = seen.meant(wanted).ok().and_then(|name| Some((name, seen.hottest(name)?))) else {
            return Ok(None);
        };
        let begin = Instant::now();
        let is_over = |bursts: &[Burst]| is_over(bursts) || self.target.ended();
        let line_bytes = Machine::this().cache_line_bytes();
        let bursts = watch(self.target.pid, hottest.latch.address, line_bytes, self.allowance, is_over);
        let bursts = bursts.map_err(Unwatched::Refused)?;
        let seconds = begin.elapsed().as_secs_f64();
        self.expect_alive()?;
        let words = self.words(hottest.latch, seen, &bursts);
        let mut moves = Moves::default();
        words.iter().for_each(|word| moves.add(&word.moves));
        let (mine, all) = hottest.waiters;
        let hits = bursts.iter().map(|burst| burst.touches.len() as u64).sum();
        Ok(Some(LineWatch {
            latch: name.to_owned(),
            address: format!("{:#x}", hottest.latch.address),
            instances: hottest.instances,
            waiters_share: if all == 0 { 1.0 } else { mine as f64 / all as f64 },
            line_bytes,
            cpus: Machine::this().online_cpus().len(),
            bursts: bursts.len(),
            burst_ms: BURST.as_millis() as u64,
            hits_per_burst: LIMIT,
            seconds,
            hits,
            hits_of_others: hits - self.hits_of_server(&bursts),
            ns_per_hit: Some(self.allowance.hit_ns),
            verdict: verdict(&words),
            words,
            moves,
        }))
    }

    fn hits_of_server(&self, bursts: &[Burst]) -> u64 {
        let touches = bursts.iter().flat_map(|burst| &burst.touches);
        touches.filter(|touch| touch.pid == self.target.pid as u32).count() as u64
    }

    /// Summarizes the bursts for each word, with names for the latch's neighbors.
    fn words(&self, latch: &WaitedFor, seen: &Sightings, bursts: &[Burst]) -> Vec<WatchedWord> {
        let before = self.latches.bytes_before(latch);
        let range = latch.address.saturating_sub(before)..latch.address.saturating_add(latch.bytes);
        let topology = Machine::this().topology(Domains::Auto);
        let pid = self.target.pid as u32;
        let scene = Scene { pid, word: latch.address, latch: range, topology: topology.as_ref() };
        let mut code = ServerCode::new(&self.target);
        let mut words = words(&scene, bursts, &mut |touch| code.at(touch));
        for word in words.iter_mut().filter(|word| !word.is_latch) {
            word.object = self.object(latch.address.wrapping_add_signed(word.offset), seen);
        }
        words
    }

    /// Returns the name of the object that contains a word: another latch that was waited for, or a static object.
    fn object(&self, word: u64, seen: &Sightings) -> Option<String> {
        // The object may begin within the word.
        let places = [word, word + WORD / 2];
        let latch = places.iter().find_map(|at| seen.at(*at)).map(|latch| latch.name.event.clone());
        latch.or_else(|| {
            let (name, offset) = places.iter().find_map(|at| self.target.static_object(*at))?;
            Some(if offset == 0 { name } else { format!("{name}+{offset}") })
        })
    }

    fn expect_alive(&self) -> Result<(), Unwatched> {
        match self.target.ended() {
            true => Err(Unwatched::Ended(self.target.pid)),
            false => Ok(()),
        }
    }
}
