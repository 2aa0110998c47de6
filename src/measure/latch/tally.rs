//! Turns what the programs counted into figures: under names, with what was missed added, and longest waits first.
//!
//! Nothing here reads the kernel or the server, so that every figure can be tested without them.

use std::collections::{HashMap, HashSet};

use super::keys::{is_reacquire, key_of, latch_key, mode, page_key, MapKey};
use super::ledger::Ledger;
use super::maps::Counts;
use super::missed::{Estimate, Estimates};
use super::taken_out::is_other;
use super::texts::{Sample, Shown};
use super::{
    Account, CallsiteWaits, Figures, Handoffs, LatchWaits, Locality, PageWaits, Reacquires, StackWaits, StatementWaits,
};
use crate::bpf::bytes_of;
use crate::bpf::latch::types;
use crate::host::Topology;
use crate::model::{merged, Histogram, Kind, Mode};
use crate::names::{LatchName, PageKey, PageName};

/// The CPU time of waiters for each latch, in nanoseconds.
pub(in crate::measure) type SpinTimes = HashMap<MapKey, u64>;

/// Names what was waited for.
pub(super) trait Names {
    /// Returns the name of a latch, of which `example` is the address of one; `None` if it is not known yet.
    fn latch(&mut self, key: &types::latch_key, example: u64) -> Option<LatchName>;

    /// Returns `file.cc:123` for a line of the file whose name is at `address`; for line 0, the function that contains
    /// `address`.
    fn callsite(&mut self, address: u64, line: u64) -> String;

    /// Returns what each page is part of; `None` if nothing is known of this server's pages.
    fn pages(&mut self, keys: &[PageKey]) -> Option<Vec<PageName>>;
}

/// What figures are made of.
pub(super) struct Tally<'a> {
    pub counts: Counts,
    pub missed: Estimates,
    pub spin_times: &'a SpinTimes,
    /// Whether each wait function spins before it sleeps.
    pub spins: &'a [bool],
    pub sleeps_seen: bool,
    /// Whether nothing is counted, because no probe is attached.
    pub sampled: bool,
    /// The parts of the machine between which handoffs are counted; `None` if they are not.
    pub topology: Option<&'a Topology>,
    /// What waiting threads were seen to execute.
    pub statements: &'a [Sample<MapKey>],
    /// Through which calls waiting threads were seen to have come.
    pub call_stacks: &'a [Sample<MapKey>],
}

/// A key of a map in comparable form.
type Bytes = Vec<u8>;
/// What identifies a row of waits.
type WaitsId = (String, Kind, Mode);
/// The row's latch, mode and place.
type CallsiteId = (String, Mode, String);
/// The row's table, index and level.
type PageId = (String, String, Option<u16>);
/// The row's latch, and the domains that the latch came from and went to.
type HandoffId = (String, u8, u8);
/// The row's latch, mode, digest, statement and account.
type StatementId = (String, Mode, String, String, Account);
/// The row's latch, mode and call stack.
type StackId = (String, Mode, String);

/// The names under which figures were shown until now.
#[derive(Default)]
pub(super) struct Ledgers {
    waits: Ledger<MapKey, WaitsId, LatchWaits>,
    reacquires: Ledger<MapKey, String, Reacquires>,
    callsites: Ledger<Bytes, CallsiteId, CallsiteWaits>,
    pages: Ledger<Bytes, PageId, PageWaits>,
    handoffs: Ledger<Bytes, HandoffId, Handoffs>,
    statements: Ledger<(MapKey, Shown), StatementId, StatementWaits>,
    call_stacks: Ledger<(MapKey, Shown), StackId, StackWaits>,
}

impl Tally<'_> {
    /// Returns the figures under the names that `names` gives. What `ledgers` has under another name stays there.
    pub fn figures(&self, names: &mut impl Names, ledgers: &mut Ledgers) -> Figures {
        let named: HashMap<MapKey, LatchName> = self
            .counts
            .latches
            .iter()
            .filter_map(|(key, waits)| Some((key_of(key), names.latch(key, waits.example)?)))
            .collect();
        Figures {
            waits: self.waits(&named, &mut ledgers.waits),
            sleeps_seen: self.sleeps_seen,
            sampled: self.sampled,
            reacquires: self.reacquires(&named, &mut ledgers.reacquires),
            callsites: self.callsites(&named, names, &mut ledgers.callsites),
            pages: self.pages(names, &mut ledgers.pages),
            domains: self.topology.map(|topology| topology.names.clone()).unwrap_or_default(),
            handoffs: self.handoffs(&named, &mut ledgers.handoffs),
            statements: self.statements(&named, &mut ledgers.statements),
            call_stacks: self.call_stacks(&named, &mut ledgers.call_stacks),
        }
    }

    /// Returns contended waits by latch and mode. Waits for a latch whose name is not known yet appear once it is.
    fn waits(
        &self,
        named: &HashMap<MapKey, LatchName>,
        ledger: &mut Ledger<MapKey, WaitsId, LatchWaits>,
    ) -> Vec<LatchWaits> {
        let contended = self.counts.latches.iter().filter(|(key, _)| !is_reacquire(key.primitive));
        let rows = contended.filter_map(|(key, waits)| {
            let id = key_of(key);
            let row = self.row_of_latch(named.get(&id)?, key, waits);
            Some(ledger.shares(id, (row.latch.clone(), row.kind, row.mode), row))
        });
        let mut latches: Vec<LatchWaits> = merged(rows.flatten()).into_values().collect();
        latches.sort_by(|a, b| b.waits.sum_ns.cmp(&a.waits.sum_ns).then_with(|| a.latch.cmp(&b.latch)));
        latches
    }

    fn row_of_latch(&self, name: &LatchName, key: &types::latch_key, waits: &types::waits) -> LatchWaits {
        let id = key_of(key);
        let missed = self.missed.latch(&id);
        let mut row = row_of_waits(name, mode_of(name, key.mode), waits, missed);
        row.spin_cpu_ns = self.spin_times.get(&id).copied().unwrap_or(0);
        if self.spins.get(usize::from(key.function)) == Some(&true) {
            add_spins(&mut row, waits, missed);
        }
        row
    }

    fn reacquires(
        &self,
        named: &HashMap<MapKey, LatchName>,
        ledger: &mut Ledger<MapKey, String, Reacquires>,
    ) -> Vec<Reacquires> {
        let woken = self.counts.latches.iter().filter(|(key, _)| is_reacquire(key.primitive));
        let rows = woken.filter_map(|(key, waits)| {
            let id = key_of(key);
            let row = row_of_reacquires(named.get(&id)?, waits, self.missed.latch(&id));
            Some(ledger.shares(id, row.latch.clone(), row))
        });
        let mut reacquires: Vec<Reacquires> = merged(rows.flatten()).into_values().collect();
        reacquires.sort_by(|a, b| b.wait_ns.cmp(&a.wait_ns).then_with(|| a.latch.cmp(&b.latch)));
        reacquires
    }

    /// Returns the name of a latch for which threads contend; `None` for waits after a condition variable.
    fn contended<'n>(&self, named: &'n HashMap<MapKey, LatchName>, key: &types::latch_key) -> Option<&'n LatchName> {
        named.get(&key_of(key)).filter(|_| !is_reacquire(key.primitive))
    }

    fn callsites(
        &self,
        named: &HashMap<MapKey, LatchName>,
        names: &mut impl Names,
        ledger: &mut Ledger<Bytes, CallsiteId, CallsiteWaits>,
    ) -> Vec<CallsiteWaits> {
        let rows = self.counts.callsites.iter().filter_map(|(key, waits)| {
            let name = self.contended(named, &key.latch)?;
            let callsite = names.callsite(key.address, key.line);
            let mode = mode_of(name, key.latch.mode);
            let missed = self.missed.callsite(key_of(&key.latch), key.address, key.line);
            let row = CallsiteWaits {
                latch: name.event.clone(),
                mode: Some(mode),
                callsite: callsite.clone(),
                wait_ns: waits.sum_ns + missed.sum_ns as u64,
                waits: waits.count + missed.count as u64,
            };
            Some(ledger.shares(bytes_of(key).to_vec(), (name.event.clone(), mode, callsite), row))
        });
        let mut callsites: Vec<CallsiteWaits> = merged(rows.flatten()).into_values().collect();
        callsites
            .sort_by(|a, b| b.wait_ns.cmp(&a.wait_ns).then_with(|| (&a.callsite, a.mode).cmp(&(&b.callsite, b.mode))));
        callsites
    }

    /// Returns waits for pages by the object that the pages are part of, longest first. Empty if no page was
    /// recognized, because then this server's pages differ from the catalog's description.
    fn pages(&self, names: &mut impl Names, ledger: &mut Ledger<Bytes, PageId, PageWaits>) -> Vec<PageWaits> {
        let there: HashSet<Bytes> = self.counts.pages.iter().map(|(key, _)| bytes_of(key).to_vec()).collect();
        ledger.retain(|key| there.contains(key));
        let (other, known): (Vec<_>, Vec<_>) = self.counts.pages.iter().copied().partition(|(key, _)| is_other(key));
        let keys: Vec<PageKey> = known.iter().map(|(key, _)| page_key(key)).collect();
        let Some(found) = names.pages(&keys).filter(|found| !found.is_empty()) else { return Vec::new() };
        let named = found.into_iter().map(Some).zip(known);
        let others = other.into_iter().filter(|(_, waits)| waits.count > 0).map(|row| (None, row));
        let rows = named.chain(others).flat_map(|(name, (key, waits))| {
            let missed = self.missed.page(&key);
            let mut row = name.map_or_else(PageWaits::other, |name| PageWaits {
                table: name.table,
                index: name.index,
                level: name.level,
                ..PageWaits::other()
            });
            row.waits = waits.count + missed.count as u64;
            row.wait_ns = waits.sum_ns + missed.sum_ns as u64;
            let id = bytes_of(&key).to_vec();
            if ledger.seen(&id).is_some_and(|seen| row.waits < seen.waits) {
                // What it had was moved to the others before it came back.
                ledger.forget(&id);
            }
            ledger.shares(id, (row.table.clone(), row.index.clone(), row.level), row)
        });
        let mut pages: Vec<PageWaits> = merged(rows).into_values().collect();
        pages.sort_by(|a, b| b.wait_ns.cmp(&a.wait_ns).then_with(|| a.location().cmp(&b.location())));
        pages
    }

    /// Returns handoffs by latch and parts of the machine; empty on a machine that has a single part.
    fn handoffs(
        &self,
        named: &HashMap<MapKey, LatchName>,
        ledger: &mut Ledger<Bytes, HandoffId, Handoffs>,
    ) -> Vec<Handoffs> {
        let Some(topology) = self.topology else { return Vec::new() };
        let rows = self.counts.handoffs.iter().filter_map(|(key, seen)| {
            // A thread that waits for a condition is not handed a latch.
            let name = self.contended(named, &key.latch).filter(|name| name.kind != Kind::Cond)?;
            let latch = key_of(&key.latch);
            let missed = self.missed.handoff(latch, key.from, key.to);
            let row = Handoffs {
                latch: name.event.clone(),
                from: topology.name(key.from).map(str::to_owned),
                to: topology.name(key.to).map(str::to_owned),
                locality: Locality::between(topology.name(key.from), topology.name(key.to)),
                count: seen.count + missed.count as u64,
                wait_ns: seen.sum_ns + missed.sum_ns as u64,
                migrations: seen.migrations + self.missed.migrations(latch, key.from, key.to) as u64,
            };
            Some(ledger.shares(bytes_of(key).to_vec(), (name.event.clone(), key.from, key.to), row))
        });
        merged(rows.flatten()).into_values().collect()
    }

    /// Returns how often threads were seen that waited, by latch, mode and statement, most often seen first.
    fn statements(
        &self,
        named: &HashMap<MapKey, LatchName>,
        ledger: &mut Ledger<(MapKey, Shown), StatementId, StatementWaits>,
    ) -> Vec<StatementWaits> {
        forget_others(ledger, self.statements);
        let rows = self.statements.iter().filter_map(|sample| {
            let (name, mode) = self.waited_for(named, sample)?;
            let (digest, statement) = sample.statement();
            let account = sample.account();
            let id = (name.event.clone(), mode, digest.clone(), statement.clone(), account.clone());
            let row = StatementWaits {
                latch: name.event.clone(),
                mode: Some(mode),
                digest,
                statement,
                account,
                samples: sample.samples,
            };
            Some(ledger.shares((sample.doing, sample.shown), id, row))
        });
        let mut statements: Vec<StatementWaits> = merged(rows.flatten()).into_values().collect();
        statements.sort_by(|a, b| b.samples.cmp(&a.samples).then_with(|| a.place().cmp(&b.place())));
        statements
    }

    /// Returns how often threads were seen that waited, by latch, mode and call stack, most often seen first.
    fn call_stacks(
        &self,
        named: &HashMap<MapKey, LatchName>,
        ledger: &mut Ledger<(MapKey, Shown), StackId, StackWaits>,
    ) -> Vec<StackWaits> {
        forget_others(ledger, self.call_stacks);
        let rows = self.call_stacks.iter().filter_map(|sample| {
            let (name, mode) = self.waited_for(named, sample)?;
            let calls = calls_of(sample);
            let id = (name.event.clone(), mode, calls.clone());
            let row = StackWaits { latch: name.event.clone(), mode: Some(mode), calls, samples: sample.samples };
            Some(ledger.shares((sample.doing, sample.shown), id, row))
        });
        let mut stacks: Vec<StackWaits> = merged(rows.flatten()).into_values().collect();
        stacks.sort_by(|a, b| b.samples.cmp(&a.samples).then_with(|| a.place().cmp(&b.place())));
        stacks
    }

    /// Returns the name and the mode of the latch for which a thread was seen to wait.
    fn waited_for<'n>(
        &self,
        named: &'n HashMap<MapKey, LatchName>,
        sample: &Sample<MapKey>,
    ) -> Option<(&'n LatchName, Mode)> {
        let key = latch_key(&sample.doing);
        let name = self.contended(named, &key)?;
        Some((name, mode_of(name, key.mode)))
    }
}

/// Forgets the names of all samples but these.
fn forget_others<N, T>(ledger: &mut Ledger<(MapKey, Shown), N, T>, samples: &[Sample<MapKey>]) {
    let there: HashSet<(MapKey, Shown)> = samples.iter().map(|sample| (sample.doing, sample.shown)).collect();
    ledger.retain(|key| there.contains(key));
}

/// Returns the calls through which a thread came to wait.
fn calls_of(sample: &Sample<MapKey>) -> String {
    match (&sample.text, sample.shown) {
        (Some(text), _) => text.shown.clone(),
        (None, Shown::Other | Shown::Text(_)) => StackWaits::OTHER.to_owned(),
        (None, Shown::Nothing | Shown::Unread) => StackWaits::UNREAD.to_owned(),
    }
}

/// Returns the mode under which waits for a latch of this name appear.
pub(super) fn mode_of(name: &LatchName, code: u8) -> Mode {
    // A lock word serves plain mutexes and the writer side of rw-locks alike; only its name distinguishes them.
    if name.kind == Kind::Mutex {
        Mode::None
    } else {
        mode(code)
    }
}

/// Adds the waits that ended while spinning, and those that slept afterwards.
fn add_spins(entry: &mut LatchWaits, waits: &types::waits, missed: Option<&Estimate>) {
    let (more_slept, more_won) = missed.map_or((0.0, 0.0), |m| (m.slept, m.won));
    entry.spins_wasted += waits.slept + more_slept as u64;
    entry.spins_won += waits.watched.saturating_sub(waits.slept) + more_won as u64;
}

fn row_of_waits(name: &LatchName, mode: Mode, waits: &types::waits, missed: Option<&Estimate>) -> LatchWaits {
    let mut row = LatchWaits {
        latch: name.event.clone(),
        kind: name.kind,
        mode,
        waits: Histogram::default(),
        sleep_ns: waits.sleep_ns,
        sleeps: waits.sleeps,
        spin_cpu_ns: 0,
        spins_won: 0,
        spins_wasted: 0,
        estimated_ns: 0,
        variance_us2: 0,
    };
    let mut buckets = waits.buckets;
    if let Some(missed) = missed {
        buckets.iter_mut().zip(&missed.buckets).for_each(|(bucket, more)| *bucket += *more as u64);
        row.estimated_ns = missed.sum_ns as u64;
        row.variance_us2 = (missed.variance / 1e6) as u64;
        row.sleep_ns += missed.sleep_ns as u64;
        row.sleeps += missed.sleeps as u64;
    }
    row.waits = Histogram {
        buckets,
        count: buckets.iter().sum(),
        sum_ns: waits.sum_ns + row.estimated_ns,
        max_ns: waits.max_ns,
    };
    row
}

fn row_of_reacquires(name: &LatchName, waits: &types::waits, missed: Option<&Estimate>) -> Reacquires {
    let more = missed.map_or((0.0, 0.0), |m| (m.buckets.iter().sum(), m.sum_ns));
    Reacquires {
        latch: name.event.clone(),
        waits: waits.buckets.iter().sum::<u64>() + more.0 as u64,
        wait_ns: waits.sum_ns + more.1 as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::super::missed::{Missed, Span};
    use super::*;

    const TRX: &str = "wait/synch/mutex/innodb/trx_mutex";
    const INDEX: &str = "wait/synch/sxlock/innodb/index_tree_rw_lock";
    const DONE: &str = "wait/synch/mutex/sql/MYSQL_BIN_LOG::LOCK_done";
    const COND: &str = "wait/synch/cond/sql/MYSQL_BIN_LOG::COND_done";
    const EVENTS: [&str; 4] = [TRX, INDEX, DONE, COND];
    const MUTEX: u8 = types::primitive::PRIMITIVE_MUTEX.0 as u8;
    const REACQUIRE: u8 = types::primitive::PRIMITIVE_REACQUIRE.0 as u8;

    /// Names latches by the number in their key: an index into `EVENTS`.
    struct Fake;

    impl Names for Fake {
        fn latch(&mut self, key: &types::latch_key, _example: u64) -> Option<LatchName> {
            LatchName::from_event(EVENTS.get(key.id as usize)?)
        }

        fn callsite(&mut self, address: u64, line: u64) -> String {
            format!("{address}:{line}")
        }

        fn pages(&mut self, keys: &[PageKey]) -> Option<Vec<PageName>> {
            let name = |key: &PageKey| match key {
                PageKey::Index { index, level, .. } => {
                    PageName { table: "db/t".to_owned(), index: index.to_string(), level: Some(*level) }
                }
                PageKey::Plain { kind, .. } => {
                    PageName { table: "undo".to_owned(), index: kind.to_string(), level: None }
                }
            };
            Some(keys.iter().map(name).collect())
        }
    }

    fn key(event: &str, mode: u8, primitive: u8) -> types::latch_key {
        let id = EVENTS.iter().position(|known| *known == event).unwrap_or(EVENTS.len()) as u64;
        types::latch_key { id, mode, primitive, ..Default::default() }
    }

    /// `count` waits, of which one took longest.
    fn waits(count: u64, sum_ns: u64) -> types::waits {
        let mut waits = types::waits {
            sum_ns,
            max_ns: sum_ns / 2,
            sleep_ns: sum_ns / 4,
            sleeps: count,
            watched: count,
            watched_ns: sum_ns,
            slept: count / 2,
            ..Default::default()
        };
        (waits.buckets[3], waits.buckets[9]) = (count - 1, 1);
        waits
    }

    fn figures(counts: &Counts, missed: &Estimates) -> Figures {
        figures_between(counts, missed, None)
    }

    fn figures_between(counts: &Counts, missed: &Estimates, topology: Option<&Topology>) -> Figures {
        let spin_times = SpinTimes::from([(key_of(&key(TRX, 0, MUTEX)), 77)]);
        let tally = Tally {
            counts: counts.clone(),
            missed: missed.clone(),
            spin_times: &spin_times,
            spins: &[true],
            sleeps_seen: true,
            sampled: false,
            topology,
            statements: &[],
            call_stacks: &[],
        };
        tally.figures(&mut Fake, &mut Ledgers::default())
    }

    #[test]
    fn samples_are_shown_under_the_latchs_name() {
        use crate::measure::latch::texts::Text;
        let app = || Account { user: "app".to_owned(), schema: "shop".to_owned() };
        let latch = |event, primitive| key(event, 0, primitive);
        let sample = |latch: &types::latch_key, shown, samples| {
            let text = matches!(shown, Shown::Text(_)).then(|| {
                std::sync::Arc::new(Text { hash: "d1".to_owned(), shown: "COMMIT".to_owned(), account: app() })
            });
            Sample { doing: key_of(latch), shown, text, samples }
        };
        let (trx, done) = (latch(TRX, MUTEX), latch(DONE, REACQUIRE));
        let statements = [
            sample(&trx, Shown::Nothing, 2),
            sample(&trx, Shown::Text(1), 7),
            sample(&done, Shown::Text(1), 9),
            sample(&latch("not named", MUTEX), Shown::Other, 9),
        ];
        let counts = Counts { latches: vec![(trx, waits(1, 10)), (done, waits(1, 10))], ..Counts::default() };
        let tally = Tally {
            counts,
            missed: Estimates::default(),
            spin_times: &SpinTimes::new(),
            spins: &[],
            sleeps_seen: true,
            sampled: false,
            topology: None,
            statements: &statements,
            call_stacks: &statements,
        };
        let Figures { statements, call_stacks, .. } = tally.figures(&mut Fake, &mut Ledgers::default());
        let shown: Vec<_> = statements.iter().map(|row| (row.place(), row.samples)).collect();
        let mode = Some(Mode::None);
        let expected = [
            ((TRX, mode, "d1", "COMMIT", &app()), 7),
            ((TRX, mode, "", StatementWaits::NOTHING, &Account::default()), 2),
        ];
        assert_eq!(shown, expected);
        let shown: Vec<_> = call_stacks.iter().map(|row| (row.place(), row.samples)).collect();
        assert_eq!(shown, [((TRX, mode, "COMMIT"), 7), ((TRX, mode, StackWaits::UNREAD), 2)]);
    }

    /// What was missed if three times as much was not seen as was, but for one wait that was settled before.
    fn three_times(before: &Counts, counts: &Counts) -> Estimates {
        let mut missed = Missed::default();
        missed.skip(before);
        missed.estimate(counts, &[Span { on: 1.0, off: 3.0 }], None);
        missed.estimates()
    }

    #[test]
    fn waits_have_their_name_mode_and_parts() {
        let counts = Counts {
            latches: vec![(key(INDEX, 3, 0), waits(4, 100)), (key(TRX, 3, MUTEX), waits(10, 1000))],
            ..Counts::default()
        };
        let all = figures(&counts, &Estimates::default());
        let [trx, index] = &all.waits[..] else { panic!("{all:?}") };
        assert_eq!((trx.latch.as_str(), trx.kind, trx.mode), (TRX, Kind::Mutex, Mode::None), "longest first");
        assert_eq!((index.latch.as_str(), index.kind, index.mode), (INDEX, Kind::Sxlock, Mode::X));
        assert_eq!((trx.waits.count, trx.waits.sum_ns, trx.waits.max_ns), (10, 1000, 500));
        assert_eq!((trx.waits.buckets[3], trx.waits.buckets[9]), (9, 1));
        assert_eq!((trx.sleep_ns, trx.sleeps, trx.spins_won, trx.spins_wasted), (250, 10, 5, 5));
        assert_eq!((trx.estimated_ns, trx.spin_cpu_ns), (0, 0), "its spin time is that of a key with another mode");
        assert!(all.sleeps_seen);
    }

    /// Instances and shards of a latch have keys of their own.
    #[test]
    fn latches_of_one_name_add_up() {
        let other = types::latch_key { line: 1, ..key(TRX, 0, MUTEX) };
        let counts = Counts {
            latches: vec![(key(TRX, 0, MUTEX), waits(10, 1000)), (other, waits(5, 4000))],
            ..Counts::default()
        };
        let all = figures(&counts, &Estimates::default());
        let [trx] = &all.waits[..] else { panic!("{all:?}") };
        assert_eq!((trx.waits.count, trx.waits.sum_ns, trx.waits.max_ns), (15, 5000, 2000));
        assert_eq!((trx.sleep_ns, trx.sleeps, trx.spins_won, trx.spins_wasted), (1250, 15, 8, 7));
        assert_eq!(trx.spin_cpu_ns, 77);
    }

    #[test]
    fn only_functions_that_spin_have_spins() {
        let plain = types::latch_key { function: 1, ..key(TRX, 0, MUTEX) };
        let counts = Counts { latches: vec![(plain, waits(10, 1000))], ..Counts::default() };
        assert_eq!(figures(&counts, &Estimates::default()).waits[0].spins(), 0);
    }

    #[test]
    fn a_latch_without_a_name_waits_for_it() {
        let unknown = key("", 0, MUTEX);
        let site = types::callsite_key { latch: unknown, ..Default::default() };
        let counts = Counts {
            latches: vec![(unknown, waits(10, 1000))],
            callsites: vec![(site, types::callsite_waits { count: 1, sum_ns: 1 })],
            ..Counts::default()
        };
        let all = figures(&counts, &Estimates::default());
        assert!(all.waits.is_empty() && all.callsites.is_empty(), "{all:?}");
    }

    #[test]
    fn what_was_missed_is_added() {
        let one = |n: u64| Counts { latches: vec![(key(TRX, 0, MUTEX), waits(n, 100 * n))], ..Counts::default() };
        let all = figures(&one(11), &three_times(&one(1), &one(11)));
        let [trx] = &all.waits[..] else { panic!("{all:?}") };
        // Three times the ten new ones, all of which are in the buckets that these were in.
        assert_eq!((trx.waits.count, trx.waits.sum_ns), (41, 1100 + 3000));
        assert_eq!((trx.waits.buckets[3], trx.waits.buckets[9]), (10 + 30, 1));
        assert_eq!(trx.estimated_ns, 3000);
        // Those that were not seen are taken to have slept as all those that were.
        assert_eq!((trx.sleep_ns, trx.sleeps), (275 + 750, 11 + 29), "rounded down");
        assert_eq!((trx.spins_wasted, trx.spins_won), (5 + 13, 6 + 16));
    }

    /// Locks of one name are summed, as are seen and estimated waits.
    #[test]
    fn wake_ups_of_one_mutex_add_up_and_are_no_contention() {
        let other = types::latch_key { line: 1, ..key(DONE, 0, REACQUIRE) };
        let of = |n: u64| Counts {
            latches: vec![(key(DONE, 0, REACQUIRE), waits(10, 1000)), (other, waits(n, 100 * n))],
            callsites: vec![(
                types::callsite_key { latch: other, ..Default::default() },
                types::callsite_waits { count: 1, sum_ns: 1 },
            )],
            ..Counts::default()
        };
        let all = figures(&of(5), &three_times(&of(2), &of(5)));
        let expected = Reacquires { latch: DONE.to_owned(), waits: 15 + 9, wait_ns: 1500 + 900 };
        assert_eq!(all.reacquires, [expected]);
        assert!(all.waits.is_empty() && all.callsites.is_empty(), "{all:?}");
    }

    #[test]
    fn call_sites_add_up_by_latch_mode_and_place() {
        let site = |mode, address| types::callsite_key { latch: key(INDEX, mode, 0), address, line: 9 };
        let of = |n: u64| Counts {
            latches: vec![(key(INDEX, 1, 0), waits(4, 100)), (key(INDEX, 3, 0), waits(4, 100))],
            callsites: [site(1, 5), site(3, 5), site(3, 6)]
                .map(|key| (key, types::callsite_waits { count: n, sum_ns: n * 10 * (key.address) }))
                .to_vec(),
            ..Counts::default()
        };
        let all = figures(&of(4), &three_times(&of(2), &of(4)));
        let rows: Vec<_> = all.callsites.iter().map(|s| (s.callsite.as_str(), s.mode, s.waits, s.wait_ns)).collect();
        // Four that were seen, and three times the two new ones.
        let expected =
            [("6:9", Some(Mode::X), 10, 600), ("5:9", Some(Mode::S), 10, 500), ("5:9", Some(Mode::X), 10, 500)];
        assert_eq!(rows, expected);
    }

    #[test]
    fn pages_add_up_by_what_they_are_part_of() {
        let page = |index: u64, level: u16, function: u32| types::page_key {
            index,
            level,
            r#type: 17,
            function,
            ..Default::default()
        };
        let other = types::page_key { r#type: types::page_type::PAGE_OTHER.0 as u16, ..Default::default() };
        let of = |n: u64| Counts {
            pages: [page(8, 0, 0), page(8, 0, 1), page(8, 1, 0), other]
                .map(|key| (key, types::page_waits { count: n, sum_ns: n * (100 + key.index + u64::from(key.level)) }))
                .to_vec(),
            ..Counts::default()
        };
        let all = figures(&of(4), &three_times(&of(2), &of(4)));
        let rows: Vec<_> = all.pages.iter().map(|p| (p.table.as_str(), p.index.as_str(), p.waits, p.wait_ns)).collect();
        // Two wait functions, of which only the first was off at times.
        let expected = [("db/t", "8", 14, 14 * 108), ("db/t", "8", 10, 10 * 109), (PageWaits::OTHER, "", 10, 1000)];
        assert_eq!(rows, expected);
        assert_eq!(all.pages.iter().map(|page| page.level).collect::<Vec<_>>(), [Some(0), Some(1), None]);
    }

    #[test]
    fn pages_that_nobody_waited_for_have_no_row() {
        let other = types::page_key { r#type: types::page_type::PAGE_OTHER.0 as u16, ..Default::default() };
        let plain = types::page_key { r#type: 2, ..Default::default() };
        let waited = types::page_waits { count: 1, sum_ns: 5 };
        let counts = |rows: &[_]| Counts { pages: rows.to_vec(), ..Counts::default() };
        let none = types::page_waits::default();
        assert_eq!(figures(&counts(&[(plain, waited), (other, none)]), &Estimates::default()).pages.len(), 1);
        assert_eq!(figures(&counts(&[(other, waited)]), &Estimates::default()).pages, []);
    }

    #[test]
    fn handoffs_go_from_one_part_of_the_machine_to_another() {
        let topology = Topology { names: vec!["0".to_owned(), "1".to_owned()], of_cpu: vec![1, 2] };
        let row = |event, from, to| types::handoff_key { latch: key(event, 0, MUTEX), from, to, ..Default::default() };
        let of = |n: u64| Counts {
            latches: vec![(key(TRX, 0, MUTEX), waits(4, 100)), (key(COND, 0, MUTEX), waits(4, 100))],
            handoffs: [row(TRX, 1, 2), row(TRX, 0, 2), row(COND, 1, 1)]
                .map(|key| (key, types::handoffs { count: n, sum_ns: 10 * n, migrations: n / 2 }))
                .to_vec(),
            ..Counts::default()
        };
        let missed = three_times(&of(2), &of(4));
        let all = figures_between(&of(4), &missed, Some(&topology));
        let row = |from: Option<&str>| Handoffs {
            latch: TRX.to_owned(),
            from: from.map(str::to_owned),
            to: Some("1".to_owned()),
            locality: from.map(|_| Locality::Remote),
            count: 10,
            wait_ns: 100,
            migrations: 2 + 3,
        };
        assert_eq!(all.handoffs, [row(None), row(Some("0"))]);
        assert_eq!(all.domains, ["0", "1"]);
        assert_eq!(figures(&of(4), &missed).handoffs, [], "on a machine with a single part");
    }

    /// Gives every latch and page one name, which changes.
    struct Renaming(&'static str);

    impl Names for Renaming {
        fn latch(&mut self, _key: &types::latch_key, _example: u64) -> Option<LatchName> {
            LatchName::from_event(self.0)
        }

        fn callsite(&mut self, address: u64, line: u64) -> String {
            Fake.callsite(address, line)
        }

        fn pages(&mut self, keys: &[PageKey]) -> Option<Vec<PageName>> {
            let name = PageName { table: self.0.to_owned(), index: "PRIMARY".to_owned(), level: Some(0) };
            Some(vec![name; keys.len()])
        }
    }

    /// Each figure is compared with what it was at the scrape before.
    #[test]
    fn no_figure_steps_back_when_a_name_changes() {
        let topology = Topology { names: vec!["0".to_owned()], of_cpu: vec![1] };
        let contended = key(TRX, 3, 0);
        let of = |n: u64| Counts {
            latches: vec![(contended, waits(n, 100 * n)), (key(DONE, 0, REACQUIRE), waits(n, 100 * n))],
            callsites: vec![(
                types::callsite_key { latch: contended, ..Default::default() },
                types::callsite_waits { count: n, sum_ns: 10 * n },
            )],
            pages: vec![(
                types::page_key { index: 8, r#type: 17, ..Default::default() },
                types::page_waits { count: n, sum_ns: 10 * n },
            )],
            handoffs: vec![(
                types::handoff_key { latch: contended, from: 1, to: 1, ..Default::default() },
                types::handoffs { count: n, sum_ns: 10 * n, migrations: n },
            )],
        };
        let mut missed = Missed::default();
        let mut ledgers = Ledgers::default();
        let mut before = HashMap::<String, u64>::new();
        for (n, name) in [(10, TRX), (20, INDEX), (30, INDEX), (40, TRX), (50, INDEX)] {
            missed.estimate(&of(n), &[Span { on: 1.0, off: 2.0 }], None);
            let tally = Tally {
                counts: of(n),
                missed: missed.estimates(),
                spin_times: &SpinTimes::new(),
                spins: &[true],
                sleeps_seen: true,
                sampled: false,
                topology: Some(&topology),
                statements: &[],
                call_stacks: &[],
            };
            let now = every_figure(&tally.figures(&mut Renaming(name), &mut ledgers));
            for (figure, value) in &before {
                assert!(
                    now.get(figure).is_some_and(|now| now >= value),
                    "{figure}: {value}, then {:?}",
                    now.get(figure)
                );
            }
            before = now;
        }
        assert_eq!(before.keys().filter(|figure| figure.contains(TRX)).count(), 5, "{before:?}");
        let waits: u64 = before.iter().filter(|(figure, _)| figure.starts_with("wait ")).map(|(_, waits)| waits).sum();
        let estimate = missed.estimates().latch(&key_of(&contended)).unwrap().buckets.iter().sum::<f64>() as u64;
        assert!(waits.abs_diff(50 + estimate) <= 2, "none is lost: {waits} of {}", 50 + estimate);
    }

    /// Returns a count for each row, under what identifies it.
    fn every_figure(all: &Figures) -> HashMap<String, u64> {
        let waits = all.waits.iter().map(|row| (format!("wait {} {:?}", row.latch, row.mode), row.waits.count));
        let woken = all.reacquires.iter().map(|row| (format!("reacquire {}", row.latch), row.waits));
        let sites = all.callsites.iter().map(|row| (format!("site {} {:?}", row.latch, row.mode), row.waits));
        let pages = all.pages.iter().map(|row| (format!("page {}", row.table), row.waits));
        let handoffs = all.handoffs.iter().map(|row| (format!("handoff {}", row.latch), row.count));
        waits.chain(woken).chain(sites).chain(pages).chain(handoffs).collect()
    }
}
