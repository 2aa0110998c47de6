//! The figures of flushes of files.

use crate::measure::rest::Timed;
use crate::model::{cumulative, Histogram};

/// The figures of flushes of files.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// The flushes that have ended since attach, by what the file is for. Empty if they are not measured.
    pub calls: Vec<Fsyncs>,
    /// Whether nothing is measured at the moment, because the probes take more than their part of the budget. Then
    /// `calls` are as they were before. A recording does not hold it.
    pub rests: bool,
}

/// Calls of fsync and fdatasync for one kind of file.
#[derive(Clone, Debug, PartialEq)]
pub struct Fsyncs {
    /// What the file is for; see [`FileWaits::event`](crate::measure::files::FileWaits::event).
    pub event: String,
    /// How long they took.
    pub calls: Histogram,
}

impl Timed for Fsyncs {
    fn name(&self) -> &String {
        &self.event
    }

    fn histogram(&mut self) -> &mut Histogram {
        &mut self.calls
    }
}

cumulative!(Fsyncs {} with calls);
