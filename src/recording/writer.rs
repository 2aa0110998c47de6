//! Writes a recording, second by second.

use std::io::{self, Write};
use std::mem;
use std::time::Duration;

use super::frame::{write_frame, write_mark, FrameKind};
use super::reader::Size;
use super::schema::{AllRows, Code, End, Ending, NewRows, Probe, Second, Start};
use crate::measure::Snapshot;

/// Writes snapshots as the frames of a file. Each second is in the file when [`Recorder::second`] returns.
pub struct Recorder<W> {
    to: W,
    /// The time since attach at which the file begins.
    began: Duration,
    rows: AllRows,
    /// The keys of rows that the file does not have yet, but for those of the next second.
    new: NewRows,
    /// What was last written about the server's code.
    code: Code,
    server_cpu_ns: u64,
    probe_cost_ns: u64,
    queries: Option<u64>,
    /// The seconds and the rows that the file has.
    size: Size,
}

impl<W: Write> Recorder<W> {
    /// Begins a file. `queries` is the server's count of statements at this moment, if it is known.
    ///
    /// # Errors
    /// Fails when the file cannot be written.
    pub fn begin(to: W, start: &Start, queries: Option<u64>) -> io::Result<Recorder<W>> {
        let before = Snapshot { statements: queries, ..Snapshot::default() };
        Recorder::with(to, start, AllRows::default(), &before)
    }

    /// Begins a file of what is counted after this snapshot was taken.
    ///
    /// # Errors
    /// Fails when the file cannot be written.
    pub fn begin_after(before: &Snapshot, to: W, start: &Start) -> io::Result<Recorder<W>> {
        Recorder::with(to, start, AllRows::after(before), before)
    }

    fn with(mut to: W, start: &Start, mut rows: AllRows, before: &Snapshot) -> io::Result<Recorder<W>> {
        write_mark(&mut to)?;
        write_frame(&mut to, FrameKind::Start, start)?;
        to.flush()?;
        let new = rows.second(before).new;
        Ok(Recorder {
            to,
            began: before.elapsed,
            rows,
            new,
            code: Code::default(),
            server_cpu_ns: before.server_cpu_ns.unwrap_or(0),
            probe_cost_ns: before.probe_cost_ns().map_or(0, |ns| ns as u64),
            queries: before.statements,
            size: Size::default(),
        })
    }

    /// Adds what was counted since the second before. `queries` is the server's count of statements at this moment.
    ///
    /// # Errors
    /// Fails when the file cannot be written.
    pub fn second(&mut self, now: &Snapshot, queries: Option<u64>) -> io::Result<()> {
        let added = |now: Option<u64>, before: &mut u64| Some(now?.saturating_sub(mem::replace(before, now?)));
        let rows = self.rows.second(now);
        let mut new = mem::take(&mut self.new);
        new.extend(rows.new);
        let second = Second {
            at_ns: now.elapsed.saturating_sub(self.began).as_nanos() as u64,
            new,
            code: self.code(now),
            server_cpu_ns: added(self.server_cpu_ns(now), &mut self.server_cpu_ns),
            probe_cost_ns: added(now.probe_cost_ns().map(|ns| ns as u64), &mut self.probe_cost_ns),
            // A count that has decreased was reset, so the number of statements since then is not known.
            queries: queries
                .zip(mem::replace(&mut self.queries, queries))
                .and_then(|(now, then)| now.checked_sub(then)),
            ..rows
        };
        if !self.size.add(&second.new) {
            return Err(io::Error::other("a recording cannot have so many figures: record for a shorter time"));
        }
        write_frame(&mut self.to, FrameKind::Second, &second)?;
        self.to.flush()
    }

    /// Ends the file.
    ///
    /// # Errors
    /// Fails when the file cannot be written.
    pub fn end(mut self, ending: Ending, last: &Snapshot) -> io::Result<()> {
        self.end_as_of(ending, last)?;
        self.to.flush()
    }

    fn end_as_of(&mut self, ending: Ending, last: &Snapshot) -> io::Result<()> {
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
        write_frame(&mut self.to, FrameKind::End, &end)
    }

    /// Returns the CPU time that the server has used. That of its last, short second is gone with it.
    fn server_cpu_ns(&self, now: &Snapshot) -> Option<u64> {
        now.server_cpu_ns.or_else(|| (!now.up).then_some(self.server_cpu_ns))
    }

    /// Returns the output.
    pub fn into_output(self) -> W {
        self.to
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

impl Recorder<Vec<u8>> {
    /// Returns the size of the file so far, in bytes.
    pub fn bytes(&self) -> usize {
        self.to.len()
    }

    /// Returns the file as it would be if it ended here. It can go on.
    ///
    /// # Errors
    /// Fails if a frame would be too long.
    pub fn ended(&mut self, ending: Ending, last: &Snapshot) -> io::Result<Vec<u8>> {
        let (length, code) = (self.to.len(), self.code.clone());
        let ended = self.end_as_of(ending, last).map(|()| self.to.clone());
        self.to.truncate(length);
        self.code = code;
        ended
    }
}
