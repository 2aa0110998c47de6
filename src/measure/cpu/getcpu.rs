//! Determines how a server's C library finds out which CPU a thread runs on.

use std::sync::Arc;

use serde::Serialize;
use strum::IntoStaticStr;

use crate::measure::address_space::AddressSpace;
use crate::server::{FileMapping, Memory, Target};
use crate::symbols::{Arch, Image};

/// What `sched_getcpu` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
#[serde(rename_all = "lowercase")]
pub enum GetcpuPath {
    /// Reads what the kernel keeps up to date in the thread's memory.
    Rseq,
    /// Executes kernel-provided code in the process.
    Vdso,
    /// Makes a system call.
    #[strum(serialize = "syscall")]
    #[serde(rename = "syscall")]
    SystemCall,
    /// Whatever another library does that replaces the C library's function (`LD_PRELOAD`).
    Elsewhere,
}

impl GetcpuPath {
    /// Returns the value of the `path` label.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Returns whether calls may reach the kernel.
    pub fn may_be_system_call(self) -> bool {
        matches!(self, GetcpuPath::SystemCall | GetcpuPath::Elsewhere)
    }
}

/// What is known about a server's `sched_getcpu`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Getcpu {
    /// The C library's own version: `2.36`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub glibc: Option<String>,
    /// What its `sched_getcpu` does.
    pub path: GetcpuPath,
}

/// The prefixes of its file name; up to glibc 2.33 the name contains the version.
const C_LIBRARY: [&str; 2] = ["libc.so", "libc-2"];

/// Returns the result for servers that call the function, judging by what the C library has set up in the process, not
/// by its calls.
pub fn getcpu(target: &Arc<Target>) -> Option<Getcpu> {
    let (slot, _) = target.image.imports().iter().find(|(_, name)| *name == "sched_getcpu")?;
    let memory = Memory::new(target.pid);
    let mut files = AddressSpace::new(Arc::clone(target));
    let function = memory.u64(slot.wrapping_add(target.bias)).unwrap_or(0);
    let glibc = C_LIBRARY.into_iter().find_map(|name| files.named(name, |image, _| version(image)));
    // The size that the kernel and the library have agreed on; 0 if the tunable, or the kernel, disables it.
    let rseq_size = files.named("ld-linux", |image, bias| {
        let symbol = image.symbol("__rseq_size").or_else(|| image.symbol("__rseq_size@@GLIBC_2.35"))?;
        memory.u32(symbol.addr.wrapping_add(bias))
    });
    let path = match (rseq_size, target.image.arch()) {
        _ if is_elsewhere(&files, function) => GetcpuPath::Elsewhere,
        (Some(1..), _) => GetcpuPath::Rseq,
        (_, Arch::X86_64) => GetcpuPath::Vdso,
        // On this architecture the kernel's vDSO has no such function.
        (_, Arch::Aarch64) => GetcpuPath::SystemCall,
    };
    Some(Getcpu { glibc, path })
}

/// Returns whether a function that the server imports is in another library than the C library. One that has not been
/// called yet may still resolve to the program itself.
fn is_elsewhere(files: &AddressSpace, function: u64) -> bool {
    let is_program = files.target.image.extent().contains(&function.wrapping_sub(files.target.bias));
    let is_of_c_library = |file: &FileMapping| C_LIBRARY.iter().any(|name| file.name.starts_with(name));
    files.mapping(function).is_some_and(|file| !is_program && !is_of_c_library(file))
}

/// Reads glibc's version string: `GNU C Library (Debian GLIBC 2.36-9+deb12u10) stable release version 2.36.`
fn version(image: &Image) -> Option<String> {
    const BEFORE: &[u8] = b"stable release version ";
    let data = image.section(".rodata")?;
    let bytes = image.bytes(data.start, usize::try_from(data.end - data.start).ok()?)?;
    let at = memchr::memmem::find(bytes, BEFORE)? + BEFORE.len();
    let number = bytes[at..].iter().take_while(|b| b.is_ascii_digit() || **b == b'.').copied().collect();
    String::from_utf8(number).ok().map(|text: String| text.trim_end_matches('.').to_owned()).filter(|v| !v.is_empty())
}
