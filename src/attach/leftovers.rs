//! Breakpoints in a server's code, and how those are taken out that a killed tracer has left.
//!
//! A process that is killed while it detaches can leave breakpoints behind: see [`super::shield`]. Each hit of one
//! costs a trap until the server ends. Attaching a probe at that place gives the breakpoint an owner again, and
//! detaching it takes the breakpoint out. Where another tracer's probe is at work, the breakpoint stays, and neither
//! tracer notices.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use anyhow::{Context, Result};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};

use super::sites::{attach_sites, SiteAddress, SitePrograms};
use super::{detach_all, uprobe_multi_works};
use crate::bpf::calibrate::CalibrateSkelBuilder;
use crate::server::{file_mappings, FileMapping, Memory};

/// The instruction that the kernel puts into code.
#[cfg(target_arch = "x86_64")]
const BREAKPOINT: [u8; 1] = [0xcc];
/// `BRK64_OPCODE_UPROBES` of the kernel.
#[cfg(target_arch = "aarch64")]
const BREAKPOINT: [u8; 4] = 0xd420_00a0_u32.to_le_bytes();

/// The most pages of code that are compared with their file. Tracers change a few; more are no file's code any more.
const MOST_PAGES: usize = 4096;

/// Returns the number of breakpoints in the code of process `pid`, of tracers that are at work or were killed.
///
/// # Errors
/// Fails when this process may not read the memory of that one.
pub fn breakpoints(pid: i32) -> io::Result<usize> {
    Ok(find(pid)?.iter().map(|file| file.offsets.len()).sum())
}

/// Takes the breakpoints out of the code of process `pid` that no tracer owns any more, and returns their number.
///
/// # Errors
/// Fails when that code cannot be read, or when the kernel lets no probe be attached.
pub fn take_out_leftovers(pid: i32) -> Result<usize> {
    let found = find(pid).context("looking for breakpoints")?;
    if found.is_empty() {
        return Ok(0);
    }
    let mut storage = MaybeUninit::uninit();
    let mut open = CalibrateSkelBuilder::default().open(&mut storage).context("opening the program for them")?;
    let has_multi = uprobe_multi_works();
    open.progs.empty_multi.set_autoload(has_multi);
    open.progs.empty_wait_enter.set_autoload(false);
    open.progs.empty_wait_exit.set_autoload(false);
    let skel = open.load().context("loading the program for them")?;
    let (multi, single) = (has_multi.then_some(&skel.progs.empty_multi), Some(&skel.progs.empty));
    for changed in &found {
        let programs = SitePrograms { multi, single, retprobe: false };
        let sites: Vec<_> = changed.offsets.iter().map(|at| SiteAddress { file_offset: *at, cookie: 0 }).collect();
        let path = PathBuf::from(format!("/proc/self/fd/{}", changed.file.as_raw_fd()));
        detach_all(attach_sites(&programs, pid, &path, &sites).links);
    }
    let before: usize = found.iter().map(|file| file.offsets.len()).sum();
    Ok(before.saturating_sub(breakpoints(pid)?))
}

/// A file with code that has breakpoints.
struct Changed {
    file: File,
    /// Their offsets in the file, in bytes.
    offsets: Vec<u64>,
}

fn find(pid: i32) -> io::Result<Vec<Changed>> {
    let pagemap = File::open(format!("/proc/{pid}/pagemap"))?;
    let mut files: BTreeMap<String, Changed> = BTreeMap::new();
    let mut pages = 0;
    for mapping in file_mappings(pid).iter().filter(|mapping| mapping.is_code) {
        for address in own_pages(&pagemap, mapping)? {
            pages += 1;
            if pages > MOST_PAGES {
                break;
            }
            // It may be unmapped meanwhile, and a file may be out of reach.
            let known = files.remove(mapping.path()).map(Ok);
            let opened = known.unwrap_or_else(|| Ok(Changed { file: mapping.file(pid)?, offsets: Vec::new() }));
            let Ok::<_, io::Error>(mut changed) = opened else { break };
            let offset = mapping.offset + (address - mapping.start);
            changed.offsets.extend(in_page(pid, address, &changed.file, offset));
            files.insert(mapping.path().to_owned(), changed);
        }
    }
    Ok(files.into_values().filter(|changed| !changed.offsets.is_empty()).collect())
}

/// Returns the addresses of the pages of a mapping that are no longer the file's: somebody has written to them.
fn own_pages(pagemap: &File, mapping: &FileMapping) -> io::Result<Vec<u64>> {
    const ENTRY: usize = size_of::<u64>();
    let page = page_size();
    let mut entries = vec![0; ((mapping.end - mapping.start) / page) as usize * ENTRY];
    pagemap.read_exact_at(&mut entries, mapping.start / page * ENTRY as u64)?;
    let addresses = (mapping.start..).step_by(page as usize);
    let entries = entries.chunks_exact(ENTRY).map(|entry| u64::from_ne_bytes(entry.try_into().unwrap_or_default()));
    Ok(addresses.zip(entries).filter(|(_, entry)| is_own(*entry)).map(|(address, _)| address).collect())
}

/// Returns whether an entry of a pagemap (`Documentation/admin-guide/mm/pagemap.rst`) is that of a process's own page.
fn is_own(entry: u64) -> bool {
    let [of_file, swapped, present] = [61, 62, 63].map(|bit| entry >> bit & 1 == 1);
    swapped || present && !of_file
}

/// Returns the offsets of breakpoints that are in the memory of a process and not in the file.
fn in_page(pid: i32, address: u64, file: &File, offset: u64) -> Vec<u64> {
    let (mut memory, mut original) = (vec![0; page_size() as usize], vec![0; page_size() as usize]);
    if Memory::new(pid).read(address, &mut memory).is_err() || !matches!(file.read_at(&mut original, offset), Ok(1..)) {
        return Vec::new();
    }
    let pieces = memory.chunks_exact(BREAKPOINT.len()).zip(original.chunks_exact(BREAKPOINT.len()));
    let differ = pieces.enumerate().filter(|(_, (now, before))| *now == BREAKPOINT && now != before);
    differ.map(|(index, _)| offset + (index * BREAKPOINT.len()) as u64).collect()
}

fn page_size() -> u64 {
    rustix::param::page_size() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_pages_are_told_from_the_files() {
        let [file, swapped, present] = [61, 62, 63].map(|bit| 1_u64 << bit);
        assert!(is_own(present) && is_own(swapped) && is_own(swapped | file));
        assert!(!is_own(0) && !is_own(present | file));
    }

    #[test]
    fn breakpoints_are_found_in_memory_only() {
        let page = page_size() as usize;
        let mut code = vec![0x90; page];
        code[..BREAKPOINT.len()].copy_from_slice(&BREAKPOINT);
        let mut file = tempfile::tempfile().expect("a file");
        io::Write::write_all(&mut file, &code).expect("a page");
        // The buffer has a page of its own somewhere in it.
        code.resize(2 * page, 0x90);
        let start = code.as_ptr().align_offset(page);
        code.rotate_right(start);
        let of_own = |code: &[u8]| in_page(std::process::id() as i32, code[start..].as_ptr() as u64, &file, 0);
        assert!(of_own(&code).is_empty());
        code[start + 64..start + 64 + BREAKPOINT.len()].copy_from_slice(&BREAKPOINT);
        assert_eq!(of_own(&code), [64]);
    }

    #[test]
    fn a_process_that_nobody_traces_has_none() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("a process");
        let found = breakpoints(child.id() as i32);
        child.kill().expect("it runs");
        child.wait().expect("it ends");
        assert_eq!(found.expect("permission"), 0);
    }
}
