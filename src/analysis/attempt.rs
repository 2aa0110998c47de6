//! Determines which way a branch goes when the atomic instruction before it failed to take the latch. x86-64 only.

use crate::isa::x86::{self, Attempt, Part, ZeroUse};
use crate::isa::{Effect, Insn, Test};
use crate::symbols::Arch;

/// What a value of zero means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Zero {
    IsSuccess,
    IsFailure,
}

impl Zero {
    fn opposite(self) -> Zero {
        match self {
            Zero::IsSuccess => Zero::IsFailure,
            Zero::IsFailure => Zero::IsSuccess,
        }
    }
}

/// Returns whether the branch that ends the block `block` is taken after a failed attempt; `attempt` is the index of
/// the attempt's instruction. `None` where the block alone does not show it.
pub(super) fn is_taken_by_failure(block: &[Insn], attempt: usize) -> Option<bool> {
    let (branch, before) = block.split_last()?;
    let (at, behind) = (before.get(attempt)?, &before[attempt + 1..]);
    if at.arch != Arch::X86_64 {
        return None;
    }
    let mut outcome = Outcome::of(x86::attempt(at)?, &before[..attempt]);
    behind.iter().for_each(|insn| outcome.apply(insn));
    let zero = outcome.flag?;
    match branch.branch_test()? {
        (Test::Flags(x86::EQUAL), _) => Some(zero == Zero::IsFailure),
        (Test::Flags(x86::NOT_EQUAL), _) => Some(zero == Zero::IsSuccess),
        _ => None,
    }
}

/// Where the outcome of an attempt can be read.
#[derive(Default)]
struct Outcome {
    /// In the zero flag, which is set if the compared number is zero.
    flag: Option<Zero>,
    /// In the given number of low bytes of each register.
    registers: [Option<(Zero, u8)>; 16],
}

impl Outcome {
    /// Returns the outcome right after the attempt. A free latch is 0.
    fn of(attempt: Attempt, before: &[Insn]) -> Outcome {
        let mut outcome = Outcome::default();
        match attempt {
            Attempt::CompareExchange { bytes } => {
                outcome.flag = Some(Zero::IsSuccess);
                // If the comparison fails, the register receives the value that was in memory.
                if expects_zero(before) {
                    outcome.set(x86::RAX, Some((Zero::IsSuccess, bytes)));
                }
            }
            Attempt::Exchange(part) => outcome.set(part.register, Some((Zero::IsSuccess, part.bytes))),
        }
        outcome
    }

    fn set(&mut self, register: u8, value: Option<(Zero, u8)>) {
        self.registers[usize::from(register & 15)] = value;
    }

    /// Returns what it means if these bytes are zero.
    fn get(&self, part: Part) -> Option<Zero> {
        let (zero, bytes) = self.registers[usize::from(part.register & 15)]?;
        (bytes == part.bytes).then_some(zero)
    }

    fn apply(&mut self, insn: &Insn) {
        let (zero_use, written) = x86::zero_use(insn);
        let (flag, value) = match zero_use {
            ZeroUse::Tests(part) => (self.get(part), None),
            ZeroUse::TellsZero => (self.flag, self.flag.map(|zero| (zero.opposite(), 1))),
            ZeroUse::TellsNonzero => (self.flag, self.flag.map(|zero| (zero, 1))),
            ZeroUse::Moves { from, bytes } => (self.flag, self.get(from).map(|zero| (zero, bytes))),
            ZeroUse::Keeps => (self.flag, None),
            ZeroUse::Changes => (None, None),
        };
        self.flag = flag;
        written.into_iter().for_each(|register| self.set(register, value));
    }
}

/// Returns whether the register with a compare-and-exchange's expected value is set to zero.
fn expects_zero(before: &[Insn]) -> bool {
    let mut changes = Vec::new();
    before.iter().for_each(|insn| insn.effects(&mut changes));
    let mut zero = [false; 16];
    for change in changes {
        match change {
            Effect::Constant { to, value } => zero[usize::from(to & 15)] = value == 0,
            Effect::Copy { to, from, .. } => zero[usize::from(to & 15)] = zero[usize::from(from & 15)],
            Effect::Call | Effect::Unknown => zero = [false; 16],
            _ => change.written().into_iter().for_each(|to| zero[usize::from(to & 15)] = false),
        }
    }
    zero[usize::from(x86::RAX)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::decode_bytes;

    /// Tests a block of these parts, the second of which is the attempt.
    fn taken(before: &[u8], attempt: &[u8], behind: &[u8]) -> Option<bool> {
        let block = decode_bytes(Arch::X86_64, 0x1000, &[before, attempt, behind].concat());
        is_taken_by_failure(&block, decode_bytes(Arch::X86_64, 0x1000, before).len())
    }

    /// `lock cmpxchg %edx,(%rbx)`, and `xchg %edx,(%rbx)`
    const CMPXCHG: [u8; 4] = [0xf0, 0x0f, 0xb1, 0x13];
    const XCHG: [u8; 2] = [0x87, 0x13];
    /// `xor %eax,%eax`
    const ZERO: [u8; 2] = [0x31, 0xc0];

    #[test]
    fn the_flag_of_a_compare_and_exchange_tells() {
        let cases: &[(&[u8], Option<bool>, &str)] = &[
            (&[0x75, 0x10], Some(true), "jne"),
            (&[0x74, 0x10], Some(false), "je"),
            (&[0x77, 0x10], None, "ja"),
            (&[0x89, 0xc1, 0x75, 0x10], Some(true), "mov %eax,%ecx; jne"),
            (&[0x0f, 0x94, 0xc1, 0x84, 0xc9, 0x75, 0x10], Some(false), "sete %cl; test %cl,%cl; jne"),
            (&[0x0f, 0x95, 0xc1, 0x84, 0xc9, 0x75, 0x10], Some(true), "setne %cl; test %cl,%cl; jne"),
            (
                &[0x0f, 0x94, 0xc1, 0x0f, 0xb6, 0xc9, 0x85, 0xc9, 0x74, 0x10],
                Some(true),
                "sete; movzbl %cl,%ecx; test; je",
            ),
            (
                &[0x0f, 0x94, 0xc1, 0x85, 0xc9, 0x75, 0x10],
                None,
                "sete %cl; test %ecx,%ecx: the rest of it is not known",
            ),
            (&[0x85, 0xd2, 0x75, 0x10], None, "test %edx,%edx: something else"),
            (&[0x83, 0xc1, 0x01, 0x75, 0x10], None, "add $1,%ecx"),
        ];
        for (behind, expected, text) in cases {
            assert_eq!(taken(&ZERO, &CMPXCHG, behind), *expected, "{text}");
        }
    }

    #[test]
    fn what_was_there_tells_if_it_was_to_be_zero() {
        // test %eax,%eax; jne
        let behind = [0x85, 0xc0, 0x75, 0x10];
        assert_eq!(taken(&ZERO, &CMPXCHG, &behind), Some(true));
        // xor %ecx,%ecx; mov %ecx,%eax
        assert_eq!(taken(&[0x31, 0xc9, 0x89, 0xc8], &CMPXCHG, &behind), Some(true));
        // mov $1,%eax
        assert_eq!(taken(&[0xb8, 1, 0, 0, 0], &CMPXCHG, &behind), None);
        assert_eq!(taken(&[], &CMPXCHG, &behind), None);
        // xor %eax,%eax; mov %ecx,%eax
        assert_eq!(taken(&[0x31, 0xc0, 0x89, 0xc8], &CMPXCHG, &behind), None);
        // test %eax,%eax; mov %ecx,%eax; test %eax,%eax; jne
        assert_eq!(taken(&ZERO, &CMPXCHG, &[0x89, 0xc8, 0x85, 0xc0, 0x75, 0x10]), None);
    }

    #[test]
    fn what_an_exchange_found_tells() {
        let cases: &[(&[u8], Option<bool>, &str)] = &[
            (&[0x85, 0xd2, 0x75, 0x10], Some(true), "test %edx,%edx; jne"),
            (&[0x83, 0xfa, 0x00, 0x74, 0x10], Some(false), "cmp $0,%edx; je"),
            (&[0x83, 0xfa, 0x01, 0x74, 0x10], None, "cmp $1,%edx; je"),
            (&[0x84, 0xd2, 0x75, 0x10], None, "test %dl,%dl: a part of it"),
            (&[0x75, 0x10], None, "jne: an exchange sets no flag"),
        ];
        for (behind, expected, text) in cases {
            assert_eq!(taken(&[], &XCHG, behind), *expected, "{text}");
        }
        // lock addl $1,(%rbx); jne
        assert_eq!(taken(&[], &[0xf0, 0x83, 0x03, 0x01], &[0x75, 0x10]), None);
    }
}
