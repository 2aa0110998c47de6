//! Plays a recording: returns what a snapshot of the server would have been at each of its moments.

use std::sync::Arc;
use std::time::Duration;

use super::schema::{AllTotals, Code, Ending, Second};
use super::Recording;
use crate::measure::{Replayed, Snapshot};
use crate::model::{HostInfo, TargetInfo};

/// The shortest pass through a recording that is played again and again. Only a damaged or hostile file is shorter.
const SHORTEST_PASS: Duration = Duration::from_secs(1);

/// A recording that is being played. Figures change at the end of each of its seconds.
pub struct Replay {
    recording: Arc<Recording>,
    /// The name that users know the recording by.
    name: String,
    /// Whether it starts again at its end. Counters then go on growing, as those of a server that repeats itself.
    repeats: bool,
    /// Passes that are over.
    passes: u32,
    /// Seconds of this pass that are over.
    played: usize,
    totals: AllTotals,
    code: Code,
    /// Whether waits for locks were not measured in the last second, because of the budget.
    locks_rest: bool,
    server_cpu: Sum,
    probe_cost: Sum,
    /// `None` from the first second on whose statements are not known.
    statements: Option<u64>,
}

/// A counter that is not known in every second. A second in which it is known again has all that was added meanwhile.
#[derive(Default)]
struct Sum {
    ns: u64,
    is_known: bool,
}

impl Sum {
    fn add(&mut self, more: Option<u64>) {
        self.is_known = more.is_some();
        self.ns = self.ns.saturating_add(more.unwrap_or_default());
    }

    fn get(&self) -> Option<u64> {
        self.is_known.then_some(self.ns)
    }
}

impl Replay {
    /// Begins to play a recording. `name` is what users know it by. If it `repeats`, it starts again at its end.
    pub fn new(recording: impl Into<Arc<Recording>>, name: String, repeats: bool) -> Replay {
        let recording = recording.into();
        let statements = recording.seconds.first().and_then(|second| second.queries).map(|_| 0);
        Replay {
            recording,
            name,
            repeats,
            passes: 0,
            played: 0,
            totals: AllTotals::default(),
            code: Code::default(),
            locks_rest: false,
            server_cpu: Sum::default(),
            probe_cost: Sum::default(),
            statements,
        }
    }

    /// Plays up to this time since its beginning, in the recording's own time. It never goes back.
    pub fn advance_to(&mut self, time: Duration) {
        while let Some((pass, second)) = self.next() {
            if self.began(pass) + Duration::from_nanos(self.recording.seconds[second].at_ns) > time {
                break;
            }
            self.passes = pass;
            self.play(second);
        }
    }

    /// Returns whether everything was played.
    pub fn is_over(&self) -> bool {
        self.next().is_none()
    }

    /// Returns the snapshot at this moment. What recordings do not hold is absent from it: hits of probes, hardware
    /// events, calls of getcpu.
    pub fn snapshot(&self) -> Snapshot {
        let Recording { start, rows, end, .. } = &*self.recording;
        let in_pass = self.played.checked_sub(1).map_or(0, |last| self.recording.seconds[last].at_ns);
        let has_ended = end.as_ref().is_some_and(|end| end.ending == Ending::ServerEnded);
        let mut snapshot = Snapshot {
            elapsed: self.began(self.passes) + Duration::from_nanos(in_pass),
            target: self.target(),
            up: !(has_ended && self.played == self.recording.seconds.len()),
            spin: self.code.spin.clone(),
            barriers: end.iter().flat_map(|end| end.static_barriers.clone()).collect(),
            statements: self.statements,
            server_cpu_ns: self.server_cpu.get(),
            replayed: Some(Replayed {
                name: self.name.clone(),
                length: self.recording.duration(),
                began_ms: start.began_ms,
                host: start.host.name.clone(),
                is_over: self.is_over(),
                probe_cost_ns: self.probe_cost.get(),
            }),
            ..Snapshot::default()
        };
        self.totals.restore(rows, &mut snapshot);
        snapshot.locks.rests = snapshot.up && self.locks_rest;
        snapshot.latch.sleeps_seen = start.sleeps_seen;
        snapshot.latch.sampled = start.sampled;
        snapshot.latch.domains.clone_from(&start.places);
        snapshot.checksum.chosen.clone_from(&self.code.checksums);
        snapshot
    }

    /// Returns the pass and the number of the second that comes next; `None` if everything was played.
    fn next(&self) -> Option<(u32, usize)> {
        if self.played < self.recording.seconds.len() {
            Some((self.passes, self.played))
        } else {
            self.repeats.then(|| (self.passes.saturating_add(1), 0))
        }
    }

    /// Returns the time from the beginning of the first pass to that of this one.
    fn began(&self, pass: u32) -> Duration {
        self.recording.duration().max(SHORTEST_PASS).saturating_mul(pass)
    }

    fn play(&mut self, number: usize) {
        let second = &self.recording.seconds[number];
        let Second { code, server_cpu_ns, probe_cost_ns, queries, .. } = second;
        self.totals.add(second, self.recording.buckets());
        self.locks_rest = !second.lock_rests.is_empty();
        if let Some(code) = code {
            self.code.clone_from(code);
        }
        self.server_cpu.add(*server_cpu_ns);
        self.probe_cost.add(*probe_cost_ns);
        self.statements = self.statements.zip(*queries).map(|(sum, more)| sum.saturating_add(more));
        self.played = number + 1;
        if self.played == self.recording.seconds.len() {
            // Some facts about the code are found only at the end.
            self.code.clone_from(&self.recording.code);
        }
    }

    fn target(&self) -> TargetInfo {
        let server = self.recording.start.server.clone();
        let host = &self.recording.start.host;
        TargetInfo {
            pid: server.pid,
            flavor: server.flavor,
            version: server.version,
            arch: server.arch,
            cpu_model: host.cpu_model.clone(),
            build_id: server.build_id,
            symbol_source: server.symbol_source,
            host: HostInfo {
                kernel: host.kernel.clone(),
                server_cpus: host.server_cpus,
                ghz: host.ghz,
                numa_nodes: host.numa_nodes,
                page_bytes: host.page_bytes,
            },
        }
    }
}
