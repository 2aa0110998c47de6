//! Whole reports and comparisons, against those in `tests/golden/`: one figure that is computed or shown differently is
//! one line that differs. `ARMTRACE_BLESS=1 cargo test --test recording golden` writes them anew.

use std::time::Duration;

use armtrace::measure::latch::{self, LatchWaits};
use armtrace::measure::Snapshot;
use armtrace::model::{Kind, Mode};
use armtrace::recording::compare::{self, Comparison, Options, Per, Scaling, Side};
use armtrace::recording::{Ending, Folded, Html, Recording, Report, Start, Text};
use lab::snapshots::{busy, callsite, latch, page, INDEX, TRX};
use serde::Serialize;

use crate::{file, read, start};

const SECONDS: u64 = 25;

fn check(name: &str, text: &str) {
    lab::golden::check(&format!("recording/{name}"), text);
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string_pretty(value).expect("it can be serialized")
}

/// Returns a server under a load that grows, with more latches, call sites and pages than a table shows. `weight` is
/// the weight of the second latch against the first.
fn recording(start: &Start, weight: u64, statements: u64) -> Recording {
    let second = |second: u64| {
        let busy = busy(second);
        // Of the first latch, there are more waits in each second than in the one before.
        let growing = second * (second + 1);
        let mut waits = busy.latch.waits;
        waits[0] = latch(TRX, Kind::Mutex, Mode::None, 10 * growing, 700_000);
        waits[3] = LatchWaits {
            estimated_ns: 500_000 * second,
            variance_us2: 10_000 * second,
            ..latch(INDEX, Kind::Sxlock, Mode::X, weight * second, 9_000_000)
        };
        waits.extend((1..=24).map(|n| {
            let name = format!("wait/synch/mutex/sql/LOCK_{n}");
            latch(&name, Kind::Mutex, Mode::None, second, 10_000 * n)
        }));
        let sites = (1..=9).map(|n| callsite(TRX, Mode::None, &format!("lock0lock.cc:{n}"), 1_000_000 * n * second));
        let pages = (1..=20).map(|n| page(&format!("sbtest/sbtest{n}"), "PRIMARY", Some(0), 500_000 * n * second));
        let snapshot = Snapshot {
            latch: latch::Figures {
                waits,
                callsites: busy.latch.callsites.into_iter().chain(sites).collect(),
                pages: busy.latch.pages.into_iter().chain(pages).collect(),
                ..busy.latch
            },
            elapsed: Duration::from_secs(second),
            ..busy
        };
        (snapshot, Some(statements * second + growing))
    };
    let seconds: Vec<_> = (1..=SECONDS).map(second).collect();
    read(&file(start, &seconds, Some(Ending::Complete)))
}

#[test]
fn a_report_has_all_figures() {
    let recording = recording(&start(64), 4, 1000);
    let report = Report::new(&recording);
    check("report.txt", &Text(&report).to_string());
    check("report.html", &Html(&report).to_string());
    check("report.json", &json(&report));
    check("report.folded", &Folded(&recording).to_string());
}

#[test]
fn a_comparison_has_all_figures() {
    let mut other = start(64);
    other.host.server_cpus = Some(8);
    other.host.cpus = 8;
    other.host.ghz = Some(2.0);
    other.host.cpu_model = "Neoverse-V2".to_owned();
    other.server.settings.insert("innodb_spin_wait_delay".to_owned(), "30".to_owned());
    let [a, b] = [(start(64), 4, 1000), (other, 30, 1500)]
        .map(|(start, weight, statements)| Side::of_recording("a.rec", &recording(&start, weight, statements), None));
    for (name, per) in [("second", Per::Second), ("query", Per::Query), ("core", Per::Core)] {
        let options = Options { per: Some(per), ghz: [None, Some(1.5)], price: [Some(10.0), Some(15.0)] };
        let comparison = Comparison::new(&a, &b, options);
        check(&format!("compare-{name}.txt"), &compare::Text(&comparison).to_string());
        if per == Per::Query {
            check("compare.html", &compare::Html(&comparison).to_string());
            check("compare.json", &json(&comparison));
        }
    }
}

#[test]
fn a_series_has_all_figures() {
    let side = |threads: u32, weight, statements| {
        (f64::from(threads), Side::of_recording("threads", &recording(&start(threads), weight, statements), None))
    };
    let sides = vec![side(1, 1, 1000), side(8, 5, 6000), side(16, 20, 9000), side(32, 80, 8000)];
    let scaling = Scaling::new("threads", sides).expect("a series");
    check("scaling.txt", &compare::Text(&scaling).to_string());
    check("scaling.html", &compare::Html(&scaling).to_string());
    check("scaling.json", &json(&scaling));
}
