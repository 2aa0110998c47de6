//! MySQL's latch ids: from the id in a mutex to its instrument.
//!
//! The server describes every latch id in a table (`latch_meta`), filled at start by one long function with one step
//! per id: it allocates a description and stores in it the id's name, its level's name and the value of the
//! instrument's key variable. With performance_schema off that value is 0; but the address of the key variable
//! stands in the code next to the id's name.

use std::collections::HashMap;

use super::psi::Instruments;
use super::references::References;
use super::Process;
use crate::catalog::MysqlNames;
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
pub fn keys(code: &References, catalog: &MysqlNames, instruments: &Instruments) -> Keys {
    let not_instrumented = catalog.not_instrumented.and_then(|name| code.image.symbol(name)).map(|s| s.addr);
    let mut found = Keys::new();
    let mut step = Step::default();
    let insns = initializer(code, catalog, instruments);
    for (index, insn) in insns.iter().enumerate() {
        if let Some(address) = code.of(&insns, index) {
            if instruments.by_key(address).is_some() {
                step.keys.push(Some(address));
            } else if Some(address) == not_instrumented {
                step.keys.push(None);
            } else if let Some(name) = id_name(code.image, catalog, address) {
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
fn initializer(code: &References, catalog: &MysqlNames, instruments: &Instruments) -> Vec<Insn> {
    let outer = code.image.symbol(catalog.latch_init).map(|s| code.function(s.addr)).unwrap_or_default();
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
fn id_name<'a>(image: &'a Image, catalog: &MysqlNames, addr: u64) -> Option<&'a str> {
    if !image.section(".rodata")?.contains(&addr) {
        return None;
    }
    let name = image.cstr(addr)?;
    is_id_name(name, catalog).then_some(name)
}

/// Level names stand beside the names of ids. They all begin with `SYNC_`, which few ids do.
fn is_id_name(name: &str, catalog: &MysqlNames) -> bool {
    (2..=MAX_NAME).contains(&name.len())
        && (!name.starts_with("SYNC_") || catalog.sync_ids.contains(&name))
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

/// Reads the table of latch ids from the process. `None` when it cannot be read or is not what it should be; empty
/// while the server is still starting.
pub fn read(process: &Process, catalog: &MysqlNames) -> Option<Vec<LatchId>> {
    let table = process.image.symbol(catalog.latch_meta)?;
    let at = table.addr.wrapping_add(process.bias).wrapping_add(catalog.latch_meta_begin);
    let (begin, end) = (process.memory.u64(at)?, process.memory.u64(at.wrapping_add(8))?);
    let count = end.checked_sub(begin)? / 8;
    if count > MAX_IDS {
        return None;
    }
    let slots: Vec<u64> = (0..count).map(|i| begin.wrapping_add(i * 8)).collect();
    let entries = process.memory.read_many::<8>(&slots).into_iter().flatten().map(u64::from_le_bytes);
    Some(entries.filter(|&entry| entry != 0).filter_map(|entry| read_one(&process.memory, entry, catalog)).collect())
}

fn read_one(memory: &Memory, entry: u64, catalog: &MysqlNames) -> Option<LatchId> {
    let id = memory.u32(entry.wrapping_add(catalog.meta_id))?;
    let key = memory.u32(entry.wrapping_add(catalog.meta_key))?;
    let name = memory.string(memory.u64(entry.wrapping_add(catalog.meta_name))?)?;
    (u64::from(id) < MAX_IDS && is_id_name(&name, catalog)).then_some(LatchId { id, name, key })
}

#[cfg(test)]
mod tests {
    use super::*;

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
