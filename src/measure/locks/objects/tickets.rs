//! Who holds a metadata lock.
//!
//! A session has a ticket for each metadata lock that it holds or waits for, and a list of those that it holds. A
//! ticket points to its list's owner, which is a part of the session, and to the lock. Where differs between versions,
//! so it is found in the running server, from tickets of threads that wait. The lock itself does not list all tickets:
//! locks that do not conflict with each other are taken without a note in it.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use super::metadata::is_lock;
use super::{is_pointer, words, Object};
use crate::server::Memory;

/// How much of a session is searched for the owner of its tickets, in bytes, and how much of that for tickets.
const SESSION: u64 = 1 << 15;
const OWNER: usize = 160;
/// How much of a ticket is searched, in bytes.
const TICKET: usize = 96;
/// The most tickets of all sessions that are read at a time.
const MOST_TICKETS: usize = 20_000;
/// The most layouts that are counted. A server has few; a program that only claims to be one could show ever new ones.
const MOST_FOUND: usize = 64;
/// The most layouts by which tickets are read. The first ticket of a list may point to its session twice.
const MOST_LAYOUTS: usize = 4;
/// The share of a CPU that reading the tickets may take.
const CPUS: f64 = 0.004;

/// Where tickets are, and what they point to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Layout {
    /// The offset in a session of the owner of its tickets, in bytes.
    owner: u64,
    /// The offset in a ticket of the pointer to that, in words.
    to_owner: usize,
    /// The offset in a ticket of the pointer to the lock, in words.
    to_lock: usize,
}

/// Finds who holds metadata locks of one server.
#[derive(Debug, Default)]
pub(super) struct Tickets {
    /// How often each layout was found.
    found: HashMap<Layout, u32>,
    /// When tickets may be read again.
    next: Option<Instant>,
}

/// Which sessions hold each lock.
pub(super) type Held = HashMap<u64, Vec<u64>>;

impl Tickets {
    /// Returns the address of the metadata lock that a thread waits for, by its session, words of its stack, the name
    /// of the lock and its object; `None` if it is not found.
    pub fn lock(
        &mut self,
        memory: &Memory,
        session: u64,
        near: &[u64],
        (lock, object): (&str, Option<&Object>),
    ) -> Option<u64> {
        let is_it = |at: u64| is_lock(memory, at, lock).is_some_and(|found| found.as_ref() == object);
        let (words, to_lock) = near.iter().filter(|word| is_pointer(**word)).find_map(|ticket| {
            let words = words(&memory.array::<TICKET>(*ticket)?);
            let is_of_session = words.iter().any(|word| part_of(session, *word).is_some());
            let to_lock = (0..words.len()).find(|at| is_of_session && is_pointer(words[*at]) && is_it(words[*at]))?;
            Some((words, to_lock))
        })?;
        for (to_owner, word) in words.iter().enumerate() {
            let layout = part_of(session, *word).map(|owner| Layout { owner, to_owner, to_lock });
            layout.into_iter().for_each(|layout| self.add(layout));
        }
        Some(words[to_lock])
    }

    fn add(&mut self, layout: Layout) {
        let has_room = self.found.len() < MOST_FOUND || self.found.contains_key(&layout);
        if has_room {
            *self.found.entry(layout).or_default() += 1;
        }
    }

    /// Returns which of the sessions, which are listed for that, hold each of these locks; `None` if reading that again
    /// so soon would take too much, or if they cannot be listed.
    pub fn held(
        &mut self,
        memory: &Memory,
        locks: &HashSet<u64>,
        sessions: impl FnOnce() -> Option<Vec<u64>>,
    ) -> Option<Held> {
        let mut layouts: Vec<(&Layout, &u32)> = self.found.iter().collect();
        layouts.sort_by_key(|(layout, times)| (Reverse(**times), layout.owner, layout.to_owner));
        layouts.truncate(MOST_LAYOUTS);
        let begin = Instant::now();
        if layouts.is_empty() || self.next.is_some_and(|next| begin < next) {
            return None;
        }
        let sessions = sessions()?;
        let mut held = Held::new();
        layouts.into_iter().for_each(|(layout, _)| layout.add_held(memory, &sessions, locks, &mut held));
        held.values_mut().for_each(|sessions| {
            sessions.sort_unstable();
            sessions.dedup();
        });
        let now = Instant::now();
        let took = now.duration_since(begin).as_secs_f64();
        self.next = Some(now + Duration::from_secs_f64(took / CPUS));
        Some(held)
    }
}

impl Layout {
    fn add_held(self, memory: &Memory, sessions: &[u64], locks: &HashSet<u64>, held: &mut Held) {
        let mut seen: HashSet<u64> = HashSet::new();
        let owners: Vec<u64> = sessions.iter().map(|session| session.wrapping_add(self.owner)).collect();
        let lists = memory.read_many::<OWNER>(&owners);
        // Each with the owner to which it must point.
        let pointers = |owner: u64, bytes: &[u8]| words(bytes).into_iter().map(move |word| (word, owner));
        let lists = owners.iter().zip(&lists).filter_map(|(owner, list)| Some((*owner, list.as_ref()?)));
        let mut next: Vec<(u64, u64)> = lists.flat_map(|(owner, list)| pointers(owner, list)).collect();
        while !next.is_empty() && seen.len() < MOST_TICKETS {
            next.retain(|(ticket, owner)| is_pointer(*ticket) && ticket != owner && seen.insert(*ticket));
            let tickets = memory.read_many::<TICKET>(&next.iter().map(|(ticket, _)| *ticket).collect::<Vec<u64>>());
            let mut following = Vec::new();
            for ((_, owner), bytes) in next.iter().zip(tickets) {
                let Some(bytes) = bytes else { continue };
                let words = words(&bytes);
                if words[self.to_owner] != *owner {
                    continue;
                }
                if locks.contains(&words[self.to_lock]) {
                    held.entry(words[self.to_lock]).or_default().push(owner.wrapping_sub(self.owner));
                }
                following.extend(pointers(*owner, &bytes));
            }
            next = following;
        }
    }
}

/// Returns where in a session this address is, as an offset; `None` if it is elsewhere, or the session itself.
fn part_of(session: u64, address: u64) -> Option<u64> {
    address.checked_sub(session).filter(|offset| (1..SESSION).contains(offset))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER_AT: usize = 300;
    const NAMES: &[u8] = b"\x04shop\0orders\0";

    /// A session with tickets, each of which points to the next one.
    struct Session {
        session: Box<[u64; 400]>,
        /// They stay where they are, because there is room for all from the beginning.
        tickets: Vec<[u64; TICKET / 8]>,
    }

    fn at<T>(of: &T) -> u64 {
        std::ptr::from_ref(of) as u64
    }

    impl Session {
        fn new(locks: &[u64]) -> Session {
            let mut session = Box::new([0; 400]);
            let owner = at(&session[OWNER_AT]);
            let mut tickets: Vec<[u64; TICKET / 8]> = Vec::with_capacity(locks.len());
            for lock in locks {
                let mut ticket = [0; TICKET / 8];
                ticket[0] = tickets.last().map_or(0, at);
                (ticket[5], ticket[6]) = (owner, *lock);
                tickets.push(ticket);
            }
            session[OWNER_AT + 2] = tickets.last().map_or(0, at);
            session[OWNER_AT + 3] = owner;
            Session { session, tickets }
        }

        fn address(&self) -> u64 {
            at(&*self.session)
        }
    }

    /// A metadata lock, which begins with its key.
    fn lock() -> Box<[u64; 64]> {
        let mut lock = Box::new([0; 64]);
        lock[0] = NAMES.len() as u64 | 4 << 16;
        let bytes = NAMES.iter().enumerate();
        bytes.for_each(|(at, byte)| lock[1 + at / 8] |= u64::from(*byte) << (8 * (at % 8)));
        lock
    }

    #[test]
    fn who_holds_a_lock_is_found_in_the_lists_of_tickets() {
        let memory = Memory::new(std::process::id() as i32);
        let [wanted, other] = [lock(), lock()];
        let [wanted, other] = [at(&*wanted), at(&*other)];
        let waiting = Session::new(&[wanted]);
        let holding = [Session::new(&[wanted, other]), Session::new(&[other]), Session::new(&[other, wanted, other])];
        let none = Session::new(&[]);
        let mut tickets = Tickets::default();
        let [orders, items] = ["shop.orders", "shop.items"].map(Object::named);
        let locks = HashSet::from([wanted]);
        let sessions: Vec<u64> = holding.iter().chain([&none]).map(Session::address).collect();
        assert!(
            tickets.held(&memory, &locks, || Some(sessions.clone())).is_none(),
            "it is not known yet where they are"
        );
        let near = [at(&memory), 7, at(&waiting.tickets[0])];
        let mut find = |object| tickets.lock(&memory, waiting.address(), &near, ("table metadata lock", object));
        assert_eq!(find(Some(&items)), None);
        assert_eq!(find(Some(&orders)), Some(wanted));
        let held = tickets.held(&memory, &locks, || Some(sessions.clone())).unwrap();
        let mut expected = vec![holding[0].address(), holding[2].address()];
        expected.sort_unstable();
        assert_eq!(held, HashMap::from([(wanted, expected)]));
    }

    #[test]
    fn reading_tickets_is_spread_over_time() {
        let memory = Memory::new(std::process::id() as i32);
        let layout = Layout { owner: 8 * OWNER_AT as u64, to_owner: 5, to_lock: 6 };
        let mut tickets = Tickets { found: HashMap::from([(layout, 1)]), next: None };
        let sessions = vec![Session::new(&[1 << 20]).address(); 1000];
        assert!(tickets.held(&memory, &HashSet::new(), || Some(sessions.clone())).is_some());
        assert!(tickets.held(&memory, &HashSet::new(), || Some(sessions.clone())).is_none());
    }
}
