//! Small functions, assembled by hand for the tests. All begin at [`BASE`]; the numbers in the comments are offsets,
//! whereas call and jump targets are absolute.

pub mod aarch64;
pub mod x86;

/// The address of every sample's first byte.
pub const BASE: u64 = 0x10000;

/// What the samples call: a delay in a spin loop, a sleep, an attempt to take the lock, and `syscall`.
pub const DELAY: u64 = 0x1000;
pub const SLEEP: u64 = 0x2000;
pub const SYSCALL: u64 = 0x4000;
