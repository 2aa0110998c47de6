//! The instruction sets of x86-64 and arm64: what their encodings mean.
//!
//! All that armtrace knows of machine code's bits is here; other modules ask in terms of instructions. [`decode`]
//! yields instructions ([`Insn`]) whose control flow, effects on registers and memory accesses are the same vocabulary
//! on both architectures. `classified` yields only the classes of instructions that order memory and the like
//! ([`Class`]), which is quicker. Questions that make sense on one architecture only are answered by `aarch64` and
//! `x86`.
//!
//! Everything is a function of the bytes, and works on either host. Bytes that are no instruction are instructions of
//! unknown effect.

pub(crate) mod aarch64;
pub(crate) mod x86;

mod access;
mod class;
mod insn;
#[cfg(test)]
mod lists;
#[cfg(test)]
mod tests;
mod thread;

pub(crate) use access::watched;
pub use access::Access;
pub(crate) use class::{classified, distinct, id};
pub use class::{Class, ClassId, Group, Ordering};
#[cfg(test)]
pub(crate) use insn::decode_bytes;
pub(crate) use insn::Effect;
pub use insn::{decode, Flow, Insn, Probing, Test};
pub use thread::ThreadEffect;
