//! Ranks latches by wait time: computes what changed between two snapshots, along with the totals.

use strum::IntoEnumIterator;

use crate::measure::cpu::CpuTime;
use crate::measure::files::{FileOperation, FileWaits};
use crate::measure::fsync::Fsyncs;
use crate::measure::latch::{CallsiteWaits, Handoffs, LatchWaits, Locality, PageWaits, Reacquires};
use crate::measure::locks::{shares, LockBlocker, LockWaits, LockedObject};
use crate::measure::Snapshot;
use crate::model::{since, CpuClass, Cumulative, Histogram, Kind, Mode, OTHER};
use std::collections::BTreeMap;
use std::collections::HashMap;
use std::hash::Hash;

/// The waits for one latch in one mode, in an interval and since attach.
#[derive(Clone, Debug, PartialEq)]
pub struct TopLatch {
    /// The event name.
    pub latch: String,
    /// The kind of latch.
    pub kind: Kind,
    /// The mode in which threads waited for it.
    pub mode: Mode,
    /// Waits that ended in the interval, per second; `None` if waits are not counted.
    pub waits_per_second: Option<f64>,
    /// Nanoseconds waited per second of the interval. 1e9 means that one thread was waiting all the time.
    pub wait_ns_per_second: f64,
    /// Mean of the interval's waits, in nanoseconds; `None` without a wait.
    pub mean_ns: Option<f64>,
    /// 99th percentile of the interval's waits, in nanoseconds; `None` without a wait.
    pub p99_ns: Option<f64>,
    /// Share of the interval's wait time spent asleep, 0 to 1; `None` without a wait, or if sleeps cannot be seen.
    pub sleep_share: Option<f64>,
    /// Nanoseconds waited since attach.
    pub total_ns: u64,
    /// Whether part of the interval's wait time is estimated, because probes were off.
    pub is_estimated: bool,
    /// Half the width of the 95 % confidence interval of that wait time, as a part of it, if it is estimated.
    pub error: Option<f64>,
    /// The call site with the longest waits; `None` if none is known.
    pub callsite: Option<TopCallsite>,
}

/// The call site with the longest waits for a latch in one mode.
#[derive(Clone, Debug, PartialEq)]
pub struct TopCallsite {
    /// The waiting code: a source file and line, or a function.
    pub callsite: String,
    /// Its share of the latch's wait time in this mode, 0 to 1.
    pub share: f64,
}

/// The waits in an interval for the pages at one level of an index.
#[derive(Clone, Debug, PartialEq)]
pub struct TopPage {
    /// The table, index and level, with their waits since attach.
    pub page: PageWaits,
    /// Nanoseconds waited per second of the interval.
    pub wait_ns_per_second: f64,
}

/// The reacquires of a mutex, in an interval, by threads that a condition variable had woken.
#[derive(Clone, Debug, PartialEq)]
pub struct TopReacquire {
    /// The mutex's event name.
    pub latch: String,
    /// Waits that ended in the interval, per second.
    pub waits_per_second: f64,
    /// Nanoseconds waited per second of the interval.
    pub wait_ns_per_second: f64,
}

/// The waits for one kind of lock of the database.
#[derive(Clone, Debug, PartialEq)]
pub struct TopLock {
    /// The kind: `row lock`, `table metadata lock`.
    pub lock: String,
    /// Waits per second that ended in the interval.
    pub waits_per_second: f64,
    /// Nanoseconds waited per second, in these waits.
    pub wait_ns_per_second: f64,
    /// The threads that wait now.
    pub waiting: u64,
    /// How long the first of them has waited, in nanoseconds.
    pub longest_ns: u64,
    /// The object whose locks most threads were seen to wait for in the interval, with its share, 0 to 1; `None` if
    /// none were seen.
    pub mostly: Option<(LockedObject, f64)>,
    /// Who blocked most of the threads that were seen to wait for it, with their share, 0 to 1; `None` if nobody was
    /// seen.
    pub blocker: Option<(LockBlocker, f64)>,
}

/// What threads waited for in an interval: files of a kind, in one operation.
#[derive(Clone, Debug, PartialEq)]
pub struct TopFiles {
    /// The kind of files; see [`FileWaits::event`].
    pub event: String,
    /// What threads did.
    pub operation: FileOperation,
    /// Nanoseconds waited per second of the interval. From samples, unless `flushes` are known.
    pub wait_ns_per_second: f64,
    /// The file for which threads waited longest, with its share, 0 to 1; `None` if the kind says enough.
    pub mostly: Option<(String, f64)>,
    /// What is known of each flush; `None` for other operations, and if flushes are not timed.
    pub flushes: Option<Flushes>,
}

/// Flushes of files of a kind in an interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Flushes {
    /// Their number per second.
    pub per_second: f64,
    /// The time that 99 in 100 took at most, in nanoseconds.
    pub p99_ns: f64,
}

/// The mean cost of a client's statement in an interval.
#[derive(Clone, Debug, PartialEq)]
pub struct PerStatement {
    /// Statements per second.
    pub rate: f64,
    /// Nanoseconds of the server's CPU time, for any purpose; `None` if it is not known.
    pub cpu_ns: Option<f64>,
    /// Nanoseconds waited for latches.
    pub wait_ns: f64,
    /// Nanoseconds of CPU time in atomics and barriers; `None` if CPU time is not sampled.
    pub ordering_ns: Option<f64>,
}

/// What is known of a server that does next to nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Idleness {
    /// The CPUs that its own threads keep busy.
    pub cpus: f64,
    /// Whether its statements are counted, and there were none.
    pub has_no_statements: bool,
}

/// The interval between two snapshots, or since attach if there is no earlier one.
pub struct Interval<'a> {
    now: &'a Snapshot,
    earlier: Option<&'a Snapshot>,
}

impl<'a> Interval<'a> {
    /// Creates an interval. An earlier snapshot that is not older than `now` is from another attachment, and ignored.
    pub fn new(now: &'a Snapshot, earlier: Option<&'a Snapshot>) -> Interval<'a> {
        Interval { now, earlier: earlier.filter(|earlier| earlier.elapsed < now.elapsed) }
    }

    /// Returns the length of the interval in seconds, never zero.
    pub fn seconds(&self) -> f64 {
        let began = self.earlier.map(|earlier| earlier.elapsed).unwrap_or_default();
        self.now.elapsed.saturating_sub(began).as_secs_f64().max(1e-3)
    }

    /// Returns the snapshot that the interval begins with; `None` if it begins at attach.
    pub fn began(&self) -> Option<&'a Snapshot> {
        self.earlier
    }

    /// Returns what these rows counted in the interval: one for each row of now, in the same order.
    fn counted<T, K>(&self, rows: impl Fn(&'a Snapshot) -> &'a [T], key: impl Fn(&'a T) -> K) -> Vec<T>
    where
        T: Cumulative + 'a,
        K: Eq + Hash,
    {
        since(rows(self.now), self.earlier.map_or(&[], &rows), key)
    }

    /// Returns latches by wait time in the interval, then since attach. Waits on condition variables are not contention
    /// and not included.
    pub fn top_latches(&self) -> Vec<TopLatch> {
        let callsites = self.top_callsites();
        let counted = self.counted(|s| &s.latch.waits, |latch| (&latch.latch, latch.kind, latch.mode));
        let latches = self.now.latch.waits.iter().zip(&counted).filter(|(latch, _)| latch.kind != Kind::Cond);
        let mut rows: Vec<_> = latches
            .map(|(latch, counted)| TopLatch {
                callsite: callsites.get(&(latch.latch.as_str(), Some(latch.mode))).cloned(),
                ..self.top_latch(latch, counted)
            })
            .collect();
        rows.sort_by(|a, b| {
            let by_wait = b.wait_ns_per_second.total_cmp(&a.wait_ns_per_second);
            by_wait.then(b.total_ns.cmp(&a.total_ns)).then_with(|| (&a.latch, a.mode).cmp(&(&b.latch, b.mode)))
        });
        rows
    }

    /// Returns the waits in the interval for one of the latches in [`Interval::top_latches`]; `None` if the snapshot
    /// does not have it.
    pub fn waits_for(&self, latch: &TopLatch) -> Option<LatchWaits> {
        let find = |snapshot: &'a Snapshot| {
            let is_it = |row: &&LatchWaits| (row.kind, row.mode, &row.latch) == (latch.kind, latch.mode, &latch.latch);
            snapshot.latch.waits.iter().find(is_it)
        };
        let now = find(self.now)?;
        Some(self.earlier.and_then(find).map_or_else(|| now.clone(), |earlier| now.since(earlier)))
    }

    /// Returns the share of the interval's wait time for latches that is estimated, 0 to 1; `None` if nothing is.
    pub fn estimated_share(&self) -> Option<f64> {
        let mut counted = self.counted(|s| &s.latch.waits, |latch| (&latch.latch, latch.kind, latch.mode));
        counted.retain(|latch| latch.kind != Kind::Cond);
        let sum = |of: fn(&LatchWaits) -> u64| counted.iter().map(|latch| of(latch) as f64).sum::<f64>();
        let estimated = sum(|latch| latch.estimated_ns);
        (estimated > 0.0).then(|| (estimated / sum(|latch| latch.waits.sum_ns)).min(1.0))
    }

    /// Returns how many CPUs the server used in the interval, on average; `None` if that is not known.
    pub fn server_cpus(&self) -> Option<f64> {
        let before = self.earlier.map_or(Some(0), |earlier| earlier.server_cpu_ns)?;
        Some(self.now.server_cpu_ns?.saturating_sub(before) as f64 / 1e9 / self.seconds())
    }

    /// Returns pages by wait time in the interval, without those that no thread waited for.
    pub fn top_pages(&self) -> Vec<TopPage> {
        let counted = self.counted(|s| &s.latch.pages, PageWaits::location);
        let pages = self.now.latch.pages.iter().zip(&counted);
        let mut pages: Vec<_> = pages
            .map(|(page, counted)| TopPage {
                page: page.clone(),
                wait_ns_per_second: counted.wait_ns as f64 / self.seconds(),
            })
            .filter(|top| top.wait_ns_per_second > 0.0)
            .collect();
        pages.sort_by(|a, b| {
            b.wait_ns_per_second
                .total_cmp(&a.wait_ns_per_second)
                .then_with(|| a.page.location().cmp(&b.page.location()))
        });
        pages
    }

    /// Returns mutexes that threads woken by a condition variable reacquired, by wait time in the interval. Those with
    /// less than 5 % of the interval's wait time, for latches and reacquires together, are left out.
    pub fn top_reacquires(&self) -> Vec<TopReacquire> {
        const LEAST_SHARE: f64 = 0.05;
        let counted = self.counted(|s| &s.latch.reacquires, |row| &row.latch);
        let per_second = |n: u64| n as f64 / self.seconds();
        let top = |row: Reacquires| TopReacquire {
            waits_per_second: per_second(row.waits),
            wait_ns_per_second: per_second(row.wait_ns),
            latch: row.latch,
        };
        let mut rows: Vec<_> = counted.into_iter().map(top).collect();
        let of_latches: f64 = self.top_latches().iter().map(|latch| latch.wait_ns_per_second).sum();
        let all = of_latches + rows.iter().map(|row| row.wait_ns_per_second).sum::<f64>();
        rows.retain(|row| row.wait_ns_per_second > 0.0 && row.wait_ns_per_second >= LEAST_SHARE * all);
        rows.sort_by(|a, b| b.wait_ns_per_second.total_cmp(&a.wait_ns_per_second).then_with(|| a.latch.cmp(&b.latch)));
        rows
    }

    /// Returns whether waits for locks of the database are not measured at the moment because of the budget.
    pub fn locks_rest(&self) -> bool {
        self.now.locks.rests
    }

    /// Returns the locks of the database for which threads have waited in the interval, or wait, by wait time.
    pub fn locks(&self) -> Vec<TopLock> {
        if self.locks_rest() {
            return Vec::new();
        }
        let counted = self.counted(|s| &s.locks.waits, |row| &row.lock);
        let seen = self.counted(|s| &s.locks.objects, |row| (&row.lock, &row.object, &row.index));
        let mostly = |lock: &str| {
            let of_lock = seen.iter().filter(|row| row.lock == lock).cloned().collect();
            shares(of_lock).into_iter().next()
        };
        let blockers = self.counted(|s| &s.locks.blockers, LockBlocker::place);
        let blocker = |lock: &str| {
            let of_lock = blockers.iter().filter(|row| row.lock == lock).cloned().collect();
            shares(of_lock).into_iter().next()
        };
        let waiting = |lock: &str| self.now.locks.waiting.iter().find(|waiting| waiting.lock == lock);
        let row = |row: &LockWaits| TopLock {
            lock: row.lock.clone(),
            waits_per_second: row.waits.count as f64 / self.seconds(),
            wait_ns_per_second: row.waits.sum_ns as f64 / self.seconds(),
            waiting: waiting(&row.lock).map_or(0, |waiting| waiting.threads),
            longest_ns: waiting(&row.lock).map_or(0, |waiting| waiting.longest_ns),
            mostly: mostly(&row.lock),
            blocker: blocker(&row.lock),
        };
        let mut rows: Vec<TopLock> = counted.iter().map(row).collect();
        rows.retain(|row| row.waits_per_second > 0.0 || row.waiting > 0);
        rows.sort_by(|a, b| b.wait_ns_per_second.total_cmp(&a.wait_ns_per_second));
        rows
    }

    /// Returns the files for which threads have waited in the interval, by kind and operation, longest first.
    pub fn files(&self) -> Vec<TopFiles> {
        let mut kinds: BTreeMap<(String, FileOperation), Vec<FileWaits>> = BTreeMap::new();
        for row in self.counted(|s| &s.files.waits, FileWaits::place).into_iter().filter(|row| row.wait_ns > 0) {
            kinds.entry((row.event.clone(), row.operation)).or_default().push(row);
        }
        let top = |((event, operation), rows): ((String, FileOperation), Vec<FileWaits>)| {
            let all = rows.iter().map(|row| row.wait_ns).sum::<u64>() as f64;
            let longest =
                rows.into_iter().filter(|row| !row.file.is_empty() && row.file != OTHER).max_by_key(|row| row.wait_ns);
            let mostly = longest.map(|row| (row.file, row.wait_ns as f64 / all));
            TopFiles { event, operation, wait_ns_per_second: all / self.seconds(), mostly, flushes: None }
        };
        let mut rows: Vec<TopFiles> = kinds.into_iter().map(top).collect();
        self.counted(|s| &s.fsync.calls, |row| &row.event).iter().for_each(|timed| self.put_flushes(timed, &mut rows));
        rows.sort_by(|a, b| b.wait_ns_per_second.total_cmp(&a.wait_ns_per_second));
        rows
    }

    /// Puts the flushes of a kind of files, which were timed, in place of what samples showed of them.
    fn put_flushes(&self, timed: &Fsyncs, rows: &mut Vec<TopFiles>) {
        let Some(p99_ns) = timed.calls.quantile_ns(0.99) else { return };
        let flushes = Flushes { per_second: timed.calls.count as f64 / self.seconds(), p99_ns };
        let is_it = |row: &TopFiles| row.event == timed.event && row.operation == FileOperation::Sync;
        let at = rows.iter().position(is_it).map(|index| rows.swap_remove(index));
        rows.push(TopFiles {
            event: timed.event.clone(),
            operation: FileOperation::Sync,
            wait_ns_per_second: timed.calls.sum_ns as f64 / self.seconds(),
            mostly: at.and_then(|row| row.mostly),
            flushes: Some(flushes),
        });
    }

    /// Returns the shares of the server's CPU time in the interval by class, 0 to 1, the largest first. There are none
    /// if CPU time is not sampled, or none was used.
    pub fn cpu_classes(&self) -> Vec<(CpuClass, f64)> {
        let sum = |rows: &[CpuTime], class| CpuTime::sum(rows.iter().filter(|row| row.class == class));
        let earlier = |class| self.earlier.map_or(0, |earlier| sum(&earlier.cpu.time, class));
        let times: Vec<(CpuClass, u64)> = CpuClass::iter()
            .map(|class| (class, sum(&self.now.cpu.time, class).saturating_sub(earlier(class))))
            .collect();
        let all: u64 = times.iter().map(|(_, ns)| ns).sum();
        let used = times.into_iter().filter(|(_, ns)| *ns > 0);
        let mut shares: Vec<_> = used.map(|(class, ns)| (class, ns as f64 / all as f64)).collect();
        shares.sort_by(|(a, share_a), (b, share_b)| share_b.total_cmp(share_a).then_with(|| a.cmp(b)));
        shares
    }

    /// Returns what is known of the server if it was idle: nobody waited for long, it used little CPU time, and there
    /// were no statements, as far as they are counted. `None` if it was not, or if that cannot be told.
    pub fn idleness(&self) -> Option<Idleness> {
        /// The most that a server does by itself: CPUs kept busy, and threads waiting for latches.
        const CPUS: f64 = 0.05;
        const WAITING: f64 = 0.01;
        /// Over a shorter time, /proc's ticks are too coarse.
        const SECONDS: f64 = 1.0;
        let is_seen = self.now.up && !self.now.paused && self.seconds() >= SECONDS;
        let cpus = self.since(|s| s.server_cpu_ns).map(|ns| ns / 1e9 / self.seconds());
        let cpus = cpus.filter(|cpus| is_seen && *cpus < CPUS)?;
        let waited = self.since(waited_ns).unwrap_or_default() / 1e9 / self.seconds();
        let statements = self.since(|s| s.statements);
        let is_idle = waited < WAITING && statements.is_none_or(|count| count == 0.0);
        is_idle.then_some(Idleness { cpus, has_no_statements: statements.is_some() })
    }

    /// Returns how much a counter grew in the interval. One that the earlier snapshot lacks started at zero since.
    fn since(&self, of: fn(&Snapshot) -> Option<u64>) -> Option<f64> {
        let before = self.earlier.and_then(of).unwrap_or(0);
        of(self.now).map(|now| now.saturating_sub(before) as f64)
    }

    /// Returns the mean cost of a statement, or `None` if none were counted in the interval.
    pub fn per_statement(&self) -> Option<PerStatement> {
        let statements = self.since(|s| s.statements).filter(|count| *count > 0.0)?;
        Some(PerStatement {
            rate: statements / self.seconds(),
            cpu_ns: self.since(|s| s.server_cpu_ns).map(|ns| ns / statements),
            wait_ns: self.since(waited_ns).unwrap_or_default() / statements,
            ordering_ns: self.since(ordering_ns).map(|ns| ns / statements),
        })
    }

    /// Returns the share of remote handoffs, 0 to 1, in the interval's wait time for known handoffs, of one latch or of
    /// all. `None` if no handoff is known.
    pub fn remote_share(&self, latch: Option<&str>) -> Option<f64> {
        let handoffs = self.handoffs().into_iter().filter(|row| latch.is_none_or(|latch| row.latch == latch));
        handoffs.collect::<HandoffTimes>().remote_share()
    }

    /// Returns the handoffs in the interval, one entry per (latch, from, to, locality).
    pub fn handoffs(&self) -> Vec<Handoffs> {
        self.counted(|s| &s.latch.handoffs, |row| (&row.latch, &row.from, &row.to, row.locality))
    }

    /// Returns the row of `latch`, of whose waits `counted` are the ones in the interval, without its call site.
    fn top_latch(&self, latch: &LatchWaits, counted: &LatchWaits) -> TopLatch {
        let waits = &counted.waits;
        TopLatch {
            latch: latch.latch.clone(),
            kind: latch.kind,
            mode: latch.mode,
            waits_per_second: self.now.latch.counted().then(|| waits.count as f64 / self.seconds()),
            wait_ns_per_second: waits.sum_ns as f64 / self.seconds(),
            mean_ns: waits.mean_ns(),
            p99_ns: waits.quantile_ns(0.99),
            sleep_share: sleep_share(waits, counted.sleep_ns).filter(|_| self.now.latch.sleeps_seen),
            total_ns: latch.waits.sum_ns,
            is_estimated: counted.estimated_ns > 0,
            error: counted.error_ns().map(|ns| ns / waits.sum_ns.max(1) as f64),
            callsite: None,
        }
    }

    /// Returns for each latch and mode the call site with the longest waits in the interval, or since attach if there
    /// were none in the interval.
    fn top_callsites(&self) -> HashMap<(&'a str, Option<Mode>), TopCallsite> {
        let sites = &self.now.latch.callsites;
        let counted = self.counted(|s| &s.latch.callsites, |site| (&site.latch, site.mode, &site.callsite));
        let mut top = longest(sites.iter().map(|site| (site, site.wait_ns)));
        top.extend(longest(sites.iter().zip(&counted).map(|(site, counted)| (site, counted.wait_ns))));
        top
    }
}

/// Wait time in nanoseconds, by where the latch came from.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HandoffTimes {
    /// The latch came from the part of the machine where the waiter got it.
    pub local_ns: f64,
    /// The latch came from another part.
    pub remote_ns: f64,
    /// It is not known where the latch came from.
    pub unknown_ns: f64,
}

impl HandoffTimes {
    /// Returns the sum.
    pub fn ns(&self) -> f64 {
        self.local_ns + self.remote_ns + self.unknown_ns
    }

    /// Returns the remote share of known handoffs, 0 to 1, or `None` if no handoff is known.
    pub fn remote_share(&self) -> Option<f64> {
        let known = self.local_ns + self.remote_ns;
        (known > 0.0).then(|| self.remote_ns / known)
    }
}

impl FromIterator<Handoffs> for HandoffTimes {
    fn from_iter<I: IntoIterator<Item = Handoffs>>(rows: I) -> HandoffTimes {
        let mut times = HandoffTimes::default();
        for row in rows {
            let sum = match row.locality {
                Some(Locality::Local) => &mut times.local_ns,
                Some(Locality::Remote) => &mut times.remote_ns,
                None => &mut times.unknown_ns,
            };
            *sum += row.wait_ns as f64;
        }
        times
    }
}

/// Returns the time waited for latches, without idle waits on condition variables.
fn waited_ns(snapshot: &Snapshot) -> Option<u64> {
    let latches = snapshot.latch.waits.iter().filter(|latch| latch.kind != Kind::Cond);
    Some(latches.map(|latch| latch.waits.sum_ns).fold(0, u64::saturating_add))
}

/// Returns the CPU time in atomics and barriers, or `None` if CPU time is not sampled.
fn ordering_ns(snapshot: &Snapshot) -> Option<u64> {
    let is_sampled = !snapshot.cpu.time.is_empty();
    is_sampled.then(|| snapshot.cpu.ordering.iter().map(|row| row.ns).fold(0, u64::saturating_add))
}

/// Returns the share of the wait time spent asleep. It is at most 1, although a sleep may be counted before its wait.
fn sleep_share(waits: &Histogram, sleep_ns: u64) -> Option<f64> {
    (waits.sum_ns > 0).then(|| (sleep_ns as f64 / waits.sum_ns as f64).min(1.0))
}

/// Returns the site with the most wait time for each latch and mode that has any.
fn longest<'a>(sites: impl Iterator<Item = (&'a CallsiteWaits, u64)>) -> HashMap<(&'a str, Option<Mode>), TopCallsite> {
    let mut sums = HashMap::<_, (u64, &CallsiteWaits, u64)>::new();
    for (site, ns) in sites.filter(|&(_, ns)| ns > 0) {
        let (all, top, top_ns) = sums.entry((site.latch.as_str(), site.mode)).or_insert((0, site, ns));
        *all += ns;
        if ns > *top_ns {
            (*top, *top_ns) = (site, ns);
        }
    }
    let top = |(all, site, ns): (u64, &CallsiteWaits, u64)| TopCallsite {
        callsite: site.callsite.clone(),
        share: ns as f64 / all as f64,
    };
    sums.into_iter().map(|(key, sum)| (key, top(sum))).collect()
}
