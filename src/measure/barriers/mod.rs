//! Instructions in the server's code that order memory, counted once.

mod metrics;

pub use metrics::BarrierMetrics;

use std::sync::{Arc, OnceLock};
use std::thread;

use anyhow::Result;
use rustix::process::setpriority_process;

use super::{Attaching, Measurement, Nothing, Room, Snapshot};
use crate::attach::Costs;
use crate::audit;
use crate::server::Target;
use crate::symbols::PerImage;

/// Barrier, atomic, spin-hint and checksum instructions in the server's code, by instruction; empty until they are
/// counted, and if they cannot be.
pub type Figures = Vec<(String, u64)>;

/// A low priority, as `nice` counts. With the lowest, a thread gets 0.4 % of a CPU for which four others compete, and
/// the figures of a busy server would come after minutes.
const LOW_PRIORITY: i32 = 5;

/// The instructions of one server, once they are counted.
#[derive(Default)]
pub struct Barriers(OnceLock<Arc<Option<Figures>>>);

impl Room for Barriers {
    type Figures = Figures;
    type Metrics = BarrierMetrics;
    type Report = Nothing;
    type Comparison = Nothing;

    fn begin(on: &mut Attaching) -> Option<Result<Arc<Barriers>>> {
        on.more?;
        let (barriers, target) = (Arc::new(Barriers::default()), Arc::clone(on.target));
        let counted = Arc::clone(&barriers);
        on.later(move || count_in_background(target, counted));
        Some(Ok(barriers))
    }
}

impl Measurement for Barriers {
    fn collect(&self, _costs: Option<&Costs>, snapshot: &mut Snapshot) -> Result<()> {
        snapshot.barriers = self.0.get().and_then(|counted| counted.as_ref().clone()).unwrap_or_default();
        Ok(())
    }
}

/// The name of the thread that counts, and then ends.
pub const COUNTING_THREAD: &str = "barriers";

/// Starts a thread that yields to most others on a busy machine: counting takes some tenths of a second of CPU
/// time.
fn count_in_background(target: Arc<Target>, barriers: Arc<Barriers>) {
    static COUNTED: PerImage<(), Option<Figures>> = PerImage::new();
    let count = move || {
        // Without a process id, this is the priority of this thread alone.
        if setpriority_process(None, LOW_PRIORITY).is_ok() {
            let find = || target.find((COUNTING_THREAD, ()), Option::is_some, || count(&target));
            _ = barriers.0.set(COUNTED.of(&target.image, (), find));
        }
    };
    if let Err(error) = thread::Builder::new().name(COUNTING_THREAD.to_owned()).spawn(count) {
        tracing::warn!("the server's barriers are not counted: {error}");
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
