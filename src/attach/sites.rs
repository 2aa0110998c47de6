//! Attaches one program to many sites in a server's code, by the cheapest means that this kernel offers.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::shield::CodeLink;
use super::uprobe::Place;
use super::{attach_cookies, Link, Refusal};
use anyhow::{Context, Result};
use libbpf_rs::{Error, ErrorKind, ProgramMut};

use crate::host::Machine;
use crate::server::{has_seccomp_filter, has_shadow_stack};

/// A location in a program file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SiteAddress {
    /// The offset of the instruction in the file, in bytes.
    pub file_offset: u64,
    /// The value that is passed to the program with each hit.
    pub cookie: u64,
}

/// The same program in two forms: one that attaches to many sites at once (`uprobe_multi`, Linux 6.6 and newer), and
/// one that attaches to a single site, for older kernels.
pub struct SitePrograms<'a, 'obj> {
    /// The form for many sites; `None` if the kernel does not support it.
    pub multi: Option<&'a ProgramMut<'obj>>,
    /// The form for a single site.
    pub single: Option<&'a ProgramMut<'obj>>,
    /// Whether it runs at the return of a function rather than at an instruction.
    pub retprobe: bool,
}

/// The outcome of attaching sites.
#[derive(Default)]
pub struct Attached {
    /// Dropping a link detaches its sites.
    pub links: Vec<Link>,
    /// The sites that the kernel refused, by their cookies.
    pub refused: Vec<Refusal<u64>>,
}

/// Attaches to `sites` in the file at `exe`, for process `pid` only.
///
/// A site that the kernel refuses does not affect the others; the result lists it.
pub fn attach_sites(programs: &SitePrograms<'_, '_>, pid: i32, exe: &Path, sites: &[SiteAddress]) -> Attached {
    let mut done = Attached::default();
    if sites.is_empty() {
        return done;
    }
    if let Some(multi) = programs.multi {
        match attach_together(multi, programs.retprobe, pid, exe, sites) {
            Ok(link) => {
                done.links.push(link);
                return done;
            }
            Err(error) => tracing::debug!("attaching {} sites at once: {error:#}", sites.len()),
        }
    }
    for site in sites {
        let attempt = match (programs.single, programs.multi) {
            (Some(single), _) => attach_one(single, programs.retprobe, pid, exe, site),
            (None, Some(multi)) => attach_together(multi, programs.retprobe, pid, exe, std::slice::from_ref(site)),
            (None, None) => Err(anyhow::anyhow!("the program was not loaded")),
        };
        match attempt {
            Ok(link) => done.links.push(link),
            Err(error) => done.refused.push(Refusal { probe: site.cookie, why: format!("{error:#}") }),
        }
    }
    done
}

pub(super) fn attach_together(
    program: &ProgramMut<'_>,
    retprobe: bool,
    pid: i32,
    exe: &Path,
    sites: &[SiteAddress],
) -> Result<Link> {
    let place = Place { pid, at_return: retprobe, together: true, sites: sites.to_vec() };
    attach_at(program, exe, &place).context("uprobe_multi")
}

pub(super) fn attach_one(
    program: &ProgramMut<'_>,
    retprobe: bool,
    pid: i32,
    exe: &Path,
    site: &SiteAddress,
) -> Result<Link> {
    // A kernel without cookie support refuses any cookie but 0. There the program identifies sites by address.
    let cookie = if attach_cookies() { site.cookie } else { 0 };
    let sites = vec![SiteAddress { cookie, ..*site }];
    let attached = attach_at(program, exe, &Place { pid, at_return: retprobe, together: false, sites });
    // Since "perf: Revert to requiring CAP_SYS_ADMIN for uprobes" (Linux 6.17, and updates of older ones).
    attached.map_err(|why| match why.kind() {
        ErrorKind::PermissionDenied => anyhow::Error::new(why).context("uprobe: some kernels want CAP_SYS_ADMIN"),
        _ => anyhow::Error::new(why).context("uprobe"),
    })
}

fn attach_at(program: &ProgramMut<'_>, exe: &Path, place: &Place) -> libbpf_rs::Result<Link> {
    let attach = || Ok(CodeLink::attach(place, program.as_fd(), open(exe)?.as_fd())?.into());
    attach().map_err(|error: io::Error| error.raw_os_error().map_or_else(|| error.into(), Error::from_raw_os_error))
}

/// Opens a file without reading it.
fn open(file: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(file)
}

/// Returns whether uretprobes may be used on process `pid`.
///
/// On x86_64 kernels from 6.11 on, a uretprobe makes the process issue a special system call. A seccomp filter that
/// does not know this call kills the process (systemd issue 34615, libseccomp issue 438), so a process with any filter
/// gets no uretprobes. Kernels before 6.11 change the return address in the stack, but not in the shadow stack: the CPU
/// then kills the process.
pub fn uretprobes_are_safe(pid: i32) -> bool {
    let change_shadow_stack = Machine::this().kernel_version().is_some_and(|version| version >= (6, 11));
    has_seccomp_filter(pid) == Some(false) && (change_shadow_stack || !has_shadow_stack(pid))
}
