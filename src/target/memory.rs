//! Another process's memory, read without stopping it.

use std::io;
use std::os::unix::fs::MetadataExt;

use procfs::process::{MMapPath, Process};

use crate::symbols::Image;

/// Names in a server's memory are short; what has no end within this is none.
const MAX_STRING: usize = 512;

/// Read access to one process's memory. A wrong address is an error, never a fault.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    pid: i32,
}

impl Memory {
    pub fn new(pid: i32) -> Memory {
        Memory { pid }
    }

    /// Fills `into` from `addr` on.
    ///
    /// # Errors
    /// When any byte of the range cannot be read, or the process has ended.
    pub fn read(&self, addr: u64, into: &mut [u8]) -> io::Result<()> {
        let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        let remote = libc::iovec { iov_base: addr as *mut libc::c_void, iov_len: into.len() };
        // SAFETY: `local` describes `into`, which is borrowed for the call; the kernel checks the remote side.
        let n = unsafe { libc::process_vm_readv(self.pid, &local, 1, &remote, 1, 0) };
        match usize::try_from(n) {
            Ok(n) if n == into.len() => Ok(()),
            Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }

    pub fn u32(&self, addr: u64) -> Option<u32> {
        let mut bytes = [0; 4];
        self.read(addr, &mut bytes).ok()?;
        Some(u32::from_le_bytes(bytes))
    }

    pub fn u64(&self, addr: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.read(addr, &mut bytes).ok()?;
        Some(u64::from_le_bytes(bytes))
    }

    /// The NUL-terminated UTF-8 string at `addr`, if there is one.
    pub fn string(&self, addr: u64) -> Option<String> {
        let mut bytes = Vec::new();
        // In small steps, so that a string just before an unmapped page is read too.
        while bytes.len() < MAX_STRING {
            let mut step = [0; 32];
            let room = 4096 - ((addr as usize + bytes.len()) & 4095);
            let step = &mut step[..room.min(32)];
            self.read(addr + bytes.len() as u64, step).ok()?;
            if let Some(end) = step.iter().position(|&b| b == 0) {
                bytes.extend_from_slice(&step[..end]);
                return String::from_utf8(bytes).ok();
            }
            bytes.extend_from_slice(step);
        }
        None
    }
}

/// What to add to a link-time address of `image`, the program of process `pid`, to get one in the process.
///
/// # Errors
/// When the process's memory map cannot be read or does not show its program.
pub fn load_bias(pid: i32, image: &Image) -> io::Result<u64> {
    let program = std::fs::metadata(format!("/proc/{pid}/exe"))?;
    let maps = Process::new(pid).and_then(|p| p.maps()).map_err(|e| io::Error::other(e.to_string()))?;
    maps.iter()
        .filter(|m| m.inode == program.ino() && matches!(m.pathname, MMapPath::Path(_)))
        .find_map(|m| Some(m.address.0.wrapping_sub(image.page_address_of(m.offset)?)))
        .ok_or_else(|| io::Error::other("its memory map does not show its program"))
}
