//! The overhead budget: decides which groups of probes stay attached and which take turns.

use std::time::Duration;

use super::Costs;

/// The interval at which the budget is checked, called a period.
pub const PERIOD: Duration = Duration::from_secs(1);

/// The length of a cycle, in periods. A group that takes turns has one turn per cycle. Attaching and detaching costs
/// the server more than most turns do, because its threads stop while the kernel changes their code.
const CYCLE: u32 = 16;

/// The shortest useful turn, in periods. A group that is entitled to less has a turn only every few cycles.
const SHORTEST_TURN: f64 = 0.08;

/// A turn that cost this many times as much as the average is not a convoy more or less.
const STORM: f64 = 3.0;

/// The fraction of the budget that limits how long the probes of one group may run in threads that hold the latch they
/// waited for. Other threads wait for that latch meanwhile, so this time costs more than its CPU time.
const HELD_PART: f64 = 0.5;

/// The share of one CPU that probes may always take. A nearly idle server does not miss it, and taking turns would cost
/// as much.
const FLOOR: f64 = 0.002;

/// What probes may take from a server.
pub struct Budget {
    /// The share of the server's CPU time, 0 to 1.
    pub share: f64,
    /// The cost of a hit of each class of probe.
    pub costs: Costs,
    /// Returns the CPU time that other measurements have taken so far, in nanoseconds. CPU sampling takes a small,
    /// constant share; it has no turns, and the groups get the rest.
    pub others_ns: Box<dyn Fn() -> u64 + Send>,
}

/// What the probes of one group did in the last period.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// The share of the period for which they were attached, 0 to 1.
    pub attached: f64,
    /// What their hits cost the server, as a share of the period (1: a whole CPU): the time taken from its threads and
    /// the consequences of that.
    pub cpu: f64,
    /// The share of that cost in threads that held a latch.
    pub held: f64,
}

/// Keeps the probes within a share of the server's CPU time.
#[derive(Debug)]
pub struct Governor {
    budget: f64,
    /// The part of the budget that probes get once not all of them can stay attached.
    in_turns: f64,
    groups: Vec<Group>,
    /// The number of periods of this cycle so far. All groups begin their turns with the cycle.
    age: u32,
}

/// What a group would exceed if it were attached all the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::EnumIter, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Limit {
    /// The share of the server's CPU time.
    CpuTime,
    /// The same, by prices that are only assumed.
    AssumedPrice,
    /// The time in threads that hold a latch.
    HeldLatches,
}

impl Limit {
    /// Returns the value of the `reason` label.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// What a group may do in a period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Turn {
    /// Stay attached until further notice.
    Always,
    /// Be attached for this share of the period, from its beginning; 0 to 1.
    Part(f64),
}

#[derive(Clone, Debug)]
struct Group {
    /// What the group costs when attached all the time, learned from its last turns.
    full: Usage,
    /// How long it was attached in this cycle, in periods.
    used: f64,
    /// Unused time from earlier cycles that was too short for a turn, in periods.
    saved: f64,
    /// Whether its turn in this cycle is over.
    is_done: bool,
    /// Why it takes turns, if it does.
    limit: Option<Limit>,
}

impl Governor {
    /// Creates a governor for this many groups of probes, of which the last sees sleeps; `budget` is their share of the
    /// server's CPU time, 0 to 1. Once not all can stay attached, they get this part of it, 0 to 1.
    pub fn new(budget: f64, in_turns: f64, groups: usize) -> Governor {
        let group = Group { full: Usage::default(), used: 0.0, saved: 0.0, is_done: false, limit: None };
        Governor { budget, in_turns, groups: vec![group; groups], age: 0 }
    }

    /// Lets the next period begin a cycle.
    pub fn begin_cycle(&mut self) {
        self.age = 0;
    }

    /// Returns what the groups would exceed without the turns that were returned last; each limit once.
    pub fn limits(&self) -> impl Iterator<Item = Limit> + '_ {
        [Limit::CpuTime, Limit::HeldLatches]
            .into_iter()
            .filter(|limit| self.groups.iter().any(|g| g.limit == Some(*limit)))
    }

    /// Returns the next period's turns, one per group. In the period before, the server used `server_cpu` CPUs and
    /// other probes took `others` CPUs.
    pub fn turns(&mut self, server_cpu: f64, others: f64, usage: &[Usage]) -> Vec<Turn> {
        for (group, usage) in self.groups.iter_mut().zip(usage) {
            group.learn(usage);
        }
        let allowed = (self.budget * server_cpu - others).max(FLOOR);
        let held = HELD_PART * self.budget * server_cpu.max(1.0);
        let begins = self.age == 0;
        self.age = (self.age + 1) % CYCLE;
        let takes: Vec<f64> = self.groups.iter().map(|group| group.full.cpu).collect();
        let part = if takes.iter().sum::<f64>() > allowed { self.in_turns } else { 1.0 };
        let fair = fair_share(takes, part * allowed);
        self.groups.iter_mut().map(|group| group.turn(fair, held, begins)).collect()
    }
}

impl Group {
    /// Updates the group's cost, which is an average over its last turns: waits come in convoys, and each turn sees
    /// another number of them. A storm counts at once.
    fn learn(&mut self, usage: &Usage) {
        if usage.attached <= 0.0 {
            return;
        }
        let average = |old: f64, new: f64| if new > STORM * old { new } else { 0.7 * old + 0.3 * new };
        self.full.cpu = average(self.full.cpu, usage.cpu / usage.attached);
        self.full.held = average(self.full.held, usage.held / usage.attached);
    }

    /// Returns the group's turn; `begins` says whether a new cycle begins.
    fn turn(&mut self, fair: f64, held: f64, begins: bool) -> Turn {
        let within = |limit: f64, takes: f64| if takes > limit { limit / takes } else { 1.0 };
        let (by_cpu, by_held) = (within(fair, self.full.cpu), within(held, self.full.held));
        let share = by_cpu.min(by_held);
        self.limit = (share < 1.0).then_some(if by_cpu <= by_held { Limit::CpuTime } else { Limit::HeldLatches });
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

/// Returns the limit for each group that keeps the sum within `allowed`; the most expensive groups give way first.
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

    /// Returns a governor's turns, in periods, over some cycles. It has one group, which takes `takes` CPUs when
    /// attached, and a server that uses `server_cpu` CPUs.
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
        let mut governor = Governor::new(0.01, 1.0, 2);
        assert_eq!(governor.turns(2.0, 0.0, &[used(1.0, 0.015), used(1.0, 0.004)]), [Turn::Always; 2]);
    }

    #[test]
    fn the_dearest_gives_way_first() {
        let mut governor = Governor::new(0.01, 1.0, 3);
        let turns = governor.turns(2.0, 0.0, &[used(1.0, 0.1), used(1.0, 0.006), used(1.0, 0.002)]);
        assert_eq!(turns[1..], [Turn::Always; 2]);
        // 0.02 is allowed, and the others take 0.008 of it: this leaves 0.12 of a cycle.
        assert_eq!(turns[0], Turn::Part(1.0));
        let sum: f64 = given(&mut Governor::new(0.01, 1.0, 1), 1, 1.2, 0.1).iter().sum();
        assert!((sum - 0.12 * f64::from(CYCLE)).abs() < 1e-9, "{sum}");
    }

    #[test]
    fn once_not_all_can_stay_they_get_a_part() {
        let mut governor = Governor::new(0.01, 0.5, 2);
        assert_eq!(governor.turns(2.0, 0.0, &[used(1.0, 0.017), used(1.0, 0.002)]), [Turn::Always; 2]);
        let turns = governor.turns(2.0, 0.0, &[used(1.0, 0.1), used(1.0, 0.002)]);
        assert_eq!(turns[1], Turn::Always);
        let sum: f64 = given(&mut Governor::new(0.01, 0.5, 1), 1, 1.2, 0.1).iter().sum();
        assert!((sum - 0.06 * f64::from(CYCLE)).abs() < 1e-9, "{sum}");
    }

    #[test]
    fn a_group_has_one_turn_in_a_cycle() {
        // A third of what the group takes is allowed.
        let turns = given(&mut Governor::new(0.01, 1.0, 1), 3, 2.0, 0.06);
        let whole = CYCLE as usize / 3;
        for cycle in turns.chunks(CYCLE as usize) {
            assert!(cycle[..whole].iter().all(|turn| *turn == 1.0), "{turns:?}");
            assert!((cycle[whole] - 1.0 / 3.0).abs() < 1e-9, "{turns:?}");
            assert!(cycle[whole + 1..].iter().all(|turn| *turn == 0.0), "{turns:?}");
        }
    }

    #[test]
    fn a_storm_is_over_the_budget_for_no_longer_than_a_period() {
        let mut governor = Governor::new(0.01, 1.0, 1);
        assert_eq!(governor.turns(2.0, 0.0, &[used(1.0, 0.001)]), [Turn::Always]);
        // The group has already had more than its turn of this cycle.
        let storm: Vec<f64> = given(&mut governor, 1, 2.0, 0.8);
        let last = storm.len() - 1;
        assert!(storm[..last].iter().all(|turn| *turn == 0.0), "{storm:?}");
        assert!((storm[last] * 0.8 - 0.02 * f64::from(CYCLE)).abs() < 1e-9, "{storm:?}");
    }

    #[test]
    fn a_storm_is_forgotten_slowly() {
        let mut governor = Governor::new(0.01, 1.0, 1);
        given(&mut governor, 2, 2.0, 0.8);
        let after = given(&mut governor, 20, 2.0, 0.001);
        let periods = after.iter().position(|turn| *turn == 1.0).unwrap();
        assert!((3..=240).contains(&periods), "{after:?}");
        assert!(after[240..].iter().all(|turn| *turn == 1.0), "{after:?}");
    }

    #[test]
    fn turns_that_are_too_short_come_less_often() {
        // A hundredth of a CPU is allowed, and the group would take ten: a thousandth of the time.
        let turns = given(&mut Governor::new(0.001, 1.0, 1), 100, 10.0, 10.0);
        assert!(turns.iter().all(|turn| *turn == 0.0 || (SHORTEST_TURN..0.1).contains(turn)), "{turns:?}");
        let sum: f64 = turns.iter().sum();
        let due = 0.001 * 100.0 * f64::from(CYCLE);
        assert!((due - 0.1..=due + 0.1).contains(&sum), "{sum}");
    }

    #[test]
    fn probes_that_hold_latches_have_a_limit_of_their_own() {
        let mut governor = Governor::new(0.01, 1.0, 1);
        let usage = Usage { attached: 1.0, cpu: 0.02, held: 0.05 };
        let mut on = 0.0;
        assert_eq!(governor.limits().count(), 0);
        for _ in 0..CYCLE {
            let Turn::Part(turn) = governor.turns(1.0, 0.0, &[usage])[0] else { panic!("over the limit") };
            on += turn;
        }
        assert!((on - 0.1 * f64::from(CYCLE)).abs() < 1e-9, "{on}");
        assert_eq!(governor.limits().collect::<Vec<_>>(), [Limit::HeldLatches]);
        governor.turns(1.0, 0.0, &[used(1.0, 5.0)]);
        assert_eq!(governor.limits().collect::<Vec<_>>(), [Limit::CpuTime]);
    }

    #[test]
    fn groups_get_what_others_leave() {
        let share = |others, takes| {
            let mut governor = Governor::new(0.01, 1.0, 1);
            let turns = (0..CYCLE).map(|_| match governor.turns(2.0, others, &[used(1.0, takes)])[0] {
                Turn::Always => 1.0,
                Turn::Part(part) => part,
            });
            turns.sum::<f64>() / f64::from(CYCLE)
        };
        assert!((share(0.016, 0.02) - 0.2).abs() < 1e-9);
        // Even if others take the whole budget, the floor remains.
        assert!((share(1.0, 5.0 * FLOOR) - 0.2).abs() < 1e-9);
    }

    #[test]
    fn an_idle_server_gets_no_probe_taken_off() {
        let mut governor = Governor::new(0.01, 1.0, 1);
        assert_eq!(governor.turns(0.002, 0.0, &[used(1.0, 0.0003)]), [Turn::Always]);
    }
}
