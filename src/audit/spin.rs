//! Checks whether spin loops contain a spin hint.

use std::ops::Range;

use crate::discovery;
use crate::isa::{decode, Flow, Insn};
use crate::symbols::Image;

/// The largest size, in bytes, of a function that a spin loop may call in order to wait briefly. Longer functions do
/// something else.
const MAX_CALLED: u64 = 256;

/// A spin loop and its hint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpinLoop {
    pub function: String,
    /// Link-time address of the function.
    pub address: u64,
    /// The address and text of the hint, in the function itself or in a short function that it calls. `None` if there
    /// is no hint.
    pub hint: Option<(u64, String)>,
}

/// Returns the spin loops of a server that the catalog knows.
pub(super) fn spin_loops(image: &Image) -> Vec<SpinLoop> {
    let Ok(family) = discovery::family(image) else { return Vec::new() };
    let functions = discovery::spin_functions(image, family).into_iter();
    functions.map(|f| SpinLoop { address: f.range.start, hint: hint(image, f.range), function: f.name }).collect()
}

/// Returns the address and text of the spin hint in a function, or in a short function that it calls.
pub fn hint(image: &Image, function: Range<u64>) -> Option<(u64, String)> {
    let shown = |insn: &Insn| (insn.addr, insn.text());
    let insns = decode(image, function);
    let own = insns.iter().find(|i| i.is_spin_hint()).map(shown);
    own.or_else(|| {
        let called = insns.iter().filter_map(|i| match i.flow {
            Flow::Call(Some(to)) | Flow::Jump(to) => image.function_at(to).filter(|r| r.end - r.start <= MAX_CALLED),
            _ => None,
        });
        called.flat_map(|range| decode(image, range)).find(Insn::is_spin_hint).as_ref().map(shown)
    })
}
