//! Analyzes a server's machine code: where a wait begins and ends, where a function's arguments are in between, and
//! which code calls which.
//!
//! A latch function of a database server takes a free latch in a few instructions, and waits for a taken one in the
//! same function, inlined. A probe at its entry would trap on every acquisition. This module finds the part that runs
//! only when the latch was taken ([`contended`]), and in that part the instructions on which a probe is cheap because
//! the kernel emulates them ([`Probing`](crate::isa::Probing)).
//!
//! Everything here is a function of the bytes: no process is touched and nothing is executed. Binaries of either
//! architecture can be analyzed on either. The input is not trusted: bytes that cannot be decoded are instructions of
//! unknown effect, and a function too large to analyze is reported as `None`.

mod attempt;
mod calls;
mod cfg;
mod checksums;
mod ends;
mod entry;
mod function;
mod futex;
mod inlined;
mod kept;
mod mentions;
mod origins;
mod pointers;
#[cfg(test)]
mod sample_tests;
#[cfg(test)]
mod samples;
#[cfg(test)]
mod tests;
mod thread_key;
mod thread_variable;
mod values;
mod vectors;
mod wait;

pub use calls::{direct_calls, import_stubs, imported_calls};
pub use checksums::{checksum_instruction, jump_variable, ChecksumInstruction};
pub use entry::{entry, Entry};
pub use function::Function;
pub use futex::{futex_waits, FutexWait};
pub use inlined::{inlined_waits, wait_loops, Inlined, InlinedCalls, Region};
pub use kept::{kept, Kept};
pub use mentions::functions_that_mention;
pub use pointers::{Origin, Pointer, Pointers, Root, Store};
pub use thread_key::thread_key;
pub use thread_variable::{thread_variable, ThreadOffset};
pub use values::{HandedOn, Left, Location, Passed};
pub use vectors::widest_registers;
pub use wait::{contended, whole_function, Condition, EndKind, EndSite, Site, Slow, WaitSites};
