//! Waits for locks of the database: the metric families.

use prometheus::proto::MetricFamily;

use crate::measure::{Metrics, Snapshot};
use crate::metrics::{families, seconds, Family};

const LOCK: &[&str] = &["lock"];

families! {
    WAIT = histogram(
        "armtrace_lock_wait_seconds",
        LOCK,
        "Waits for row locks and metadata locks, which other transactions hold; not part of any latch wait time."
    );
    WAITING = gauge(
        "armtrace_lock_waiting_threads",
        LOCK,
        "Threads that wait for a row lock or a metadata lock at the moment."
    );
    LONGEST = gauge(
        "armtrace_lock_longest_current_wait_seconds",
        LOCK,
        "How long the first of the threads that wait at the moment has waited so far; 0 if none waits."
    );
}

/// Serves the waits for locks.
#[derive(Default)]
pub struct LockMetrics;

impl Metrics for LockMetrics {
    fn families(&self) -> &'static [Family] {
        FAMILIES
    }

    fn collect(&mut self, snapshot: &Snapshot) -> Vec<MetricFamily> {
        // What was counted before would look as if nobody waited.
        let is_measured = !snapshot.locks.rests;
        let waits = snapshot.locks.waits.iter().filter(|_| is_measured);
        let waiting = &snapshot.locks.waiting;
        vec![
            WAIT.with(waits.map(|row| WAIT.distribution(&[&row.lock], &row.waits))),
            WAITING.with(waiting.iter().map(|row| WAITING.sample(&[&row.lock], row.threads as f64))),
            LONGEST.with(waiting.iter().map(|row| LONGEST.sample(&[&row.lock], seconds(row.longest_ns)))),
        ]
    }
}
