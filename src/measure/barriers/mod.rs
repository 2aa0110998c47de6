//! Instructions in the server's code that order memory, counted once.

mod metrics;

pub use metrics::BarrierMetrics;

use std::sync::{Arc, OnceLock};
use std::thread;

use anyhow::Result;
use rustix::process::setpriority_process;

use super::{Measurement, Snapshot};
use crate::attach::Costs;
use crate::audit;
use crate::server::Target;

/// Barrier, atomic, spin-hint and checksum instructions in the server's code, by instruction; empty until they are
/// counted, and if they cannot be.
pub type Figures = Vec<(String, u64)>;

/// The lowest priority, as `nice` counts.
const LOWEST_PRIORITY: i32 = 19;

/// Counts the instructions of one server.
pub struct Barriers {
    target: Arc<Target>,
    counted: Arc<OnceLock<Figures>>,
}

impl Barriers {
    /// Creates a measurement that has counted nothing yet.
    pub fn new(target: &Arc<Target>) -> Barriers {
        Barriers { target: Arc::clone(target), counted: Arc::default() }
    }
}

impl Measurement for Barriers {
    /// Starts a thread that yields to everything else on a busy machine: counting takes some tenths of a second of CPU
    /// time.
    fn prepare(&self) {
        let (target, counted) = (Arc::clone(&self.target), Arc::clone(&self.counted));
        let count = move || {
            // Without a process id, this is the priority of this thread alone.
            if setpriority_process(None, LOWEST_PRIORITY).is_ok() {
                count(&target).into_iter().for_each(|figures| _ = counted.set(figures));
            }
        };
        if let Err(error) = thread::Builder::new().name("barriers".to_owned()).spawn(count) {
            tracing::warn!("the server's barriers are not counted: {error}");
        }
    }

    fn collect(&self, _costs: Option<&Costs>, snapshot: &mut Snapshot) -> Result<()> {
        snapshot.barriers = self.counted.get().cloned().unwrap_or_default();
        Ok(())
    }
}

/// Returns the counts; `None` if the code cannot be read, which the log then says.
fn count(target: &Target) -> Option<Figures> {
    let image = &target.image;
    let counted = audit::count(image).inspect_err(|e| tracing::warn!("the server's barriers are not counted: {e}"));
    image.release_memory();
    let classes = audit::classes(image.arch());
    let named = |(class, n): (u8, u32)| (classes[usize::from(class)].name.to_owned(), u64::from(n));
    Some(counted.ok()?.totals.iter().map(named).collect())
}
