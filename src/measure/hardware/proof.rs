//! Proves that an event counts here what its name says: armtrace does a known number of it itself and compares the
//! count.

use std::io;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::Barrier;
use std::thread;

use rustix::thread::{sched_getaffinity, sched_setaffinity, CpuSet};

use super::exercise::{branch, execute, turn, INSTRUCTIONS_A_TURN};
use super::memory::Lines;
use super::pmus::{Planned, Unavailable};
use crate::attach::{Counter, Reading, Whose};
use crate::catalog::{Access, Proof, RelativeNode};
use crate::host::{Machine, NumaNode};
use crate::measure::hardware::Scope;

/// The number of instructions, loop iterations, or branches.
const TIMES: u64 = 1_000_000;
/// The number of memory lines: 32 MiB.
const MEMORY_LINES: usize = 1 << 17;
/// The number of lines, which fit into any CPU's own cache, and how often they change hands.
const CACHE_LINES: usize = 1024;
const ROUNDS: usize = 64;
/// The largest share of its count that an event may also count where there is nothing for it to count.
const NOISE: f64 = 0.1;
/// The largest number of counts of nothing. An interrupt, or a virtual CPU that its host stops, adds to one of them.
const QUIET_TRIES: usize = 5;

/// The counters of the event on trial: a thread's own, or those of the host's devices.
struct Trial<'m> {
    machine: &'m Machine,
    scope: Scope,
    counters: Vec<Counter>,
}

/// Something that is done a known number of times, and the share of it that an event may count.
struct Done {
    what: String,
    times: u64,
    share: RangeInclusive<f64>,
}

/// The reason why an event is not counted, or why its counts cannot be trusted.
#[derive(Debug, thiserror::Error)]
pub enum Uncounted {
    /// The event cannot be requested.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// This process may not count it.
    #[error("not permitted: run armtrace as root, or give it CAP_PERFMON")]
    NotPermitted,
    /// The kernel or the CPU does not know it.
    #[error("the kernel has no such event for this CPU ({0})")]
    Unknown(io::Error),
    /// A counter cannot be opened for another reason.
    #[error("it cannot be opened: {0}")]
    Unopened(io::Error),
    /// A counter cannot be read.
    #[error("it cannot be read: {0}")]
    Unreadable(io::Error),
    /// It did not run, because there are more events than counters.
    #[error("it got no counter, because other events use them all")]
    NoCounter,
    /// The trial needs an instruction that this CPU does not have.
    #[error("this CPU does not have the instruction")]
    NoInstruction,
    /// This process may run on no known CPU.
    #[error("armtrace is not allowed on any CPU")]
    NoCpu,
    /// The NUMA node of the CPU is not known.
    #[error("the CPU's node is not known")]
    UnknownNode,
    /// The trial needs another NUMA node.
    #[error("this host has only one NUMA node, so no access is remote")]
    OneNode,
    /// The trial needs another core on this NUMA node.
    #[error("node {0} has no other core")]
    NoOtherCore(i32),
    /// The trial needs memory on a NUMA node.
    #[error("no memory on node {node}: {why}")]
    NoMemory {
        /// The node's number.
        node: i32,
        /// The kernel's error.
        why: io::Error,
    },
    /// It counted something else than what was done.
    #[error("it counted {with:.0} for {what}{}", beside(*.without))]
    Wrong {
        /// What was done, in words.
        what: String,
        /// The count while it was done.
        with: f64,
        /// The count while it was not.
        without: f64,
    },
    /// The system starts no thread for the trial.
    #[error("no thread for the trial: {0}")]
    NoThread(io::Error),
    /// The trial's thread panicked.
    #[error("the trial failed")]
    Panicked,
    /// The server has this many threads, more than there are descriptors left.
    #[error("the server has {0} threads, and each event needs one file descriptor per thread")]
    TooManyThreads(usize),
    /// The server has ended.
    #[error("the server has ended")]
    Ended,
}

fn beside(without: f64) -> String {
    if without > 0.0 {
        format!(", and {without:.0} without them")
    } else {
        String::new()
    }
}

impl Uncounted {
    /// Returns the reason for which the kernel refused to open a counter.
    pub fn refused(error: io::Error) -> Uncounted {
        match error.raw_os_error() {
            Some(libc::EACCES | libc::EPERM) => Uncounted::NotPermitted,
            Some(libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV | libc::EINVAL) => Uncounted::Unknown(error),
            _ => Uncounted::Unopened(error),
        }
    }
}

/// Tries whether `planned` counts. This takes some ten milliseconds, and two CPUs for some events.
///
/// # Errors
/// Fails with the reason why the event cannot be trusted.
pub fn prove(machine: &Machine, planned: &Planned) -> Result<(), Uncounted> {
    // A separate thread, because the trial moves to other CPUs, which must not affect the caller.
    thread::scope(|scope| {
        let tried = start(scope, || Trial::new(machine, planned)?.run(planned.event.proof))?;
        tried.join().unwrap_or(Err(Uncounted::Panicked))
    })
}

/// Starts a thread of this scope.
fn start<'scope, T: Send + 'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Result<thread::ScopedJoinHandle<'scope, T>, Uncounted> {
    thread::Builder::new().spawn_scoped(scope, work).map_err(Uncounted::NoThread)
}

impl Trial<'_> {
    fn new<'m>(machine: &'m Machine, planned: &Planned) -> Result<Trial<'m>, Uncounted> {
        let asked = planned.asked.as_ref().map_err(Unavailable::clone)?.of(Whose::Own);
        let counters: io::Result<_> = asked.into_iter().map(|(what, whose)| Counter::open(what, whose)).collect();
        Ok(Trial { machine, scope: planned.scope(), counters: counters.map_err(Uncounted::refused)? })
    }

    fn run(&self, proof: Proof) -> Result<(), Uncounted> {
        match proof {
            Proof::Cycles => {
                let done = Done::new(format!("a loop of {TIMES} iterations"), TIMES, 0.9..=f64::INFINITY);
                self.judge(&done, || turn(TIMES), || ())
            }
            Proof::Instructions => {
                let times = TIMES * INSTRUCTIONS_A_TURN;
                self.judge(&Done::new(format!("{times} instructions"), times, 0.99..=1.05), || turn(TIMES), || ())
            }
            Proof::Instruction(instruction) => {
                execute(instruction, 1).ok_or(Uncounted::NoInstruction)?;
                let done = Done::new(format!("{TIMES} `{}` instructions", instruction.text()), TIMES, 0.9..=2.0);
                self.judge(&done, || _ = execute(instruction, TIMES), || turn(TIMES))
            }
            Proof::BranchMisses => {
                let done = Done::new(format!("{TIMES} branches on random bits"), TIMES, 0.2..=1.2);
                self.judge(&done, || branch(TIMES, true), || branch(TIMES, false))
            }
            Proof::OrderingClears => self.ordering_clears(),
            Proof::Memory(place, access) => self.first_that_passes(place, |node| self.memory(node, access)),
            Proof::DirtyLines(place, access) => {
                self.first_that_passes(place, |node| self.dirty_lines(place, node, access))
            }
        }
    }

    /// Checks that the event counts what `with` does, and nothing of what `without` does.
    fn judge(&self, done: &Done, with: impl FnOnce(), without: impl Fn()) -> Result<(), Uncounted> {
        let with = self.count(with)?;
        let without = match self.scope {
            Scope::Process => self.least(without, NOISE * with)?,
            // Other processes access memory all the time.
            Scope::Host => 0.0,
        };
        if done.share.contains(&(with / done.times as f64)) && without <= NOISE * with {
            return Ok(());
        }
        Err(Uncounted::Wrong { what: done.what.clone(), with, without })
    }

    /// Returns the smallest of some counts of the same work, or the first that is not above `enough`.
    fn least(&self, work: impl Fn(), enough: f64) -> Result<f64, Uncounted> {
        let mut least = f64::INFINITY;
        for _ in 0..QUIET_TRIES {
            least = least.min(self.count(&work)?);
            if least <= enough {
                break;
            }
        }
        Ok(least)
    }

    /// Returns the count while `work` runs.
    fn count(&self, work: impl FnOnce()) -> Result<f64, Uncounted> {
        let before = self.read();
        // The work must run even if reading failed, because other threads wait for it.
        work();
        let counted = self.read()? - before?;
        counted.scaled().ok_or(Uncounted::NoCounter)
    }

    fn read(&self) -> Result<Reading, Uncounted> {
        let readings = self.counters.iter().map(Counter::read);
        readings.sum::<io::Result<Reading>>().map_err(Uncounted::Unreadable)
    }

    fn ordering_clears(&self) -> Result<(), Uncounted> {
        let words = [AtomicU32::new(0), AtomicU32::new(0)].map(Line);
        let load = || {
            for _ in 0..TIMES {
                std::hint::black_box(words.each_ref().map(|word| word.0.load(Ordering::Relaxed)));
            }
        };
        let (writes, ends) = (Barrier::new(2), AtomicBool::new(false));
        let with = || {
            writes.wait();
            load();
            ends.store(true, Ordering::Relaxed);
        };
        let done = Done::new(format!("{TIMES} loads of data that another CPU writes"), TIMES, 1e-4..=f64::INFINITY);
        thread::scope(|scope| {
            start(scope, || {
                writes.wait();
                while !ends.load(Ordering::Relaxed) {
                    words.iter().for_each(|word| word.0.store(1, Ordering::Relaxed));
                }
            })?;
            self.judge(&done, with, load)
        })
    }

    fn memory(&self, node: &NumaNode, access: Access) -> Result<(), Uncounted> {
        let lines = Lines::new(MEMORY_LINES, Some(node.number))
            .map_err(|why| Uncounted::NoMemory { node: node.number, why })?;
        lines.flush();
        let what = format!("{} {} memory on node {}", lines.count(), verb(access), node.number);
        let done = Done::new(what, lines.count() as u64, 0.5..=self.most());
        let with = || {
            lines.access(access);
            if access == Access::Store {
                lines.flush();
            }
        };
        self.judge(&done, with, || lines.access_one(access))
    }

    fn dirty_lines(&self, place: RelativeNode, node: &NumaNode, access: Access) -> Result<(), Uncounted> {
        let here = allowed_cpus().into_iter().next().unwrap_or(0);
        let near = if place == RelativeNode::Own { self.machine.siblings(here) } else { Vec::new() };
        let is_other = |cpu: &i32| *cpu != here && !near.contains(cpu);
        let writer = node.cpus.iter().copied().find(is_other).ok_or(Uncounted::NoOtherCore(node.number))?;
        let lines = Lines::new(CACHE_LINES, node.has_memory.then_some(node.number))
            .map_err(|why| Uncounted::NoMemory { node: node.number, why })?;
        let times = (lines.count() * ROUNDS) as u64;
        let what = format!("{times} {} lines that CPU {writer} had just written", verb(access));
        let done = Done::new(what, times, 0.25..=self.most());
        let turn = Barrier::new(2);
        let access_all = || {
            for _ in 0..ROUNDS {
                turn.wait();
                lines.access(access);
                turn.wait();
            }
        };
        thread::scope(|scope| {
            start(scope, || {
                run_on(writer);
                for _ in 0..ROUNDS {
                    lines.write();
                    turn.wait();
                    turn.wait();
                }
            })?;
            self.judge(&done, access_all, || (0..ROUNDS).for_each(|_| lines.access_one(access)))
        })
    }

    /// Runs the trial with each node of this kind until one passes, always from the same CPU.
    fn first_that_passes(
        &self,
        place: RelativeNode,
        trial: impl Fn(&NumaNode) -> Result<(), Uncounted>,
    ) -> Result<(), Uncounted> {
        let here = *allowed_cpus().first().ok_or(Uncounted::NoCpu)?;
        run_on(here);
        let nodes = self.machine.numa_nodes();
        let is_own = |node: &&NumaNode| node.cpus.contains(&here) == (place == RelativeNode::Own);
        let mut failure = Err(match place {
            RelativeNode::Own => Uncounted::UnknownNode,
            RelativeNode::Other => Uncounted::OneNode,
        });
        for node in nodes.iter().filter(is_own).filter(|node| node.has_memory) {
            failure = trial(node);
            if failure.is_ok() {
                break;
            }
        }
        failure
    }

    /// Returns the upper bound of the share. A thread's lines may be fetched in pairs, and devices count the accesses
    /// of all processes.
    fn most(&self) -> f64 {
        match self.scope {
            Scope::Process => 4.0,
            Scope::Host => f64::INFINITY,
        }
    }
}

impl Done {
    fn new(what: String, times: u64, share: RangeInclusive<f64>) -> Done {
        Done { what, times, share }
    }
}

/// A word alone on its cache line, and on the adjacent one.
#[repr(align(256))]
struct Line(AtomicU32);

fn verb(access: Access) -> &'static str {
    match access {
        Access::Load => "loads from",
        Access::Store => "stores to",
    }
}

/// Returns the CPUs that this thread may run on.
fn allowed_cpus() -> Vec<i32> {
    let allowed = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).map(|cpu| cpu as i32).collect()
}

/// Moves this thread to a CPU, if it may run there. If not, the trial runs elsewhere, and fails for that reason.
fn run_on(cpu: i32) {
    let Some(cpu) = usize::try_from(cpu).ok().filter(|cpu| *cpu < CpuSet::MAX_CPU) else { return };
    let mut only = CpuSet::new();
    only.set(cpu);
    _ = sched_setaffinity(None, &only);
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::pmus::Asked;
    use super::*;
    use crate::attach::counter_tests::{permitted, touch_pages, PAGE_FAULTS};
    use crate::catalog::{EventCode, HardwareEvent, Instruction};

    /// An event that the kernel counts, treated as if it were one of the CPU's.
    fn page_faults(proof: Proof) -> Planned {
        let code = EventCode::Generic(0);
        let event = Box::leak(Box::new(HardwareEvent { name: "page-faults", meaning: "", code, proof }));
        Planned { event, asked: Ok(Asked::OfThreads(PAGE_FAULTS)) }
    }

    fn trial(machine: &Machine) -> Trial<'_> {
        Trial::new(machine, &page_faults(Proof::Cycles)).unwrap()
    }

    #[test]
    fn an_event_that_counts_what_is_done_passes() {
        if !permitted() {
            return;
        }
        let machine = Machine::this();
        let done = Done::new("1000 new pages".to_owned(), 1000, 0.9..=1.1);
        trial(&machine).judge(&done, || touch_pages(1000), || ()).unwrap();
    }

    #[test]
    fn one_disturbed_count_of_nothing_decides_nothing() {
        if !permitted() {
            return;
        }
        let machine = Machine::this();
        let (trial, left) = (trial(&machine), std::cell::Cell::new(1));
        let disturbed = || touch_pages(if left.replace(0) > 0 { 500 } else { 1 });
        let done = Done::new("1000 new pages".to_owned(), 1000, 0.9..=1.1);
        trial.judge(&done, || touch_pages(1000), disturbed).unwrap();
    }

    #[test]
    fn an_event_that_counts_nothing_else_or_anything_does_not() {
        if !permitted() {
            return;
        }
        let machine = Machine::this();
        let done = || Done::new("1000 new pages".to_owned(), 1000, 0.9..=1.1);
        let judge = |with, without| {
            trial(&machine)
                .judge(&done(), || touch_pages(with), || touch_pages(without))
                .expect_err("it does not count")
                .to_string()
        };
        assert!(judge(1, 1).contains(" for 1000 new pages"));
        assert!(judge(3000, 1).starts_with("it counted 3"));
        let always = judge(1000, 1000);
        assert!(
            always.starts_with("it counted 1") && always.contains(", and 1") && always.ends_with(" without them"),
            "{always}"
        );
    }

    /// Each trial ends, and none mistakes page faults for its own event.
    #[test]
    fn no_trial_takes_page_faults_for_anything_else() {
        if !permitted() {
            return;
        }
        let machine = Machine::this();
        let own = if cfg!(target_arch = "x86_64") { Instruction::LockedAdd } else { Instruction::Dmb };
        for proof in [
            Proof::Cycles,
            Proof::Instructions,
            Proof::Instruction(own),
            Proof::BranchMisses,
            Proof::OrderingClears,
            Proof::Memory(RelativeNode::Own, Access::Load),
            Proof::Memory(RelativeNode::Own, Access::Store),
            Proof::Memory(RelativeNode::Other, Access::Load),
            Proof::DirtyLines(RelativeNode::Own, Access::Load),
            Proof::DirtyLines(RelativeNode::Own, Access::Store),
            Proof::DirtyLines(RelativeNode::Other, Access::Load),
        ] {
            let why = prove(&machine, &page_faults(proof)).expect_err("page faults").to_string();
            println!("{proof:?}: {why}");
            let impossible = ["one NUMA node", "node is not known", "no other core", "no memory on node"];
            let expected = [&[" counted "][..], &impossible].concat();
            assert!(expected.iter().any(|words| why.contains(words)), "{proof:?}: {why}");
        }
    }

    #[test]
    fn another_architectures_instruction_is_not_there() {
        if !permitted() {
            return;
        }
        let other = if cfg!(target_arch = "x86_64") { Instruction::Dmb } else { Instruction::LockedAdd };
        let why = prove(&Machine::this(), &page_faults(Proof::Instruction(other))).unwrap_err();
        assert!(matches!(why, Uncounted::NoInstruction), "{why}");
    }

    #[test]
    fn a_host_that_cannot_be_looked_at_has_no_far_memory() {
        if !permitted() {
            return;
        }
        let nowhere = Machine::at(Path::new("/nonexistent"));
        let why = prove(&nowhere, &page_faults(Proof::Memory(RelativeNode::Other, Access::Load))).unwrap_err();
        assert!(matches!(why, Uncounted::OneNode), "{why}");
    }

    #[test]
    fn refusals_are_explained() {
        let said = |number| Uncounted::refused(io::Error::from_raw_os_error(number)).to_string();
        assert!(said(libc::EACCES).contains("CAP_PERFMON"));
        assert!(said(libc::ENOENT).contains("no such event"));
        assert!(said(libc::EMFILE).contains("files"));
    }
}
