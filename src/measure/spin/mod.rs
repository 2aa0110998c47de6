//! How long the server's waiters spin before they sleep.

mod figures;
mod reader;
mod report;

pub use figures::{Figures, SpinSettings};
pub use reader::SpinReader;

use std::sync::{Arc, OnceLock};

use anyhow::Result;

use super::latch::Plan;
use super::{Measurement, Snapshot};
use crate::attach::Costs;
use crate::server::Target;

/// The spin settings of one server.
pub struct Spin {
    target: Arc<Target>,
    /// The server's wait functions.
    plan: Arc<Plan>,
    reader: OnceLock<Option<SpinReader>>,
}

impl Spin {
    /// Creates a measurement that reads nothing until it is prepared.
    pub fn new(target: &Arc<Target>, plan: &Arc<Plan>) -> Spin {
        Spin { target: Arc::clone(target), plan: Arc::clone(plan), reader: OnceLock::new() }
    }
}

impl Measurement for Spin {
    fn prepare(&self) {
        self.reader.get_or_init(|| SpinReader::new(&self.target, &self.plan));
        self.target.image.release_memory();
    }

    fn collect(&self, _costs: Option<&Costs>, snapshot: &mut Snapshot) -> Result<()> {
        snapshot.spin = self.reader.get().and_then(Option::as_ref).and_then(SpinReader::read);
        Ok(())
    }
}
