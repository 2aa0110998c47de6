//! What identifies a latch, and the code that shows where a build stores it.

use super::Function;
use crate::symbols::Parameter;

/// What identifies a latch, by its members.
#[derive(Clone, Copy, Debug)]
pub enum IdentifiedBy {
    /// The number of its class (`latch_id_t`).
    LatchId(&'static Member),
    /// The source location that created it.
    Created {
        /// The pointer to the file name.
        file: &'static Member,
        /// The line, in the low bits of a u32.
        line: &'static Member,
    },
    /// Nothing inside the latch, which is a bare lock word.
    Word,
}

/// A member of a latch, found through the functions that set it: each build's code shows its offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// The functions that set it; each takes the latch as its first argument.
    pub set_by: &'static [Function],
    /// The parameter whose value they store.
    pub to: Parameter,
    /// Other code that shows the offset, for builds in which the setters are inlined.
    pub shown_by: Option<Showing>,
}

/// Code that prints latches of two kinds, for which it reads this member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Showing {
    /// The function to which it passes the member, as `parameter`. It returns a string.
    pub reader: Function,
    /// The parameter of `reader` that receives the member.
    pub parameter: Parameter,
    /// If a method of a part of the latch does this, that method.
    pub method: Function,
    /// The same member of the other kind of latch.
    pub other: &'static Member,
}

impl IdentifiedBy {
    /// Returns the members that identify the latch.
    pub fn members(&self) -> Vec<&'static Member> {
        match *self {
            IdentifiedBy::LatchId(member) => vec![member],
            IdentifiedBy::Created { file, line } => vec![file, line],
            IdentifiedBy::Word => Vec::new(),
        }
    }
}
