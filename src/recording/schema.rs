//! Defines what a recording's frames hold, as JSON. Names that are repeated each second are short in the file.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::rows::{are_valid, Counts, DeltaOf, Key, Numbers, Row, Rows, Totals};
use crate::measure::checksum::Checksum;
use crate::measure::spin::SpinSettings;
use crate::measure::{measurements, Snapshot};

/// The machine that a server runs on. What is not known is absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Host {
    /// The host name.
    pub name: String,
    /// The kernel's release, as `uname -r` shows it.
    pub kernel: String,
    /// `PRETTY_NAME` of the system that armtrace runs on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub os: Option<String>,
    /// The CPU's own name; see [`Machine::cpu_model`](crate::host::Machine::cpu_model).
    pub cpu_model: String,
    /// The number of CPUs that are online.
    pub cpus: u32,
    /// The number of CPUs that the server may use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_cpus: Option<u32>,
    /// The CPU's highest clock, in GHz.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ghz: Option<f64>,
    /// The number of NUMA nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa_nodes: Option<u32>,
    /// The size of a page of its memory, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_bytes: Option<u64>,
    /// The size of its memory, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
}

/// The server that was recorded.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Server {
    /// The process ID.
    pub pid: i32,
    /// The maintainer: `mysql`, `mariadb` or `percona`.
    pub flavor: String,
    /// The version that the server reports, for example `9.7.4`.
    pub version: String,
    /// The architecture: `x86_64` or `aarch64`.
    pub arch: String,
    /// The GNU build ID in hexadecimal; empty if the program has none.
    pub build_id: String,
    /// The source of function names: `symtab`, `dynsym`, …
    pub symbol_source: String,
    /// Settings that determine how threads wait and how much the server can do at once, by the server's own names.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
}

/// What is known when recording begins.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Start {
    /// The version of the armtrace that records.
    pub armtrace: String,
    /// When recording begins, in milliseconds since 1970, UTC.
    pub began_ms: u64,
    /// The machine that the server runs on.
    pub host: Host,
    /// The server.
    pub server: Server,
    /// The labels given with `--label`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The upper bounds of the histograms' buckets, in nanoseconds; one more bucket has no bound.
    pub bounds_ns: Vec<u64>,
    /// Whether waits were read from the threads' stacks, without probes. How many there were, and how long each, is
    /// then not known.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sampled: bool,
    /// Whether sleeping is distinguished from spinning.
    pub sleeps_seen: bool,
    /// Whether reacquires of a mutex after a wake-up by a condition variable are distinguished from other waits. Older
    /// versions do not distinguish them; nor does this one on kernels that do not show a thread's stack to BPF
    /// programs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reacquires_seen: bool,
    /// The parts of the machine between which handoffs are counted; empty if they are not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub places: Vec<String>,
}

/// What is known about the server's code. It is examined while recording goes on, and its spin settings may change.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Code {
    /// The checksums whose implementation is known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub checksums: Vec<Checksum>,
    /// How long waiters spin; `None` if it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spin: Option<SpinSettings>,
}

/// A kind of row with its place in a file.
pub trait Recorded: Row {
    /// Returns the keys of all rows of this kind, by their numbers.
    fn keys(rows: &NewRows) -> &[Key<Self>];

    /// Returns what a second added to rows of this kind.
    fn deltas(second: &Second) -> &[DeltaOf<Self>];
}

/// Defines what a second holds from the list of all measurements, and the list of all kinds of row that follows from
/// it: each has a name in the file.
macro_rules! kinds_of_row {
    ($($room:ident: $measurement:ident [$($name:ident: $row:ident),*],)+) => {
        kinds_of_row! { $($($name: crate::measure::$room::$row,)*)+ lost: (String, u64), }
    };
    ($($name:ident: $row:ty,)+) => {
        /// The keys of the rows that are new in a second, by kind. A row's number is its place among all rows of its
        /// kind up to then.
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct NewRows {
            $(#[doc = concat!("The keys of `", stringify!($row), "`.")]
            #[serde(skip_serializing_if = "Vec::is_empty")]
            pub $name: Vec<Key<$row>>,)+
        }

        /// One second, as the difference from the one before.
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct Second {
            /// This second's end, in nanoseconds since recording began.
            pub at_ns: u64,
            /// The keys of the rows that are new.
            pub new: NewRows,
            $(#[doc = concat!("What rows of `", stringify!($row), "` count.")]
            #[serde(skip_serializing_if = "Vec::is_empty")]
            pub $name: Vec<DeltaOf<$row>>,)+
            /// What is known about the server's code; absent if that has not changed since the second before.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub code: Option<Code>,
            /// The CPU time that the server used, in nanoseconds.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub server_cpu_ns: Option<u64>,
            /// The CPU time that probes took from the server, in nanoseconds.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub probe_cost_ns: Option<u64>,
            /// The number of statements that clients sent.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub queries: Option<u64>,
        }

        /// The rows of a file that is being written.
        #[derive(Default)]
        pub struct AllRows {
            $($name: Rows<$row>,)+
        }

        impl AllRows {
            /// Returns the rows of a file of what is counted after this snapshot was taken.
            pub fn after(before: &Snapshot) -> AllRows {
                AllRows { $($name: Rows::after(before),)+ }
            }

            /// Returns a second with everything that was added to rows since the last call.
            pub fn second(&mut self, now: &Snapshot) -> Second {
                $(let $name = self.$name.second(now);)+
                Second { new: NewRows { $($name: $name.0),+ }, $($name: $name.1,)+ ..Second::default() }
            }
        }

        /// The rows of a file that is made of others.
        #[derive(Default)]
        pub struct AllNumbers {
            $($name: Numbers<$row>,)+
        }

        impl AllNumbers {
            /// Returns a second of another file, which has these rows, with the numbers of this one's.
            pub fn second(&mut self, rows: &NewRows, second: &Second) -> Second {
                Second {
                    $($name: self.$name.renumbered(&rows.$name, &second.$name),)+
                    new: NewRows::default(),
                    code: second.code.clone(),
                    ..*second
                }
            }

            /// Returns the keys of all rows.
            pub fn into_rows(self) -> NewRows {
                NewRows { $($name: self.$name.into_keys()),+ }
            }
        }

        /// What seconds of a file add up to.
        #[derive(Default)]
        pub struct AllTotals {
            $($name: Totals<$row>,)+
        }

        impl AllTotals {
            /// Adds a second. `buckets` has, for each histogram bucket of the file, the one to add it to.
            pub fn add(&mut self, second: &Second, buckets: &[usize]) {
                $(self.$name.add(&second.$name, buckets);)+
            }

            /// Fills in what a snapshot has of the file's rows.
            pub fn restore(&self, rows: &NewRows, snapshot: &mut Snapshot) {
                $(*<$row>::list(snapshot) = self.$name.entries(&rows.$name);)+
            }
        }

        impl NewRows {
            /// Returns the number of rows of all kinds.
            pub(super) fn count(&self) -> usize {
                0 $(+ self.$name.len())+
            }

            /// Adds rows that come later.
            pub(super) fn extend(&mut self, later: NewRows) {
                $(self.$name.extend(later.$name);)+
            }

            /// Returns what is wrong with any of these keys.
            pub(super) fn fault(&self) -> Option<&'static str> {
                None$(.or_else(|| self.$name.iter().find_map(<$row>::fault)))+
            }

            /// Returns whether a second of a file with this many histogram buckets adds only to these rows.
            pub(super) fn cover(&self, second: &Second, buckets: usize) -> bool {
                true $(&& are_valid(&second.$name, self.$name.len(), buckets))+
            }
        }

        $(impl Recorded for $row {
            fn keys(rows: &NewRows) -> &[Key<$row>] {
                &rows.$name
            }

            fn deltas(second: &Second) -> &[DeltaOf<$row>] {
                &second.$name
            }
        })+
    };
}

measurements!(kinds_of_row);

/// Events that are in no other figure, by cause.
impl Row for (String, u64) {
    type Key = String;
    type Total = Counts<1>;

    fn entries(now: &Snapshot) -> Vec<&(String, u64)> {
        now.lost.iter().filter(|(_, events)| *events > 0).collect()
    }

    fn key(&self) -> String {
        self.0.clone()
    }

    fn total(&self) -> Self::Total {
        Counts([self.1])
    }

    fn restore(cause: &String, Counts([events]): Counts<1>) -> (String, u64) {
        (cause.clone(), events)
    }

    fn list(snapshot: &mut Snapshot) -> &mut Vec<(String, u64)> {
        &mut snapshot.lost
    }
}

/// The reason why a recording ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// The requested time was over.
    Complete,
    /// Ctrl-C or SIGTERM ended it.
    Interrupted,
    /// The server ended.
    ServerEnded,
}

/// A probe, as it was at the end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Probe {
    /// A readable name: `mutex_enter_inline:begin`, `futex_enter`.
    pub probe: String,
    /// Its state, as in the label of `armtrace_probe_state`.
    pub state: String,
    /// How often it was hit.
    pub hits: u64,
    /// The CPU time that its hits took, in nanoseconds; absent if it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_ns: Option<u64>,
}

impl End {
    /// Returns an end of which only the reason is known.
    pub fn unseen(ending: Ending) -> End {
        End { ending, probes: Vec::new(), code: None, static_barriers: BTreeMap::new() }
    }
}

/// What is known only when recording ends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct End {
    /// Why recording ended.
    pub ending: Ending,
    /// The probes.
    #[serde(default)]
    pub probes: Vec<Probe>,
    /// What is known about the server's code; absent if that has not changed since the last second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
    /// The number of each instruction in the server's code that orders memory.
    #[serde(default)]
    pub static_barriers: BTreeMap<String, u64>,
}
