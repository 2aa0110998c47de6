//! Finds where in a function samples of CPU time stand for memory ordering.

use std::ops::Range;

use super::classes;
use crate::isa::{classified, Class};
use crate::symbols::{Arch, Image};

/// The largest function that is examined, in bytes.
const MAX_FUNCTION: u64 = 1 << 20;

/// The addresses in a function at which a sample stands for time spent on ordering memory, each with the instruction
/// that took it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OrderingSites(Vec<(u64, Class)>);

impl OrderingSites {
    /// Returns the sites of the function at `range`, in link-time addresses; none if its code is not in the file.
    pub fn of(image: &Image, range: Range<u64>) -> OrderingSites {
        let size = range.end.saturating_sub(range.start);
        let code = image.bytes(range.start, size.min(MAX_FUNCTION) as usize).filter(|_| size <= MAX_FUNCTION);
        OrderingSites::in_code(image.arch(), range.start, code.unwrap_or_default())
    }

    fn in_code(arch: Arch, base: u64, code: &[u8]) -> OrderingSites {
        let mut sites = Vec::new();
        for instruction in classified(arch, base, code) {
            let class = instruction.class.map(|class| classes(arch)[usize::from(class)]);
            if let Some(class) = class.filter(|class| class.group.orders()) {
                // An interrupt either waits until the instruction is done, and is seen at the next one, or comes before
                // it begins.
                sites.push((instruction.addr + instruction.len, class));
                sites.push((instruction.addr, class));
            }
        }
        // Of two at one address, the first follows the other instruction, which has taken the time.
        sites.sort_by_key(|(at, _)| *at);
        sites.dedup_by_key(|(at, _)| *at);
        OrderingSites(sites)
    }

    /// Returns the instruction for which a sample at this address stands.
    pub fn at(&self, address: u64) -> Option<Class> {
        let found = self.0.binary_search_by_key(&address, |(at, _)| *at).ok()?;
        Some(self.0[found].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(sites: &OrderingSites, at: u64) -> Option<&'static str> {
        sites.at(at).map(|class| class.name)
    }

    #[test]
    fn x86_locked_instructions_are_seen_at_the_next_one() {
        // mov %rdi,%rax; lock xadd %eax,(%rbx); mfence; pause; ret
        let code = [0x48, 0x89, 0xf8, 0xf0, 0x0f, 0xc1, 0x03, 0x0f, 0xae, 0xf0, 0xf3, 0x90, 0xc3];
        let sites = OrderingSites::in_code(Arch::X86_64, 0x1000, &code);
        assert_eq!(name(&sites, 0x1000), None);
        assert_eq!(name(&sites, 0x1003), Some("lock xadd"));
        assert_eq!(name(&sites, 0x1007), Some("lock xadd"), "the fence has not begun there");
        assert_eq!(name(&sites, 0x100a), Some("mfence"));
        assert_eq!(name(&sites, 0x100c), None, "a spin hint orders nothing");
    }

    #[test]
    fn arm64_atomics_and_barriers_too() {
        // ldaddal w0,w1,[x2]; dmb ish; nop; ret
        let code: Vec<u8> =
            [0xb8e0_0041_u32, 0xd503_3bbf, 0xd503_201f, 0xd65f_03c0].iter().flat_map(|w| w.to_le_bytes()).collect();
        let sites = OrderingSites::in_code(Arch::Aarch64, 0x1000, &code);
        assert_eq!(name(&sites, 0x1000), Some("ldaddal"));
        assert_eq!(name(&sites, 0x1004), Some("ldaddal"));
        assert_eq!(name(&sites, 0x1008), Some("dmb ish"));
        assert_eq!(name(&sites, 0x100c), None);
    }

    #[test]
    fn code_that_ends_early_has_what_it_has() {
        assert_eq!(OrderingSites::in_code(Arch::X86_64, 0, &[0xf0]), OrderingSites::default());
        assert_eq!(OrderingSites::in_code(Arch::Aarch64, 0, &[0xbf, 0x3b]), OrderingSites::default());
    }
}
