//! x86-64: the classes by mnemonic and operands, as iced-x86 decodes them (Intel SDM, volume 2).

use std::sync::LazyLock;

use iced_x86::{Instruction, Mnemonic, OpKind, Register};

use super::class::{distinct, id, Class, ClassId, Group};

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

pub(super) fn classes() -> &'static [Class] {
    &TABLE.classes
}

/// Returns the class of an instruction, if it has one.
pub(super) fn classify(instruction: &Instruction) -> Option<ClassId> {
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
