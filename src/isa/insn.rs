//! One machine instruction.

use std::ops::Range;

use super::aarch64::Word;
use super::{aarch64, x86};
use crate::symbols::{Arch, Image};

/// Where execution continues after an instruction. Addresses are link-time addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// At the next instruction. Instructions that cannot be decoded count as these.
    Next,
    /// Always at this address.
    Jump(u64),
    /// At this address or at the next instruction.
    Branch(u64),
    /// In a function and, unless that never returns, then at the next instruction. `None`: the target is in a register
    /// or memory.
    Call(Option<u64>),
    /// In the function's caller.
    Return,
    /// At an address in a register or in memory: a tail call, or a jump table.
    IndirectJump,
    /// Nowhere (`ud2`, `hlt`, `int3`, `udf`, `brk`).
    Trap,
}

/// What the kernel does with a uprobe on an instruction. This determines the cost: an emulated instruction costs one
/// trap, a stepped one about ten times that on x86.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probing {
    /// Every kernel that armtrace supports emulates it in the breakpoint handler.
    Emulated,
    /// The kernel executes it out of line under a single step (newer kernels also emulate some of these, such as
    /// multi-byte nops).
    Stepped,
    /// At least some kernels refuse the probe, or would break the program with it.
    Refused,
}

/// The maximum length of an x86 instruction.
pub(super) const MAX_LEN: usize = 15;

/// A decoded instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Insn {
    /// Link-time address.
    pub addr: u64,
    /// The length in bytes: 1 to 15 on x86-64, 4 on arm64.
    pub len: u8,
    /// Where execution continues.
    pub flow: Flow,
    /// What the kernel does with a uprobe on it.
    pub probing: Probing,
    /// The static address that it reads, writes or computes. On x86-64 this is a rip-relative operand; on arm64 the
    /// target of `adr`, a literal load, or an `add`, load or store through a register that a preceding `adrp` in the
    /// same straight line has set.
    pub memory: Option<u64>,
    /// The instruction set that it belongs to.
    pub arch: Arch,
    pub(super) raw: [u8; MAX_LEN],
}

impl Insn {
    /// Returns the address after this instruction.
    pub fn end(&self) -> u64 {
        self.addr.wrapping_add(u64::from(self.len))
    }

    /// Returns the instruction's bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.raw[..usize::from(self.len).min(MAX_LEN)]
    }

    /// Returns the number in an x86-64 instruction that can be a whole address, of 32 or 64 bits. `None` on arm64,
    /// which has no immediates of that size.
    pub fn immediate(&self) -> Option<u64> {
        match self.arch {
            Arch::X86_64 => x86::immediate(self),
            Arch::Aarch64 => None,
        }
    }

    /// Returns the text for display: GNU assembler syntax, with absolute branch targets.
    pub fn text(&self) -> String {
        match self.arch {
            Arch::X86_64 => x86::text(self),
            Arch::Aarch64 => aarch64::text(self),
        }
    }

    /// Returns whether a function may start with it only to be a legal target of an indirect call, or to sign the
    /// return address. Such an instruction does no work of the function.
    pub fn is_landing_pad(&self) -> bool {
        match self.arch {
            Arch::X86_64 => self.bytes() == [0xf3, 0x0f, 0x1e, 0xfa],
            Arch::Aarch64 => self.word().is_landing_pad(),
        }
    }

    /// Returns whether it is a spin hint (`pause`, `yield`, `isb`).
    pub fn is_spin_hint(&self) -> bool {
        match self.arch {
            Arch::X86_64 => self.bytes() == [0xf3, 0x90],
            Arch::Aarch64 => self.word().is_spin_hint(),
        }
    }

    /// Returns whether it does nothing, as padding between blocks.
    pub fn is_padding(&self) -> bool {
        match self.arch {
            Arch::X86_64 => x86::is_padding(self),
            Arch::Aarch64 => self.word() == Word::NOP,
        }
    }

    /// Returns whether it calls the kernel.
    pub fn is_system_call(&self) -> bool {
        match self.arch {
            Arch::X86_64 => self.bytes() == [0x0f, 0x05],
            Arch::Aarch64 => self.word() == Word::SVC,
        }
    }

    /// Returns the beginning of the page whose address an arm64 `adrp` computes.
    pub fn page(&self) -> Option<u64> {
        match self.arch {
            Arch::X86_64 => None,
            Arch::Aarch64 => self.word().page(self.addr).map(|(_, page)| page),
        }
    }

    /// Appends its effects to `into`.
    pub fn effects(&self, into: &mut Vec<Effect>) {
        match self.arch {
            Arch::X86_64 => x86::effects(self, into),
            Arch::Aarch64 => aarch64::effects(self, into),
        }
    }

    /// Returns whether it reads or writes memory other than through a call.
    pub fn touches_memory(&self) -> bool {
        match self.arch {
            Arch::X86_64 => x86::touches_memory(self),
            Arch::Aarch64 => self.word().is_load_or_store(),
        }
    }

    /// Returns the address of its memory operand, if it is a register plus a number, or (`None`) only a number. On
    /// arm64 it is never known.
    pub fn operand(&self) -> Option<(Option<u8>, i64)> {
        match self.arch {
            Arch::X86_64 => x86::operand(self),
            Arch::Aarch64 => None,
        }
    }

    /// Returns whether it atomically reads and writes its memory operand, as attempts to take a latch do. Those of
    /// arm64 are not known.
    pub fn is_atomic(&self) -> bool {
        match self.arch {
            Arch::X86_64 => x86::is_atomic(self),
            Arch::Aarch64 => false,
        }
    }

    /// Returns whether it reads 4 bytes of memory and does not write them. On arm64 this is not known.
    pub fn reads_four_bytes(&self) -> bool {
        match self.arch {
            Arch::X86_64 => x86::reads_four_bytes(self),
            Arch::Aarch64 => false,
        }
    }

    /// Returns the number that it stores without a register; on arm64 none does.
    pub fn stored_number(&self) -> Option<u64> {
        match self.arch {
            Arch::X86_64 => x86::stored_number(self),
            Arch::Aarch64 => None,
        }
    }

    /// Returns when a conditional branch is taken: the test, and the outcome that takes it. `None` for other
    /// instructions and for branches on something that a probe cannot see.
    pub fn branch_test(&self) -> Option<(Test, bool)> {
        match self.arch {
            Arch::X86_64 => x86::branch_test(self),
            Arch::Aarch64 => self.word().branch_test(),
        }
    }

    /// Returns the arm64 instruction.
    pub(super) fn word(&self) -> Word {
        Word(u32::from_le_bytes([self.raw[0], self.raw[1], self.raw[2], self.raw[3]]))
    }
}

/// Decodes the instructions in an address range of a binary, usually one function from [`Image::function_at`]. Empty if
/// the range is not in the file.
pub fn decode(image: &Image, range: Range<u64>) -> Vec<Insn> {
    let len = range.end.saturating_sub(range.start);
    match image.bytes(range.start, usize::try_from(len).unwrap_or(usize::MAX)) {
        Some(bytes) => decode_bytes(image.arch(), range.start, bytes),
        None => Vec::new(),
    }
}

/// Decodes the machine code at address `base`, one instruction after the other. A truncated last instruction is
/// omitted.
pub fn decode_bytes(arch: Arch, base: u64, bytes: &[u8]) -> Vec<Insn> {
    match arch {
        Arch::X86_64 => x86::decode(base, bytes),
        Arch::Aarch64 => aarch64::decode(base, bytes),
    }
}

/// What an instruction does to registers and to the stack, in order. Registers are numbered as the hardware
/// encodes them; on arm64, 31 is the stack pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// `to` = the low `bytes` (4 or 8) of `from`, zero-extended.
    Copy { to: u8, from: u8, bytes: u8 },
    /// `to` = `from` + `by`, in 64 bits.
    Offset { to: u8, from: u8, by: i64 },
    /// `to` = a value known from the instruction alone.
    Constant { to: u8, value: u64 },
    /// `to` = `to` with 16 bits replaced (`movk`).
    Insert { to: u8, value: u16, shift: u8 },
    /// The low `bytes` (2, 4 or 8) of `to` are masked with `mask`.
    And { to: u8, mask: u64, bytes: u8 },
    /// The set bits of `from` are added to the low `bytes` (2, 4 or 8) of `to`.
    Or { to: u8, from: u8, bytes: u8 },
    /// The lowest bits of `to`, those of `mask`, are replaced with those of `from` (`bfi`).
    Take { to: u8, from: u8, mask: u32 },
    /// `bytes` bytes at `base` + `offset` = register `from`, or something unknown.
    Store { base: u8, offset: i64, from: Option<u8>, bytes: u8 },
    /// `to` = zero-extended `bytes` (4 or 8) at `base` + `offset`.
    Load { to: u8, base: u8, offset: i64, bytes: u8 },
    /// The register now holds something unknown.
    Clobber(u8),
    /// A call: everything that the calling convention lets a callee change becomes unknown.
    Call,
    /// Anything may have changed.
    Unknown,
}

impl Effect {
    /// Returns the one register that it writes; `None` for effects that write memory or many registers.
    pub fn written(&self) -> Option<u8> {
        match *self {
            Effect::Copy { to, .. }
            | Effect::Offset { to, .. }
            | Effect::Constant { to, .. }
            | Effect::Insert { to, .. }
            | Effect::And { to, .. }
            | Effect::Or { to, .. }
            | Effect::Take { to, .. }
            | Effect::Load { to, .. }
            | Effect::Clobber(to) => Some(to),
            Effect::Store { .. } | Effect::Call | Effect::Unknown => None,
        }
    }
}

/// What a conditional branch depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Test {
    /// The processor's flags satisfy this condition, numbered as the hardware encodes it. On x86-64 it is the low four
    /// bits of the `jcc` opcode: 0 `o`, 2 `b`, 4 `e`, 6 `be`, 8 `s`, 10 `p`, 12 `l`, 14 `le`; odd numbers are the
    /// opposites. On arm64: 0 `eq`, 2 `cs`, 4 `mi`, 6 `vs`, 8 `hi`, 10 `ge`, 12 `gt`; odd numbers are the opposites,
    /// and 14 and 15 always hold.
    Flags(u8),
    /// The low `bits` (32 or 64) of the register are zero.
    Zero {
        /// The register, numbered as in [`super::Location`].
        register: u8,
        /// The number of low bits that are tested.
        bits: u8,
    },
    /// The bit of the register is set.
    Bit {
        /// The register, numbered as in [`super::Location`].
        register: u8,
        /// The number of the bit, 0 for the lowest.
        bit: u8,
    },
}
