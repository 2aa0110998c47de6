//! Finds out how code computes checksums.

use std::ops::Range;

use crate::isa::{decode, Flow, Insn};
use crate::symbols::{Arch, Image};

/// The most called functions that are examined along with a function.
const MAX_CALLED: usize = 16;

/// The CPU's checksum instructions, as far as a function uses them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumInstruction {
    /// This one, in assembly text.
    Found(&'static str),
    /// Neither the function nor those that it calls use any.
    None,
}

/// Returns the best of a CPU's checksum instructions in a function or in the functions that it calls. `None` if it
/// calls some that the code does not show.
pub fn checksum_instruction(image: &Image, function: Range<u64>) -> Option<ChecksumInstruction> {
    let insns = decode(image, function.clone());
    if let Some(found) = best(image.arch(), &insns) {
        return Some(ChecksumInstruction::Found(found));
    }
    let leaves = |insn: &Insn| match insn.flow {
        Flow::Call(to) => Some(to),
        Flow::Jump(to) if !function.contains(&to) => Some(Some(to)),
        Flow::IndirectJump => Some(None),
        _ => None,
    };
    let called: Option<Vec<u64>> = insns.iter().filter_map(leaves).take(MAX_CALLED).collect();
    let called: Option<Vec<Range<u64>>> = called?.into_iter().map(|to| image.function_at(to)).collect();
    let found = called?.into_iter().find_map(|range| best(image.arch(), &decode(image, range)));
    Some(found.map_or(ChecksumInstruction::None, ChecksumInstruction::Found))
}

fn best(arch: Arch, insns: &[Insn]) -> Option<&'static str> {
    let known: &[&'static str] = match arch {
        Arch::X86_64 => &["vpclmul", "pclmul", "crc32"],
        Arch::Aarch64 => &["pmull", "crc32"],
    };
    let texts: Vec<String> = insns.iter().map(Insn::text).collect();
    known.iter().find(|name| texts.iter().any(|text| text.starts_with(**name))).map(|name| match *name {
        "vpclmul" => "vpclmulqdq",
        "pclmul" => "pclmulqdq",
        name => name,
    })
}

/// Returns the static variable through which a function jumps to another one.
pub fn jump_variable(image: &Image, function: Range<u64>) -> Option<u64> {
    let insns = decode(image, function);
    let jump = insns.iter().position(|insn| insn.flow == Flow::IndirectJump)?;
    insns[..=jump].iter().rev().filter_map(|insn| insn.memory).find(|addr| image.is_static_data(*addr))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::decode_bytes;

    #[test]
    fn x86_checksum_instructions_are_known() {
        let best = |bytes: &[u8]| best(Arch::X86_64, &decode_bytes(Arch::X86_64, 0, bytes));
        // crc32q (%rdi),%rax; pclmulqdq $0,%xmm1,%xmm0; vpclmulqdq $0,%zmm1,%zmm2,%zmm3; ret.
        let crc = [0xf2, 0x48, 0x0f, 0x38, 0xf1, 0x07];
        let clmul = [0x66, 0x0f, 0x3a, 0x44, 0xc1, 0x00];
        let wide = [0x62, 0xf3, 0x6d, 0x48, 0x44, 0xd9, 0x00];
        assert_eq!(best(&crc), Some("crc32"));
        assert_eq!(best(&[&crc[..], &clmul[..]].concat()), Some("pclmulqdq"));
        assert_eq!(best(&[&clmul[..], &wide[..]].concat()), Some("vpclmulqdq"));
        assert_eq!(best(&[0xc3]), None);
    }

    #[test]
    fn arm_checksum_instructions_are_known() {
        let best = |words: &[u32]| {
            let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
            best(Arch::Aarch64, &decode_bytes(Arch::Aarch64, 0, &bytes))
        };
        // crc32cx w0, w0, x1; pmull v0.1q, v1.1d, v2.1d; ret.
        assert_eq!(best(&[0x9ac1_5c00]), Some("crc32"));
        assert_eq!(best(&[0x9ac1_5c00, 0x0ee2_e020]), Some("pmull"));
        assert_eq!(best(&[0xd65f_03c0]), None);
    }
}
