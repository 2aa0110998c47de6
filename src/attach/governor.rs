//! The overhead budget: which groups of probes stay attached all the time, and which only take turns.

use std::time::Duration;

use super::Costs;

/// How often the budget is looked at.
pub const PERIOD: Duration = Duration::from_secs(1);

/// How many periods a cycle has. In each cycle a group that takes turns has one: to attach and to detach costs the server more
/// than most turns do, since its threads stand still where the kernel changes the code that they run.
const CYCLE: u32 = 4;
pub const CYCLE_TIME: Duration = PERIOD.saturating_mul(CYCLE);

/// The shortest turn that tells something, in periods. A group that may have less than that has its turn less often than
/// in each cycle.
const SHORTEST_TURN: f64 = 0.08;

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
    /// What their hits cost the server, as a share of the period (1: a whole CPU): what they took from its threads, and what
    /// comes of that.
    pub cpu: f64,
    /// What they took in threads that had a latch.
    pub held: f64,
}

/// Keeps the probes within a share of the server's CPU time.
#[derive(Debug)]
pub struct Governor {
    budget: f64,
    groups: Vec<Group>,
    /// Periods of this cycle so far; all groups' turns begin with a cycle.
    age: u32,
}

/// What a group may do in a period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Turn {
    /// As long as nothing else is said.
    Always,
    /// For so much of it, from its beginning on; 0 to 1.
    Part(f64),
}

#[derive(Clone, Debug)]
struct Group {
    /// What the group takes when it is attached all the time; known from its last turns.
    full: Usage,
    /// For how long it was attached in this cycle, in periods.
    used: f64,
    /// What earlier cycles left it, too little for a turn, in periods.
    saved: f64,
    /// Its turn in this cycle is over.
    is_done: bool,
}

impl Governor {
    /// For this many groups of probes; `budget` is their share of the server's CPU time, 0 to 1.
    pub fn new(budget: f64, groups: usize) -> Governor {
        let group = Group { full: Usage::default(), used: 0.0, saved: 0.0, is_done: false };
        Governor { budget, groups: vec![group; groups], age: 0 }
    }

    /// The next period's turns, one per group, after a period in which the server used `server_cpu` CPUs and other probes took
    /// `others` of them.
    pub fn turns(&mut self, server_cpu: f64, others: f64, usage: &[Usage]) -> Vec<Turn> {
        for (group, usage) in self.groups.iter_mut().zip(usage) {
            group.learn(usage);
        }
        let allowed = (self.budget * server_cpu - others).max(FLOOR);
        let fair = fair_share(self.groups.iter().map(|g| g.full.cpu).collect(), allowed);
        let held = HELD_PART * self.budget;
        let begins = self.age == 0;
        self.age = (self.age + 1) % CYCLE;
        self.groups.iter_mut().map(|group| group.turn(fair, held, begins)).collect()
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

    /// `begins`: a cycle does.
    fn turn(&mut self, fair: f64, held: f64, begins: bool) -> Turn {
        let within = |limit: f64, takes: f64| if takes > limit { limit / takes } else { 1.0 };
        let share = within(fair, self.full.cpu).min(within(held, self.full.held));
        if begins {
            (self.used, self.is_done) = (0.0, false);
        }
        if share >= 1.0 {
            (self.used, self.saved) = (self.used + 1.0, 0.0);
            return Turn::Always;
        }
        let due = share * f64::from(CYCLE) + self.saved - self.used;
        if self.used == 0.0 && due < SHORTEST_TURN && !self.is_done {
            self.saved = due;
            self.is_done = true;
        }
        if self.is_done || due <= 0.0 {
            self.is_done = true;
            return Turn::Part(0.0);
        }
        let turn = due.min(1.0);
        self.used += turn;
        if turn < 1.0 {
            (self.saved, self.is_done) = (0.0, true);
        }
        Turn::Part(turn)
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

    /// A governor's turns over so many cycles for one group that takes `takes` CPUs when attached, in periods; of a server with
    /// `server_cpu` CPUs.
    fn given(governor: &mut Governor, cycles: u32, server_cpu: f64, takes: f64) -> Vec<f64> {
        let mut turn = 1.0;
        let next = |_| {
            turn = match governor.turns(server_cpu, 0.0, &[used(turn, takes)])[0] {
                Turn::Always => 1.0,
                Turn::Part(part) => part,
            };
            turn
        };
        (0..cycles * CYCLE).map(next).collect()
    }

    #[test]
    fn within_the_budget_everything_stays_attached() {
        let mut governor = Governor::new(0.01, 2);
        assert_eq!(governor.turns(2.0, 0.0, &[used(1.0, 0.015), used(1.0, 0.004)]), [Turn::Always; 2]);
    }

    #[test]
    fn the_dearest_gives_way_first() {
        let mut governor = Governor::new(0.01, 3);
        let turns = governor.turns(2.0, 0.0, &[used(1.0, 0.1), used(1.0, 0.006), used(1.0, 0.002)]);
        assert_eq!(turns[1..], [Turn::Always; 2]);
        // 0.02 allowed, less 0.008 of the others: 0.12 of four periods.
        let Turn::Part(turn) = turns[0] else { panic!("{turns:?}") };
        assert!((turn - 0.48).abs() < 1e-9, "{turn}");
    }

    #[test]
    fn a_group_has_one_turn_in_a_cycle() {
        // Allowed is a third of what it takes.
        let turns = given(&mut Governor::new(0.01, 1), 3, 2.0, 0.06);
        for cycle in turns.chunks(4) {
            assert_eq!((cycle[0], cycle[2], cycle[3]), (1.0, 0.0, 0.0), "{turns:?}");
            assert!((cycle[1] - 1.0 / 3.0).abs() < 1e-9, "{turns:?}");
        }
    }

    #[test]
    fn a_storm_is_over_the_budget_for_no_longer_than_a_period() {
        let mut governor = Governor::new(0.01, 1);
        assert_eq!(governor.turns(2.0, 0.0, &[used(1.0, 0.001)]), [Turn::Always]);
        // It has had more than its turn of this cycle already.
        let storm: Vec<f64> = given(&mut governor, 1, 2.0, 0.8);
        assert_eq!(storm[..3], [0.0; 3], "{storm:?}");
        assert!((storm[3] * 0.8 - 0.02 * 4.0).abs() < 1e-9, "{storm:?}");
    }

    #[test]
    fn a_storm_is_forgotten_slowly() {
        let mut governor = Governor::new(0.01, 1);
        given(&mut governor, 2, 2.0, 0.8);
        let after = given(&mut governor, 20, 2.0, 0.001);
        let periods = after.iter().position(|turn| *turn == 1.0).unwrap();
        assert!((3..=60).contains(&periods), "{after:?}");
        assert!(after[60..].iter().all(|turn| *turn == 1.0), "{after:?}");
    }

    #[test]
    fn turns_that_are_too_short_come_less_often() {
        // Allowed is a hundredth of a CPU of ten that it would take: a thousandth of the time.
        let turns = given(&mut Governor::new(0.001, 1), 100, 10.0, 10.0);
        assert!(turns.iter().all(|turn| *turn == 0.0 || (SHORTEST_TURN..0.1).contains(turn)), "{turns:?}");
        let sum: f64 = turns.iter().sum();
        assert!((0.3..=0.5).contains(&sum), "{sum}");
    }

    #[test]
    fn probes_that_hold_latches_have_a_limit_of_their_own() {
        let mut governor = Governor::new(0.01, 1);
        let usage = Usage { attached: 1.0, cpu: 0.02, held: 0.05 };
        let Turn::Part(turn) = governor.turns(64.0, 0.0, &[usage])[0] else { panic!("over the limit") };
        assert!((turn - 0.4).abs() < 1e-9, "{turn}");
    }

    #[test]
    fn groups_get_what_others_leave() {
        let turn = |others, takes| match Governor::new(0.01, 1).turns(2.0, others, &[used(1.0, takes)])[0] {
            Turn::Always => 4.0,
            Turn::Part(part) => part,
        };
        assert!((turn(0.016, 0.02) - 0.8).abs() < 1e-9);
        // Others that take all of it leave what is always allowed.
        assert!((turn(1.0, 5.0 * FLOOR) - 0.8).abs() < 1e-9);
    }

    #[test]
    fn an_idle_server_gets_no_probe_taken_off() {
        let mut governor = Governor::new(0.01, 1);
        assert_eq!(governor.turns(0.002, 0.0, &[used(1.0, 0.0003)]), [Turn::Always]);
    }
}
