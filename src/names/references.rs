//! Finds the static data that the server's code refers to.

use std::ops::Range;

use crate::isa::{decode, Insn};
use crate::symbols::Image;

/// A binary's code, with its global offset table resolved: arm64 code reaches exported variables through it.
pub struct References<'a> {
    /// The binary.
    pub image: &'a Image,
    extent: Range<u64>,
}

impl<'a> References<'a> {
    /// Returns the code of a binary.
    pub fn new(image: &'a Image) -> References<'a> {
        References { image, extent: image.extent() }
    }

    /// Returns the static address that instruction `index` of a function refers to (or contains as a number, where
    /// addresses are fixed). If the pointer there is part of the global offset table, returns what it holds.
    pub fn of(&self, insns: &[Insn], index: usize) -> Option<u64> {
        let insn = insns.get(index)?;
        let number = || self.image.is_fixed().then(|| insn.immediate())?.filter(|number| self.extent.contains(number));
        let address = insn.memory.or_else(|| relaxed_page(insn, insns.get(index + 1)?)).or_else(number)?;
        Some(self.image.got_entry(address).unwrap_or(address))
    }

    /// Returns the instructions of the function that contains `addr`; empty if no function is known there.
    pub fn function(&self, addr: u64) -> Vec<Insn> {
        self.image.function_at(addr).map(|range| decode(self.image, range)).unwrap_or_default()
    }
}

/// Returns the target of an arm64 `adrp` whose `add` the linker replaced with a `nop` because the address is the
/// beginning of a page.
fn relaxed_page(insn: &Insn, next: &Insn) -> Option<u64> {
    insn.page().filter(|_| next.is_padding())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::decode_bytes;
    use crate::symbols::Arch;

    /// From MySQL 9.7.4: `adrp x0, 0x3527000` at 0x2588820, relaxed and not.
    #[test]
    fn a_relaxed_page_address_is_found() {
        let decode = |second: u32| {
            let bytes: Vec<u8> = [0xf000_7ce0_u32, second].iter().flat_map(|w| w.to_le_bytes()).collect();
            decode_bytes(Arch::Aarch64, 0x258_8820, &bytes)
        };
        let relaxed = decode(0xd503_201f);
        assert_eq!(relaxed_page(&relaxed[0], &relaxed[1]), Some(0x352_7000));
        let plain = decode(0x9100_4000);
        assert_eq!(relaxed_page(&plain[0], &plain[1]), None);
    }

    #[test]
    fn x86_code_is_never_a_page_address() {
        let insns = decode_bytes(Arch::X86_64, 0x1000, &[0x90, 0x90]);
        assert_eq!(relaxed_page(&insns[0], &insns[1]), None);
    }
}
