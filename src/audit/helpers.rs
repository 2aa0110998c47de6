//! Outline atomics: with `-moutline-atomics`, the default of GCC and Clang for arm64, every atomic is a call of a small
//! helper. The helper reads a byte that says whether the CPU has LSE, and then executes either the LSE instruction or a
//! loop of exclusive loads and stores.
//!
//! The helpers are local functions of libgcc or compiler-rt, so stripped servers have no names for them. They are
//! recognized by their shape: `adrp`, `ldrb` and `cbz` of one register, an LSE atomic, `ret`.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::LazyLock;

use crate::isa::aarch64::{self, classify, words, Word};
use crate::isa::{distinct, id, Class, ClassId, Group, Ordering};

/// The largest number of words after the LSE instruction within which a helper ends. The longest known helper takes 12.
const MAX_FALLBACK: usize = 24;

/// The calls of one operation's helpers, for all operand sizes, by ordering. The last is the one to which `__sync_`
/// functions compile.
macro_rules! calls {
    ($name:literal) => {
        [
            Class::ordered(concat!("call ", $name, "_relax"), Group::Atomic, Ordering::Relaxed),
            Class::ordered(concat!("call ", $name, "_acq"), Group::Atomic, Ordering::Acquire),
            Class::ordered(concat!("call ", $name, "_rel"), Group::Atomic, Ordering::Release),
            Class::ordered(concat!("call ", $name, "_acq_rel"), Group::Atomic, Ordering::AcqRel),
            Class::ordered(concat!("call ", $name, "_sync"), Group::Atomic, Ordering::AcqRel),
        ]
    };
}

/// For each operation: the prefix of its LSE mnemonic, its name in helpers, and the classes of its calls. `casp` must
/// precede `cas`.
const OPERATIONS: &[(&str, &str, [Class; 5])] = &[
    ("casp", "cas", calls!("cas")),
    ("cas", "cas", calls!("cas")),
    ("swp", "swp", calls!("swp")),
    ("ldadd", "ldadd", calls!("ldadd")),
    ("ldclr", "ldclr", calls!("ldclr")),
    ("ldeor", "ldeor", calls!("ldeor")),
    ("ldset", "ldset", calls!("ldset")),
];

/// The suffixes of helper names, in the order of the classes of calls.
const ENDINGS: [&str; 5] = ["relax", "acq", "rel", "acq_rel", "sync"];

/// Returns all classes of arm64 instructions, and then those of calls.
pub(super) fn classes() -> &'static [Class] {
    static ALL: LazyLock<Vec<Class>> = LazyLock::new(|| {
        let calls = OPERATIONS.iter().flat_map(|operation| operation.2);
        distinct(aarch64::classes().iter().copied().chain(calls))
    });
    &ALL
}

/// One helper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Helper {
    /// The address range of its code.
    pub range: Range<u64>,
    /// The name that libgcc gives it, without `__aarch64_`: `ldadd4_acq_rel`.
    pub name: String,
    /// The class of a call to it.
    pub(super) call: ClassId,
}

impl Helper {
    /// Returns the symbol that it has in programs that are not stripped.
    pub fn symbol(&self) -> String {
        format!("__aarch64_{}", self.name)
    }
}

/// The helpers of a program.
#[derive(Debug, Default)]
pub struct Helpers {
    by_entry: HashMap<u64, Helper>,
    /// The entries of the first and the last helper.
    entries: Option<(u64, u64)>,
}

impl Helpers {
    /// Finds the helpers in the code at `base`.
    pub(super) fn find(base: u64, text: &[u8]) -> Helpers {
        let mut helpers = Helpers::default();
        for (i, word) in words(text).enumerate() {
            let Some(class) = classify(word) else { continue };
            let found = helper(base, text, i, &classes()[usize::from(class)]);
            helpers.by_entry.extend(found.map(|helper| (helper.range.start, helper)));
        }
        let entries = || helpers.by_entry.keys().copied();
        helpers.entries = entries().min().zip(entries().max());
        helpers
    }

    /// Returns the number of helpers.
    pub fn len(&self) -> usize {
        self.by_entry.len()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.by_entry.is_empty()
    }

    /// Returns the helper that begins at `entry`.
    pub fn at(&self, entry: u64) -> Option<&Helper> {
        let (first, last) = self.entries?;
        // Most branches lead elsewhere, so check the bounds first.
        (first..=last).contains(&entry).then(|| self.by_entry.get(&entry))?
    }

    /// Iterates over the helpers, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &Helper> {
        self.by_entry.values()
    }
}

fn word(text: &[u8], at: usize) -> Option<Word> {
    words(text.get(at.checked_mul(4)?..)?).next()
}

/// Returns the helper whose LSE instruction, of this class, is word `at`.
fn helper(base: u64, text: &[u8], at: usize, class: &Class) -> Option<Helper> {
    let (_, name, calls) = OPERATIONS.iter().find(|o| class.group == Group::Atomic && class.name.starts_with(o.0))?;
    let check = at.checked_sub(3)?;
    let fallback = check + 2 + chosen_by_a_byte([word(text, check)?, word(text, check + 1)?, word(text, check + 2)?])?;
    if word(text, at + 1)? != Word::RET || fallback <= at {
        return None;
    }
    let rest = words(text.get(fallback * 4..)?).take(MAX_FALLBACK);
    let end = fallback + rest.clone().position(|w| w == Word::RET)? + 1;
    let is_sync = rest.take(end - fallback).any(|w| w == Word::DMB_ISH);
    let has_pad = check.checked_sub(1).and_then(|before| word(text, before)) == Some(Word::BTI_C);
    let entry = check - usize::from(has_pad);
    let variant = if is_sync { 4 } else { class.ordering? as usize };
    let size = if class.name.starts_with("casp") { 16 } else { word(text, at)?.access_bytes() };
    let address = |word: usize| base.wrapping_add(word as u64 * 4);
    Some(Helper {
        range: address(entry)..address(end),
        name: format!("{name}{size}_{}", ENDINGS[variant]),
        call: id(classes(), calls[variant]),
    })
}

/// Checks that the words are `adrp`, `ldrb` and `cbz` of one register, and returns the number of words from the branch
/// to its target, which must be further on.
fn chosen_by_a_byte([adrp, ldrb, cbz]: [Word; 3]) -> Option<usize> {
    let (register, _) = adrp.page(0)?;
    let branch = cbz.zero_branch(0).filter(|branch| branch.if_zero && branch.bits == 32)?;
    let are_these = ldrb.byte_load()? == (register, register) && branch.register == register;
    usize::try_from(branch.to as i64 / 4).ok().filter(|_| are_these)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// libgcc's `__aarch64_cas8_relax` in MySQL 9.7.4.
    const CAS8: [u32; 12] = [
        0x9000_e510,
        0x3975_9610,
        0x3400_0070,
        0xc8a0_7c41,
        Word::RET.0,
        0xaa00_03f0,
        0xc85f_7c40,
        0xeb10_001f,
        0x5400_0061,
        0xc811_7c41,
        0x35ff_ff91,
        Word::RET.0,
    ];

    fn found(words: &[u32]) -> Vec<Helper> {
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        Helpers::find(0x1000, &bytes).iter().cloned().collect()
    }

    fn names(words: &[u32]) -> Vec<String> {
        found(words).into_iter().map(|h| h.name).collect()
    }

    #[test]
    fn a_helper_is_known_by_its_shape() {
        let helpers = found(&CAS8);
        assert_eq!(helpers.len(), 1);
        assert_eq!((helpers[0].range.clone(), &*helpers[0].name), (0x1000..0x1030, "cas8_relax"));
        assert_eq!(classes()[usize::from(helpers[0].call)].name, "call cas_relax");
    }

    #[test]
    fn a_landing_pad_belongs_to_it() {
        let helpers = found(&[&[Word::BTI_C.0], &CAS8[..]].concat());
        assert_eq!(helpers[0].range, 0x1000..0x1034);
    }

    #[test]
    fn size_ordering_and_operation_are_the_instructions() {
        let with = |lse: u32| {
            let mut words = CAS8;
            words[3] = lse;
            names(&words)
        };
        assert_eq!(with(0xb8e1_0040), ["ldadd4_acq_rel"]);
        assert_eq!(with(0x38a0_8041), ["swp1_acq"]);
        assert_eq!(with(0x7860_3041), ["ldset2_rel"]);
        assert_eq!(with(0x4860_fc82), ["cas16_acq_rel"]);
        // A load is not an atomic.
        assert_eq!(with(0xc8df_fc41), [""; 0]);
    }

    #[test]
    fn a_barrier_makes_it_one_for_sync_functions() {
        let mut words = CAS8;
        words[3] = 0xc8e0_fc41;
        let words = [&words[..11], &[Word::DMB_ISH.0, Word::RET.0]].concat();
        assert_eq!(names(&words), ["cas8_sync"]);
    }

    #[test]
    fn other_code_is_no_helper() {
        for broken in [0, 1, 2, 4] {
            let mut words = CAS8;
            words[broken] = 0xd503_201f;
            assert_eq!(names(&words), [""; 0], "word {broken}");
        }
        // A different register; a backward branch; no end.
        for (at, word) in [(1, 0x3975_9611), (2, 0x34ff_ffd0), (11, 0xd503_201f)] {
            let mut words = CAS8;
            words[at] = word;
            assert_eq!(names(&words), [""; 0], "word {at}");
        }
        for cut in 0..CAS8.len() {
            assert_eq!(names(&CAS8[..cut]), [""; 0]);
        }
    }
}
