//! Finds an instruction at which a probe sees each call of a function.

use std::ops::Range;

use super::{Function, Location};
use crate::isa::{decode, Flow, Insn, Probing};
use crate::symbols::Image;

/// An instruction that each call of a function runs once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Link-time address.
    pub addr: u64,
    /// Whether the kernel emulates the instruction, which makes the probe cheap.
    pub emulated: bool,
    /// Where the requested argument is just before the instruction runs.
    pub argument: Location,
}

/// Returns an instruction that sees each call of the function at `range` with its integer argument number `argument` (0
/// to 5): the first one before the first branch that the kernel emulates, or else the first that it can probe.
///
/// `None` if there is none, or if the code cannot be read.
pub fn entry(image: &Image, range: Range<u64>, argument: usize) -> Option<Entry> {
    find(&decode(image, range), argument)
}

fn find(insns: &[Insn], argument: usize) -> Option<Entry> {
    let start = insns.first()?.addr;
    let jumped_to = insns.iter().filter_map(|i| match i.flow {
        Flow::Jump(to) | Flow::Branch(to) => Some(to),
        _ => None,
    });
    // A jump target may run more than once per call.
    let again = jumped_to.filter(|to| *to >= start).min().unwrap_or(u64::MAX);
    let straight = insns.iter().take_while(|i| i.addr < again);
    let end = straight.clone().position(|i| i.flow != Flow::Next).map_or(straight.clone().count(), |last| last + 1);
    // An indirect jump would leave the function's control flow unknown, and is not needed here.
    let insns: Vec<Insn> = straight.take(end).filter(|i| i.flow != Flow::IndirectJump).copied().collect();
    let function = Function::from_insns(start, insns, Default::default())?;
    let at = |insn: &&Insn| function.arguments_at(insn.addr).get(argument).copied().flatten();
    let with = |wanted: Probing| {
        let found = function.insns().iter().find(|i| i.probing == wanted && at(i).is_some())?;
        Some(Entry { addr: found.addr, emulated: wanted == Probing::Emulated, argument: at(&found)? })
    };
    with(Probing::Emulated).or_else(|| with(Probing::Stepped))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::decode_bytes;
    use crate::symbols::Arch;

    const REGISTER: fn(u8) -> Location = |register| Location::Register { register, bytes: 8 };

    fn found(arch: Arch, bytes: &[u8], argument: usize) -> Option<Entry> {
        find(&decode_bytes(arch, 0x1000, bytes), argument)
    }

    #[test]
    fn a_push_behind_the_landing_pad_is_cheaper() {
        // endbr64; push %rbp; mov %rsi,%rbx; ret
        let code = [0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0x48, 0x89, 0xf3, 0xc3];
        let expected = Entry { addr: 0x1004, emulated: true, argument: REGISTER(6) };
        assert_eq!(found(Arch::X86_64, &code, 1), Some(expected));
    }

    #[test]
    fn an_argument_that_is_gone_is_not_looked_for_there() {
        // xor %esi,%esi; push %rbp; ret: only the first instruction still has it.
        let code = [0x31, 0xf6, 0x55, 0xc3];
        let expected = Entry { addr: 0x1000, emulated: false, argument: REGISTER(6) };
        assert_eq!(found(Arch::X86_64, &code, 1), Some(expected));
    }

    #[test]
    fn what_is_jumped_back_to_runs_more_than_once_a_call() {
        // mov %rdi,%rax; push %rbp; jmp to the push
        let code = [0x48, 0x89, 0xf8, 0x55, 0xeb, 0xfd];
        let expected = Entry { addr: 0x1000, emulated: false, argument: REGISTER(6) };
        assert_eq!(found(Arch::X86_64, &code, 1), Some(expected));
        // jmp to itself
        assert_eq!(found(Arch::X86_64, &[0xeb, 0xfe], 1), None);
    }

    #[test]
    fn a_branch_on_arm64_is_emulated() {
        // stp x29,x30,[sp,#-16]!; cbz x2,+8; ret
        let code = [0xfd, 0x7b, 0xbf, 0xa9, 0x42, 0x00, 0x00, 0xb4, 0xc0, 0x03, 0x5f, 0xd6];
        let expected = Entry { addr: 0x1004, emulated: true, argument: REGISTER(2) };
        assert_eq!(found(Arch::Aarch64, &code, 2), Some(expected));
    }

    #[test]
    fn nothing_is_found_in_nothing() {
        assert_eq!(found(Arch::X86_64, &[], 0), None);
        assert_eq!(found(Arch::Aarch64, &[0, 0], 0), None);
    }
}
