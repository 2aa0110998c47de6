//! Comparisons, checked against cases computed by hand.

use armtrace::measure::locks::ROW_LOCK;
use armtrace::measure::{checksum, cpu, files, fsync, latch, locks};
use std::time::Duration;

use armtrace::measure::checksum::{ChecksumCalls, Implementation};
use armtrace::measure::cpu::OrderingTime;
use armtrace::measure::files::FileOperation;
use armtrace::measure::latch::{Handoffs, LatchWaits};
use armtrace::measure::spin::SpinSettings;
use armtrace::measure::Snapshot;
use armtrace::model::{CpuClass, Histogram, Kind, Mode};
use armtrace::recording::compare::{Claim, Comparison, Dump, Html, Options, Per, Scaling, Side, Text, Unit};
use armtrace::recording::{Ending, Start};

use crate::{file, read, sampled_recording, start};
use lab::snapshots::{
    self, checksum, cpu, empty, file_waits, flushes, handoffs, latch, reacquires, COND_MUTEX, INDEX, TRX,
};

const SECONDS: u64 = 60;

/// A system's load per second: the number of waits of 1 ms for TRX and for INDEX, and of statements.
#[derive(Clone, Copy)]
struct Load {
    trx: u64,
    index: u64,
    queries: u64,
}

/// Returns a minute of this load, in which the number of waits varies by a tenth.
fn side(name: &str, start: &Start, load: Load) -> Side {
    let mut sums = (0, 0, 0);
    let seconds: Vec<(Snapshot, Option<u64>)> = (1..=SECONDS)
        .map(|second| {
            let wave = 90 + second * 8 % 21;
            sums = (sums.0 + load.trx * wave / 100, sums.1 + load.index * wave / 100, sums.2 + load.queries);
            let trx = latch(TRX, Kind::Mutex, Mode::None, 1, 1_000_000);
            let index = latch(INDEX, Kind::Sxlock, Mode::X, 1, 1_000_000);
            let latches = [times(LatchWaits { sleep_ns: 0, ..trx }, sums.0), times(index, sums.1)];
            let snapshot = Snapshot {
                elapsed: Duration::from_secs(second),
                server_cpu_ns: Some(second * 1_500_000_000),
                latch: latch::Figures {
                    waits: latches.into_iter().filter(|latch| latch.waits.count > 0).collect(),
                    ..empty().latch
                },
                ..empty()
            };
            (snapshot, Some(sums.2))
        })
        .collect();
    Side::of_recording(name, &read(&file(start, &seconds, Some(Ending::Complete))), None)
}

/// Multiplies the figures of a latch with one wait.
fn times(one: LatchWaits, times: u64) -> LatchWaits {
    let waits = Histogram {
        buckets: one.waits.buckets.map(|n| n * times),
        count: times,
        sum_ns: one.waits.sum_ns * times,
        max_ns: one.waits.max_ns,
    };
    LatchWaits { waits, sleep_ns: one.sleep_ns * times, sleeps: times, ..one }
}

fn near(a: f64, b: f64) -> bool {
    (a / b - 1.0).abs() < 0.02
}

#[test]
fn waits_are_compared_by_second_statement_and_cpu() {
    let a = side("a", &start(64), Load { trx: 100, index: 300, queries: 1000 });
    let mut b_start = start(64);
    b_start.host.server_cpus = Some(8);
    b_start.host.ghz = Some(2.0);
    b_start.server.settings.insert("innodb_spin_wait_delay".to_owned(), "30".to_owned());
    let b = side("b", &b_start, Load { trx: 600, index: 300, queries: 2000 });
    let options = Options { ghz: [None, Some(1.5)], price: [Some(10.0), Some(40.0)], ..Options::default() };
    let comparison = Comparison::new(&a, &b, options);

    assert_eq!(comparison.per, Per::Query);
    let trx = comparison.changes.iter().find(|row| row.latch == TRX).unwrap();
    assert_eq!(trx.claim, Claim::More);
    let by = |per| trx.wait(per).unwrap();
    // 100 and 600 waits of 1 ms per second.
    assert!(
        near(by(Per::Second).a, 0.1) && near(by(Per::Second).b, 0.6) && near(by(Per::Second).ratio.unwrap().value, 6.0)
    );
    // Per 1,000 statements, A has the same and B half.
    assert!(
        near(by(Per::Query).a, 0.1) && near(by(Per::Query).b, 0.3) && near(by(Per::Query).ratio.unwrap().value, 3.0)
    );
    // Divided by 2 and by 8 CPUs.
    assert!(near(by(Per::Core).a, 0.05) && near(by(Per::Core).b, 0.075));
    assert_eq!(trx.awake, [Some(1.0), Some(1.0)]);
    // The other latch clearly has half the wait time per statement.
    let index = comparison.changes.iter().find(|row| row.latch == INDEX).unwrap();
    assert_eq!((index.claim, index.awake), (Claim::Less, [Some(0.5), Some(0.5)]));
    // The larger difference comes first: 0.2 s for 1,000 statements, against 0.15 s.
    assert_eq!(comparison.changes[0].latch, TRX);

    assert!(near(comparison.throughput.unwrap().ratio.unwrap().value, 2.0));
    // A at half its clock rate has half its throughput, so B has four times as much.
    let clock = comparison.at_one_clock.unwrap();
    assert_eq!(clock.ghz, [3.0, 1.5]);
    assert!(near(clock.a_scaled, 500.0) && near(clock.ratio.unwrap().value, 4.0));
    // B has twice the throughput at four times the price: half as much per dollar, so A's throughput would cost twice
    // as much on B.
    let cost = comparison.cost_performance.unwrap();
    assert!(near(cost.per_price[0], 100.0) && near(cost.per_price[1], 50.0) && near(cost.ratio.unwrap().value, 0.5));
    assert!(near(cost.saving, -1.0));
    // A's price of 10 buys A's 2 CPUs, or a fourth of B's 8.
    assert_eq!(cost.cores, Some([2.0, 2.0]));
    // 1.5 s of CPU time for 1,000 and for 2,000 statements.
    assert!(near(comparison.server_cpu.unwrap().a, 1.5) && near(comparison.server_cpu.unwrap().b, 0.75));
    assert_eq!(comparison.settings["innodb_spin_wait_delay"], [Some("6".to_owned()), Some("30".to_owned())]);
}

/// Returns half a minute in which threads wait four times a second for this lock, so many milliseconds each, and in
/// which the probes rested for so many of the seconds.
fn waiting_for(lock: &str, ms: u64, rested: u64) -> Side {
    let second = |second: u64| {
        let mut now = snapshots::locks_waited_for(4 * second as usize, 0);
        for row in &mut now.waits {
            row.lock = lock.to_owned();
            row.waits.sum_ns = 4 * second * ms * 1_000_000;
        }
        let ns = second.min(rested) * 1_000_000_000;
        now.rested = (ns > 0).then_some(locks::Rested { ns }).into_iter().collect();
        (Snapshot { elapsed: Duration::from_secs(second), locks: now, ..empty() }, Some(1000 * second))
    };
    let seconds: Vec<_> = (1..=30).map(second).collect();
    Side::of_recording(lock, &read(&file(&start(1), &seconds, Some(Ending::Complete))), None)
}

#[test]
fn waits_for_locks_are_compared_if_both_have_measured_them() {
    let (a, b) = (waiting_for(ROW_LOCK, 50, 0), waiting_for(ROW_LOCK, 100, 0));
    let comparison = Comparison::new(&a, &b, Options::default());
    let [row] = &comparison.parts.locks.lock_waits[..] else { panic!("{:?}", comparison.parts.locks) };
    assert_eq!((row.lock.as_str(), comparison.per), (ROW_LOCK, Per::Query));
    // Four waits per 1,000 statements.
    assert!(near(row.wait.a, 0.2) && near(row.wait.b, 0.4) && near(row.wait.ratio.unwrap().value, 2.0), "{row:?}");
    let text = Text(&comparison).to_string();
    let line = text.lines().find(|line| line.starts_with("wait for a row lock, per 1,000 statements"));
    assert!(line.is_some_and(|line| line.contains("200ms") && line.contains("400ms")), "{text}");
    // One whose probes rested has not all waits; the other measures no waits for rows.
    for other in [waiting_for(ROW_LOCK, 100, 5), waiting_for("table metadata lock", 100, 0)] {
        let comparison = Comparison::new(&a, &other, Options::default());
        assert!(comparison.parts.locks.lock_waits.is_empty(), "{:?}", comparison.parts.locks);
    }
}

#[test]
fn flushes_are_compared_by_what_one_takes() {
    let flushing = |event, per_second: u64, ns| {
        let second = |second: u64| {
            let calls = vec![flushes(event, per_second * second, ns)];
            let fsync = fsync::Figures { calls, rests: false };
            (Snapshot { elapsed: Duration::from_secs(second), fsync, ..empty() }, None)
        };
        let seconds: Vec<_> = (1..=30).map(second).collect();
        Side::of_recording("x", &read(&file(&start(1), &seconds, Some(Ending::Complete))), None)
    };
    let of = |a: &Side, b: &Side| Comparison::new(a, b, Options::default());
    let log = "innodb/innodb_log_file";
    let (a, b) = (flushing(log, 100, 1_000_000), flushing(log, 300, 4_000_000));
    let rows = of(&a, &b).parts.fsync.fsyncs;
    let [row] = &rows[..] else { panic!("{rows:?}") };
    assert!(near(row.mean.a, 0.001) && near(row.mean.b, 0.004) && near(row.mean.ratio.unwrap().value, 4.0), "{row:?}");
    let text = Text(&of(&a, &b)).to_string();
    assert!(text.contains("flush of innodb_log_file, mean"), "{text}");
    assert!(of(&a, &flushing("sql/binlog", 100, 1_000_000)).parts.fsync.fsyncs.is_empty(), "of other files");
    assert!(of(&a, &flushing(log, 0, 1_000_000)).parts.fsync.fsyncs.is_empty(), "no flush");
}

#[test]
fn waits_for_files_are_compared_if_both_have_measured_them() {
    let waiting = |operation, ms: Option<u64>| {
        let second = |second: u64| {
            let row = |ms| file_waits("innodb/innodb_log_file", operation, "", ms * second * 1_000_000);
            let files = files::Figures { waits: ms.map(row).into_iter().collect() };
            (Snapshot { elapsed: Duration::from_secs(second), files, ..empty() }, Some(1000 * second))
        };
        let seconds: Vec<_> = (1..=30).map(second).collect();
        Side::of_recording("x", &read(&file(&start(1), &seconds, Some(Ending::Complete))), None)
    };
    let rows = |a: &Side, b: &Side| Comparison::new(a, b, Options::default()).parts.files.file_waits;
    let (a, b) = (waiting(FileOperation::Sync, Some(50)), waiting(FileOperation::Sync, Some(150)));
    let [row] = &rows(&a, &b)[..] else { panic!("one row") };
    assert!(near(row.wait.a, 0.05) && near(row.wait.b, 0.15) && near(row.wait.ratio.unwrap().value, 3.0), "{row:?}");
    let text = Text(&Comparison::new(&a, &b, Options::default())).to_string();
    assert!(text.contains("wait for files, innodb_log_file sync, per 1,000 statements"), "{text}");
    let both = rows(&a, &waiting(FileOperation::Read, Some(10)));
    assert_eq!(both.iter().map(|row| row.operation).collect::<Vec<_>>(), [FileOperation::Sync, FileOperation::Read]);
    assert!(rows(&a, &waiting(FileOperation::Sync, None)).is_empty(), "the other has not measured it");
}

#[test]
fn a_recording_does_not_differ_from_itself() {
    let load = Load { trx: 100, index: 300, queries: 1000 };
    let (a, b) = (side("a", &start(1), load), side("b", &start(1), load));
    let comparison = Comparison::new(&a, &b, Options::default());
    assert!(comparison.changes.is_empty(), "{:?}", comparison.changes);
    assert_eq!((comparison.unclear.len(), comparison.at_one_clock), (2, None));
    assert!(comparison.remarks.is_empty() && comparison.settings.is_empty(), "{:?}", comparison.remarks);
    assert!(Text(&comparison).to_string().contains("no latch clearly differs"));
}

#[test]
fn a_latch_on_one_side_only_is_reported_as_such() {
    let a = side("a", &start(1), Load { trx: 100, index: 0, queries: 1000 });
    let b = side("b", &start(1), Load { trx: 100, index: 100, queries: 1000 });
    let comparison = Comparison::new(&a, &b, Options::default());
    assert_eq!((comparison.changes[0].latch.as_str(), comparison.changes[0].claim), (INDEX, Claim::OnlyB));
    assert_eq!(Comparison::new(&b, &a, Options::default()).changes[0].claim, Claim::OnlyA);
    assert!(Text(&comparison).to_string().contains("only B"));
}

#[test]
fn without_statements_waits_are_compared_per_second() {
    let counted = side("a", &start(1), Load { trx: 100, index: 10, queries: 1000 });
    let recording = read(&file(&start(1), &[(snapshots::busy(1), None)], Some(Ending::Complete)));
    let uncounted = Side::of_recording("b", &recording, None);
    let comparison = Comparison::new(&counted, &uncounted, Options::default());
    assert_eq!((comparison.per, comparison.throughput), (Per::Second, None));
    assert!(comparison.remarks.iter().any(|remark| remark.contains("--mysql")));
    assert!(comparison.remarks.iter().any(|remark| remark.contains("No difference is called clear")));
    assert!(comparison.changes.is_empty());
    // The user can supply the number of statements per second.
    let comparison = Comparison::new(&counted, &Side::of_recording("b", &recording, Some(500.0)), Options::default());
    assert!(near(comparison.throughput.unwrap().b, 500.0));
}

/// Returns a minute in which the server computes and spins for these numbers of milliseconds per second, and waits for
/// TRX for one second per second.
fn computing(name: &str, start: &Start, other: u64, spin: u64, won: u64) -> Side {
    let seconds: Vec<(Snapshot, Option<u64>)> = (1..=SECONDS)
        .map(|second| {
            let wave = second % 2;
            let spun = LatchWaits {
                spin_cpu_ns: second * spin * 1_000_000,
                spins_won: second * won,
                spins_wasted: second * (10 - won),
                ..times(latch(TRX, Kind::Mutex, Mode::None, 1, 100_000_000), second * 10)
            };
            let snapshot = Snapshot {
                elapsed: Duration::from_secs(second),
                spin: Some(SpinSettings { turn_ns: won as f64, ..snapshots::spin() }),
                latch: latch::Figures { waits: vec![spun], ..empty().latch },
                cpu: cpu::Figures {
                    time: vec![
                        cpu(CpuClass::Other, "execute", (second * other + wave) * 1_000_000),
                        cpu(CpuClass::Spin, "ut_delay", (second * spin + wave) * 1_000_000),
                    ],
                    ..empty().cpu
                },
                checksum: checksum::Figures {
                    chosen: vec![checksum(name, Implementation::Software)],
                    ..empty().checksum
                },
                ..empty()
            };
            (snapshot, Some(second * 1000))
        })
        .collect();
    Side::of_recording(name, &read(&file(start, &seconds, Some(Ending::Complete))), None)
}

#[test]
fn cpu_time_is_compared_by_class_and_spinning_by_latch() {
    let (a, b) = (computing("a", &start(1), 600, 400, 8), computing("b", &start(1), 600, 1200, 2));
    let comparison = Comparison::new(&a, &b, Options::default());
    let [spin, other] = &comparison.cpu[..] else { panic!("{:?}", comparison.cpu) };
    // 0.4 s of 1 s, and 1.2 s of 1.8 s, for 1,000 statements.
    assert_eq!((spin.class, spin.used.claim), ("spin", Claim::More));
    let by = spin.used.cpu(Per::Query).unwrap();
    assert!(near(by.a, 0.4) && near(by.b, 1.2) && near(by.ratio.unwrap().value, 3.0), "{by:?}");
    assert!(near(spin.used.share[0], 0.4) && near(spin.used.share[1], 2.0 / 3.0), "{spin:?}");
    let core = spin.used.cpu(Per::Core).unwrap();
    assert!(near(core.a, 0.2) && near(core.b, 0.6), "{core:?}");
    assert_eq!((other.class, other.used.claim), ("other", Claim::Unclear));
    let [low, high] = other.used.cpu(Per::Query).unwrap().ratio.unwrap().interval.unwrap();
    assert!(low <= 1.0 && high >= 1.0, "{low} to {high}");
    // Per second of wait, all waiters together spun for 0.4 s and 1.2 s, and won 8 and 2 of 10 spins.
    let trx = comparison.unclear.iter().find(|row| row.latch == TRX).unwrap();
    assert!(near(trx.spinning[0].unwrap(), 0.4) && near(trx.spinning[1].unwrap(), 1.2), "{trx:?}");
    assert!(near(trx.spins_won[0].unwrap(), 0.8) && near(trx.spins_won[1].unwrap(), 0.2), "{trx:?}");
    // 150 turns in each of 30 rounds take 36 and 9 µs.
    let [turn, spun] = [comparison.parts.spin.spin_turn.unwrap(), comparison.parts.spin.spin_before_sleep.unwrap()];
    assert!(near(turn[0], 8e-9) && near(turn[1], 2e-9) && near(spun[0], 36e-6) && near(spun[1], 9e-6), "{spun:?}");
    assert_eq!(comparison.code["crc32c of pages and redo log"][1].as_deref(), Some("b, in software"));
    assert!(comparison
        .remarks
        .iter()
        .any(|remark| remark.starts_with("A: crc32c of pages and redo log is computed in software")));
    let text = Text(&comparison).to_string();
    for words in
        ["CPU time per 1,000 statements, by class", "     40% 120%     80%  20%\n", "one turn of the spin loop"]
    {
        assert!(text.contains(words), "{words:?} is not in:\n{text}");
    }
    let page = Html(&comparison).to_string();
    assert!(page.contains("<h2>CPU time by class</h2>") && page.contains("<td>b, in software</td>"), "{page}");
}

/// Returns a minute of 1,000 statements per second, with these numbers of handoffs of TRX within a node and between
/// nodes, each after a wait of 1 ms.
fn with_handoffs(start: &Start, local: u64, remote: u64, instruction: &str, ordering_ms: u64) -> Side {
    let seconds: Vec<(Snapshot, Option<u64>)> = (1..=SECONDS)
        .map(|second| {
            let cell =
                |from, n| Handoffs { wait_ns: second * n * 1_000_000, ..handoffs(TRX, Some(from), "0", second * n) };
            let ordering = |function: &str, ms| OrderingTime {
                instruction: instruction.to_owned(),
                function: function.to_owned(),
                ns: second * ms * 1_000_000,
            };
            let snapshot = Snapshot {
                elapsed: Duration::from_secs(second),
                latch: latch::Figures {
                    waits: vec![times(latch(TRX, Kind::Mutex, Mode::None, 1, 1_000_000), second * (local + remote))],
                    handoffs: vec![cell("0", local), cell("1", remote)],
                    ..empty().latch
                },
                cpu: cpu::Figures {
                    time: vec![
                        cpu(CpuClass::Checksum, "crc32c", second * 200_000_000),
                        cpu(CpuClass::Other, "f", second * 800_000_000),
                    ],
                    ordering: vec![ordering("mutex_enter_inline", ordering_ms), ordering("other", 10)],
                    ..empty().cpu
                },
                checksum: checksum::Figures {
                    calls: vec![ChecksumCalls {
                        function: "crc32c".to_owned(),
                        implementation: Implementation::Hardware,
                        calls: second / 5 * 10,
                        bytes: second / 5 * 1024 * local,
                    }],
                    ..empty().checksum
                },
                ..empty()
            };
            (snapshot, Some(second * 1000))
        })
        .collect();
    Side::of_recording("x", &read(&file(start, &seconds, Some(Ending::Complete))), None)
}

#[test]
fn handoffs_barriers_and_checksums_are_compared() {
    let a = with_handoffs(&start(1), 300, 100, "lock cmpxchg", 40);
    let b = with_handoffs(&start(1), 100, 300, "casal", 80);
    let comparison = Comparison::new(&a, &b, Options::default());
    let handoffs = comparison.handoffs.as_ref().unwrap();
    let row = &handoffs.latches[0];
    // 0.1 s and 0.3 s for 1,000 statements: a quarter and three quarters of the wait.
    assert_eq!((row.latch.as_str(), row.claim), (TRX, Claim::More));
    assert!(
        near(row.wait(Per::Query).unwrap().a, 0.1) && near(row.wait(Per::Query).unwrap().ratio.unwrap().value, 3.0),
        "{row:?}"
    );
    assert!(near(row.remote_share[0].unwrap(), 0.25) && near(row.share_ratio.unwrap().value, 3.0), "{row:?}");
    assert!(near(handoffs.moved[0].unwrap(), 0.2), "{handoffs:?}");
    let ordering = comparison.ordering.as_ref().unwrap();
    // 50 ms and 90 ms of a second, grouped by what the instructions do, not by their names.
    let [group] = &ordering.groups[..] else { panic!("{ordering:?}") };
    assert_eq!((group.group, group.used.claim), ("atomic", Claim::More));
    assert_eq!(group.most.clone().map(Option::unwrap), ["lock cmpxchg", "casal"]);
    assert!(near(group.used.share[0], 0.05) && near(group.used.cpu(Per::Query).unwrap().ratio.unwrap().value, 1.8));
    let [function] = &ordering.functions[..] else { panic!("{ordering:?}") };
    assert!(near(function.used.cpu(Per::Second).unwrap().ratio.unwrap().value, 2.0), "{function:?}");
    // 12 s for 12 times 300 KiB, and for 12 times 100 KiB.
    let cost = comparison.checksum_cost.unwrap();
    assert!(near(cost.a, 12.0 / 3600.0) && near(cost.b, 12.0 / 1200.0), "{cost:?}");
    let text = Text(&comparison).to_string();
    for words in [
        "remote share of handoffs' wait         25.0%     75.0%     3.00  3.00 to 3.00\n",
        "atomic: lock cmpxchg, casal ",
        "  mutex_enter_inline ",
        "remote handoffs, by wait per 1,000 statements        A        B      B/A  95 % interval   share A      B\n",
    ] {
        assert!(text.contains(words), "{words:?} is not in:\n{text}");
    }
    let page = Html(&comparison).to_string();
    assert!(
        page.contains("<h2>Remote handoffs</h2>") && page.contains("<h2>CPU time of barriers and atomics</h2>"),
        "{page}"
    );
    // Two equal sides: nothing is claimed.
    let same = Comparison::new(&a, &a, Options::default());
    let (handoffs, ordering) = (same.handoffs.unwrap(), same.ordering.unwrap());
    assert_eq!((handoffs.all.claim, handoffs.latches[0].claim), (Claim::Unclear, Claim::Unclear));
    assert!(ordering.groups.iter().all(|row| row.used.claim == Claim::Unclear));
}

#[test]
fn handoffs_are_compared_only_if_both_sides_have_them() {
    let cores = Start { places: vec!["cpus 0".to_owned(), "cpus 1".to_owned()], ..start(1) };
    let none = Start { places: Vec::new(), ..start(1) };
    let nodes = with_handoffs(&start(1), 300, 100, "lock cmpxchg", 40);
    let remarks = |b: &Start| {
        let comparison = Comparison::new(&nodes, &with_handoffs(b, 300, 100, "lock cmpxchg", 40), Options::default());
        (comparison.handoffs.is_some(), comparison.remarks.join("\n"))
    };
    let (is_compared, text) = remarks(&none);
    assert!(!is_compared && text.contains("B has no handoffs to compare"), "{text}");
    let (is_compared, text) = remarks(&cores);
    assert!(is_compared && text.contains("between NUMA nodes on A, and between groups of CPUs on B"), "{text}");
}

#[test]
fn cpu_time_is_compared_only_if_both_sides_have_samples() {
    let sampled = computing("a", &start(1), 600, 400, 8);
    let unsampled = side("b", &start(1), Load { trx: 100, index: 10, queries: 1000 });
    let comparison = Comparison::new(&sampled, &unsampled, Options::default());
    assert!(comparison.cpu.is_empty() && comparison.parts.spin.spin_turn.is_none() && comparison.code.is_empty());
    let trx = comparison.changes.iter().find(|row| row.latch == TRX).unwrap();
    assert!(trx.spinning[0].is_some() && trx.spinning[1].is_none(), "{trx:?}");
    assert!(!Text(&comparison).to_string().contains("by class"));
}

/// Returns a minute with waits for TRX, and with reacquires of a condition variable's mutex.
fn woken(name: &str, milliseconds: u64) -> Side {
    let second = |n: u64| Snapshot {
        elapsed: Duration::from_secs(n),
        latch: latch::Figures {
            waits: vec![times(latch(TRX, Kind::Mutex, Mode::None, 1, 1_000_000), 100 * n)],
            reacquires: vec![reacquires(COND_MUTEX, 100 * n, milliseconds * 1_000_000 * n)],
            ..empty().latch
        },
        ..empty()
    };
    let seconds: Vec<_> = (1..=SECONDS).map(|n| (second(n), Some(1000 * n))).collect();
    Side::of_recording(name, &read(&file(&start(1), &seconds, Some(Ending::Complete))), None)
}

#[test]
fn reacquires_are_compared_separately_from_waits() {
    let comparison = Comparison::new(&woken("a", 200), &woken("b", 600), Options::default());
    assert!(near(comparison.all.wait(Per::Second).unwrap().b, 0.1), "reacquires are not in the sum");
    assert!(comparison.changes.iter().chain(&comparison.unclear).all(|row| row.latch == TRX));
    let [row] = &comparison.reacquires[..] else { panic!("{:?}", comparison.reacquires) };
    let wait = row.wait(Per::Second).unwrap();
    assert!(row.latch == COND_MUTEX && near(wait.a, 0.2) && near(wait.b, 0.6) && row.awake == [None; 2], "{row:?}");
    assert_eq!(row.claim, Claim::More);
    let text = Text(&comparison).to_string();
    assert!(text.contains("woken by a condition, waiting for its mutex        A        B"), "{text}");
    assert!(Html(&comparison).to_string().contains("<h2>Wake-ups</h2>"));
}

/// In older recordings reacquires are part of the waits for the latch, so they cannot be compared.
#[test]
fn reacquires_are_not_compared_with_recordings_that_include_them_in_waits() {
    let old = Start { reacquires_seen: false, ..start(1) };
    let second = |n: u64| (Snapshot { elapsed: Duration::from_secs(n), ..empty() }, Some(1000 * n));
    let seconds: Vec<_> = (1..=SECONDS).map(second).collect();
    let old = Side::of_recording("old", &read(&file(&old, &seconds, Some(Ending::Complete))), None);
    assert!(Comparison::new(&old, &woken("b", 600), Options::default()).reacquires.is_empty());
}

/// A recording without probes can be compared by time, but not by the number of waits.
#[test]
fn recordings_without_probes_are_compared_by_time() {
    let counted = Side::of_recording("a", &read(&crate::busy_file(30)), None);
    let sampled = Side::of_recording("b", &crate::sampled_recording(30), None);
    for sides in [[&counted, &sampled], [&sampled, &counted], [&sampled, &sampled]] {
        let comparison = Comparison::new(sides[0], sides[1], Options::default());
        assert!(near(comparison.all.wait(Per::Second).unwrap().ratio.unwrap().value, 1.0));
        let rows = comparison.changes.iter().chain(&comparison.unclear).chain([&comparison.all]);
        assert!(rows.flat_map(|row| &row.by).all(|by| by.waits.is_none()));
        let remarks = comparison.remarks.iter().filter(|remark| remark.contains("without probes")).count();
        assert_eq!(remarks, sides.iter().filter(|side| std::ptr::eq(**side, &sampled)).count());
        assert!(!Text(&comparison).to_string().contains("waits/s"));
    }
}

/// Looks at stacks may miss a latch that is hardly waited for.
#[test]
fn a_latch_that_looks_missed_is_not_called_the_others() {
    let less = |mut recording: armtrace::recording::Recording| {
        recording.seconds.iter_mut().for_each(|second| second.latches.retain(|delta| delta.row > 0));
        recording
    };
    let of = |recording| Side::of_recording("x", &recording, None);
    let changes = |a: &Side, b: &Side| Comparison::new(a, b, Options::default()).changes.len();
    let [counted, sampled] = [read(&crate::busy_file(30)), crate::sampled_recording(30)];
    assert_eq!(changes(&of(counted.clone()), &of(less(counted))), 1);
    assert_eq!(changes(&of(sampled.clone()), &of(less(sampled))), 0);
}

/// performance_schema counts reacquires as part of the waits for the condition variable.
#[test]
fn reacquires_are_not_compared_with_a_dump() {
    let dump = Dump::parse(&format!("{TRX}\t12\t4000\n"), Unit::S).unwrap();
    let a = Side::of_dump("ps.txt", &dump, Some(60.0), Some(60_000.0));
    assert!(Comparison::new(&a, &woken("b", 600), Options::default()).reacquires.is_empty());
}

#[test]
fn an_old_dump_is_compared_without_claims() {
    let table = format!("{TRX}\t12\t4000\n{INDEX}\t3\t100\nwait/synch/cond/sql/COND_x\t99\t1\n");
    let dump = Dump::parse(&table, Unit::S).unwrap();
    let a = Side::of_dump("ps.txt", &dump, Some(60.0), Some(60_000.0));
    let b = side("b", &start(1), Load { trx: 400, index: 50, queries: 1000 });
    let comparison = Comparison::new(&a, &b, Options::default());
    assert!(comparison.changes.is_empty());
    let trx = comparison.unclear.iter().find(|row| row.latch == TRX).unwrap().wait(Per::Query).copied().unwrap();
    // 12 s in 60 s, and 0.4 s per second.
    assert!(near(trx.a, 0.2) && near(trx.b, 0.4) && near(trx.ratio.unwrap().value, 2.0));
    assert_eq!(trx.ratio.unwrap().interval, None);
    assert!(near(comparison.all.wait(Per::Second).unwrap().a, 0.25), "idle waits are not contention");
    assert!(comparison.remarks.iter().any(|remark| remark.contains("free latch")));
}

/// Returns a dump of 12 s for TRX, and of these seconds for INDEX.
fn dump(index: u32, seconds: Option<f64>, statements: Option<f64>) -> Side {
    let dump = Dump::parse(&format!("{TRX}\t12\t4000\n{INDEX}\t{index}\t100\n"), Unit::S).unwrap();
    Side::of_dump(&format!("{index}.txt"), &dump, seconds, statements)
}

#[test]
fn two_dumps_are_divided_by_what_both_have() {
    let compared = |a: &Side, b: &Side| {
        let comparison = Comparison::new(a, b, Options::default());
        assert!(comparison.changes.is_empty());
        let index = comparison.unclear.iter().find(|row| row.latch == INDEX).unwrap();
        (comparison.per, index.wait(comparison.per).copied().unwrap(), comparison)
    };
    // 4 s and 36 s, for 1,000 and 2,000 statements.
    let (per, wait, comparison) = compared(&dump(4, None, Some(1000.0)), &dump(36, Some(60.0), Some(2000.0)));
    assert!(per == Per::Query && near(wait.a, 4.0) && near(wait.b, 18.0), "{wait:?}");
    assert!(comparison.throughput.is_none() && comparison.all.wait(Per::Second).is_none());
    // 4 s and 36 s, in 10 s and in 60 s.
    let (per, wait, _) = compared(&dump(4, Some(10.0), Some(1.0)), &dump(36, Some(60.0), None));
    assert!(per == Per::Second && near(wait.a, 0.4) && near(wait.b, 0.6), "{wait:?}");
}

#[test]
fn dumps_with_nothing_in_common_are_compared_by_shares_alone() {
    // 4 s of 16 s, and 36 s of 48 s.
    let comparison = Comparison::new(&dump(4, None, Some(1000.0)), &dump(36, Some(60.0), None), Options::default());
    let index = comparison.unclear.iter().find(|row| row.latch == INDEX).unwrap();
    let share = index.wait(Per::Share).unwrap();
    assert!(near(share.a, 0.25) && near(share.b, 0.75) && near(share.ratio.unwrap().value, 3.0), "{share:?}");
    assert!(index.by.iter().all(|by| by.per == Per::Share || by.wait.is_none()), "{index:?}");
    assert!(index.by.iter().all(|by| by.waits.is_none()), "{index:?}");
    let text = Text(&comparison).to_string();
    for words in ["a larger share is not a longer wait", "25.0%    75.0%     3.00", "A  4.txt · performance_schema\n"]
    {
        assert!(text.contains(words), "{words:?} is not in:\n{text}");
    }
    assert!(!text.contains("threads waiting") && !Html(&comparison).to_string().contains("Overall"), "{text}");
}

#[test]
fn html_comparisons_are_self_contained() {
    let a = side("<b>a</b>", &start(1), Load { trx: 100, index: 10, queries: 1000 });
    let b = side("b", &start(1), Load { trx: 300, index: 10, queries: 1000 });
    let page = Html(&Comparison::new(&a, &b, Options::default())).to_string();
    assert!(page.contains("&lt;b&gt;a&lt;/b&gt;") && !page.contains("<b>"), "{page}");
    for outside in ["<script", "http://", "https://", "url(", " src="] {
        assert!(!page.contains(outside), "{outside}");
    }
}

/// Both have waits of 1 ms, B more of them: the shapes are the same.
#[test]
fn lengths_of_waits_are_compared_as_shares() {
    let a = side("a", &start(1), Load { trx: 100, index: 10, queries: 1000 });
    let b = side("b", &start(1), Load { trx: 300, index: 0, queries: 1000 });
    let comparison = Comparison::new(&a, &b, Options::default());
    let [trx, index] = &comparison.distributions[..] else { panic!("{:?}", comparison.distributions) };
    assert_eq!((trx.latch.as_str(), index.latch.as_str()), (TRX, INDEX));
    let shares: Vec<_> = trx.buckets.iter().map(|bucket| (bucket.le, bucket.shares)).collect();
    assert_eq!(shares, [(Some(0.001), [1.0, 1.0])]);
    assert_eq!((index.buckets[0].shares, index.waits[1], index.p99[1]), ([1.0, 0.0], 0, None));
    let page = Html(&comparison).to_string();
    for words in [
        "<h3>How long these waits took</h3>",
        "aria-label=\"Waits for wait/synch/mutex/innodb/trx_mutex by their length. A: median ",
        "p99 995µs, 100 waits per 1,000 statements. B: median",
        " B: no waits",
        "Recorded on db1, 2026-09-21 14:13:20 to 14:14:20 UTC · threads=1",
    ] {
        assert!(page.contains(words), "{words:?} is not in:\n{page}");
    }
    assert!(!page.contains("~ marks"), "nothing is estimated");
}

#[test]
fn estimated_lengths_are_marked() {
    let seconds = |trx: u64| -> Vec<(Snapshot, Option<u64>)> {
        let second = |second: u64| {
            let row = times(latch(TRX, Kind::Mutex, Mode::None, 1, 1_000_000), trx * second);
            let waits = vec![LatchWaits { estimated_ns: row.waits.sum_ns / 4, ..row }];
            let elapsed = Duration::from_secs(second);
            (Snapshot { elapsed, latch: latch::Figures { waits, ..empty().latch }, ..empty() }, Some(1000 * second))
        };
        (1..=SECONDS).map(second).collect()
    };
    let [a, b] = [100, 300]
        .map(|trx| Side::of_recording("<b>", &read(&file(&start(1), &seconds(trx), Some(Ending::Complete))), None));
    let comparison = Comparison::new(&a, &b, Options::default());
    assert_eq!(comparison.distributions[0].estimated, [0.25, 0.25]);
    let page = Html(&comparison).to_string();
    for words in ["~ marks what is partly estimated", "p99 ~995µs, ~100 waits per 1,000 statements. B: median ~"] {
        assert!(page.contains(words), "{words:?} is not in:\n{page}");
    }
}

/// Looks at stacks know no single wait, and neither do dumps.
#[test]
fn unknown_lengths_are_not_drawn() {
    let counted = side("b", &start(1), Load { trx: 300, index: 10, queries: 1000 });
    let sampled = Side::of_recording("a", &sampled_recording(60), None);
    for sides in [[&sampled, &counted], [&counted, &sampled]] {
        let comparison = Comparison::new(sides[0], sides[1], Options::default());
        assert!(!comparison.changes.is_empty() && comparison.distributions.is_empty());
        assert!(!Html(&comparison).to_string().contains("How long these"));
    }
}

/// Returns one load at 1 to 16 threads, of which TRX takes an increasing share.
fn sweep() -> Vec<(f64, Side)> {
    let at = |threads: u64, trx: u64, queries: u64| {
        (
            threads as f64,
            side(&format!("{threads}.rec"), &start(threads as u32), Load { trx, index: queries / 10, queries }),
        )
    };
    vec![at(16, 8000, 5200), at(1, 100, 1000), at(2, 300, 1900), at(4, 800, 3300), at(8, 2500, 4700)]
}

#[test]
fn the_latch_that_stops_scaling_is_found() {
    let scaling = Scaling::new("threads", sweep()).unwrap();
    let numbers: Vec<f64> = scaling.points.iter().map(|point| point.n).collect();
    assert_eq!(numbers, [1.0, 2.0, 4.0, 8.0, 16.0]);
    assert!(near(scaling.points[4].throughput, 5200.0) && near(scaling.points[4].efficiency, 0.325));
    // 8,000 waits of 1 ms per second.
    assert!(near(scaling.points[4].waiting, 8.0 + 0.52));
    assert_eq!(scaling.growing.len(), 1, "the wait for INDEX per statement does not grow: {:?}", scaling.growing);
    let top = &scaling.growing[0];
    assert_eq!(top.latch, TRX);
    // 7.9 of the 15 added threads.
    assert!(near(top.share_of_added, 7.9 / 15.0), "{top:?}");
    // 0.1 ms and 1.54 ms per statement.
    assert!(near(top.per_query.unwrap().value, 8000.0 / 5200.0 * 10.0), "{top:?}");
    assert!(near(scaling.points[4].cpus.unwrap(), 1.5));
    let law = scaling.law.unwrap();
    assert!(law.sigma > 0.0 && law.error < 0.1, "{law:?}");
    let words = scaling.findings.join("\n");
    assert!(words.contains("At 16 threads, throughput is 5.20 times that at 1"), "{words}");
    assert!(words.contains("trx_mutex limits it most: 7.9 of the 15 added threads"), "{words}");
    let notes = scaling.remarks.join("\n");
    assert!(notes.contains("nothing about more than 32 threads") && notes.contains("2 CPUs"), "{notes}");
    assert!(
        Text(&scaling).to_string().contains("innodb/trx_mutex") && Html(&scaling).to_string().contains("<polyline")
    );
}

#[test]
fn scaling_needs_statements_and_two_numbers() {
    let error = |sides| Scaling::new("threads", sides).unwrap_err().to_string();
    assert!(error(sweep().into_iter().take(1).collect()).contains("two recordings"));
    let same = sweep().into_iter().take(1).chain(sweep().into_iter().take(1)).collect();
    assert!(error(same).contains("two different values"));
    let recording = read(&file(&start(4), &[(snapshots::busy(1), None)], None));
    let uncounted = (4.0, Side::of_recording("x.rec", &recording, None));
    assert!(error(sweep().into_iter().chain([uncounted]).collect()).contains("x.rec has no count of statements"));
    let few = Scaling::new("threads", sweep().into_iter().take(3).collect()).unwrap();
    assert!(few.law.is_none() && few.remarks[0].contains("No law"), "{:?}", few.remarks);
}

#[test]
fn loads_that_differ_in_more_than_threads_are_noted() {
    let mut other = start(8);
    other.labels.insert("access".to_owned(), "pareto".to_owned());
    let mut first = start(4);
    first.labels.insert("access".to_owned(), "uniform".to_owned());
    let load = Load { trx: 100, index: 10, queries: 1000 };
    let scaling =
        Scaling::new("threads", vec![(4.0, side("a", &first, load)), (8.0, side("b", &other, load))]).unwrap();
    assert!(scaling.remarks.iter().any(|remark| remark.contains("differ in access too")), "{:?}", scaling.remarks);
}
