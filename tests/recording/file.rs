//! The file format: what is written is read back, and damage is an error.

use armtrace::measure::{cpu, latch};
use std::path::PathBuf;
use std::time::Duration;

use armtrace::measure::cpu::{CpuTime, OrderingTime};
use armtrace::measure::latch::{Handoffs, LatchWaits, Locality};
use armtrace::measure::Snapshot;
use armtrace::model::{CpuClass, Kind, Mode, BUCKET_BOUNDS_NS};
use armtrace::recording::{Code, Ending, FormatError, Handed, Host, Recorder, Recording, Report, Start};

use crate::{busy_file, busy_seconds, file, read, start};
use lab::snapshots::{busy, callsite, cpu, empty, handoffs, latch, page, spin, INDEX, TRX};

/// Returns the path of a file written by an earlier armtrace, which every later one must read with the same result. Its
/// name has the format version and the figures that were new in it.
fn golden(of: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/recording-{of}.rec"))
}

/// Removes the spinning figures, which the first files lack.
fn without_spinning(latch: LatchWaits) -> LatchWaits {
    LatchWaits { spin_cpu_ns: 0, spins_won: 0, spins_wasted: 0, ..latch }
}

/// Removes the errors of estimates, which earlier files lack.
fn without_errors(latches: Vec<LatchWaits>) -> Vec<LatchWaits> {
    sorted(latches.into_iter().map(|latch| LatchWaits { variance_us2: 0, ..latch }).collect())
}

fn sorted(mut latches: Vec<LatchWaits>) -> Vec<LatchWaits> {
    latches.sort_by(|a, b| (&a.latch, a.mode).cmp(&(&b.latch, b.mode)));
    latches
}

fn assert_holds_waits(recording: &Recording, seconds: u64) {
    let last = busy(seconds);
    let Start { places, reacquires_seen, host, .. } = recording.start.clone();
    // Not all versions have these.
    let host = Host { page_bytes: host.page_bytes, ..start(64).host };
    assert_eq!(recording.start, Start { places, reacquires_seen, host, ..start(64) });
    assert_eq!(recording.seconds.len() as u64, seconds);
    assert_eq!(recording.duration(), Duration::from_secs(seconds));
    let waits = |latches: Vec<LatchWaits>| without_errors(latches.into_iter().map(without_spinning).collect());
    assert_eq!(waits(recording.latches()), waits(last.latch.waits.clone()));
    assert_eq!(recording.callsites().len(), last.latch.callsites.len());
    assert_eq!(recording.callsites()[0].wait_ns, 120_000_000 * (seconds + 1));
    assert_eq!(recording.pages(), last.latch.pages);
    assert_eq!(recording.lost(), [("map_full".to_owned(), 3 * (seconds + 1))]);
    assert_eq!(recording.server_cpu_ns(), last.server_cpu_ns);
    assert_eq!(recording.queries(), Some(1000 * seconds));
    let end = recording.end.as_ref().unwrap();
    assert_eq!((end.ending, end.probes.len(), end.static_barriers["dmb ish"]), (Ending::Complete, 3, 10));
}

/// Checks waits and CPU time.
fn assert_holds_cpu(recording: &Recording, seconds: u64) {
    let last = busy(seconds);
    assert_holds_waits(recording, seconds);
    assert_eq!(without_errors(recording.latches()), without_errors(last.latch.waits));
    let by_class = |mut cpu: Vec<CpuTime>| {
        cpu.sort_by_key(|row| row.class);
        cpu
    };
    assert_eq!(by_class(recording.cpu()), by_class(last.cpu.time));
    assert_eq!(recording.code, Code { checksums: last.checksum.chosen, spin: last.spin });
}

/// Checks waits, CPU time, handoffs, ordering instructions and checksum calls.
fn assert_holds_all(recording: &Recording, seconds: u64) {
    let last = busy(seconds);
    assert_holds_cpu(recording, seconds);
    assert_eq!(recording.start.places, last.latch.domains);
    let handed = |row: &Handoffs| Handed { waits: row.count, wait_ns: row.wait_ns, migrations: row.migrations };
    let expected = last
        .latch
        .handoffs
        .iter()
        .map(|row| ((row.latch.clone(), row.from.clone(), row.to.clone(), row.locality), handed(row)));
    let key =
        |key: &armtrace::recording::HandoffKey| (key.latch.clone(), key.from.clone(), key.to.clone(), key.locality());
    // Handoffs with the most wait time come first.
    assert_eq!(
        recording.handoffs().map(|(k, handed)| (key(k), handed)).collect::<Vec<_>>(),
        expected.collect::<Vec<_>>()
    );
    assert_eq!(recording.ordering(), last.cpu.ordering);
    assert_eq!(recording.checksum_calls(), last.checksum.calls);
    assert_eq!(recording.reacquires(), last.latch.reacquires);
}

#[test]
fn what_is_written_is_read() {
    let recording = read(&busy_file(30));
    assert_holds_all(&recording, 30);
    assert_eq!(sorted(recording.latches()), sorted(busy(30).latch.waits));
    let mut statements = busy(30).latch.statements;
    statements.sort_by_key(|row| std::cmp::Reverse(row.samples));
    assert_eq!(recording.statements(), statements);
    let mut statements = busy(30).cpu.statements;
    statements.sort_by_key(|row| std::cmp::Reverse(row.samples));
    assert_eq!(recording.cpu_statements(), statements);
}

#[test]
fn modes_of_call_sites_are_read_back() {
    let bytes = busy_file(30);
    let modes = |bytes: &[u8]| -> Vec<_> {
        read(bytes).callsites().into_iter().map(|site| (site.latch, site.mode, site.callsite)).collect()
    };
    let site = |latch: &str, mode, callsite: &str| (latch.to_owned(), mode, callsite.to_owned());
    let trx = |callsite| site(TRX, Some(Mode::None), callsite);
    let index = |mode| site(INDEX, mode, "btr0cur.cc:971");
    assert_eq!(modes(&bytes), [index(Some(Mode::X)), trx("lock0lock.cc:5872"), trx("trx0trx.cc:1845")]);
    let later = crate::hostile::replaced(&bytes, b"\"mode\":\"x\",\"callsite\"", b"\"mode\":\"q\",\"callsite\"");
    assert_eq!(modes(&later)[0], index(None), "a mode from the future");
}

#[test]
fn the_first_files_of_version_1_are_still_read() {
    let bytes = std::fs::read(golden("v1")).unwrap();
    assert_eq!(bytes[8..12], 1_u32.to_le_bytes());
    let recording = read(&bytes);
    assert_holds_waits(&recording, 5);
    assert!(recording.cpu().is_empty() && recording.code == Code::default());
    assert!(recording.latches().iter().all(|latch| latch.spin_cpu_ns + latch.spins() == 0));
    assert!(recording.callsites().iter().all(|site| site.mode.is_none()));
    let of_index: Vec<_> = Report::new(&recording).latch.latches.into_iter().filter(|l| l.latch == INDEX).collect();
    assert_eq!(of_index.len(), 3, "one row per mode");
    assert!(
        of_index.iter().all(|latch| latch.callsites[0].callsite == "btr0cur.cc:971"),
        "without a mode, a call site belongs to every mode"
    );
}

#[test]
fn files_of_version_1_with_cpu_time_are_still_read() {
    let bytes = std::fs::read(golden("v1-cpu")).unwrap();
    assert_eq!(bytes[8..12], 1_u32.to_le_bytes());
    let recording = read(&bytes);
    assert_holds_cpu(&recording, 5);
    assert!(!recording.has_handoffs() && recording.handoffs().next().is_none());
    assert!(recording.ordering().is_empty() && recording.checksum_calls().is_empty());
    assert!(recording.reacquires().is_empty() && recording.statements().is_empty());
    assert!(recording.cpu_statements().is_empty());
    assert!(Report::new(&recording).cpu.is_some_and(|cpu| cpu.statements.is_empty()));
}

/// The file has 12 seconds of MySQL 9.7.4 under oltp_update_index with 16 threads, from `armtrace record --handoffs
/// core`.
#[test]
fn files_of_version_1_with_handoffs_are_still_read() {
    let bytes = std::fs::read(golden("v1-handoffs")).unwrap();
    assert_eq!(bytes[8..12], 1_u32.to_le_bytes());
    let recording = read(&bytes);
    assert_eq!(recording.start.places, ["cpus 0", "cpus 1"]);
    let report = Report::new(&recording);
    let handoffs = report.handoffs.as_ref().unwrap();
    let sums = &handoffs.all;
    assert_eq!([sums.local.waits, sums.remote.waits, sums.unknown.waits, sums.migrations], [3996, 4366, 24628, 778]);
    // Every contended wait is a handoff, whatever its origin.
    assert_eq!(Some(sums.waits()), report.totals.waits);
    assert_eq!(sums.between(Some("cpus 1"), Some("cpus 0")).waits, 2077);
    assert!((sums.remote.wait - 7.675528664).abs() < 1e-9 && handoffs.latches.len() == 26, "{handoffs:?}");
    let cpu = report.cpu.as_ref().unwrap();
    assert_eq!((cpu.ordering.len(), cpu.instructions()[0].0), (8, "lock cmpxchg"));
    assert!((cpu.ordering_share().unwrap() - 0.10355).abs() < 1e-4, "{:?}", cpu.ordering_share());
    let calls = report.parts.checksum.checksums[0].calls.unwrap();
    assert_eq!((calls.calls, calls.bytes, calls.bursts), (929_211, 1_016_041_034, 1));
    assert_eq!(report.parts.checksum.checksums[0].cpu_per_kib, None, "one burst is not enough for a cost");
}

/// The file has 40 seconds of the busy server, written when each kind of row still had its own writer.
#[test]
fn files_of_version_1_with_reacquires_are_still_read() {
    let bytes = std::fs::read(golden("v1-wake-ups")).unwrap();
    assert_eq!(bytes[8..12], 1_u32.to_le_bytes());
    let recording = read(&bytes);
    assert_holds_all(&recording, 40);
    // Statements, call stacks and holders were not read then, and locks and files not measured.
    let mut seconds = busy_seconds(40);
    for (snapshot, _) in &mut seconds {
        snapshot.locks.waits.clear();
        snapshot.latch.statements.clear();
        snapshot.latch.call_stacks.clear();
        snapshot.holder.blocked.clear();
        snapshot.files.waits.clear();
        snapshot.fsync.calls.clear();
        snapshot.cpu.statements.clear();
    }
    let mut now = read(&file(&start(64), &seconds, Some(Ending::Complete))).seconds;
    // Files then had no errors of estimates.
    now.iter_mut().flat_map(|second| &mut second.latches).for_each(|latch| latch.variance_us2 = 0);
    assert_eq!(recording.seconds, now, "the current writer writes the same");
}

#[test]
fn an_unknown_class_of_cpu_time_is_read_as_other() {
    let text = crate::hostile::replaced(&busy_file(3), b"\"class\":\"futex\"", b"\"class\":\"quantum\"");
    let recording = read(&text);
    let of = |class| CpuTime::sum(recording.cpu().iter().filter(|row| row.class == class));
    assert_eq!((of(CpuClass::Futex), of(CpuClass::Other)), (0, 4 * 1_400_000_000));
}

/// Facts about the code that are found late, or change, replace earlier ones. They are kept when the server has exited.
#[test]
fn the_newest_facts_about_the_code_are_used() {
    let at = |second: u64, spin| Snapshot { elapsed: Duration::from_secs(second), spin, ..empty() };
    let faster = armtrace::measure::spin::SpinSettings { delay: 2, ..spin() };
    let seconds = [at(1, None), at(2, Some(spin())), at(3, Some(faster.clone())), at(4, None)];
    let recording = read(&file(&start(1), &seconds.map(|snapshot| (snapshot, None)), None));
    assert_eq!(recording.code, Code { checksums: Vec::new(), spin: Some(faster) });
    let mut bytes = Vec::new();
    let mut recorder = Recorder::begin(&mut bytes, &start(1), None).unwrap();
    recorder.second(&at(1, None), None).unwrap();
    recorder.end(Ending::Complete, &at(1, Some(spin()))).unwrap();
    assert_eq!(read(&bytes).code.spin, Some(spin()), "facts found at the end are not lost");
}

#[test]
fn each_second_has_its_increase() {
    let recording = read(&busy_file(30));
    let trx = recording.rows.latches.iter().position(|row| row.latch == TRX).unwrap();
    for second in &recording.seconds[1..] {
        let delta = second.latches.iter().find(|delta| delta.row == trx).unwrap();
        assert_eq!((delta.waits, delta.wait_ns, delta.sleep_ns), (100, 150_000_000, 75_000_000));
        assert_eq!(second.queries, Some(1000));
    }
}

/// Waits for an unnamed latch move to another row when the latch gets a name.
#[test]
fn a_latch_that_gets_a_name_keeps_its_waits() {
    let at = |second: u64, latches: Vec<LatchWaits>| Snapshot {
        elapsed: Duration::from_secs(second),
        latch: latch::Figures { waits: latches, ..empty().latch },
        ..empty()
    };
    let unnamed = latch("unnamed:f", Kind::Rwlock, Mode::X, 10, 1_000_000);
    let named = latch(TRX, Kind::Mutex, Mode::None, 25, 1_000_000);
    let recording = read(&file(&start(1), &[(at(1, vec![unnamed]), None), (at(2, vec![named.clone()]), None)], None));
    let latches = recording.latches();
    assert_eq!(latches[0], named);
    assert_eq!((latches[1].latch.as_str(), latches[1].waits.count, latches[1].waits.sum_ns), ("unnamed:f", 0, 0));
    assert!(latches[1].waits.buckets.iter().all(|n| *n == 0));
}

#[test]
fn a_count_of_statements_that_was_reset_is_unknown_and_not_negative() {
    let seconds: Vec<_> =
        [1000, 10, 20].into_iter().zip(1..).map(|(queries, second)| (busy(second), Some(queries))).collect();
    let recording = read(&file(&start(1), &seconds, None));
    let queries: Vec<_> = recording.seconds.iter().map(|second| second.queries).collect();
    assert_eq!((queries, recording.queries()), (vec![Some(1000), None, Some(10)], None));
}

/// Returns the handoffs of a latch on a machine with two nodes, up to this second.
fn cells(i: u64, second: u64) -> impl Iterator<Item = Handoffs> {
    let places = [(Some("0"), "0"), (Some("0"), "1"), (Some("1"), "0"), (Some("1"), "1"), (None, "0"), (None, "1")];
    (1..).zip(places).map(move |(n, (from, to))| Handoffs {
        wait_ns: second * (123_456 + (i + n) * 7_919),
        ..handoffs(&format!("wait/synch/mutex/innodb/m{i}"), from, to, second * (n + i % 17))
    })
}

/// Returns the waits for latch `i` up to a second, in many buckets.
fn waited(i: u64, second: u64) -> LatchWaits {
    let mut waits = LatchWaits {
        estimated_ns: 7 * second,
        variance_us2: 5 * second,
        spin_cpu_ns: second * (23_456 + i * 15_485_863 % 9_999_991),
        spins_won: second * (100 + i),
        spins_wasted: second * (7 + i % 13),
        ..latch(&format!("wait/synch/mutex/innodb/m{i}"), Kind::Mutex, Mode::None, 0, 0)
    };
    for bucket in (i % 9..20).step_by(2) {
        waits.waits.buckets[bucket as usize] = second * (bucket + i * 13 % 101);
    }
    waits.waits.count = waits.waits.buckets.iter().sum();
    waits.waits.sum_ns = second * (1_234_567 + i * 7_919);
    waits.sleep_ns = second * (34_567 + i * 104_729);
    waits
}

/// Returns a snapshot with more rows of every kind than a recording keeps.
fn crowded(second: u64) -> Snapshot {
    Snapshot {
        elapsed: Duration::from_secs(second),
        latch: latch::Figures {
            waits: (0..100).map(|i| waited(i, second)).collect(),
            callsites: (0..500)
                .map(|i| callsite(TRX, Mode::None, &format!("file{i}.cc:{i}"), second * (54_321 + 7_919 * i)))
                .collect(),
            pages: (0..300)
                .map(|i| page(&format!("db/table{i}"), "PRIMARY", Some(0), second * (4_321 + 7_919 * i)))
                .collect(),
            handoffs: (0..100).flat_map(|i| cells(i, second)).collect(),
            ..busy(second).latch
        },
        cpu: cpu::Figures {
            time: (0..300)
                .map(|i| {
                    cpu(
                        CpuClass::Other,
                        &format!("function_{i}(THD*)"),
                        second * (3_000_000 + 32_452_843 * i % 9_999_991),
                    )
                })
                .collect(),
            ordering: (0..200)
                .map(|i| OrderingTime {
                    instruction: "lock cmpxchg".to_owned(),
                    function: format!("function_{i}(THD*)"),
                    ns: second * (300_000 + 15_485_863 * i % 999_983),
                })
                .collect(),
            ..busy(second).cpu
        },
        ..busy(second)
    }
}

/// The server has figures in every kind of row, in every second and in many buckets.
#[test]
fn a_minute_stays_below_a_mebibyte() {
    let seconds: Vec<_> = (1..=60).map(|second| (crowded(second), Some(second * 40_000))).collect();
    let bytes = file(&start(64), &seconds, Some(Ending::Complete));
    println!("{} KiB", bytes.len() / 1024);
    assert!(bytes.len() < 1 << 20, "{} bytes", bytes.len());
    let recording = read(&bytes);
    // The rows beyond the limits are in one, so that sums are right.
    assert_eq!((recording.callsites().len(), recording.pages().len(), recording.cpu().len()), (401, 201, 251));
    // 200 by places, 200 by latch, and two of all others.
    assert_eq!((recording.handoffs().count(), recording.ordering().len()), (402, 151));
    let remote = recording.handoffs().filter(|(key, _)| key.locality() == Some(Locality::Remote));
    let expected: u64 = (0..100)
        .flat_map(|i| cells(i, 60))
        .filter(|row| row.locality == Some(Locality::Remote))
        .map(|row| row.wait_ns)
        .sum();
    assert_eq!(remote.map(|(_, handed)| handed.wait_ns).sum::<u64>(), expected);
    let sum: u64 = (0..200).map(|i| 60 * (300_000 + 15_485_863 * i % 999_983)).sum();
    assert_eq!(recording.ordering().iter().map(|row| row.ns).sum::<u64>(), sum);
    let sum: u64 = (0..300).map(|i| 60 * (3_000_000 + 32_452_843 * i % 9_999_991)).sum();
    assert_eq!(CpuTime::sum(recording.cpu().iter()), sum);
    let sum: u64 = (0..300).map(|i| 60 * (4_321 + 7_919 * i)).sum();
    assert_eq!(recording.pages().iter().map(|page| page.wait_ns).sum::<u64>(), sum);
}

#[test]
fn other_buckets_go_to_where_they_fit() {
    let other = Start { bounds_ns: vec![1_000_000, 3_000_000_000], ..start(1) };
    let mut waits = latch(INDEX, Kind::Sxlock, Mode::S, 0, 0);
    (waits.waits.buckets[0], waits.waits.buckets[1], waits.waits.buckets[2]) = (5, 6, 7);
    let snapshot = Snapshot {
        elapsed: Duration::from_secs(1),
        latch: latch::Figures { waits: vec![waits], ..empty().latch },
        ..empty()
    };
    let latches = read(&file(&other, &[(snapshot, None)], None)).latches();
    let expected = |bound: u64| BUCKET_BOUNDS_NS.partition_point(|mine| *mine < bound);
    let buckets = latches[0].waits.buckets;
    assert_eq!(
        (buckets[expected(1_000_000)], buckets[expected(3_000_000_000)], buckets[BUCKET_BOUNDS_NS.len()]),
        (5, 6, 7)
    );
}

#[test]
fn a_file_cut_short_is_good_up_to_its_last_whole_second() {
    let whole = busy_file(10);
    let mut seconds_seen = 0;
    for length in 0..whole.len() {
        match Recording::read_from(&whole[..length]) {
            Ok(recording) => {
                let seconds = recording.seconds.len();
                assert!(recording.end.is_none() && seconds >= seconds_seen);
                assert_eq!(sorted(recording.latches()), sorted(busy(seconds as u64).latch.waits), "{seconds} seconds");
                seconds_seen = seconds;
            }
            Err(FormatError::NotARecording) => assert!(length < 12, "{length}"),
            Err(FormatError::Empty) => assert_eq!(seconds_seen, 0),
            Err(error) => panic!("{length} bytes: {error}"),
        }
    }
    assert_eq!(seconds_seen, 10);
}

/// A changed byte is either noticed or truncates the recording.
#[test]
fn a_changed_byte_never_changes_a_figure() {
    let whole = busy_file(3);
    let expected = read(&whole);
    for at in 0..whole.len() {
        for change in [0x01, 0x80, 0xff] {
            let mut bytes = whole.clone();
            bytes[at] ^= change;
            if let Ok(recording) = Recording::read_from(&bytes[..]) {
                let seconds = recording.seconds.len();
                assert_eq!(recording.start, expected.start, "byte {at}");
                assert_eq!(recording.seconds, expected.seconds[..seconds], "byte {at}");
            }
        }
    }
}

#[test]
fn foreign_newer_and_damaged_files_have_their_own_errors() {
    let error = |bytes: &[u8]| Recording::read_from(bytes).unwrap_err().to_string();
    let whole = busy_file(2);
    for foreign in [&b""[..], b"x", b"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00", &[0; 100]] {
        assert!(error(foreign).starts_with("it is not an armtrace recording"), "{}", error(foreign));
    }
    let mut newer = whole.clone();
    newer[8] = 2;
    assert!(error(&newer).contains("update armtrace"), "{}", error(&newer));
    let as_text = [&whole[..6], b"\n", &whole[8..]].concat();
    assert!(error(&as_text).contains("copy it as binary"), "{}", error(&as_text));
    let mut damaged = whole.clone();
    *damaged.last_mut().unwrap() ^= 1;
    assert!(error(&damaged).contains("damaged at byte"), "{}", error(&damaged));
    let twice = [&whole[..], &whole[12..]].concat();
    assert!(error(&twice).contains("after its end"), "{}", error(&twice));
}

/// A later armtrace may add kinds of frames.
#[test]
fn frames_of_an_unknown_kind_are_skipped() {
    let whole = file(&start(64), &busy_seconds(3), None);
    let unknown = {
        let body = [0x03, 0x00];
        let mut frame = vec![77_u8, 2, 0, 0, 0];
        let mut crc = crc32fast::Hasher::new();
        crc.update(&frame);
        crc.update(&body);
        frame.extend(crc.finalize().to_le_bytes());
        frame.extend(body);
        frame
    };
    assert_eq!(read(&[whole, unknown].concat()).seconds.len(), 3);
}
