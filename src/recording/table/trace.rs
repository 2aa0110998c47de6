//! A timeline of recordings, in the JSON format of Chrome's traces, which Perfetto's viewer shows.

use std::collections::BTreeMap;

use serde_json::{json, Value};

use super::waits;
use crate::present::format;
use crate::recording::Recording;

/// Returns a trace with a process for each recording, and in it a counter of waiting threads for each latch. Times are
/// those of the recordings' hosts.
pub fn trace(recordings: &[Recording]) -> Value {
    let mut events = Vec::new();
    for (pid, recording) in (1..).zip(recordings) {
        let server = &recording.start.server;
        let name = format!("{} {} on {}", format::flavor(&server.flavor), server.version, recording.start.host.name);
        events.push(json!({ "ph": "M", "name": "process_name", "pid": pid, "args": { "name": name } }));
        events.extend(counters(recording, pid));
    }
    json!({ "displayTimeUnit": "ms", "traceEvents": events })
}

/// Returns, for each latch and second, the mean number of threads that waited in each mode. A second without waits has
/// zeros, so that lines come down.
fn counters(recording: &Recording, pid: u32) -> Vec<Value> {
    let mut by_latch: BTreeMap<String, BTreeMap<i64, BTreeMap<String, f64>>> = BTreeMap::new();
    for row in waits(recording) {
        let mode = if row.mode.is_empty() { "threads waiting".to_owned() } else { row.mode };
        *by_latch.entry(row.latch).or_default().entry(row.time_ms).or_default().entry(mode).or_default() +=
            row.wait_seconds;
    }
    let mut events = Vec::new();
    for (latch, times) in by_latch {
        let modes: BTreeMap<String, f64> =
            times.values().flat_map(BTreeMap::keys).map(|mode| (mode.clone(), 0.0)).collect();
        let mut began_ns = 0;
        for (second, length) in recording.seconds.iter().zip(recording.lengths()) {
            let time_ms = super::time_ms(&recording.start, second.at_ns);
            let mut waiting = modes.clone();
            for (mode, seconds) in times.get(&time_ms).into_iter().flatten() {
                waiting.insert(mode.clone(), seconds / length);
            }
            // A counter has its value from an event on.
            let us = super::time_ms(&recording.start, began_ns).saturating_mul(1000);
            events.push(json!({ "ph": "C", "name": latch, "pid": pid, "ts": us, "args": waiting }));
            began_ns = second.at_ns;
        }
    }
    events
}
