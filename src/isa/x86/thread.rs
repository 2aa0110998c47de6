//! How instructions find variables of their thread.

use iced_x86::{Code, Instruction, OpKind, Register};

use super::{instruction, number};
use crate::isa::thread::ThreadEffect;
use crate::isa::Insn;

pub(in crate::isa) fn thread_effect(insn: &Insn) -> Option<ThreadEffect> {
    let i = instruction(insn);
    match i.code() {
        Code::Mov_r64_rm64 | Code::Mov_RAX_moffs64 if i.op1_kind() == OpKind::Memory => load(&i),
        Code::Add_r64_rm64 if i.is_ip_rel_memory_operand() => {
            Some(ThreadEffect::Add { to: number(i.op0_register()), from: i.ip_rel_memory_address() })
        }
        _ => None,
    }
}

fn load(i: &Instruction) -> Option<ThreadEffect> {
    if i.segment_prefix() != Register::FS || i.memory_index() != Register::None {
        return None;
    }
    let (to, offset) = (number(i.op0_register()), i.memory_displacement64() as i64);
    match i.memory_base() {
        // The thread pointer points to itself.
        Register::None if offset == 0 => Some(ThreadEffect::Pointer { to }),
        Register::None => Some(ThreadEffect::Variable { to, index: None, offset }),
        base if base.is_gpr64() => Some(ThreadEffect::Variable { to, index: Some(number(base)), offset }),
        _ => None,
    }
}
