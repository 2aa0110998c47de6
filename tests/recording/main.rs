//! Recordings: written from hand-built snapshots, read, reported and compared. Needs neither root nor a server.

mod compare;
mod export;
mod file;
mod golden;
mod hostile;
mod program;
mod recent;
mod replay;
mod report;

use std::collections::BTreeMap;

use armtrace::measure::Snapshot;
use armtrace::model::{Histogram, BUCKET_BOUNDS_NS};
use armtrace::recording::{Ending, Host, Recorder, Recording, Server, Start};

/// Returns the start of a recording with this number of threads as a label.
fn start(threads: u32) -> Start {
    Start {
        armtrace: "0.1.0".to_owned(),
        began_ms: 1_790_000_000_000,
        host: Host {
            name: "db1".to_owned(),
            kernel: "6.12.1".to_owned(),
            os: Some("openEuler 24.03".to_owned()),
            cpu_model: "Neoverse-N1".to_owned(),
            cpus: 4,
            server_cpus: Some(2),
            ghz: Some(3.0),
            page_bytes: Some(65_536),
            numa_nodes: Some(2),
            memory_bytes: Some(16 << 30),
        },
        server: Server {
            pid: 4242,
            flavor: "mysql".to_owned(),
            version: "9.7.4".to_owned(),
            arch: "aarch64".to_owned(),
            build_id: "5d41402a".to_owned(),
            symbol_source: "dynsym".to_owned(),
            settings: BTreeMap::from([("innodb_spin_wait_delay".to_owned(), "6".to_owned())]),
        },
        labels: BTreeMap::from([("threads".to_owned(), threads.to_string())]),
        bounds_ns: BUCKET_BOUNDS_NS.to_vec(),
        sampled: false,
        sleeps_seen: true,
        reacquires_seen: true,
        places: vec!["0".to_owned(), "1".to_owned()],
    }
}

/// Returns a file of these snapshots, each with the number of statements so far.
fn file(start: &Start, seconds: &[(Snapshot, Option<u64>)], ending: Option<Ending>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut recorder = Recorder::begin(&mut bytes, start, seconds[0].1.map(|_| 0)).unwrap();
    for (snapshot, queries) in seconds {
        recorder.second(snapshot, *queries).unwrap();
    }
    if let Some(ending) = ending {
        recorder.end(ending, &seconds.last().unwrap().0).unwrap();
    }
    bytes
}

/// Returns some seconds of the busy server, with 1,000 statements in each.
fn busy_seconds(seconds: u64) -> Vec<(Snapshot, Option<u64>)> {
    (1..=seconds).map(|second| (lab::snapshots::busy(second), Some(1000 * second))).collect()
}

fn busy_file(seconds: u64) -> Vec<u8> {
    file(&start(64), &busy_seconds(seconds), Some(Ending::Complete))
}

/// Returns a recording of the busy server that was made without probes: its waits have times, and no number.
fn sampled_recording(seconds: u64) -> Recording {
    let times_only = |(mut snapshot, queries): (Snapshot, Option<u64>)| {
        let latch = &mut snapshot.latch;
        latch.sampled = true;
        for row in &mut latch.waits {
            row.waits = Histogram { sum_ns: row.waits.sum_ns, ..Histogram::default() };
            (row.sleeps, row.spins_won, row.spins_wasted) = (0, 0, 0);
            row.estimated_ns = row.waits.sum_ns;
        }
        latch.callsites.iter_mut().for_each(|site| site.waits = 0);
        latch.reacquires.iter_mut().for_each(|row| row.waits = 0);
        latch.pages.clear();
        latch.handoffs.clear();
        (snapshot, queries)
    };
    let seconds: Vec<_> = busy_seconds(seconds).into_iter().map(times_only).collect();
    let start = Start { sampled: true, places: Vec::new(), ..start(64) };
    read(&file(&start, &seconds, Some(Ending::Complete)))
}

fn read(bytes: &[u8]) -> Recording {
    Recording::read_from(bytes).unwrap()
}
