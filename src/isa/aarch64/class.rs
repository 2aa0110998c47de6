//! arm64: every instruction is a four-byte word, so a class is a mask and a value.
//!
//! The encodings are from the Arm Architecture Reference Manual (Arm ARM, DDI 0487), chapter C4 "A64 Instruction Set
//! Encoding"; each table names its group there. Fields that "should be one" are ignored, as the processor ignores them.

use std::ops::Range;
use std::sync::LazyLock;

use super::word::{words_at, Word};
use crate::isa::class::{distinct, id, Class, ClassId, Classified, Group, Ordering};

/// Matches the instructions whose bits under `mask` equal `value`.
struct Row {
    mask: u32,
    value: u32,
    class: Class,
}

const fn row(mask: u32, value: u32, name: &'static str, group: Group) -> Row {
    Row { mask, value, class: Class::new(name, group) }
}

const fn ordered(mask: u32, value: u32, name: &'static str, group: Group, ordering: Ordering) -> Row {
    Row { mask, value, class: Class::ordered(name, group, ordering) }
}

/// "Barriers": CRm, bits 8 to 11, is the option.
const BARRIER: u32 = 0xffff_ffff;

/// A barrier with any option.
const ANY_BARRIER: u32 = 0xffff_f0ff;

/// `dsb nXS` of FEAT_XS: the option is in bits 10 and 11.
const DSB_NXS: u32 = 0xffff_f3ff;

#[rustfmt::skip]
const BARRIERS: &[Row] = &[
    row(BARRIER, 0xd503_31bf, "dmb oshld", Group::PartialFence),
    row(BARRIER, 0xd503_32bf, "dmb oshst", Group::PartialFence),
    row(BARRIER, 0xd503_33bf, "dmb osh", Group::FullFence),
    row(BARRIER, 0xd503_35bf, "dmb nshld", Group::PartialFence),
    row(BARRIER, 0xd503_36bf, "dmb nshst", Group::PartialFence),
    row(BARRIER, 0xd503_37bf, "dmb nsh", Group::FullFence),
    row(BARRIER, 0xd503_39bf, "dmb ishld", Group::PartialFence),
    row(BARRIER, 0xd503_3abf, "dmb ishst", Group::PartialFence),
    row(BARRIER, 0xd503_3bbf, "dmb ish", Group::FullFence),
    row(BARRIER, 0xd503_3dbf, "dmb ld", Group::PartialFence),
    row(BARRIER, 0xd503_3ebf, "dmb st", Group::PartialFence),
    row(BARRIER, 0xd503_3fbf, "dmb sy", Group::FullFence),
    row(BARRIER, 0xd503_309f, "ssbb", Group::PartialFence),
    row(BARRIER, 0xd503_349f, "pssbb", Group::PartialFence),
    row(BARRIER, 0xd503_319f, "dsb oshld", Group::PartialFence),
    row(BARRIER, 0xd503_329f, "dsb oshst", Group::PartialFence),
    row(BARRIER, 0xd503_339f, "dsb osh", Group::FullFence),
    row(BARRIER, 0xd503_359f, "dsb nshld", Group::PartialFence),
    row(BARRIER, 0xd503_369f, "dsb nshst", Group::PartialFence),
    row(BARRIER, 0xd503_379f, "dsb nsh", Group::FullFence),
    row(BARRIER, 0xd503_399f, "dsb ishld", Group::PartialFence),
    row(BARRIER, 0xd503_3a9f, "dsb ishst", Group::PartialFence),
    row(BARRIER, 0xd503_3b9f, "dsb ish", Group::FullFence),
    row(BARRIER, 0xd503_3d9f, "dsb ld", Group::PartialFence),
    row(BARRIER, 0xd503_3e9f, "dsb st", Group::PartialFence),
    row(BARRIER, 0xd503_3f9f, "dsb sy", Group::FullFence),
    row(DSB_NXS, 0xd503_323f, "dsb nXS", Group::FullFence),
    // Reserved options behave like `sy`.
    row(ANY_BARRIER, 0xd503_30bf, "dmb reserved", Group::FullFence),
    row(ANY_BARRIER, 0xd503_309f, "dsb reserved", Group::FullFence),
    // A server does not change its code while it runs, so `isb` only takes time.
    row(ANY_BARRIER, 0xd503_30df, "isb", Group::SpinHint),
    row(BARRIER, 0xd503_30ff, "sb", Group::PartialFence),
];

/// "Hints", and those of "System instructions with register argument".
const HINTS: &[Row] = &[
    row(0xffff_ffff, 0xd503_203f, "yield", Group::SpinHint),
    row(0xffff_ffff, 0xd503_205f, "wfe", Group::SpinHint),
    row(0xffff_ffe0, 0xd503_1000, "wfet", Group::SpinHint),
];

/// "Load/store ordered": L is bit 22, o0 is bit 15.
const LOAD_STORE_ORDERED: u32 = 0x3fe0_8000;

/// "LDAPR/STLR (unscaled immediate)".
const UNSCALED: u32 = 0x3fe0_0c00;

const ORDERED: &[Row] = &[
    ordered(LOAD_STORE_ORDERED, 0x08c0_8000, "ldar", Group::AcquireLoad, Ordering::Acquire),
    ordered(LOAD_STORE_ORDERED, 0x0880_8000, "stlr", Group::OrderedStore, Ordering::Release),
    ordered(LOAD_STORE_ORDERED, 0x08c0_0000, "ldlar", Group::AcquireLoad, Ordering::Acquire),
    ordered(LOAD_STORE_ORDERED, 0x0880_0000, "stllr", Group::OrderedStore, Ordering::Release),
    // Part of "Atomic memory operations".
    ordered(0x3fe0_fc00, 0x38a0_c000, "ldapr", Group::AcquireLoad, Ordering::Acquire),
    ordered(UNSCALED, 0x1940_0000, "ldapur", Group::AcquireLoad, Ordering::Acquire),
    // Sign-extending forms: one and two bytes into 64 and 32 bits, four bytes into 64.
    ordered(0xbfe0_0c00, 0x1980_0000, "ldapurs", Group::AcquireLoad, Ordering::Acquire),
    ordered(0xbfe0_0c00, 0x19c0_0000, "ldapurs", Group::AcquireLoad, Ordering::Acquire),
    ordered(0xffe0_0c00, 0x9980_0000, "ldapurs", Group::AcquireLoad, Ordering::Acquire),
    ordered(UNSCALED, 0x1900_0000, "stlur", Group::OrderedStore, Ordering::Release),
];

/// "Load/store exclusive register".
const EXCLUSIVE_REGISTER: u32 = 0x3fe0_8000;

/// "Load/store exclusive pair": bit 31 is set.
const EXCLUSIVE_PAIR: u32 = 0xbfe0_8000;

const EXCLUSIVE: &[Row] = &[
    ordered(EXCLUSIVE_REGISTER, 0x0840_0000, "ldxr", Group::LoadExclusive, Ordering::Relaxed),
    ordered(EXCLUSIVE_REGISTER, 0x0840_8000, "ldaxr", Group::LoadExclusive, Ordering::Acquire),
    ordered(EXCLUSIVE_REGISTER, 0x0800_0000, "stxr", Group::StoreExclusive, Ordering::Relaxed),
    ordered(EXCLUSIVE_REGISTER, 0x0800_8000, "stlxr", Group::StoreExclusive, Ordering::Release),
    ordered(EXCLUSIVE_PAIR, 0x8860_0000, "ldxp", Group::LoadExclusive, Ordering::Relaxed),
    ordered(EXCLUSIVE_PAIR, 0x8860_8000, "ldaxp", Group::LoadExclusive, Ordering::Acquire),
    ordered(EXCLUSIVE_PAIR, 0x8820_0000, "stxp", Group::StoreExclusive, Ordering::Relaxed),
    ordered(EXCLUSIVE_PAIR, 0x8820_8000, "stlxp", Group::StoreExclusive, Ordering::Release),
];

/// The four orderings of an LSE atomic (FEAT_LSE), by the acquire and release bits of its encoding.
macro_rules! lse {
    ($mask:expr, $value:expr, $acquire:expr, $release:expr, $name:literal) => {
        [
            ordered($mask, $value, $name, Group::Atomic, Ordering::Relaxed),
            ordered($mask, $value | $acquire, concat!($name, "a"), Group::Atomic, Ordering::Acquire),
            ordered($mask, $value | $release, concat!($name, "l"), Group::Atomic, Ordering::Release),
            ordered($mask, $value | $acquire | $release, concat!($name, "al"), Group::Atomic, Ordering::AcqRel),
        ]
    };
}

/// "Atomic memory operations": A is bit 23, R is bit 22. `stadd` and its like are loads whose result is discarded.
macro_rules! lse_memory {
    ($value:expr, $name:literal) => {
        lse!(0x3fe0_fc00, $value, 1 << 23, 1 << 22, $name)
    };
}

/// "Compare and swap" and "Compare and swap pair": L is bit 22, o0 is bit 15.
macro_rules! lse_compare {
    ($mask:expr, $value:expr, $name:literal) => {
        lse!($mask, $value, 1 << 22, 1 << 15, $name)
    };
}

const LSE: &[[Row; 4]] = &[
    lse_memory!(0x3820_0000, "ldadd"),
    lse_memory!(0x3820_1000, "ldclr"),
    lse_memory!(0x3820_2000, "ldeor"),
    lse_memory!(0x3820_3000, "ldset"),
    lse_memory!(0x3820_4000, "ldsmax"),
    lse_memory!(0x3820_5000, "ldsmin"),
    lse_memory!(0x3820_6000, "ldumax"),
    lse_memory!(0x3820_7000, "ldumin"),
    lse_memory!(0x3820_8000, "swp"),
    lse_compare!(0x3fe0_fc00, 0x08a0_7c00, "cas"),
    lse_compare!(0xbfe0_fc00, 0x0820_7c00, "casp"),
];

/// "Data-processing (2 source)", and `pmull` of 64-bit polynomials (FEAT_PMULL) from "Advanced SIMD three different".
#[rustfmt::skip]
const CHECKSUMS: &[Row] = &[
    row(0xffe0_fc00, 0x1ac0_4000, "crc32", Group::Checksum),
    row(0xffe0_fc00, 0x1ac0_4400, "crc32", Group::Checksum),
    row(0xffe0_fc00, 0x1ac0_4800, "crc32", Group::Checksum),
    row(0xffe0_fc00, 0x9ac0_4c00, "crc32", Group::Checksum),
    row(0xffe0_fc00, 0x1ac0_5000, "crc32c", Group::Checksum),
    row(0xffe0_fc00, 0x1ac0_5400, "crc32c", Group::Checksum),
    row(0xffe0_fc00, 0x1ac0_5800, "crc32c", Group::Checksum),
    row(0xffe0_fc00, 0x9ac0_5c00, "crc32c", Group::Checksum),
    row(0xbfe0_fc00, 0x0ee0_e000, "pmull", Group::Checksum),
];

/// The table, with an index for finding a word's rows by its highest byte.
struct Table {
    /// The mask, value and class of each row. Where two rows match, the first applies.
    rows: Vec<(u32, u32, ClassId)>,
    /// The rows for each value of a word's highest byte.
    by_byte: [Range<usize>; 256],
    classes: Vec<Class>,
}

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    let all = || [BARRIERS, HINTS, ORDERED, EXCLUSIVE, CHECKSUMS].into_iter().flatten().chain(LSE.iter().flatten());
    let classes = distinct(all().map(|row| row.class));
    let mut rows = Vec::new();
    let by_byte = std::array::from_fn(|byte| {
        let start = rows.len();
        let matching = all().filter(|row| ((byte as u32) << 24) & row.mask == row.value & row.mask & 0xff00_0000);
        rows.extend(matching.map(|row| (row.mask, row.value, id(&classes, row.class))));
        start..rows.len()
    });
    Table { rows, by_byte, classes }
});

/// Returns all classes of instructions.
pub fn classes() -> &'static [Class] {
    &TABLE.classes
}

/// Returns the class of an instruction, if it has one.
pub fn classify(word: Word) -> Option<ClassId> {
    let rows = &TABLE.rows[TABLE.by_byte[word.field(24, 8) as usize].clone()];
    rows.iter().find(|(mask, value, _)| word.is(*mask, *value)).map(|row| row.2)
}

/// Decodes the code at `base`.
pub fn classified(base: u64, code: &[u8]) -> impl Iterator<Item = Classified> + '_ {
    words_at(base, code).map(|(addr, word)| Classified { addr, len: 4, class: classify(word) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(word: u32) -> Option<Class> {
        classify(Word(word)).map(|class| classes()[usize::from(class)])
    }

    #[test]
    fn barriers_and_hints_are_known() {
        let cases = [
            (0xd503_3bbf, Some("dmb ish")),
            (0xd503_39bf, Some("dmb ishld")),
            (0xd503_3f9f, Some("dsb sy")),
            (0xd503_3fdf, Some("isb")),
            (0xd503_30ff, Some("sb")),
            (0xd503_203f, Some("yield")),
            (0xd503_205f, Some("wfe")),
            (0xd503_38bf, Some("dmb reserved")),
            (0xd503_201f, None),
            (0xd65f_03c0, None),
        ];
        for (word, expected) in cases {
            assert_eq!(class(word).map(|class| class.name), expected, "{word:#x}");
        }
    }

    #[test]
    fn atomics_have_orderings() {
        let cases = [
            (0xb8e1_0040, Class::ordered("ldaddal", Group::Atomic, Ordering::AcqRel)),
            (0x38a0_8041, Class::ordered("swpa", Group::Atomic, Ordering::Acquire)),
            (0x7860_3041, Class::ordered("ldsetl", Group::Atomic, Ordering::Release)),
            (0xc8a0_7c41, Class::ordered("cas", Group::Atomic, Ordering::Relaxed)),
            (0x4860_fc82, Class::ordered("caspal", Group::Atomic, Ordering::AcqRel)),
            (0xc8df_fc41, Class::ordered("ldar", Group::AcquireLoad, Ordering::Acquire)),
            (0xb8bf_c001, Class::ordered("ldapr", Group::AcquireLoad, Ordering::Acquire)),
            (0x889f_fc01, Class::ordered("stlr", Group::OrderedStore, Ordering::Release)),
            (0x885f_fc01, Class::ordered("ldaxr", Group::LoadExclusive, Ordering::Acquire)),
            (0x8802_7c01, Class::ordered("stxr", Group::StoreExclusive, Ordering::Relaxed)),
        ];
        for (word, expected) in cases {
            assert_eq!(class(word), Some(expected), "{word:#x}");
        }
    }

    #[test]
    fn checksum_instructions_are_known() {
        // crc32cx w0, w0, x1; crc32w w0, w0, w1; pmull v0.1q, v1.1d, v2.1d; pmull v0.8h, v1.8b, v2.8b
        let names =
            [0x9ac1_5c00, 0x1ac1_4800, 0x0ee2_e020, 0x0e22_e020].map(|word| class(word).map(|class| class.name));
        assert_eq!(names, [Some("crc32c"), Some("crc32"), Some("pmull"), None]);
    }
}
