//! Which transaction blocks one that waits for a row lock.
//!
//! MySQL since 8.0.18 and MariaDB since 10.6 keep in a waiting transaction a pointer to the one that it waits for,
//! beside that to the lock. Where it is differs between versions, so it is found in the running server: it points to
//! another transaction that has a session, and is there only while the transaction waits. A neighbour in a list points
//! back.

use std::collections::{BTreeSet, HashMap};

use super::rows::RowWait;
use super::{is_pointer, words};
use crate::server::Memory;

/// How much of a transaction is searched, in bytes. In MariaDB, some of its locks are part of it.
const TRANSACTION: usize = 4096;
/// How far the pointer to the other transaction can be from that to the lock, in words.
const NEAR: usize = 8;
/// How often offsets must be found before they are relied on, and in which part of all looks.
const AGREEING: u32 = 3;
const MOST: f64 = 0.9;
/// After so many looks that have shown one offset, it is no longer searched for. From then on, a transaction that
/// blocks others need not have a session: one that is prepared has none.
const SETTLED: u32 = 20;
/// After so many looks that have shown nothing, there is nothing to find.
const MOST_VAIN: u32 = 100;
/// The most transactions in a chain of which each waits for the next.
const MOST_CHAIN: usize = 16;

/// Finds who blocks transactions of one server: where transactions have the pointers to their session, and to the
/// transaction that blocks them, as offsets in words.
#[derive(Debug, Default)]
pub(super) struct RowBlockers {
    session: Votes,
    blocking: Votes,
}

/// In how many looks each offset was possible.
#[derive(Debug, Default)]
struct Votes {
    looks: u32,
    offsets: HashMap<usize, u32>,
}

impl RowBlockers {
    /// Returns the transaction at the end of the chain that begins with one that waits and has this session; `None` if
    /// it is not known.
    pub fn last(&mut self, memory: &Memory, wait: &RowWait, session: u64) -> Option<u64> {
        if self.blocking.are_vain() {
            return None;
        }
        if self.blocking.looks < SETTLED || self.blocking.agreed().count() != 1 {
            self.learn(memory, wait, session);
        }
        // As long as several offsets are possible, they have to say the same.
        let last = |at| end_of_chain(wait.transaction, |one| next(memory, one, wait.wait_lock, at));
        let ends: Option<BTreeSet<u64>> = self.blocking.agreed().map(last).collect();
        let mut ends = ends?.into_iter();
        ends.next().filter(|_| ends.next().is_none())
    }

    /// Learns from a transaction that waits where transactions keep what; nothing if it cannot be read.
    fn learn(&mut self, memory: &Memory, wait: &RowWait, session: u64) -> Option<()> {
        let words = words(&memory.array::<TRANSACTION>(wait.transaction)?);
        self.session.add((0..words.len()).filter(|at| words[*at] == session));
        let class = memory.u64(session)?;
        let lock = wait.wait_lock as usize / 8;
        let near = (lock.saturating_sub(NEAR)..=lock + NEAR).filter(|at| *at < words.len());
        let may_block = |at: &usize| self.may_block(memory, wait, *at, words[*at], class) == Some(true);
        let possible: Vec<usize> = near.filter(may_block).collect();
        self.blocking.add(possible.into_iter());
        Some(())
    }

    /// Returns whether a transaction that waits may have at this offset the pointer to what blocks it: `other`. The
    /// class of sessions is the first word that all of them have.
    fn may_block(&self, memory: &Memory, wait: &RowWait, at: usize, other: u64, class: u64) -> Option<bool> {
        if !is_pointer(other) || other == wait.transaction {
            return Some(false);
        }
        let session = self.session(memory, other).filter(|session| is_pointer(*session))?;
        let has_session = memory.u64(session)? == class;
        let around = words(&memory.array::<24>(other.wrapping_add(8 * at as u64).wrapping_sub(8))?);
        let is_neighbour = around[0] == wait.transaction || around[2] == wait.transaction;
        let waits = memory.u64(other.wrapping_add(wait.wait_lock))? != 0;
        Some(has_session && !is_neighbour && waits == (around[1] != 0))
    }

    /// Returns the session of a transaction; 0 if it has none, `None` if it is not known.
    pub fn session(&self, memory: &Memory, transaction: u64) -> Option<u64> {
        memory.u64(transaction.wrapping_add(8 * self.session.first()? as u64))
    }
}

/// Returns what blocks a transaction, by its pointer at this offset; `None` if it does not wait.
fn next(memory: &Memory, transaction: u64, wait_lock: u64, at: usize) -> Option<u64> {
    let lock = memory.u64(transaction.wrapping_add(wait_lock))?;
    let blocking = memory.u64(transaction.wrapping_add(8 * at as u64))?;
    (lock != 0 && is_pointer(blocking)).then_some(blocking)
}

/// Returns the last of those that a chain leads to from here; `None` if it leads nowhere, or does not end.
fn end_of_chain(begin: u64, next: impl Fn(u64) -> Option<u64>) -> Option<u64> {
    let mut last = next(begin)?;
    for _ in 0..MOST_CHAIN {
        match next(last) {
            Some(other) => last = other,
            None => return Some(last),
        }
    }
    None
}

impl Votes {
    fn add(&mut self, possible: impl Iterator<Item = usize>) {
        self.looks += 1;
        possible.for_each(|at| *self.offsets.entry(at).or_default() += 1);
    }

    /// Returns the offsets that nearly all looks have shown.
    fn agreed(&self) -> impl Iterator<Item = usize> + '_ {
        let least = (MOST * f64::from(self.looks)).max(f64::from(AGREEING));
        self.offsets.iter().filter(move |(_, votes)| f64::from(**votes) >= least).map(|(at, _)| *at)
    }

    /// Returns the offset that most looks have shown.
    fn first(&self) -> Option<usize> {
        self.offsets.iter().max_by_key(|(at, votes)| (**votes, std::cmp::Reverse(**at))).map(|(at, _)| *at)
    }

    /// Returns whether there is nothing to find.
    fn are_vain(&self) -> bool {
        self.looks >= MOST_VAIN && self.agreed().next().is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::locks::objects::Object;

    const WAIT_LOCK: usize = 20;
    const BLOCKING: usize = 21;
    /// A list of all transactions, older and newer ones.
    const NEIGHBOURS: usize = 26;
    const SESSION: usize = 100;
    const CLASS: u64 = 0x77_0000;

    type Transaction = Box<[u64; TRANSACTION / 8]>;

    fn at<T>(of: &T) -> u64 {
        std::ptr::from_ref(of) as u64
    }

    /// Transactions with sessions, of which none waits, from old to new.
    struct Server {
        transactions: Vec<Transaction>,
        sessions: Vec<[u64; 4]>,
        lock: u64,
        memory: Memory,
    }

    impl Server {
        fn new(transactions: usize) -> Server {
            let sessions = vec![[CLASS, 0, 0, 0]; transactions];
            let mut all: Vec<Transaction> = sessions
                .iter()
                .map(|session| {
                    let mut transaction = Box::new([0; TRANSACTION / 8]);
                    transaction[SESSION] = at(session);
                    transaction
                })
                .collect();
            for newer in 1..transactions {
                all[newer][NEIGHBOURS] = at(&*all[newer - 1]);
                all[newer - 1][NEIGHBOURS + 1] = at(&*all[newer]);
            }
            Server { transactions: all, sessions, lock: 7, memory: Memory::new(std::process::id() as i32) }
        }

        fn wait(&mut self, waiting: usize, blocking: usize) {
            self.transactions[waiting][WAIT_LOCK] = at(&self.lock);
            self.transactions[waiting][BLOCKING] = at(&*self.transactions[blocking]);
        }

        /// Returns who is at the end of a transaction's chain, by number.
        fn last(&self, layout: &mut RowBlockers, waiting: usize) -> Option<usize> {
            let object = Object::named("shop.orders");
            let transaction = at(&*self.transactions[waiting]);
            let wait = RowWait { object, transaction, wait_lock: 8 * WAIT_LOCK as u64 };
            let last = layout.last(&self.memory, &wait, at(&self.sessions[waiting]))?;
            self.transactions.iter().position(|transaction| at(&**transaction) == last)
        }
    }

    #[test]
    fn who_blocks_is_found_through_those_that_wait_too() {
        let mut server = Server::new(5);
        server.wait(3, 1);
        server.wait(0, 3);
        let mut layout = RowBlockers::default();
        let found: Vec<Option<usize>> = [3, 0, 3, 0].map(|waiting| server.last(&mut layout, waiting)).to_vec();
        assert_eq!(found, [None, None, Some(1), Some(1)], "it takes some looks");
        assert_eq!(layout.session(&server.memory, at(&*server.transactions[1])), Some(at(&server.sessions[1])));
    }

    /// Older servers keep no pointer to what blocks a transaction, but the same lists.
    #[test]
    fn neighbours_do_not_block() {
        for waiting in 0..3 {
            let mut server = Server::new(3);
            server.transactions[waiting][WAIT_LOCK] = at(&server.lock);
            let mut layout = RowBlockers::default();
            let found: Vec<Option<usize>> = (0..MOST_VAIN).map(|_| server.last(&mut layout, waiting)).collect();
            assert!(found.iter().all(Option::is_none), "{waiting}: {found:?}");
            assert!(layout.blocking.are_vain());
        }
    }

    /// One that was prepared before the server's last start.
    #[test]
    fn a_transaction_without_a_session_can_block() {
        let mut server = Server::new(3);
        server.wait(1, 2);
        let mut layout = RowBlockers::default();
        (0..SETTLED).for_each(|_| _ = server.last(&mut layout, 1));
        server.transactions[2][SESSION] = 0;
        let found: Vec<Option<usize>> = (0..MOST_VAIN).map(|_| server.last(&mut layout, 1)).collect();
        assert!(found.iter().all(|last| *last == Some(2)), "{found:?}");
        assert_eq!(layout.session(&server.memory, at(&*server.transactions[2])), Some(0));
    }

    #[test]
    fn a_circle_has_no_end() {
        let mut server = Server::new(2);
        server.wait(0, 1);
        server.wait(1, 0);
        let mut layout = RowBlockers::default();
        let found: Vec<Option<usize>> = (0..10).map(|look| server.last(&mut layout, look % 2)).collect();
        assert!(found.iter().all(Option::is_none), "{found:?}");
    }

    #[test]
    fn a_transaction_that_waits_no_longer_is_blocked_by_nobody() {
        let mut server = Server::new(3);
        server.wait(1, 2);
        let mut layout = RowBlockers::default();
        let learned = (0..3).map(|_| server.last(&mut layout, 1)).last().flatten();
        server.transactions[1][WAIT_LOCK] = 0;
        assert_eq!((learned, server.last(&mut layout, 1)), (Some(2), None));
    }
}
