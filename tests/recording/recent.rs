//! The past that is kept in memory: what is asked for is a recording like any other.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use armtrace::measure::latch::LatchWaits;
use armtrace::measure::locks::LockWaits;
use armtrace::model::Histogram;
use armtrace::recording::{Ending, Recent, Recorded, Recording};

use super::{busy_seconds, file, read, start};

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Returns the past of a server that has been busy for this long.
fn kept(busy: u64, keep: u64) -> Recent {
    let recent = Recent::new(start(64), seconds(keep));
    busy_seconds(busy).iter().for_each(|(snapshot, _)| recent.add(snapshot));
    recent
}

/// Returns the last so many seconds, written to a file and read again.
fn asked(recent: &Recent, last: u64, now: u64) -> Recording {
    let files = recent.files(seconds(last), &lab::snapshots::busy(now)).unwrap();
    let parts: Vec<Recording> = files.iter().map(|file| read(file)).collect();
    let joined = Recording::joined(&parts, seconds(last)).unwrap();
    let mut written = Vec::new();
    joined.write(&mut written).unwrap();
    read(&written)
}

/// Returns the waits and the time waited by latch and mode, from this second on.
fn waited(recording: &Recording, from: usize) -> BTreeMap<(String, String), (i64, i64)> {
    let keys = LatchWaits::keys(&recording.rows);
    let mut sums = BTreeMap::<_, (i64, i64)>::new();
    for delta in recording.seconds[from..].iter().flat_map(LatchWaits::deltas) {
        let sum = sums.entry((keys[delta.row].latch.clone(), keys[delta.row].mode.clone())).or_default();
        *sum = (sum.0 + delta.waits, sum.1 + delta.wait_ns);
    }
    sums
}

fn recorded(busy: u64) -> Recording {
    let seconds: Vec<_> = busy_seconds(busy).into_iter().map(|(now, _)| (now.clone(), now.statements)).collect();
    read(&file(&start(64), &seconds, Some(Ending::Complete)))
}

#[test]
fn all_since_attach_is_what_a_recording_has() {
    let (dumped, recorded) = (asked(&kept(200, 900), 900, 200), recorded(200));
    assert_eq!(dumped.latches(), recorded.latches());
    assert_eq!(dumped.callsites(), recorded.callsites());
    assert_eq!(dumped.pages(), recorded.pages());
    assert_eq!(dumped.statements(), recorded.statements());
    assert_eq!(dumped.lost(), recorded.lost());
    assert_eq!(dumped.server_cpu_ns(), recorded.server_cpu_ns());
    assert_eq!(dumped.probe_cost_ns(), recorded.probe_cost_ns());
    assert_eq!(dumped.queries(), recorded.queries());
    assert_eq!(dumped.duration(), recorded.duration());
    assert_eq!((dumped.code, dumped.end), (recorded.code, recorded.end));
}

/// A lock for which nobody waited in the last time is known to be measured.
#[test]
fn locks_without_waits_are_kept() {
    let recent = Recent::new(start(64), seconds(900));
    for (mut snapshot, _) in busy_seconds(100) {
        snapshot.locks.waits.truncate(1);
        snapshot.locks.waits[0].waits = Histogram::default();
        recent.add(&snapshot);
    }
    let dumped = asked(&recent, 20, 100);
    assert_eq!(LockWaits::keys(&dumped.rows), ["row lock"]);
    assert!(dumped.lock_waits().is_empty());
}

#[test]
fn the_last_time_has_what_was_measured_in_it() {
    let recent = kept(200, 900);
    // Within the file that is being written, within one before it, at their border, and across several.
    for last in [5, 19, 20, 21, 60, 100, 199] {
        let dumped = asked(&recent, last, 200);
        assert_eq!(dumped.duration(), seconds(last));
        assert_eq!(waited(&dumped, 0), waited(&recorded(200), 200 - last as usize), "{last} s");
        assert_eq!(dumped.server_cpu_ns(), Some(2_000_000_000 * last), "{last} s");
        assert_eq!(dumped.queries(), Some(100_000 * last), "{last} s");
        assert_eq!(dumped.code, recorded(200).code, "{last} s");
    }
}

#[test]
fn its_beginning_is_the_time_of_its_first_second() {
    let recent = kept(200, 900);
    let (all, last) = (asked(&recent, 900, 200), asked(&recent, 50, 200));
    // The first file began a second before it was added. Of the file that began after two minutes, 30 s are left out.
    // All of that was added just now.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
    assert!(all.start.began_ms.abs_diff(now - 1_000) < 10_000, "{} at {now}", all.start.began_ms);
    assert!(last.start.began_ms.abs_diff(now + 30_000) < 10_000, "{} at {now}", last.start.began_ms);
    assert_eq!(all.start.server, start(64).server);
    assert_eq!(all.start.places, lab::snapshots::busy(1).latch.domains);
}

#[test]
fn it_goes_on_after_it_was_asked() {
    let recent = kept(90, 900);
    let early = asked(&recent, 900, 90);
    assert_eq!(early.duration(), seconds(90));
    busy_seconds(130).iter().skip(90).for_each(|(snapshot, _)| recent.add(snapshot));
    assert_eq!(asked(&recent, 900, 130).latches(), recorded(130).latches());
    // The time since the last second is in it, too.
    assert_eq!(asked(&recent, 900, 131).latches(), recorded(131).latches());
    assert_eq!(recent.reaches(), seconds(131));
}

#[test]
fn what_is_older_than_what_is_kept_is_dropped() {
    let recent = kept(1000, 120);
    let reaches = recent.reaches().as_secs();
    assert!((120..=180).contains(&reaches), "{reaches} s");
    let all = asked(&recent, 3600, 1000);
    assert_eq!(all.duration(), recent.reaches());
    assert_eq!(waited(&all, 0), waited(&recorded(1000), 1000 - reaches as usize));
}

/// A setting is changed while the server is measured.
#[test]
fn a_recording_has_the_settings_of_its_beginning() {
    const SETTING: &str = "innodb_spin_wait_delay";
    let value = Arc::new(AtomicU32::new(6));
    let now = Arc::clone(&value);
    let read = move || BTreeMap::from([(SETTING.to_owned(), now.load(Ordering::Relaxed).to_string())]);
    let recent = Recent::new(start(64), seconds(900)).with_settings(read);
    busy_seconds(100).iter().for_each(|(snapshot, _)| recent.add(snapshot));
    value.store(1, Ordering::Relaxed);
    busy_seconds(200).iter().skip(100).for_each(|(snapshot, _)| recent.add(snapshot));
    for (last, expected) in [(900, "6"), (40, "1")] {
        let settings = asked(&recent, last, 200).start.server.settings;
        assert_eq!(settings[SETTING], expected, "the last {last} s");
        // What cannot be read now is as it was.
        assert!(start(64).server.settings.keys().all(|name| settings.contains_key(name)), "{settings:?}");
    }
    assert_eq!(recent.start_now().server.settings[SETTING], "1");
}
