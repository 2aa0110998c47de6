//! How arm64 instructions are shown.

use yaxpeax_arch::{Decoder, U8Reader};
use yaxpeax_arm::armv8::a64::InstDecoder;

use super::word::Word;
use crate::isa::insn::{Flow, Insn, Test};

const CONDITIONS: [&str; 16] =
    ["eq", "ne", "cs", "cc", "mi", "pl", "vs", "vc", "hi", "ls", "ge", "lt", "gt", "le", "al", "nv"];

/// Returns `insn` as assembler writes it, with an absolute target.
pub(in crate::isa) fn text(insn: &Insn) -> String {
    let word = insn.word();
    let name = |register: u8, wide: bool| match (register, wide) {
        (31, true) => "xzr".to_owned(),
        (31, false) => "wzr".to_owned(),
        (n, true) => format!("x{n}"),
        (n, false) => format!("w{n}"),
    };
    let negated = if word.field(24, 1) == 1 { "n" } else { "" };
    let wide = word.is_wide();
    match (insn.flow, word.branch_test()) {
        (Flow::Jump(to), _) => format!("b {to:#x}"),
        (Flow::Call(Some(to)), _) => format!("bl {to:#x}"),
        (Flow::Branch(to), Some((Test::Flags(condition), _))) => {
            format!("b.{} {to:#x}", CONDITIONS[usize::from(condition & 15)])
        }
        (Flow::Branch(to), Some((Test::Zero { register, .. }, _))) => {
            format!("cb{negated}z {},{to:#x}", name(register, wide))
        }
        (Flow::Branch(to), Some((Test::Bit { register, bit }, _))) => {
            format!("tb{negated}z {},#{bit},{to:#x}", name(register, wide))
        }
        _ if word.is_hint() && matches!(word.hint(), 32 | 34 | 36 | 38) => {
            ["bti", "bti c", "bti j", "bti jc"][word.field(6, 2) as usize].to_owned()
        }
        _ => match word.address(insn.addr) {
            Some(to) => format!("adr{} {},{to:#x}", if wide { "p" } else { "" }, name(word.register(0), true)),
            None => disassembled(word),
        },
    }
}

fn disassembled(word: Word) -> String {
    let decoded = InstDecoder::default().decode(&mut U8Reader::new(&word.0.to_le_bytes()));
    decoded.map_or_else(|_| format!(".inst {:#010x}", word.0), |instruction| instruction.to_string())
}
