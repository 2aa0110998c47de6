//! The instruction sets of x86-64 and arm64: what their encodings mean.
//!
//! All that armtrace knows of machine code's bits is here; other modules ask in terms of instructions. [`decode`]
//! yields instructions ([`Insn`]) whose control flow, effects on registers and memory accesses are the same vocabulary
//! on both architectures. [`classified`] yields only the classes of instructions that order memory and the like
//! ([`Class`]), which is quicker. Questions that make sense on one architecture only are answered by [`aarch64`] and
//! [`x86`].
//!
//! Everything is a function of the bytes, and works on either host. Bytes that are no instruction are instructions of
//! unknown effect.

pub mod aarch64;
pub mod x86;

mod access;
mod class;
mod insn;
#[cfg(test)]
mod lists;
#[cfg(test)]
mod tests;

pub use access::{watched, Access};
pub use class::{classified, distinct, id, Class, ClassId, Classified, Group, Ordering};
pub use insn::{decode, decode_bytes, Effect, Flow, Insn, Probing, Test};
