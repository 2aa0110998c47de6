//! Shows which threads and functions access the cache line of a latch, by hardware watchpoints in short bursts.
//!
//! Each burst watches the latch's first word and one other word of its line, so that the order in which threads access
//! the two is seen. A watchpoint reports a limited number of accesses and is then off, whatever happens to this
//! process. The pauses between bursts keep their cost within the budget.

mod account;
mod code;
mod figures;
mod find;
mod judge;
mod points;
mod watcher;

pub use account::WatchpointAccount;
pub use code::ServerCode;
pub use figures::{LineWatch, Moves, Sharing, TouchingFunction, WatchedWord, LEAST_MOVES};
pub use find::{Hottest, Sightings, Wanted};
pub use judge::{verdict, words, Burst, CodeAt, Scene};
pub use points::{Touch, Watchpoints, WORD};
pub use watcher::{Unwatched, Watcher};

use std::io;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::param::linux_hwcap;

use self::points::now_ns;
use crate::server::cpu_time_ns;

/// How long a burst watches.
pub const BURST: Duration = Duration::from_millis(10);
/// The most accesses to a word that a CPU reports per burst.
pub const LIMIT: u32 = 200;
/// How often each word is watched.
const ROUNDS: usize = 5;

const SHORTEST_PAUSE: Duration = Duration::from_millis(30);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The share of a process's CPU time that bursts may take.
#[derive(Clone, Copy, Debug)]
pub struct Allowance {
    /// The share, 0 to 1.
    pub share: f64,
    /// The cost of a reported access, in nanoseconds.
    pub hit_ns: f64,
}

/// Returns the words of the line that contains an address.
pub fn line_words(address: u64, line_bytes: u64) -> Vec<u64> {
    let start = address - address % line_bytes;
    (0..line_bytes / WORD).map(|i| start + i * WORD).collect()
}

/// Returns the number of bursts for watching a line of this size.
pub fn bursts(line_bytes: u64) -> usize {
    (line_bytes / WORD).saturating_sub(1) as usize * ROUNDS
}

/// Watches the word at `address` of process `pid` together with each other word of its line in turn, until each was
/// watched several times, or until `is_over`, which receives the bursts so far, returns true.
///
/// # Errors
/// Fails when the kernel refuses: see [`refusal`].
pub fn watch(
    pid: i32,
    address: u64,
    line_bytes: u64,
    allowance: Allowance,
    mut is_over: impl FnMut(&[Burst]) -> bool,
) -> io::Result<Vec<Burst>> {
    let latch = address - address % WORD;
    let others: Vec<u64> = line_words(address, line_bytes).into_iter().filter(|word| *word != latch).collect();
    let (begin, cpu_before) = (Instant::now(), cpu_time_ns(pid));
    let mut bursts: Vec<Burst> = Vec::new();
    for other in others.repeat(ROUNDS) {
        if is_over(&bursts) {
            break;
        }
        let burst = burst([latch, other])?;
        let cost_ns = burst.touches.len() as f64 * allowance.hit_ns;
        bursts.push(burst);
        let used_ns = cpu_time_ns(pid).zip(cpu_before).map_or(0, |(now, then)| now.saturating_sub(then));
        let cpus_used = used_ns as f64 / begin.elapsed().as_nanos().max(1) as f64;
        rest(pause(cost_ns, allowance.share * cpus_used), || is_over(&bursts));
    }
    Ok(bursts)
}

/// Sleeps for this time, or until `is_over` returns true.
fn rest(time: Duration, mut is_over: impl FnMut() -> bool) {
    let end = Instant::now() + time;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || is_over() {
            return;
        }
        sleep(left.min(SHORTEST_PAUSE));
    }
}

/// Returns how long to wait after a burst of this cost, where this many CPUs may be used up.
fn pause(cost_ns: f64, cpus: f64) -> Duration {
    let ns = (cost_ns / cpus.max(f64::MIN_POSITIVE)).min(LONGEST_PAUSE.as_nanos() as f64);
    Duration::from_nanos(ns as u64).max(SHORTEST_PAUSE)
}

fn burst(words: [u64; 2]) -> io::Result<Burst> {
    let points = Watchpoints::open(&words, LIMIT)?;
    points.enable(LIMIT)?;
    let begin = now_ns();
    sleep(BURST);
    let end = now_ns();
    points.disable()?;
    Ok(Burst { words, time_ns: begin..end, touches: points.touches(), limit: LIMIT })
}

/// Returns whether threads make progress while a watchpoint covers what they access with exclusive loads and stores.
/// The trap between the two makes the store fail every time. CPUs with dedicated atomic instructions do not need
/// exclusives.
fn atomics_survive() -> bool {
    /// `HWCAP_ATOMICS` of arm64.
    const ATOMICS: usize = 1 << 8;
    cfg!(not(target_arch = "aarch64")) || linux_hwcap().0 & ATOMICS != 0
}

/// What to do on a machine where a watched access can kill the server: see [`may_kill`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashRisk {
    /// Not to watch.
    Refuse,
    /// To watch nevertheless.
    Accept,
}

impl From<bool> for CrashRisk {
    /// Converts the user's answer to whether the risk is accepted.
    fn from(accepted: bool) -> CrashRisk {
        match accepted {
            true => CrashRisk::Accept,
            false => CrashRisk::Refuse,
        }
    }
}

/// Returns whether a watched access can kill the process. On x86, hypervisors intercept debug exceptions and pass them
/// on to the virtual machine's kernel. Some lose the cause on the way (register DR6 is 0) if another interrupt comes at
/// the same time. The kernel takes such an exception for the instruction `int1`, and sends SIGTRAP. This was seen with
/// KVM, at 1.7 of a million accesses, which is too rare to test for.
fn may_kill() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        /// Bit 31 of ECX in leaf 1: reserved for hypervisors to say that they are there.
        const HYPERVISOR: u32 = 1 << 31;
        std::arch::x86_64::__cpuid(1).ecx & HYPERVISOR != 0
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Explains why the kernel refused to watch, and what to do.
fn refusal(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EBUSY) => {
            "no hardware watchpoint is free: a debugger, perf or another --watch uses them. Try again when that has ended".into()
        }
        None if error.kind() == io::ErrorKind::Unsupported => {
            "watchpoints of this machine or its hypervisor report no accesses".into()
        }
        Some(libc::EMFILE) => format!("each CPU needs two file descriptors: raise the limit (ulimit -n): {error}"),
        Some(libc::EOPNOTSUPP | libc::ENODEV | libc::ENOENT) => {
            format!("this machine or its hypervisor has no hardware watchpoints: {error}")
        }
        _ => format!("the kernel refused a hardware watchpoint: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_words() {
        assert_eq!(line_words(0x1044, 64), (0x1040..0x1080).step_by(8).collect::<Vec<_>>());
        assert_eq!(line_words(0x10c0, 128).first(), Some(&0x1080));
    }

    #[test]
    fn each_other_word_is_watched_several_times() {
        assert_eq!((bursts(64), bursts(128), bursts(8)), (7 * ROUNDS, 15 * ROUNDS, 0));
    }

    #[test]
    fn refusals_are_explained() {
        let refused = |code| refusal(&io::Error::from_raw_os_error(code));
        for (codes, words) in [
            (&[libc::ENOSPC, libc::EBUSY][..], "no hardware watchpoint is free"),
            (&[libc::EMFILE], "ulimit -n"),
            (&[libc::EOPNOTSUPP, libc::ENODEV, libc::ENOENT], "has no hardware watchpoints"),
            (&[libc::EACCES], "the kernel refused"),
        ] {
            codes.iter().for_each(|code| assert!(refused(*code).contains(words), "{}", refused(*code)));
        }
        assert!(refusal(&io::ErrorKind::Unsupported.into()).contains("report no accesses"));
        assert!(refusal(&io::ErrorKind::InvalidInput.into()).contains("the kernel refused"));
    }

    #[test]
    fn the_more_a_burst_took_the_longer_is_the_pause() {
        // 400 hits of 15 µs take 6 ms: 300 ms keep this within 1 % of two CPUs.
        assert_eq!(pause(6e6, 0.02), Duration::from_millis(300));
        assert_eq!(pause(6e3, 0.02), SHORTEST_PAUSE);
        assert_eq!(pause(6e6, 0.0), LONGEST_PAUSE);
    }
}
