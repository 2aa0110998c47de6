//! Finds by which key of the C library a function gets a variable of its thread.
//!
//! Older servers (MySQL up to 5.7, MariaDB up to 10.4) ask the C library for the session of the calling thread
//! (`pthread_getspecific`), by a key that they got from it at the start.

use super::calls::import_called;
use super::function::Function;
use super::values::Convention;
use crate::isa::{Effect, Flow, Insn};
use crate::symbols::{Arch, Image};

/// The function of the C library that returns a thread's variable.
const GETTER: &str = "pthread_getspecific";

/// What is known of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    Number(u64),
    /// The four bytes at this link-time address.
    At(u64),
}

/// What the code refers to.
struct Refers<'a> {
    arch: Arch,
    /// Returns what an entry of the global offset table points to.
    entry: &'a dyn Fn(u64) -> Option<u64>,
    /// Whether the function at an address is the one that returns a thread's variable.
    is_getter: &'a dyn Fn(u64) -> bool,
}

/// Returns the link-time address of the key, four bytes long, with which the function at `entry` gets a variable of its
/// thread. `None` if it gets none, or several, or if its code is not understood.
pub fn thread_key(image: &Image, entry: u64) -> Option<u64> {
    let range = image.function_at(entry).filter(|range| range.start == entry)?;
    let refers = Refers {
        arch: image.arch(),
        entry: &|slot| image.got_entry(slot),
        is_getter: &|to| import_called(image, to) == Some(GETTER),
    };
    key(Function::new(image, range)?.insns(), &refers)
}

/// Follows a function from its first instruction to the last. Where a branch leads to, nothing is known.
fn key(insns: &[Insn], refers: &Refers<'_>) -> Option<u64> {
    let argument = usize::from(Convention::of(refers.arch).arguments[0]);
    let to = |insn: &Insn| match insn.flow {
        Flow::Branch(to) | Flow::Jump(to) => Some(to),
        _ => None,
    };
    let targets: Vec<u64> = insns.iter().filter_map(to).collect();
    let mut registers = [None; 32];
    let mut effects = Vec::new();
    let mut found = None;
    for insn in insns {
        if targets.contains(&insn.addr) {
            registers = [None; 32];
        }
        if let Flow::Call(Some(to)) | Flow::Jump(to) = insn.flow {
            if (refers.is_getter)(to) {
                let Some(Value::At(key)) = registers[argument] else { return None };
                if found.replace(key).is_some_and(|other| other != key) {
                    return None;
                }
            }
        }
        if !matches!(insn.flow, Flow::Next | Flow::Branch(_)) {
            registers = [None; 32];
            continue;
        }
        effects.clear();
        insn.effects(&mut effects);
        effects.iter().for_each(|effect| apply(&mut registers, effect, refers));
    }
    found
}

fn apply(registers: &mut [Option<Value>; 32], effect: &Effect, refers: &Refers<'_>) {
    let number = |register: u8, by: i64| match registers.get(usize::from(register)) {
        Some(Some(Value::Number(number))) => Some(number.wrapping_add_signed(by)),
        _ => None,
    };
    let value = match *effect {
        Effect::Constant { value, .. } => Some(Value::Number(value)),
        Effect::Copy { from, .. } => registers.get(usize::from(from)).copied().flatten(),
        Effect::Offset { from, by, .. } => number(from, by).map(Value::Number),
        Effect::Load { base, offset, bytes: 8, .. } => number(base, offset).and_then(refers.entry).map(Value::Number),
        Effect::Load { base, offset, bytes: 4, .. } => number(base, offset).map(Value::At),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::decode_bytes;

    /// The address of the stub, and of the global offset table's entry with the key's address.
    const STUB: u64 = 0x9000;
    const ENTRY: u64 = 0x2008;
    const KEY: u64 = 0x5550;

    fn of(arch: Arch, bytes: &[u8]) -> Option<u64> {
        let entry = |slot| (slot == ENTRY).then_some(KEY);
        let refers = Refers { arch, entry: &entry, is_getter: &|to| to == STUB };
        key(&decode_bytes(arch, 0x1000, bytes), &refers)
    }

    fn x86(code: &[&[u8]]) -> Option<u64> {
        of(Arch::X86_64, &code.concat())
    }

    fn arm64(code: &[u32]) -> Option<u64> {
        of(Arch::Aarch64, &code.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>())
    }

    /// Returns a call (0xe8) or a jump (0xe9) from this address to another one.
    fn to(opcode: u8, from: u64, to: u64) -> Vec<u8> {
        let distance = to.wrapping_sub(from + 5) as u32;
        [&[opcode], &distance.to_le_bytes()[..]].concat()
    }

    /// As the compilers of MySQL 5.7 and MariaDB 10.2 wrote it.
    #[test]
    fn x86_functions_show_their_key() {
        // mov entry(%rip),%rax; push %rbp; mov %rsp,%rbp; mov (%rax),%edi; leave; jmp
        let through_table: [&[u8]; 5] =
            [&[0x48, 0x8b, 0x05, 1, 0x10, 0, 0], &[0x55], &[0x48, 0x89, 0xe5], &[0x8b, 0x38], &[0xc9]];
        assert_eq!(x86(&[&through_table.concat(), &to(0xe9, 0x100e, STUB)]), Some(KEY));
        // mov key(%rip),%edi; call; mov 0x98(%rax),%rsi; ret
        let direct: &[u8] = &[0x8b, 0x3d, 0xfa, 0x0f, 0, 0];
        let rest: &[u8] = &[0x48, 0x8b, 0xb0, 0x98, 0, 0, 0, 0xc3];
        let call = to(0xe8, 0x1006, STUB);
        assert_eq!(x86(&[direct, &call, rest]), Some(0x2000));
        // The same key twice
        assert_eq!(x86(&[direct, &call, &[0x8b, 0x3d, 0xef, 0x0f, 0, 0], &to(0xe8, 0x1011, STUB)]), Some(0x2000));
    }

    #[test]
    fn x86_functions_without_one_key_show_none() {
        let direct: &[u8] = &[0x8b, 0x3d, 0xfa, 0x0f, 0, 0];
        let call = to(0xe8, 0x1006, STUB);
        // Another function, the number 5, a pointer that is not in the table, and a call in between
        assert_eq!(x86(&[direct, &to(0xe8, 0x1006, 0x8000), &[0xc3]]), None);
        assert_eq!(x86(&[&[0xbf, 5, 0, 0, 0], &to(0xe8, 0x1005, STUB), &[0xc3]]), None);
        assert_eq!(x86(&[&[0x48, 0x8b, 0x05, 0, 0, 0, 0], &[0x8b, 0x38], &to(0xe8, 0x1009, STUB)]), None);
        assert_eq!(x86(&[direct, &to(0xe8, 0x1006, 0x8000), &to(0xe8, 0x100b, STUB), &[0xc3]]), None);
        // A branch to the call, and two keys
        assert_eq!(x86(&[&[0x74, 0x06], direct, &to(0xe8, 0x1008, STUB), &[0xc3]]), None);
        let other: &[u8] = &[0x8b, 0x3d, 0xf0, 0x0f, 0, 0];
        assert_eq!(x86(&[direct, &call, other, &to(0xe8, 0x1011, STUB), &[0xc3]]), None);
    }

    #[test]
    fn arm64_functions_show_their_key() {
        let branch = |from: u64| 0x1400_0000 | ((STUB - from) / 4) as u32;
        // adrp x0,0x2000; ldr x0,[x0,#8]; ldr w0,[x0]; b
        assert_eq!(arm64(&[0xb000_0000, 0xf940_0400, 0xb940_0000, branch(0x100c)]), Some(KEY));
        // adrp x0,0x2000; ldr w0,[x0,#16]; bl
        assert_eq!(arm64(&[0xb000_0000, 0xb940_1000, branch(0x1008) | 1 << 31, 0xd65f_03c0]), Some(0x2010));
        assert_eq!(arm64(&[0xb000_0000, 0xf940_0800, 0xb940_0000, branch(0x100c)]), None);
    }
}
