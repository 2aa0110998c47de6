//! Reads another process's memory without stopping it.
//!
//! Every pointer that is followed may be garbage: a structure may have been freed, or may never have been what it was
//! taken for. So all reads fail softly, and nothing that is read here is trusted before it has been checked.

use std::io;

/// The most pieces that the kernel takes in one call (`UIO_MAXIOV`).
const MAX_PIECES: usize = 1024;

/// The longest string that is read. Names in a server's memory are short.
const MAX_STRING: usize = 1024;

/// The unit in which a string is read, so that no read straddles into an unmapped page. It is the smallest page size.
const PAGE: u64 = 4096;

/// Read access to the memory of a process.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    pid: i32,
}

impl Memory {
    /// Returns access to the memory of process `pid`. Nothing is read yet.
    pub fn new(pid: i32) -> Memory {
        Memory { pid }
    }

    /// Fills `into`, starting at `addr`.
    ///
    /// # Errors
    /// Fails when any byte of the range cannot be read, or when the process has ended.
    pub fn read(&self, addr: u64, into: &mut [u8]) -> io::Result<()> {
        let got = self.read_some(addr, into)?;
        if got == into.len() {
            Ok(())
        } else {
            Err(io::ErrorKind::UnexpectedEof.into())
        }
    }

    /// Reads a number; `None` if it cannot be read.
    pub fn u32(&self, addr: u64) -> Option<u32> {
        self.array(addr).map(u32::from_le_bytes)
    }

    /// Reads a number; `None` if it cannot be read.
    pub fn u64(&self, addr: u64) -> Option<u64> {
        self.array(addr).map(u64::from_le_bytes)
    }

    /// Reads `N` bytes; `None` if any of them cannot be read.
    pub fn array<const N: usize>(&self, addr: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.read(addr, &mut bytes).ok()?;
        Some(bytes)
    }

    /// Reads the NUL-terminated UTF-8 string at `addr`; `None` if there is none of at most 1 KiB.
    pub fn string(&self, addr: u64) -> Option<String> {
        let mut bytes = [0; MAX_STRING];
        let mut got = 0;
        // Read page by page, because the string may end right before an unmapped one.
        while got < MAX_STRING {
            let at = addr.checked_add(got as u64)?;
            // Most strings are short.
            let piece = usize::try_from(PAGE - at % PAGE).unwrap_or(1).min(64).min(MAX_STRING - got);
            self.read(at, &mut bytes[got..got + piece]).ok()?;
            if let Some(end) = bytes[got..got + piece].iter().position(|&b| b == 0) {
                return std::str::from_utf8(&bytes[..got + end]).ok().map(str::to_owned);
            }
            got += piece;
        }
        None
    }

    /// Performs many reads of the same size in few system calls. Returns for each address its bytes, or `None` if they
    /// could not be read.
    pub fn read_many<const N: usize>(&self, addrs: &[u64]) -> Vec<Option<[u8; N]>> {
        let mut found = Vec::with_capacity(addrs.len());
        while found.len() < addrs.len() {
            let rest = &addrs[found.len()..];
            let batch = &rest[..rest.len().min(MAX_PIECES)];
            found.extend(self.read_batch::<N>(batch));
        }
        found
    }

    /// Reads pieces of the same size into one buffer, in few system calls. Returns for each address whether its piece
    /// could be read; the others' contents are not defined.
    pub fn read_pieces(&self, addrs: &[u64], size: usize, into: &mut Vec<u8>) -> Vec<bool> {
        let pieces: Vec<(u64, usize)> = addrs.iter().map(|addr| (*addr, size)).collect();
        self.read_ranges(&pieces, into)
    }

    /// Does the same for pieces of different sizes: addresses and lengths.
    pub fn read_ranges(&self, pieces: &[(u64, usize)], into: &mut Vec<u8>) -> Vec<bool> {
        into.resize(pieces.iter().map(|(_, size)| size).sum(), 0);
        let mut left = &mut into[..];
        let mut found = Vec::with_capacity(pieces.len());
        while found.len() < pieces.len() {
            let batch = &pieces[found.len()..];
            let batch = &batch[..batch.len().min(MAX_PIECES)];
            let whole = self.read_batch_into(batch, left);
            found.extend(std::iter::repeat_n(true, whole));
            if whole < batch.len() {
                found.push(false);
            }
            let done = &batch[..(whole + 1).min(batch.len())];
            left = &mut left[done.iter().map(|(_, size)| size).sum()..];
        }
        found
    }

    /// Reads up to the first piece that cannot be read, and returns the number of pieces before it.
    fn read_batch_into(&self, pieces: &[(u64, usize)], into: &mut [u8]) -> usize {
        let remote: Vec<_> =
            pieces.iter().map(|&(at, size)| libc::iovec { iov_base: at as *mut libc::c_void, iov_len: size }).collect();
        let total = pieces.iter().map(|(_, size)| size).sum();
        let mut got = self.read_into(&remote, &mut into[..total]).unwrap_or(0);
        let is_whole = |(_, size): &&(u64, usize)| {
            let is_whole = got >= *size;
            got = got.saturating_sub(*size);
            is_whole
        };
        pieces.iter().take_while(is_whole).count()
    }

    /// Reads up to the first address that cannot be read: all before it, and `None` for it. Never empty.
    fn read_batch<const N: usize>(&self, addrs: &[u64]) -> Vec<Option<[u8; N]>> {
        let mut bytes = vec![0_u8; addrs.len() * N];
        let pieces: Vec<(u64, usize)> = addrs.iter().map(|addr| (*addr, N)).collect();
        let whole = self.read_batch_into(&pieces, &mut bytes);
        let mut found: Vec<_> = bytes.chunks_exact(N.max(1)).take(whole).map(|c| c.try_into().ok()).collect();
        if whole < addrs.len() {
            found.push(None);
        }
        found
    }

    /// Reads what can be read in one call, and returns the number of bytes.
    fn read_some(&self, addr: u64, into: &mut [u8]) -> io::Result<usize> {
        let remote = libc::iovec { iov_base: addr as *mut libc::c_void, iov_len: into.len() };
        self.read_into(&[remote], into)
    }

    /// Reads pieces of the other process up to the first that cannot be read, and returns the number of bytes.
    fn read_into(&self, remote: &[libc::iovec], into: &mut [u8]) -> io::Result<usize> {
        #[cfg(any(test, fuzzing))]
        if self.pid == hostile::PID {
            return Ok(hostile::read(remote, into));
        }
        let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        // SAFETY: `local` describes `into`, which outlives the call; `remote` is only read, and addresses the other
        // process.
        let got = unsafe { libc::process_vm_readv(self.pid, &local, 1, remote.as_ptr(), remote.len() as u64, 0) };
        usize::try_from(got).map_err(|_| io::Error::last_os_error())
    }
}

/// The memory of a server that answers every read with bytes of somebody's choice.
#[cfg(any(test, fuzzing))]
pub(crate) mod hostile {
    use std::cell::RefCell;

    /// The ID of the process that has this memory. There is no such process.
    pub const PID: i32 = -1;

    thread_local! {
        static BYTES: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }

    /// Fills this thread's hostile memory: these bytes over and over, so that nearly every pointer leads to some.
    pub fn fill(bytes: &[u8]) {
        BYTES.set(bytes.to_vec());
    }

    pub(super) fn read(remote: &[libc::iovec], into: &mut [u8]) -> usize {
        let total = into.len();
        let mut left = into;
        BYTES.with_borrow(|bytes| {
            for piece in remote {
                let (start, len) = (piece.iov_base as usize, piece.iov_len.min(left.len()));
                // As in a real process, the upper half is the kernel's.
                if bytes.is_empty() || start.checked_add(len).is_none_or(|end| end > usize::MAX / 2) {
                    break;
                }
                let (now, later) = std::mem::take(&mut left).split_at_mut(len);
                now.iter_mut().enumerate().for_each(|(i, byte)| *byte = bytes[(start + i) % bytes.len()]);
                left = later;
            }
        });
        total - left.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Memory {
        Memory::new(std::process::id() as i32)
    }

    #[test]
    fn reads_numbers_and_strings() {
        let number = 0x1122_3344_5566_7788_u64;
        let at = std::ptr::from_ref(&number) as u64;
        assert_eq!(own().u64(at), Some(number));
        assert_eq!(own().u32(at), Some(0x5566_7788));
        assert_eq!(own().string(c"latch".as_ptr() as u64).as_deref(), Some("latch"));
        let endless = [b'x'; MAX_STRING + 1];
        assert_eq!(own().string(endless.as_ptr() as u64), None);
    }

    #[test]
    fn garbage_pointers_are_errors() {
        for addr in [0, 1, 0xdead_beef, u64::MAX, u64::MAX - 3, 1 << 63] {
            assert_eq!(own().u64(addr), None, "{addr:#x}");
            assert_eq!(own().string(addr), None, "{addr:#x}");
        }
        assert_eq!(Memory::new(i32::MAX).u64(0x1000), None);
    }

    #[test]
    fn a_string_may_end_at_the_end_of_a_mapping() {
        // SAFETY: a fresh private mapping of two pages, the second of which is unmapped again.
        unsafe {
            let page = PAGE as usize;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let map = libc::mmap(std::ptr::null_mut(), 2 * page, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
            assert_ne!(map, libc::MAP_FAILED);
            let start = map.cast::<u8>();
            libc::munmap(start.add(page).cast(), page);
            start.add(page - 3).copy_from(c"ab".as_ptr().cast(), 3);
            assert_eq!(own().string(start.add(page - 3) as u64).as_deref(), Some("ab"));
            start.add(page - 1).write(b'c');
            assert_eq!(own().string(start.add(page - 3) as u64), None);
            libc::munmap(map, page);
        }
    }

    #[test]
    fn pieces_are_where_their_addresses_are() {
        let values = [5_u64, 6, 7];
        let [a, b, c] = [0, 1, 2].map(|i| std::ptr::from_ref(&values[i]) as u64);
        let mut bytes = vec![9; 3];
        assert_eq!(own().read_pieces(&[a, 0x10, c, b], 8, &mut bytes), [true, false, true, true]);
        let (words, _) = bytes.as_chunks::<8>();
        assert_eq!([0, 2, 3].map(|i| u64::from_le_bytes(words[i])), [5, 7, 6]);
    }

    #[test]
    fn pieces_may_differ_in_size() {
        let values = [5_u64, 6, 7];
        let [a, b, c] = [0, 1, 2].map(|i| std::ptr::from_ref(&values[i]) as u64);
        let mut bytes = Vec::new();
        let pieces = [(a, 8), (0x10, 3), (c, 16 - 8), (b, 1), (0x20, 5)];
        assert_eq!(own().read_ranges(&pieces, &mut bytes), [true, false, true, true, false]);
        assert_eq!((bytes.len(), bytes[0], bytes[11], bytes[19]), (25, 5, 7, 6));
        assert_eq!(own().read_ranges(&[], &mut bytes), [false; 0]);
    }

    #[test]
    fn many_reads_survive_bad_addresses() {
        let values: Vec<u64> = (0..3000).collect();
        let mut addrs: Vec<u64> = values.iter().map(|v| std::ptr::from_ref(v) as u64).collect();
        addrs[5] = 0x10;
        addrs[2999] = u64::MAX;
        let got = own().read_many::<8>(&addrs);
        assert_eq!(got.len(), 3000);
        assert_eq!(got[4].map(u64::from_le_bytes), Some(4));
        assert_eq!(got[5], None);
        assert_eq!(got[2998].map(u64::from_le_bytes), Some(2998));
        assert_eq!(got[2999], None);
    }
}
