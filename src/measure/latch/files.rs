//! For how long threads were in system calls for files, without running, as looks at the threads show it.

use foldhash::HashMap;
use parking_lot::Mutex;
use strum::{EnumIter, EnumString, IntoStaticStr};

use super::looks::{Look, SeenThread};
use crate::bpf::latch::types;
use crate::measure::files::Place;
use crate::present::foreign::harmless_in_line;

/// The longest time for which a look stands, in nanoseconds: a little more than the longest interval of looks. Without
/// this, one after a pause would stand for all of it.
const LONGEST_NS: u64 = 1_000_000_000;

/// The most rows. What comes later counts with others of its kind: what was counted for a file stays there.
const MOST_ROWS: usize = 4096;

/// What a thread does with a file.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, IntoStaticStr, EnumString, EnumIter, serde::Serialize,
)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum FileOperation {
    /// It reads.
    Read,
    /// It writes, for which the kernel's cache may have to make room first.
    Write,
    /// It waits until what was written is on the disk.
    Sync,
    /// It makes the file longer or shorter.
    Resize,
}

impl FileOperation {
    /// Returns the value of the `operation` label.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Returns the operation with this name, or `None` if there is none.
    pub fn from_name(name: &str) -> Option<FileOperation> {
        name.parse().ok()
    }

    /// Returns what a system call does, by its number on this machine.
    fn of_call(number: libc::c_long) -> Option<FileOperation> {
        match number {
            libc::SYS_read | libc::SYS_readv | libc::SYS_pread64 | libc::SYS_preadv => Some(FileOperation::Read),
            libc::SYS_write | libc::SYS_writev | libc::SYS_pwrite64 | libc::SYS_pwritev => Some(FileOperation::Write),
            libc::SYS_fsync | libc::SYS_fdatasync | libc::SYS_sync_file_range => Some(FileOperation::Sync),
            libc::SYS_ftruncate | libc::SYS_fallocate => Some(FileOperation::Resize),
            _ => None,
        }
    }
}

/// For how long threads waited.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(in crate::measure) struct FileTime {
    /// In nanoseconds.
    pub ns: u64,
    /// The square of its standard error, in square milliseconds: many threads that wait together have a large one.
    pub variance_ms2: u64,
}

/// The time that threads waited for files, since it was taken last.
#[derive(Default)]
pub(in crate::measure) struct FileTimes {
    pub rows: HashMap<Place, FileTime>,
    /// Whether any look was made.
    pub is_sampled: bool,
}

impl FileTimes {
    /// Takes what was added.
    pub fn take(&mut self) -> FileTimes {
        std::mem::take(self)
    }

    /// Adds what was seen elsewhere, or later.
    pub fn merge(&mut self, more: FileTimes) {
        self.is_sampled |= more.is_sampled;
        more.rows.into_iter().for_each(|(place, time)| self.count(place, time));
    }

    /// Adds so many threads that were seen in a look, which stands for this time.
    fn add(&mut self, place: Place, threads: u64, ns: u64) {
        let ns = threads.saturating_mul(ns);
        // As of a number of threads by chance, all of which come and go together.
        self.count(place, FileTime { ns, variance_ms2: (ns / 1_000_000).saturating_pow(2) });
    }

    fn count(&mut self, place: Place, more: FileTime) {
        let has_room = self.rows.len() < MOST_ROWS || self.rows.contains_key(&place);
        let time = self.rows.entry(if has_room { place } else { place.of_others() }).or_default();
        time.ns = time.ns.saturating_add(more.ns);
        time.variance_ms2 = time.variance_ms2.saturating_add(more.variance_ms2);
    }
}

/// A thread of a look in a system call for a file.
pub(super) struct InFile {
    /// Its index among those of the look.
    pub thread: usize,
    /// The name of the file, and that of the folder which contains it.
    pub name: String,
    pub folder: String,
}

/// Adds to the times what each look shows.
#[derive(Default)]
pub(super) struct FileSampler {
    /// When the last look was, by `CLOCK_MONOTONIC`.
    last_ns: Option<u64>,
}

impl FileSampler {
    /// Adds the threads of a look that are in calls for files.
    pub fn add(&mut self, look: &Look, in_files: &[InFile], times: &Mutex<FileTimes>) {
        let now = look.time_ns;
        let ns = now.saturating_sub(self.last_ns.replace(now).unwrap_or(now)).min(LONGEST_NS);
        let mut seen: HashMap<Place, u64> = HashMap::default();
        for at in in_files {
            let operation = look.threads.get(at.thread).and_then(waits_to);
            let place = operation.map(|operation| Place::new(operation, &at.name, &at.folder));
            place.into_iter().for_each(|place| *seen.entry(place).or_default() += 1);
        }
        let mut times = times.lock();
        times.is_sampled = true;
        seen.into_iter().filter(|_| ns > 0).for_each(|(place, threads)| times.add(place, threads, ns));
    }
}

/// Returns what a thread in a call for a file waits to do; `None` if it runs, or does something else.
fn waits_to(thread: &SeenThread) -> Option<FileOperation> {
    /// The kind of what a thread does in a system call (`bpf/doing.h`).
    const SYSTEM_CALL: u64 = 2;
    // Between two glimpses, a thread may have gone to a CPU. The look itself took the CPU away from one that ran here.
    let is_in_call = thread.doing >> types::doing_bit::DOING_KIND.0 == SYSTEM_CALL && !thread.scheduled.ran_here;
    let number = || (thread.doing & u64::from(u32::MAX)) as libc::c_long;
    is_in_call.then(number).and_then(FileOperation::of_call)
}

/// Returns the text that ends with a zero, as it can be shown in a line.
pub(super) fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    harmless_in_line(&String::from_utf8_lossy(&bytes[..end])).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::latch::looks::Scheduled;
    use strum::IntoEnumIterator;

    fn thread(call: libc::c_long, ran_here: bool) -> SeenThread {
        let state = types::thread_state::THREAD_BLOCKED;
        let scheduled = Scheduled { ran_here, ..Scheduled::default() };
        SeenThread { tid: 7, state, pointer: 0, doing: 2 << 60 | call as u64, seen: None, scheduled }
    }

    fn at(thread: usize) -> InFile {
        InFile { thread, name: "orders.ibd".to_owned(), folder: "shop".to_owned() }
    }

    fn look(time_ns: u64, threads: Vec<SeenThread>) -> Look {
        Look { time_ns, threads, ..Look::default() }
    }

    #[test]
    fn operations_have_names_of_their_own() {
        for operation in FileOperation::iter() {
            assert_eq!(FileOperation::from_name(operation.as_str()), Some(operation));
        }
        assert_eq!(FileOperation::of_call(libc::SYS_fdatasync), Some(FileOperation::Sync));
        assert_eq!(FileOperation::of_call(libc::SYS_io_getevents), None, "threads that wait for work are idle");
    }

    #[test]
    fn a_thread_in_a_call_stands_for_the_time_since_the_last_look() {
        let times: Mutex<FileTimes> = Mutex::default();
        let mut sampler = FileSampler::default();
        let fsync = thread(libc::SYS_fsync, false);
        let runs = SeenThread { doing: 1 << types::doing_bit::DOING_KIND.0, ..fsync };
        let all = [0, 1, 2, 3, 9].map(at);
        let threads = vec![fsync, thread(libc::SYS_fsync, true), fsync, runs];
        assert!(!times.lock().is_sampled);
        sampler.add(&look(1_000_000, threads.clone()), &all, &times);
        assert!(times.lock().rows.is_empty() && times.lock().is_sampled, "before the first look, nothing is known");
        sampler.add(&look(11_000_000, threads.clone()), &all, &times);
        sampler.add(&look(60_000_000_000, threads), &all[..1], &times);
        let rows = times.lock().take().rows;
        let orders = Place::new(FileOperation::Sync, "orders.ibd", "shop");
        let expected = FileTime { ns: 20_000_000 + LONGEST_NS, variance_ms2: 20 * 20 + 1000 * 1000 };
        assert_eq!(rows.into_iter().collect::<Vec<_>>(), [(orders, expected)]);
        assert!(times.lock().rows.is_empty());
    }

    #[test]
    fn names_stay_in_their_line() {
        assert_eq!(text(b"a\x1b[2J\nb\0c"), "a\u{fffd}[2J\u{fffd}b");
    }

    #[test]
    fn rows_are_bounded_and_no_time_is_lost() {
        let mut times = FileTimes::default();
        for n in 0..2 * MOST_ROWS {
            times.add(Place::new(FileOperation::Read, &format!("t{n}.ibd"), "shop"), 1, 5);
        }
        let log = Place::new(FileOperation::Sync, "ib_logfile0", "data");
        times.add(log.clone(), 1, 5);
        let mut all = FileTimes::default();
        all.merge(times);
        let times = all;
        assert_eq!(times.rows[&log.of_others()].ns, 5, "of the kind that it is");
        assert!(times.rows.len() <= MOST_ROWS + 2, "{}", times.rows.len());
        assert_eq!(times.rows.values().map(|time| time.ns).sum::<u64>(), 10 * MOST_ROWS as u64 + 5);
    }
}
