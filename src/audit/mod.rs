//! Audits what a server's program pays for memory ordering, and whether it uses what CPUs offer. It counts barriers,
//! atomics, spin hints and checksum instructions in the program's code.
//!
//! ```text
//! Image ──▶ count ──▶ Counted ──▶ Report ──▶ text, JSON, HTML
//!             │                     │
//!          tables by             names, source lines,      two Reports ──▶ Comparison ──▶ text, JSON, HTML
//!          architecture          verdicts
//! ```
//!
//! Where the program has debug information, the audit also says how its structures are laid out: [`structures`].
//!
//! Nothing is executed, and programs of either architecture can be audited on either. The file is not trusted.

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

pub use compare::{compare, Comparison, Difference, Side, StructureDifference};
pub use count::{count, AuditError, Counted, Counts, Exclusives, FunctionCounts};
pub use helpers::{Helper, Helpers};
pub use html::Html;
pub use ordering::OrderingSites;
pub use report::{audit, Binary, FunctionRow, HelperCalls, Pairs, Report, Spin, Total};
pub use spin::hint as spin_hint;
pub use structures::{structures, Evidence, EvidenceKind, Structure, UnknownStructures};
pub use text::Text;
pub use verdict::Verdict;

use crate::isa::{x86, Class};
use crate::symbols::Arch;

/// Returns all classes that are counted on an architecture, indexed by [`ClassId`](crate::isa::ClassId).
pub fn classes(arch: Arch) -> &'static [Class] {
    match arch {
        Arch::X86_64 => x86::classes(),
        Arch::Aarch64 => helpers::classes(),
    }
}
