//! What system calls are for, as far as that says why a thread holds a latch for long.

use super::HolderState;

/// Returns what a thread does in a system call, by its number on this machine.
pub(super) fn state_in(number: u32) -> HolderState {
    let number = libc::c_long::from(number);
    if IO.contains(&number) || OLD_IO.contains(&number) {
        HolderState::Io
    } else if NETWORK.contains(&number) || OLD_NETWORK.contains(&number) {
        HolderState::Network
    } else {
        HolderState::Call
    }
}

/// The numbers of the calls for files and disks of which a stack can show the caller, for the programs.
pub(super) fn io_numbers() -> impl Iterator<Item = u32> {
    IO.iter().filter_map(|number| u32::try_from(*number).ok())
}

/// Reads, writes and flushes. Servers use other calls for connections.
const IO: [libc::c_long; 19] = [
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_sync_file_range,
    libc::SYS_fallocate,
    libc::SYS_ftruncate,
    libc::SYS_openat,
    libc::SYS_close,
    libc::SYS_unlinkat,
    libc::SYS_io_submit,
    libc::SYS_io_getevents,
    libc::SYS_io_uring_enter,
];

/// Waits for clients and other servers.
const NETWORK: [libc::c_long; 10] = [
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_epoll_pwait,
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_connect,
    libc::SYS_accept,
    libc::SYS_accept4,
];

/// Calls that newer architectures do not have.
#[cfg(target_arch = "x86_64")]
const OLD_IO: [libc::c_long; 3] = [libc::SYS_open, libc::SYS_unlink, libc::SYS_rename];
#[cfg(target_arch = "x86_64")]
const OLD_NETWORK: [libc::c_long; 3] = [libc::SYS_poll, libc::SYS_select, libc::SYS_epoll_wait];
#[cfg(not(target_arch = "x86_64"))]
const OLD_IO: [libc::c_long; 0] = [];
#[cfg(not(target_arch = "x86_64"))]
const OLD_NETWORK: [libc::c_long; 0] = [];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_told_apart_by_what_they_wait_for() {
        let of = |number: libc::c_long| state_in(number as u32);
        assert_eq!([libc::SYS_fsync, libc::SYS_pwrite64].map(of), [HolderState::Io; 2]);
        assert_eq!([libc::SYS_ppoll, libc::SYS_recvfrom].map(of), [HolderState::Network; 2]);
        assert_eq!([libc::SYS_clock_nanosleep, libc::SYS_madvise].map(of), [HolderState::Call; 2]);
        assert!(io_numbers().any(|number| libc::c_long::from(number) == libc::SYS_fdatasync));
    }
}
