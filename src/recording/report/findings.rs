//! What a recording says, in words: each sentence with the figures that it rests on.

use serde::Serialize;

use super::{Ending, LatchReport, Report};
use crate::model::CpuClass;
use crate::present::format;

/// Shares from which on something is worth a sentence.
const MUCH_SPINNING: f64 = 0.05;
const MUCH_ORDERING: f64 = 0.05;
const MUCH_REMOTE: f64 = 0.05;
const MUCH_UNNAMED: f64 = 0.05;
const MUCH_ESTIMATED: f64 = 0.01;
const MUCH_LOST: f64 = 0.01;
/// A wait that clients notice, seconds.
const LONG_WAIT: f64 = 0.01;
/// How many latches are spoken of, and the least share of the wait time for that.
const LATCHES: usize = 3;
const LEAST_SHARE: f64 = 0.05;
/// A burst: half of a latch's wait time within this share of the seconds, of which there have to be enough.
const BURST: f64 = 0.1;
const LEAST_SECONDS: usize = 20;

/// A sentence.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    pub text: String,
    /// Whether there is something to look into, rather than something to know.
    pub is_problem: bool,
}

/// The most important first. `advice` is what can be changed, as the live table says it.
pub(super) fn findings(report: &Report, advice: &[String]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut say = |is_problem, text: Option<String>| findings.extend(text.map(|text| Finding { text, is_problem }));
    say(false, Some(overall(report)));
    let mut spoken_of: Vec<&str> = Vec::new();
    for latch in report.latches.iter().take(LATCHES).filter(|latch| latch.share >= LEAST_SHARE) {
        // Call sites are those of all of a latch's modes.
        let is_new = !spoken_of.contains(&latch.latch.as_str());
        spoken_of.push(&latch.latch);
        say(false, Some(about(latch, report.duration, is_new)));
        say(true, burst(latch, &report.at));
    }
    say(false, reacquired(report));
    say(false, hot_page(report));
    say(false, remote(report));
    say(true, spinning(report));
    say(false, ordering(report));
    advice.iter().for_each(|advice| say(true, Some(sentence(advice))));
    say(true, long_waits(report));
    say(true, unnamed(report));
    say(true, estimated(report));
    say(true, lost(report));
    say(true, cut_short(report));
    findings
}

fn overall(report: &Report) -> String {
    if report.latches.is_empty() {
        return "No latch was waited for.".to_owned();
    }
    let threads = count_of(report.threads_waiting(), "thread waits", "threads wait");
    let cpu = report.totals.server_cpu.map_or_else(String::new, |cpu| {
        format!(", while the server keeps {:.2} of {} CPUs busy", cpu / report.duration, report.host.cpus)
    });
    let queries = report.totals.queries.map_or_else(String::new, |queries| {
        let (rate, queries) = (queries as f64 / report.duration, queries.max(1) as f64);
        let per_thousand = format::nanoseconds(report.totals.wait / queries * 1e12);
        format!(
            " It serves {} statements a second, and each thousand of them wait for {per_thousand}.",
            format::count(rate)
        )
    });
    format!("On average {threads} for a latch{cpu}.{queries}")
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
        in_mode(latch),
        format::percent(latch.share)
    )
}

/// ` (SX)`
fn in_mode(latch: &LatchReport) -> String {
    if latch.mode.is_empty() {
        String::new()
    } else {
        format!(" ({})", latch.mode.to_uppercase())
    }
}

fn burst(latch: &LatchReport, at: &[f64]) -> Option<String> {
    let mut seconds = latch.wait_by_second.clone();
    (seconds.len() >= LEAST_SECONDS && latch.wait > 0.0).then_some(())?;
    seconds.sort_by(|a, b| b.total_cmp(a));
    let mut sum = 0.0;
    let half = 1 + seconds.iter().position(|wait| {
        sum += wait;
        sum >= latch.wait / 2.0
    })?;
    let worst = latch.wait_by_second.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1))?.0;
    (half as f64 <= BURST * seconds.len() as f64).then(|| {
        format!(
            "Waits for {} come in bursts: half of their time falls into {half} of {} seconds, the worst of them {:.0} s after the \
             beginning.",
            latch.latch,
            seconds.len(),
            at.get(worst).copied().unwrap_or_default()
        )
    })
}

/// Threads that are woken together, or by the one that holds the mutex, queue for it.
fn reacquired(report: &Report) -> Option<String> {
    let row = report.reacquires.first()?;
    let all: f64 = report.reacquires.iter().map(|row| row.wait).sum();
    (row.wait >= LEAST_SHARE * (report.totals.wait + all)).then_some(())?;
    let threads = |wait: f64| count_of(wait / report.duration, "thread", "threads");
    let verdict = if row.other_wait < row.wait { "not a hot mutex" } else { "beside contention" };
    Some(format!(
        "Threads that a condition variable woke queue to get {} back: {} at any moment, {} times a second. These are wake-ups, \
         {verdict}: they are in no other wait time, and otherwise {} for it.",
        row.latch,
        threads(row.wait),
        format::count(row.waits as f64 / report.duration),
        count_of(row.other_wait / report.duration, "thread waits", "threads wait"),
    ))
}

fn hot_page(report: &Report) -> Option<String> {
    let (page, all) = (report.pages.first()?, report.pages.iter().map(|page| page.wait).sum::<f64>());
    let of_latches = all / report.totals.wait;
    (of_latches >= LEAST_SHARE).then(|| {
        let share = format::percent(page.wait / all);
        format!("Among pages, {share} of the wait time is for those of {}.", page.place())
    })
}

/// `Advice on something.`
fn sentence(advice: &str) -> String {
    let (first, rest) = advice.split_at(advice.chars().next().map_or(0, char::len_utf8));
    format!("{}{rest}.", first.to_uppercase())
}

/// Waits for what came from another part of the machine.
fn remote(report: &Report) -> Option<String> {
    let handoffs = report.handoffs.as_ref()?;
    let (all, top) = (&handoffs.all, handoffs.latches.first()?);
    (all.remote.wait >= MUCH_REMOTE * report.totals.wait).then_some(())?;
    Some(format!(
        "Of the time waited for latches that somebody handed over, {} is for those from another part of the machine; {} of that for {}.",
        format::percent(all.remote_share()?),
        format::percent(top.sums.remote.wait / all.remote.wait),
        top.latch
    ))
}

fn ordering(report: &Report) -> Option<String> {
    let cpu = report.cpu.as_ref()?;
    let share = cpu.ordering_share()?;
    let (instruction, most) = cpu.instructions().into_iter().next()?;
    (share >= MUCH_ORDERING).then(|| {
        let (share, most) = (format::percent(share), format::percent(most));
        format!("Barriers and atomics take {share} of the CPU time, {instruction} the most: {most}.")
    })
}

/// By samples of CPU time where there are any, otherwise by the time that waiters were awake.
fn spinning(report: &Report) -> Option<String> {
    let Some(cpu) = &report.cpu else { return awake(report) };
    let share = cpu.share(CpuClass::Spin);
    (share >= MUCH_SPINNING).then(|| {
        let latch = spun_for_most(report).unwrap_or_default();
        format!("Spinning takes {} of the server's CPU time.{latch}", format::percent(share))
    })
}

fn spun_for_most(report: &Report) -> Option<String> {
    let spinning = |latch: &LatchReport| latch.spin_cpu.unwrap_or(0.0);
    let all: f64 = report.latches.iter().map(spinning).sum();
    let latch = report.latches.iter().max_by(|a, b| spinning(a).total_cmp(&spinning(b)))?;
    (all > 0.0).then_some(())?;
    let won =
        latch.spins.map(|spins| format!(", for which {} of the spins are won", format::percent(spins.won_share())));
    let share = format::percent(spinning(latch) / all);
    Some(format!(" {share} of that is for {}{}{}.", latch.latch, in_mode(latch), won.unwrap_or_default()))
}

fn awake(report: &Report) -> Option<String> {
    let share = report.totals.spin? / report.totals.server_cpu.filter(|cpu| *cpu > 0.0)?;
    (share >= MUCH_SPINNING).then(|| {
        format!(
            "Threads that wait for a latch are awake for as long as {} of the server's CPU time: spinning, or ready and without a CPU.",
            format::percent(share)
        )
    })
}

fn long_waits(report: &Report) -> Option<String> {
    let slow = |latch: &&LatchReport| latch.p99.is_some_and(|p99| p99 >= LONG_WAIT) && latch.waits >= 100;
    let latch = report.latches.iter().filter(slow).max_by(|a, b| a.wait.total_cmp(&b.wait))?;
    Some(format!(
        "One in a hundred waits for {} takes longer than {}; the longest took {}.",
        latch.latch,
        format::nanoseconds(latch.p99? * 1e9),
        format::nanoseconds(latch.max * 1e9)
    ))
}

fn unnamed(report: &Report) -> Option<String> {
    let share: f64 = report.latches.iter().filter(|l| l.latch.starts_with("unnamed:")).map(|l| l.share).sum();
    (share >= MUCH_UNNAMED).then(|| {
        format!(
            "{} of the wait time is for latches without a name: docs/naming.md says what to do.",
            format::percent(share)
        )
    })
}

fn estimated(report: &Report) -> Option<String> {
    let share = report.totals.estimated / report.totals.wait;
    (share >= MUCH_ESTIMATED).then(|| {
        format!(
            "{} of the wait time was not seen but estimated, to keep the budget for probes: --max-overhead sets it.",
            format::percent(share)
        )
    })
}

fn lost(report: &Report) -> Option<String> {
    let events: u64 = report.lost.values().sum();
    let share = events as f64 / report.totals.waits.max(1) as f64;
    let causes: Vec<String> =
        report.lost.iter().map(|(cause, n)| format!("{cause} {}", format::count(*n as f64))).collect();
    (share >= MUCH_LOST).then(|| {
        let all = format::count(events as f64);
        format!(
            "{all} events are in no figure, beside {} waits: {}.",
            format::count(report.totals.waits as f64),
            causes.join(", ")
        )
    })
}

fn cut_short(report: &Report) -> Option<String> {
    match report.ending {
        None => Some(
            "The file has no end: armtrace was killed. All that is here is right up to its last second.".to_owned(),
        ),
        Some(Ending::ServerEnded) => Some("The server ended while it was recorded.".to_owned()),
        Some(Ending::Complete | Ending::Interrupted) => None,
    }
}

fn count_of(n: f64, one: &str, many: &str) -> String {
    let text = format!("{n:.2}");
    let noun = if text == "1.00" { one } else { many };
    format!("{text} {noun}")
}
