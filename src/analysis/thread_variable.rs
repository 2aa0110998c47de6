//! Finds which variable of its thread a function returns.
//!
//! A program's own thread-local variables lie at a fixed distance from the thread pointer. The compiler and the linker
//! write that distance into the code, or into a slot that the loader fills, in several ways. A function that does
//! nothing but return such a variable shows it, also in a stripped program.

use super::function::Function;
use crate::isa::{Effect, Flow, Insn, ThreadEffect};
use crate::symbols::Image;

/// The register of a function's result: rax or x0.
const RESULT: usize = 0;

/// The distance of a thread's variable from the thread pointer, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ThreadOffset {
    /// This.
    Fixed(i64),
    /// What the eight bytes of static data at this link-time address say while the program runs.
    InSlot(u64),
    /// That of the variable which the C library keeps for the key in the four bytes at this link-time address.
    OfKey(u64),
}

/// What is known of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    Number(u64),
    /// The thread pointer plus a distance.
    Behind(ThreadOffset),
    /// What is in a slot.
    OfSlot(u64),
    /// A variable of the thread.
    Variable(ThreadOffset),
}

use ThreadOffset::{Fixed, InSlot};

/// Returns the variable of eight bytes that the function at `entry` returns. `None` if it returns something else, or if
/// its code takes a way that is not understood.
pub fn thread_variable(image: &Image, entry: u64) -> Option<ThreadOffset> {
    let range = image.function_at(entry).filter(|range| range.start == entry)?;
    returned(Function::new(image, range)?.insns())
}

/// Follows a function from its first instruction to the end. Where a branch leads to, nothing is known.
fn returned(insns: &[Insn]) -> Option<ThreadOffset> {
    let targets: Vec<u64> = insns
        .iter()
        .filter_map(|insn| match insn.flow {
            Flow::Branch(to) => Some(to),
            _ => None,
        })
        .collect();
    let mut registers = [None; 32];
    let mut effects = Vec::new();
    for insn in insns {
        if targets.contains(&insn.addr) {
            registers = [None; 32];
        }
        match insn.flow {
            Flow::Return => {
                let Some(Value::Variable(offset)) = registers[RESULT] else { return None };
                return Some(offset);
            }
            Flow::Jump(_) | Flow::IndirectJump | Flow::Trap => return None,
            Flow::Next | Flow::Branch(_) | Flow::Call(_) => {}
        }
        if let Some((to, value)) = insn.thread_effect().and_then(|effect| of_thread(&registers, effect)) {
            registers[to] = Some(value);
            continue;
        }
        effects.clear();
        insn.effects(&mut effects);
        effects.iter().for_each(|effect| apply(&mut registers, effect));
    }
    None
}

type Registers = [Option<Value>; 32];

fn of(registers: &Registers, register: u8) -> Option<Value> {
    registers.get(usize::from(register)).copied().flatten()
}

/// Returns which register an instruction writes that finds a variable of the thread, and what.
fn of_thread(registers: &Registers, effect: ThreadEffect) -> Option<(usize, Value)> {
    let (to, value) = match effect {
        ThreadEffect::Pointer { to } => (to, Value::Behind(Fixed(0))),
        ThreadEffect::Variable { to, index: None, offset } => (to, Value::Variable(Fixed(offset))),
        ThreadEffect::Variable { to, index: Some(index), offset } => {
            (to, Value::Variable(distance(of(registers, index)?, offset)?))
        }
        ThreadEffect::Indexed { to, base, index } => {
            let (base, index) = (of(registers, base)?, of(registers, index)?);
            let ((Value::Behind(Fixed(offset)), by) | (by, Value::Behind(Fixed(offset)))) = (base, index) else {
                return None;
            };
            (to, Value::Variable(distance(by, offset)?))
        }
        ThreadEffect::Add { to, from } => {
            let Some(Value::Behind(Fixed(0))) = of(registers, to) else { return None };
            (to, Value::Behind(InSlot(from)))
        }
    };
    (to < 32).then_some((usize::from(to), value))
}

/// Returns a distance that is a number, or in a slot.
fn distance(value: Value, plus: i64) -> Option<ThreadOffset> {
    match value {
        Value::Number(number) => Some(Fixed((number as i64).wrapping_add(plus))),
        Value::OfSlot(slot) if plus == 0 => Some(InSlot(slot)),
        _ => None,
    }
}

fn apply(registers: &mut Registers, effect: &Effect) {
    let value = match *effect {
        Effect::Constant { value, .. } => Some(Value::Number(value)),
        Effect::Copy { from, bytes: 8, .. } => of(registers, from),
        Effect::Offset { from, by, .. } => of(registers, from).and_then(|value| plus(value, by)),
        Effect::Insert { to, value, shift } => match of(registers, to) {
            Some(Value::Number(number)) => {
                let bits = |value: u64| value.checked_shl(shift.into()).unwrap_or(0);
                Some(Value::Number(number & !bits(0xffff) | bits(value.into())))
            }
            _ => None,
        },
        Effect::Load { base, offset, bytes: 8, .. } => match of(registers, base).and_then(|base| plus(base, offset)) {
            Some(Value::Number(slot)) => Some(Value::OfSlot(slot)),
            Some(Value::Behind(offset)) => Some(Value::Variable(offset)),
            _ => None,
        },
        Effect::Call | Effect::Unknown => {
            *registers = [None; 32];
            return;
        }
        _ => None,
    };
    if let Some(register) = effect.written().and_then(|to| registers.get_mut(usize::from(to))) {
        *register = value;
    }
}

fn plus(value: Value, by: i64) -> Option<Value> {
    match value {
        value if by == 0 => Some(value),
        Value::Number(number) => Some(Value::Number(number.wrapping_add_signed(by))),
        Value::Behind(Fixed(offset)) => Some(Value::Behind(Fixed(offset.wrapping_add(by)))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::decode_bytes;
    use crate::symbols::Arch;

    fn of(arch: Arch, bytes: &[u8]) -> Option<ThreadOffset> {
        returned(&decode_bytes(arch, 0x1000, bytes))
    }

    fn x86(code: &[&[u8]]) -> Option<ThreadOffset> {
        of(Arch::X86_64, &code.concat())
    }

    fn arm64(code: &[u32]) -> Option<ThreadOffset> {
        of(Arch::Aarch64, &code.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>())
    }

    const POINTER: &[u8] = &[0x64, 0x48, 0x8b, 0x04, 0x25, 0, 0, 0, 0];
    const PUSH: &[u8] = &[0x55];
    const POP: &[u8] = &[0x5d];
    const RET: &[u8] = &[0xc3];

    /// As the compilers of MariaDB 11.4, MySQL 8.0.12 and MySQL 9.7 wrote it, and as others do.
    #[test]
    fn x86_functions_return_variables_of_their_thread() {
        let found = x86(&[PUSH, POINTER, POP, &[0x48, 0x8b, 0x80, 0x70, 0xff, 0xff, 0xff], RET]);
        assert_eq!(found, Some(Fixed(-0x90)));
        let lea = &[0x48, 0x8d, 0x80, 0x38, 0xff, 0xff, 0xff];
        assert_eq!(x86(&[POINTER, lea, &[0x48, 0x8b, 0x00], RET]), Some(Fixed(-0xc8)));
        // je over a call; then: add slot(%rip),%rax; mov (%rax),%rax
        let prologue: [&[u8]; 2] = [&[0x74, 0x05], &[0xe8, 0, 0, 1, 0]];
        let body: [&[u8]; 4] = [POINTER, &[0x48, 0x03, 0x05, 0x10, 0, 0, 0], &[0x48, 0x8b, 0x00], RET];
        let slot = 0x1000 + 2 + 5 + 9 + 7 + 0x10;
        assert_eq!(x86(&[&prologue[..], &body].concat()), Some(InSlot(slot)));
        // mov slot(%rip),%rax; mov %fs:(%rax),%rax
        assert_eq!(x86(&[&[0x48, 0x8b, 0x05, 1, 0, 0, 0], &[0x64, 0x48, 0x8b, 0x00], RET]), Some(InSlot(0x1008)));
        assert_eq!(x86(&[&[0x64, 0x48, 0x8b, 0x04, 0x25, 0xf8, 0xff, 0xff, 0xff], RET]), Some(Fixed(-8)));
    }

    #[test]
    fn other_x86_functions_do_not() {
        // The address of the variable, its low half, and what it points to
        assert_eq!(x86(&[POINTER, &[0x48, 0x8d, 0x80, 0x38, 0xff, 0xff, 0xff], RET]), None);
        assert_eq!(x86(&[POINTER, &[0x8b, 0x40, 0xf8], RET]), None);
        assert_eq!(x86(&[POINTER, &[0x48, 0x8b, 0x40, 0xf8], &[0x48, 0x8b, 0x40, 0xf8], RET]), None);
        // A jump to pthread_getspecific, as in MySQL 5.7, and a call after which the register is unknown
        assert_eq!(x86(&[&[0x48, 0x8b, 0x05, 0, 0, 0, 0], &[0x8b, 0x38], &[0xe9, 0, 0, 1, 0]]), None);
        assert_eq!(x86(&[&[0x64, 0x48, 0x8b, 0x04, 0x25, 0xf8, 0xff, 0xff, 0xff], &[0xe8, 0, 0, 1, 0], RET]), None);
        // A branch over the load: je; mov %fs:-8,%rax
        assert_eq!(x86(&[&[0x74, 0x09], &[0x64, 0x48, 0x8b, 0x04, 0x25, 0xf8, 0xff, 0xff, 0xff], RET]), None);
        assert_eq!(x86(&[POINTER]), None);
    }

    /// As the linker wrote it in MariaDB 11.8 and MySQL 9.7, and as others do.
    #[test]
    fn arm64_functions_return_variables_of_their_thread() {
        let (mrs, ret, nop) = (0xd53b_d041, 0xd65f_03c0, 0xd503_201f);
        // movz x0,#0,lsl #16; movk x0,#0x10; ldr x0,[x1,x0]
        let number = [0xd2a0_0000, 0xf280_0200, nop];
        assert_eq!(arm64(&[&[mrs], &number[..], &[0xf860_6820, ret]].concat()), Some(Fixed(0x10)));
        assert_eq!(arm64(&[&number[..], &[mrs, 0xf860_6820, ret]].concat()), Some(Fixed(0x10)));
        // mrs x0; add x0,x0,#0,lsl #12; add x0,x0,#0x58; ldr x0,[x0]
        assert_eq!(arm64(&[0xd53b_d040, 0x9140_0000, 0x9101_6000, 0xf940_0000, ret]), Some(Fixed(0x58)));
        // adrp x0,0x2000; ldr x0,[x0,#8]; ldr x0,[x1,x0]
        assert_eq!(arm64(&[mrs, 0xb000_0000, 0xf940_0400, 0xf860_6820, ret]), Some(InSlot(0x2008)));
        // The address, and an unknown index
        assert_eq!(arm64(&[0xd53b_d040, 0x9101_6000, ret]), None);
        assert_eq!(arm64(&[mrs, 0xf860_6820, ret]), None);
    }
}
