//! What is told of a recording.

use armtrace::model::{Kind, LatchWaits, Mode, Snapshot};
use armtrace::recording::{Ending, Folded, Html, Report, Text};
use std::time::Duration;

use crate::snapshots::{busy, empty, latch, TRX};
use crate::{busy_file, file, read, start};

fn near(a: f64, b: f64) -> bool {
    (a / b - 1.0).abs() < 1e-9
}

fn report() -> Report {
    Report::new(&read(&busy_file(30)))
}

#[test]
fn figures_are_those_of_the_whole_recording() {
    let report = report();
    // 31 ticks in 30 seconds, each with the waits of snapshots::busy.
    let per_tick = 0.150 + 0.0036 + 0.006 + 0.120 + 0.0002;
    assert!(near(report.totals.wait, 31.0 * per_tick), "{}", report.totals.wait);
    assert_eq!(report.totals.waits, 31 * 175);
    assert_eq!(report.totals.queries, Some(30_000));
    assert!(near(report.totals.server_cpu.unwrap(), 62.0));
    let top = &report.latches[0];
    assert_eq!((top.latch.as_str(), top.mode, top.waits), (TRX, "", 3100));
    assert!(
        near(top.share, 0.150 / per_tick)
            && near(top.mean.unwrap(), 0.0015)
            && near(top.sleep.unwrap(), top.wait / 2.0)
    );
    assert_eq!(top.wait_by_second.len(), 30);
    assert!(near(top.wait_by_second.iter().sum(), top.wait));
    assert_eq!(top.callsites[0].callsite, "lock0lock.cc:5872");
    assert!(near(top.callsites[0].share, 2.0 / 3.0));
    assert!(report.latches.iter().all(|latch| latch.kind != "cond"));
    assert_eq!(report.conditions.len(), 1);
    let histogram: u64 = top.histogram.iter().map(|bucket| bucket.waits).sum();
    assert_eq!(histogram, 3100);
}

#[test]
fn findings_are_sentences_with_figures() {
    let all: Vec<String> = report().findings.into_iter().map(|finding| finding.text).collect();
    let text = all.join("\n");
    for words in [
        "On average 0.29 threads wait for a latch, while the server keeps 2.07 of 4 CPUs busy.",
        "It serves 1.00k statements a second",
        "wait/synch/mutex/innodb/trx_mutex has 53.6% of all wait time",
        "66.7% of the waits for it, by time, begin at lock0lock.cc:5872.",
        "for those of sbtest/sbtest1.k_1 level 0.",
        "takes longer than",
    ] {
        assert!(text.contains(words), "{words:?} is not in:\n{text}");
    }
    assert!(!text.contains("no end") && !text.contains("bursts"), "{text}");
}

#[test]
fn bursts_losses_and_an_early_end_are_told() {
    let mut waits = 0;
    let seconds: Vec<_> = (1..=40)
        .map(|second| {
            waits += if second == 17 || second == 18 { 1000 } else { 1 };
            let waits_for_trx = latch(TRX, Kind::Mutex, Mode::None, waits, 1_000_000);
            let latches = vec![LatchWaits { estimated_ns: waits * 500_000, ..waits_for_trx }];
            let lost = vec![("map_full".to_owned(), waits)];
            (Snapshot { elapsed: Duration::from_secs(second), latches, lost, ..empty() }, None)
        })
        .collect();
    let report = Report::new(&read(&file(&start(1), &seconds, None)));
    let problems: Vec<&str> = report.findings.iter().filter(|f| f.is_problem).map(|f| f.text.as_str()).collect();
    let text = problems.join("\n");
    for words in [
        "50.0% of the wait time was not seen but estimated",
        "half of their time falls into 2 of 40 seconds",
        "are in no figure",
        "The file has no end",
    ] {
        assert!(text.contains(words), "{words:?} is not in:\n{text}");
    }
    let ended = Report::new(&read(&file(&start(1), &seconds, Some(Ending::ServerEnded))));
    assert!(ended.findings.iter().any(|finding| finding.text.contains("The server ended")));
}

#[test]
fn an_idle_server_waits_for_nothing() {
    let idle = Snapshot { elapsed: Duration::from_secs(1), ..empty() };
    let report = Report::new(&read(&file(&start(1), &[(idle, None)], Some(Ending::Complete))));
    assert_eq!(report.findings.len(), 1);
    assert_eq!(report.findings[0].text, "No latch was waited for.");
    assert!(Text(&report).to_string().contains("No latch was waited for."));
    assert!(Html(&report).to_string().ends_with("</html>\n"));
}

#[test]
fn text_has_who_what_and_where() {
    let text = Text(&report()).to_string();
    assert!(text.starts_with("MySQL 9.7.4 · aarch64 Neoverse-N1 · db1\n"), "{text}");
    for words in [
        "4 CPUs · 2 of them for the server · 3.00 GHz · 2 NUMA nodes · 16 GiB · Linux 6.12.1 · openEuler 24.03 · 30s recorded",
        "threads=64",
        "innodb_spin_wait_delay=6",
        "innodb/trx_mutex",
        "events not counted: map_full 93",
    ] {
        assert!(text.contains(words), "{words:?} is not in:\n{text}");
    }
}

#[test]
fn what_is_not_known_is_absent() {
    let mut start = start(1);
    start.sleeps_seen = false;
    let seconds = [(Snapshot { server_cpu_ns: None, ..busy(1) }, None)];
    let report = Report::new(&read(&file(&start, &seconds, Some(Ending::Complete))));
    assert!(report.totals.sleep.is_none() && report.totals.spin.is_none() && report.latches[0].sleep.is_none());
    assert!(report.totals.queries.is_none() && report.totals.server_cpu.is_none() && report.overhead().is_none());
    assert!(!report.findings.iter().any(|finding| finding.text.contains("awake")));
}

#[test]
fn the_page_needs_nothing_else_and_shows_names_as_text() {
    let mut start = start(64);
    start.host.name = "<script>alert(1)</script>&\"".to_owned();
    let page = Html(&Report::new(&read(&file(&start, &[(busy(2), None)], Some(Ending::Complete))))).to_string();
    for part in ["<svg", "class=\"bar\"", "lock0lock.cc:5872", "<title>armtrace report: MySQL 9.7.4"] {
        assert!(page.contains(part), "{part}");
    }
    for outside in ["<script", "http://", "https://", "url(", "@import", " src="] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;&amp;&quot;"));
}

#[test]
fn folded_stacks_add_up_to_all_wait_time() {
    let recording = read(&busy_file(30));
    let folded = Folded(&recording).to_string();
    assert!(folded.contains("mysql 9.7.4;wait/synch/mutex/innodb/trx_mutex;lock0lock.cc:5872 3100000\n"), "{folded}");
    let sum: u64 = folded.lines().map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum();
    let wait = Report::new(&recording).totals.wait;
    assert!((sum as f64 / 1e6 - wait).abs() < 1e-3, "{sum} µs of {wait} s");
    assert!(folded.lines().all(|line| line.split(';').count() <= 3), "{folded}");
}
