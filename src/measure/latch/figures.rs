//! The figures of waits for latches.

use std::fmt::{self, Display, Formatter};

use serde::{Deserialize, Serialize};
use strum::{EnumString, IntoStaticStr};

use crate::model::{self, cumulative, Histogram, Kind, Mode};

/// The figures of waits for latches, counted since attach.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// Contended waits and idle waits on condition variables, one entry per (latch, kind, mode).
    pub waits: Vec<LatchWaits>,
    /// Whether sleeping is distinguished from spinning here. If not, the latches' sleeps are unknown, not zero.
    pub sleeps_seen: bool,
    /// Whether the waits are read from the threads' stacks, because no probe is attached. How many there were, and how
    /// long each, is then not known.
    pub sampled: bool,
    /// Waits to reacquire a mutex after a wake-up, one entry per latch.
    pub reacquires: Vec<Reacquires>,
    /// Contended waits by the waiting code, one entry per (latch, mode, call site).
    pub callsites: Vec<CallsiteWaits>,
    /// Waits for page latches, one entry per (table, index, level).
    pub pages: Vec<PageWaits>,
    /// The parts of the machine between which handoffs are counted: `0` for the node of that number, `cpus 0-7`. Empty
    /// if they are not counted.
    pub domains: Vec<String>,
    /// Contended waits by where the latch came from, one entry per (latch, from, to).
    pub handoffs: Vec<Handoffs>,
    /// What waiting threads executed, one entry per (latch, mode, statement). Empty if statements are not read.
    pub statements: Vec<StatementWaits>,
    /// How often threads were seen that waited, by latch, mode and call stack. Empty if call stacks were not read.
    pub call_stacks: Vec<StackWaits>,
}

impl Figures {
    /// Returns whether waits are counted.
    pub fn counted(&self) -> bool {
        !self.sampled
    }
}

/// 95 % of a normal distribution lie within this many standard errors of its mean.
pub(in crate::measure) const NORMAL_95: f64 = 1.96;

/// Returns half the width of the 95 % confidence interval of a time, in nanoseconds. Its variance is given, in square
/// microseconds; `None` if that is zero, which means that nothing is estimated or that the variance is not known.
pub fn error_ns(variance_us2: u64) -> Option<f64> {
    (variance_us2 > 0).then(|| NORMAL_95 * (variance_us2 as f64).sqrt() * 1e3)
}

/// The contended waits for one latch name in one mode.
#[derive(Clone, Debug, PartialEq)]
pub struct LatchWaits {
    /// The performance_schema event name (`wait/synch/mutex/innodb/log_writer_mutex`), a stable name built in the same
    /// way, or `unnamed:FUNCTION`.
    pub latch: String,
    /// The kind of latch.
    pub kind: Kind,
    /// The mode in which threads waited for it.
    pub mode: Mode,
    /// Whole waits, from finding the latch taken to acquiring it.
    pub waits: Histogram,
    /// The part of the wait time spent asleep in the kernel, in nanoseconds; the rest was mostly spinning.
    pub sleep_ns: u64,
    /// How often waiters went to sleep. One wait can contain several sleeps, or none.
    pub sleeps: u64,
    /// Sampled CPU time of waiters outside of the kernel, in nanoseconds.
    pub spin_cpu_ns: u64,
    /// Waits that began with spinning and ended without a sleep.
    pub spins_won: u64,
    /// Waits that began with spinning and slept after all.
    pub spins_wasted: u64,
    /// The part of the wait time, in nanoseconds, that is estimated because probes were off to stay within the overhead
    /// budget.
    pub estimated_ns: u64,
    /// The square of the standard error of the wait time, in square microseconds. The errors of different times and
    /// latches are independent, so their squares add up.
    pub variance_us2: u64,
}

impl LatchWaits {
    /// Returns the part of the wait time spent awake, in nanoseconds.
    pub fn spin_ns(&self) -> u64 {
        self.waits.sum_ns.saturating_sub(self.sleep_ns)
    }

    /// Returns half the width of the 95 % confidence interval of the wait time, in nanoseconds; `None` if nothing is
    /// estimated, and in recordings that lack it.
    pub fn error_ns(&self) -> Option<f64> {
        error_ns(self.variance_us2)
    }

    /// Returns the number of waits that began with spinning.
    pub fn spins(&self) -> u64 {
        self.spins_won.saturating_add(self.spins_wasted)
    }
}

/// The waits for one latch in one mode that began at one place in the server's code.
#[derive(Clone, Debug, PartialEq)]
pub struct CallsiteWaits {
    /// The event name.
    pub latch: String,
    /// The mode; `None` if it is not known, as in older recordings, or if this stands for several.
    pub mode: Option<Mode>,
    /// The place: `row0ins.cc:2345`, or the waiting function's name.
    pub callsite: String,
    /// Time waited, in nanoseconds.
    pub wait_ns: u64,
    /// The number of waits.
    pub waits: u64,
}

impl CallsiteWaits {
    /// Returns whether waits for this latch in this mode may have begun here.
    pub fn is_of(&self, latch: &str, mode: Mode) -> bool {
        self.latch == latch && self.mode.is_none_or(|own| own == mode)
    }
}

/// The waits of threads that a condition variable woke to reacquire its mutex. They show how long wake-ups take rather
/// than how hot the mutex is, and are not among its [`LatchWaits`].
#[derive(Clone, Debug, PartialEq)]
pub struct Reacquires {
    /// The mutex's event name.
    pub latch: String,
    /// The number of waits.
    pub waits: u64,
    /// Time waited, in nanoseconds.
    pub wait_ns: u64,
}

/// The waits for latches of pages that are part of the same level of the same index.
#[derive(Clone, Debug, PartialEq)]
pub struct PageWaits {
    /// The table as `db/table`, the tablespace's name, or [`PageWaits::OTHER`].
    pub table: String,
    /// The index's name; for a page without an index, its purpose in parentheses; empty in the row for all others.
    pub index: String,
    /// The level, 0 for leaf pages; `None` for pages without an index.
    pub level: Option<u16>,
    /// The number of waits.
    pub waits: u64,
    /// Time waited, in nanoseconds.
    pub wait_ns: u64,
}

impl PageWaits {
    /// Stands in place of a table for pages of which nothing is known, and for all that have no row of their own.
    pub const OTHER: &str = model::OTHER;

    /// Returns an empty row for all others.
    pub fn other() -> PageWaits {
        PageWaits { table: PageWaits::OTHER.to_owned(), index: String::new(), level: None, waits: 0, wait_ns: 0 }
    }

    /// Returns the table and the index: `sbtest/sbtest1.k_1`.
    pub fn place(&self) -> String {
        let dot = if self.index.is_empty() { "" } else { "." };
        format!("{}{dot}{}", self.table, self.index)
    }

    /// Returns what distinguishes the row from others: table, index and level.
    pub fn location(&self) -> (&str, &str, Option<u16>) {
        (&self.table, &self.index, self.level)
    }
}

/// Contended waits for a latch, by the part of the machine where the thread ran that woke the waiter, and the part
/// where the waiter ran when it had acquired the latch.
#[derive(Clone, Debug, PartialEq)]
pub struct Handoffs {
    /// The event name.
    pub latch: String,
    /// The part of the machine that the latch came from; `None` if nothing woke the waiter, or it is not known what
    /// did.
    pub from: Option<String>,
    /// The part of the machine that the latch went to; `None` if its CPU is in no known part.
    pub to: Option<String>,
    /// Whether the latch came from another part; `None` if that is not known. It is known in a recording's rows for
    /// many parts, although `from` and `to` are not.
    pub locality: Option<Locality>,
    /// The number of waits.
    pub count: u64,
    /// Time waited, in nanoseconds.
    pub wait_ns: u64,
    /// The number of these waits that began in another part than `to`.
    pub migrations: u64,
}

/// How often threads were seen that waited for a latch in one mode and executed a statement. Its share of the latch's
/// samples is its share of the wait time.
#[derive(Clone, Debug, PartialEq)]
pub struct StatementWaits {
    /// The event name.
    pub latch: String,
    /// The mode; `None` if this stands for several.
    pub mode: Option<Mode>,
    /// The hash of the statement without its values, in hexadecimal digits; empty if this is no single statement.
    pub digest: String,
    /// The statement without its values, or its first word; or [`StatementWaits::NOTHING`], [`StatementWaits::UNREAD`],
    /// or [`StatementWaits::OTHER`].
    pub statement: String,
    /// For whom the statement was executed.
    pub account: Account,
    /// The number of times that a thread was seen.
    pub samples: u64,
}

/// For whom a thread executed a statement.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Account {
    /// The name of the user, without the host; empty if it is not known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub user: String,
    /// The schema that was chosen; empty if none was, or if it is not known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub schema: String,
}

impl Account {
    /// Stands in place of a user and a schema of which nothing is known.
    pub const UNKNOWN: &str = "not known";

    /// Returns whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.user.is_empty() && self.schema.is_empty()
    }
}

/// Writes `app in shop`, or the one of both that is known.
impl Display for Account {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        match (&*self.user, &*self.schema) {
            ("", "") => f.write_str(Account::UNKNOWN),
            (user, "") => f.write_str(user),
            ("", schema) => write!(f, "in {schema}"),
            (user, schema) => write!(f, "{user} in {schema}"),
        }
    }
}

impl StatementWaits {
    /// Stands in place of a statement for threads that execute none.
    pub const NOTHING: &str = "no statement";
    /// Stands in place of statements that could not be read, or that changed meanwhile.
    pub const UNREAD: &str = "not read";
    /// Stands in place of a statement for all that have no row of their own.
    pub const OTHER: &str = model::OTHER;

    /// Returns what distinguishes the row from others: latch, mode, digest, statement and account.
    pub fn place(&self) -> (&str, Option<Mode>, &str, &str, &Account) {
        (&self.latch, self.mode, &self.digest, &self.statement, &self.account)
    }

    /// Returns whether threads that waited for this latch in this mode may be counted here.
    pub fn is_of(&self, latch: &str, mode: Mode) -> bool {
        self.latch == latch && self.mode.is_none_or(|own| own == mode)
    }
}

/// How often threads were seen that came to wait for a latch in one mode through these calls. Their share of the
/// latch's samples is their share of the wait time.
#[derive(Clone, Debug, PartialEq)]
pub struct StackWaits {
    /// The event name.
    pub latch: String,
    /// The mode; `None` if this stands for several.
    pub mode: Option<Mode>,
    /// The names of functions, the outermost first, separated by `;`; or [`StackWaits::OTHER`] or
    /// [`StackWaits::UNREAD`].
    pub calls: String,
    /// The number of times that a thread was seen.
    pub samples: u64,
}

impl StackWaits {
    /// Stands in place of call stacks that could not be read.
    pub const UNREAD: &str = StatementWaits::UNREAD;
    /// Stands in place of a call stack for all that have no row of their own.
    pub const OTHER: &str = model::OTHER;

    /// Returns what distinguishes the row from others: latch, mode and calls.
    pub fn place(&self) -> (&str, Option<Mode>, &str) {
        (&self.latch, self.mode, &self.calls)
    }

    /// Returns whether threads that waited for this latch in this mode may be counted here.
    pub fn is_of(&self, latch: &str, mode: Mode) -> bool {
        self.latch == latch && self.mode.is_none_or(|own| own == mode)
    }
}

/// Whether a latch came from another part of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, IntoStaticStr, EnumString)]
#[strum(serialize_all = "lowercase")]
pub enum Locality {
    /// The latch stayed in its part of the machine.
    Local,
    /// The latch came from another part.
    Remote,
}

impl Locality {
    /// Returns the locality of a latch that came from one part to another; `None` if one of them is not known.
    pub fn between(from: Option<&str>, to: Option<&str>) -> Option<Locality> {
        Some(if from? == to? { Locality::Local } else { Locality::Remote })
    }

    /// Returns the locality with this name, or `None` if there is none.
    pub fn from_name(name: &str) -> Option<Locality> {
        name.parse().ok()
    }

    /// Returns the value of the `locality` label.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

cumulative!(LatchWaits { sleep_ns, sleeps, spin_cpu_ns, spins_won, spins_wasted, estimated_ns, variance_us2 } with waits);
cumulative!(CallsiteWaits { waits, wait_ns });
cumulative!(Reacquires { waits, wait_ns });
cumulative!(PageWaits { waits, wait_ns });
cumulative!(Handoffs { count, wait_ns, migrations });
cumulative!(StatementWaits { samples });
cumulative!(StackWaits { samples });

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    use crate::model::{histograms, Cumulative};

    /// Waits for one latch whose figures are all below `limit`, consistent or not.
    fn latch_waits(limit: u64) -> impl Strategy<Value = LatchWaits> {
        (histograms(limit), proptest::array::uniform7(0..limit)).prop_map(|(waits, counters)| {
            // A difference does not know its maximum.
            let waits = Histogram { max_ns: 0, ..waits };
            let [sleep_ns, sleeps, spin_cpu_ns, spins_won, spins_wasted, estimated_ns, variance_us2] = counters;
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
                variance_us2,
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
