//! Measures how long the server's waiters spin on this machine.

use std::arch::asm;

use crate::attach::thread_time_ns;
use crate::audit::spin_hint;
use crate::catalog::{Table, Turns};
use crate::discovery::Variables;
use crate::measure::latch::Plan;
use crate::measure::spin::SpinSettings;
use crate::server::{Memory, Target};

/// The number of loop iterations per timing, and the number of timings.
const TURNS: u32 = 10_000;
const BATCHES: usize = 5;

/// What is needed to read a server's settings at any time, because they can be changed while it runs.
pub struct SpinReader {
    memory: Memory,
    /// The address in the process.
    delay: u64,
    rounds: u64,
    factor: Factor,
    mean_part: f64,
    instruction: Option<String>,
    turn_ns: f64,
}

/// The number of loop iterations per unit of the delay.
enum Factor {
    At { address: u64, divisor: u32 },
    BuiltIn(u32),
}

impl SpinReader {
    /// Finds the settings, and measures how long one iteration of this build's loop takes here. `None` if one of them
    /// is not found.
    pub fn new(target: &Target, plan: &Plan) -> Option<SpinReader> {
        let (image, settings) = (&target.image, target.family.spin?);
        let variables = Variables::new(image, &image.static_pointers(), Table::System);
        let system_variable = |name| Some(variables.variable(name)?.wrapping_add(target.bias));
        let factor = match &settings.turns {
            Turns::Variable(name) => Factor::At { address: system_variable(name)?, divisor: 1 },
            Turns::Global { symbol, divisor, built_in } => match image.symbol(symbol) {
                Some(global) => Factor::At { address: global.addr.wrapping_add(target.bias), divisor: *divisor },
                None => Factor::BuiltIn(*built_in),
            },
        };
        let spinning = plan.functions.iter().filter(|function| function.spins);
        let hint = spinning.filter_map(|f| spin_hint(image, f.range.clone())).map(|(_, text)| text).next();
        Some(SpinReader {
            memory: Memory::new(target.pid),
            delay: system_variable(settings.delay)?,
            rounds: system_variable(settings.rounds)?,
            factor,
            mean_part: settings.mean_part,
            turn_ns: turn_ns(hint.as_deref())?,
            instruction: hint,
        })
    }

    /// Reads the current settings; `None` if the server has ended.
    pub fn read(&self) -> Option<SpinSettings> {
        let factor = match self.factor {
            Factor::At { address, divisor } => self.memory.u32(address)? / divisor.max(1),
            Factor::BuiltIn(factor) => factor,
        };
        // Wider settings have the low half first.
        let delay = self.memory.u32(self.delay)?;
        Some(SpinSettings {
            instruction: self.instruction.clone(),
            turn_ns: self.turn_ns,
            delay,
            rounds: self.memory.u32(self.rounds)?,
            turns: f64::from(delay) * f64::from(factor) * self.mean_part,
        })
    }
}

/// Returns how long one iteration takes of a loop that executes only this instruction, in nanoseconds; `None` if
/// armtrace does not know the instruction.
fn turn_ns(hint: Option<&str>) -> Option<f64> {
    match hint {
        // SAFETY: the assembly is empty. The compiler does not know this, so the loop stays.
        None => Some(time_turns(|| unsafe { asm!("", options(nomem, nostack, preserves_flags)) })),
        #[cfg(target_arch = "x86_64")]
        Some("pause") => Some(time_turns(std::hint::spin_loop)),
        #[cfg(target_arch = "aarch64")]
        // SAFETY: waits for the instructions before it, and changes nothing.
        Some(text) if text.starts_with("isb") => {
            Some(time_turns(|| unsafe { asm!("isb", options(nomem, nostack, preserves_flags)) }))
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: a hint that changes nothing.
        Some(text) if text.starts_with("yield") => {
            Some(time_turns(|| unsafe { asm!("yield", options(nomem, nostack, preserves_flags)) }))
        }
        Some(_) => None,
    }
}

/// Returns the median over batches, which an interruption of one batch does not move.
fn time_turns(turn: impl Fn()) -> f64 {
    let mut batches = [0.0; BATCHES];
    for batch in &mut batches {
        let start = thread_time_ns();
        (0..TURNS).for_each(|_| turn());
        *batch = (thread_time_ns() - start) / f64::from(TURNS);
    }
    batches.sort_by(f64::total_cmp);
    batches[BATCHES / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_takes_longer_than_none() {
        let none = turn_ns(None).expect("a loop");
        let hint = if cfg!(target_arch = "x86_64") { "pause" } else { "isb" };
        let with = turn_ns(Some(hint)).expect("a hint");
        assert!(none > 0.0 && with > none, "{none} ns, {with} ns with {hint}");
        assert_eq!(turn_ns(Some("wfe")), None);
    }
}
