//! Who holds the latches that threads wait for, and what it does meanwhile.
//!
//! Latches that keep their owner are read once a look has shown who waits for them. The owner is one of the threads of
//! the same look, which says what it does: no other value is an owner. A thread may have taken the latch after the look
//! at it, so what it did counts only if it has not been scheduled in between.

mod call;
mod owner;
mod times;

use std::collections::hash_map::Entry;
use std::fs;
use std::sync::Arc;

use foldhash::{HashMap, HashMapExt};
use parking_lot::Mutex;

pub use self::times::HolderState;
pub(in crate::measure) use self::times::{Site, Times};

use self::owner::{Holder, Owners, Wanted};
use super::keys::{latch_key, MapKey, PTHREAD};
use super::looks::{Look, Scheduled, SeenThread};
use super::stacks::{Reader, Waiter};
use crate::bpf::latch::types;
use crate::host::clock::now_ns;
use crate::server::Target;

/// The most latches of which the owner is read in one look, and the most owners whose call sites are.
const MOST_LATCHES: usize = 32;
const MOST_SITES: usize = 8;

/// The longest time for which a reading of owners stands, in nanoseconds. Without this, one after a pause would stand
/// for all of it. On a server that stands still, looks are rare, and owners are read in a part of them only.
const LONGEST_NS: u64 = 5_000_000_000;

/// Finds out in each look who holds the latches that threads wait for.
pub(super) struct Holders {
    pid: i32,
    owners: Owners,
    times: Arc<Mutex<Times>>,
    /// When owners were read last, by `CLOCK_MONOTONIC`.
    last_ns: Option<u64>,
}

/// What was found of the holder of one latch.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Found {
    state: HolderState,
    site: Site,
    waits_for: Option<(MapKey, u64)>,
}

impl Found {
    const NOTHING: Found = Found { state: HolderState::Unknown, site: Site::NONE, waits_for: None };
}

/// Returns the numbers of the system calls in which holders of latches are worth a look at their stacks.
pub(super) fn io_calls() -> impl Iterator<Item = usize> {
    let most = types::limit::MAX_CALLS.0 as usize;
    call::io_numbers().map(|number| number as usize).filter(move |number| *number < most)
}

impl Holders {
    pub fn new(target: &Arc<Target>, times: Arc<Mutex<Times>>) -> Holders {
        Holders { pid: target.pid, owners: Owners::new(target), times, last_ns: None }
    }

    /// Forgets what was read of the server's memory, which may belong to others meanwhile.
    pub fn forget(&mut self) {
        self.owners.forget();
    }

    /// Adds the waiters of a look. `registers` has those of threads, by index among all.
    pub fn add(&mut self, look: &Look, registers: &[(usize, types::seen_thread)], reader: &mut Reader) {
        let now = now_ns(libc::CLOCK_MONOTONIC);
        let ns = now.saturating_sub(self.last_ns.replace(now).unwrap_or(now)).min(LONGEST_NS);
        let blocked = || look.waiters.iter().filter(|waiter| is_contended(&waiter.latch));
        if ns == 0 || blocked().next().is_none() {
            return;
        }
        let wanted = self.wanted(blocked());
        let threads: HashMap<u32, usize> =
            look.threads.iter().enumerate().map(|(index, thread)| (thread.scheduled.own_id, index)).collect();
        let holders = self.owners.find(&wanted, |id| threads.contains_key(&id));
        let mut sites = MOST_SITES;
        let mut found: HashMap<(MapKey, u64), Found> = HashMap::new();
        for (latch, holder) in wanted.iter().zip(holders) {
            let index = match holder {
                Some(Holder::Thread(id)) => threads.get(&id).copied(),
                Some(Holder::Nobody) => {
                    found.insert(place(latch), Found { state: HolderState::Nobody, ..Found::NOTHING });
                    None
                }
                None => None,
            };
            let Some(index) = index else { continue };
            let held = self.of_holder(look, index, latch);
            let id = look.threads[index].scheduled.own_id;
            tracing::trace!("{:#x} is held by thread {id}, which {}", latch.address, held.state.in_words());
            found.insert(place(latch), self.with_site(held, index, registers, reader, &mut sites));
        }
        let mut times = self.times.lock();
        for waiter in blocked() {
            let of = found.get(&(waiter.latch, waiter.example)).copied().unwrap_or(Found::NOTHING);
            times.add(waiter, of.state, of.site, of.waits_for, ns);
        }
    }

    /// Returns the latches whose owner can be read, each once.
    fn wanted<'a>(&self, blocked: impl Iterator<Item = &'a Waiter>) -> Vec<Wanted> {
        let mut wanted: HashMap<(MapKey, u64), Wanted> = HashMap::new();
        for waiter in blocked {
            let is_full = wanted.len() >= MOST_LATCHES;
            if let Entry::Vacant(entry) = wanted.entry((waiter.latch, waiter.example)) {
                let key = latch_key(&waiter.latch);
                if !is_full && self.owners.keeps(&key) {
                    entry.insert(Wanted { key, address: waiter.example });
                }
            }
        }
        wanted.into_values().collect()
    }

    /// Returns what the thread with this index does, which holds a latch.
    fn of_holder(&self, look: &Look, index: usize, latch: &Wanted) -> Found {
        let thread = &look.threads[index];
        let waits = look.waiters.iter().find(|waiter| waiter.thread == index && is_contended(&waiter.latch));
        // It waited for this latch at the look, and has it since.
        if waits.is_some_and(|waiter| waiter.example == latch.address) || !self.was_not_scheduled(thread) {
            return Found::NOTHING;
        }
        match (waits, state(thread)) {
            (Some(waiter), state) => Found {
                state: if state == HolderState::Asleep { HolderState::Latch } else { state },
                site: Site::of(waiter.callsite),
                waits_for: Some((waiter.latch, waiter.example)),
            },
            (None, state) => Found { state, ..Found::NOTHING },
        }
    }

    /// Returns whether a thread has got no CPU since the look.
    fn was_not_scheduled(&self, thread: &SeenThread) -> bool {
        let path = format!("/proc/{}/task/{}/schedstat", self.pid, thread.tid);
        let times = fs::read_to_string(path).ok();
        times.and_then(|text| times_on_cpu(&text)) == Some(thread.scheduled.times)
    }

    /// Adds where the holder is, if its registers were seen.
    fn with_site(
        &self,
        held: Found,
        index: usize,
        registers: &[(usize, types::seen_thread)],
        reader: &mut Reader,
        left: &mut usize,
    ) -> Found {
        let is_worth_it = held.site == Site::NONE && held.state.is_seen_off_cpu() && *left > 0;
        let at = registers.iter().find(|(thread, _)| *thread == index).filter(|_| is_worth_it);
        let Some((_, at)) = at else { return held };
        *left -= 1;
        Found { site: reader.function_of(at).map_or(Site::NONE, Site::at), ..held }
    }
}

fn place(latch: &Wanted) -> (MapKey, u64) {
    (super::keys::key_of(&latch.key), latch.address)
}

/// Returns whether a wait for a latch is contention, rather than one for an event or for a mutex after one.
pub(super) fn is_contended(key: &MapKey) -> bool {
    let key = latch_key(key);
    let is_lock = || {
        use types::primitive as primitives;
        let locks = [
            primitives::PRIMITIVE_MUTEX,
            primitives::PRIMITIVE_RWLOCK_READ,
            primitives::PRIMITIVE_RWLOCK_WRITE,
            primitives::PRIMITIVE_ALLOCATOR,
        ];
        locks.contains(&types::primitive(key.primitive.into()))
    };
    key.function != PTHREAD || is_lock()
}

/// Returns how often a thread has got a CPU, from the text in `schedstat`: its last number. Only the low bits count.
fn times_on_cpu(text: &str) -> Option<u32> {
    let times: u64 = text.split_ascii_whitespace().nth(2)?.parse().ok()?;
    Some(times as u32)
}

/// Returns what a thread does, whose registers may be unknown.
fn state(thread: &SeenThread) -> HolderState {
    const KIND: u32 = types::doing_bit::DOING_KIND.0;
    /// The kinds of what a thread does (`bpf/sleep.h`).
    const WORD: u64 = 0;
    const SYSTEM_CALL: u64 = 2;
    match (thread.state, thread.doing >> KIND & 3) {
        (types::thread_state::THREAD_ON_CPU, _) => HolderState::Running,
        // The look itself took its CPU away.
        (types::thread_state::THREAD_WITHOUT_CPU, _) if thread.scheduled.ran_here => HolderState::Running,
        (types::thread_state::THREAD_WITHOUT_CPU, _) => HolderState::Preempted,
        (_, WORD) => HolderState::Asleep,
        (_, SYSTEM_CALL) => call::state_in((thread.doing & u64::from(u32::MAX)) as u32),
        // It touched memory that has to be read first.
        (types::thread_state::THREAD_BLOCKED, _) => HolderState::Io,
        _ => HolderState::Call,
    }
}

impl Scheduled {
    /// Takes apart what the programs write.
    pub(super) fn of(bits: u64) -> Scheduled {
        let id = types::scheduled_bit::SCHEDULED_ID.0;
        let here = types::scheduled_bit::SCHEDULED_HERE.0;
        let file = types::scheduled_bit::SCHEDULED_FILE.0;
        Scheduled {
            times: bits as u32,
            own_id: (bits & !(1 << here | 1 << file)).checked_shr(id).unwrap_or_default() as u32,
            ran_here: bits >> here & 1 != 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::thread_state as states;

    fn thread(state: states, doing: u64) -> SeenThread {
        SeenThread { tid: 7, state, pointer: 0, doing, seen: None, scheduled: Scheduled::default() }
    }

    #[test]
    fn what_a_holder_does_is_what_the_look_says() {
        let call = |number: libc::c_long| 2 << 60 | number as u64;
        let code = 3 << 60 | 0x1234;
        let here = Scheduled { ran_here: true, ..Scheduled::default() };
        let cases = [
            (thread(states::THREAD_ON_CPU, 1 << 60), HolderState::Running),
            (thread(states::THREAD_WITHOUT_CPU, code), HolderState::Preempted),
            (thread(states::THREAD_WITHOUT_CPU, call(libc::SYS_fsync)), HolderState::Preempted),
            (SeenThread { scheduled: here, ..thread(states::THREAD_WITHOUT_CPU, code) }, HolderState::Running),
            (thread(states::THREAD_BLOCKED, call(libc::SYS_fsync)), HolderState::Io),
            (thread(states::THREAD_ASLEEP, call(libc::SYS_recvfrom)), HolderState::Network),
            (thread(states::THREAD_ASLEEP, 0x7f00_0000_1234), HolderState::Asleep),
            (thread(states::THREAD_ASLEEP, call(libc::SYS_clock_nanosleep)), HolderState::Call),
            (thread(states::THREAD_BLOCKED, code), HolderState::Io),
        ];
        for (thread, expected) in cases {
            assert_eq!(state(&thread), expected, "{thread:?}");
        }
    }

    #[test]
    fn how_often_a_thread_ran_is_compared_in_32_bits() {
        assert_eq!(times_on_cpu("12345 678 4294967301\n"), Some(5));
        assert_eq!(times_on_cpu("0 0"), None);
        let bits = 5 | 4_194_303 << 32 | 1 << 62 | 1 << 63;
        assert_eq!(Scheduled::of(bits), Scheduled { times: 5, own_id: 4_194_303, ran_here: true });
    }

    #[test]
    fn waits_for_events_block_nobody() {
        use types::primitive as primitives;
        let of = |function, primitive: primitives| {
            let key = types::latch_key { function, primitive: primitive.0 as u8, ..types::latch_key::default() };
            is_contended(&super::super::keys::key_of(&key))
        };
        assert!(of(3, primitives::PRIMITIVE_NONE) && of(PTHREAD, primitives::PRIMITIVE_MUTEX));
        assert!(!of(PTHREAD, primitives::PRIMITIVE_COND) && !of(PTHREAD, primitives::PRIMITIVE_REACQUIRE));
    }
}
