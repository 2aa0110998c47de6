//! Shortens latch names for tables, and keeps them distinct.

use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Returns a distinct name of at most `width` characters for each latch.
///
/// `wait/synch/rwlock/innodb/trx_rseg_latch` becomes `innodb/trx_rseg_latch`, and keeps its `rwlock/` if a mutex has
/// the same name. A name that is still too long loses its middle.
pub fn short_names<'a>(latches: impl IntoIterator<Item = &'a str>, width: usize) -> BTreeMap<&'a str, String> {
    let latches: BTreeSet<&str> = latches.into_iter().collect();
    let mut uses = HashMap::<&str, usize>::new();
    for latch in &latches {
        *uses.entry(without_kind(latch)).or_default() += 1;
    }
    let mut taken = BTreeSet::new();
    let shorten = |latch: &'a str| {
        let unique = uses[without_kind(latch)] == 1;
        let name = if unique { without_kind(latch) } else { without_prefix(latch) };
        (latch, distinct(name, width, &mut taken))
    };
    latches.into_iter().map(shorten).collect()
}

/// Returns the name without `wait/synch/`, such as `rwlock/innodb/trx_rseg_latch`.
fn without_prefix(latch: &str) -> &str {
    latch.strip_prefix("wait/synch/").unwrap_or(latch)
}

/// Returns the name without its kind too, such as `innodb/trx_rseg_latch`.
pub fn without_kind(latch: &str) -> &str {
    match latch.strip_prefix("wait/synch/").and_then(|rest| rest.split_once('/')) {
        Some((_kind, name)) => name,
        None => latch,
    }
}

/// Returns the name cut to `width`, with a number at its end if another latch already has the cut name.
fn distinct(name: &str, width: usize, taken: &mut BTreeSet<String>) -> String {
    let numbered = (2..).map(|n| {
        let number = format!("~{n}");
        cut_middle(name, width.saturating_sub(number.len())) + &number
    });
    let candidates = std::iter::once(cut_middle(name, width)).chain(numbered);
    let free = candidates.into_iter().find(|candidate| !taken.contains(candidate)).expect("numbers do not end");
    taken.insert(free.clone());
    free
}

/// Returns the text without its middle if it is longer than `width` characters. More of the end is kept than of the
/// beginning, because the end distinguishes latches.
pub fn cut_middle(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length <= width {
        return text.to_string();
    }
    let kept = width.saturating_sub(1);
    let tail = kept * 2 / 3;
    let head = kept - tail;
    text.chars().take(head).chain(['…']).chain(text.chars().skip(length - tail)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn short<const N: usize>(latches: [&str; N], width: usize) -> [String; N] {
        let names = short_names(latches, width);
        latches.map(|latch| names[latch].clone())
    }

    #[test]
    fn prefix_and_kind_go_where_the_name_says_enough() {
        let latches = ["wait/synch/rwlock/innodb/trx_rseg_latch", "wait/synch/mutex/innodb/trx_mutex", "unnamed:f"];
        assert_eq!(short(latches, 40), ["innodb/trx_rseg_latch", "innodb/trx_mutex", "unnamed:f"]);
    }

    #[test]
    fn the_kind_stays_where_two_kinds_have_one_name() {
        let latches = ["wait/synch/rwlock/sql/gtid_commit", "wait/synch/mutex/sql/gtid_commit"];
        assert_eq!(short(latches, 40), ["rwlock/sql/gtid_commit", "mutex/sql/gtid_commit"]);
    }

    #[test]
    fn the_end_of_a_long_name_stays() {
        assert_eq!(cut_middle("innodb/dict_foreign_err_mutex", 16), "innod…_err_mutex");
        assert_eq!(cut_middle("abc", 0), "…");
    }

    #[test]
    fn a_cut_never_makes_two_latches_one() {
        let latches = ["wait/synch/mutex/sql/aaaaaa_x_bbbbbbbbb", "wait/synch/mutex/sql/aaaaaa_y_bbbbbbbbb"];
        let [x, y] = short(latches, 12);
        assert_ne!(x, y);
        assert!(x.chars().count() <= 12 && y.chars().count() <= 12, "{x} {y}");
    }
}
