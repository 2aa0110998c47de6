//! The fields of an arm64 instruction, and what they mean.

use crate::isa::insn::Test;

/// An arm64 instruction. The encoding is regular enough to read the few needed fields directly (Arm ARM, C4.1 "A64
/// instruction set encoding").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word(pub u32);

/// A `cbz` or `cbnz`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZeroBranch {
    /// The register that is compared with zero; 31 is the zero register.
    pub register: u8,
    /// How many of its bits are compared: 32 or 64.
    pub bits: u8,
    /// Whether it branches if they are all zero, or if they are not.
    pub if_zero: bool,
    pub to: u64,
}

/// Returns the instructions in `code`. A truncated last one is omitted.
pub fn words(code: &[u8]) -> impl ExactSizeIterator<Item = Word> + Clone + '_ {
    code.chunks_exact(4).map(|c| Word(u32::from_le_bytes([c[0], c[1], c[2], c[3]])))
}

/// Returns the instructions of the code at `base`, each with its address.
pub fn words_at(base: u64, code: &[u8]) -> impl Iterator<Item = (u64, Word)> + '_ {
    words(code).enumerate().map(move |(i, word)| (base.wrapping_add(i as u64 * 4), word))
}

/// Sign-extends the low `bits` of `value`.
pub(super) const fn signed(value: u32, bits: u32) -> i64 {
    ((value as i64) << (64 - bits)) >> (64 - bits)
}

impl Word {
    pub const NOP: Word = Word(0xd503_201f);
    /// `ret`, to the address in x30.
    pub const RET: Word = Word(0xd65f_03c0);
    /// The landing pad of indirect calls.
    pub const BTI_C: Word = Word(0xd503_245f);
    pub const DMB_ISH: Word = Word(0xd503_3bbf);
    pub const YIELD: Word = Word(0xd503_203f);
    /// `svc #0`, which calls the kernel.
    pub const SVC: Word = Word(0xd400_0001);

    /// Returns whether its bits under `mask` equal `value`.
    pub(super) const fn is(self, mask: u32, value: u32) -> bool {
        self.0 & mask == value
    }

    /// Returns `width` of its bits, starting at bit `low`.
    pub(super) const fn field(self, low: u32, width: u32) -> u32 {
        (self.0 >> low) & ((1 << width) - 1)
    }

    /// Returns the number of the register in the five bits from `low` on.
    pub(super) const fn register(self, low: u32) -> u8 {
        self.field(low, 5) as u8
    }

    /// Returns whether bit 31 is set, which selects 64 bits rather than 32 in most instructions that have both.
    pub(super) const fn is_wide(self) -> bool {
        self.field(31, 1) == 1
    }

    /// Returns the main encoding class.
    pub(super) const fn class(self) -> u32 {
        self.field(25, 4)
    }

    /// Returns the address at a signed distance in words, which is in the `width` bits from `low` on.
    pub(super) const fn target(self, at: u64, low: u32, width: u32) -> u64 {
        at.wrapping_add_signed(signed(self.field(low, width), width) * 4)
    }

    /// Returns the target of a `b` or `bl` at address `at`: a call, a tail call, or a jump.
    pub const fn branch(self, at: u64) -> Option<u64> {
        if self.is(0x7c00_0000, 0x1400_0000) {
            Some(self.target(at, 0, 26))
        } else {
            None
        }
    }

    /// Returns whether a `b` or `bl` is the latter.
    pub(super) const fn links(self) -> bool {
        self.is_wide()
    }

    /// Returns whether it is `b.cond` or `bc.cond`.
    pub(super) const fn is_flags_branch(self) -> bool {
        self.is(0xff00_0000, 0x5400_0000)
    }

    /// Returns whether it is `tbz` or `tbnz`.
    pub(super) const fn is_bit_branch(self) -> bool {
        self.is(0x7e00_0000, 0x3600_0000)
    }

    /// Decodes a `cbz` or `cbnz` at address `at`.
    pub fn zero_branch(self, at: u64) -> Option<ZeroBranch> {
        self.is(0x7e00_0000, 0x3400_0000).then(|| ZeroBranch {
            register: self.register(0),
            bits: if self.is_wide() { 64 } else { 32 },
            if_zero: self.field(24, 1) == 0,
            to: self.target(at, 5, 19),
        })
    }

    /// Returns when a conditional branch is taken: the test, and the outcome that takes it. `None` for other
    /// instructions and for tests of the zero register, which a probe cannot see.
    pub(in crate::isa) fn branch_test(self) -> Option<(Test, bool)> {
        // Without bc.cond, which newer CPUs have.
        if self.is(0xff00_0010, 0x5400_0000) {
            return Some((Test::Flags(self.field(0, 4) as u8), true));
        }
        let register = self.register(0);
        if register == 31 {
            return None;
        }
        if let Some(branch) = self.zero_branch(0) {
            return Some((Test::Zero { register, bits: branch.bits }, branch.if_zero));
        }
        let bit = (self.field(31, 1) << 5 | self.field(19, 5)) as u8;
        self.is_bit_branch().then(|| (Test::Bit { register, bit }, self.field(24, 1) == 1))
    }

    pub(super) const fn is_hint(self) -> bool {
        self.is(0xffff_f01f, 0xd503_201f)
    }

    /// Returns the number of a hint (Arm ARM, C4.1 "Hints").
    pub(super) const fn hint(self) -> u32 {
        self.field(5, 7)
    }

    /// Returns whether it is `bti` or signs the return address (`paciasp`, `pacibsp`).
    pub(in crate::isa) const fn is_landing_pad(self) -> bool {
        self.is_hint() && matches!(self.hint(), 25 | 27 | 32 | 34 | 36 | 38)
    }

    /// Returns whether it is `yield` or `isb`.
    pub(in crate::isa) const fn is_spin_hint(self) -> bool {
        self.0 == Word::YIELD.0 || self.is(0xffff_f0ff, 0xd503_30df)
    }

    /// Returns the address that an `adr` or `adrp` at address `at` computes.
    pub(super) fn address(self, at: u64) -> Option<u64> {
        let by = signed(self.field(5, 19) << 2 | self.field(29, 2), 21);
        self.is(0x1f00_0000, 0x1000_0000).then(|| {
            if self.is_wide() {
                (at & !0xfff).wrapping_add_signed(by << 12)
            } else {
                at.wrapping_add_signed(by)
            }
        })
    }

    /// Returns the register that an `adrp` at address `at` sets, and the beginning of the page to which it sets it.
    pub fn page(self, at: u64) -> Option<(u8, u64)> {
        self.address(at).filter(|_| self.is_wide()).map(|page| (self.register(0), page))
    }

    /// Returns whether it loads from an address that is relative to its own.
    pub(super) const fn is_literal_load(self) -> bool {
        self.is(0x3b00_0000, 0x1800_0000)
    }

    /// Decodes a 64-bit `add` or `sub` of an immediate, with or without flags: (to, from, by). A discarded result
    /// (`cmp`) does not count.
    pub(super) fn addition(self) -> Option<(u8, u8, i64)> {
        if !self.is(0x9f80_0000, 0x9100_0000) {
            return None;
        }
        let sets_flags = self.field(29, 1) == 1;
        if sets_flags && self.register(0) == 31 {
            return None;
        }
        let immediate = i64::from(self.field(10, 12)) << (12 * self.field(22, 1));
        let by = if self.field(30, 1) == 1 { -immediate } else { immediate };
        Some((self.register(0), self.register(5), by))
    }

    /// Returns the register and the offset within a page of an instruction that completes what `adrp` began: an `add`,
    /// or a load of 64 bits.
    pub fn within_page(self) -> Option<(u8, u64)> {
        let immediate = u64::from(self.field(10, 12));
        if self.is(0xffc0_0000, 0x9100_0000) {
            Some((self.register(5), immediate))
        } else if self.is(0xffc0_0000, 0xf940_0000) {
            Some((self.register(5), immediate << 3))
        } else {
            None
        }
    }

    /// Decodes an `ldrb` at an unsigned offset: the registers that it loads, and from where the other points.
    pub fn byte_load(self) -> Option<(u8, u8)> {
        self.is(0xffc0_0000, 0x3940_0000).then(|| (self.register(0), self.register(5)))
    }

    /// Returns whether it is a load or store, prefetches included.
    pub(in crate::isa) const fn is_load_or_store(self) -> bool {
        self.is(0x0a00_0000, 0x0800_0000)
    }

    /// Returns whether a load or store is of vector registers.
    pub(super) const fn is_vector(self) -> bool {
        self.field(26, 1) == 1
    }

    /// Returns whether a load or store of one or two registers, or an exclusive one, is a load.
    pub(super) const fn loads(self) -> bool {
        self.field(22, 1) == 1
    }

    /// Decodes the address of a load or store with an unsigned scaled offset: (base, offset).
    pub(super) fn unsigned_offset(self) -> Option<(u8, i64)> {
        self.is(0x3b00_0000, 0x3900_0000)
            .then(|| (self.register(5), i64::from(self.field(10, 12)) << self.access_shift()))
    }

    /// Returns log2 of the number of bytes that a load or store of one register moves.
    pub(super) const fn access_shift(self) -> u32 {
        if self.is_vector() && self.field(23, 1) == 1 {
            4
        } else {
            self.size_shift()
        }
    }

    /// Returns log2 of the number of bytes that an access of one general register moves.
    const fn size_shift(self) -> u32 {
        self.field(30, 2)
    }

    /// Returns how many bytes an access of one general register, such as an atomic, moves: 1 to 8.
    pub const fn access_bytes(self) -> u8 {
        1 << self.size_shift()
    }

    /// Returns whether it is a store at an address that is the sum of two registers.
    pub(in crate::isa) fn stores_somewhere(self) -> bool {
        let is_register_offset = self.is(0x3b20_0c00, 0x3820_0800);
        let opc = self.field(22, 2);
        is_register_offset && (opc == 0 || (self.is_vector() && opc == 2))
    }

    /// Returns whether it is an exclusive load or store, or `casp`, which shares their encoding.
    pub(super) const fn is_exclusive(self) -> bool {
        self.is(0x3f80_0000, 0x0800_0000)
    }

    /// Returns the register in which an exclusive store leaves 0 if it succeeded.
    pub const fn status(self) -> u8 {
        self.register(16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: u64 = 0x10_0000;

    #[test]
    fn branches_lead_both_ways() {
        // b .+8; bl .-4; blr x8
        assert_eq!(Word(0x1400_0002).branch(AT), Some(AT + 8));
        assert_eq!(Word(0x97ff_ffff).branch(AT), Some(AT - 4));
        assert!(!Word(0x1400_0002).links() && Word(0x97ff_ffff).links());
        assert_eq!(Word(0xd63f_0100).branch(AT), None);
        // The farthest: 128 MiB.
        assert_eq!(Word(0x15ff_ffff).branch(AT), Some(AT + (128 << 20) - 4));
        assert_eq!(Word(0x1600_0000).branch(128 << 20), Some(0));
    }

    #[test]
    fn branches_on_zero_name_the_register_and_its_width() {
        // cbz w16, .+12; cbnz x17, .-16; tbz w1, #0, .+8
        let found = ZeroBranch { register: 16, bits: 32, if_zero: true, to: AT + 12 };
        assert_eq!(Word(0x3400_0070).zero_branch(AT), Some(found));
        let found = ZeroBranch { register: 17, bits: 64, if_zero: false, to: AT - 16 };
        assert_eq!(Word(0xb5ff_ff91).zero_branch(AT), Some(found));
        assert_eq!(Word(0x3600_0041).zero_branch(AT), None);
    }

    #[test]
    fn conditions_are_what_the_branch_tests() {
        // b.ne; bc.ne; cbz w1; cbnz xzr; tbnz x1, #40; tbz w2, #3; b
        assert_eq!(Word(0x5400_0041).branch_test(), Some((Test::Flags(1), true)));
        assert_eq!(Word(0x5400_0051).branch_test(), None);
        assert_eq!(Word(0x3400_0041).branch_test(), Some((Test::Zero { register: 1, bits: 32 }, true)));
        assert_eq!(Word(0xb500_005f).branch_test(), None);
        assert_eq!(Word(0xb740_0041).branch_test(), Some((Test::Bit { register: 1, bit: 40 }, true)));
        assert_eq!(Word(0x3618_0042).branch_test(), Some((Test::Bit { register: 2, bit: 3 }, false)));
        assert_eq!(Word(0x1400_0002).branch_test(), None);
    }

    /// From MySQL 9.7.4: `adrp x0, 0x3527000` at 0x2588820.
    #[test]
    fn pages_are_relative_to_the_instructions_page() {
        assert_eq!(Word(0xf000_7ce0).page(0x258_8820), Some((0, 0x352_7000)));
        // adrp x2, .-4096; adr x1, .+12
        assert_eq!(Word(0xf0ff_ffe2).page(0x1234), Some((2, 0)));
        assert_eq!(Word(0x1000_0061).page(AT), None);
        assert_eq!(Word(0x1000_0061).address(AT), Some(AT + 12));
        assert_eq!(Word::NOP.address(AT), None);
    }

    #[test]
    fn offsets_within_a_page_are_scaled() {
        // add x0, x1, #0x10; ldr x3, [x2, #0x18]; add x0, x1, #1, lsl #12; ldr w3, [x2, #0x18]; sub x0, x1, #0x10
        assert_eq!(Word(0x9100_4020).within_page(), Some((1, 0x10)));
        assert_eq!(Word(0xf940_0c43).within_page(), Some((2, 0x18)));
        for word in [0x9140_0420, 0xb940_1843, 0xd100_4020] {
            assert_eq!(Word(word).within_page(), None, "{word:#x}");
        }
    }

    #[test]
    fn additions_keep_their_sign() {
        // sub sp, sp, #0x20; add x0, x1, #1, lsl #12; cmp x0, #1; subs x0, x0, #1; add w0, w0, #1
        assert_eq!(Word(0xd100_83ff).addition(), Some((31, 31, -0x20)));
        assert_eq!(Word(0x9140_0420).addition(), Some((0, 1, 0x1000)));
        assert_eq!(Word(0xf100_041f).addition(), None);
        assert_eq!(Word(0xf100_0400).addition(), Some((0, 0, -1)));
        assert_eq!(Word(0x1100_0400).addition(), None);
    }

    #[test]
    fn loads_and_atomics_have_sizes() {
        // ldrb w16, [x16, #0xd65]; ldrb w1, [x0, x2]; ldr w1, [x0]
        assert_eq!(Word(0x3975_9610).byte_load(), Some((16, 16)));
        assert_eq!(Word(0x3862_6801).byte_load(), None);
        assert_eq!(Word(0xb940_0001).byte_load(), None);
        // swpab; ldsetlh; ldaddal w; casal x
        let atomics = [0x38a0_8041, 0x7860_3041, 0xb8e1_0040, 0xc8e0_fc41];
        assert_eq!(atomics.map(|word| Word(word).access_bytes()), [1, 2, 4, 8]);
        // str q1, [x0, #16]: 16 bytes
        assert_eq!(Word(0x3d80_0401).unsigned_offset(), Some((0, 16)));
    }

    #[test]
    fn exclusives_are_loads_or_stores_with_a_status() {
        // ldaxr w0, [x1]; stlxr w2, w0, [x1]; ldar w0, [x1]
        assert!(Word(0x885f_fc20).is_exclusive() && Word(0x885f_fc20).loads());
        assert!(Word(0x8802_fc20).is_exclusive() && !Word(0x8802_fc20).loads());
        assert_eq!(Word(0x8802_fc20).status(), 2);
        assert!(!Word(0x88df_fc20).is_exclusive());
    }

    #[test]
    fn hints_are_told_apart() {
        // isb sy; wfe; bti j; autiasp; paciasp
        assert!(Word(0xd503_3fdf).is_spin_hint() && Word::YIELD.is_spin_hint());
        assert!(!Word(0xd503_205f).is_spin_hint() && !Word::NOP.is_spin_hint());
        assert!(Word::BTI_C.is_landing_pad() && Word(0xd503_249f).is_landing_pad());
        assert!(Word(0xd503_233f).is_landing_pad() && !Word(0xd503_23bf).is_landing_pad());
    }

    #[test]
    fn a_truncated_word_is_omitted() {
        let code = [0x1f, 0x20, 0x03, 0xd5, 0xc0, 0x03, 0x5f, 0xd6, 0x1f, 0x20];
        assert_eq!(words_at(AT, &code).collect::<Vec<_>>(), [(AT, Word::NOP), (AT + 4, Word::RET)]);
    }
}
