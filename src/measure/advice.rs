//! Derives advice for a server's administrator from the figures: one line each, with the evidence.

use crate::measure::checksum::Checksum;
use crate::measure::cpu::CpuTime;
use crate::measure::latch::LatchWaits;
use crate::measure::spin::SpinSettings;
use crate::measure::Snapshot;
use crate::model::{CpuClass, Kind};
use crate::present::format;
use crate::present::names::short_names;

/// The fewest spins on which advice on spinning is based.
const MIN_SPINS: u64 = 1000;
/// The least share of the CPU time spent spinning at which less spinning would gain anything.
const MUCH_CPU: f64 = 0.02;
/// The least share of spins ending in a sleep at which spinning counts as failing.
const MOST: f64 = 0.5;

/// The figures that advice is derived from, all over the same time.
pub struct Figures<'a> {
    /// Contended waits by latch.
    pub latches: &'a [LatchWaits],
    /// CPU time by function; empty if it was not sampled.
    pub cpu: &'a [CpuTime],
    /// The implementations of checksums that the server has chosen.
    pub checksums: &'a [Checksum],
    /// How long waiters spin; `None` if it is not known.
    pub spin: Option<&'a SpinSettings>,
}

impl<'a> From<&'a Snapshot> for Figures<'a> {
    fn from(snapshot: &'a Snapshot) -> Figures<'a> {
        Figures {
            latches: &snapshot.latch.waits,
            cpu: &snapshot.cpu.time,
            checksums: &snapshot.checksum.chosen,
            spin: snapshot.spin.as_ref(),
        }
    }
}

/// Returns the advice on a server, the most certain first.
pub fn advice(figures: &Figures) -> Vec<String> {
    slow_checksums(figures).chain(spin_length(figures)).collect()
}

/// Advises on checksums that are computed in software although the CPU has an instruction for them.
fn slow_checksums<'a>(figures: &'a Figures) -> impl Iterator<Item = String> + 'a {
    figures.checksums.iter().filter(|checksum| checksum.is_slow()).map(|checksum| {
        let gain = share(figures.cpu, checksum.cpu_ns(figures.cpu));
        let gain = gain.map_or_else(String::new, |share| format!(": about {} of CPU to gain", format::percent(share)));
        format!("hardware CRC available, not used for {} ({}){gain}", checksum.purpose, checksum.function)
    })
}

/// Returns `ns` as a share of the server's CPU time, 0 to 1, or `None` if CPU time is not sampled.
fn share(cpu: &[CpuTime], ns: u64) -> Option<f64> {
    let all = CpuTime::sum(cpu.iter());
    (all > 0).then(|| ns as f64 / all as f64)
}

/// Advises on whether waiters for the latch with the most spins should spin longer or shorter.
fn spin_length(figures: &Figures) -> Option<String> {
    let spin = figures.spin.filter(|spin| spin.budget_ns() > 0.0)?;
    let latches = figures.latches.iter().filter(|latch| latch.kind != Kind::Cond);
    let latch = latches.max_by_key(|latch| latch.spins())?;
    let spins = latch.spins();
    let wasted = latch.spins_wasted as f64 / spins.max(1) as f64;
    if spins < MIN_SPINS || wasted < MOST {
        return None;
    }
    let spinning = CpuTime::sum(figures.cpu.iter().filter(|row| row.class == CpuClass::Spin));
    let median = latch.waits.quantile_ns(0.5)?;
    let what = match share(figures.cpu, spinning) {
        // The latch is often released soon after its waiter gave up spinning.
        _ if median < 2.0 * spin.budget_ns() => "too short: ".to_owned(),
        Some(cpu) if cpu >= MUCH_CPU => format!("too long: {} of the CPU time, and ", format::percent(cpu)),
        _ => return None,
    };
    Some(format!("spinning is {what}{}", evidence(latch, wasted, median, spin)))
}

fn evidence(latch: &LatchWaits, wasted: f64, median: f64, spin: &SpinSettings) -> String {
    let name = short_names([latch.latch.as_str()], 40).remove(latch.latch.as_str()).unwrap_or_default();
    format!(
        "{:.0}% of the spins for {name} end asleep; half of its waits take more than {}, spinning ends after {} \
         (innodb_spin_wait_delay {}, innodb_sync_spin_loops {})",
        100.0 * wasted,
        format::nanoseconds(median),
        format::nanoseconds(spin.budget_ns()),
        spin.delay,
        spin.rounds,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Histogram, Mode};

    /// Spinning ends after 100 ns.
    const SPIN: SpinSettings = SpinSettings { instruction: None, turn_ns: 10.0, delay: 6, rounds: 5, turns: 2.0 };

    /// A latch of which half of the waits take no more than this, a bound of the histogram's buckets.
    fn latch(spins_won: u64, spins_wasted: u64, median_ns: u64) -> LatchWaits {
        let mut waits = Histogram { count: 2, max_ns: median_ns, ..Histogram::default() };
        waits.buckets[0] = 2;
        LatchWaits {
            latch: "wait/synch/mutex/innodb/trx_mutex".to_owned(),
            kind: Kind::Mutex,
            mode: Mode::None,
            waits,
            sleep_ns: 0,
            sleeps: 0,
            spin_cpu_ns: 0,
            spins_won,
            spins_wasted,
            estimated_ns: 0,
            variance_us2: 0,
        }
    }

    /// Returns the advice where this much of 1000 ns of CPU time is spent spinning.
    fn advised(latches: &[LatchWaits], spinning: u64) -> Vec<String> {
        let row = |class, ns| CpuTime { class, function: String::new(), ns };
        let cpu = [row(CpuClass::Spin, spinning), row(CpuClass::Other, 1000 - spinning)];
        advice(&Figures { latches, cpu: &cpu, checksums: &[], spin: Some(&SPIN) })
    }

    #[test]
    fn spinning_fails_from_half_of_a_thousand_spins_on() {
        let is_too_short = |won, wasted| advised(&[latch(won, wasted, 100)], 0) != [""; 0];
        assert!(is_too_short(500, 500) && is_too_short(0, 1000));
        assert!(!is_too_short(501, 500), "most are won");
        assert!(!is_too_short(499, 500), "too few to tell");
    }

    #[test]
    fn long_spinning_is_pointed_out_where_it_costs_and_short_waits_come_first() {
        let of = |median_ns, spinning| advised(&[latch(0, 1000, median_ns)], spinning).concat();
        // Half of the waits take no more than half of the longest.
        assert!(of(398, 20).starts_with("spinning is too short: 100%"), "{}", of(398, 20));
        assert!(of(400, 20).starts_with("spinning is too long: 2.00% of the CPU time"), "{}", of(400, 20));
        assert_eq!(of(400, 19), "");
    }

    #[test]
    fn the_latch_with_the_most_spins_decides_but_no_condition_variable() {
        let condition = LatchWaits { kind: Kind::Cond, ..latch(9000, 0, 100) };
        assert_eq!(advised(&[latch(0, 1000, 100), condition], 0).len(), 1);
        assert_eq!(advised(&[latch(0, 1000, 100), latch(9000, 0, 100)], 0), [""; 0]);
    }
}
