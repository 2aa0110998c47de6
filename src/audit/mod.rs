//! What a server's program pays for ordering memory, and whether it uses what CPUs offer: its barriers, atomics, spin hints and
//! checksum instructions, counted from the bytes of its code.
//!
//! ```text
//! Image ──▶ count ──▶ Counted ──▶ Report ──▶ text, JSON, HTML
//!             │                     │
//!          tables by             names, source lines,      two Reports ──▶ Comparison ──▶ text, JSON, HTML
//!          architecture          verdicts
//! ```
//!
//! Where the program has debug information, that says how its structures are laid out, too: [`structures`].
//!
//! Nothing is executed, and either architecture's programs are read on either. The file is not trusted.

mod aarch64;
mod class;
mod compare;
mod count;
mod functions;
mod helpers;
mod html;
mod layouts;
mod lines;
mod ordering;
mod report;
mod spin;
mod structures;
mod text;
mod verdict;
mod x86;

pub use class::{Class, ClassId, Group, Ordering};
pub use compare::{compare, Comparison, Difference, Side, StructureDifference};
pub use count::{count, AuditError, Counted, Counts, Exclusives, FunctionCounts};
pub use helpers::{Helper, Helpers};
pub use html::Html;
pub use ordering::OrderingSites;
pub use report::{audit, Binary, FunctionRow, HelperCalls, Pairs, Report, Spin, Total};
pub use spin::hint as spin_hint;
pub use structures::{structures, Evidence, EvidenceKind, Structure};
pub use text::Text;
pub use verdict::Verdict;

use crate::symbols::Arch;

/// All classes of an architecture, by [`ClassId`].
pub fn classes(arch: Arch) -> &'static [Class] {
    match arch {
        Arch::X86_64 => x86::classes(),
        Arch::Aarch64 => aarch64::classes(),
    }
}
