//! What x86-64 instructions do to registers and memory.

use iced_x86::{Code, Instruction, InstructionInfoFactory, Mnemonic, OpKind, Register};

use super::{address, instruction, number, writes, RBP, RSP};
use crate::isa::insn::{Effect, Flow, Insn};

/// Appends what `insn` does.
pub(in crate::isa) fn effects(insn: &Insn, into: &mut Vec<Effect>) {
    let i = instruction(insn);
    if i.is_invalid() {
        return into.push(Effect::Unknown);
    }
    if matches!(insn.flow, Flow::Call(_)) {
        return into.push(Effect::Call);
    }
    if !move_effects(&i, into) && !arithmetic_effects(&i, into) && !stack_effects(&i, into) {
        general_effects(&i, into);
    }
}

/// Appends the effects of instructions that move values, and of those that load addresses and constants. Returns false
/// if `i` is none of them.
fn move_effects(i: &Instruction, into: &mut Vec<Effect>) -> bool {
    let (op0, op1) = (i.op_register(0), i.op_register(1));
    match i.code() {
        Code::Mov_r64_rm64 | Code::Mov_rm64_r64 => return mov(i, 8, into),
        Code::Mov_r32_rm32 | Code::Mov_rm32_r32 => return mov(i, 4, into),
        Code::Lea_r64_m => match (address(i), i.is_ip_rel_memory_operand()) {
            (_, true) => into.push(Effect::Constant { to: number(op0), value: i.ip_rel_memory_address() }),
            (Some((base, offset)), _) => into.push(Effect::Offset { to: number(op0), from: base, by: offset }),
            _ if i.memory_base().is_gpr64() => {
                // An indexed element: nothing is known of it except its base.
                let (to, from) = (number(op0), number(i.memory_base()));
                into.push(Effect::Offset { to, from, by: i.memory_displacement64() as i64 });
                into.push(Effect::Clobber(to));
            }
            _ => return false,
        },
        Code::Mov_r32_imm32 | Code::Mov_rm32_imm32 if op0 != Register::None => {
            into.push(Effect::Constant { to: number(op0), value: u64::from(i.immediate32()) });
        }
        Code::Mov_rm64_imm32 | Code::Mov_r64_imm64 if op0 != Register::None => {
            into.push(Effect::Constant { to: number(op0), value: i.immediate(1) });
        }
        Code::Xor_r32_rm32 | Code::Xor_rm32_r32 | Code::Xor_r64_rm64 | Code::Xor_rm64_r64
            if op0 == op1 && op0 != Register::None =>
        {
            into.push(Effect::Constant { to: number(op0), value: 0 });
        }
        Code::Mov_rm16_r16 if op0 == Register::None => {
            let Some((base, offset)) = address(i) else { return false };
            into.push(Effect::Store { base, offset, from: Some(number(op1)), bytes: 2 });
        }
        _ => return false,
    }
    true
}

/// Appends the effects of additions, and of bits that are masked or set, in a register. Returns false if `i` is none of
/// them.
fn arithmetic_effects(i: &Instruction, into: &mut Vec<Effect>) -> bool {
    let (op0, op1) = (i.op_register(0), i.op_register(1));
    if op0 == Register::None {
        return false;
    }
    let to = number(op0);
    let bytes = op0.size() as u8;
    into.push(match i.code() {
        Code::Add_rm64_imm8 | Code::Add_rm64_imm32 | Code::Add_RAX_imm32 => {
            Effect::Offset { to, from: to, by: i.immediate(1) as i64 }
        }
        Code::Sub_rm64_imm8 | Code::Sub_rm64_imm32 | Code::Sub_RAX_imm32 => {
            Effect::Offset { to, from: to, by: (i.immediate(1) as i64).wrapping_neg() }
        }
        Code::And_rm16_imm16
        | Code::And_AX_imm16
        | Code::And_rm16_imm8
        | Code::And_rm32_imm32
        | Code::And_EAX_imm32
        | Code::And_rm32_imm8
        | Code::And_rm64_imm32
        | Code::And_RAX_imm32
        | Code::And_rm64_imm8 => Effect::And { to, mask: i.immediate(1), bytes },
        Code::Or_r16_rm16
        | Code::Or_rm16_r16
        | Code::Or_r32_rm32
        | Code::Or_rm32_r32
        | Code::Or_r64_rm64
        | Code::Or_rm64_r64
            if op1 != Register::None =>
        {
            Effect::Or { to, from: number(op1), bytes }
        }
        _ => return false,
    });
    true
}

/// Appends the effects of instructions that move values to and from the top of the stack. Returns false if `i` is none
/// of them.
fn stack_effects(i: &Instruction, into: &mut Vec<Effect>) -> bool {
    let pushed = |from| [Effect::Store { base: RSP, offset: -8, from, bytes: 8 }, moved_top(-8)];
    let popped = |to| [Effect::Load { to, base: RSP, offset: 0, bytes: 8 }, moved_top(8)];
    match i.code() {
        Code::Push_r64 => into.extend(pushed(Some(number(i.op_register(0))))),
        Code::Pushq_imm8 | Code::Pushq_imm32 | Code::Push_rm64 => into.extend(pushed(None)),
        Code::Pop_r64 if number(i.op_register(0)) != RSP => into.extend(popped(number(i.op_register(0)))),
        Code::Leaveq => {
            into.push(Effect::Copy { to: RSP, from: RBP, bytes: 8 });
            into.extend(popped(RBP));
        }
        _ => return false,
    }
    true
}

/// The effect of moving the stack pointer.
fn moved_top(by: i64) -> Effect {
    Effect::Offset { to: RSP, from: RSP, by }
}

/// Appends the effects of a `mov` of registers and memory. Returns false if the address is not a register and a number.
fn mov(i: &Instruction, bytes: u8, into: &mut Vec<Effect>) -> bool {
    match (i.op0_kind(), i.op1_kind()) {
        (OpKind::Register, OpKind::Register) => {
            into.push(Effect::Copy { to: number(i.op0_register()), from: number(i.op1_register()), bytes });
        }
        (OpKind::Register, OpKind::Memory) => {
            let to = number(i.op0_register());
            if i.is_ip_rel_memory_operand() {
                into.push(Effect::Constant { to, value: i.ip_rel_memory_address() });
                into.push(Effect::Load { to, base: to, offset: 0, bytes });
                return true;
            }
            let Some((base, offset)) = address(i) else { return false };
            into.push(Effect::Load { to, base, offset, bytes });
        }
        (OpKind::Memory, OpKind::Register) => {
            let Some((base, offset)) = address(i) else { return false };
            into.push(Effect::Store { base, offset, from: Some(number(i.op1_register())), bytes });
        }
        _ => return false,
    }
    true
}

/// Marks everything that `i` writes as unknown.
fn general_effects(i: &Instruction, into: &mut Vec<Effect>) {
    let mut factory = InstructionInfoFactory::new();
    let info = factory.info(i);
    // A repeated store writes more than its operand says.
    let repeated = i.has_rep_prefix() || i.has_repne_prefix();
    for memory in info.used_memory().iter().filter(|m| writes(m.access())) {
        if memory.base().is_gpr64() && memory.index() == Register::None {
            let size = if repeated { u8::MAX } else { u8::try_from(memory.memory_size().size()).unwrap_or(u8::MAX) };
            let bytes = size.max(1);
            let offset = memory.displacement() as i64;
            into.push(Effect::Store { base: number(memory.base()), offset, from: None, bytes });
        }
    }
    if matches!(i.mnemonic(), Mnemonic::Syscall | Mnemonic::Int) {
        into.push(Effect::Clobber(0));
    }
    for used in info.used_registers().iter().filter(|r| writes(r.access())) {
        if used.register().is_gpr() {
            into.push(Effect::Clobber(number(used.register())));
        }
    }
}
