//! Keeps the probes within the overhead budget: groups of them take turns, and what they do not see is estimated.

use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::attacher::Attacher;
use super::command::{wait_until, Command};
use super::keys::PTHREAD;
use super::maps::Counts;
use super::meter::Meter;
use super::missed::Span;
use crate::attach::{stacks_are_shown, Budget, Governor, Limit, Turn, PERIOD};
use crate::model::ProbeState;

/// The longest time after which it is noted what was seen.
const SPAN: Duration = Duration::from_secs(10);

/// How much sampling threads may take, and what is left for probes while turns are taken, as shares of the budget.
/// Looks show more of what probes miss than longer turns would. Probes are charged at least twice what they take: both
/// together take about the budget.
const SAMPLING_PART: f64 = 0.6;
const PROBES_PART: f64 = 0.6;

/// The most that looks take of a larger budget while no turns are taken, as a share of the server's CPU time.
const MOST_WITHOUT_TURNS: f64 = SAMPLING_PART * 0.01;

/// How often samples become figures where there are no probes.
const SPAN_OF_SAMPLES: Duration = Duration::from_millis(250);

/// How many CPUs a server is taken to use at least: looks at an idle one cost next to nothing.
const LEAST_CPUS: f64 = 0.2;

/// The times of the first looks at what probes cost.
const EARLY: [Duration; 3] = [Duration::from_millis(8), Duration::from_millis(40), Duration::from_millis(200)];

/// A budget that is enforced, also across pauses.
pub(super) struct DutyCycle {
    budget: Budget,
    governor: Governor,
    turns: Vec<Turn>,
}

impl DutyCycle {
    pub fn new(budget: Budget, groups: usize) -> DutyCycle {
        let in_turns = if stacks_are_shown() { PROBES_PART } else { 1.0 };
        DutyCycle { governor: Governor::new(budget.share, in_turns, groups), budget, turns: vec![Turn::Always; groups] }
    }

    /// Enforces the budget until a command arrives.
    pub fn run(&mut self, attacher: &mut Attacher<'_>, commands: &Receiver<Command>) -> Result<Command> {
        let DutyCycle { budget, governor, turns } = self;
        let mut meter = Meter::new(attacher, budget)?;
        if attacher.is_without_probes() {
            return sample_only(attacher, commands, budget.share, &mut meter);
        }
        let mut watched = Watched::new(attacher.groups());
        skip(attacher)?;
        show(attacher, turns);
        let mut begin = Instant::now();
        if let Err(command) = check_early(attacher, governor, turns, &mut meter, commands)? {
            return Ok(command);
        }
        let early = begin.elapsed();
        begin += early;
        watched.add(early, &vec![None; turns.len()]);
        loop {
            let attached = match period(attacher, turns, commands, begin) {
                Ok(attached) => attached,
                Err(command) => return Ok(command),
            };
            let elapsed = begin.elapsed();
            begin += elapsed;
            watched.add(elapsed, &attached);
            for limit in governor.limits() {
                let is_assumed = limit == Limit::CpuTime && !budget.costs.are_known();
                attacher.status.add_limited(if is_assumed { Limit::AssumedPrice } else { limit }, elapsed);
            }
            attacher.take_statements();
            let used = meter.read(attacher, &attached)?;
            let next = governor.turns(used.server_cpu, used.others, &used.groups);
            let turns_are_taken = turns.iter().chain(&next).any(|turn| *turn != Turn::Always);
            let probes: f64 = used.groups.iter().map(|group| group.cpu).sum();
            let cpus = for_looks(turns_are_taken, budget.share, used.server_cpu, used.others + probes);
            attacher.sample_threads(cpus, turns_are_taken);
            // Also without turns: what was seen of late is needed when they begin.
            if turns_are_taken || watched.elapsed >= SPAN {
                estimate(attacher, &watched)?;
                watched = Watched::new(attacher.groups());
            }
            *turns = next;
            show(attacher, turns);
        }
    }
}

/// Returns how many CPUs looks may take, within a share of the server's CPU time of which probes take some. Without
/// turns, looks only show who holds latches, and which statements wait.
fn for_looks(turns_are_taken: bool, share: f64, server_cpu: f64, probes: f64) -> f64 {
    // A server that stands still because of a latch uses next to no CPU time.
    if turns_are_taken {
        return SAMPLING_PART * share * server_cpu.max(LEAST_CPUS);
    }
    let most = MOST_WITHOUT_TURNS.min(SAMPLING_PART * share);
    let least = most * LEAST_CPUS;
    (share * server_cpu - probes).clamp(least, least.max(most * server_cpu))
}

/// Samples stacks, which may take all of the budget, until a command arrives.
fn sample_only(
    attacher: &mut Attacher<'_>,
    commands: &Receiver<Command>,
    share: f64,
    meter: &mut Meter<'_>,
) -> Result<Command> {
    // The server's CPU time is not known yet.
    attacher.sample_threads(share, false);
    drop(attacher.take_seen());
    let mut begin = Instant::now();
    let mut next = begin + SPAN_OF_SAMPLES;
    loop {
        let told = wait_until(commands, next);
        let elapsed = begin.elapsed();
        begin += elapsed;
        next = begin + SPAN_OF_SAMPLES;
        if let Some(seen) = attacher.take_seen() {
            attacher.status.missed.lock().add_seen(&seen, elapsed);
        }
        if let Err(command) = told {
            return Ok(command);
        }
        let used = meter.read(attacher, &vec![None; attacher.groups()])?;
        attacher.sample_threads(share * used.server_cpu.max(LEAST_CPUS), false);
    }
}

/// Looks at what the probes cost soon after they were attached: a storm of hits must not last for a whole period.
fn check_early(
    attacher: &Attacher<'_>,
    governor: &mut Governor,
    turns: &mut Vec<Turn>,
    meter: &mut Meter<'_>,
    commands: &Receiver<Command>,
) -> Result<Result<(), Command>> {
    for after in EARLY {
        if turns.iter().any(|turn| *turn != Turn::Always) {
            break;
        }
        if let Err(command) = wait_until(commands, Instant::now() + after) {
            return Ok(Err(command));
        }
        let used = meter.read(attacher, &vec![None; turns.len()])?;
        // The server's CPU time is not known well after so short a time.
        *turns = governor.turns(used.server_cpu.max(1.0), used.others, &used.groups);
    }
    governor.begin_cycle();
    show(attacher, turns);
    Ok(Ok(()))
}

/// Publishes the turns to the programs and to other threads.
fn show(attacher: &Attacher<'_>, turns: &[Turn]) {
    attacher.announce(turns);
    attacher.set_states(|group| match turns[group] {
        Turn::Always => ProbeState::Attached,
        Turn::Part(_) => ProbeState::DutyCycle,
    });
}

/// Runs one period, in which each group has its turn. Returns how long each group was attached, if not all the
/// time, or the command that ended the period.
fn period(
    attacher: &mut Attacher<'_>,
    turns: &[Turn],
    commands: &Receiver<Command>,
    begin: Instant,
) -> Result<Vec<Option<Duration>>, Command> {
    let mut put_on = vec![None; turns.len()];
    // The futex programs come first, because they measure the sleeps within the others' waits.
    for group in (0..turns.len()).rev() {
        if turns[group] == Turn::Part(0.0) {
            if attacher.is_on(group) {
                attacher.take_off(group);
            }
        } else if !attacher.is_on(group) && attacher.can_be_on(group) {
            attacher.put_on(group);
            put_on[group] = Some(Instant::now());
        } else if attacher.is_on(group) {
            attacher.count_again(group);
        }
    }
    // Groups that were on before count from the beginning; `None` for those that stay on throughout.
    let mut attached: Vec<_> = put_on.iter().map(|on| on.map(|_| Duration::ZERO)).collect();
    let mut ends = Vec::new();
    for (group, part) in turns.iter().enumerate().filter_map(part) {
        attached[group] = Some(Duration::ZERO);
        if part == 0.0 || !attacher.is_on(group) {
            continue;
        }
        let since = put_on[group].take().unwrap_or(begin);
        let end = since + PERIOD.mul_f64(part);
        attacher.end_turn_at(group, end);
        attached[group] = Some(end - since);
        ends.push((end, group));
    }
    ends.sort();
    for (end, group) in ends {
        wait_until(commands, end)?;
        attacher.take_off(group);
    }
    wait_until(commands, begin + PERIOD)?;
    attacher.finish_removals();
    // These were switched on and stay on in this period.
    for (attached, since) in attached.iter_mut().zip(put_on) {
        *attached = since.map(|since| since.elapsed()).or(*attached);
    }
    Ok(attached)
}

/// Estimates what was missed in a time, and makes room for what will be counted.
fn estimate(attacher: &mut Attacher<'_>, watched: &Watched) -> Result<()> {
    let mut spans = [Span::default(); PTHREAD as usize + 1];
    for group in 0..attacher.groups() {
        for function in attacher.functions_of(group) {
            spans[usize::from(function)] = watched.span(group);
        }
    }
    let samples = attacher.take_samples();
    let counts = Counts::read(&attacher.maps)?;
    let mut missed = attacher.status.missed.lock();
    missed.estimate(&counts, &spans, samples.as_ref());
    missed.make_room(&counts, |pages| attacher.maps.take_pages(pages));
    Ok(())
}

/// Leaves the waits so far as they are.
fn skip(attacher: &Attacher<'_>) -> Result<()> {
    let counts = Counts::read(&attacher.maps)?;
    attacher.status.missed.lock().skip(&counts);
    Ok(())
}

/// Returns the share of a period that a group may be on, if not all of it.
fn part((group, turn): (usize, &Turn)) -> Option<(usize, f64)> {
    match *turn {
        Turn::Part(part) if part < 1.0 => Some((group, part)),
        _ => None,
    }
}

/// How long each group was attached in a time.
struct Watched {
    elapsed: Duration,
    attached: Vec<Duration>,
}

impl Watched {
    fn new(groups: usize) -> Watched {
        Watched { elapsed: Duration::ZERO, attached: vec![Duration::ZERO; groups] }
    }

    /// Adds a period, in which each group was attached for this long, or all the time.
    fn add(&mut self, elapsed: Duration, attached: &[Option<Duration>]) {
        self.elapsed += elapsed;
        for (sum, attached) in self.attached.iter_mut().zip(attached) {
            *sum += attached.map_or(elapsed, |attached| attached.min(elapsed));
        }
    }

    fn span(&self, group: usize) -> Span {
        let on = self.attached[group];
        Span { on: on.as_secs_f64(), off: (self.elapsed - on).as_secs_f64() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALWAYS: Option<Duration> = None;
    const OFF: Option<Duration> = Some(Duration::ZERO);

    #[test]
    fn each_group_is_on_in_its_turns() {
        let mut watched = Watched::new(3);
        let second = Duration::from_secs(1);
        watched.add(second, &[ALWAYS, Some(second / 4), OFF]);
        watched.add(second, &[ALWAYS, OFF, Some(2 * second)]);
        let spans = [0, 1, 2].map(|group| watched.span(group)).map(|span| (span.on, span.off));
        assert_eq!(spans, [(2.0, 0.0), (0.25, 1.75), (1.0, 1.0)]);
    }

    #[test]
    fn without_turns_looks_take_what_probes_leave() {
        assert_eq!(for_looks(true, 0.01, 2.0, 0.02), 0.6 * 0.02);
        assert_eq!(for_looks(true, 0.01, 0.0, 0.02), 0.6 * 0.01 * LEAST_CPUS);
        assert_eq!(for_looks(false, 0.01, 2.0, 0.0), 0.6 * 0.02);
        assert!((for_looks(false, 0.01, 2.0, 0.015) - 0.005).abs() < 1e-9);
        let least = 0.6 * 0.01 * LEAST_CPUS;
        assert_eq!([for_looks(false, 0.01, 2.0, 0.5), for_looks(false, 0.01, 0.0, 0.0)], [least; 2]);
        assert_eq!(for_looks(false, 1.0, 2.0, 0.0), 0.6 * 0.02, "no budget is no reason to look more often");
        assert_eq!(for_looks(false, 0.1, 2.0, 0.1), 0.6 * 0.02, "a larger budget is no reason to look less often");
    }

    #[test]
    fn only_a_group_that_is_on_for_a_part_of_the_time_takes_turns() {
        let turns = [Turn::Always, Turn::Part(0.25), Turn::Part(1.0)];
        assert_eq!(turns.iter().enumerate().filter_map(part).collect::<Vec<_>>(), [(1, 0.25)]);
    }
}
