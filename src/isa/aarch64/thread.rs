//! How instructions find variables of their thread.

use super::Word;
use crate::isa::thread::ThreadEffect;

pub(in crate::isa) fn thread_effect(word: Word) -> Option<ThreadEffect> {
    let to = word.register(0);
    if word.is(0xffff_ffe0, 0xd53b_d040) {
        // mrs from tpidr_el0
        Some(ThreadEffect::Pointer { to })
    } else if word.is(0xffe0_fc00, 0xf860_6800) {
        // ldr of eight bytes, whose index is not shifted
        Some(ThreadEffect::Indexed { to, base: word.register(5), index: word.register(16) })
    } else {
        None
    }
}
