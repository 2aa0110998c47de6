//! Identifies latches from the server's memory, with the keys that the programs give them (`bpf/identity.h`,
//! `bpf/pthread.h`).

use std::ops::Range;
use std::sync::Arc;

use crate::bpf::latch::types;
use crate::catalog::{psi_pointers, tracked_id, MetadataLock, PageLatch, PsiClass, PsiPointer};
use crate::discovery::prlock_kind;
use crate::measure::latch::keys::PTHREAD;
use crate::measure::latch::Plan;
use crate::server::{Memory, Target};

/// The beginning of the name of every performance_schema class of interest, and the offset in it of the kind.
const EVENT: &[u8; 11] = b"wait/synch/";

/// The alignment of pages in memory, in bytes.
const MIN_PAGE: u64 = 1024;

/// Bounds of the length of a metadata lock's key, and of its namespaces' numbers.
const METADATA_TEXT: Range<u16> = 3..388;
const METADATA_NAMESPACES: u8 = 32;

/// A sleep in one of the C library's functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct LibrarySleep {
    pub word: u64,
    /// `enum primitive`.
    pub primitive: u32,
    /// Whether the thread sleeps with `FUTEX_WAIT`, and not for a condition variable.
    pub plain_wait: bool,
    /// The code that called the library.
    pub caller: u64,
}

/// Identifies the latches of one server.
pub(super) struct Identifier {
    memory: Memory,
    plan: Arc<Plan>,
    static_data: Range<u64>,
    psi_from_latch: Option<i32>,
    class: PsiClass,
    pointers: Vec<PsiPointer>,
    prlock: Vec<Range<u64>>,
    tracked: Option<Range<u64>>,
    tracked_id: u32,
    metadata: &'static MetadataLock,
    metadata_instance: u32,
    page: Option<&'static PageLatch>,
}

impl Identifier {
    pub fn new(target: &Target, plan: &Arc<Plan>) -> Identifier {
        let library = target.family.pthread;
        let arch = target.image.arch();
        let moved = |range: Range<u64>| range.start + target.bias..range.end + target.bias;
        let functions = |names: &'static [&'static str]| {
            let symbols = names.iter().flat_map(|name| target.image.functions_named(name));
            symbols.filter_map(|symbol| target.image.function_at(symbol.addr)).map(moved).collect::<Vec<_>>()
        };
        Identifier {
            memory: Memory::new(target.pid),
            plan: Arc::clone(plan),
            static_data: plan.static_data.clone().map_or(0..0, moved),
            psi_from_latch: target.family.psi_from_latch(),
            class: target.psi_class(),
            pointers: psi_pointers(arch, library, prlock_kind(&target.image)),
            prlock: functions(library.prlock),
            tracked: functions(library.tracked).into_iter().next(),
            tracked_id: tracked_id(arch),
            metadata: &library.metadata_lock,
            metadata_instance: library.metadata_instance(arch),
            page: target.family.pages.map(|pages| &pages.latch),
        }
    }

    /// Returns the key of a latch for which a thread waits in a wait function, called from `caller`. `None` if its
    /// memory cannot be read, or the function's latches are not known.
    pub fn latch(&self, function: u8, latch: u64, caller: u64) -> Option<types::latch_key> {
        let kinds = self.plan.kinds.get(usize::from(function))?;
        let kind = kinds.kinds.first().filter(|_| kinds.count > 0)?;
        self.of_kind(kind, function, latch, caller)
    }

    /// Returns the key of a latch that a cell of the sync array names, with the number of the kind of wait.
    pub fn latch_of_cell(&self, number: u64, latch: u64) -> Option<types::latch_key> {
        self.of_kind(&self.plan.cells.kind(number)?, 0, latch, 0)
    }

    fn of_kind(&self, kind: &types::latch_kind, function: u8, latch: u64, caller: u64) -> Option<types::latch_key> {
        let key = types::latch_key { function, mode: kind.mode, identity: kind.identity, ..Default::default() };
        let at = |offset: u16| latch.wrapping_add(offset.into());
        match types::identity(kind.identity.into()) {
            types::identity::IDENTITY_LATCH_ID => {
                Some(types::latch_key { id: self.memory.u32(at(kind.id_offset))?.into(), ..key })
            }
            types::identity::IDENTITY_CREATED => {
                let id = self.memory.u64(at(kind.id_offset))?;
                let line = self.memory.u32(at(kind.line_offset))? & kind.line_mask;
                Some(types::latch_key { id, line, ..key })
            }
            _ => Some(self.word(latch, caller, key)),
        }
    }

    /// Returns the key of a latch that is a bare word.
    fn word(&self, latch: u64, caller: u64, key: types::latch_key) -> types::latch_key {
        let with = |identity: types::identity, id| types::latch_key { identity: identity.0 as u8, id, ..key };
        if self.static_data.contains(&latch) {
            return with(types::identity::IDENTITY_STATIC, latch);
        }
        let class = self.psi_from_latch.and_then(|from| self.psi_class(latch.wrapping_add_signed(from.into())));
        match class {
            Some((class, _)) => with(types::identity::IDENTITY_PSI_CLASS, class),
            None if self.is_of_page(latch) => with(types::identity::IDENTITY_PAGE, 0),
            None => with(types::identity::IDENTITY_CALLER, caller),
        }
    }

    /// Returns whether the data around a latch says that it is a page's.
    fn is_of_page(&self, latch: u64) -> bool {
        let Some(page) = self.page else { return false };
        let at = |offset: i32| latch.wrapping_add_signed(offset.into());
        let header = || {
            let frame = self.memory.u64(at(page.frame)).filter(|frame| *frame != 0 && frame % MIN_PAGE == 0)?;
            let header: [u8; 38] = self.memory.array(frame)?;
            let number = |at: usize| Some(u32::from_be_bytes(*header.get(at..)?.first_chunk()?));
            Some((number(34)?, number(4)?))
        };
        let own = || Some((self.memory.u32(at(page.space))?, self.memory.u32(at(page.page_no))?));
        header().is_some_and(|header| own() == Some(header))
    }

    /// Returns the performance_schema class of the instance to which the pointer at an address leads, and the first
    /// letter of its kind.
    fn psi_class(&self, at: u64) -> Option<(u64, u8)> {
        let instance = self.memory.u64(at).filter(|instance| *instance != 0)?;
        let class = self.memory.u64(instance.wrapping_add(self.class.to_class.into()))?;
        let name: [u8; EVENT.len() + 1] = self.memory.array(class.wrapping_add(self.class.to_name.into()))?;
        name.starts_with(EVENT).then_some((class, name[EVENT.len()]))
    }

    /// Returns the key of the C library lock that a thread sleeps for. `None` if it cannot be identified, or is none.
    pub fn lock(&self, sleep: &LibrarySleep) -> Option<types::latch_key> {
        use types::primitive as primitives;
        let primitive = types::primitive(sleep.primitive);
        let mode = match primitive {
            primitives::PRIMITIVE_RWLOCK_READ => types::mode::MODE_S,
            primitives::PRIMITIVE_RWLOCK_WRITE => types::mode::MODE_X,
            _ => types::mode::MODE_NONE,
        };
        let key = types::latch_key {
            function: PTHREAD,
            primitive: sleep.primitive as u8,
            mode: mode.0 as u8,
            ..Default::default()
        };
        let with = |identity: types::identity, id| types::latch_key { identity: identity.0 as u8, id, ..key };
        if primitive == primitives::PRIMITIVE_ALLOCATOR {
            return Some(with(types::identity::IDENTITY_ALLOCATOR, 0));
        }
        let is_prlock = self.is_prlock(sleep.caller);
        if let Some(class) = self.psi_class_of_word(sleep.word, sleep.plain_wait, is_prlock) {
            return Some(with(types::identity::IDENTITY_PSI_CLASS, class));
        }
        if primitive == primitives::PRIMITIVE_NONE {
            return None;
        }
        if self.tracked.as_ref().is_some_and(|tracked| tracked.contains(&sleep.caller)) {
            let id = self.memory.u32(sleep.word.wrapping_add(self.tracked_id.into()))?;
            return Some(with(types::identity::IDENTITY_LATCH_ID, id.into()));
        }
        if self.static_data.contains(&sleep.word) {
            // Condition variables and rw-locks have two words on which threads sleep, side by side.
            return Some(with(types::identity::IDENTITY_STATIC, sleep.word & !7));
        }
        if is_prlock && self.is_metadata_lock(sleep.word, sleep.plain_wait) {
            return Some(with(types::identity::IDENTITY_METADATA_LOCK, 0));
        }
        (sleep.caller != 0).then(|| with(types::identity::IDENTITY_CALLER, sleep.caller))
    }

    /// Returns whether this code locks a `rw_pr_lock_t`.
    pub fn is_prlock(&self, code: u64) -> bool {
        self.prlock.iter().any(|range| range.contains(&code))
    }

    fn psi_class_of_word(&self, word: u64, plain_wait: bool, is_prlock: bool) -> Option<u64> {
        let is_possible = |p: &&PsiPointer| p.plain_wait == plain_wait && (is_prlock || !p.is_prlock);
        self.pointers.iter().filter(is_possible).find_map(|pointer| {
            let (class, kind) = self.psi_class(pointer_at(pointer, word))?;
            // The kinds' names begin with different letters.
            pointer.kind.as_str().as_bytes().starts_with(&[kind]).then_some(class)
        })
    }

    fn is_metadata_lock(&self, word: u64, plain_wait: bool) -> bool {
        let possible = self.pointers.iter().filter(|p| p.is_prlock && p.plain_wait == plain_wait);
        possible
            .map(|pointer| pointer_at(pointer, word))
            .any(|instance| self.is_metadata_key(instance.wrapping_sub(self.metadata_instance.into())).unwrap_or(false))
    }

    /// Returns whether a metadata lock's key is here: two lengths that match each other and the text.
    fn is_metadata_key(&self, key: u64) -> Option<bool> {
        let text = key.wrapping_add(self.metadata.text.into());
        let [low, high, schema_low, schema_high] = self.memory.array(key)?;
        let [length, schema] = [[low, high], [schema_low, schema_high]].map(u16::from_le_bytes);
        if !METADATA_TEXT.contains(&length) || schema.saturating_add(METADATA_TEXT.start) > length {
            return Some(false);
        }
        let byte = |at: u16| Some(self.memory.array::<1>(text.wrapping_add(at.into()))?[0]);
        Some(byte(0)? < METADATA_NAMESPACES && byte(1 + schema)? == 0 && byte(length - 1)? == 0)
    }
}

/// Returns where the pointer to its instance is in an object in which threads sleep on this word.
fn pointer_at(pointer: &PsiPointer, word: u64) -> u64 {
    (word & !7).wrapping_add(pointer.offset.into())
}
