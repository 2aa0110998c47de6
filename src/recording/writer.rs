//! Writes a recording, second by second.

use std::io::{self, Write};
use std::mem;

use super::frame::{write_frame, write_mark, FrameKind};
use super::schema::{AllRows, Code, End, Ending, Probe, Second, Start};
use crate::measure::Snapshot;

/// Writes snapshots as the frames of a file. Each second is in the file when [`Recorder::second`] returns.
pub struct Recorder<W> {
    to: W,
    rows: AllRows,
    /// What was last written about the server's code.
    code: Code,
    server_cpu_ns: u64,
    probe_cost_ns: u64,
    queries: Option<u64>,
}

impl<W: Write> Recorder<W> {
    /// Begins a file. `queries` is the server's count of statements at this moment, if it is known.
    ///
    /// # Errors
    /// Fails when the file cannot be written.
    pub fn begin(mut to: W, start: &Start, queries: Option<u64>) -> io::Result<Recorder<W>> {
        write_mark(&mut to)?;
        write_frame(&mut to, FrameKind::Start, start)?;
        to.flush()?;
        Ok(Recorder {
            to,
            rows: AllRows::default(),
            code: Code::default(),
            server_cpu_ns: 0,
            probe_cost_ns: 0,
            queries,
        })
    }

    /// Adds what was counted since the second before. `queries` is the server's count of statements at this moment.
    ///
    /// # Errors
    /// Fails when the file cannot be written.
    pub fn second(&mut self, now: &Snapshot, queries: Option<u64>) -> io::Result<()> {
        let added = |now: Option<u64>, before: &mut u64| Some(now?.saturating_sub(mem::replace(before, now?)));
        let second = Second {
            at_ns: now.elapsed.as_nanos() as u64,
            code: self.code(now),
            server_cpu_ns: added(now.server_cpu_ns, &mut self.server_cpu_ns),
            probe_cost_ns: added(now.probe_cost_ns().map(|ns| ns as u64), &mut self.probe_cost_ns),
            // A count that has decreased was reset, so the number of statements since then is not known.
            queries: queries
                .zip(mem::replace(&mut self.queries, queries))
                .and_then(|(now, then)| now.checked_sub(then)),
            ..self.rows.second(now)
        };
        write_frame(&mut self.to, FrameKind::Second, &second)?;
        self.to.flush()
    }

    /// Ends the file.
    ///
    /// # Errors
    /// Fails when the file cannot be written.
    pub fn end(mut self, ending: Ending, last: &Snapshot) -> io::Result<()> {
        let probes = last.probes.iter().map(|probe| Probe {
            probe: probe.probe.clone(),
            state: probe.state.as_str().to_owned(),
            hits: probe.hits,
            cost_ns: probe.total_cost_ns().map(|ns| ns as u64),
        });
        let end = End {
            ending,
            probes: probes.collect(),
            code: self.code(last),
            static_barriers: last.barriers.iter().cloned().collect(),
        };
        write_frame(&mut self.to, FrameKind::End, &end)?;
        self.to.flush()
    }

    /// Returns what is known about the server's code if it has changed.
    fn code(&mut self, now: &Snapshot) -> Option<Code> {
        // Nothing can be read any more from a server that has just ended.
        let spin = now.spin.clone().or_else(|| self.code.spin.clone());
        let code = Code { checksums: now.checksum.chosen.clone(), spin };
        (code != self.code).then(|| self.code.clone_from(&code))?;
        Some(code)
    }
}
