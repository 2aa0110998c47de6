//! How long the server's waiters spin before they sleep.

mod compare;
mod figures;
mod reader;
mod report;

pub use compare::SpinComparison;
pub use figures::{Figures, SpinSettings};
pub use reader::SpinReader;
pub use report::SpinReport;

use std::sync::{Arc, OnceLock};

use anyhow::Result;

use super::{Attaching, Measurement, Nothing, Room, Snapshot};
use crate::attach::Costs;

/// The spin settings of one server, once it is known how to read them.
#[derive(Default)]
pub struct Spin(OnceLock<SpinReader>);

impl Room for Spin {
    type Figures = Figures;
    type Metrics = Nothing;
    type Report = SpinReport;
    type Comparison = SpinComparison;

    fn begin(on: &mut Attaching) -> Option<Result<Arc<Spin>>> {
        on.more?;
        let (spin, target, plan) = (Arc::new(Spin::default()), Arc::clone(on.target), Arc::clone(on.plan));
        let prepared = Arc::clone(&spin);
        on.later(move || {
            SpinReader::new(&target, &plan).into_iter().for_each(|reader| _ = prepared.0.set(reader));
            target.image.release_memory();
        });
        Some(Ok(spin))
    }
}

impl Measurement for Spin {
    fn collect(&self, _costs: Option<&Costs>, snapshot: &mut Snapshot) -> Result<()> {
        snapshot.spin = self.0.get().and_then(SpinReader::read);
        Ok(())
    }
}
