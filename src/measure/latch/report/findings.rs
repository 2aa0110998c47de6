//! Finds what waits for latches say.

use std::iter;

use super::{LatchReport, LatchesReport};
use crate::present::format;
use crate::recording::report::{count_of, Findings, Report};

/// The most latches that get a sentence.
const LATCHES: usize = 3;
/// The least share of the wait time that is worth a sentence.
const LEAST_SHARE: f64 = 0.05;
/// The largest share of the time with half of a latch's wait time that counts as a burst.
const BURST: f64 = 0.1;
/// The shortest recording in which bursts are looked for, in seconds, and the fewest sets of figures.
const LEAST_SECONDS: f64 = 19.5;
const LEAST_SETS: usize = 20;
/// The least share of the wait time for latches without a name that is worth a sentence.
const MUCH_UNNAMED: f64 = 0.05;
/// The least estimated share of the wait time that is worth a sentence.
const MUCH_ESTIMATED: f64 = 0.01;
/// The shortest wait that clients notice, in seconds.
const LONG_WAIT: f64 = 0.01;

pub(super) fn find(waits: &LatchesReport, report: &Report, findings: &mut Findings) {
    let mut spoken_of: Vec<&str> = Vec::new();
    for latch in waits.latches.iter().take(LATCHES).filter(|latch| latch.share >= LEAST_SHARE) {
        // Call sites are those of all of a latch's modes.
        let is_new = !spoken_of.contains(&latch.latch.as_str());
        spoken_of.push(&latch.latch);
        findings.fact(Some(about(latch, report.duration, is_new)));
        findings.problem(burst(latch, &report.at));
    }
    findings.fact(reacquired(waits, report));
    findings.fact(hot_page(waits, report));
}

pub(super) fn find_lesser(waits: &LatchesReport, report: &Report, findings: &mut Findings) {
    findings.problem(long_waits(&waits.latches));
    findings.problem(unnamed(&waits.latches));
    findings.fact(sampled(report));
    findings.problem(estimated(report));
}

fn about(latch: &LatchReport, duration: f64, with_callsite: bool) -> String {
    let threads = count_of(latch.wait / duration, "thread", "threads");
    let site = latch.callsites.first().filter(|_| with_callsite).map_or_else(String::new, |site| {
        format!(" {} of the waits for it, by time, begin at {}.", format::percent(site.share), site.callsite)
    });
    let awake = latch
        .spin
        .filter(|_| latch.wait > 0.0)
        .map_or_else(String::new, |spin| format!(", {} of it awake", format::percent(spin / latch.wait)));
    format!(
        "{}{} has {} of all wait time: {threads} at any moment{awake}.{site}",
        latch.latch,
        latch.in_mode(),
        format::percent(latch.share)
    )
}

fn burst(latch: &LatchReport, at: &[f64]) -> Option<String> {
    let duration = at.last().copied().filter(|seconds| *seconds >= LEAST_SECONDS)?;
    (at.len() >= LEAST_SETS && latch.wait > 0.0).then_some(())?;
    let (half, worst) = busiest_half(&latch.wait_by_second, at);
    (half <= BURST * duration).then(|| {
        format!(
            "Waits for {} come in bursts: half of their time falls into {half:.0} of {duration:.0} seconds. The worst second is \
             {worst:.0} s after the beginning.",
            latch.latch,
        )
    })
}

/// Returns the shortest time that has half of the wait time, and when the worst second ended. In a dump, a second of
/// the recording may be longer than a second.
fn busiest_half(waits: &[f64], at: &[f64]) -> (f64, f64) {
    let begins = iter::once(&0.0).chain(at);
    let mut seconds: Vec<Second> = (waits.iter().zip(at).zip(begins))
        .map(|((wait, at), begin)| Second { wait: *wait, length: at - begin, at: *at })
        .collect();
    seconds.sort_by(|a, b| b.waiting().total_cmp(&a.waiting()));
    let all: f64 = waits.iter().sum();
    let (mut waited, mut half) = (0.0, 0.0);
    for second in &seconds {
        (waited, half) = (waited + second.wait, half + second.length);
        if waited >= all / 2.0 {
            break;
        }
    }
    (half, seconds.first().map_or(0.0, |worst| worst.at))
}

/// The wait time in a second of a recording.
struct Second {
    wait: f64,
    /// Its length, in seconds.
    length: f64,
    /// When it ended.
    at: f64,
}

impl Second {
    /// Returns how many threads waited on average.
    fn waiting(&self) -> f64 {
        self.wait / self.length.max(f64::MIN_POSITIVE)
    }
}

/// Threads that are woken together, or by the holder of the mutex, queue for it.
fn reacquired(waits: &LatchesReport, report: &Report) -> Option<String> {
    let row = waits.reacquires.first()?;
    let all: f64 = waits.reacquires.iter().map(|row| row.wait).sum();
    (row.wait >= LEAST_SHARE * (report.totals.wait + all)).then_some(())?;
    let threads = |wait: f64| count_of(wait / report.duration, "thread", "threads");
    let verdict = if row.other_wait < row.wait { "not a hot mutex" } else { "in addition to contention" };
    let often = row.waits.map_or_else(String::new, |waits| {
        format!(", {} times per second", format::count(waits as f64 / report.duration))
    });
    Some(format!(
        "Threads that a condition variable woke queue to reacquire {}: {} at any moment{often}. These are \
         wake-ups, {verdict}; no other wait time includes them. Besides, {} for it.",
        row.latch,
        threads(row.wait),
        count_of(row.other_wait / report.duration, "thread waits", "threads wait"),
    ))
}

fn hot_page(waits: &LatchesReport, report: &Report) -> Option<String> {
    let (page, all) = (waits.pages.first()?, waits.pages.iter().map(|page| page.wait).sum::<f64>());
    let of_latches = all / report.totals.wait;
    (of_latches >= LEAST_SHARE).then(|| {
        let share = format::percent(page.wait / all);
        format!("Of the wait time for pages, {share} is for {}.", page.location())
    })
}

fn long_waits(latches: &[LatchReport]) -> Option<String> {
    let are_many = |latch: &LatchReport| latch.waits.is_some_and(|waits| waits >= 100);
    let slow = |latch: &&LatchReport| latch.p99.is_some_and(|p99| p99 >= LONG_WAIT) && are_many(latch);
    let latch = latches.iter().filter(slow).max_by(|a, b| a.wait.total_cmp(&b.wait))?;
    Some(format!(
        "One in a hundred waits for {} takes longer than {}; the longest took {}.",
        latch.latch,
        format::nanoseconds(latch.p99? * 1e9),
        format::nanoseconds(latch.max? * 1e9)
    ))
}

fn unnamed(latches: &[LatchReport]) -> Option<String> {
    let share: f64 = latches.iter().filter(|l| l.latch.starts_with("unnamed:")).map(|l| l.share).sum();
    (share >= MUCH_UNNAMED).then(|| {
        format!(
            "{} of the wait time is for latches without a name: see docs/explanation/naming.md.",
            format::percent(share)
        )
    })
}

/// The times of a recording without probes are all estimates, which is no reason to look into anything.
fn sampled(report: &Report) -> Option<String> {
    report.sampled.then(|| {
        "Waits were read from the threads' stacks, without probes: their times are estimates, and how many there were, \
         and how long each took, is not known."
            .to_owned()
    })
}

fn estimated(report: &Report) -> Option<String> {
    let share = report.totals.estimated / report.totals.wait;
    (share >= MUCH_ESTIMATED && !report.sampled).then(|| {
        format!(
            "{} of the wait time is estimated, because probes were off to stay within the budget (--max-overhead).",
            format::percent(share)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_waits_may_take_few_seconds() {
        let at: Vec<f64> = (1..=20).map(f64::from).collect();
        let mut waits = vec![1.0; 20];
        assert_eq!(busiest_half(&waits, &at).0, 10.0);
        waits[6] = 30.0;
        assert_eq!(busiest_half(&waits, &at), (1.0, 7.0));
    }

    #[test]
    fn seconds_count_by_their_length() {
        // 4 threads wait in the third second, and 3 in the others, which are three times as long.
        assert_eq!(busiest_half(&[9.0, 9.0, 4.0, 9.0], &[3.0, 6.0, 7.0, 10.0]), (7.0, 7.0));
    }
}
