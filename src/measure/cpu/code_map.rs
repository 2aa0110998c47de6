//! Determines the function at an address of the server's process, and the function's class.

use std::collections::HashMap;
use std::ops::Range;

use super::kernel::KernelSymbols;
use super::known::known_code;
use crate::audit::OrderingSites;
use crate::bpf::sample::types::sampled_call as calls;
use crate::catalog::{class_of_function, is_futex_function};
use crate::isa::{Class, Group};
use crate::measure::address_space::{AddressSpace, Found};
use crate::measure::checksum::Chosen;
use crate::measure::latch::Plan;
use crate::model::CpuClass;

/// The name for code that belongs to no file, and for code whose file cannot be read.
const UNKNOWN: &str = "unknown";

/// A function and its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named<'a> {
    /// The class of the time: that of the instruction, unless the function is a known cost.
    pub class: CpuClass,
    /// The class of the function alone.
    pub purpose: CpuClass,
    /// The function's name in source form, or its file and address.
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
pub struct CodeMap {
    files: AddressSpace,
    /// Code of known purpose, which takes precedence over names; if several overlap, the first applies.
    known: Vec<Known>,
    kernel: Option<KernelSymbols>,
    /// Functions by their first address in the process.
    functions: HashMap<u64, (CpuClass, String, OrderingSites)>,
}

impl CodeMap {
    /// Creates the lookup; `plan` has the server's wait functions, `checksums` the implementations that it has chosen.
    pub(super) fn new(mut files: AddressSpace, plan: &Plan, checksums: &[Chosen]) -> CodeMap {
        let known = known_code(&mut files, plan, checksums);
        CodeMap { files, known, kernel: None, functions: HashMap::new() }
    }

    /// Sets the names of the kernel's functions. Without them, the first address in the kernel takes as long as reading
    /// them does.
    pub(super) fn set_kernel(&mut self, kernel: KernelSymbols) {
        self.kernel.get_or_insert(kernel);
    }

    /// Returns whether the names of the kernel's functions are known.
    pub(super) fn knows_kernel(&self) -> bool {
        self.kernel.is_some()
    }

    /// Checks again which libraries the process has loaded, if one of these addresses is in no known one.
    pub fn look_for(&mut self, mut addresses: impl Iterator<Item = u64>) {
        if addresses.any(|address| !self.is_mapped(address)) {
            self.refresh();
        }
    }

    /// Checks again which libraries the process has loaded.
    fn refresh(&mut self) {
        if self.files.refresh() {
            self.functions.clear();
        }
    }

    /// Releases the memory of the parts of the files that were read.
    pub fn release_memory(&self) {
        self.files.release_memory();
    }

    /// Returns whether the address is in a file that was mapped when the mappings were last read.
    fn is_mapped(&self, address: u64) -> bool {
        is_kernel(address) || self.files.mapping(address).is_some()
    }

    /// Returns the function that a sample was taken in; `call` is the system call that the thread was in, if known.
    pub fn function(&mut self, address: u64, call: u32) -> Named<'_> {
        if is_kernel(address) {
            let name = self.kernel.get_or_insert_with(KernelSymbols::read).at(address).unwrap_or(UNKNOWN);
            let class = kernel_class(name, call);
            return Named { class, purpose: class, name, ordering: None };
        }
        let Some(found) = self.files.find(address) else {
            return Named { class: CpuClass::Other, purpose: CpuClass::Other, name: UNKNOWN, ordering: None };
        };
        let describe = || describe(&found, self.known.iter().find(|known| known.range.contains(&address)));
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

/// Returns the class and the name of a function, and where it orders memory.
fn describe(found: &Found<'_>, known: Option<&Known>) -> (CpuClass, String, OrderingSites) {
    let name = found.name();
    let class = known.map(|known| known.class).or_else(|| class_of_function(&name)).unwrap_or(CpuClass::Other);
    let sites = found.bounds().map(|range| OrderingSites::of(found.image, range)).unwrap_or_default();
    (class, known.and_then(|known| known.name.clone()).unwrap_or(name), sites)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_the_kernel_are_the_upper_half() {
        assert!([0xffff_ffff_8100_0000, 0xffff_8000_0000_0000, 1 << 63].into_iter().all(is_kernel));
        assert!([0, 0x5555_5555_4000, 0x7fff_ffff_f000, u64::MAX >> 1].into_iter().all(|at| !is_kernel(at)));
    }

    #[test]
    fn an_instruction_that_orders_memory_counts_unless_its_function_is_a_known_cost() {
        let class = |group| Some(Class { group, ..crate::audit::classes(crate::symbols::Arch::X86_64)[0] });
        for function in [CpuClass::Other, CpuClass::Latch] {
            assert_eq!(class_with(function, class(Group::Atomic)), CpuClass::Atomic);
            assert_eq!(class_with(function, class(Group::StoreExclusive)), CpuClass::Atomic);
            assert_eq!(class_with(function, class(Group::FullFence)), CpuClass::Barrier);
            assert_eq!(class_with(function, None), function);
        }
        assert_eq!(class_with(CpuClass::Spin, class(Group::Atomic)), CpuClass::Spin);
    }

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
