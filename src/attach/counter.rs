//! Counters of kernel and CPU events.

use std::fs::File;
use std::io::{self, Read};
use std::iter::Sum;
use std::ops::{Add, Sub};

use libbpf_rs::libbpf_sys;

use super::perf::{event, open_event, Event, Scope};

/// An event to count, in the form that `perf_event_open` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Countable {
    /// `PERF_TYPE_…`, or the number of a device in `/sys/bus/event_source/devices`.
    pub kind: u32,
    /// The event of that kind or device, in its own encoding.
    pub config: u64,
    /// The second configuration word; 0 for most events.
    pub config1: u64,
}

/// The scope of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// The calling thread, in user mode only.
    Own,
    /// A thread and all threads that it starts from now on, in user mode only.
    Thread(libc::pid_t),
    /// A device that all CPUs share, read through this CPU.
    Device(i32),
}

/// An open counter. Dropping it stops the counting.
#[derive(Debug)]
pub struct Counter(File);

/// The reading of one counter, or the sum of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// How often the event occurred while the counter was running.
    pub count: u64,
    /// The time for which the counter was enabled, in nanoseconds.
    pub enabled_ns: u64,
    /// The time for which it really counted, in nanoseconds. This is less where there are more events than hardware
    /// counters.
    pub running_ns: u64,
}

impl Counter {
    /// Opens a counter that starts counting at once.
    ///
    /// # Errors
    /// Fails when the kernel refuses: missing privilege, or no hardware that counts such events.
    pub fn open(what: Countable, whose: Whose) -> io::Result<Counter> {
        let mut attr = Event {
            read_format: u64::from(
                libbpf_sys::PERF_FORMAT_TOTAL_TIME_ENABLED | libbpf_sys::PERF_FORMAT_TOTAL_TIME_RUNNING,
            ),
            ..event(what.kind, what.config)
        };
        attr.__bindgen_anon_3.config1 = what.config1;
        let scope = match whose {
            Whose::Own => Scope::OwnThread,
            Whose::Thread(thread) => Scope::Thread(thread),
            Whose::Device(cpu) => Scope::Cpu(cpu),
        };
        // Devices know no CPU modes and refuse to filter by them.
        if !matches!(whose, Whose::Device(_)) {
            attr.set_exclude_kernel(1);
            attr.set_exclude_hv(1);
        }
        attr.set_inherit(u64::from(matches!(whose, Whose::Thread(_))));
        Ok(Counter(File::from(open_event(&attr, scope)?)))
    }

    /// Reads the count so far, including threads that have ended.
    ///
    /// # Errors
    /// Fails when the kernel refuses the read.
    pub fn read(&self) -> io::Result<Reading> {
        let mut bytes = [0; 24];
        (&self.0).read_exact(&mut bytes)?;
        let number = |at: usize| bytes[at..at + 8].try_into().map_or(0, u64::from_ne_bytes);
        Ok(Reading { count: number(0), enabled_ns: number(8), running_ns: number(16) })
    }
}

impl Reading {
    /// Returns the count scaled to the whole enabled time, or `None` if the counter never ran.
    pub fn scaled(self) -> Option<f64> {
        (self.running_ns > 0).then(|| self.count as f64 * self.enabled_ns as f64 / self.running_ns as f64)
    }

    /// Returns the share of the enabled time that was counted, 0 to 1, or `None` if the counter was never enabled.
    pub fn running_ratio(self) -> Option<f64> {
        (self.enabled_ns > 0).then(|| self.running_ns as f64 / self.enabled_ns as f64)
    }
}

impl Add for Reading {
    type Output = Reading;

    fn add(self, other: Reading) -> Reading {
        Reading {
            count: self.count + other.count,
            enabled_ns: self.enabled_ns + other.enabled_ns,
            running_ns: self.running_ns + other.running_ns,
        }
    }
}

impl Sum for Reading {
    fn sum<I: Iterator<Item = Reading>>(readings: I) -> Reading {
        readings.fold(Reading::default(), Add::add)
    }
}

impl Sub for Reading {
    type Output = Reading;

    /// Returns the increase since an earlier reading.
    fn sub(self, earlier: Reading) -> Reading {
        Reading {
            count: self.count.saturating_sub(earlier.count),
            enabled_ns: self.enabled_ns.saturating_sub(earlier.enabled_ns),
            running_ns: self.running_ns.saturating_sub(earlier.running_ns),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::mpsc::channel;

    use memmap2::{Advice, MmapMut};

    use super::*;

    /// First-touch page faults, which any machine counts exactly.
    pub(crate) const PAGE_FAULTS: Countable = Countable {
        kind: libbpf_sys::PERF_TYPE_SOFTWARE,
        config: libbpf_sys::PERF_COUNT_SW_PAGE_FAULTS as u64,
        config1: 0,
    };

    /// Returns whether this user may count events at all: some distributions' kernels allow only root.
    pub(crate) fn permitted() -> bool {
        let refused = [Some(libc::EACCES), Some(libc::EPERM)];
        let opened = Counter::open(PAGE_FAULTS, Whose::Own);
        !opened.is_err_and(|error| refused.contains(&error.raw_os_error()))
    }

    /// Touches this many new pages, causing one fault each.
    pub(crate) fn touch_pages(pages: usize) {
        const PAGE: usize = 65536;
        let mut memory = MmapMut::map_anon(pages * PAGE).unwrap();
        // Huge pages would cause fewer faults.
        _ = memory.advise(Advice::NoHugePage);
        memory.iter_mut().step_by(PAGE).for_each(|byte| *byte = 1);
        std::hint::black_box(&memory);
    }

    fn is_about(count: u64, pages: u64) -> bool {
        // A thread also touches a few pages of its own.
        (pages..pages + 200).contains(&count)
    }

    #[test]
    fn own_events_are_counted() {
        if !permitted() {
            return;
        }
        let counter = Counter::open(PAGE_FAULTS, Whose::Own).unwrap();
        let before = counter.read().unwrap();
        touch_pages(1000);
        let counted = counter.read().unwrap() - before;
        assert!(is_about(counted.count, 1000), "{counted:?}");
        assert!(counted.running_ns > 0 && counted.running_ratio() == Some(1.0), "{counted:?}");
    }

    #[test]
    fn a_thread_counts_with_those_that_it_starts() {
        if !permitted() {
            return;
        }
        let (tell, thread) = channel();
        let (go, may_go) = channel::<()>();
        let work = std::thread::spawn(move || {
            tell.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
            may_go.recv().unwrap();
            touch_pages(300);
            std::thread::spawn(|| touch_pages(700)).join().unwrap();
        });
        let counter = Counter::open(PAGE_FAULTS, Whose::Thread(thread.recv().unwrap())).unwrap();
        go.send(()).unwrap();
        work.join().unwrap();
        // A joined thread may not be quite gone yet.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while counter.read().unwrap().count < 1000 && std::time::Instant::now() < deadline {
            std::thread::yield_now();
        }
        let reading = counter.read().unwrap();
        assert!(is_about(reading.count, 1000), "{reading:?}");
    }

    #[test]
    fn a_count_of_part_of_the_time_is_scaled() {
        let reading = Reading { count: 30, enabled_ns: 400, running_ns: 100 };
        assert_eq!((reading.scaled(), reading.running_ratio()), (Some(120.0), Some(0.25)));
        let never = Reading { enabled_ns: 400, ..Reading::default() };
        assert_eq!((never.scaled(), never.running_ratio()), (None, Some(0.0)));
        assert_eq!(Reading::default().running_ratio(), None);
    }

    #[test]
    fn nothing_counts_events_of_a_device_that_is_not_there() {
        let nothing = Countable { kind: u32::MAX, config: 0, config1: 0 };
        let refused = Counter::open(nothing, Whose::Own).unwrap_err();
        assert!(!permitted() || refused.raw_os_error() == Some(libc::ENOENT), "{refused}");
    }
}
