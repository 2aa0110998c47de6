//! Structures that are laid out for cache lines of 64 bytes.
//!
//! On a CPU with lines of 128 bytes, what is 64 bytes apart can lie on one line: two CPUs that write to it take the line from one
//! another, which the layout was to avoid. Three things show such a layout, and each is evidence:
//!
//! - The debug information says that a structure or a member is aligned to 64 bytes.
//! - It does not, as that of older compilers, but there is a hole of 32 to 63 bytes, and behind it something that is a multiple of 64
//!   bytes from the begin and not one of 128. A compiler leaves less than the alignment free, alignments are powers of two, and all of
//!   a structure is a multiple of its alignment: so it is 64.
//! - An array of bytes is called padding, and is 64 bytes long, or makes 64 bytes with what is before it.
//!
//! What is aligned to 128 bytes or more is laid out for longer lines, whatever is in it.

use std::fmt::{self, Display, Formatter};

use serde::Serialize;

use super::layouts::{each_layout, Field, Layout, ANONYMOUS};
use crate::symbols::DebugInfo;

/// Bytes of the cache lines in question.
const LINE: u64 = 64;

/// Bytes of a hole that no smaller alignment leaves.
const HOLE: u64 = LINE / 2;

/// Bytes of padding that alignment to 16 bytes, which any type may need, is no reason for.
const MIN_PADDING: u64 = 16;

/// Pieces of evidence that are shown of one structure.
const SHOWN: usize = 3;

/// Structures that are kept: no server has as many.
const MAX_STRUCTURES: usize = 10_000;

/// A structure with what shows its layout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Structure {
    /// With its namespaces and the structures that it lies in.
    pub name: String,
    /// `FILE:LINE` of its declaration, without folders.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Bytes.
    pub size: u64,
    /// In the order of the source; never empty.
    pub evidence: Vec<Evidence>,
}

/// One thing that shows a layout for lines of 64 bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Evidence {
    pub kind: EvidenceKind,
    /// The member; absent for the structure itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub member: Option<String>,
    /// Bytes from the begin of the structure.
    pub offset: u64,
    /// Bytes of the hole before `offset`, or of the padding behind it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum EvidenceKind {
    /// The debug information says that it is aligned.
    Aligned,
    /// A hole before it tells that it is.
    Hole,
    /// It is padding.
    Padding,
}

/// The program's structures for lines of 64 bytes, those with most evidence first.
///
/// # Errors
/// When its debug information describes no structures.
pub fn structures(debug: &DebugInfo) -> Result<Vec<Structure>, String> {
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
        Err("it describes no structures".to_owned())
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
    // Padding in several parts is one.
    for fields in layout.fields.chunk_by(|a, b| is_padding(a) && is_padding(b)) {
        steps.add(fields);
    }
    if steps.is_longer {
        return None;
    }
    let mut evidence = steps.evidence;
    // Where a member is aligned, so is all of it.
    if evidence.iter().all(|e| e.kind == EvidenceKind::Padding) {
        evidence.extend(of_all);
    }
    let (name, source) = (layout.name.clone(), layout.source.clone());
    (!evidence.is_empty()).then_some(Structure { name, source, size: layout.size, evidence })
}

/// What shows that a structure is itself aligned to a line: what is written down, or what is free at its end.
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

/// Bytes that are free between `end` and `offset` in a structure of `size` bytes, if the reason can only be that what is at `offset` is
/// aligned to one line.
fn hole(end: u64, offset: u64, size: u64) -> Option<u64> {
    let bytes = offset.checked_sub(end)?;
    let is_odd = |at: u64| at % (2 * LINE) == LINE;
    let is_one_line = offset.is_multiple_of(LINE) && (is_odd(offset) || is_odd(size));
    (is_one_line && (HOLE..LINE).contains(&bytes)).then_some(bytes)
}

/// A structure, from its begin to as far as it was looked at.
struct Steps<'l, 'a> {
    layout: &'l Layout<'a>,
    /// Whether it is known to be aligned to a line.
    is_aligned: bool,
    /// Whether there is a hole that only a larger alignment leaves.
    is_longer: bool,
    /// Where the members so far end; absent behind one of unknown size.
    end: Option<u64>,
    /// Where the last member begins.
    last: u64,
    /// Where the members begin that padding is to fill up: with the structure, with what is aligned, or behind padding.
    group: u64,
    evidence: Vec<Evidence>,
}

impl Steps<'_, '_> {
    /// Takes the next member, or members that are padding together.
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

    /// Whether padding at `offset` is a line, or makes one with what is before it.
    fn fills(&self, offset: u64, bytes: u64) -> bool {
        // If so, what is before and what is behind it are on lines that are no pair either.
        let is_free_line = self.is_aligned && offset.is_multiple_of(LINE);
        let makes_line =
            |from: u64| offset.checked_sub(from).and_then(|before| before.checked_add(bytes)) == Some(LINE);
        let fills_line = bytes >= MIN_PADDING && (makes_line(self.last) || makes_line(self.group));
        bytes == LINE && !is_free_line || bytes < LINE && fills_line
    }
}

/// Whether a member is there for its size only, going by what it is called: `pad`, `m_pad0`. Names that begin with an underscore are
/// the C library's, which reserves space for what is to come.
fn is_padding(field: &Field) -> bool {
    let name = field.name.strip_prefix("m_").unwrap_or(&field.name);
    field.of.is_bytes && name.get(..3).is_some_and(|begin| begin.eq_ignore_ascii_case("pad"))
}

impl Structure {
    /// Where it is from, and [`Structure::layout`].
    pub fn summary(&self) -> String {
        let source = self.source.as_ref().map_or(String::new(), |source| format!(" ({source})"));
        format!("{}{source}, {}", self.name, self.layout())
    }

    /// How large it is, and some of the evidence.
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
            (EvidenceKind::Hole, None) => write!(f, "a hole of {bytes} at its end"),
            (EvidenceKind::Hole, Some(member)) => write!(f, "{member} at {offset}, behind a hole of {bytes}"),
            (EvidenceKind::Padding, _) => {
                write!(f, "{} at {offset}, padding of {bytes}", member.as_deref().unwrap_or_default())
            }
        }
    }
}
