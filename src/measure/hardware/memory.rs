//! Memory that is accessed in a controlled way: uncached, or just written by another CPU.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

use memmap2::MmapMut;

use super::exercise::{flush, flushed};
use crate::catalog::Access;

/// The distance between accessed lines, in bytes: more than the longest line, and than the two lines that some CPUs
/// fetch at once.
const STRIDE: usize = 256;

/// Lines of memory, each of which holds the number of the next one to access. The path visits all of them in random
/// order, so that no CPU prefetches the next one.
pub struct Lines {
    /// Accessed only through atomics.
    memory: MmapMut,
    count: usize,
    /// The same order as a list.
    order: Vec<u32>,
}

impl Lines {
    /// Allocates lines in memory of this node, or of any.
    ///
    /// # Errors
    /// Fails when there is no such memory.
    pub fn new(count: usize, node: Option<i32>) -> io::Result<Lines> {
        let memory = MmapMut::map_anon(count * STRIDE)?;
        let mut order: Vec<u32> = (1..count as u32).collect();
        fastrand::Rng::with_seed(count as u64).shuffle(&mut order);
        order.insert(0, 0);
        let lines = Lines { memory, count, order };
        if let Some(node) = node {
            lines.bind(node)?;
        }
        for (at, to) in lines.order.iter().zip(lines.order.iter().cycle().skip(1)) {
            lines.line(*at).store(*to, Ordering::Relaxed);
        }
        Ok(lines)
    }

    /// Binds its pages to this node.
    fn bind(&self, node: i32) -> io::Result<()> {
        let mut nodes = [0 as libc::c_ulong; 16];
        let bits = libc::c_ulong::BITS as usize;
        let at = usize::try_from(node).ok().filter(|at| *at < nodes.len() * bits).ok_or(io::ErrorKind::InvalidInput)?;
        nodes[at / bits] |= 1 << (at % bits);
        let (memory, length) = (self.memory.as_ptr(), self.memory.len());
        // SAFETY: the range belongs to this value, and `nodes` has as many bits as stated.
        let bound =
            unsafe { libc::syscall(libc::SYS_mbind, memory, length, libc::MPOL_BIND, &nodes, nodes.len() * bits, 0) };
        if bound == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }

    fn line(&self, at: u32) -> &AtomicU32 {
        // SAFETY: line numbers are below `count`; a line begins with an aligned word, which is accessed only this way.
        unsafe { &*self.memory.as_ptr().add(at as usize * STRIDE).cast::<AtomicU32>() }
    }

    pub fn count(&self) -> usize {
        self.count
    }

    /// Accesses each line once; each load must finish before the next can begin.
    pub fn access(&self, access: Access) {
        match access {
            Access::Load => self.follow(self.count),
            Access::Store => self.write(),
        }
    }

    /// Accesses one line repeatedly.
    pub fn access_one(&self, access: Access) {
        for _ in 0..self.count {
            match access {
                Access::Load => _ = self.line(0).load(Ordering::Relaxed),
                Access::Store => self.line(0).store(self.order[1 % self.count], Ordering::Relaxed),
            }
        }
    }

    fn follow(&self, times: usize) {
        let mut at = 0;
        for _ in 0..times {
            at = self.line(at).load(Ordering::Relaxed);
        }
        std::hint::black_box(at);
    }

    /// Writes the values that are already there.
    pub fn write(&self) {
        for (at, to) in self.order.iter().zip(self.order.iter().cycle().skip(1)) {
            self.line(*at).store(*to, Ordering::Relaxed);
        }
    }

    /// Flushes all lines from all caches.
    pub fn flush(&self) {
        for at in &self.order {
            flush(std::ptr::from_ref(self.line(*at)).cast());
        }
        flushed();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_leads_through_all_lines_and_back() {
        let lines = Lines::new(1000, None).unwrap();
        let mut seen = vec![false; 1000];
        let mut at = 0;
        for _ in 0..1000 {
            seen[at as usize] = true;
            at = lines.line(at).load(Ordering::Relaxed);
        }
        assert!(at == 0 && seen.iter().all(|seen| *seen));
    }

    #[test]
    fn writing_and_flushing_change_nothing() {
        let lines = Lines::new(100, None).unwrap();
        let read = || (0..100).map(|at| lines.line(at).load(Ordering::Relaxed)).collect::<Vec<_>>();
        let before = read();
        lines.access(Access::Store);
        lines.access_one(Access::Store);
        lines.flush();
        lines.access(Access::Load);
        lines.access_one(Access::Load);
        assert_eq!(read(), before);
    }

    #[test]
    fn no_memory_comes_from_nodes_that_are_not_there() {
        for node in [-1, 1023, 1 << 20] {
            assert!(Lines::new(100, Some(node)).is_err(), "{node}");
        }
    }
}
