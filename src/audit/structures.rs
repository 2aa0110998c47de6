//! Finds structures that are laid out for 64-byte cache lines.
//!
//! On a CPU with 128-byte lines, data 64 bytes apart can share a line. Two CPUs that write to it then take the line
//! from each other: the false sharing that the layout was meant to avoid. Three kinds of evidence show such a layout:
//!
//! - The debug information says that a structure or a member is aligned to 64 bytes.
//! - The debug information does not record alignment, as with older compilers, but there is a hole of 32 to 63 bytes,
//!   followed by a member at a multiple of 64 bytes that is not a multiple of 128. A compiler leaves a hole smaller
//!   than the alignment, alignments are powers of two, and a structure's size is a multiple of its alignment: so the
//!   alignment is 64.
//! - An array of bytes is named as padding, and is 64 bytes long or completes 64 bytes together with what precedes it.
//!
//! A structure with anything aligned to 128 bytes or more is laid out for longer lines, whatever else it contains.

use std::fmt::{self, Display, Formatter};

use serde::Serialize;

use super::layouts::{each_layout, Field, Layout, ANONYMOUS};
use crate::symbols::{DebugInfo, DebugInfoError};

/// The cache line size in question, in bytes.
const LINE: u64 = 64;

/// The smallest hole, in bytes, that no smaller alignment explains.
const HOLE: u64 = LINE / 2;

/// The smallest padding, in bytes, that counts: alignment to 16 bytes, which any type may need, does not explain it.
const MIN_PADDING: u64 = 16;

/// The number of pieces of evidence that are shown per structure.
const SHOWN: usize = 3;

/// The most structures to keep; no server has as many.
const MAX_STRUCTURES: usize = 10_000;

/// A structure with the evidence for its layout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Structure {
    /// The name, qualified by the enclosing namespaces and structures.
    pub name: String,
    /// `FILE:LINE` of its declaration, without directories.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The size in bytes.
    pub size: u64,
    /// The evidence in source order; never empty.
    pub evidence: Vec<Evidence>,
}

/// One piece of evidence for a layout for 64-byte lines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Evidence {
    /// What the evidence is.
    pub kind: EvidenceKind,
    /// The member. Absent if the evidence is about the structure itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub member: Option<String>,
    /// The offset from the beginning of the structure, in bytes.
    pub offset: u64,
    /// The size in bytes of the hole before `offset`, or of the padding at it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

/// The kinds of evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum EvidenceKind {
    /// The debug information says that the member or structure is aligned.
    Aligned,
    /// A hole before it implies that it is aligned.
    Hole,
    /// It is padding.
    Padding,
}

/// The reason why it is not known how a program's structures are laid out.
#[derive(Debug, thiserror::Error)]
pub enum UnknownStructures {
    /// The debug information cannot be read.
    #[error(transparent)]
    DebugInfo(#[from] DebugInfoError),
    /// The debug information describes no structures.
    #[error("its debug information describes no structures")]
    Undescribed,
}

/// Returns the program's structures for 64-byte lines, those with the most evidence first.
///
/// # Errors
/// Fails when the debug information describes no structures.
pub fn structures(debug: &DebugInfo) -> Result<Vec<Structure>, UnknownStructures> {
    let mut found = Vec::new();
    let are_known = each_layout(debug, |layout| {
        if found.len() < MAX_STRUCTURES {
            found.extend(of_layout(layout));
        }
    });
    found.sort_by(|a: &Structure, b| {
        b.evidence
            .len()
            .cmp(&a.evidence.len())
            .then_with(|| (&a.name, &a.source, a.size).cmp(&(&b.name, &b.source, b.size)))
    });
    if are_known {
        Ok(found)
    } else {
        Err(UnknownStructures::Undescribed)
    }
}

fn of_layout(layout: &Layout) -> Option<Structure> {
    let alignments = || layout.fields.iter().map(|field| field.of.alignment).chain([layout.alignment]).flatten();
    if alignments().any(|bytes| bytes > LINE) {
        return None;
    }
    let of_all = of_all(layout);
    let is_aligned = of_all.is_some() || alignments().any(|bytes| bytes == LINE);
    let mut steps =
        Steps { layout, is_aligned, is_longer: false, end: Some(0), last: 0, group: 0, evidence: Vec::new() };
    // Consecutive padding members count as one.
    for fields in layout.fields.chunk_by(|a, b| is_padding(a) && is_padding(b)) {
        steps.add(fields);
    }
    if steps.is_longer {
        return None;
    }
    let mut evidence = steps.evidence;
    // If a member is aligned, so is the whole structure; this needs no evidence of its own.
    if evidence.iter().all(|e| e.kind == EvidenceKind::Padding) {
        evidence.extend(of_all);
    }
    let (name, source) = (layout.name.clone(), layout.source.clone());
    (!evidence.is_empty()).then_some(Structure { name, source, size: layout.size, evidence })
}

/// Returns the evidence that the structure as a whole is aligned to a line: a recorded alignment, or free space at its
/// end.
fn of_all(layout: &Layout) -> Option<Evidence> {
    if layout.alignment == Some(LINE) {
        return Some(Evidence { kind: EvidenceKind::Aligned, member: None, offset: 0, bytes: None });
    }
    // Virtual bases lie at the end, and bases may have some.
    let may_tell = layout.is_whole && !layout.has_bases && !layout.fields.iter().any(|field| field.of.is_vector);
    let ends: Option<Vec<u64>> = layout.fields.iter().map(Field::end).collect();
    let bytes = hole(ends.filter(|_| may_tell)?.into_iter().max()?, layout.size, layout.size)?;
    Some(Evidence { kind: EvidenceKind::Hole, member: None, offset: layout.size, bytes: Some(bytes) })
}

/// Returns the number of free bytes between `end` and `offset` in a structure of `size` bytes, if only an alignment of
/// `offset` to one line explains them.
fn hole(end: u64, offset: u64, size: u64) -> Option<u64> {
    let bytes = offset.checked_sub(end)?;
    let is_odd = |at: u64| at % (2 * LINE) == LINE;
    let is_one_line = offset.is_multiple_of(LINE) && (is_odd(offset) || is_odd(size));
    (is_one_line && (HOLE..LINE).contains(&bytes)).then_some(bytes)
}

/// A walk through a structure's members, and what it has found so far.
struct Steps<'l, 'a> {
    layout: &'l Layout<'a>,
    /// Whether the structure is known to be aligned to a line.
    is_aligned: bool,
    /// Whether there is a hole that only a larger alignment explains.
    is_longer: bool,
    /// The end of the members so far; absent after a member of unknown size.
    end: Option<u64>,
    /// The offset of the last member.
    last: u64,
    /// The offset of the members that padding would complete: the beginning of the structure, an aligned member, or the
    /// end of other padding.
    group: u64,
    evidence: Vec<Evidence>,
}

impl Steps<'_, '_> {
    /// Processes the next member, or a run of padding members.
    fn add(&mut self, fields: &[Field]) {
        let ([field, ..], [.., last]) = (fields, fields) else { return };
        let (offset, end) = (field.offset, last.end().filter(|_| self.layout.is_whole));
        let padding = end.filter(|_| is_padding(field)).and_then(|end| end.checked_sub(offset));
        let begin = self.end.filter(|_| self.layout.is_whole);
        self.is_longer |= begin.is_some_and(|begin| offset.saturating_sub(begin) >= LINE);
        let hole = begin.and_then(|begin| hole(begin, offset, self.layout.size));
        let kind = if field.of.is_vector {
            None
        } else if field.of.alignment == Some(LINE) {
            Some((EvidenceKind::Aligned, None))
        } else if hole.is_some() {
            Some((EvidenceKind::Hole, hole))
        } else {
            padding.filter(|bytes| self.fills(offset, *bytes)).map(|bytes| (EvidenceKind::Padding, Some(bytes)))
        };
        if let Some((kind, bytes)) = kind {
            let member = Some(if field.name.is_empty() { ANONYMOUS.to_owned() } else { field.name.to_string() });
            self.evidence.push(Evidence { kind, member, offset, bytes });
        }
        match (kind, padding) {
            (_, Some(bytes)) => self.group = offset + bytes,
            (Some(_), None) => self.group = offset,
            (None, None) => {}
        }
        self.last = offset;
        self.end = self.end.zip(end).map(|(a, b)| a.max(b));
    }

    /// Returns whether padding at `offset` is a whole line, or completes one with what precedes it.
    fn fills(&self, offset: u64, bytes: u64) -> bool {
        // A line-aligned run of padding is a free line: the data before it and after it are two lines apart, so they do
        // not share a pair of lines either.
        let is_free_line = self.is_aligned && offset.is_multiple_of(LINE);
        let makes_line =
            |from: u64| offset.checked_sub(from).and_then(|before| before.checked_add(bytes)) == Some(LINE);
        let fills_line = bytes >= MIN_PADDING && (makes_line(self.last) || makes_line(self.group));
        bytes == LINE && !is_free_line || bytes < LINE && fills_line
    }
}

/// Returns whether a member is padding, judging by its name: `pad`, `m_pad0`. Names that begin with an underscore
/// belong to the C library, which reserves space for future use.
fn is_padding(field: &Field) -> bool {
    let name = field.name.strip_prefix("m_").unwrap_or(&field.name);
    field.of.is_bytes && name.get(..3).is_some_and(|begin| begin.eq_ignore_ascii_case("pad"))
}

impl Structure {
    /// Returns the name, the source location, and [`Structure::layout`].
    pub fn summary(&self) -> String {
        let source = self.source.as_ref().map_or(String::new(), |source| format!(" ({source})"));
        format!("{}{source}, {}", self.name, self.layout())
    }

    /// Returns the size and some of the evidence.
    pub fn layout(&self) -> String {
        let shown: Vec<String> = self.evidence.iter().take(SHOWN).map(Evidence::to_string).collect();
        let more = match self.evidence.len().saturating_sub(SHOWN) {
            0 => String::new(),
            more => format!("; and {more} more"),
        };
        format!("{} bytes: {}{more}", self.size, shown.join("; "))
    }
}

impl Display for Evidence {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let Evidence { kind, member, offset, bytes } = self;
        let bytes = bytes.unwrap_or_default();
        match (kind, member) {
            (EvidenceKind::Aligned, None) => write!(f, "aligned to {LINE}"),
            (EvidenceKind::Aligned, Some(member)) => write!(f, "{member} at {offset}, aligned to {LINE}"),
            (EvidenceKind::Hole, None) => write!(f, "a hole of {bytes} bytes at its end"),
            (EvidenceKind::Hole, Some(member)) => write!(f, "{member} at {offset}, after a hole of {bytes} bytes"),
            (EvidenceKind::Padding, _) => {
                write!(f, "{} at {offset}, {bytes} bytes of padding", member.as_deref().unwrap_or_default())
            }
        }
    }
}
