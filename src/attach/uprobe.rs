//! Attaches uprobes by their system calls: libbpf's links cannot be passed to another process, descriptors can.

use std::ffi::{c_int, CString};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libbpf_rs::libbpf_sys::{self, bpf_link_create_opts};

use super::perf::{control, event, open_event, Control, Scope};
use super::SiteAddress;

/// The number of the kernel's device for uprobes.
const DEVICE: &str = "/sys/bus/event_source/devices/uprobe/type";

/// Where a program is to be attached: what can be said in numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The process whose hits count.
    pub pid: i32,
    /// Whether the program runs at the return of a function rather than at an instruction.
    pub at_return: bool,
    /// Whether all sites share one link, as kernels from 6.6 on have it. Otherwise there is one site.
    pub together: bool,
    pub sites: Vec<SiteAddress>,
}

impl Place {
    pub fn to_bytes(&self) -> Vec<u8> {
        let terms = [self.pid as u64, u64::from(self.at_return), u64::from(self.together)];
        let sites = self.sites.iter().flat_map(|site| [site.file_offset, site.cookie]);
        terms.into_iter().chain(sites).flat_map(u64::to_ne_bytes).collect()
    }

    /// Reads what [`Place::to_bytes`] has written; `None` if it is something else.
    pub fn from_bytes(bytes: &[u8]) -> Option<Place> {
        let words = bytes.chunks(size_of::<u64>()).map(|word| Some(u64::from_ne_bytes(word.try_into().ok()?)));
        let words: Vec<u64> = words.collect::<Option<_>>()?;
        let ([pid, at_return, together], sites) = words.split_first_chunk()?;
        let sites = sites.chunks(2).map(|site| match site {
            [file_offset, cookie] => Some(SiteAddress { file_offset: *file_offset, cookie: *cookie }),
            _ => None,
        });
        let (at_return, together) = (*at_return != 0, *together != 0);
        Some(Place { pid: *pid as i32, at_return, together, sites: sites.collect::<Option<_>>()? })
    }

    /// Attaches a program to this place in a file. The returned descriptor is all that keeps it attached.
    ///
    /// # Errors
    /// Fails when the kernel refuses.
    pub fn attach(&self, program: BorrowedFd, file: BorrowedFd) -> io::Result<OwnedFd> {
        // A path, because the kernel takes no descriptor.
        let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        match (self.together, &self.sites[..]) {
            (true, sites) => self.attach_together(program, &path, sites),
            (false, [site]) => self.attach_one(program, &path, site),
            (false, _) => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    fn attach_together(&self, program: BorrowedFd, path: &CString, sites: &[SiteAddress]) -> io::Result<OwnedFd> {
        let offsets: Vec<u64> = sites.iter().map(|site| site.file_offset).collect();
        let cookies: Vec<u64> = sites.iter().map(|site| site.cookie).collect();
        let mut options = options();
        options.__bindgen_anon_1.uprobe_multi = libbpf_sys::bpf_link_create_opts__bindgen_ty_1__bindgen_ty_3 {
            flags: if self.at_return { libbpf_sys::BPF_F_UPROBE_MULTI_RETURN } else { 0 },
            cnt: sites.len() as u32,
            path: path.as_ptr(),
            offsets: offsets.as_ptr(),
            cookies: cookies.as_ptr(),
            pid: self.pid as u32,
            ..Default::default()
        };
        create_link(program, 0, libbpf_sys::BPF_TRACE_UPROBE_MULTI, &options)
    }

    fn attach_one(&self, program: BorrowedFd, path: &CString, site: &SiteAddress) -> io::Result<OwnedFd> {
        let device = fs::read_to_string(DEVICE)?.trim().parse().map_err(io::Error::other)?;
        let mut probe = event(device, u64::from(self.at_return));
        probe.__bindgen_anon_3.uprobe_path = path.as_ptr() as u64;
        probe.__bindgen_anon_4.probe_offset = site.file_offset;
        let probe = open_event(&probe, Scope::Thread(self.pid))?;
        let mut options = options();
        options.__bindgen_anon_1.perf_event.bpf_cookie = site.cookie;
        // The link keeps the event.
        match create_link(program, probe.as_raw_fd(), libbpf_sys::BPF_PERF_EVENT, &options) {
            Ok(link) => control(&probe, Control::Enable).map(|()| link),
            // Kernels before 5.15 have no such links, and no cookies.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) && site.cookie == 0 => {
                control(&probe, Control::SetProgram(program))?;
                control(&probe, Control::Enable)?;
                Ok(probe)
            }
            Err(error) => Err(error),
        }
    }
}

fn options() -> bpf_link_create_opts {
    bpf_link_create_opts { sz: size_of::<bpf_link_create_opts>() as _, ..Default::default() }
}

fn create_link(
    program: BorrowedFd,
    target: c_int,
    kind: libbpf_sys::bpf_attach_type,
    options: &bpf_link_create_opts,
) -> io::Result<OwnedFd> {
    // SAFETY: what `options` points to is valid for the call.
    match unsafe { libbpf_sys::bpf_link_create(program.as_raw_fd(), target, kind, options) } {
        // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
        fd @ 0.. => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        error => Err(io::Error::from_raw_os_error(-error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_as_it_was_written() {
        let sites = vec![
            SiteAddress { file_offset: 0x1234, cookie: u64::MAX },
            SiteAddress { file_offset: u64::MAX, cookie: 0 },
        ];
        for (at_return, together, sites) in [(false, true, sites), (true, false, Vec::new())] {
            let place = Place { pid: i32::MAX, at_return, together, sites };
            assert_eq!(Place::from_bytes(&place.to_bytes()), Some(place));
        }
    }

    #[test]
    fn what_is_cut_short_is_no_place() {
        let sites = vec![SiteAddress { file_offset: 1, cookie: 2 }];
        let bytes = Place { pid: 1, at_return: false, together: true, sites }.to_bytes();
        for length in (0..bytes.len()).filter(|length| *length != 24) {
            assert_eq!(Place::from_bytes(&bytes[..length]), None);
        }
    }
}
