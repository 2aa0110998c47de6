//! Attaching one program to many places in a server's code, the cheapest way this kernel knows.

use std::path::Path;

use super::attach_cookies;
use super::shield::shielded;
use anyhow::{Context, Result};
use libbpf_rs::{Link, ProgramMut, UprobeMultiOpts, UprobeOpts};

/// A place in a program file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SiteAddress {
    pub file_offset: u64,
    /// Handed to the program with each hit.
    pub cookie: u64,
}

/// The same program twice: for attaching to many sites at once, and site by site on kernels that cannot
/// (`uprobe_multi` is in Linux 6.6 and newer).
pub struct SitePrograms<'a, 'obj> {
    pub multi: Option<&'a ProgramMut<'obj>>,
    pub single: Option<&'a ProgramMut<'obj>>,
    pub retprobe: bool,
}

/// What became of an attempt to attach sites.
#[derive(Default)]
pub struct Attached {
    /// Dropping a link detaches its sites.
    pub links: Vec<Link>,
    /// Cookies of the sites that the kernel refused, and why.
    pub refused: Vec<(u64, String)>,
}

/// Attaches to `sites` in the file at `exe`, for process `pid` only.
///
/// A site that the kernel refuses does not take the others with it: it is reported in the result.
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
            Err(error) => done.refused.push((site.cookie, format!("{error:#}"))),
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
    let opts = UprobeMultiOpts {
        offsets: sites.iter().map(|s| s.file_offset as usize).collect(),
        cookies: sites.iter().map(|s| s.cookie).collect(),
        retprobe,
        ..Default::default()
    };
    shielded(|| program.attach_uprobe_multi_with_opts(pid, exe, "", opts))
        .context("killed while attaching")?
        .context("uprobe_multi")
}

pub(super) fn attach_one(
    program: &ProgramMut<'_>,
    retprobe: bool,
    pid: i32,
    exe: &Path,
    site: &SiteAddress,
) -> Result<Link> {
    // A kernel without cookies refuses any but 0; there the program tells sites by their address.
    let cookie = if attach_cookies() { site.cookie } else { 0 };
    let opts = UprobeOpts { retprobe, cookie, ..Default::default() };
    shielded(|| program.attach_uprobe_with_opts(pid, exe, site.file_offset as usize, opts))
        .context("killed while attaching")?
        .context("uprobe")
}

/// Whether uretprobes may be used on process `pid`.
///
/// On x86_64 kernels from 6.11 on a uretprobe makes the process call a system call of its own. A seccomp
/// filter that does not know it kills the process (systemd issue 34615, libseccomp issue 438), so a process
/// with any filter gets none.
pub fn uretprobes_are_safe(pid: i32) -> bool {
    status(pid, "Seccomp:").is_some_and(|v| v == "0")
}

/// Whether process `pid` has a shadow stack, which older kernels do not write when they emulate a probed call.
pub fn has_shadow_stack(pid: i32) -> bool {
    status(pid, "x86_Thread_features:").is_some_and(|v| v.split_whitespace().any(|f| f == "shstk"))
}

/// A field of `/proc/PID/status`.
fn status(pid: i32, field: &str) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    text.lines().find_map(|l| l.strip_prefix(field)).map(|v| v.trim().to_owned())
}
