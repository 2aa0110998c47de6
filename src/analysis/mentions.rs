//! Finds the code that refers to static data, from the bytes of `.text`.

use std::collections::{BTreeSet, HashSet};

use super::calls::text;
use crate::isa::aarch64::words_at;
use crate::isa::{decode, Insn};
use crate::symbols::{Arch, Image};

/// Returns the functions with an instruction that refers to any of the static addresses `targets`, by address.
pub fn functions_that_mention(image: &Image, targets: &HashSet<u64>) -> BTreeSet<u64> {
    let Some((base, text)) = text(image) else { return BTreeSet::new() };
    let candidates = match image.arch() {
        Arch::X86_64 => x86_candidates(base, text, targets, image.is_fixed()),
        Arch::Aarch64 => aarch64_candidates(base, text, targets),
    };
    let mut found = BTreeSet::new();
    for at in candidates {
        let Some(range) = image.function_at(at) else { continue };
        if found.contains(&range.start) {
            continue;
        }
        let mentions = |i: &Insn| {
            let number = || i.immediate().filter(|_| image.is_fixed());
            i.memory.or_else(number).is_some_and(|to| targets.contains(&to))
        };
        if decode(image, range.clone()).iter().any(mentions) {
            found.insert(range.start);
        }
    }
    found
}

/// Returns every address where four bytes may be the displacement of a rip-relative operand that ends its instruction
/// or, where addresses are fixed, an address.
fn x86_candidates(base: u64, text: &[u8], targets: &HashSet<u64>, is_fixed: bool) -> Vec<u64> {
    let (Some(&low), Some(&high)) = (targets.iter().min(), targets.iter().max()) else { return Vec::new() };
    let mut found = Vec::new();
    for (at, bytes) in text.windows(4).enumerate() {
        let displacement = i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let address = base.wrapping_add(at as u64);
        let to = address.wrapping_add(4).wrapping_add_signed(i64::from(displacement));
        // The set is queried last, because few of the many candidates pass the comparisons.
        let number = u64::from(displacement as u32);
        let is_target = |to: u64| (low..=high).contains(&to) && targets.contains(&to);
        if is_target(to) || is_fixed && is_target(number) {
            found.push(address);
        }
    }
    found
}

/// Returns every `add` or 64-bit load that forms a target's address from what the last `adrp` before it left in its
/// register.
fn aarch64_candidates(base: u64, text: &[u8], targets: &HashSet<u64>) -> Vec<u64> {
    let mut pages = [0_u64; 32];
    let mut found = Vec::new();
    for (at, word) in words_at(base, text) {
        if let Some((register, page)) = word.page(at) {
            pages[usize::from(register)] = page;
        } else if let Some((register, offset)) = word.within_page() {
            if targets.contains(&pages[usize::from(register)].wrapping_add(offset)) {
                found.push(at);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operands_are_found_anywhere_in_x86_code() {
        for at in 3..20_usize {
            let mut text = vec![0x90; 32];
            let displacement = 0x5000 - (0x1000 + at as i32 + 4);
            text[at..at + 4].copy_from_slice(&displacement.to_le_bytes());
            assert_eq!(x86_candidates(0x1000, &text, &HashSet::from([0x5000]), false), [0x1000 + at as u64]);
        }
        assert_eq!(x86_candidates(0x1000, &[1, 2, 3], &HashSet::from([0x5000]), false), [] as [u64; 0]);
    }

    #[test]
    fn addresses_are_put_together_in_arm64_code() {
        // adrp x1, 0x3000; adrp x2, 0x1000; add x0, x1, #0x10; ldr x3, [x2, #0x18]
        let words: [u32; 4] = [0xd000_0001, 0x9000_0002, 0x9100_4020, 0xf940_0c43];
        let text = words.map(u32::to_le_bytes).concat();
        assert_eq!(aarch64_candidates(0x1000, &text, &HashSet::from([0x3010, 0x1018])), [0x1008, 0x100c]);
        assert_eq!(aarch64_candidates(0x1000, &text, &HashSet::from([0x1010])), [] as [u64; 0]);
    }
}
