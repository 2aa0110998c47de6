//! Replays: a snapshot that was recorded and is replayed yields the metrics that it yielded live.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use armtrace::export::Exporter;
use armtrace::measure::checksum::{ChecksumCalls, Implementation};
use armtrace::measure::cpu::{OrderingTime, StatementCpu};
use armtrace::measure::latch::{self, Account, Handoffs, LatchWaits, Locality, StatementWaits};
use armtrace::measure::{checksum, cpu, locks, Snapshot};
use armtrace::model::{CpuClass, Histogram, HostInfo, Kind, Mode, ProbeState, TargetInfo, BUCKETS};
use armtrace::recording::{Ending, Recorder, Recording, Replay, Start};
use lab::http::get;
use lab::repository;
use lab::snapshots::{self, busy, callsite, checksum, empty, handoffs, page, probe, reacquires, spin, INDEX, TRX};
use parking_lot::Mutex;
use proptest::prelude::*;

use crate::{busy_seconds, file, read, start};

/// The families that recordings do not hold, and those of armtrace's own process.
const NOT_HELD: [&str; 13] = [
    "armtrace_overhead_budget_ratio",
    "armtrace_probe_hits_total",
    "armtrace_probe_cost_seconds_total",
    "armtrace_probe_state",
    "armtrace_probe_turns_seconds_total",
    "armtrace_probe_hit_cost_seconds",
    "armtrace_perf_events_total",
    "armtrace_perf_event_running_ratio",
    "armtrace_perf_events_by_function_total",
    "armtrace_getcpu_calls_total",
    "armtrace_lock_waiting_threads",
    "armtrace_lock_longest_current_wait_seconds",
    "process_",
];

/// Serves snapshots, each as long as it is the newest.
struct Served {
    now: Arc<Mutex<Snapshot>>,
    exporter: Exporter,
}

impl Served {
    fn new() -> Served {
        let now = Arc::new(Mutex::new(Snapshot::default()));
        let source = Arc::clone(&now);
        Served { now, exporter: Exporter::new(Arc::new(move || source.lock().clone())).unwrap() }
    }

    /// Returns the samples of a scrape.
    fn samples(&self, snapshot: Snapshot) -> BTreeSet<String> {
        *self.now.lock() = snapshot;
        let text = self.exporter.metrics().unwrap();
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
    }

    /// Returns the samples of a scrape that a recording of this snapshot holds: of causes of lost events, it has those
    /// that occurred.
    fn held(&self, snapshot: Snapshot) -> BTreeSet<String> {
        let mut samples = self.samples(snapshot);
        let is_held = |line: &str| !NOT_HELD.iter().any(|family| line.starts_with(family));
        samples
            .retain(|line| is_held(line) && !(line.starts_with("armtrace_lost_events_total") && line.ends_with(" 0")));
        samples
    }
}

fn replay(recording: Recording, repeats: bool) -> Replay {
    Replay::new(recording, "busy.rec".to_owned(), repeats)
}

/// Checks that each second of a recording of these snapshots has the metrics that the snapshot had.
fn assert_replayed(seconds: Vec<(Snapshot, Option<u64>)>) {
    let mut replay = replay(read(&file(&start(64), &seconds, Some(Ending::Complete))), false);
    let (live, replayed) = (Served::new(), Served::new());
    for (snapshot, statements) in seconds {
        replay.advance_to(snapshot.elapsed);
        let live = live.held(Snapshot { statements, ..snapshot });
        let replayed = replayed.held(replay.snapshot());
        let only = |a: &BTreeSet<String>, b: &BTreeSet<String>| a.difference(b).cloned().collect::<Vec<_>>();
        assert_eq!((only(&live, &replayed), only(&replayed, &live)), (vec![], vec![]), "only live; only replayed");
    }
}

/// Returns the server of [`start`], which has another build than the hand-built snapshots'.
fn target() -> TargetInfo {
    let Start { host, server, .. } = start(64);
    let host = HostInfo {
        kernel: host.kernel,
        server_cpus: host.server_cpus,
        ghz: host.ghz,
        numa_nodes: host.numa_nodes,
        page_bytes: host.page_bytes,
    };
    TargetInfo { build_id: server.build_id, host, ..empty().target }
}

/// Returns some seconds of the busy server, which has a sample in each family.
fn busy_server(seconds: u64) -> Vec<(Snapshot, Option<u64>)> {
    let of = |(snapshot, queries)| (Snapshot { target: target(), ..snapshot }, queries);
    busy_seconds(seconds).into_iter().map(of).collect()
}

#[test]
fn a_busy_server_is_replayed() {
    assert_replayed(busy_server(30));
}

/// While nothing is measured, the metrics are absent, and then go on where they were.
#[test]
fn a_rest_of_the_probes_of_locks_is_replayed() {
    let mut seconds = busy_server(30);
    for (second, (snapshot, _)) in (1_u64..).zip(&mut seconds) {
        let rested = second.clamp(10, 20) - 10;
        snapshot.locks.rests = (11..=20).contains(&second);
        let ns = rested * 1_000_000_000;
        snapshot.locks.rested = (ns > 0).then_some(locks::Rested { ns }).into_iter().collect();
    }
    assert!(seconds.iter().any(|(snapshot, _)| !snapshot.locks.waits.is_empty()));
    assert_replayed(seconds);
}

#[test]
fn a_replay_without_probes_has_times_only() {
    let mut replay = replay(crate::sampled_recording(3), false);
    replay.advance_to(Duration::from_secs(3));
    let samples = Served::new().samples(replay.snapshot());
    let has = |family: &str| samples.iter().any(|line| line.starts_with(family));
    assert!(has("armtrace_latch_sampled_wait_seconds_total") && !has("armtrace_latch_wait_seconds_"));
}

#[test]
fn what_recordings_do_not_hold_is_absent() {
    let mut replay = replay(read(&file(&start(64), &busy_server(3), Some(Ending::Complete))), false);
    replay.advance_to(Duration::from_secs(3));
    let samples = Served::new().samples(replay.snapshot());
    for family in NOT_HELD.iter().filter(|family| **family != "process_") {
        assert!(!samples.iter().any(|line| line.starts_with(family)), "{family}");
    }
    // Without statements, CPU time and an end, these are unknown too.
    let idle = Snapshot { elapsed: Duration::from_secs(1), ..empty() };
    let mut replay = self::replay(read(&file(&start(64), &[(idle, None)], None)), false);
    for time in [Duration::ZERO, Duration::from_secs(1)] {
        replay.advance_to(time);
        let samples = Served::new().samples(replay.snapshot());
        let names: BTreeSet<&str> = samples.iter().filter_map(|line| line.split(['{', ' ']).next()).collect();
        let ours: Vec<&str> = names.into_iter().filter_map(|name| name.strip_prefix("armtrace_")).collect();
        assert_eq!(ours, ["build_info", "target_cpu_max_hertz", "target_cpus", "target_info", "target_up"]);
    }
}

#[test]
fn figures_change_at_the_end_of_a_second() {
    let mut replay = replay(read(&file(&start(64), &busy_server(3), None)), false);
    let seconds = [0.0, 0.9, 1.0, 1.999, 2.0, 3.0, 99.0, 1.0];
    let elapsed = seconds.map(|at| {
        replay.advance_to(Duration::from_secs_f64(at));
        replay.snapshot().elapsed.as_secs()
    });
    assert_eq!(elapsed, [0, 0, 1, 1, 2, 3, 3, 3], "it never goes back");
    assert!(replay.is_over());
}

#[test]
fn the_server_ends_with_its_recording() {
    let is_up = |ending, at, repeats| {
        let mut replay = replay(read(&file(&start(64), &busy_server(3), ending)), repeats);
        replay.advance_to(Duration::from_secs(at));
        replay.snapshot().up
    };
    assert!(is_up(Some(Ending::ServerEnded), 2, false) && !is_up(Some(Ending::ServerEnded), 3, false));
    assert!(!is_up(Some(Ending::ServerEnded), 3, true) && is_up(Some(Ending::ServerEnded), 4, true));
    assert!(is_up(Some(Ending::Interrupted), 3, false) && is_up(None, 3, false));
}

#[test]
fn counters_go_on_growing_when_it_repeats() {
    let recording = read(&file(&start(64), &busy_server(3), Some(Ending::Complete)));
    let mut replay = replay(recording, true);
    let mut at = |seconds| {
        replay.advance_to(Duration::from_secs(seconds));
        let snapshot = replay.snapshot();
        let trx = snapshot.latch.waits.iter().find(|row| row.latch == TRX).map_or(0, |row| row.waits.count);
        (snapshot.elapsed.as_secs(), trx, snapshot.statements.unwrap(), snapshot.server_cpu_ns.unwrap() / 1_000_000_000)
    };
    assert_eq!(at(3), (3, 400, 3000, 8));
    assert_eq!(at(4), (4, 600, 4000, 12), "the first second also has what was counted while attaching");
    assert_eq!(at(3000), (3000, 400_000, 3_000_000, 8000));
    assert!(!replay.is_over());
}

/// A latch that gets its name while recording takes its waits with it.
#[test]
fn a_row_whose_waits_have_moved_is_gone() {
    let at = |second: u64, name: &str| {
        let waits = vec![snapshots::latch(name, Kind::Mutex, Mode::None, 10 * second, 1000)];
        let latch = latch::Figures { waits, ..empty().latch };
        (Snapshot { elapsed: Duration::from_secs(second), latch, ..empty() }, None)
    };
    let mut replay = replay(read(&file(&start(1), &[at(1, "unnamed:f"), at(2, TRX)], None)), false);
    let mut names = |second| {
        replay.advance_to(Duration::from_secs(second));
        let rows = replay.snapshot().latch.waits;
        rows.into_iter().map(|row| (row.latch, row.waits.count)).collect::<Vec<_>>()
    };
    assert_eq!(names(1), [("unnamed:f".to_owned(), 10)]);
    assert_eq!(names(2), [(TRX.to_owned(), 20)]);
}

/// Where the rows are too many for each pair of domains, the locality of handoffs is all that is known.
#[test]
fn the_locality_of_handoffs_between_many_domains_is_kept() {
    let of = |i: u64| {
        let name = format!("wait/synch/mutex/innodb/m{i}");
        [handoffs(&name, Some("0"), "0", 1), handoffs(&name, Some("0"), "1", 2), handoffs(&name, None, "1", 4)]
    };
    let latch = latch::Figures { handoffs: (0..100).flat_map(of).collect(), ..empty().latch };
    let snapshot = Snapshot { elapsed: Duration::from_secs(1), latch, ..empty() };
    let mut replay = replay(read(&file(&start(1), &[(snapshot, None)], None)), false);
    replay.advance_to(Duration::from_secs(1));
    let rows = replay.snapshot().latch.handoffs;
    assert!(rows.iter().any(|row| row.from.is_none() && row.locality.is_some()), "a row for several");
    let count = |locality| rows.iter().filter(|row| row.locality == locality).map(|row| row.count).sum::<u64>();
    assert_eq!([Some(Locality::Local), Some(Locality::Remote), None].map(count), [100, 200, 400]);
}

/// What a server counted up to some second: each number belongs to one figure.
type Counters = Vec<u64>;

const COUNTERS: usize = 45;

/// Returns a snapshot with these counters. Rows that counted nothing do not exist, as in real ones.
fn snapshot_of(second: u64, counters: &Counters) -> Snapshot {
    let mut next = counters.iter().copied();
    let mut count = || next.next().unwrap();
    let mut waits = |latch: &str, kind, mode| {
        let mut waits = Histogram::default();
        for bucket in [0, 7, BUCKETS - 1] {
            waits.buckets[bucket] = count();
        }
        waits.count = waits.buckets.iter().sum();
        (waits.sum_ns, waits.max_ns) = (count() * 10_000, waits.count);
        let half = waits.sum_ns / 2;
        LatchWaits {
            latch: latch.to_owned(),
            kind,
            mode,
            sleep_ns: half,
            sleeps: waits.count,
            spin_cpu_ns: half / 2,
            spins_won: waits.count / 3,
            spins_wasted: waits.count / 4,
            estimated_ns: half / 3,
            variance_us2: half / 5,
            waits,
        }
    };
    let latches = vec![
        waits(TRX, Kind::Mutex, Mode::None),
        waits(INDEX, Kind::Sxlock, Mode::X),
        waits(INDEX, Kind::Sxlock, Mode::S),
        waits("wait/synch/cond/sql/COND_thread_cache", Kind::Cond, Mode::None),
        waits("other", Kind::Mutex, Mode::None),
    ];
    let has_waited = |row: &LatchWaits| row.waits.count + row.waits.sum_ns > 0;
    let handed = |latch: &str, from, to, n| Handoffs { wait_ns: n * 3, ..handoffs(latch, from, to, n) };
    Snapshot {
        elapsed: Duration::from_secs(second),
        target: target(),
        spin: Some(spin()),
        probes: vec![probe("futex_enter", ProbeState::Attached, count(), Some(140.0))],
        lost: vec![("map_full".to_owned(), count()), ("no_start".to_owned(), count())],
        server_cpu_ns: Some(1 + count()),
        latch: latch::Figures {
            waits: latches.into_iter().filter(has_waited).collect(),
            reacquires: vec![reacquires(TRX, 1 + count(), count())],
            callsites: vec![
                callsite(TRX, Mode::None, "a.cc:1", count()),
                callsite(INDEX, Mode::X, "b.cc:2", count()),
                callsite(INDEX, Mode::S, "b.cc:2", count()),
            ],
            pages: vec![page("db/t", "PRIMARY", Some(0), count()), page("db/t", "", None, count())],
            domains: vec!["0".to_owned(), "1".to_owned()],
            handoffs: vec![
                handed(TRX, Some("0"), "1", 1 + count()),
                handed(TRX, Some("1"), "1", 1 + count()),
                handed(INDEX, None, "0", 1 + count()),
            ],
            statements: vec![
                snapshots::statement(TRX, Mode::None, "COMMIT", 1 + count()),
                snapshots::statement(INDEX, Mode::X, StatementWaits::NOTHING, 1 + count()),
            ],
            call_stacks: vec![
                snapshots::call_stack(TRX, Mode::None, "do_command;f", 1 + count()),
                snapshots::call_stack(INDEX, Mode::X, "do_command;g", 1 + count()),
            ],
            sleeps_seen: true,
            sampled: false,
        },
        cpu: cpu::Figures {
            time: vec![
                snapshots::cpu(CpuClass::Other, "other", 1 + count()),
                snapshots::cpu(CpuClass::Checksum, "crc32", 1 + count()),
            ],
            ordering: vec![OrderingTime {
                instruction: "dmb ish".to_owned(),
                function: "f".to_owned(),
                ns: 1 + count(),
            }],
            statements: vec![StatementCpu {
                digest: "a1".to_owned(),
                statement: "SELECT ?".to_owned(),
                account: Account { user: "app".to_owned(), schema: String::new() },
                samples: 1 + count(),
                ordering_samples: count(),
            }],
            getcpu_calls: None,
        },
        checksum: checksum::Figures {
            chosen: vec![checksum("crc32", Implementation::Hardware)],
            calls: vec![ChecksumCalls {
                function: "crc32".to_owned(),
                implementation: Implementation::Hardware,
                calls: 1 + count(),
                bytes: count(),
            }],
        },
        barriers: vec![("dmb ish".to_owned(), 10)],
        ..empty()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Some seconds add nothing to some figures, and others much.
    #[test]
    fn any_server_is_replayed(
        increases in proptest::collection::vec(
            proptest::collection::vec(prop_oneof![Just(0), 0..100_u64, 0..1_u64 << 32], COUNTERS), 1..8),
        statements in proptest::option::of(0..1_000_000_u64),
    ) {
        let mut counters = vec![0; COUNTERS];
        let seconds = (1..).zip(&increases).map(|(second, increase)| {
            counters.iter_mut().zip(increase).for_each(|(counter, more)| *counter += more);
            (snapshot_of(second, &counters), statements.map(|n| n * second))
        });
        assert_replayed(seconds.collect());
    }
}

/// A replay by the built program, on a port of its own. Dropping it kills it.
struct Replayed {
    child: Child,
    address: String,
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_armtrace"));
    command.arg("replay").args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let hangups_count = || {
        // SAFETY: installs no handler.
        unsafe { libc::signal(libc::SIGHUP, libc::SIG_DFL) };
        Ok(())
    };
    // These tests may run under nohup, which armtrace would respect.
    // SAFETY: only calls a function that may be called between fork and exec.
    unsafe { command.pre_exec(hangups_count) };
    command
}

impl Replayed {
    fn start(args: &[&str]) -> Replayed {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let address = format!("127.0.0.1:{port}");
        let child = command(&[args, &["--listen", &address]].concat()).spawn().expect("cannot run armtrace");
        let replayed = Replayed { child, address };
        replayed.wait_until_served();
        replayed
    }

    fn wait_until_served(&self) {
        let began = Instant::now();
        while get(&self.address, "/healthz").is_err() {
            assert!(began.elapsed() < Duration::from_secs(20), "it serves nothing");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn signal(&self, signal: i32) {
        // SAFETY: a signal to our own child, which has not been waited for.
        unsafe { libc::kill(self.child.id() as i32, signal) };
    }

    fn body(&self, path: &str) -> String {
        get(&self.address, path).unwrap().body
    }

    /// Returns the output once it has exited.
    fn output(mut self) -> Output {
        let status = self.child.wait().unwrap();
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        self.child.stdout.take().unwrap().read_to_end(&mut stdout).unwrap();
        self.child.stderr.take().unwrap().read_to_end(&mut stderr).unwrap();
        Output { status, stdout, stderr }
    }
}

impl Drop for Replayed {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// Returns a sum over the samples of a metric in a scrape, without those of condition variables.
fn sum_of(scrape: &str, metric: &str) -> f64 {
    let samples = scrape.lines().filter(|line| line.starts_with(&format!("{metric}{{")));
    samples.map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()).sum()
}

/// Checks the last scrape of a replay of this fixture, which is so many seconds long.
fn assert_scraped_as_reported(fixture: &str, length: &str) {
    let file = repository(&format!("tests/fixtures/{fixture}")).display().to_string();
    let replayed = Replayed::start(&[&file, "--speed", "100", "--stay"]);
    let began = Instant::now();
    while !replayed.body("/").contains(", over") {
        assert!(began.elapsed() < Duration::from_secs(20), "{}", replayed.body("/"));
        std::thread::sleep(Duration::from_millis(20));
    }
    let scrape = replayed.body("/metrics");
    let report = Command::new(env!("CARGO_BIN_EXE_armtrace")).args(["report", &file, "--format", "json"]).output();
    let report: serde_json::Value = serde_json::from_slice(&report.unwrap().stdout).unwrap();
    let number = |pointer: &str| report.pointer(pointer).and_then(serde_json::Value::as_f64);
    let waits = number("/totals/waits").unwrap();
    let scraped = sum_of(&scrape, "armtrace_latch_wait_seconds_count");
    assert!(waits > 1000.0 && scraped == waits, "{scraped}, reported {waits}");
    for (metric, pointer) in [
        ("armtrace_latch_wait_seconds_sum", "/totals/wait"),
        ("armtrace_latch_sleep_seconds_total", "/totals/sleep"),
        ("armtrace_latch_spin_seconds_total", "/totals/spin"),
    ] {
        let (scraped, reported) = (sum_of(&scrape, metric), number(pointer).unwrap());
        assert!((scraped - reported).abs() < 1e-6 * reported, "{metric}: {scraped}, reported {reported}");
    }
    let overhead = scrape.lines().find_map(|line| line.strip_prefix("armtrace_overhead_ratio "));
    let overhead = overhead.map(|ratio| ratio.parse::<f64>().unwrap());
    let reported = number("/totals/probe_cost").map(|cost| cost / number("/totals/server_cpu").unwrap());
    assert!(overhead.zip(reported).is_none_or(|(a, b)| (a - b).abs() < 1e-9), "{overhead:?}, reported {reported:?}");
    assert_eq!(overhead.is_some(), reported.is_some());
    assert!(replayed.body("/").contains(&format!("REPLAY of {fixture}, {length} recorded")));
}

#[test]
fn the_last_scrape_has_the_sums_of_the_report() {
    // Of real servers, one of which has not the probes' cost in the last second, and of a made-up one.
    assert_scraped_as_reported("mysql-8.0.31.rec", "40s");
    assert_scraped_as_reported("recording-v1-handoffs.rec", "12s");
    assert_scraped_as_reported("recording-v1-wake-ups.rec", "40s");
}

#[test]
fn it_ends_with_the_recording() {
    let file = repository("tests/fixtures/recording-v1-handoffs.rec").display().to_string();
    let began = Instant::now();
    let output = Replayed::start(&[&file, "--speed", "8"]).output();
    let took = began.elapsed().as_secs_f64();
    assert!((1.4..12.0).contains(&took), "12 s at 8 times the speed took {took} s");
    let (shown, error) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(0), "{error}");
    assert_eq!(error, format!("armtrace: {file}: 12s replayed\n"));
    assert!(shown.starts_with("MySQL 9.7.4") && shown.contains("REPLAY of recording-v1-handoffs.rec"), "{shown}");
    assert!(shown.contains(", over\n"), "the last figures are shown: {shown}");
}

#[test]
fn a_signal_ends_it() {
    let file = repository("tests/fixtures/recording-v1.rec").display().to_string();
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        let mut replayed = Replayed::start(&[&file, "--loop", "--speed", "1000"]);
        let mut line = String::new();
        BufReader::new(replayed.child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        replayed.signal(signal);
        assert!(replayed.child.wait().unwrap().success(), "{signal}");
    }
}

#[test]
fn other_signals_do_not_end_it() {
    let file = repository("tests/fixtures/recording-v1.rec").display().to_string();
    let mut replayed = Replayed::start(&[&file, "--loop"]);
    // A replay cannot pause.
    replayed.signal(libc::SIGUSR1);
    replayed.signal(libc::SIGUSR2);
    std::thread::sleep(Duration::from_millis(100));
    assert!(replayed.child.try_wait().unwrap().is_none(), "it was killed");
    assert!(replayed.body("/healthz").contains("ok"));
}

/// As `nohup armtrace` does.
#[test]
fn a_hangup_that_is_ignored_does_not_end_it() {
    let file = repository("tests/fixtures/recording-v1.rec").display().to_string();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("127.0.0.1:{port}");
    let mut nohup = Command::new("nohup");
    nohup.arg(env!("CARGO_BIN_EXE_armtrace")).args(["replay", &file, "--loop", "--listen", &address]);
    nohup.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut replayed = Replayed { child: nohup.spawn().unwrap(), address };
    replayed.wait_until_served();
    replayed.signal(libc::SIGHUP);
    std::thread::sleep(Duration::from_millis(100));
    assert!(replayed.child.try_wait().unwrap().is_none(), "it was ended");
}

#[test]
fn usage_is_checked() {
    let file = repository("tests/fixtures/recording-v1.rec").display().to_string();
    let said = |args: &[&str]| {
        let output = command(args).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (status, error) = said(&[&file, &file]);
    assert!(status == Some(2) && error.contains("is given twice") && error.lines().count() == 1, "{error}");
    let (status, error) = said(&[&file, "--top"]);
    assert!(status == Some(2) && error.contains("needs a terminal"), "{error}");
    for args in [&[][..], &[&file, "--speed", "0"], &[&file, "--loop", "--stay"], &[&file, "--top", "--listen", ":1"]] {
        assert_eq!(said(args).0, Some(2), "{args:?}");
    }
}

/// A file that was cut short is played up to its last whole second.
#[test]
fn a_missing_end_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("short.rec");
    let mut bytes = Vec::new();
    let mut recorder = Recorder::begin(&mut bytes, &start(1), None).unwrap();
    recorder.second(&busy(1), None).unwrap();
    std::fs::write(&path, &bytes).unwrap();
    let output = Replayed::start(&[path.to_str().unwrap(), "--speed", "0.5"]).output();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && error.contains("its end is missing"), "{error}");
}
