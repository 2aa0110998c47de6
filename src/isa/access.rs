//! Determines what an instruction does to its memory operand, and which instruction triggered a watchpoint.

use super::insn::{Effect, Insn};
use super::x86;
use crate::symbols::Arch;

/// A kind of memory access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// A read.
    Read,
    /// A write. Atomics that may leave memory unchanged count, because they take the cache line all the same.
    Write,
}

impl Insn {
    /// Returns what it does to memory other than the stack; `None` if it does nothing to it, or if this is not known.
    pub fn access(&self) -> Option<Access> {
        match self.arch {
            Arch::X86_64 => x86::access(self),
            Arch::Aarch64 => {
                let (word, mut found) = (self.word(), Vec::new());
                self.effects(&mut found);
                if word.stores_somewhere() || found.iter().any(|effect| matches!(effect, Effect::Store { .. })) {
                    return Some(Access::Write);
                }
                (word.is_load_or_store() && !found.contains(&Effect::Unknown)).then_some(Access::Read)
            }
        }
    }
}

/// Returns which of a function's instructions accessed the watched memory when the processor reported `ip`. x86 reports
/// an access after it is done, arm64 before it.
pub fn watched(insns: &[Insn], ip: u64) -> Option<&Insn> {
    let at_or_behind = insns.partition_point(|insn| insn.addr < ip);
    let insn = match insns.first()?.arch {
        Arch::X86_64 => insns.get(at_or_behind.checked_sub(1)?).filter(|insn| insn.end() == ip),
        Arch::Aarch64 => insns.get(at_or_behind).filter(|insn| insn.addr == ip),
    };
    insn.filter(|insn| insn.access().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::decode_bytes;
    use Access::{Read, Write};

    fn of(arch: Arch, bytes: &[u8]) -> Option<Access> {
        let insns = decode_bytes(arch, 0x1000, bytes);
        assert_eq!(insns.len(), 1, "{bytes:x?}");
        insns[0].access()
    }

    #[test]
    fn x86_instructions_read_or_write() {
        let cases: [(&[u8], Option<Access>); 11] = [
            (&[0x8b, 0x07], Some(Read)),                    // mov (%rdi),%eax
            (&[0x89, 0x07], Some(Write)),                   // mov %eax,(%rdi)
            (&[0x83, 0x3f, 0x00], Some(Read)),              // cmpl $0,(%rdi)
            (&[0xf0, 0x0f, 0xb1, 0x17], Some(Write)),       // lock cmpxchg %edx,(%rdi)
            (&[0xf0, 0x48, 0x0f, 0xc1, 0x07], Some(Write)), // lock xadd %rax,(%rdi)
            (&[0x87, 0x07], Some(Write)),                   // xchg %eax,(%rdi)
            (&[0xf0, 0x0f, 0xba, 0x2f, 0x1f], Some(Write)), // lock btsl $31,(%rdi)
            (&[0xff, 0x37], Some(Read)),                    // push (%rdi)
            (&[0x55], None),                                // push %rbp
            (&[0x48, 0x8d, 0x07], None),                    // lea (%rdi),%rax
            (&[0x48, 0x89, 0xc7], None),                    // mov %rax,%rdi
        ];
        for (bytes, expected) in cases {
            assert_eq!(of(Arch::X86_64, bytes), expected, "{bytes:x?}");
        }
    }

    #[test]
    fn arm64_instructions_read_or_write() {
        let cases: [(u32, Option<Access>); 20] = [
            (0xb940_0001, Some(Read)),  // ldr w1, [x0]
            (0xb900_0001, Some(Write)), // str w1, [x0]
            (0xb862_6801, Some(Read)),  // ldr w1, [x0, x2]
            (0xb822_6801, Some(Write)), // str w1, [x0, x2]
            (0x3ca2_6801, Some(Write)), // str q1, [x0, x2]
            (0x3ce2_6801, Some(Read)),  // ldr q1, [x0, x2]
            (0xa940_0801, Some(Read)),  // ldp x1, x2, [x0]
            (0xa900_0801, Some(Write)), // stp x1, x2, [x0]
            (0x885f_fc01, Some(Read)),  // ldaxr w1, [x0]
            (0x8802_fc01, Some(Write)), // stlxr w2, w1, [x0]
            (0x88df_fc01, Some(Read)),  // ldar w1, [x0]
            (0x889f_fc01, Some(Write)), // stlr w1, [x0]
            (0xb8bf_c001, Some(Read)),  // ldapr w1, [x0]
            (0xb8e2_0001, Some(Write)), // ldaddal w2, w1, [x0]
            (0xb8e2_8001, Some(Write)), // swpal w2, w1, [x0]
            (0x88e2_fc01, Some(Write)), // casal w2, w1, [x0]
            (0x4c40_7001, Some(Read)),  // ld1 {v1.16b}, [x0]
            (0x4c00_7001, Some(Write)), // st1 {v1.16b}, [x0]
            (0x8b02_0001, None),        // add x1, x0, x2
            (0xd65f_03c0, None),        // ret
        ];
        for (word, expected) in cases {
            assert_eq!(of(Arch::Aarch64, &word.to_le_bytes()), expected, "{word:x}");
        }
    }

    #[test]
    fn a_watchpoint_is_reported_behind_the_access_or_at_it() {
        // lea (%rdi),%rax; lock xadd %rax,(%rdi); mov %rax,%rdi
        let bytes = [0x48, 0x8d, 0x07, 0xf0, 0x48, 0x0f, 0xc1, 0x07, 0x48, 0x89, 0xc7];
        let insns = decode_bytes(Arch::X86_64, 0x1000, &bytes);
        assert_eq!(watched(&insns, 0x1008).map(|insn| insn.addr), Some(0x1003));
        for ip in [0, 0x1000, 0x1003, 0x1004, 0x100b, 0x2000] {
            assert_eq!(watched(&insns, ip), None, "{ip:x}");
        }
        let words: Vec<u8> = [0x8b02_0001_u32, 0xb8e2_0001].into_iter().flat_map(u32::to_le_bytes).collect();
        let insns = decode_bytes(Arch::Aarch64, 0x1000, &words);
        assert_eq!(watched(&insns, 0x1004).map(|insn| insn.addr), Some(0x1004));
        assert!(watched(&insns, 0x1000).is_none() && watched(&insns, 0x1008).is_none());
        assert_eq!(watched(&[], 0x1000), None);
    }
}
