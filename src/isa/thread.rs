//! Determines how an instruction reads variables that each thread has its own of.

use super::insn::Insn;
use super::{aarch64, x86};
use crate::symbols::Arch;

/// What an instruction does with the thread pointer (`fs` on x86-64, `tpidr_el0` on arm64), or with a part of the
/// address of a thread's variable. Registers are numbered as in [`Effect`](super::Effect).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadEffect {
    /// `to` = the thread pointer.
    Pointer {
        /// The register.
        to: u8,
    },
    /// `to` = the eight bytes at the thread pointer + `offset` + the register `index`.
    Variable {
        /// The register that is written.
        to: u8,
        /// A register that is part of the address.
        index: Option<u8>,
        /// The rest of the address, in bytes.
        offset: i64,
    },
    /// `to` = the eight bytes at `base` + `index`.
    Indexed {
        /// The register that is written.
        to: u8,
        /// One part of the address.
        base: u8,
        /// The other part.
        index: u8,
    },
    /// `to` = `to` + the eight bytes in static data at `from`.
    Add {
        /// The register.
        to: u8,
        /// The link-time address.
        from: u64,
    },
}

impl Insn {
    /// Returns what it does to find a variable of its thread; `None` if it does nothing of the kind.
    pub fn thread_effect(&self) -> Option<ThreadEffect> {
        match self.arch {
            Arch::X86_64 => x86::thread_effect(self),
            Arch::Aarch64 => aarch64::thread_effect(self.word()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::decode_bytes;
    use ThreadEffect::{Add, Indexed, Pointer, Variable};

    fn of(arch: Arch, bytes: &[u8]) -> Option<ThreadEffect> {
        let insns = decode_bytes(arch, 0x1000, bytes);
        assert_eq!(insns.len(), 1, "{bytes:x?}");
        insns[0].thread_effect()
    }

    #[test]
    fn x86_instructions_read_variables_of_their_thread() {
        let at = |index, offset| Some(Variable { to: 0, index, offset });
        let cases: [(&[u8], Option<ThreadEffect>); 9] = [
            // mov %fs:0,%rax, also with prefixes that fill space, and in its short form
            (&[0x64, 0x48, 0x8b, 0x04, 0x25, 0, 0, 0, 0], Some(Pointer { to: 0 })),
            (&[0x66, 0x66, 0x66, 0x64, 0x48, 0x8b, 0x04, 0x25, 0, 0, 0, 0], Some(Pointer { to: 0 })),
            (&[0x64, 0x48, 0xa1, 0, 0, 0, 0, 0, 0, 0, 0], Some(Pointer { to: 0 })),
            // mov %fs:-0x90,%rax
            (&[0x64, 0x48, 0x8b, 0x04, 0x25, 0x70, 0xff, 0xff, 0xff], at(None, -0x90)),
            // mov %fs:(%rdx),%rax
            (&[0x64, 0x48, 0x8b, 0x02], at(Some(2), 0)),
            // add 0x10(%rip),%rax
            (&[0x48, 0x03, 0x05, 0x10, 0, 0, 0], Some(Add { to: 0, from: 0x1017 })),
            // mov %fs:0,%eax; mov %gs:0,%rax; mov %rax,%fs:0
            (&[0x64, 0x8b, 0x04, 0x25, 0, 0, 0, 0], None),
            (&[0x65, 0x48, 0x8b, 0x04, 0x25, 0, 0, 0, 0], None),
            (&[0x64, 0x48, 0x89, 0x04, 0x25, 0, 0, 0, 0], None),
        ];
        for (bytes, expected) in cases {
            assert_eq!(of(Arch::X86_64, bytes), expected, "{bytes:x?}");
        }
    }

    #[test]
    fn arm64_instructions_read_variables_of_their_thread() {
        let cases: [(u32, Option<ThreadEffect>); 5] = [
            (0xd53b_d041, Some(Pointer { to: 1 })),                    // mrs x1, tpidr_el0
            (0xf860_6820, Some(Indexed { to: 0, base: 1, index: 0 })), // ldr x0, [x1, x0]
            (0xf860_7820, None),                                       // ldr x0, [x1, x0, lsl #3]
            (0xb860_6820, None),                                       // ldr w0, [x1, x0]
            (0xd53b_d061, None),                                       // mrs x1, tpidrro_el0
        ];
        for (word, expected) in cases {
            assert_eq!(of(Arch::Aarch64, &word.to_le_bytes()), expected, "{word:x}");
        }
    }
}
