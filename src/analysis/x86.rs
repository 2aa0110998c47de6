//! x86-64 instructions, decoded by iced-x86. Registers are numbered as the hardware encodes them.

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Formatter, GasFormatter, Instruction, InstructionInfoFactory,
    InstructionInfoOptions, Mnemonic, OpAccess, OpKind, Register,
};

use super::access::Access;
use super::insn::{Effect, Flow, Insn, Probing, Test, MAX_LEN};
use super::pointers::{Lane, Lanes};
use crate::symbols::Arch;

pub(super) const RSP: u8 = 4;
pub(super) const RBP: u8 = 5;

/// The registers of the first six integer arguments (System V calling convention).
pub(super) const ARGUMENTS: [u8; 6] = [7, 6, 2, 1, 8, 9];

/// The registers that a function may change without restoring them (System V).
pub(super) const CALLER_SAVED: [u8; 9] = [0, 1, 2, 6, 7, 8, 9, 10, 11];

pub(super) fn decode(base: u64, bytes: &[u8]) -> Vec<Insn> {
    let mut decoder = Decoder::with_ip(64, bytes, base, DecoderOptions::NONE);
    let mut found = Vec::with_capacity(bytes.len() / 4);
    let mut instruction = Instruction::default();
    while decoder.can_decode() {
        let at = decoder.position();
        decoder.decode_out(&mut instruction);
        if instruction.len() == 0 || decoder.position() <= at {
            break;
        }
        // An invalid instruction at the end is one that the end of the bytes truncated.
        if instruction.is_invalid() && !decoder.can_decode() {
            break;
        }
        let here = &bytes[at..decoder.position().min(at + MAX_LEN)];
        let mut raw = [0; MAX_LEN];
        raw[..here.len()].copy_from_slice(here);
        let memory = instruction.is_ip_rel_memory_operand().then(|| instruction.ip_rel_memory_address());
        found.push(Insn {
            addr: base.wrapping_add(at as u64),
            len: here.len() as u8,
            flow: flow(&instruction),
            probing: if instruction.is_invalid() { Probing::Refused } else { probing(here) },
            memory,
            arch: Arch::X86_64,
            raw,
        });
    }
    found
}

fn flow(i: &Instruction) -> Flow {
    if i.is_invalid() {
        return Flow::Next;
    }
    if matches!(i.mnemonic(), Mnemonic::Hlt | Mnemonic::Int3 | Mnemonic::Int1) {
        return Flow::Trap;
    }
    match i.flow_control() {
        FlowControl::UnconditionalBranch => Flow::Jump(i.near_branch_target()),
        FlowControl::ConditionalBranch | FlowControl::XbeginXabortXend if i.near_branch_target() != 0 => {
            Flow::Branch(i.near_branch_target())
        }
        FlowControl::IndirectBranch => Flow::IndirectJump,
        FlowControl::Return => Flow::Return,
        FlowControl::Call if i.is_call_near() => Flow::Call(Some(i.near_branch_target())),
        // iced treats `syscall` as a call; here it is an instruction that changes two registers.
        FlowControl::Call if i.mnemonic() == Mnemonic::Call => Flow::Call(None),
        FlowControl::IndirectCall => Flow::Call(None),
        FlowControl::Exception => Flow::Trap,
        _ => Flow::Next,
    }
}

/// Returns how the kernel probes the instruction: `arch/x86/kernel/uprobes.c` (`is_prefix_bad`, `good_insns_64`,
/// `good_2byte_insns`, `branch_setup_xol_ops`, `push_setup_xol_ops`).
fn probing(raw: &[u8]) -> Probing {
    let is_prefix = |b: u8| matches!(b, 0x66 | 0x67 | 0xf0 | 0xf2 | 0xf3 | 0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65);
    let prefixes = raw.iter().take_while(|&&b| is_prefix(b)).count();
    let (prefix, rest) = raw.split_at(prefixes);
    if prefix.iter().any(|b| matches!(b, 0xf0 | 0x26 | 0x2e | 0x36 | 0x3e)) {
        return Probing::Refused;
    }
    let rex = rest.first().copied().filter(|b| b & 0xf0 == 0x40);
    let opcode = &rest[usize::from(rex.is_some())..];
    match *opcode {
        // The kernel does not support branches with an operand-size prefix ("not supported").
        [0xe8 | 0xe9 | 0xeb | 0x70..=0x7f, ..] | [0x0f, 0x80..=0x8f, ..] if prefix.contains(&0x66) => Probing::Refused,
        [0xe8 | 0xe9 | 0xeb | 0x70..=0x7f, ..] | [0x0f, 0x80..=0x8f, ..] => Probing::Emulated,
        [0x90, ..] if prefix.is_empty() && rex.is_none() => Probing::Emulated,
        // `pause` is a nop to kernels before 6.18, and single-stepped since.
        [0x90, ..] if prefix == [0xf3] && rex.is_none() => Probing::Stepped,
        // With other prefixes, older kernels refuse 90; later ones treat it as a nop even where it is `xchg %rax,%r8`.
        [0x90, ..] => Probing::Refused,
        [0x50..=0x57] if prefix.is_empty() && matches!(rex, None | Some(0x41)) => Probing::Emulated,
        // For VEX, EVEX and XOP prefixes, the kernel looks up the opcode in the wrong table.
        [0xc4 | 0xc5 | 0x62 | 0x8f, ..] => Probing::Refused,
        [b, ..] if !may_step(b) => Probing::Refused,
        [0x0f, b, ..] if !may_step_two_byte(b) => Probing::Refused,
        _ => Probing::Stepped,
    }
}

/// Returns whether the kernel steps this one-byte opcode in a 64-bit program. `mov` to a segment register is excluded,
/// because the processor delays traps after it.
fn may_step(opcode: u8) -> bool {
    !matches!(
        opcode,
        0x06 | 0x07 | 0x0e | 0x16 | 0x17 | 0x1e | 0x1f | 0x27 | 0x2f | 0x37 | 0x3f | 0x60..=0x62 | 0x6c..=0x6f
            | 0x82 | 0x8e | 0x9a | 0xcc..=0xcf | 0xd4..=0xd6 | 0xe4..=0xe7 | 0xea | 0xec..=0xef
            | 0xf1 | 0xf4 | 0xfa | 0xfb
    )
}

fn may_step_two_byte(opcode: u8) -> bool {
    !matches!(opcode, 0x00 | 0x01 | 0x05..=0x09 | 0x0b | 0x30 | 0x34 | 0x35 | 0x37 | 0x78 | 0x79 | 0xae)
}

pub(super) fn branch_test(insn: &Insn) -> Option<(Test, bool)> {
    let i = instruction(insn);
    // `loop` and `jrcxz` are excluded, because the kernel does not emulate them.
    i.is_jcc_short_or_near().then(|| (Test::Flags(condition(&i)), true))
}

fn condition(i: &Instruction) -> u8 {
    use iced_x86::ConditionCode as C;
    match i.condition_code() {
        C::None => 0,
        C::o => 0,
        C::no => 1,
        C::b => 2,
        C::ae => 3,
        C::e => 4,
        C::ne => 5,
        C::be => 6,
        C::a => 7,
        C::s => 8,
        C::ns => 9,
        C::p => 10,
        C::np => 11,
        C::l => 12,
        C::ge => 13,
        C::le => 14,
        C::g => 15,
    }
}

pub(super) fn touches_memory(insn: &Insn) -> bool {
    let i = instruction(insn);
    let computes_only = matches!(i.mnemonic(), Mnemonic::Lea | Mnemonic::Nop);
    !computes_only && ((0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Memory) || i.is_stack_instruction())
}

/// Returns the memory operand: a 64-bit register and a displacement, or a static address.
pub(super) fn operand(insn: &Insn) -> Option<(Option<u8>, i64)> {
    let i = instruction(insn);
    let has_memory = (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Memory);
    if !has_memory || i.mnemonic() == Mnemonic::Lea || i.mnemonic() == Mnemonic::Nop {
        return None;
    }
    if i.is_ip_rel_memory_operand() {
        return Some((None, i.ip_rel_memory_address() as i64));
    }
    let is_far = matches!(i.segment_prefix(), Register::FS | Register::GS);
    if i.memory_base() == Register::None && i.memory_index() == Register::None && !is_far {
        return Some((None, i.memory_displacement64() as i64));
    }
    address(&i).map(|(base, offset)| (Some(base), offset))
}

/// Returns whether the instruction has a lock prefix or locks the bus without one.
pub(super) fn is_atomic(insn: &Insn) -> bool {
    let i = instruction(insn);
    i.has_lock_prefix() || i.mnemonic() == Mnemonic::Xchg && i.op0_kind() == OpKind::Memory
}

pub(super) fn is_padding(insn: &Insn) -> bool {
    instruction(insn).mnemonic() == Mnemonic::Nop
}

pub(super) fn reads_four_bytes(insn: &Insn) -> bool {
    let i = instruction(insn);
    let mut factory = InstructionInfoFactory::new();
    let used = factory.info(&i).used_memory();
    matches!(used, [memory] if memory.access() == OpAccess::Read && memory.memory_size().size() == 4)
}

/// Returns what the instruction does to memory other than the stack.
pub(super) fn access(insn: &Insn) -> Option<Access> {
    let i = instruction(insn);
    let mut factory = InstructionInfoFactory::new();
    let used = factory.info(&i).used_memory().iter().filter(|memory| memory.base() != Register::RSP);
    let accesses = used.map(|memory| match memory.access() {
        OpAccess::Read | OpAccess::CondRead => Some(Access::Read),
        OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite => Some(Access::Write),
        OpAccess::None | OpAccess::NoMemAccess => None,
    });
    accesses.flatten().max_by_key(|access| *access == Access::Write)
}

pub(super) fn effects(insn: &Insn, into: &mut Vec<Effect>) {
    let i = instruction(insn);
    if i.is_invalid() {
        return into.push(Effect::Unknown);
    }
    if matches!(insn.flow, Flow::Call(_)) {
        return into.push(Effect::Call);
    }
    if !simple_effects(&i, into) {
        general_effects(&i, into);
    }
}

/// Appends the effects of instructions that move values. Returns false if `i` is not one of them.
fn simple_effects(i: &Instruction, into: &mut Vec<Effect>) -> bool {
    let (op0, op1) = (i.op_register(0), i.op_register(1));
    match i.code() {
        Code::Mov_r64_rm64 | Code::Mov_rm64_r64 | Code::Mov_r32_rm32 | Code::Mov_rm32_r32 => return mov(i, into),
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
        Code::Add_rm64_imm8 | Code::Add_rm64_imm32 | Code::Add_RAX_imm32 if op0 != Register::None => {
            let to = number(op0);
            into.push(Effect::Offset { to, from: to, by: i.immediate(1) as i64 });
        }
        Code::Sub_rm64_imm8 | Code::Sub_rm64_imm32 | Code::Sub_RAX_imm32 if op0 != Register::None => {
            let to = number(op0);
            into.push(Effect::Offset { to, from: to, by: (i.immediate(1) as i64).wrapping_neg() });
        }
        Code::And_rm16_imm16 | Code::And_AX_imm16 | Code::And_rm16_imm8 if op0 != Register::None => {
            into.push(Effect::And { to: number(op0), mask: i.immediate(1), bytes: 2 });
        }
        Code::And_rm32_imm32 | Code::And_EAX_imm32 | Code::And_rm32_imm8 if op0 != Register::None => {
            into.push(Effect::And { to: number(op0), mask: i.immediate(1), bytes: 4 });
        }
        Code::And_rm64_imm32 | Code::And_RAX_imm32 | Code::And_rm64_imm8 if op0 != Register::None => {
            into.push(Effect::And { to: number(op0), mask: i.immediate(1), bytes: 8 });
        }
        Code::Or_r16_rm16
        | Code::Or_rm16_r16
        | Code::Or_r32_rm32
        | Code::Or_rm32_r32
        | Code::Or_r64_rm64
        | Code::Or_rm64_r64
            if op0 != Register::None && op1 != Register::None =>
        {
            into.push(Effect::Or { to: number(op0), from: number(op1), bytes: op0.size() as u8 });
        }
        Code::Mov_rm16_r16 if op0 == Register::None => {
            let Some((base, offset)) = address(i) else { return false };
            into.push(Effect::Store { base, offset, from: Some(number(op1)), bytes: 2 });
        }
        Code::Push_r64 => {
            into.push(Effect::Store { base: RSP, offset: -8, from: Some(number(op0)), bytes: 8 });
            into.push(Effect::Offset { to: RSP, from: RSP, by: -8 });
        }
        Code::Pushq_imm8 | Code::Pushq_imm32 | Code::Push_rm64 => {
            into.push(Effect::Store { base: RSP, offset: -8, from: None, bytes: 8 });
            into.push(Effect::Offset { to: RSP, from: RSP, by: -8 });
        }
        Code::Pop_r64 if number(op0) != RSP => {
            into.push(Effect::Load { to: number(op0), base: RSP, offset: 0, bytes: 8 });
            into.push(Effect::Offset { to: RSP, from: RSP, by: 8 });
        }
        Code::Leaveq => {
            into.push(Effect::Copy { to: RSP, from: RBP, bytes: 8 });
            into.push(Effect::Load { to: RBP, base: RSP, offset: 0, bytes: 8 });
            into.push(Effect::Offset { to: RSP, from: RSP, by: 8 });
        }
        _ => return false,
    }
    true
}

fn mov(i: &Instruction, into: &mut Vec<Effect>) -> bool {
    let bytes = if matches!(i.code(), Code::Mov_r64_rm64 | Code::Mov_rm64_r64) { 8 } else { 4 };
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

/// Returns the memory operand if it is a 64-bit register and a displacement.
fn address(i: &Instruction) -> Option<(u8, i64)> {
    let plain = i.memory_base().is_gpr64()
        && i.memory_index() == Register::None
        && !matches!(i.segment_prefix(), Register::FS | Register::GS);
    plain.then(|| (number(i.memory_base()), i.memory_displacement64() as i64))
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

pub(super) fn writes(access: OpAccess) -> bool {
    matches!(access, OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite)
}

/// Returns what an instruction does with four-byte lanes. Compilers move several numbers at once through a vector
/// register.
pub(super) fn lanes(insn: &Insn) -> Option<Lanes> {
    let i = instruction(insn);
    lanes_moved(&i).or_else(|| lanes_overwritten(&i))
}

/// Returns the vector registers whose contents the instruction replaces.
fn lanes_overwritten(i: &Instruction) -> Option<Lanes> {
    if i.is_invalid() {
        return Some(Lanes::Unknown(u32::MAX));
    }
    let mut factory = InstructionInfoFactory::new();
    let used = factory.info_options(i, InstructionInfoOptions::NO_MEMORY_USAGE).used_registers();
    let written = used.iter().filter(|used| used.register().is_vector_register() && writes(used.access()));
    let registers = written.fold(0, |all, used| all | 1 << (used.register().number() & 31));
    (registers != 0).then_some(Lanes::Unknown(registers))
}

/// Handles instructions without a VEX prefix that move lanes. Those with one also write the bytes above 16.
fn lanes_moved(i: &Instruction) -> Option<Lanes> {
    let wide = || Some((lane_operand(i, 0)?, lane_operand(i, 1)?));
    match i.mnemonic() {
        Mnemonic::Mov if i.is_ip_rel_memory_operand() && i.op0_kind() == OpKind::Memory => {
            let from = Some(i.op1_register()).filter(|r| r.is_gpr32() || r.is_gpr64())?;
            let (to, bytes) = (i.ip_rel_memory_address(), from.size() as u8);
            Some(Lanes::Whole { to, from: number(from), bytes })
        }
        // This form sets the register to zero.
        Mnemonic::Pxor | Mnemonic::Xorps | Mnemonic::Xorpd if i.op_register(0) == i.op_register(1) => match wide()? {
            (Lane::Vector(to), from) => Some(Lanes::Set { to, from, lane: 0, count: 0, keeps_others: false }),
            _ => None,
        },
        Mnemonic::Movd => lane_move(wide()?, 0, 1),
        Mnemonic::Movq => lane_move(wide()?, 0, 2),
        Mnemonic::Movss => lane_move(wide()?, 0, 1).map(keeping_between_registers),
        Mnemonic::Movsd => lane_move(wide()?, 0, 2).map(keeping_between_registers),
        Mnemonic::Movups
        | Mnemonic::Movaps
        | Mnemonic::Movupd
        | Mnemonic::Movapd
        | Mnemonic::Movdqu
        | Mnemonic::Movdqa => lane_move(wide()?, 0, 4),
        Mnemonic::Movhps | Mnemonic::Movhpd | Mnemonic::Movlhps => lane_move(wide()?, 2, 2),
        Mnemonic::Punpckldq | Mnemonic::Unpcklps => lane_turns(wide()?, 1),
        Mnemonic::Punpcklqdq | Mnemonic::Unpcklpd => lane_turns(wide()?, 2),
        Mnemonic::Pinsrd => match wide()? {
            (Lane::Vector(to), from) => {
                Some(Lanes::Set { to, from, lane: i.immediate8() & 3, count: 1, keeps_others: true })
            }
            _ => None,
        },
        _ => None,
    }
}

/// Adjusts for the source: a number read from memory is followed by zeros, whereas one from another register replaces
/// only its own lane.
fn keeping_between_registers(lanes: Lanes) -> Lanes {
    match lanes {
        Lanes::Set { to, from: from @ Lane::Vector(_), lane, count, .. } => {
            Lanes::Set { to, from, lane, count, keeps_others: true }
        }
        lanes => lanes,
    }
}

fn lane_move((to, from): (Lane, Lane), lane: u8, count: u8) -> Option<Lanes> {
    match (to, from) {
        (Lane::Vector(to), from) => Some(Lanes::Set { to, from, lane, count, keeps_others: lane > 0 }),
        (to @ Lane::Memory { .. }, Lane::Vector(from)) => Some(Lanes::Store { to, from, lane, count }),
        _ => None,
    }
}

fn lane_turns((to, with): (Lane, Lane), unit: u8) -> Option<Lanes> {
    match to {
        Lane::Vector(to) => Some(Lanes::Turns { to, with, unit }),
        _ => None,
    }
}

fn lane_operand(i: &Instruction, operand: u32) -> Option<Lane> {
    match i.op_kind(operand) {
        OpKind::Register if i.op_register(operand).is_xmm() => {
            Some(Lane::Vector(i.op_register(operand).number() as u8))
        }
        OpKind::Register if i.op_register(operand).is_gpr() => Some(Lane::Register(number(i.op_register(operand)))),
        OpKind::Memory if i.is_ip_rel_memory_operand() => {
            Some(Lane::Memory { base: None, offset: i.ip_rel_memory_address() as i64 })
        }
        OpKind::Memory => address(i).map(|(base, offset)| Lane::Memory { base: Some(base), offset }),
        _ => None,
    }
}

pub(super) fn immediate(insn: &Insn) -> Option<u64> {
    let i = instruction(insn);
    let is_number =
        |n: &u32| matches!(i.op_kind(*n), OpKind::Immediate32 | OpKind::Immediate32to64 | OpKind::Immediate64);
    (0..i.op_count()).find(is_number).map(|n| i.immediate(n))
}

/// The number that a `mov` stores.
pub(super) fn stored_number(insn: &Insn) -> Option<u64> {
    let i = instruction(insn);
    let is_store = i.mnemonic() == Mnemonic::Mov && i.op0_kind() == OpKind::Memory;
    is_store.then(|| immediate(insn))?
}

pub(super) fn number(register: Register) -> u8 {
    register.full_register().number() as u8
}

pub(super) fn instruction(insn: &Insn) -> Instruction {
    Decoder::with_ip(64, insn.bytes(), insn.addr, DecoderOptions::NONE).decode()
}

pub(super) fn text(insn: &Insn) -> String {
    let mut formatter = GasFormatter::new();
    let options = formatter.options_mut();
    options.set_uppercase_hex(false);
    options.set_branch_leading_zeros(false);
    options.set_space_after_operand_separator(false);
    options.set_small_hex_numbers_in_decimal(false);
    let mut text = String::new();
    formatter.format(&instruction(insn), &mut text);
    text
}
