//! What x86-64 instructions do with the four-byte lanes of vector registers.

use iced_x86::{Instruction, InstructionInfoFactory, InstructionInfoOptions, Mnemonic, OpKind};

use super::{address, instruction, number, writes};
use crate::isa::insn::Insn;

/// The source or destination of a four-byte lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    Vector(u8),
    Register(u8),
    /// Memory at an offset from a register, or at a static address.
    Memory {
        base: Option<u8>,
        offset: i64,
    },
}

/// What an instruction does with the four lanes of a vector register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lanes {
    /// Sets the lanes of `to`, from this one on, to those of `from` from the first on; the others are kept, or zeroed.
    Set {
        to: u8,
        from: Lane,
        lane: u8,
        count: u8,
        keeps_others: bool,
    },
    /// Interleaves the lower lanes of both, in groups of this size.
    Turns {
        to: u8,
        with: Lane,
        unit: u8,
    },
    Store {
        to: Lane,
        from: u8,
        lane: u8,
        count: u8,
    },
    /// Stores a plain register at a static address.
    Whole {
        to: u64,
        from: u8,
        bytes: u8,
    },
    /// These registers, one bit each, now hold something unknown.
    Unknown(u32),
}

/// Returns what an instruction does with four-byte lanes. Compilers move several numbers at once through a vector
/// register.
pub fn lanes(insn: &Insn) -> Option<Lanes> {
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
