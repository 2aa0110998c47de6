//! MySQL's latch ids: from the id in a mutex to its instrument.
//!
//! The server describes every latch id in a table (`latch_meta`), filled at start by one long function with one step
//! per id: it allocates a description and stores in it the id's name, its level's name and the value of the
//! instrument's key variable. With performance_schema off that value is 0; but the address of the key variable
//! stands in the code next to the id's name.

use std::collections::HashMap;
use std::io;

use super::psi::Instruments;
use super::references::References;
use crate::catalog::{mysql, MysqlLayout};
use crate::code::{Flow, Insn};
use crate::symbols::Image;
use crate::target::Memory;

/// A bound on what is read from the process; real servers have 110 to 130.
const MAX_IDS: u64 = 1024;

/// The longest name of an id that is believed.
const MAX_NAME: usize = 64;

/// From a latch id's own name (`LOG_WRITER`) to the key variable of its instrument: link-time address, `None` for
/// ids that the server does not instrument.
pub type Keys = HashMap<String, Option<u64>>;

/// Derives, from the code that fills the table, which instrument belongs to which id's name.
///
/// An id is left out where the code does not say so clearly.
pub fn keys(code: &References, layout: &MysqlLayout, instruments: &Instruments) -> Keys {
    let not_instrumented = code.image.symbol(layout.not_instrumented).map(|s| s.addr);
    let mut found = Keys::new();
    let mut step = Step::default();
    let insns = initializer(code, layout, instruments);
    for (index, insn) in insns.iter().enumerate() {
        if let Some(address) = code.of(&insns, index) {
            if instruments.by_key(address).is_some() {
                step.keys.push(Some(address));
            } else if Some(address) == not_instrumented {
                step.keys.push(None);
            } else if let Some(name) = id_name(code.image, address) {
                step.names.push(name.to_owned());
            }
        }
        if matches!(insn.flow, Flow::Call(_)) {
            step.finish(&mut found);
        }
    }
    step.finish(&mut found);
    found
}

/// What the code between two calls mentions. Each id has a call of its own, to the allocator or to the
/// constructor of its description.
#[derive(Default)]
struct Step {
    keys: Vec<Option<u64>>,
    names: Vec<String>,
}

impl Step {
    fn finish(&mut self, found: &mut Keys) {
        self.keys.dedup();
        self.names.dedup();
        if let ([key], [name]) = (&self.keys[..], &self.names[..]) {
            found.insert(name.clone(), *key);
        }
        *self = Step::default();
    }
}

/// The instructions of the function that fills the table: the one among `sync_check_init` and its callees that
/// mentions most key variables.
fn initializer(code: &References, layout: &MysqlLayout, instruments: &Instruments) -> Vec<Insn> {
    let outer = code.image.symbol(layout.latch_init).map(|s| code.function(s.addr)).unwrap_or_default();
    let mut functions: Vec<Vec<Insn>> = outer
        .iter()
        .filter_map(|i| match i.flow {
            Flow::Call(Some(to)) | Flow::Jump(to) => Some(code.function(to)),
            _ => None,
        })
        .collect();
    functions.push(outer);
    let mentions = |insns: &Vec<Insn>| {
        let mentioned = (0..insns.len()).filter_map(|i| code.of(insns, i));
        mentioned.filter(|&address| instruments.by_key(address).is_some()).count()
    };
    functions.into_iter().max_by_key(mentions).unwrap_or_default()
}

/// The string at `addr` if it can be an id's name.
fn id_name(image: &Image, addr: u64) -> Option<&str> {
    if !image.section(".rodata")?.contains(&addr) {
        return None;
    }
    let name = image.cstr(addr)?;
    is_id_name(name).then_some(name)
}

/// Level names stand beside the names of ids. They all begin with `SYNC_`, which few ids do.
fn is_id_name(name: &str) -> bool {
    (2..=MAX_NAME).contains(&name.len())
        && (!name.starts_with("SYNC_") || mysql::SYNC_IDS.contains(&name))
        && name.starts_with(|c: char| c.is_ascii_uppercase())
        && name.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_')
}

/// A latch id as the running server describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LatchId {
    pub id: u32,
    pub name: String,
    /// The value of the instrument's key: 0 with performance_schema off, and for ids without an instrument.
    pub key: u32,
}

/// Reads the table of latch ids from the process. Empty while the server is still starting.
///
/// # Errors
/// When the process cannot be read, or the table is not what it should be.
pub fn read(memory: &Memory, bias: u64, image: &Image, layout: &MysqlLayout) -> io::Result<Vec<LatchId>> {
    let invalid = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why.to_owned());
    let table = image.symbol(layout.latch_meta).ok_or_else(|| invalid("the binary does not export its latch ids"))?;
    let at = table.addr.wrapping_add(bias).wrapping_add(layout.latch_meta_begin);
    let (begin, end) = (memory.u64(at)?, memory.u64(at.wrapping_add(8))?);
    let count = end.wrapping_sub(begin) / 8;
    if count > MAX_IDS {
        return Err(invalid("the table of latch ids is implausibly long"));
    }
    let slots: Vec<u64> = (0..count).map(|i| begin.wrapping_add(i * 8)).collect();
    let entries: Vec<u64> =
        memory.read_many::<8>(&slots).into_iter().flatten().map(u64::from_le_bytes).filter(|&e| e != 0).collect();
    Ok(entries.into_iter().filter_map(|entry| read_one(memory, entry, layout)).collect())
}

fn read_one(memory: &Memory, entry: u64, layout: &MysqlLayout) -> Option<LatchId> {
    let id = memory.u32(entry.wrapping_add(layout.meta_id)).ok()?;
    let key = memory.u32(entry.wrapping_add(layout.meta_key)).ok()?;
    let name = memory.cstr(memory.u64(entry.wrapping_add(layout.meta_name)).ok()?, MAX_NAME).ok()?;
    (u64::from(id) < MAX_IDS && is_id_name(&name)).then_some(LatchId { id, name, key })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn level_names_are_not_id_names() {
        assert!(is_id_name("LOG_WRITER"));
        assert!(is_id_name("TRX"));
        assert!(is_id_name("SYNC_ARRAY_MUTEX"));
        assert!(!is_id_name("SYNC_LOG_WRITER"));
        assert!(!is_id_name("log_writer"));
        assert!(!is_id_name(""));
    }

    #[test]
    fn a_step_with_two_candidates_names_nothing() {
        let mut found = Keys::new();
        Step { keys: vec![Some(1), Some(2)], names: vec!["A_B".into()] }.finish(&mut found);
        Step { keys: vec![Some(1)], names: vec![] }.finish(&mut found);
        assert!(found.is_empty());
        Step { keys: vec![Some(1), Some(1)], names: vec!["A_B".into()] }.finish(&mut found);
        assert_eq!(found.get("A_B"), Some(&Some(1)));
    }
}
