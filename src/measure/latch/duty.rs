//! Keeps the probes within the overhead budget: groups of them take turns, and what they do not see is estimated.

use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::attacher::Attacher;
use super::command::{wait_until, Command};
use super::keys::PTHREAD;
use super::maps::Counts;
use super::meter::Meter;
use crate::attach::{Budget, Governor, Turn, PERIOD};
use crate::model::ProbeState;

/// A budget that is enforced, also across pauses.
pub(super) struct DutyCycle {
    budget: Budget,
    governor: Governor,
    turns: Vec<Turn>,
}

impl DutyCycle {
    pub fn new(budget: Budget, groups: usize) -> DutyCycle {
        DutyCycle { governor: Governor::new(budget.share, groups), budget, turns: vec![Turn::Always; groups] }
    }

    /// Enforces the budget until a command arrives.
    pub fn run(&mut self, attacher: &mut Attacher<'_>, commands: &Receiver<Command>) -> Result<Command> {
        let DutyCycle { budget, governor, turns } = self;
        let mut meter = Meter::new(attacher, budget)?;
        let mut owed = vec![Owed::new(); attacher.groups()];
        show(attacher, turns);
        loop {
            let attached = match period(attacher, turns, commands) {
                Ok(attached) => attached,
                Err(command) => {
                    // A period that was cut short is not scaled up.
                    if let Err(error) = settle(attacher, &mut owed) {
                        tracing::error!("the waits of the last turns were not scaled up: {error:#}");
                    }
                    return Ok(command);
                }
            };
            for (owed, &on) in owed.iter_mut().zip(&attached) {
                owed.add(on);
            }
            let used = meter.read(attacher, &attached)?;
            let next = governor.turns(used.server_cpu, used.others, &used.groups);
            // Also do this before the first turns: nothing seen until then has to be scaled up.
            if turns.iter().chain(&next).any(|turn| *turn != Turn::Always) {
                settle(attacher, &mut owed)?;
            }
            *turns = next;
            show(attacher, turns);
        }
    }
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
) -> Result<Vec<Option<Duration>>, Command> {
    let begin = Instant::now();
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
        }
    }
    // Groups that were on before count from the beginning; `None` for those that stay on throughout.
    let mut attached: Vec<_> = put_on.iter().map(|on| on.map(|_| Duration::ZERO)).collect();
    let mut parts: Vec<(usize, f64)> = turns.iter().enumerate().filter_map(part).collect();
    parts.sort_by(|a, b| a.1.total_cmp(&b.1));
    for (group, part) in parts {
        attached[group] = Some(Duration::ZERO);
        if part == 0.0 || !attacher.is_on(group) {
            continue;
        }
        let since = put_on[group].take().unwrap_or(begin);
        wait_until(commands, since + PERIOD.mul_f64(part))?;
        attached[group] = Some(since.elapsed());
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

/// Scales up what was seen by groups that were attached only part of the time since they were last settled.
fn settle(attacher: &Attacher<'_>, owed: &mut [Owed]) -> Result<()> {
    let mut factors = [0.0; PTHREAD as usize + 1];
    for (group, owed) in owed.iter_mut().enumerate().filter(|(_, o)| o.saw_anything()) {
        for function in attacher.functions_of(group) {
            factors[usize::from(function)] = owed.factor();
        }
        *owed = Owed::new();
    }
    let counts = Counts::read(&attacher.maps)?;
    attacher.status.missed.lock().estimate(&counts, &factors);
    Ok(())
}

/// Returns the share of a period that a group may be on, if not all of it.
fn part((group, turn): (usize, &Turn)) -> Option<(usize, f64)> {
    match *turn {
        Turn::Part(part) if part < 1.0 => Some((group, part)),
        _ => None,
    }
}

/// How long a group was attached since its counts were last scaled up.
#[derive(Clone)]
struct Owed {
    since: Instant,
    attached: Duration,
    all_the_time: bool,
}

impl Owed {
    fn new() -> Owed {
        Owed { since: Instant::now(), attached: Duration::ZERO, all_the_time: true }
    }

    /// Adds one period, in which the group was attached for this long, or all the time.
    fn add(&mut self, attached: Option<Duration>) {
        self.attached += attached.unwrap_or(PERIOD);
        self.all_the_time &= attached.is_none();
    }

    fn saw_anything(&self) -> bool {
        !self.attached.is_zero()
    }

    /// Returns the ratio of what was not seen in that time to what was seen.
    fn factor(&self) -> f64 {
        if self.all_the_time {
            return 0.0;
        }
        (self.since.elapsed().as_secs_f64() / self.attached.as_secs_f64() - 1.0).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALWAYS: Option<Duration> = None;
    const OFF: Option<Duration> = Some(Duration::ZERO);

    fn owed(periods: u32) -> Owed {
        Owed { since: Instant::now() - periods * PERIOD, ..Owed::new() }
    }

    #[test]
    fn what_was_on_all_the_time_missed_nothing() {
        let mut owed = owed(10);
        owed.add(ALWAYS);
        assert_eq!(owed.factor(), 0.0);
    }

    #[test]
    fn what_was_on_a_quarter_of_the_time_missed_three_times_as_much() {
        let mut owed = owed(4);
        for attached in [Some(PERIOD), OFF, OFF, OFF] {
            owed.add(attached);
        }
        assert!((owed.factor() - 3.0).abs() < 0.1, "{}", owed.factor());
        assert!(owed.saw_anything());
    }

    #[test]
    fn what_was_off_has_to_wait_for_its_turn() {
        let mut owed = Owed::new();
        owed.add(OFF);
        assert!(!owed.saw_anything());
    }

    #[test]
    fn only_a_group_that_is_on_for_a_part_of_the_time_takes_turns() {
        let turns = [Turn::Always, Turn::Part(0.25), Turn::Part(1.0)];
        assert_eq!(turns.iter().enumerate().filter_map(part).collect::<Vec<_>>(), [(1, 0.25)]);
    }
}
