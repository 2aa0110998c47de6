//! What static data the server's code refers to.

use std::collections::HashMap;

use crate::code::{decode, Insn};
use crate::symbols::Image;

/// A binary's code, with its global offset table resolved: arm64 code reaches exported variables through it.
pub struct References<'a> {
    pub image: &'a Image,
    got: HashMap<u64, u64>,
}

impl<'a> References<'a> {
    /// `pointers` are the image's relative relocations.
    pub fn new(image: &'a Image, pointers: &[(u64, u64)]) -> References<'a> {
        let got = image
            .section(".got")
            .map(|got| pointers.iter().filter(|(at, _)| got.contains(at)).copied().collect())
            .unwrap_or_default();
        References { image, got }
    }

    /// The static address that an instruction refers to, or the one that a pointer there holds if it is part of the
    /// global offset table.
    pub fn of(&self, insn: &Insn) -> Option<u64> {
        let address = insn.memory?;
        Some(self.got.get(&address).copied().unwrap_or(address))
    }

    /// The instructions of the function that contains `addr`; empty if none is known there.
    pub fn function(&self, addr: u64) -> Vec<Insn> {
        self.image.function_at(addr).map(|range| decode(self.image, range)).unwrap_or_default()
    }
}
