//! Reports through which calls threads came to wait for latches.

use std::cmp::Reverse;
use std::collections::HashMap;

use maud::{html, Markup};
use serde::Serialize;

use crate::html::table;
use crate::measure::latch::shares::paths;
use crate::present::format;
use crate::present::names::short_names;
use crate::recording::report::{flame, seconds};
use crate::recording::Recording;

/// How many call stacks the page's table has, and the innermost calls of each.
const ROWS: usize = 20;
const CALLS: usize = 6;

/// The waits for a latch, in all modes, of threads that came to wait through the same calls.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CallStackReport {
    /// The latch's event name.
    pub latch: String,
    /// The functions, the outermost first; `other` or `not read` stands in place of calls that have no row of their own
    /// or could not be read. For a latch of which no call stack was seen, the call site, or nothing if it is not known.
    pub calls: Vec<String>,
    /// The time that all threads together waited.
    pub wait: f64,
    /// The share of the wait time of all latches, 0 to 1.
    pub share: f64,
}

impl CallStackReport {
    /// Returns the innermost calls, the innermost first: `rw_lock_s_lock_spin ← buf_page_get_gen ← …`.
    pub(super) fn innermost(&self, most: usize) -> String {
        let calls = self.calls.iter().rev().take(most).map(String::as_str);
        let more = (self.calls.len() > most).then_some("…");
        calls.chain(more).collect::<Vec<_>>().join(" ← ")
    }
}

/// Returns the call stacks of a recording, longest waits first; none if none were seen.
pub(super) fn call_stacks(recording: &Recording) -> Vec<CallStackReport> {
    if recording.call_stacks().is_empty() {
        return Vec::new();
    }
    let mut towers = towers(recording);
    towers.sort_by_key(|tower| Reverse(tower.wait_ns));
    let all = towers.iter().map(|tower| tower.wait_ns).fold(0, u64::saturating_add).max(1) as f64;
    let report = |tower: Tower| CallStackReport {
        share: tower.wait_ns as f64 / all,
        wait: seconds(tower.wait_ns),
        latch: tower.latch,
        calls: tower.calls,
    };
    towers.into_iter().filter(|tower| tower.wait_ns > 0).map(report).collect()
}

/// The time waited for a latch, in all modes, by threads that came to wait through the same calls.
pub(crate) struct Tower {
    pub latch: String,
    /// The functions, or the call site where no call stack was seen, the outermost first; empty if none is known.
    pub calls: Vec<String>,
    pub wait_ns: u64,
}

/// Returns all time waited for latches, in the order of first occurrence.
pub(crate) fn towers(recording: &Recording) -> Vec<Tower> {
    let (stacks, callsites) = (recording.call_stacks(), recording.callsites());
    let mut towers: Vec<Tower> = Vec::new();
    for modes in recording.contended() {
        let latch = &modes[0].latch;
        let mut numbers: HashMap<Vec<String>, usize> = HashMap::new();
        for path in paths(&modes, &stacks, &callsites) {
            let number = *numbers.entry(path.calls.clone()).or_insert(towers.len());
            match towers.get_mut(number) {
                Some(tower) => tower.wait_ns = tower.wait_ns.saturating_add(path.wait_ns),
                None => towers.push(Tower { latch: latch.clone(), calls: path.calls, wait_ns: path.wait_ns }),
            }
        }
    }
    towers
}

/// Returns a flame graph, and the heaviest call stacks in words.
pub(super) fn html(stacks: &[CallStackReport]) -> Markup {
    let names = short_names(stacks.iter().map(|stack| stack.latch.as_str()), usize::MAX);
    let path = |stack: &CallStackReport| -> Vec<String> {
        [names[stack.latch.as_str()].clone()].into_iter().chain(stack.calls.iter().cloned()).collect()
    };
    let paths: Vec<(Vec<String>, f64)> = stacks.iter().map(|stack| (path(stack), stack.wait)).collect();
    let rows = stacks.iter().take(ROWS).map(|stack| {
        let wait = format::nanoseconds(stack.wait * 1e9);
        (names[stack.latch.as_str()].clone(), vec![format::percent(stack.share), wait, stack.innermost(CALLS)])
    });
    html! {
        h2 { "How threads came to wait" }
        p.soft {
            "From samples of the stacks of threads that wait. Each latch is at the bottom, as wide as its part of the time \
             waited; above it are the functions through which threads came to wait, the innermost on top."
        }
        (flame::graph(&paths))
        details {
            summary { "the same as a table" }
            (table(&["latch", "share", "wait", "innermost calls"], rows))
        }
    }
}
