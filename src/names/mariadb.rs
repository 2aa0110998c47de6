//! Names in MariaDB 10.6 and newer: a latch is a bare lock word, known by what it is part of.

use super::{Identity, LatchName};
use crate::catalog::{ArrayLatches, Evidence, HeapLatch, MariadbNames};
use crate::model::Kind;
use crate::symbols::Image;
use crate::target::{Memory, Target};

/// Bytes of a page in the smallest page size; a frame's header lies in its first.
const PAGE_NUMBER_AT: u64 = 4;
const TABLESPACE_AT: u64 = 34;

pub(super) struct Names {
    catalog: &'static MariadbNames,
    /// Static objects of the catalog, by address in the process.
    statics: Vec<(u64, &'static [crate::catalog::Member])>,
    arrays: Vec<(u64, &'static ArrayLatches)>,
}

impl Names {
    pub(super) fn new(target: &Target, _memory: &Memory, catalog: &'static MariadbNames) -> Names {
        let address = |symbol: &str| object(&target.image, symbol).map(|addr| addr + target.bias);
        Names {
            catalog,
            statics: catalog.statics.iter().filter_map(|(symbol, m)| Some((address(symbol)?, *m))).collect(),
            arrays: catalog.arrays.iter().filter_map(|a| Some((address(a.symbol)?, a))).collect(),
        }
    }

    pub(super) fn name(&self, memory: &Memory, identity: &Identity, example: u64) -> Option<LatchName> {
        match *identity {
            Identity::PsiClass(class) => self.instrument(memory, class),
            Identity::Static(addr) => self.static_latch(addr),
            Identity::Caller(_) => self.heap_latch(memory, example),
            _ => None,
        }
    }

    /// performance_schema's own name of a class.
    fn instrument(&self, memory: &Memory, class: u64) -> Option<LatchName> {
        let event = memory.string(class + u64::from(self.catalog.psi.to_name))?;
        let kind = match event.split('/').nth(2)? {
            "mutex" => Kind::Mutex,
            "rwlock" => Kind::Rwlock,
            "sxlock" => Kind::Sxlock,
            "prlock" => Kind::Prlock,
            "cond" => Kind::Cond,
            _ => return None,
        };
        Some(LatchName { event, kind })
    }

    fn static_latch(&self, addr: u64) -> Option<LatchName> {
        self.statics.iter().find_map(|(object, members)| {
            let offset = addr.checked_sub(*object)?;
            let member = members.iter().find(|m| (m.offsets.0..m.offsets.1).contains(&offset))?;
            Some(LatchName::innodb(member.kind, member.name))
        })
    }

    fn heap_latch(&self, memory: &Memory, latch: u64) -> Option<LatchName> {
        let in_array = |(object, array): &(u64, &'static ArrayLatches)| {
            let begin = memory.u64(object + array.array_at)?;
            let cells = memory.u64(object + array.cells_at)? & 0xffff_ffff;
            // The table is padded with latches; twice the cells covers them with room to spare.
            (begin..begin.checked_add(cells * 16)?).contains(&latch).then(|| LatchName::innodb(array.kind, array.name))
        };
        self.arrays.iter().find_map(in_array).or_else(|| {
            let found = self.catalog.heap.iter().find(|h| is_part_of(memory, h, latch))?;
            Some(LatchName::innodb(found.kind, found.name))
        })
    }
}

/// Whether the latch lies in an object of this type.
fn is_part_of(memory: &Memory, what: &HeapLatch, latch: u64) -> bool {
    what.word_at.iter().filter_map(|at| latch.checked_sub(*at)).any(|object| holds(memory, &what.evidence, object))
}

fn holds(memory: &Memory, evidence: &Evidence, object: u64) -> bool {
    match *evidence {
        Evidence::OwnedBy { child_at, parent_at } => child_at.iter().any(|at| {
            let child = memory.u64(object + at).filter(|&c| c != 0);
            child.and_then(|c| memory.u64(c + parent_at)) == Some(object)
        }),
        Evidence::NamedPartOf { name_at, owner_at, owner_name_at } => {
            has_text(memory, object + name_at, |_| true)
                && memory.u64(object + owner_at).is_some_and(|owner| has_table_name(memory, owner + owner_name_at))
        }
        Evidence::TableName { at } => has_table_name(memory, object + at),
        Evidence::PageFrame { id_at, frame_at } => is_page(memory, object, id_at, frame_at).unwrap_or(false),
        Evidence::Magic { at, value } => at.iter().any(|at| memory.u64(object + at) == Some(value)),
    }
}

/// Whether there is a pointer at `addr` to a readable, non-empty name that `fits`.
fn has_text(memory: &Memory, addr: u64, fits: impl Fn(&str) -> bool) -> bool {
    let text = memory.u64(addr).filter(|&p| p != 0).and_then(|p| memory.string(p));
    text.is_some_and(|t| !t.is_empty() && !t.contains(|c: char| c.is_control()) && fits(&t))
}

/// InnoDB names tables `database/table`; its own system tables have no database.
fn has_table_name(memory: &Memory, addr: u64) -> bool {
    has_text(memory, addr, |name| name.contains('/') || name.starts_with("SYS_"))
}

/// Whether an object's page id is what the header of its frame says. A page that is just being read has no header
/// yet: then the id alone is no evidence.
fn is_page(memory: &Memory, object: u64, id_at: u64, frame_at: u64) -> Option<bool> {
    let id = memory.u64(object + id_at)?;
    let frame = memory.u64(object + frame_at).filter(|f| *f != 0 && f % 4096 == 0)?;
    let page = memory.u32(frame + PAGE_NUMBER_AT)?.swap_bytes();
    let space = memory.u32(frame + TABLESPACE_AT)?.swap_bytes();
    Some(page == id as u32 && u64::from(space) == id >> 32)
}

/// A static object by its C++ or C name.
fn object(image: &Image, name: &str) -> Option<u64> {
    image.symbol(name).filter(|s| !s.is_function).map(|s| s.addr)
}
