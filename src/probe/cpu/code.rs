//! Determines the function at an address of the server's process, and the function's class.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use super::checksum::Chosen;
use super::kernel::KernelSymbols;
use super::known::known_code;
use crate::audit::{Class, Group, OrderingSites};
use crate::bpf::sample::types::sampled_call as calls;
use crate::catalog::{class_of_function, is_futex_function};
use crate::model::CpuClass;
use crate::probe::latch::Plan;
use crate::symbols::{plain_name, Image, Symbol};
use crate::target::{file_mappings, FileMapping, Target};

/// The name for code that belongs to no file, and for code whose file cannot be read.
const UNKNOWN: &str = "unknown";

/// A function and its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named<'a> {
    pub class: CpuClass,
    /// The class of the function, apart from the instruction.
    pub purpose: CpuClass,
    pub name: &'a str,
    /// The instruction that orders memory, if the time was spent on one.
    pub ordering: Option<Class>,
}

/// Code whose purpose is known, whatever its name is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Known {
    /// The addresses in the process.
    pub range: Range<u64>,
    pub class: CpuClass,
    /// The name to use if the code has none.
    pub name: Option<String>,
}

/// The code of a process: its program, its libraries, and the kernel.
pub struct Code {
    images: Images,
    /// Code of known purpose, which takes precedence over names; if several overlap, the first applies.
    known: Vec<Known>,
    kernel: Option<KernelSymbols>,
    /// Functions by their first address in the process.
    functions: HashMap<u64, (CpuClass, String, OrderingSites)>,
}

impl Code {
    /// Creates the lookup; `plan` has the server's wait functions, `checksums` the implementations that it has chosen.
    pub(super) fn new(mut images: Images, plan: &Plan, checksums: &[Chosen]) -> Code {
        let known = known_code(&mut images, plan, checksums);
        Code { images, known, kernel: None, functions: HashMap::new() }
    }

    /// Reads the names of the kernel's functions, unless that was done before.
    pub fn read_kernel(&mut self) {
        self.kernel.get_or_insert_with(KernelSymbols::read);
    }

    /// Checks again which libraries the process has loaded, if one of these addresses is in no known one.
    pub fn look_for(&mut self, mut addresses: impl Iterator<Item = u64>) {
        if addresses.any(|address| !self.is_mapped(address)) {
            self.refresh();
        }
    }

    /// Checks again which libraries the process has loaded.
    fn refresh(&mut self) {
        let now = file_mappings(self.images.target.pid);
        // A process that has ended has none, but samples of it may be left.
        if !now.is_empty() && now != self.images.mappings {
            self.images.mappings = now;
            self.functions.clear();
        }
    }

    /// Releases the memory of the parts of the files that were read.
    pub fn release_memory(&self) {
        let libraries = self.images.libraries.values().flatten();
        libraries.chain([&self.images.target.image]).for_each(Image::release_memory);
    }

    /// Returns whether the address is in a file that was mapped when the mappings were last read.
    fn is_mapped(&self, address: u64) -> bool {
        is_kernel(address) || self.images.mapping(address).is_some()
    }

    /// Returns the function that a sample was taken in; `call` is the system call that the thread was in, if known.
    pub fn function(&mut self, address: u64, call: u32) -> Named<'_> {
        if is_kernel(address) {
            let name = self.kernel.get_or_insert_with(KernelSymbols::read).at(address).unwrap_or(UNKNOWN);
            let class = kernel_class(name, call);
            return Named { class, purpose: class, name, ordering: None };
        }
        let Some(found) = self.images.find(address) else {
            return Named { class: CpuClass::Other, purpose: CpuClass::Other, name: UNKNOWN, ordering: None };
        };
        let describe = || found.describe(self.known.iter().find(|known| known.range.contains(&address)));
        let (class, name, sites) = self.functions.entry(found.start).or_insert_with(describe);
        let ordering = sites.at(address.wrapping_sub(found.bias));
        Named { class: class_with(*class, ordering), purpose: *class, name, ordering }
    }
}

/// Returns the class of time spent on an instruction in a function of this class: the function's class, if that is a
/// known cost.
fn class_with(function: CpuClass, instruction: Option<Class>) -> CpuClass {
    match (function, instruction.map(|class| class.group)) {
        (CpuClass::Other | CpuClass::Latch, Some(Group::Atomic | Group::LoadExclusive | Group::StoreExclusive)) => {
            CpuClass::Atomic
        }
        (CpuClass::Other | CpuClass::Latch, Some(_)) => CpuClass::Barrier,
        (class, _) => class,
    }
}

fn is_kernel(address: u64) -> bool {
    address >> 63 == 1
}

fn kernel_class(function: &str, call: u32) -> CpuClass {
    match calls(call) {
        calls::CALL_FUTEX => CpuClass::Futex,
        calls::CALL_GETCPU => CpuClass::Getcpu,
        _ if is_futex_function(function) => CpuClass::Futex,
        _ => CpuClass::Kernel,
    }
}

/// The files that contain a process's code.
pub(in crate::probe) struct Images {
    pub(super) target: Arc<Target>,
    /// By ascending address.
    mappings: Vec<FileMapping>,
    /// By path; a library that could not be read is not retried.
    libraries: HashMap<String, Option<Image>>,
}

impl Images {
    pub(in crate::probe) fn new(target: Arc<Target>) -> Images {
        let mappings = file_mappings(target.pid);
        Images { target, mappings, libraries: HashMap::new() }
    }

    /// Returns the file mapped at an address of the process.
    pub(super) fn mapping(&self, address: u64) -> Option<&FileMapping> {
        let next = self.mappings.partition_point(|m| m.start <= address);
        self.mappings.get(next.checked_sub(1)?).filter(|m| address < m.end)
    }

    /// Returns the function at an address of the process.
    pub(in crate::probe) fn find(&mut self, address: u64) -> Option<Found<'_>> {
        if self.target.image.extent().contains(&address.wrapping_sub(self.target.bias)) {
            return Some(Found::at(address, &self.target.image, self.target.bias, None));
        }
        let name = self.mapping(address)?.name.clone();
        let (image, bias) = self.library(address)?;
        Some(Found::at(address, image, bias, Some(name)))
    }

    /// Returns the result of `find` for the first mapped file whose name begins with `name`, given the file and the
    /// bias of its addresses.
    pub(super) fn named<T>(&mut self, name: &str, find: impl Fn(&Image, u64) -> Option<T>) -> Option<T> {
        let start = self.mappings.iter().find(|m| m.name.starts_with(name))?.start;
        let (image, bias) = self.library(start)?;
        find(image, bias)
    }

    /// Returns the file that is mapped at an address of the process, and the bias of its addresses.
    pub(super) fn library(&mut self, address: u64) -> Option<(&Image, u64)> {
        let mapping = self.mapping(address)?.clone();
        let pid = self.target.pid;
        let open = || mapping.paths(pid).iter().find_map(|path| Image::open(path).ok());
        let image = self.libraries.entry(mapping.path().to_owned()).or_insert_with(open).as_ref()?;
        let bias = mapping.start.wrapping_sub(image.page_address_of(mapping.offset)?);
        Some((image, bias))
    }
}

/// A function in a file.
pub(in crate::probe) struct Found<'a> {
    pub(in crate::probe) image: &'a Image,
    /// The difference between addresses in the process and in the file.
    pub(in crate::probe) bias: u64,
    /// The function's first address, in the process and in the file.
    start: u64,
    linked: u64,
    symbol: Option<Symbol<'a>>,
    /// The file's name, unless it is the server's program.
    library: Option<String>,
}

impl<'a> Found<'a> {
    fn at(address: u64, image: &'a Image, bias: u64, library: Option<String>) -> Found<'a> {
        let at = address.wrapping_sub(bias);
        let symbol = image.symbol_at(at).filter(|s| s.is_function);
        // Code outside all known functions is identified by its page.
        let linked = symbol.map(|s| s.addr).or_else(|| Some(image.function_at(at)?.start)).unwrap_or(at & !0xfff);
        Found { image, bias, start: linked.wrapping_add(bias), linked, symbol, library }
    }

    /// Returns the function's addresses in the file.
    pub(in crate::probe) fn bounds(&self) -> Option<Range<u64>> {
        self.image.function_at(self.linked)
    }

    /// Returns the function's name, or its file and start address.
    pub(in crate::probe) fn name(&self) -> String {
        match (self.symbol, &self.library) {
            (Some(symbol), _) => plain_name(symbol.name),
            (None, Some(library)) => format!("sub_{:x} ({library})", self.linked),
            (None, None) => format!("sub_{:x}", self.linked),
        }
    }

    fn describe(&self, known: Option<&Known>) -> (CpuClass, String, OrderingSites) {
        let name = self.name();
        let class = known.map(|known| known.class).or_else(|| class_of_function(&name)).unwrap_or(CpuClass::Other);
        let sites = self.bounds().map(|range| OrderingSites::of(self.image, range)).unwrap_or_default();
        (class, known.and_then(|known| known.name.clone()).unwrap_or(name), sites)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_in_the_kernel_are_told_by_the_system_call() {
        let class = |function, call: calls| kernel_class(function, call.0);
        assert_eq!(class("native_queued_spin_lock_slowpath", calls::CALL_FUTEX), CpuClass::Futex);
        assert_eq!(class("entry_SYSCALL_64", calls::CALL_GETCPU), CpuClass::Getcpu);
        assert_eq!(class("tcp_sendmsg", calls::CALL_OTHER), CpuClass::Kernel);
        // Kernels that do not show the system call.
        assert_eq!(class("futex_wake", calls::CALL_OTHER), CpuClass::Futex);
    }
}
