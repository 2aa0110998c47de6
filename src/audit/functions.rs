//! Assigns each byte of the code to a function.

use std::ops::Range;

use super::helpers::Helpers;
use crate::symbols::Image;

/// A stretch of code that contains no function boundary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub range: Range<u64>,
    /// The address at which its function begins, which identifies the function.
    pub function: u64,
}

/// Cuts `text`, by ascending address, at every boundary that the unwind table, the symbols or the shape of helpers
/// give. Padding between functions becomes pieces too, so that no code is missed.
pub(super) fn pieces(image: &Image, text: &Range<u64>, helpers: &Helpers) -> Vec<Piece> {
    let mut known: Vec<Range<u64>> = helpers.iter().map(|h| h.range.clone()).collect();
    known.extend(image.functions());
    known.extend(image.symbols().filter(|s| s.is_function).map(|s| s.addr..s.addr.saturating_add(s.size)));
    cut(text, known)
}

/// Assigns nested code to the innermost function; among functions with the same beginning, the longest counts.
fn cut(text: &Range<u64>, mut known: Vec<Range<u64>>) -> Vec<Piece> {
    known.retain(|r| text.contains(&r.start));
    known.sort_unstable_by_key(|r| (r.start, std::cmp::Reverse(r.end)));
    known.dedup_by_key(|r| r.start);
    let mut pieces = Vec::with_capacity(known.len());
    let mut at = text.start;
    let mut push = |from: u64, to: u64, function: u64| {
        if from < to {
            pieces.push(Piece { range: from..to, function });
        }
    };
    // The functions that contain `at`, innermost last.
    let mut open: Vec<Range<u64>> = Vec::new();
    let bounds: Vec<u64> = known.iter().map(|r| r.start).chain([text.end]).collect();
    for (next, until) in bounds.into_iter().enumerate() {
        while at < until {
            while open.last().is_some_and(|r| r.end <= at) {
                open.pop();
            }
            let inner = open.last().cloned();
            let end = inner.as_ref().map_or(until, |r| r.end.min(until));
            push(at, end, inner.map_or(at, |r| r.start));
            at = end;
        }
        open.extend(known.get(next).cloned());
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut_to(known: &[Range<u64>]) -> Vec<(u64, u64, u64)> {
        cut(&(10..50), known.to_vec()).into_iter().map(|p| (p.range.start, p.range.end, p.function)).collect()
    }

    #[test]
    fn all_of_the_text_is_in_pieces() {
        assert_eq!(cut_to(&[]), [(10, 50, 10)]);
        assert_eq!(
            cut_to(&[12..20, 20..30, 32..50]),
            [(10, 12, 10), (12, 20, 12), (20, 30, 20), (30, 32, 30), (32, 50, 32)]
        );
    }

    #[test]
    fn an_inner_function_counts() {
        assert_eq!(cut_to(&[10..40, 20..30]), [(10, 20, 10), (20, 30, 20), (30, 40, 10), (40, 50, 40)]);
        assert_eq!(cut_to(&[10..20, 10..30, 10..10]), [(10, 30, 10), (30, 50, 30)]);
    }

    #[test]
    fn what_lies_outside_is_cut_off() {
        assert_eq!(cut_to(&[0..15, 45..70, 50..60]), [(10, 45, 10), (45, 50, 45)]);
    }
}
