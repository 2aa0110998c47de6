//! The overhead budget: which groups of probes stay attached all the time, and which only take turns.

use std::time::Duration;

use super::Costs;

/// How often the budget is looked at, and how often a group that takes turns is attached.
pub const PERIOD: Duration = Duration::from_secs(1);

/// The shortest turn that tells something, as a share of a period. A group that may have less than that has its turn less
/// often than each period.
const SHORTEST_TURN: f64 = 0.02;

/// Part of the budget that is also the share of the time for which probes of one group may run while their thread has the
/// latch it waited for: others wait for that latch meanwhile, so that this costs more than its CPU time.
const HELD_PART: f64 = 0.5;

/// Share of one CPU that probes may always take: from a server that does next to nothing nobody misses it, and turns would
/// cost as much.
const FLOOR: f64 = 0.002;

/// What probes may take from a server.
pub struct Budget {
    /// Share of the server's CPU time, 0 to 1.
    pub share: f64,
    pub costs: Costs,
    /// CPU time that others have taken so far, nanoseconds: what samples CPU time takes a share that is small and always
    /// the same, so that it has no turns, and the groups get the rest.
    pub others_ns: Box<dyn Fn() -> u64 + Send>,
}

/// What the probes of one group did in the last period.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// Share of the period for which they were attached, 0 to 1.
    pub attached: f64,
    /// What their hits took from the server's threads, as a share of the period (1: a whole CPU).
    pub cpu: f64,
    /// The part of it in threads that had a latch.
    pub held: f64,
}

/// Keeps the probes within a share of the server's CPU time.
#[derive(Debug)]
pub struct Governor {
    budget: f64,
    groups: Vec<Group>,
}

#[derive(Clone, Debug)]
struct Group {
    /// What the group takes when it is attached all the time; known from its last turns.
    full: Usage,
    /// The share of the time that it may be attached.
    share: f64,
    /// Time that it was not given yet, in periods.
    credit: f64,
}

impl Governor {
    /// For this many groups of probes; `budget` is their share of the server's CPU time, 0 to 1.
    pub fn new(budget: f64, groups: usize) -> Governor {
        let group = Group { full: Usage::default(), share: 1.0, credit: 0.0 };
        Governor { budget, groups: vec![group; groups] }
    }

    /// The next period's turns, one per group, after a period in which the server used `server_cpu` CPUs and other probes took
    /// `others` of them. 1: attached all the time; 0: not at all; else the share of the period.
    pub fn turns(&mut self, server_cpu: f64, others: f64, usage: &[Usage]) -> Vec<f64> {
        for (group, usage) in self.groups.iter_mut().zip(usage) {
            group.learn(usage);
        }
        let allowed = (self.budget * server_cpu - others).max(FLOOR);
        let fair = fair_share(self.groups.iter().map(|g| g.full.cpu).collect(), allowed);
        let held = HELD_PART * self.budget;
        self.groups.iter_mut().map(|group| group.turn(fair, held)).collect()
    }
}

impl Group {
    /// Dearer than before counts at once, cheaper only by and by: what was quiet for a second may not be in the next.
    fn learn(&mut self, usage: &Usage) {
        if usage.attached <= 0.0 {
            return;
        }
        let slowly = |old: f64, new: f64| new.max(0.7 * old + 0.3 * new);
        self.full.cpu = slowly(self.full.cpu, usage.cpu / usage.attached);
        self.full.held = slowly(self.full.held, usage.held / usage.attached);
    }

    fn turn(&mut self, fair: f64, held: f64) -> f64 {
        let within = |limit: f64, takes: f64| if takes > limit { limit / takes } else { 1.0 };
        self.share = within(fair, self.full.cpu).min(within(held, self.full.held));
        if self.share >= 1.0 {
            self.credit = 0.0;
            return 1.0;
        }
        self.credit = (self.credit + self.share).min(1.0);
        if self.credit < SHORTEST_TURN {
            return 0.0;
        }
        std::mem::take(&mut self.credit).min(self.share.max(SHORTEST_TURN))
    }
}

/// The limit to what each may take so that all together take no more than `allowed`: the dearest give way first.
fn fair_share(mut takes: Vec<f64>, allowed: f64) -> f64 {
    takes.sort_by(f64::total_cmp);
    let mut left = allowed;
    for (i, take) in takes.iter().enumerate() {
        let each = left / (takes.len() - i) as f64;
        if *take > each {
            return each;
        }
        left -= take;
    }
    f64::INFINITY
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(attached: f64, full: f64) -> Usage {
        Usage { attached, cpu: full * attached, held: 0.0 }
    }

    #[test]
    fn within_the_budget_everything_stays_attached() {
        let mut governor = Governor::new(0.01, 2);
        assert_eq!(governor.turns(2.0, 0.0, &[used(1.0, 0.015), used(1.0, 0.004)]), [1.0, 1.0]);
    }

    #[test]
    fn the_dearest_gives_way_first() {
        let mut governor = Governor::new(0.01, 3);
        let turns = governor.turns(2.0, 0.0, &[used(1.0, 0.1), used(1.0, 0.006), used(1.0, 0.002)]);
        assert_eq!(turns[1..], [1.0, 1.0]);
        // 0.02 allowed, less 0.008 of the others.
        assert!((turns[0] - 0.12).abs() < 1e-9, "{turns:?}");
    }

    #[test]
    fn a_storm_is_within_the_budget_at_once_and_forgotten_slowly() {
        let mut governor = Governor::new(0.01, 1);
        assert_eq!(governor.turns(2.0, 0.0, &[used(1.0, 0.001)]), [1.0]);
        let storm = governor.turns(2.0, 0.0, &[used(1.0, 0.8)])[0];
        assert!(storm * 0.8 <= 0.02 + 1e-9, "{storm}");
        let mut turn = storm;
        let mut periods = 0;
        while turn < 1.0 {
            turn = governor.turns(2.0, 0.0, &[used(turn, 0.001)])[0];
            periods += 1;
        }
        assert!((3..=30).contains(&periods), "{periods}");
    }

    #[test]
    fn turns_that_are_too_short_come_less_often() {
        let mut governor = Governor::new(0.001, 1);
        // Allowed is a hundredth of a CPU of ten that it would take: a thousandth of the time.
        let mut given = 0.0;
        let mut turn = 1.0;
        for _ in 0..200 {
            turn = governor.turns(10.0, 0.0, &[used(turn, 10.0)])[0];
            assert!(turn == 0.0 || (0.02..0.03).contains(&turn), "{turn}");
            given += turn;
        }
        assert!((0.15..=0.25).contains(&given), "{given}");
    }

    #[test]
    fn probes_that_hold_latches_have_a_limit_of_their_own() {
        let mut governor = Governor::new(0.01, 1);
        let usage = Usage { attached: 1.0, cpu: 0.02, held: 0.01 };
        assert_eq!(governor.turns(64.0, 0.0, &[usage]), [0.5]);
    }

    #[test]
    fn groups_get_what_others_leave() {
        let mut governor = Governor::new(0.01, 1);
        assert_eq!(governor.turns(2.0, 0.01, &[used(1.0, 0.02)]), [0.5]);
        // Others that take all of it leave what is always allowed.
        assert_eq!(Governor::new(0.01, 1).turns(2.0, 1.0, &[used(1.0, 2.0 * FLOOR)]), [0.5]);
    }

    #[test]
    fn an_idle_server_gets_no_probe_taken_off() {
        let mut governor = Governor::new(0.01, 1);
        assert_eq!(governor.turns(0.002, 0.0, &[used(1.0, 0.0003)]), [1.0]);
    }
}
