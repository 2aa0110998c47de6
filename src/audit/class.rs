//! The classes of instructions that the audit counts. Which instruction is in which class is data: one table for each
//! architecture ([`super::aarch64`], [`super::x86`]).

use serde::Serialize;

/// What an instruction is good for, the same for both architectures: what builds for different ones are compared by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Group {
    /// Reads, changes and writes memory as one: `lock` prefix, LSE atomics, calls of outline-atomics helpers.
    Atomic,
    /// Half of an atomic made of two: the loads.
    LoadExclusive,
    /// The other half: the stores. One of them is one atomic.
    StoreExclusive,
    /// A store that orders: `stlr`, and on x86 `xchg`, which is what a sequentially consistent store compiles to.
    OrderedStore,
    /// A load that orders: `ldar`, `ldapr`. On x86 every load does.
    AcquireLoad,
    /// Orders all loads and stores before it with all behind it.
    FullFence,
    /// Orders some of them.
    PartialFence,
    /// Tells the processor that the code is spinning.
    SpinHint,
    /// CRC and carry-less multiplication: what fast checksums are made of.
    Checksum,
}

impl Group {
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

    /// For display.
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

    /// Whether it orders memory accesses, or can: what a function pays for ordering.
    pub fn orders(self) -> bool {
        !matches!(self, Group::SpinHint | Group::Checksum)
    }
}

/// What an atomic orders beyond its own access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ordering {
    Relaxed,
    Acquire,
    Release,
    AcqRel,
}

impl Ordering {
    /// For display.
    pub fn as_str(self) -> &'static str {
        match self {
            Ordering::Relaxed => "relaxed",
            Ordering::Acquire => "acquire",
            Ordering::Release => "release",
            Ordering::AcqRel => "acq_rel",
        }
    }
}

/// Instructions that are counted as one: all operand sizes of a mnemonic, or one option of a barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Class {
    /// The mnemonic without its size (`ldaddal`, `lock xadd`), with the option of a barrier (`dmb ish`).
    pub name: &'static str,
    pub group: Group,
    /// Of arm64's atomics. Those of x86 all order everything.
    pub ordering: Option<Ordering>,
}

impl Class {
    pub(super) const fn new(name: &'static str, group: Group) -> Class {
        Class { name, group, ordering: None }
    }

    pub(super) const fn ordered(name: &'static str, group: Group, ordering: Ordering) -> Class {
        Class { name, group, ordering: Some(ordering) }
    }
}

/// A class by its place in [`super::classes`].
pub type ClassId = u8;

/// Each class once, in the order of its first appearance.
pub(super) fn distinct(classes: impl Iterator<Item = Class>) -> Vec<Class> {
    let mut found = Vec::new();
    for class in classes {
        if !found.contains(&class) {
            found.push(class);
        }
    }
    found
}

/// The place of a class that is one of `classes`.
pub(super) fn id(classes: &[Class], class: Class) -> ClassId {
    classes.iter().position(|c| *c == class).unwrap_or_default() as ClassId
}
