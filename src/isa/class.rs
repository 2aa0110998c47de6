//! Classes of the instructions that order memory, tell the processor of spinning, or compute checksums. The mapping
//! from instructions to classes is data: one table per architecture ([`super::aarch64`], [`super::x86`]).

use serde::Serialize;
use strum::IntoStaticStr;

use super::{aarch64, x86};
use crate::symbols::Arch;

/// The purpose of an instruction, common to both architectures, so that builds for different architectures can be
/// compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Group {
    /// An atomic read-modify-write: `lock` prefix, LSE atomics, calls of outline-atomics helpers.
    Atomic,
    /// The load half of an atomic that consists of two instructions.
    LoadExclusive,
    /// The store half. Each store counts as one atomic.
    StoreExclusive,
    /// A store with ordering: `stlr`, and on x86 `xchg`, to which a sequentially consistent store compiles.
    OrderedStore,
    /// A load with ordering: `ldar`, `ldapr`. On x86 every load has it.
    AcquireLoad,
    /// Orders all loads and stores before it with all those after it.
    FullFence,
    /// Orders only some of them.
    PartialFence,
    /// Tells the processor that the code is spinning.
    SpinHint,
    /// CRC and carry-less multiplication, from which fast checksums are built.
    Checksum,
}

impl Group {
    /// All groups, in the order of tables.
    pub const ALL: [Group; 9] = [
        Group::Atomic,
        Group::LoadExclusive,
        Group::StoreExclusive,
        Group::OrderedStore,
        Group::AcquireLoad,
        Group::FullFence,
        Group::PartialFence,
        Group::SpinHint,
        Group::Checksum,
    ];

    /// Returns the name for display.
    pub fn title(self) -> &'static str {
        match self {
            Group::Atomic => "atomic",
            Group::LoadExclusive => "load-exclusive",
            Group::StoreExclusive => "store-exclusive",
            Group::OrderedStore => "ordered store",
            Group::AcquireLoad => "acquire load",
            Group::FullFence => "full fence",
            Group::PartialFence => "partial fence",
            Group::SpinHint => "spin hint",
            Group::Checksum => "checksum",
        }
    }

    /// Returns whether the instruction orders memory accesses, or may: what a function pays for ordering.
    pub fn orders(self) -> bool {
        !matches!(self, Group::SpinHint | Group::Checksum)
    }
}

/// The ordering that an atomic imposes on other accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[serde(rename_all = "snake_case")]
pub enum Ordering {
    /// No ordering.
    Relaxed,
    /// No later access moves before it.
    Acquire,
    /// No earlier access moves after it.
    Release,
    /// Both acquire and release.
    AcqRel,
}

impl Ordering {
    /// Returns the name for display.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// A set of instructions that are counted together: all operand sizes of a mnemonic, or one option of a barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Class {
    /// The mnemonic without operand size (`ldaddal`, `lock xadd`), with the option of a barrier (`dmb ish`).
    pub name: &'static str,
    /// The purpose.
    pub group: Group,
    /// The ordering of an arm64 atomic. Those of x86 all order everything.
    pub ordering: Option<Ordering>,
}

impl Class {
    /// Returns a class without an ordering of its own.
    pub const fn new(name: &'static str, group: Group) -> Class {
        Class { name, group, ordering: None }
    }

    /// Returns a class of atomics with this ordering.
    pub const fn ordered(name: &'static str, group: Group, ordering: Ordering) -> Class {
        Class { name, group, ordering: Some(ordering) }
    }
}

/// The index of a class among those of its architecture: [`super::aarch64::classes`], [`super::x86::classes`].
pub type ClassId = u8;

/// An instruction, by its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Classified {
    /// Link-time address.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    /// `None` for instructions that are in no class.
    pub class: Option<ClassId>,
}

/// Decodes the code at `base`, one instruction after the other.
pub fn classified<'c>(arch: Arch, base: u64, code: &'c [u8]) -> Box<dyn Iterator<Item = Classified> + 'c> {
    match arch {
        Arch::X86_64 => Box::new(x86::classified(base, code)),
        Arch::Aarch64 => Box::new(aarch64::classified(base, code)),
    }
}

/// Returns each class once, in order of first appearance.
pub fn distinct(classes: impl Iterator<Item = Class>) -> Vec<Class> {
    let mut found = Vec::new();
    for class in classes {
        if !found.contains(&class) {
            found.push(class);
        }
    }
    found
}

/// Returns the index of a class in `classes`, which must contain it.
pub fn id(classes: &[Class], class: Class) -> ClassId {
    classes.iter().position(|c| *c == class).unwrap_or_default() as ClassId
}
