//! x86-64: the classes by mnemonic and operands, as iced-x86 decodes them (Intel SDM, volume 2).

use std::sync::LazyLock;

use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};

use crate::isa::class::{distinct, id, Class, ClassId, Classified, Group};

/// What an instruction must have in addition to its mnemonic.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Any,
    /// The `lock` prefix.
    Locked,
    /// The prefix, with ordering as the only effect: the instruction adds 0 to the top of the stack or something near
    /// it. Compilers prefer it to `mfence`.
    LockedNothing,
    /// An operand in memory, which makes `xchg` an atomic.
    Memory,
}

struct Row {
    mnemonic: Mnemonic,
    form: Form,
    class: Class,
}

const fn row(mnemonic: Mnemonic, form: Form, name: &'static str, group: Group) -> Row {
    Row { mnemonic, form, class: Class::new(name, group) }
}

const LOCKED: &[Row] = &[
    row(Mnemonic::Or, Form::LockedNothing, "lock or 0", Group::FullFence),
    row(Mnemonic::Add, Form::LockedNothing, "lock add 0", Group::FullFence),
    row(Mnemonic::Adc, Form::Locked, "lock adc", Group::Atomic),
    row(Mnemonic::Add, Form::Locked, "lock add", Group::Atomic),
    row(Mnemonic::And, Form::Locked, "lock and", Group::Atomic),
    row(Mnemonic::Btc, Form::Locked, "lock btc", Group::Atomic),
    row(Mnemonic::Btr, Form::Locked, "lock btr", Group::Atomic),
    row(Mnemonic::Bts, Form::Locked, "lock bts", Group::Atomic),
    row(Mnemonic::Cmpxchg, Form::Locked, "lock cmpxchg", Group::Atomic),
    row(Mnemonic::Cmpxchg8b, Form::Locked, "lock cmpxchg8b", Group::Atomic),
    row(Mnemonic::Cmpxchg16b, Form::Locked, "lock cmpxchg16b", Group::Atomic),
    row(Mnemonic::Dec, Form::Locked, "lock dec", Group::Atomic),
    row(Mnemonic::Inc, Form::Locked, "lock inc", Group::Atomic),
    row(Mnemonic::Neg, Form::Locked, "lock neg", Group::Atomic),
    row(Mnemonic::Not, Form::Locked, "lock not", Group::Atomic),
    row(Mnemonic::Or, Form::Locked, "lock or", Group::Atomic),
    row(Mnemonic::Sbb, Form::Locked, "lock sbb", Group::Atomic),
    row(Mnemonic::Sub, Form::Locked, "lock sub", Group::Atomic),
    row(Mnemonic::Xadd, Form::Locked, "lock xadd", Group::Atomic),
    row(Mnemonic::Xor, Form::Locked, "lock xor", Group::Atomic),
];

const OTHERS: &[Row] = &[
    row(Mnemonic::Xchg, Form::Memory, "xchg", Group::OrderedStore),
    row(Mnemonic::Mfence, Form::Any, "mfence", Group::FullFence),
    row(Mnemonic::Lfence, Form::Any, "lfence", Group::PartialFence),
    row(Mnemonic::Sfence, Form::Any, "sfence", Group::PartialFence),
    row(Mnemonic::Pause, Form::Any, "pause", Group::SpinHint),
    row(Mnemonic::Tpause, Form::Any, "tpause", Group::SpinHint),
    row(Mnemonic::Umwait, Form::Any, "umwait", Group::SpinHint),
    row(Mnemonic::Crc32, Form::Any, "crc32", Group::Checksum),
    row(Mnemonic::Pclmulqdq, Form::Any, "pclmulqdq", Group::Checksum),
    row(Mnemonic::Vpclmulqdq, Form::Any, "vpclmulqdq", Group::Checksum),
];

struct Table {
    /// The possible forms of each mnemonic with their classes; the first form that fits applies.
    by_mnemonic: Vec<Vec<(Form, ClassId)>>,
    classes: Vec<Class>,
}

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    let all = || LOCKED.iter().chain(OTHERS);
    let classes = distinct(all().map(|row| row.class));
    let mut by_mnemonic = vec![Vec::new(); Mnemonic::values().len()];
    for row in all() {
        by_mnemonic[row.mnemonic as usize].push((row.form, id(&classes, row.class)));
    }
    Table { by_mnemonic, classes }
});

/// Returns all classes of instructions.
pub fn classes() -> &'static [Class] {
    &TABLE.classes
}

/// Decodes the code at `base`. A truncated last instruction counts as one, without a class.
pub fn classified(base: u64, code: &[u8]) -> impl Iterator<Item = Classified> + '_ {
    let mut decoder = Decoder::with_ip(64, code, base, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    std::iter::from_fn(move || {
        decoder.can_decode().then(|| {
            decoder.decode_out(&mut instruction);
            let (addr, len) = (instruction.ip(), instruction.len() as u64);
            Classified { addr, len, class: classify(&instruction) }
        })
    })
}

/// Returns the class of an instruction, if it has one.
fn classify(instruction: &Instruction) -> Option<ClassId> {
    let forms = TABLE.by_mnemonic.get(instruction.mnemonic() as usize)?;
    forms.iter().find(|(form, _)| has_form(instruction, *form)).map(|row| row.1)
}

fn has_form(i: &Instruction, form: Form) -> bool {
    match form {
        Form::Any => true,
        Form::Locked => i.has_lock_prefix(),
        Form::LockedNothing => i.has_lock_prefix() && i.memory_base() == Register::RSP && adds_nothing(i),
        Form::Memory => (0..i.op_count()).any(|operand| i.op_kind(operand) == OpKind::Memory),
    }
}

fn adds_nothing(i: &Instruction) -> bool {
    i.try_immediate(1).is_ok_and(|value| value == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(bytes: &[u8]) -> Option<&'static str> {
        let found: Vec<Classified> = classified(0x1000, bytes).collect();
        assert_eq!((found.len(), found[0].addr, found[0].len), (1, 0x1000, bytes.len() as u64), "{bytes:x?}");
        found[0].class.map(|class| classes()[usize::from(class)].name)
    }

    #[test]
    fn atomics_fences_and_hints_are_known() {
        let cases: [(&[u8], Option<&str>); 13] = [
            (&[0xf0, 0x0f, 0xc1, 0x03], Some("lock xadd")),
            (&[0xf0, 0x48, 0x0f, 0xb1, 0x0f], Some("lock cmpxchg")),
            (&[0xf0, 0x83, 0x0c, 0x24, 0x00], Some("lock or 0")),
            (&[0xf0, 0x83, 0x0f, 0x00], Some("lock or")),
            (&[0xf0, 0x48, 0x83, 0x44, 0x24, 0xf8, 0x00], Some("lock add 0")),
            (&[0xf0, 0x83, 0x04, 0x24, 0x01], Some("lock add")),
            (&[0x87, 0x07], Some("xchg")),
            (&[0x87, 0xc8], None),
            (&[0x0f, 0xae, 0xf0], Some("mfence")),
            (&[0xf3, 0x90], Some("pause")),
            (&[0xf2, 0x48, 0x0f, 0x38, 0xf1, 0x07], Some("crc32")),
            (&[0x66, 0x0f, 0x3a, 0x44, 0xc1, 0x00], Some("pclmulqdq")),
            (&[0x01, 0x07], None),
        ];
        for (bytes, expected) in cases {
            assert_eq!(name(bytes), expected, "{bytes:x?}");
        }
    }
}
