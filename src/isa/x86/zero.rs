//! How x86-64 instructions pass on whether a number is zero: in the zero flag and in registers.

use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpKind, Register, RflagsBits};

use super::{instruction, number, writes};
use crate::isa::insn::Insn;

/// The number of rax, with which `cmpxchg` compares memory.
pub const RAX: u8 = 0;

/// The conditions of `je` and `jne`, as [`Test::Flags`](crate::isa::Test::Flags) numbers them: whether the zero flag is
/// set.
pub const EQUAL: u8 = 4;
pub const NOT_EQUAL: u8 = 5;

/// The lowest bytes of a general register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    pub register: u8,
    pub bytes: u8,
}

/// An atomic instruction with which code attempts to take a latch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// `cmpxchg` of so many bytes: if memory holds what rax holds, it is replaced and the zero flag is set; if not, rax
    /// receives what memory holds.
    CompareExchange { bytes: u8 },
    /// `xchg`, after which these bytes are what memory held.
    Exchange(Part),
}

/// What an instruction does with the zero flag, and with the registers that it writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZeroUse {
    /// It sets the flag if these bytes are zero.
    Tests(Part),
    /// It keeps the flag, and sets one byte to whether the flag is set.
    TellsZero,
    /// It keeps the flag, and sets one byte to whether the flag is not set.
    TellsNonzero,
    /// It keeps the flag, and writes these bytes to so many bytes.
    Moves { from: Part, bytes: u8 },
    /// It keeps the flag, and writes something else.
    Keeps,
    /// It changes the flag or a part of a register in another way.
    Changes,
}

/// Returns which kind of attempt the instruction is, if it is one.
pub fn attempt(insn: &Insn) -> Option<Attempt> {
    let i = instruction(insn);
    let (register, bytes) = (number(i.op1_register()), i.op1_register().size() as u8);
    match i.mnemonic() {
        Mnemonic::Cmpxchg => Some(Attempt::CompareExchange { bytes }),
        Mnemonic::Xchg => Some(Attempt::Exchange(Part { register, bytes })),
        _ => None,
    }
}

/// Returns what the instruction does with the zero flag, and the general registers that it writes.
pub fn zero_use(insn: &Insn) -> (ZeroUse, Vec<u8>) {
    let i = instruction(insn);
    let mut factory = InstructionInfoFactory::new();
    let used = factory.info(&i).used_registers().iter();
    let written = used.filter(|used| writes(used.access()) && used.register().is_gpr());
    (flag_use(&i), written.map(|used| number(used.register())).collect())
}

fn flag_use(i: &Instruction) -> ZeroUse {
    let (to, from) = (i.op0_register(), i.op1_register());
    match i.mnemonic() {
        _ if is_high_byte(to) || is_high_byte(from) => ZeroUse::Changes,
        Mnemonic::Test if to == from => part(to).map_or(ZeroUse::Changes, ZeroUse::Tests),
        Mnemonic::Cmp if is_with_zero(i) => part(to).map_or(ZeroUse::Changes, ZeroUse::Tests),
        Mnemonic::Sete => ZeroUse::TellsZero,
        Mnemonic::Setne => ZeroUse::TellsNonzero,
        Mnemonic::Mov | Mnemonic::Movzx => {
            part(from).map_or(ZeroUse::Keeps, |from| ZeroUse::Moves { from, bytes: to.size() as u8 })
        }
        _ if i.rflags_modified() & RflagsBits::ZF != 0 => ZeroUse::Changes,
        _ => ZeroUse::Keeps,
    }
}

fn part(register: Register) -> Option<Part> {
    register.is_gpr().then(|| Part { register: number(register), bytes: register.size() as u8 })
}

/// Returns whether a register is compared with zero.
fn is_with_zero(i: &Instruction) -> bool {
    let is_number = !matches!(i.op1_kind(), OpKind::Register | OpKind::Memory);
    i.op0_kind() == OpKind::Register && is_number && i.immediate(1) == 0
}

fn is_high_byte(register: Register) -> bool {
    matches!(register, Register::AH | Register::BH | Register::CH | Register::DH)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::decode_bytes;
    use crate::symbols::Arch;

    fn one(bytes: &[u8]) -> Insn {
        decode_bytes(Arch::X86_64, 0x1000, bytes)[0]
    }

    #[test]
    fn attempts_are_compare_and_exchange_and_exchange() {
        // lock cmpxchg %edx,(%rbx); xchg %dl,(%rbx); lock addl $1,(%rbx)
        assert_eq!(attempt(&one(&[0xf0, 0x0f, 0xb1, 0x13])), Some(Attempt::CompareExchange { bytes: 4 }));
        let found = Attempt::Exchange(Part { register: 2, bytes: 1 });
        assert_eq!(attempt(&one(&[0x86, 0x13])), Some(found));
        assert_eq!(attempt(&one(&[0xf0, 0x83, 0x03, 0x01])), None);
    }

    #[test]
    fn the_zero_flag_is_set_told_and_kept() {
        let ecx = Part { register: 1, bytes: 4 };
        let cases: [(&[u8], ZeroUse, &[u8], &str); 10] = [
            (&[0x85, 0xc9], ZeroUse::Tests(ecx), &[], "test %ecx,%ecx"),
            (&[0x85, 0xd1], ZeroUse::Changes, &[], "test %edx,%ecx"),
            (&[0x83, 0xf9, 0x00], ZeroUse::Tests(ecx), &[], "cmp $0,%ecx"),
            (&[0x83, 0xf9, 0x01], ZeroUse::Changes, &[], "cmp $1,%ecx"),
            (&[0x0f, 0x94, 0xc1], ZeroUse::TellsZero, &[1], "sete %cl"),
            (&[0x0f, 0x95, 0xc2], ZeroUse::TellsNonzero, &[2], "setne %dl"),
            (&[0x0f, 0x94, 0xc5], ZeroUse::Changes, &[1], "sete %ch"),
            (&[0x48, 0x89, 0xc8], ZeroUse::Moves { from: Part { register: 1, bytes: 8 }, bytes: 8 }, &[0], "mov"),
            (&[0x8b, 0x0b], ZeroUse::Keeps, &[1], "mov (%rbx),%ecx"),
            (&[0x83, 0xc1, 0x01], ZeroUse::Changes, &[1], "add $1,%ecx"),
        ];
        for (bytes, expected, written, text) in cases {
            assert_eq!(zero_use(&one(bytes)), (expected, written.to_vec()), "{text}");
        }
    }
}
