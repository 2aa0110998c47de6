//! Hardware watchpoints, by which each CPU reports accesses to some words of a process's memory.
//!
//! They are opened per CPU rather than per thread. A server can have thousands of threads; each would cost a
//! descriptor, a buffer, and work at its context switches, and threads that start later would be missed. In return,
//! another process that happens to have memory of its own at the same address is reported too; its process ID
//! identifies it.
//!
//! Accesses are read from the kernel's buffers rather than counted by a BPF program. Arm64 kernels that lack the 2023
//! fix to single-stepping (`uses_default_overflow_handler`) do not step over an access whose watchpoint runs a program:
//! the thread would trap again and again. Besides, the order of accesses is needed.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use libbpf_rs::libbpf_sys;
use memmap2::{MmapMut, MmapOptions};
use rustix::param::page_size;

use crate::attach::{control, event, open_event, Control, Event, Scope};
use crate::host::{clock, Machine};

/// The number of bytes that one watchpoint covers.
pub const WORD: u64 = 8;

/// `HW_BREAKPOINT_RW` of `linux/hw_breakpoint.h`. x86 cannot watch for reads alone.
const READS_AND_WRITES: u32 = 3;

/// The contents of each record, in the order in which the kernel writes them.
const SAMPLE: u64 = (libbpf_sys::PERF_SAMPLE_IP
    | libbpf_sys::PERF_SAMPLE_TID
    | libbpf_sys::PERF_SAMPLE_TIME
    | libbpf_sys::PERF_SAMPLE_ADDR
    | libbpf_sys::PERF_SAMPLE_CPU) as u64;

/// The size of a record in bytes: header, instruction pointer, process and thread, time, address, CPU.
const RECORD: usize = 48;

/// An access to a watched word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch {
    /// The time by `CLOCK_MONOTONIC_RAW`, in nanoseconds.
    pub time_ns: u64,
    /// The CPU that reported the access.
    pub cpu: u32,
    /// The process that the thread belongs to, by ID.
    pub pid: u32,
    /// The thread, by ID.
    pub tid: u32,
    /// The address of the watched word.
    pub word: u64,
    /// The instruction pointer as the CPU reports it: after the instruction on x86, at it on arm64.
    pub ip: u64,
    /// Whether the instruction is the kernel's.
    pub is_kernel: bool,
}

/// Watchpoints on all CPUs. Dropping it removes them.
pub struct Watchpoints {
    cpus: Vec<OnCpu>,
}

struct OnCpu {
    events: Vec<OwnedFd>,
    ring: Ring,
}

impl Watchpoints {
    /// Prepares to watch these words, each of which begins at a multiple of [`WORD`]. Each CPU will report at most
    /// `limit` accesses of each.
    ///
    /// # Errors
    /// Fails when the kernel refuses. `ENOSPC`: no watchpoint is free.
    pub fn open(words: &[u64], limit: u32) -> io::Result<Watchpoints> {
        let cpus = Machine::this()
            .online_cpus()
            .into_iter()
            .map(|cpu| OnCpu::open(cpu, words, limit))
            .collect::<io::Result<_>>()?;
        Ok(Watchpoints { cpus })
    }

    /// Starts watching. After a CPU has reported `limit` accesses to a word, it stops watching that word, whatever
    /// happens to this process.
    ///
    /// # Errors
    /// Fails when the kernel refuses.
    pub fn enable(&self, limit: u32) -> io::Result<()> {
        self.each_event(Control::Refresh(limit as i32))
    }

    /// Stops watching.
    ///
    /// # Errors
    /// Fails when the kernel refuses.
    pub fn disable(&self) -> io::Result<()> {
        self.each_event(Control::Disable)
    }

    fn each_event(&self, order: Control) -> io::Result<()> {
        self.cpus.iter().flat_map(|cpu| &cpu.events).try_for_each(|event| control(event, order))
    }

    /// Returns all reported accesses. To be called after watching has stopped.
    pub fn touches(&self) -> Vec<Touch> {
        self.cpus.iter().flat_map(|cpu| cpu.ring.touches()).collect()
    }
}

impl OnCpu {
    fn open(cpu: i32, words: &[u64], limit: u32) -> io::Result<OnCpu> {
        let events = words.iter().map(|&word| open(word, Scope::Cpu(cpu))).collect::<io::Result<Vec<_>>>()?;
        let (first, others) = events.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        // The kernel may report some more before it has disabled an event.
        let ring = Ring::map(first, 2 * limit as usize * words.len() * RECORD)?;
        for other in others {
            control(other, Control::SetOutput(first.as_fd()))?;
        }
        Ok(OnCpu { events, ring })
    }
}

/// Opens a disabled watchpoint.
fn open(word: u64, scope: Scope) -> io::Result<OwnedFd> {
    let mut point = Event {
        sample_type: SAMPLE,
        bp_type: READS_AND_WRITES,
        clockid: libc::CLOCK_MONOTONIC_RAW,
        ..event(libbpf_sys::PERF_TYPE_BREAKPOINT, 0)
    };
    point.__bindgen_anon_1.sample_period = 1;
    point.__bindgen_anon_3.bp_addr = word;
    point.__bindgen_anon_4.bp_len = WORD;
    point.set_disabled(1);
    point.set_use_clockid(1);
    open_event(&point, scope)
}

/// Measures the cost of one access, in nanoseconds, by watching a variable of this process, after checking that CPUs
/// report accesses to it.
///
/// # Errors
/// Fails like [`Watchpoints::open`], and with [`io::ErrorKind::Unsupported`] if watchpoints can be opened but report
/// nothing.
pub fn hit_cost_ns() -> io::Result<f64> {
    prove()?;
    const HITS: u32 = 50;
    const BATCHES: usize = 5;
    let watched = AtomicU64::new(0);
    // Takes the minimum of several runs, because other threads run on this CPU too.
    let write = || {
        let batch = || {
            let begin = now_ns();
            (0..HITS).for_each(|_| watched.store(1, Ordering::Relaxed));
            now_ns().saturating_sub(begin)
        };
        (0..BATCHES).map(|_| batch()).min().unwrap_or(0) as f64
    };
    let bare = write();
    let point = open(std::ptr::from_ref(&watched) as u64, Scope::OwnThread)?;
    control(&point, Control::Refresh(i32::MAX))?;
    let with = write();
    Ok((with - bare).max(0.0) / f64::from(HITS))
}

/// Watches a variable of this process in the same way as a server's latch.
fn prove() -> io::Result<()> {
    const WRITES: u32 = 20;
    let watched = AtomicU64::new(0);
    let points = Watchpoints::open(&[std::ptr::from_ref(&watched) as u64], WRITES)?;
    points.enable(WRITES)?;
    (0..WRITES).for_each(|_| watched.store(1, Ordering::Relaxed));
    points.disable()?;
    let own = std::process::id();
    match points.touches().iter().any(|touch| touch.pid == own) {
        true => Ok(()),
        false => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// Returns the time by the clock of [`Touch::time_ns`].
pub fn now_ns() -> u64 {
    clock::now_ns(libc::CLOCK_MONOTONIC_RAW)
}

/// The memory that the kernel and this process share for an event: a page that says how much was written, then the
/// records.
struct Ring {
    map: MmapMut,
    page: usize,
}

impl Ring {
    fn map(event: &OwnedFd, bytes: usize) -> io::Result<Ring> {
        let page = page_size();
        let pages = bytes.div_ceil(page).next_power_of_two();
        // SAFETY: the mapping is the kernel's buffer for this event, not a file that another process could truncate. It
        // is read only when nothing is written any more.
        let map = unsafe { MmapOptions::new().len((1 + pages) * page).map_mut(event)? };
        Ok(Ring { map, page })
    }

    fn touches(&self) -> Vec<Touch> {
        let head = std::mem::offset_of!(libbpf_sys::perf_event_mmap_page, data_head);
        // SAFETY: the first page holds this structure, and the kernel writes the field atomically.
        let written = unsafe { &*self.map.as_ptr().add(head).cast::<AtomicU64>() }.load(Ordering::Acquire);
        let records = &self.map[self.page..];
        records_of(&records[..records.len().min(written as usize)])
    }
}

/// Parses records into accesses, up to the first that is not a record.
fn records_of(mut bytes: &[u8]) -> Vec<Touch> {
    let mut touches = Vec::new();
    while let Some((header, _)) = bytes.split_first_chunk::<8>() {
        let [a, b, c, d, e, f, g, h] = *header;
        let (kind, misc) = (u32::from_ne_bytes([a, b, c, d]), u32::from(u16::from_ne_bytes([e, f])));
        let size = usize::from(u16::from_ne_bytes([g, h]));
        if size < header.len() || size > bytes.len() {
            break;
        }
        if kind == libbpf_sys::PERF_RECORD_SAMPLE && size == RECORD {
            touches.push(touch(&bytes[8..size], misc));
        }
        bytes = &bytes[size..];
    }
    touches
}

fn touch(body: &[u8], misc: u32) -> Touch {
    let number = |at: usize| body[at..at + 8].try_into().map_or(0, u64::from_ne_bytes);
    let half = |at: usize| body[at..at + 4].try_into().map_or(0, u32::from_ne_bytes);
    Touch {
        ip: number(0),
        pid: half(8),
        tid: half(12),
        time_ns: number(16),
        word: number(24),
        cpu: half(32),
        is_kernel: misc & libbpf_sys::PERF_RECORD_MISC_CPUMODE_MASK == libbpf_sys::PERF_RECORD_MISC_KERNEL,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u32, misc: u16, values: &[u64]) -> Vec<u8> {
        let size = 8 + 8 * values.len() as u16;
        let header = u64::from(kind) | u64::from(misc) << 32 | u64::from(size) << 48;
        std::iter::once(&header).chain(values).flat_map(|value| value.to_le_bytes()).collect()
    }

    #[test]
    fn records_are_taken_apart() {
        let sample = record(9, 2, &[0x1234, 7 | 8 << 32, 99, 0xc0, 1]);
        let lost = record(2, 0, &[1, 2]);
        let in_kernel = record(9, 1, &[u64::MAX, 7 | 9 << 32, 100, 0xc8, 0]);
        let touches = records_of(&[sample, lost, in_kernel].concat());
        let first = Touch { time_ns: 99, cpu: 1, pid: 7, tid: 8, word: 0xc0, ip: 0x1234, is_kernel: false };
        assert_eq!(touches[0], first);
        assert_eq!((touches.len(), touches[1].tid, touches[1].is_kernel), (2, 9, true));
    }

    #[test]
    fn garbage_ends_the_records() {
        let sample = record(9, 2, &[1, 2, 3, 4, 5]);
        for garbage in [vec![0; 64], vec![0xff; 64], sample[..40].to_vec(), vec![1, 2, 3]] {
            assert_eq!(records_of(&[&sample[..], &garbage].concat()).len(), 1, "{garbage:x?}");
        }
    }
}
