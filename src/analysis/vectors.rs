//! Determines how wide the registers are through which code moves data.

use crate::isa::Insn;
use crate::symbols::Arch;

/// Returns the name of the widest registers that this code uses, which is how the variants in a C library differ.
/// `None` if it uses only general registers.
pub fn widest_registers(insns: &[Insn]) -> Option<&'static str> {
    let arch = insns.first()?.arch;
    let known: &[(&str, &'static str)] = match arch {
        Arch::X86_64 => &[("%zmm", "512-bit"), ("%ymm", "256-bit"), ("%xmm", "128-bit")],
        Arch::Aarch64 => &[("cpyf", "MOPS"), ("setp", "MOPS"), (" z", "SVE"), (" q", "128-bit"), (" v", "128-bit")],
    };
    let texts: Vec<String> = insns.iter().map(Insn::text).collect();
    known.iter().find(|(part, _)| texts.iter().any(|text| text.contains(part))).map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::decode_bytes;

    #[test]
    fn x86_registers_have_widths() {
        let widest = |bytes: &[u8]| widest_registers(&decode_bytes(Arch::X86_64, 0x1000, bytes));
        // vmovdqu64 (%rsi),%zmm16; vmovdqu (%rsi),%ymm0; movups (%rsi),%xmm0; rep movsb.
        let zmm = [0x62, 0xe1, 0xfe, 0x48, 0x6f, 0x06];
        let ymm = [0xc5, 0xfe, 0x6f, 0x06];
        let xmm = [0x0f, 0x10, 0x06];
        assert_eq!(widest(&[&xmm[..], &zmm[..]].concat()), Some("512-bit"));
        assert_eq!(widest(&[&xmm[..], &ymm[..]].concat()), Some("256-bit"));
        assert_eq!(widest(&xmm), Some("128-bit"));
        assert_eq!(widest(&[0xf3, 0xa4]), None);
        assert_eq!(widest(&[]), None);
    }

    #[test]
    fn arm_registers_have_widths() {
        let widest = |words: &[u32]| {
            let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
            widest_registers(&decode_bytes(Arch::Aarch64, 0x1000, &bytes))
        };
        // ldr q0, [x1]; ldp x6, x7, [x1].
        assert_eq!(widest(&[0x3dc0_0020]), Some("128-bit"));
        assert_eq!(widest(&[0xa940_1c26]), None);
    }
}
