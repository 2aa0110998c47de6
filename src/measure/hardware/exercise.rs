//! Executes known numbers of known instructions in this process.

use std::arch::asm;
use std::sync::atomic::AtomicU32;

use crate::catalog::Instruction;

/// Counts `$turns` down to 0, with these instructions in each iteration. `{word}` in them is the address of a word of
/// memory.
#[cfg(target_arch = "x86_64")]
macro_rules! turns {
    ($turns:expr, $word:expr $(, $instruction:literal)*) => {
        asm!(
            "/* {word} */",
            "2:",
            $($instruction,)*
            "sub {n}, 1",
            "jnz 2b",
            n = inout(reg) $turns => _,
            word = in(reg) $word,
            options(nostack),
        )
    };
}

/// The same for arm64; `{x}` and `{y}` are scratch registers.
#[cfg(target_arch = "aarch64")]
macro_rules! turns {
    ($turns:expr, $word:expr $(, $instruction:literal)*) => {
        asm!(
            "/* {word} {x} {y} */",
            "2:",
            $($instruction,)*
            "subs {n}, {n}, #1",
            "b.ne 2b",
            n = inout(reg) $turns => _,
            word = in(reg) $word,
            x = out(reg) _,
            y = out(reg) _,
            options(nostack),
        )
    };
}

/// Executes this instruction `times` times (1 or more), in a loop with two more instructions. `None` if it belongs to
/// the other architecture, or if this CPU does not have it.
pub fn execute(instruction: Instruction, times: u64) -> Option<()> {
    let word = AtomicU32::new(0);
    let word = word.as_ptr();
    // SAFETY: each loop ends, touches no memory but `word`, and names the registers that it changes.
    unsafe {
        match instruction {
            #[cfg(target_arch = "x86_64")]
            Instruction::LockedAdd => turns!(times, word, "lock add dword ptr [{word}], 1"),
            #[cfg(target_arch = "x86_64")]
            Instruction::Pause => turns!(times, word, "pause"),
            #[cfg(target_arch = "x86_64")]
            Instruction::Lfence => turns!(times, word, "lfence"),
            #[cfg(target_arch = "aarch64")]
            Instruction::Dmb => turns!(times, word, "dmb ish"),
            #[cfg(target_arch = "aarch64")]
            Instruction::Dsb => turns!(times, word, "dsb ish"),
            #[cfg(target_arch = "aarch64")]
            Instruction::Isb => turns!(times, word, "isb"),
            #[cfg(target_arch = "aarch64")]
            Instruction::LoadAcquire => turns!(times, word, "ldar {x:w}, [{word}]"),
            #[cfg(target_arch = "aarch64")]
            Instruction::StoreRelease => turns!(times, word, "stlr wzr, [{word}]"),
            #[cfg(target_arch = "aarch64")]
            Instruction::Exclusives => turns!(times, word, "ldxr {x:w}, [{word}]", "stxr {y:w}, {x:w}, [{word}]"),
            #[cfg(target_arch = "aarch64")]
            Instruction::FailedExclusive => turns!(times, word, "clrex", "stxr {y:w}, wzr, [{word}]"),
            #[cfg(target_arch = "aarch64")]
            Instruction::CompareAndSwap if std::arch::is_aarch64_feature_detected!("lse") => {
                // The word is 0, is compared with 0 and becomes 0.
                turns!(times, word, ".arch_extension lse", "mov {x:w}, wzr", "cas {x:w}, wzr, [{word}]")
            }
            _ => return None,
        }
    }
    Some(())
}

/// Runs the loop alone: [`INSTRUCTIONS_A_TURN`] instructions per iteration.
pub fn turn(times: u64) {
    // SAFETY: the loop ends and touches no memory.
    unsafe { turns!(times, std::ptr::null::<u32>()) }
}

pub const INSTRUCTIONS_A_TURN: u64 = 2;

/// Executes `times` branches over one instruction: on random bits or, without `random`, always in the same direction.
pub fn branch(times: u64, random: bool) {
    let mut bits = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..times {
        // Marsaglia's xorshift, which has no pattern that a CPU could learn.
        bits ^= bits << 13;
        bits ^= bits >> 7;
        bits ^= bits << 17;
        let bit = bits & u64::from(random);
        // SAFETY: jumps over an instruction that does nothing.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            asm!("test {bit}, 1", "jz 2f", "nop", "2:", bit = in(reg) bit, options(nomem, nostack));
            #[cfg(target_arch = "aarch64")]
            asm!("tbz {bit}, #0, 2f", "nop", "2:", bit = in(reg) bit, options(nomem, nostack, preserves_flags));
        }
    }
}

/// Writes a line of memory back and evicts it from all caches.
pub fn flush(line: *const u8) {
    // SAFETY: the instructions change no value at any mapped address, and the address belongs to the caller.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        asm!("clflush [{line}]", line = in(reg) line, options(nostack, preserves_flags));
        #[cfg(target_arch = "aarch64")]
        asm!("dc civac, {line}", line = in(reg) line, options(nostack, preserves_flags));
    }
}

/// Waits until all previous flushes are done.
pub fn flushed() {
    // SAFETY: the instructions are only barriers.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        asm!("mfence", options(nostack, preserves_flags));
        #[cfg(target_arch = "aarch64")]
        asm!("dsb ish", options(nostack, preserves_flags));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::{decode_bytes, Flow, Insn};
    use crate::symbols::Arch;

    /// Returns the instructions per iteration of each loop of [`execute`].
    fn loops() -> Vec<Vec<Insn>> {
        const LENGTH: usize = 4096;
        let begin = execute as *const u8;
        // SAFETY: this is the program's own code, and far more than this follows any of its own functions.
        let bytes = unsafe { std::slice::from_raw_parts(begin, LENGTH) };
        let code = decode_bytes(Arch::HOST, begin as u64, bytes);
        let turn = |end: usize| {
            let Flow::Branch(to) = code[end].flow else { return None };
            let first = code
                .iter()
                .position(|insn| insn.addr == to)
                .filter(|first| (1..6).contains(&(end.wrapping_sub(*first))))?;
            Some(code[first..=end].to_vec())
        };
        (0..code.len()).filter_map(turn).collect()
    }

    fn has_loop_of(expected: &[&str]) -> bool {
        loops().iter().any(|turn| {
            let names = turn.iter().map(Insn::text);
            turn.len() == expected.len() && names.zip(expected).all(|(text, begin)| text.starts_with(begin))
        })
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn loops_execute_what_they_are_named_after() {
        for instruction in ["lock add", "pause", "lfence"] {
            assert!(has_loop_of(&[instruction, "sub", "jne"]), "{instruction}: {:#?}", loops());
        }
        assert!(!has_loop_of(&["mfence", "sub", "jne"]));
    }

    #[cfg(target_arch = "aarch64")]
    #[test]
    fn loops_execute_what_they_are_named_after() {
        for instructions in [
            &["dmb ish"][..],
            &["dsb ish"],
            &["isb"],
            &["ldar"],
            &["stlr"],
            &["ldxr", "stxr"],
            &["clrex", "stxr"],
            &["mov", "cas"],
        ] {
            let turn = [instructions, &["subs", "b.ne"]].concat();
            assert!(has_loop_of(&turn), "{instructions:?}: {:#?}", loops());
        }
        assert!(!has_loop_of(&["dmb ld", "subs", "b.ne"]));
    }

    #[test]
    fn all_instructions_of_an_architecture_are_executed() {
        let x86 = [Instruction::LockedAdd, Instruction::Pause, Instruction::Lfence];
        let arm = [
            Instruction::Dmb,
            Instruction::Dsb,
            Instruction::Isb,
            Instruction::LoadAcquire,
            Instruction::StoreRelease,
            Instruction::Exclusives,
            Instruction::FailedExclusive,
        ];
        assert!(x86.iter().all(|i| execute(*i, 1000).is_some() == cfg!(target_arch = "x86_64")));
        assert!(arm.iter().all(|i| execute(*i, 1000).is_some() == cfg!(target_arch = "aarch64")));
        turn(1000);
        branch(1000, true);
        branch(1000, false);
    }
}
