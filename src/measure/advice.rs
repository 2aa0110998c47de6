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
