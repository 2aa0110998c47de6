//! Divides the time waited for latches among the statements that threads were seen to execute meanwhile, and among the
//! calls through which they came to wait.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

use super::call_stacks::SEPARATOR;
use super::figures::{Account, CallsiteWaits, LatchWaits, StackWaits, StatementWaits, NORMAL_95};
use crate::model::{Kind, Mode};

/// The most calls of a stack that are shown. No armtrace writes more, but a damaged file may have them.
const MOST_CALLS: usize = 100;

/// A part of what samples divide: of the time waited for one latch in one mode or for all latches, or of the CPU time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share<K> {
    /// Whose part it is.
    pub of: K,
    /// The number of times that a thread was seen.
    pub samples: u64,
    /// The share of the whole, 0 to 1.
    pub share: f64,
    /// Half the width of the 95 % interval of `share`, if samples were independent.
    pub error: f64,
}

/// A statement that threads executed: its hash and its text, as in [`StatementWaits::digest`] and
/// [`StatementWaits::statement`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Statement<'a> {
    /// The hash.
    pub digest: &'a str,
    /// The text.
    pub text: &'a str,
}

/// For whom threads executed statements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Client<'a> {
    /// An account, of which something may be known.
    Account(&'a Account),
    /// What stands in place of statements: threads executed none, or none that could be read, or one of all others.
    Instead(&'a str),
}

impl Display for Client<'_> {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        match self {
            Client::Account(account) => account.fmt(f),
            Client::Instead(text) => f.write_str(text),
        }
    }
}

impl<'a> Statement<'a> {
    /// Returns the statement of a row.
    pub fn of(row: &'a StatementWaits) -> Statement<'a> {
        Statement { digest: &row.digest, text: &row.statement }
    }

    /// Returns for whom it was executed, if for this account.
    pub fn client(self, account: &'a Account) -> Client<'a> {
        if self.digest.is_empty() {
            return Client::Instead(self.text);
        }
        Client::Account(account)
    }
}

impl<'a> Client<'a> {
    /// Returns for whom the statement of a row was executed.
    pub fn of(row: &'a StatementWaits) -> Client<'a> {
        Statement::of(row).client(&row.account)
    }

    /// Returns whether anything is known of any of these: if not, they say nothing.
    pub fn are_known(parts: &[Share<Client>]) -> bool {
        parts.iter().any(|part| matches!(part.of, Client::Account(account) if !account.is_empty()))
    }
}

/// Divides a whole by samples of its parts, most first.
pub fn divide<K: Copy + Ord>(samples: impl Iterator<Item = (K, u64)>) -> Vec<Share<K>> {
    let mut sums: BTreeMap<K, u64> = BTreeMap::new();
    for (of, samples) in samples.filter(|(_, samples)| *samples > 0) {
        let sum = sums.entry(of).or_default();
        *sum = sum.saturating_add(samples);
    }
    let all = sums.values().copied().fold(0, u64::saturating_add);
    let share =
        |(of, samples): (K, u64)| Share { of, samples, share: samples as f64 / all as f64, error: error(samples, all) };
    sorted(sums.into_iter().map(share).collect())
}

/// Divides the waits for one latch in one mode, most first. `of` returns whose part the samples of a row are.
pub fn of_latch<'a, K: Copy + Ord>(
    waits: &LatchWaits,
    statements: &'a [StatementWaits],
    of: impl Fn(&'a StatementWaits) -> K,
) -> Vec<Share<K>> {
    let of_latch = statements.iter().filter(|row| row.is_of(&waits.latch, waits.mode));
    divide(of_latch.map(|row| (of(row), row.samples)))
}

/// Divides the waits for all latches, most first. Time waited for latches for which no thread was seen to wait is in
/// no part.
pub fn of_all<'a, K: Copy + Ord>(
    waits: &[LatchWaits],
    statements: &'a [StatementWaits],
    of: impl Fn(&'a StatementWaits) -> K,
) -> Vec<Share<K>> {
    let all_ns = contended_ns(waits);
    let mut sums: BTreeMap<K, Share<K>> = BTreeMap::new();
    for latch in contended(waits) {
        let weight = latch.waits.sum_ns as f64 / all_ns;
        for part in of_latch(latch, statements, &of) {
            let nothing = Share { samples: 0, share: 0.0, error: 0.0, ..part };
            let sum = sums.entry(part.of).or_insert(nothing);
            sum.samples += part.samples;
            sum.share += weight * part.share;
            // The errors of different latches are independent, so their squares add up.
            sum.error += (weight * part.error).powi(2);
        }
    }
    sorted(sums.into_values().map(|sum| Share { error: sum.error.sqrt(), ..sum }).collect())
}

fn contended(waits: &[LatchWaits]) -> impl Iterator<Item = &LatchWaits> {
    waits.iter().filter(|latch| latch.kind != Kind::Cond)
}

/// Returns the time waited for all latches, in nanoseconds.
pub fn contended_ns(waits: &[LatchWaits]) -> f64 {
    contended(waits).map(|latch| latch.waits.sum_ns as f64).sum::<f64>().max(1.0)
}

/// A part of the waits for one latch.
#[derive(Clone, Debug, PartialEq)]
pub struct Path {
    /// The functions through which threads came to wait, the outermost first: all of them if call stacks were seen,
    /// otherwise the call site. Empty if it is not known.
    pub calls: Vec<String>,
    /// The mode; `None` if it is not known, or if this stands for several.
    pub mode: Option<Mode>,
    /// The number of waits.
    pub waits: u64,
    /// The wait time, in nanoseconds.
    pub wait_ns: u64,
}

/// Divides the waits for one latch, given in each of its modes, among the call stacks that were seen, or among call
/// sites if none was. The parts add up to all of them.
pub fn paths(modes: &[LatchWaits], stacks: &[StackWaits], callsites: &[CallsiteWaits]) -> Vec<Path> {
    let by_mode: Vec<Vec<Path>> = modes.iter().map(|waits| by_call_stack(waits, stacks)).collect();
    if by_mode.iter().all(Vec::is_empty) {
        return by_callsite(modes, callsites);
    }
    let unseen = |waits: &LatchWaits| Path {
        calls: Vec::new(),
        mode: Some(waits.mode),
        waits: waits.waits.count,
        wait_ns: waits.waits.sum_ns,
    };
    let or_unseen = |(paths, waits): (Vec<Path>, _)| if paths.is_empty() { vec![unseen(waits)] } else { paths };
    by_mode.into_iter().zip(modes).flat_map(or_unseen).collect()
}

/// Divides the waits for a latch in one mode among the call stacks that were seen.
fn by_call_stack(waits: &LatchWaits, stacks: &[StackWaits]) -> Vec<Path> {
    let of_latch = || stacks.iter().filter(|row| row.samples > 0 && row.is_of(&waits.latch, waits.mode));
    let all: u64 = of_latch().map(|row| row.samples).sum();
    let mut before = 0;
    let path = |row: &StackWaits| {
        // What is left of a whole after rounding is in the next part.
        let part = |whole: u64| {
            let until = |samples: u64| (u128::from(whole) * u128::from(samples) / u128::from(all)) as u64;
            until(before + row.samples) - until(before)
        };
        let calls = row.calls.split(SEPARATOR).take(MOST_CALLS).map(str::to_owned).collect();
        let (waits, wait_ns) = (part(waits.waits.count), part(waits.waits.sum_ns));
        before += row.samples;
        Path { calls, mode: row.mode, waits, wait_ns }
    };
    of_latch().map(path).collect()
}

/// Divides the waits for a latch among its call sites, of which not all modes may be known.
fn by_callsite(modes: &[LatchWaits], callsites: &[CallsiteWaits]) -> Vec<Path> {
    let sum = |of: fn(&LatchWaits) -> u64| modes.iter().map(of).fold(0, u64::saturating_add);
    let (mut waits, mut wait_ns) = (sum(|latch| latch.waits.count), sum(|latch| latch.waits.sum_ns));
    let is_of_latch = |site: &&CallsiteWaits| modes.first().is_some_and(|latch| latch.latch == site.latch);
    let mut paths = Vec::new();
    for site in callsites.iter().filter(is_of_latch) {
        let calls = vec![site.callsite.clone()];
        let path = Path { calls, mode: site.mode, waits: site.waits.min(waits), wait_ns: site.wait_ns.min(wait_ns) };
        (waits, wait_ns) = (waits - path.waits, wait_ns - path.wait_ns);
        paths.push(path);
    }
    paths.push(Path { calls: Vec::new(), mode: None, waits, wait_ns });
    paths
}

fn sorted<K: Ord>(mut parts: Vec<Share<K>>) -> Vec<Share<K>> {
    parts.sort_by(|a, b| b.share.total_cmp(&a.share).then_with(|| a.of.cmp(&b.of)));
    parts
}

/// Returns half the width of the 95 % interval of a share (Agresti and Coull's, which is right for few samples too).
fn error(samples: u64, all: u64) -> f64 {
    let all = all as f64 + NORMAL_95 * NORMAL_95;
    let share = (samples as f64 + NORMAL_95 * NORMAL_95 / 2.0) / all;
    NORMAL_95 * (share * (1.0 - share) / all).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Histogram;

    fn waits(latch: &str, kind: Kind, sum_ns: u64) -> LatchWaits {
        LatchWaits {
            latch: latch.to_owned(),
            kind,
            mode: Mode::None,
            waits: Histogram { sum_ns, ..Histogram::default() },
            sleep_ns: 0,
            sleeps: 0,
            spin_cpu_ns: 0,
            spins_won: 0,
            spins_wasted: 0,
            estimated_ns: 0,
            variance_us2: 0,
        }
    }

    fn seen(latch: &str, digest: &str, samples: u64) -> StatementWaits {
        let (latch, digest) = (latch.to_owned(), digest.to_owned());
        let account = Account { user: format!("{digest}{samples}"), schema: String::new() };
        StatementWaits { latch, mode: Some(Mode::None), statement: digest.to_uppercase(), digest, account, samples }
    }

    #[test]
    fn a_latchs_time_is_divided_by_samples() {
        let statements =
            [seen("l", "a", 60), seen("l", "b", 300), seen("m", "a", 5), seen("l", "c", 0), seen("l", "a", 40)];
        let parts = of_latch(&waits("l", Kind::Mutex, 8_000), &statements, Statement::of);
        let shown: Vec<_> = parts.iter().map(|part| (part.of.text, part.samples, part.share)).collect();
        assert_eq!(shown, [("B", 300, 0.75), ("A", 100, 0.25)]);
        assert!((0.040..0.045).contains(&parts[0].error), "{parts:?}");
        assert!(of_latch(&waits("n", Kind::Mutex, 8_000), &statements, Statement::of).is_empty());
    }

    #[test]
    fn what_is_no_statement_is_for_nobody() {
        let nothing = StatementWaits { statement: "not read".to_owned(), ..seen("l", "", 40) };
        let unknown = StatementWaits { account: Account::default(), ..seen("l", "a", 20) };
        let statements = [seen("l", "a", 30), nothing, unknown, seen("l", "b", 10)];
        let parts = of_latch(&waits("l", Kind::Mutex, 8_000), &statements, Client::of);
        let shown: Vec<_> = parts.iter().map(|part| (part.of.to_string(), part.samples)).collect();
        let expected = [("not read", 40), ("a30", 30), ("not known", 20), ("b10", 10)];
        assert_eq!(shown, expected.map(|(name, samples)| (name.to_owned(), samples)));
        assert!(Client::are_known(&parts) && !Client::are_known(&[parts[0], parts[2]]));
    }

    #[test]
    fn paths_add_up_to_all_waits() {
        let mut waits = waits("l", Kind::Mutex, 1_001);
        waits.waits.count = 10;
        let stack = |latch: &str, calls: &str, samples| StackWaits {
            latch: latch.to_owned(),
            mode: Some(Mode::None),
            calls: calls.to_owned(),
            samples,
        };
        let stacks = [stack("l", "main;f", 2), stack("l", "main;g", 1), stack("m", "main", 9)];
        let site = |wait_ns| CallsiteWaits {
            latch: "l".to_owned(),
            mode: None,
            callsite: "f".to_owned(),
            waits: wait_ns / 100,
            wait_ns,
        };
        let waits = [waits];
        let shown = |stacks: &[StackWaits], sites: &[CallsiteWaits]| -> Vec<(String, u64, u64)> {
            paths(&waits, stacks, sites).iter().map(|p| (p.calls.join(" "), p.waits, p.wait_ns)).collect()
        };
        let path = |calls: &str, waits, wait_ns| (calls.to_owned(), waits, wait_ns);
        assert_eq!(shown(&stacks, &[site(900)]), [path("main f", 6, 667), path("main g", 4, 334)]);
        assert_eq!(shown(&stacks[2..], &[site(900)]), [path("f", 9, 900), path("", 1, 101)]);
        assert_eq!(shown(&[], &[site(2_000)]), [path("f", 10, 1_001), path("", 0, 0)]);
    }

    /// One sample says next to nothing.
    #[test]
    fn few_samples_have_a_large_error() {
        assert!(error(1, 1) > 0.3 && error(5, 5) > 0.2 && error(1000, 1000) < 0.01);
    }

    #[test]
    fn all_latches_together_are_weighted_by_time() {
        let latches = [waits("l", Kind::Mutex, 1_000), waits("m", Kind::Mutex, 3_000), waits("c", Kind::Cond, 9_000)];
        let statements = [seen("l", "a", 10), seen("m", "a", 1), seen("m", "b", 2), seen("c", "b", 50)];
        let parts = of_all(&latches, &statements, Statement::of);
        let shown: Vec<_> = parts.iter().map(|part| (part.of.digest, part.samples, part.share)).collect();
        assert_eq!(shown, [("a", 11, 0.5), ("b", 2, 0.5)]);
        assert_eq!(contended_ns(&latches), 4_000.0);
        let [l, m] = [error(10, 10) / 4.0, error(1, 3) * 0.75];
        assert!((parts[0].error - (l * l + m * m).sqrt()).abs() < 1e-9);
    }
}
