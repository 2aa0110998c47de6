//! Which latches are waited for most: what changed between two snapshots, beside the totals.

use crate::measure::cpu::CpuTime;
use crate::measure::latch::{CallsiteWaits, Handoffs, LatchWaits, Locality, PageWaits, Reacquires};
use crate::measure::Snapshot;
use crate::model::{since, CpuClass, Cumulative, Histogram, Kind, Mode};
use std::collections::HashMap;
use std::hash::Hash;

/// The waits for one latch in one mode, in an interval and since attach.
#[derive(Clone, Debug, PartialEq)]
pub struct TopLatch {
    pub latch: String,
    pub kind: Kind,
    pub mode: Mode,
    /// Waits that ended in the interval, per second.
    pub waits_per_second: f64,
    /// Nanoseconds waited per second of the interval: 1e9 is one thread waiting all the time.
    pub wait_ns_per_second: f64,
    /// Mean wait of the interval, nanoseconds; `None` without a wait.
    pub mean_ns: Option<f64>,
    /// 99th percentile of the interval's waits, nanoseconds; `None` without a wait.
    pub p99_ns: Option<f64>,
    /// Share of the interval's wait time spent asleep, 0 to 1; `None` without a wait.
    pub sleep_share: Option<f64>,
    /// Nanoseconds waited since attach.
    pub total_ns: u64,
    /// Whether a part of it was not seen but scaled up.
    pub estimated: bool,
    pub callsite: Option<TopCallsite>,
}

/// The call site that waited longest for a latch in one mode.
#[derive(Clone, Debug, PartialEq)]
pub struct TopCallsite {
    pub callsite: String,
    /// Its share of the latch's wait time in this mode, 0 to 1.
    pub share: f64,
}

/// The waits for pages of one level of an index in an interval.
#[derive(Clone, Debug, PartialEq)]
pub struct TopPage {
    pub page: PageWaits,
    /// Nanoseconds waited per second of the interval.
    pub wait_ns_per_second: f64,
}

/// The waits for a mutex, in an interval, of threads that a condition variable had woken.
#[derive(Clone, Debug, PartialEq)]
pub struct TopReacquire {
    pub latch: String,
    pub waits_per_second: f64,
    /// Nanoseconds waited per second of the interval.
    pub wait_ns_per_second: f64,
}

/// What one of the clients' statements takes, on average of an interval.
#[derive(Clone, Debug, PartialEq)]
pub struct PerStatement {
    /// Statements per second.
    pub rate: f64,
    /// Nanoseconds of the server's CPU time, whatever it is for; `None` where it is not known.
    pub cpu_ns: Option<f64>,
    /// Nanoseconds waited for latches.
    pub wait_ns: f64,
    /// Nanoseconds of CPU time in atomics and barriers; `None` where CPU time is not sampled.
    pub ordering_ns: Option<f64>,
}

/// Two snapshots, the earlier of which is empty at first: then the interval is all time since attach.
pub struct Interval<'a> {
    now: &'a Snapshot,
    earlier: Option<&'a Snapshot>,
}

impl<'a> Interval<'a> {
    /// An earlier snapshot of another attachment, which the clock gives away, is none.
    pub fn new(now: &'a Snapshot, earlier: Option<&'a Snapshot>) -> Interval<'a> {
        Interval { now, earlier: earlier.filter(|earlier| earlier.elapsed < now.elapsed) }
    }

    /// Length of the interval in seconds, never zero.
    pub fn seconds(&self) -> f64 {
        let began = self.earlier.map(|earlier| earlier.elapsed).unwrap_or_default();
        self.now.elapsed.saturating_sub(began).as_secs_f64().max(1e-3)
    }

    /// Returns what these rows counted in the interval: one for each row of now, in the same order.
    fn counted<T, K>(&self, rows: impl Fn(&'a Snapshot) -> &'a [T], key: impl Fn(&'a T) -> K) -> Vec<T>
    where
        T: Cumulative + 'a,
        K: Eq + Hash,
    {
        since(rows(self.now), self.earlier.map_or(&[], &rows), key)
    }

    /// Returns the latches by wait time in the interval, then since attach. Condition variables are not contention and
    /// not among them.
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

    /// Pages by wait time in the interval, without those that nobody waited for in it.
    pub fn top_pages(&self) -> Vec<TopPage> {
        let counted = self.counted(|s| &s.latch.pages, PageWaits::place);
        let pages = self.now.latch.pages.iter().zip(&counted);
        let mut pages: Vec<_> = pages
            .map(|(page, counted)| TopPage {
                page: page.clone(),
                wait_ns_per_second: counted.wait_ns as f64 / self.seconds(),
            })
            .filter(|top| top.wait_ns_per_second > 0.0)
            .collect();
        pages.sort_by(|a, b| {
            b.wait_ns_per_second.total_cmp(&a.wait_ns_per_second).then_with(|| a.page.place().cmp(&b.page.place()))
        });
        pages
    }

    /// Mutexes that threads woken by a condition variable waited for, by wait time in the interval; those that it matters of, beside
    /// the wait for all latches.
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

    /// Shares of the server's CPU time in the interval by class, 0 to 1, the largest first; none where it is not sampled, or
    /// was not used.
    pub fn cpu_classes(&self) -> Vec<(CpuClass, f64)> {
        let sum = |rows: &[CpuTime], class| CpuTime::sum(rows.iter().filter(|row| row.class == class));
        let earlier = |class| self.earlier.map_or(0, |earlier| sum(&earlier.cpu.time, class));
        let times = CpuClass::ALL.map(|class| (class, sum(&self.now.cpu.time, class).saturating_sub(earlier(class))));
        let all: u64 = times.iter().map(|(_, ns)| ns).sum();
        let used = times.into_iter().filter(|(_, ns)| *ns > 0);
        let mut shares: Vec<_> = used.map(|(class, ns)| (class, ns as f64 / all as f64)).collect();
        shares.sort_by(|(a, share_a), (b, share_b)| share_b.total_cmp(share_a).then_with(|| a.cmp(b)));
        shares
    }

    /// What a statement took; `None` where none were counted in the interval.
    pub fn per_statement(&self) -> Option<PerStatement> {
        // What was not there yet when the interval began has begun since.
        let since = |of: fn(&Snapshot) -> Option<u64>| {
            let before = self.earlier.and_then(of).unwrap_or(0);
            of(self.now).map(|now| now.saturating_sub(before) as f64)
        };
        let statements = since(|s| s.statements).filter(|count| *count > 0.0)?;
        Some(PerStatement {
            rate: statements / self.seconds(),
            cpu_ns: since(|s| s.server_cpu_ns).map(|ns| ns / statements),
            wait_ns: since(waited_ns).unwrap_or_default() / statements,
            ordering_ns: since(ordering_ns).map(|ns| ns / statements),
        })
    }

    /// Of the wait time in the interval for latches that are known to come from somewhere, the share for those that came from
    /// another part of the machine, 0 to 1: of one latch, or of all. `None` where nothing is known to have been handed over.
    pub fn remote_share(&self, latch: Option<&str>) -> Option<f64> {
        let handoffs = self.handoffs().into_iter().filter(|row| latch.is_none_or(|latch| row.latch == latch));
        handoffs.collect::<HandoffTimes>().remote_share()
    }

    /// Handoffs in the interval, one entry per (latch, from, to).
    pub fn handoffs(&self) -> Vec<Handoffs> {
        self.counted(|s| &s.latch.handoffs, |row| (&row.latch, &row.from, &row.to))
    }

    /// Returns the row of `latch`, of whose waits `counted` are the ones in the interval, without its call site.
    fn top_latch(&self, latch: &LatchWaits, counted: &LatchWaits) -> TopLatch {
        let waits = &counted.waits;
        TopLatch {
            latch: latch.latch.clone(),
            kind: latch.kind,
            mode: latch.mode,
            waits_per_second: waits.count as f64 / self.seconds(),
            wait_ns_per_second: waits.sum_ns as f64 / self.seconds(),
            mean_ns: waits.mean_ns(),
            p99_ns: waits.quantile_ns(0.99),
            sleep_share: sleep_share(waits, counted.sleep_ns).filter(|_| self.now.latch.sleeps_seen),
            total_ns: latch.waits.sum_ns,
            estimated: counted.estimated_ns > 0,
            callsite: None,
        }
    }

    /// For each latch and mode the call site that waited longest in the interval, or since attach where none waited in it.
    fn top_callsites(&self) -> HashMap<(&'a str, Option<Mode>), TopCallsite> {
        let sites = &self.now.latch.callsites;
        let counted = self.counted(|s| &s.latch.callsites, |site| (&site.latch, site.mode, &site.callsite));
        let mut top = longest(sites.iter().map(|site| (site, site.wait_ns)));
        top.extend(longest(sites.iter().zip(&counted).map(|(site, counted)| (site, counted.wait_ns))));
        top
    }
}

/// Time waited by where the latch came from, nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HandoffTimes {
    /// From the part of the machine that the waiter had it in.
    pub local_ns: f64,
    /// From another.
    pub remote_ns: f64,
    /// From nobody who is known.
    pub unknown_ns: f64,
}

impl HandoffTimes {
    /// All of it.
    pub fn ns(&self) -> f64 {
        self.local_ns + self.remote_ns + self.unknown_ns
    }

    /// Of what is known to come from somewhere, what came from elsewhere, 0 to 1; `None` where nothing is.
    pub fn remote_share(&self) -> Option<f64> {
        let known = self.local_ns + self.remote_ns;
        (known > 0.0).then(|| self.remote_ns / known)
    }
}

impl FromIterator<Handoffs> for HandoffTimes {
    fn from_iter<I: IntoIterator<Item = Handoffs>>(rows: I) -> HandoffTimes {
        let mut times = HandoffTimes::default();
        for row in rows {
            let sum = match row.locality() {
                Some(Locality::Local) => &mut times.local_ns,
                Some(Locality::Remote) => &mut times.remote_ns,
                None => &mut times.unknown_ns,
            };
            *sum += row.wait_ns as f64;
        }
        times
    }
}

/// Time waited for latches; idle waits are not.
fn waited_ns(snapshot: &Snapshot) -> Option<u64> {
    let latches = snapshot.latch.waits.iter().filter(|latch| latch.kind != Kind::Cond);
    Some(latches.map(|latch| latch.waits.sum_ns).fold(0, u64::saturating_add))
}

/// CPU time in atomics and barriers, where CPU time is sampled.
fn ordering_ns(snapshot: &Snapshot) -> Option<u64> {
    let is_sampled = !snapshot.cpu.time.is_empty();
    is_sampled.then(|| snapshot.cpu.ordering.iter().map(|row| row.ns).fold(0, u64::saturating_add))
}

/// A sleep may be counted before the wait that it belongs to: the share is held at one.
fn sleep_share(waits: &Histogram, sleep_ns: u64) -> Option<f64> {
    (waits.sum_ns > 0).then(|| (sleep_ns as f64 / waits.sum_ns as f64).min(1.0))
}

/// The site with the most nanoseconds for each latch and mode that has any.
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
