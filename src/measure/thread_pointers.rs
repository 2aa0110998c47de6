//! Lists a server's threads, and where each has its own variables.

use std::io::Read;
use std::mem::MaybeUninit;

use anyhow::{Context, Result};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Iter, Link};

use super::latch::attach_to_threads;
use crate::bpf::pointers::PointersSkelBuilder;

/// The bytes that the program writes for each thread.
const RECORD: usize = 16;

/// A thread of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ServerThread {
    /// Its ID.
    pub thread: u32,
    /// Its pointer to its own variables.
    pub pointer: u64,
}

/// The program that lists the threads of one server.
pub(super) struct ThreadPointers(Link);

impl ThreadPointers {
    /// Loads the program for process `pid`.
    ///
    /// # Errors
    /// Fails if the kernel refuses it.
    pub fn new(pid: i32) -> Result<ThreadPointers> {
        let mut storage = MaybeUninit::uninit();
        let mut open = PointersSkelBuilder::default().open(&mut storage).context("opening the program")?;
        open.maps.rodata_data.as_deref_mut().context("the program has no constants")?.target_tgid = pid as u32;
        let skel = open.load().context("loading the program into the kernel")?;
        Ok(ThreadPointers(attach_to_threads(&skel.progs.list_threads, pid)?))
    }

    /// Returns the server's threads.
    ///
    /// # Errors
    /// Fails if they cannot be read.
    pub fn list(&self) -> Result<Vec<ServerThread>> {
        let mut bytes = Vec::new();
        Iter::new(&self.0)?.read_to_end(&mut bytes)?;
        let number = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_ne_bytes);
        let thread =
            |record: &[u8]| ServerThread { thread: number(&record[..8]) as u32, pointer: number(&record[8..]) };
        Ok(bytes.chunks_exact(RECORD).map(thread).filter(|thread| thread.pointer != 0).collect())
    }
}
