//! The kernel's perf events, which count, sample and watch: all are opened and controlled here.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libbpf_rs::libbpf_sys;

/// What an event is and how it is reported, as `perf_event_open` takes it.
pub(crate) type Event = libbpf_sys::perf_event_attr;

/// Where an event is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// The calling thread, on any CPU.
    OwnThread,
    /// A thread, on any CPU.
    Thread(libc::pid_t),
    /// Any thread on this CPU.
    Cpu(i32),
}

/// A command to an open event.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Control<'a> {
    Enable,
    Disable,
    /// Enable, and disable after this number of reports.
    Refresh(i32),
    /// Report into the buffer of this event.
    SetOutput(BorrowedFd<'a>),
    /// Run this BPF program at each report.
    SetProgram(BorrowedFd<'a>),
}

impl Control<'_> {
    /// Returns the request, one of `PERF_EVENT_IOC_…` in `linux/perf_event.h`, and its argument.
    fn request(&self) -> (libc::Ioctl, i32) {
        match self {
            Control::Enable => (0x2400, 0),
            Control::Disable => (0x2401, 0),
            Control::Refresh(reports) => (0x2402, *reports),
            Control::SetOutput(event) => (0x2405, event.as_raw_fd()),
            Control::SetProgram(program) => (0x4004_2408, program.as_raw_fd()),
        }
    }
}

/// Returns an event of this kind: `PERF_TYPE_…`, or the number of a device. `config` says which.
pub(crate) fn event(kind: u32, config: u64) -> Event {
    Event { type_: kind, size: size_of::<Event>() as u32, config, ..Event::default() }
}

/// Opens an event. Closing the descriptor ends it.
///
/// # Errors
/// Fails when the kernel refuses: missing privilege, or nothing that reports such events there.
pub(crate) fn open_event(event: &Event, scope: Scope) -> io::Result<OwnedFd> {
    let (pid, cpu) = match scope {
        Scope::OwnThread => (0, -1),
        Scope::Thread(thread) => (thread, -1),
        Scope::Cpu(cpu) => (-1, cpu),
    };
    let flags = libc::c_ulong::from(libbpf_sys::PERF_FLAG_FD_CLOEXEC);
    // SAFETY: `event` is valid for the call; the other arguments are numbers.
    let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, event, pid, cpu, -1, flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Controls an open event.
///
/// # Errors
/// Fails when the kernel refuses.
pub(crate) fn control(event: &impl AsFd, control: Control) -> io::Result<()> {
    let (request, argument) = control.request();
    // SAFETY: all descriptors are open, and these requests take a number.
    match unsafe { libc::ioctl(event.as_fd().as_raw_fd(), request, argument) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
