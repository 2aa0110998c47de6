//! Waits for latches: the figures.

use strum::{EnumString, IntoStaticStr};

use crate::model::{self, cumulative, Histogram, Kind, Mode};

/// Everything counted about latch waits since attach.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// One entry per (latch, kind, mode).
    pub waits: Vec<LatchWaits>,
    /// Whether sleeping is distinguished from spinning here. If not, the latches' sleeps are unknown, not zero.
    pub sleeps_seen: bool,
    /// One entry per latch.
    pub reacquires: Vec<Reacquires>,
    /// One entry per (latch, mode, call site).
    pub callsites: Vec<CallsiteWaits>,
    /// One entry per (table, index, level).
    pub pages: Vec<PageWaits>,
    /// The parts of the machine between which handoffs are counted: `0` for the node of that number, `cpus 0-7`. Empty
    /// if they are not counted.
    pub domains: Vec<String>,
    /// One entry per (latch, from, to).
    pub handoffs: Vec<Handoffs>,
}

/// The contended waits for one latch name in one mode.
#[derive(Clone, Debug, PartialEq)]
pub struct LatchWaits {
    /// The performance_schema event name (`wait/synch/mutex/innodb/log_writer_mutex`), a stable name built
    /// the same way, or `unnamed:FUNCTION`.
    pub latch: String,
    pub kind: Kind,
    pub mode: Mode,
    /// Whole waits, from finding the latch taken to having it. Nanoseconds.
    pub waits: Histogram,
    /// The part of the waits' time spent asleep in the kernel, nanoseconds; the rest was spinning.
    pub sleep_ns: u64,
    /// How many times waiters went to sleep (one wait can sleep more than once, or not at all).
    pub sleeps: u64,
    /// CPU time that was sampled in waiters that were awake and outside of the kernel, nanoseconds.
    pub spin_cpu_ns: u64,
    /// Of the waits in functions that spin: those that ended without a sleep, and those that slept after all.
    pub spins_won: u64,
    pub spins_wasted: u64,
    /// The part of the waits' time that was not seen, because probes were off to keep the overhead budget, but is
    /// estimated from what was seen. Nanoseconds.
    pub estimated_ns: u64,
}

impl LatchWaits {
    /// Nanoseconds of the waits that were spent on the CPU.
    pub fn spin_ns(&self) -> u64 {
        self.waits.sum_ns.saturating_sub(self.sleep_ns)
    }

    /// Waits that began with spinning.
    pub fn spins(&self) -> u64 {
        self.spins_won.saturating_add(self.spins_wasted)
    }
}

/// The waits for one latch in one mode that began at one place in the server's code.
#[derive(Clone, Debug, PartialEq)]
pub struct CallsiteWaits {
    pub latch: String,
    /// `None`: not known, as in older recordings, or several.
    pub mode: Option<Mode>,
    /// `row0ins.cc:2345`, or the waiting function's name.
    pub callsite: String,
    pub wait_ns: u64,
    pub waits: u64,
}

impl CallsiteWaits {
    /// Whether waits for this latch in this mode may have begun here.
    pub fn is_of(&self, latch: &str, mode: Mode) -> bool {
        self.latch == latch && self.mode.is_none_or(|own| own == mode)
    }
}

/// The waits for one mutex of threads that a condition variable had woken, and that have to get the mutex back. They tell how long
/// wake-ups take rather than how hot the mutex is, and are not among its [`LatchWaits`].
#[derive(Clone, Debug, PartialEq)]
pub struct Reacquires {
    pub latch: String,
    pub waits: u64,
    pub wait_ns: u64,
}

/// The waits for latches of pages that are part of the same level of the same index.
#[derive(Clone, Debug, PartialEq)]
pub struct PageWaits {
    /// `db/table`, a tablespace's name, or [`PageWaits::OTHER`].
    pub table: String,
    /// The index's name; for a page of no index what it is, in brackets; empty in the row of all others.
    pub index: String,
    /// Leaf pages are of level 0; `None` for pages of no index.
    pub level: Option<u16>,
    pub waits: u64,
    pub wait_ns: u64,
}

impl PageWaits {
    /// In place of a table: pages of which nothing is known, and all that have no row of their own.
    pub const OTHER: &str = model::OTHER;

    /// The row of all others.
    pub fn other() -> PageWaits {
        PageWaits { table: PageWaits::OTHER.to_owned(), index: String::new(), level: None, waits: 0, wait_ns: 0 }
    }

    /// What tells it from other rows.
    pub fn location(&self) -> (&str, &str, Option<u16>) {
        (&self.table, &self.index, self.level)
    }
}

/// Contended waits for a latch, by where the thread ran that woke the waiter, and where the waiter ran when it had the latch.
#[derive(Clone, Debug, PartialEq)]
pub struct Handoffs {
    pub latch: String,
    /// `None`: the wait ended without being woken, or who did it is not known.
    pub from: Option<String>,
    /// `None`: on a CPU that is in no known domain.
    pub to: Option<String>,
    /// `None` where one of the domains is not known. In a recording's rows for many domains it is known, and they are not.
    pub locality: Option<Locality>,
    pub count: u64,
    /// Of those waits, nanoseconds.
    pub wait_ns: u64,
    /// Of those waits, how many began in another domain than `to`.
    pub migrations: u64,
}

/// Whether a latch came from another part of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, IntoStaticStr, EnumString)]
#[strum(serialize_all = "lowercase")]
pub enum Locality {
    Local,
    Remote,
}

impl Locality {
    /// The locality of a latch that came from one domain to another; `None` where one of them is not known.
    pub fn between(from: Option<&str>, to: Option<&str>) -> Option<Locality> {
        Some(if from? == to? { Locality::Local } else { Locality::Remote })
    }

    /// The locality that has this name.
    pub fn from_name(name: &str) -> Option<Locality> {
        name.parse().ok()
    }

    /// The value of the `locality` label.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

cumulative!(LatchWaits { sleep_ns, sleeps, spin_cpu_ns, spins_won, spins_wasted, estimated_ns } with waits);
cumulative!(CallsiteWaits { waits, wait_ns });
cumulative!(Reacquires { waits, wait_ns });
cumulative!(PageWaits { waits, wait_ns });
cumulative!(Handoffs { count, wait_ns, migrations });

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    use crate::model::{histograms, Cumulative};

    /// Waits for one latch whose figures are all below `limit`, consistent or not.
    fn latch_waits(limit: u64) -> impl Strategy<Value = LatchWaits> {
        (histograms(limit), proptest::array::uniform6(0..limit)).prop_map(|(waits, counters)| {
            // A difference does not know its maximum.
            let waits = Histogram { max_ns: 0, ..waits };
            let [sleep_ns, sleeps, spin_cpu_ns, spins_won, spins_wasted, estimated_ns] = counters;
            let (latch, kind, mode) = ("wait/synch/mutex/innodb/trx_mutex".to_owned(), Kind::Mutex, Mode::None);
            LatchWaits {
                latch,
                kind,
                mode,
                waits,
                sleep_ns,
                sleeps,
                spin_cpu_ns,
                spins_won,
                spins_wasted,
                estimated_ns,
            }
        })
    }

    /// Handoffs of one latch between two nodes. The same code merges the other rows of counters.
    fn handoffs(limit: u64) -> impl Strategy<Value = Handoffs> {
        proptest::array::uniform3(0..limit).prop_map(|[count, wait_ns, migrations]| Handoffs {
            latch: "wait/synch/mutex/innodb/trx_mutex".to_owned(),
            from: Some("0".to_owned()),
            to: Some("1".to_owned()),
            locality: Some(Locality::Remote),
            count,
            wait_ns,
            migrations,
        })
    }

    fn merged<T: Cumulative>(a: &T, b: &T) -> T {
        let mut sum = a.clone();
        sum.merge(b);
        sum
    }

    proptest! {
        #[test]
        fn merging_is_commutative_and_associative_and_never_overflows(
            [a, b, c] in proptest::array::uniform3(latch_waits(u64::MAX)),
            [x, y, z] in proptest::array::uniform3(handoffs(u64::MAX)),
        ) {
            prop_assert_eq!(merged(&a, &b), merged(&b, &a));
            prop_assert_eq!(merged(&merged(&a, &b), &c), merged(&a, &merged(&b, &c)));
            prop_assert_eq!(merged(&x, &y), merged(&y, &x));
            prop_assert_eq!(merged(&merged(&x, &y), &z), merged(&x, &merged(&y, &z)));
        }

        #[test]
        fn a_difference_undoes_a_merge(
            [a, b] in proptest::array::uniform2(latch_waits(1 << 62)),
            [x, y] in proptest::array::uniform2(handoffs(1 << 62)),
        ) {
            prop_assert_eq!(merged(&a, &b).since(&a), b);
            prop_assert_eq!(merged(&x, &y).since(&x), y);
        }

        #[test]
        fn a_difference_never_overflows([a, b] in proptest::array::uniform2(latch_waits(u64::MAX))) {
            let difference = a.since(&b);
            prop_assert!(difference.sleep_ns <= a.sleep_ns && difference.waits.sum_ns <= a.waits.sum_ns);
        }
    }
}
