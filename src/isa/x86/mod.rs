//! x86-64 instructions, decoded by iced-x86. Registers are numbered as the hardware encodes them.

mod calls;
mod class;
mod effects;
mod lanes;
mod probing;
mod thread;
mod zero;

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Formatter, GasFormatter, Instruction, InstructionInfoFactory, Mnemonic,
    OpAccess, OpKind, Register,
};

pub use self::calls::possible_calls;
pub use self::class::{classes, classified};
pub(super) use self::effects::effects;
pub use self::lanes::{lanes, Lane, Lanes};
pub(super) use self::thread::thread_effect;
pub use self::zero::{attempt, zero_use, Attempt, Part, ZeroUse, EQUAL, NOT_EQUAL, RAX};
use super::access::Access;
use super::insn::{Flow, Insn, Probing, Test, MAX_LEN};
use crate::symbols::Arch;

pub const RSP: u8 = 4;
pub const RBP: u8 = 5;

/// The registers of the first six integer arguments (System V calling convention).
pub const ARGUMENTS: [u8; 6] = [7, 6, 2, 1, 8, 9];

/// The registers that a function may change without restoring them (System V).
pub const CALLER_SAVED: [u8; 9] = [0, 1, 2, 6, 7, 8, 9, 10, 11];

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
            probing: if instruction.is_invalid() { Probing::Refused } else { probing::of(here) },
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

/// Returns the memory operand if it is a 64-bit register and a displacement.
fn address(i: &Instruction) -> Option<(u8, i64)> {
    let plain = i.memory_base().is_gpr64()
        && i.memory_index() == Register::None
        && !matches!(i.segment_prefix(), Register::FS | Register::GS);
    plain.then(|| (number(i.memory_base()), i.memory_displacement64() as i64))
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

fn writes(access: OpAccess) -> bool {
    matches!(access, OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite)
}

pub(super) fn immediate(insn: &Insn) -> Option<u64> {
    let i = instruction(insn);
    let is_number =
        |n: &u32| matches!(i.op_kind(*n), OpKind::Immediate32 | OpKind::Immediate32to64 | OpKind::Immediate64);
    (0..i.op_count()).find(is_number).map(|n| i.immediate(n))
}

/// Returns the number that a `mov` stores.
pub(super) fn stored_number(insn: &Insn) -> Option<u64> {
    let i = instruction(insn);
    let is_store = i.mnemonic() == Mnemonic::Mov && i.op0_kind() == OpKind::Memory;
    is_store.then(|| immediate(insn))?
}

/// Returns the number of the whole register of which this is a part.
fn number(register: Register) -> u8 {
    register.full_register().number() as u8
}

fn instruction(insn: &Insn) -> Instruction {
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
