//! One room per measurement: its plan, its probes, its figures, and everything that is made of them.
//!
//! A [`Measurement`] attaches its probes when it begins, and adds what they counted to each [`Snapshot`]. A [`Room`]
//! says what else belongs to it. A new measurement needs one line in the list `measurements`, and the name of its
//! module.

mod address_space;
pub mod advice;
pub mod barriers;
pub mod checksum;
pub mod cpu;
pub mod files;
pub mod fsync;
pub mod hardware;
pub mod holder;
mod known;
pub mod latch;
pub mod locks;
mod maps;
mod replayed;
mod rest;
mod room;
pub mod spin;
pub mod statements;
mod thread_pointers;
pub mod watchpoint;

pub use known::Known;
pub use replayed::Replayed;
pub use room::{Attached, Attaching, Later, Measurement, Metrics, More, Nothing, Room};

use std::sync::Arc;
use std::time::Duration;

use crate::attach::Limit;
use crate::model::{ProbeStatus, TargetInfo};

/// Passes the list of all measurements to the macro `$make`, which makes something of each.
///
/// They begin in this order, each of them knowing those before it, and are read in this order. An entry has the name of
/// the measurement's module, which is also that of its figures in a snapshot; the type that implements [`Room`]; and in
/// brackets what a recording counts of it second by second: names in the file, and types that implement
/// [`Row`](crate::recording::Row).
macro_rules! measurements {
    ($make:ident) => {
        $make! {
            checksum: Checksums [checksum_calls: ChecksumCalls],
            spin: Spin [],
            cpu: CpuSampler [cpu: CpuTime, ordering: OrderingTime, cpu_statements: StatementCpu],
            hardware: HardwareEvents [],
            barriers: Barriers [],
            statements: StatementCounter [],
            locks: Locks [lock_waits: LockWaits, lock_rests: Rested, lock_objects: LockedObject, lock_blockers: LockBlocker],
            latch: Latches [
                latches: LatchWaits, reacquires: Reacquires, callsites: CallsiteWaits, pages: PageWaits, handoffs: Handoffs,
                statements: StatementWaits, call_stacks: StackWaits
            ],
            holder: Holders [holders: BlockedBy],
            files: Files [file_waits: FileWaits],
            fsync: FsyncTimer [fsyncs: Fsyncs],
        }
    };
}

pub(crate) use measurements;

macro_rules! snapshot {
    ($($room:ident: $measurement:ident $rows:tt,)+) => {
        /// Everything measured at one instant, counted since the agent attached. The exporter serves it, the live table
        /// shows the difference of two, and recordings hold it second by second.
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct Snapshot {
            /// The time since attach.
            pub elapsed: Duration,
            /// What identifies the server.
            pub target: TargetInfo,
            /// False once the server has ended.
            pub up: bool,
            /// Whether the probes are detached for a while, so that nothing is counted.
            pub paused: bool,
            $(#[doc = concat!("The figures of [`", stringify!($room), "`].")]
            pub $room: <$room::$measurement as Room>::Figures,)+
            /// The probes, with their cost so far.
            pub probes: Vec<ProbeStatus>,
            /// The cost of one hit on this machine, in nanoseconds, by class of probe; those that are known.
            pub costs: Vec<(&'static str, f64)>,
            /// For how long some probes have taken turns, for each reason. A recording does not hold it.
            pub limited: Vec<(Limit, Duration)>,
            /// Events that are in no other figure, by cause; every cause that exists is listed, also at zero.
            pub lost: Vec<(String, u64)>,
            /// CPU time that the server has used since attach (user and system), in nanoseconds; `None` if /proc does
            /// not say.
            pub server_cpu_ns: Option<u64>,
            /// The share of the server's CPU time that probes may take, 0 to 1; `None` in a recording, which does not
            /// hold it.
            pub max_overhead: Option<f64>,
            /// What is not measured although it was asked for, and probes that the kernel refused: one line each, known
            /// since attach. A recording does not hold them.
            pub not_measured: Vec<String>,
            /// The recording that it is from; `None` if the server is live.
            pub replayed: Option<Replayed>,
        }

        /// Returns the metrics of all measurements.
        pub fn metrics() -> Vec<Box<dyn Metrics>> {
            vec![$(Box::<<$room::$measurement as Room>::Metrics>::default()),+]
        }

        /// The measurements that have begun.
        #[derive(Default)]
        pub struct Begun {
            $(#[doc = concat!("[`", stringify!($room), "`], if it is measured.")]
            pub $room: Option<Arc<$room::$measurement>>,)+
        }

        impl Begun {
            /// Begins all measurements. Returns what could not be attached.
            fn begin(on: &mut Attaching) -> Vec<String> {
                let mut degraded = Vec::new();
                $(match $room::$measurement::begin(on).transpose() {
                    Ok(begun) => on.begun.$room = begun,
                    Err(why) => degraded.push(format!("{why:#}")),
                })+
                degraded
            }

            /// Returns them in the order of the list.
            fn measurements(self) -> Vec<Arc<dyn Measurement>> {
                let all = [$(self.$room.map(|begun| begun as Arc<dyn Measurement>)),+];
                all.into_iter().flatten().collect()
            }
        }
    };
}

measurements!(snapshot);

/// Returns the CPU time that these probes have taken from the server, in nanoseconds, as far as their costs are known.
fn cost_ns(probes: impl IntoIterator<Item = ProbeStatus>) -> u64 {
    probes.into_iter().filter_map(|probe| probe.total_cost_ns()).sum::<f64>() as u64
}

impl Snapshot {
    /// Returns the CPU time that probes took from the server since attach, in nanoseconds. `None` if the cost of a
    /// probe that was hit is not known, because a sum without it would be too low.
    pub fn probe_cost_ns(&self) -> Option<f64> {
        if let Some(replayed) = &self.replayed {
            return replayed.probe_cost_ns.map(|ns| ns as f64);
        }
        let hit = self.probes.iter().filter(|probe| probe.hits > 0);
        hit.map(ProbeStatus::total_cost_ns).try_fold(0.0, |sum, cost| Some(sum + cost?))
    }

    /// Returns the share of the server's CPU time since attach that probes took, 0 to 1; `None` if either is not known.
    pub fn overhead_ratio(&self) -> Option<f64> {
        let cpu_ns = self.server_cpu_ns.filter(|&ns| ns > 0)?;
        Some(self.probe_cost_ns()? / cpu_ns as f64)
    }
}
