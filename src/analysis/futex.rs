//! Finds functions with a futex wait of their own by what they do, for binaries that have no names for them.

use std::collections::HashSet;
use std::ops::Range;

use super::calls::{direct_calls, imported_calls};
use super::function::Function;
use super::values::Passed;
use crate::isa::{Flow, Insn};
use crate::symbols::{Arch, Image};

/// `FUTEX_WAIT` and `FUTEX_WAKE`, each with `FUTEX_PRIVATE_FLAG` (`include/uapi/linux/futex.h`).
const WAIT: u64 = 0x80;
const WAKE: u64 = 0x81;
/// The number of threads to wake that means all of them.
const ALL: u64 = i32::MAX as u64;

/// A function that sleeps on a word of its first argument, as lock primitives do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FutexWait {
    /// The function's link-time addresses.
    pub function: Range<u64>,
    /// The offset of each word that it sleeps on, from where the first argument points; there are several if it sleeps
    /// in several places. `None`: the word is not known.
    pub words: Vec<Option<i64>>,
    /// Whether it also wakes all other sleepers.
    pub wakes_all: bool,
    /// The functions that it calls or jumps to.
    pub calls: HashSet<u64>,
    /// The static addresses that its instructions refer to.
    pub refers_to: HashSet<u64>,
    /// The static addresses that every call of it refers to, on any path.
    pub always_refers_to: HashSet<u64>,
    /// Whether every call of it sleeps.
    pub always_sleeps: bool,
}

/// Returns the functions that call the C library's `syscall` to sleep in a futex until its value changes from one that
/// they were given or have read. A sleep until it changes from a constant is not a lock's, but for example a
/// semaphore's.
pub fn futex_waits(image: &Image) -> Vec<FutexWait> {
    let stubs: HashSet<u64> = imported_calls(image, "syscall").into_iter().collect();
    let mut found: Vec<FutexWait> = Vec::new();
    let mut seen: Option<Range<u64>> = None;
    for (at, _) in direct_calls(image, &stubs) {
        if seen.as_ref().is_some_and(|range| range.contains(&at)) {
            continue;
        }
        let Some(range) = image.function_at(at) else { continue };
        seen = Some(range.clone());
        found.extend(Function::new(image, range.clone()).and_then(|f| futex_wait(image.arch(), range, &f, &stubs)));
    }
    found
}

fn futex_wait(arch: Arch, range: Range<u64>, f: &Function, stubs: &HashSet<u64>) -> Option<FutexWait> {
    let always: Vec<&Insn> = f.always_passed().collect();
    let mut wait = FutexWait {
        function: range,
        words: Vec::new(),
        wakes_all: false,
        calls: HashSet::new(),
        refers_to: f.insns().iter().filter_map(|i| i.memory).collect(),
        always_refers_to: always.iter().filter_map(|i| i.memory).collect(),
        always_sleeps: false,
    };
    for insn in f.insns() {
        let (Flow::Call(Some(to)) | Flow::Jump(to)) = insn.flow else { continue };
        if !stubs.contains(&to) {
            wait.calls.insert(to);
            continue;
        }
        let [number, word, operation, value, ..] = f.passed_at(insn.addr);
        let constant = |passed: Option<Passed>| passed.and_then(Passed::constant);
        if constant(number) != Some(system_call(arch)) {
            continue;
        }
        match constant(operation) {
            Some(WAIT) if constant(value).is_none() => {
                wait.words.push(word.and_then(Passed::first_argument));
                wait.always_sleeps |= always.iter().any(|i| i.addr == insn.addr);
            }
            Some(WAKE) => wait.wakes_all |= constant(value) == Some(ALL),
            _ => {}
        }
    }
    (!wait.words.is_empty()).then_some(wait)
}

/// Returns the number of the `futex` system call.
fn system_call(arch: Arch) -> u64 {
    match arch {
        Arch::X86_64 => 202,
        Arch::Aarch64 => 98,
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples::{aarch64, x86, BASE, SYSCALL};
    use super::*;

    fn found(arch: Arch, bytes: &[u8]) -> Option<FutexWait> {
        let f = Function::from_bytes(arch, BASE, bytes).expect("a function");
        futex_wait(arch, BASE..BASE + bytes.len() as u64, &f, &HashSet::from([SYSCALL]))
    }

    #[test]
    fn a_sleep_on_the_first_argument_is_found() {
        for (arch, bytes) in [(Arch::X86_64, x86::SPIN), (Arch::Aarch64, aarch64::SPIN)] {
            let wait = found(arch, bytes).expect("a wait");
            assert_eq!(wait.words, [Some(0)]);
            // A call that succeeds while spinning does not sleep.
            assert!(!wait.always_sleeps && !wait.wakes_all);
        }
        let wait = found(Arch::X86_64, x86::WAKE).expect("a wait");
        assert!(wait.words == [Some(0)] && wait.always_sleeps);
    }

    #[test]
    fn a_sleep_on_a_member_is_told_by_its_offset() {
        let mut arm = aarch64::SPIN.to_vec();
        // mov x19, x0 becomes add x19, x0, #4
        arm[0x10..0x14].copy_from_slice(&[0x13, 0x10, 0x00, 0x91]);
        assert_eq!(found(Arch::Aarch64, &arm).expect("a wait").words, [Some(4)]);
        // mov %rdi,%rbx and sub become lea 0x4(%rdi),%rbx and a nop
        let mut amd = x86::SPIN.to_vec();
        amd[0x05..0x0c].copy_from_slice(&[0x48, 0x8d, 0x5f, 0x04, 0x0f, 0x1f, 0x00]);
        assert_eq!(found(Arch::X86_64, &amd).expect("a wait").words, [Some(4)]);
    }

    #[test]
    fn other_system_calls_are_none() {
        let mut amd = x86::SPIN.to_vec();
        amd[0x36] = 0xcb;
        assert_eq!(found(Arch::X86_64, &amd), None);
        let mut arm = aarch64::SPIN.to_vec();
        // mov x0, #0x63
        arm[0x3c] = 0x60;
        assert_eq!(found(Arch::Aarch64, &arm), None);
    }
}
