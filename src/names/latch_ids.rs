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
use crate::catalog::{IdNames, MysqlNames};
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
pub fn keys(code: &References, catalog: &MysqlNames, ids: &IdNames, instruments: &Instruments) -> Keys {
    let not_instrumented = code.image.symbol(catalog.not_instrumented).map(|s| s.addr);
    let insns = initializer(code, ids, instruments);
    let mut steps = vec![Vec::new()];
    for (index, insn) in insns.iter().enumerate() {
        if let Some(address) = code.of(&insns, index) {
            let key = instruments.by_key(address).map(|_| Mention::Key(Some(address)));
            let none = || (Some(address) == not_instrumented).then_some(Mention::Key(None));
            let name = || id_name(code.image, ids, address).map(|name| Mention::Name(name.to_owned()));
            steps
                .last_mut()
                .into_iter()
                .for_each(|step: &mut Vec<_>| step.extend(key.clone().or_else(none).or_else(name)));
        }
        if matches!(insn.flow, Flow::Call(_)) {
            steps.push(Vec::new());
        }
    }
    by_steps(&steps, instruments)
        .filter(|found| found.len() >= FEWEST)
        .unwrap_or_else(|| in_turns(&steps.concat(), instruments).unwrap_or_default())
}

/// What the code that fills the table refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Mention {
    /// An instrument's key variable; `None` that of latches without an instrument.
    Key(Option<u64>),
    /// An id's name.
    Name(String),
}

impl Mention {
    fn name(&self) -> Option<&str> {
        match self {
            Mention::Name(name) => Some(name),
            Mention::Key(_) => None,
        }
    }
}

/// The id and key of the code between two calls. Each id has a call of its own, to the allocator or to the
/// constructor of its description.
fn step_of_one(step: &[Mention]) -> Option<(String, Option<u64>)> {
    let mut distinct = step.to_vec();
    distinct.dedup();
    match &distinct[..] {
        [Mention::Key(key), Mention::Name(name)] | [Mention::Name(name), Mention::Key(key)] => {
            Some((name.clone(), *key))
        }
        _ => None,
    }
}

/// An id's name, and the key that is taken for its own, if one is.
type Row = (String, Option<Option<u64>>);

/// The ids and keys of code that has both between the same two calls.
fn by_steps(steps: &[Vec<Mention>], instruments: &Instruments) -> Option<Keys> {
    let rows = steps.iter().flat_map(|step| match step_of_one(step) {
        Some((name, key)) => vec![(name, Some(key))],
        None => step.iter().filter_map(|mention| Some((mention.name()?.to_owned(), None))).collect(),
    });
    table(&rows.collect::<Vec<Row>>(), instruments)
}

/// The ids and keys of code that reads the key before the call to the allocator and stores the name behind it, so that both
/// come by turns. A name behind another name has a key that is not known. But a key behind another key may belong to any name:
/// then there are none.
fn in_turns(mentions: &[Mention], instruments: &Instruments) -> Option<Keys> {
    let mut rows: Vec<Row> = Vec::new();
    let mut last = None;
    for mention in mentions {
        match mention {
            Mention::Key(key) if last.is_none() => last = Some(*key),
            Mention::Key(_) => return None,
            Mention::Name(name) => rows.push((name.clone(), last.take())),
        }
    }
    table(&rows, instruments)
}

/// The keys of rows in the code's order, unless some keys stand in rows beside their own. Most instruments are named like their
/// ids. One whose name begins like another id is not out of place beside that, if that has its own, or the two
/// are alike themselves and share it.
fn table(rows: &[Row], instruments: &Instruments) -> Option<Keys> {
    let is_alike = |key: u64, (name, _): &Row| {
        instruments.by_key(key).is_some_and(|i| i.name.to_ascii_uppercase().starts_with(name.as_str()))
    };
    let (mut alike, mut others) = (0, 0);
    for (index, row) in rows.iter().enumerate() {
        let Some(key) = row.1.flatten() else { continue };
        if is_alike(key, row) {
            alike += 1;
            continue;
        }
        let before = index.checked_sub(1).and_then(|before| rows.get(before));
        let mut beside = before.into_iter().chain(rows.get(index + 1));
        let has_own = |other: &Row| other.1.flatten().is_some_and(|own| is_alike(own, other));
        let is_kin = |other: &Row| row.0.contains(&other.0);
        if beside.any(|other| is_alike(key, other) && !has_own(other) && !is_kin(other)) {
            return None;
        }
        others += 1;
    }
    let known = rows.iter().filter_map(|(name, key)| Some((name.clone(), (*key)?)));
    (alike > others).then(|| known.collect())
}

/// The instructions of the function that fills the table: the one among `sync_check_init` and its callees that
/// mentions most key variables.
fn initializer(code: &References, catalog: &IdNames, instruments: &Instruments) -> Vec<Insn> {
    let init = code.image.functions_named(catalog.latch_init).next();
    let outer = init.map(|s| code.function(s.addr)).unwrap_or_default();
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
fn id_name<'a>(image: &'a Image, catalog: &IdNames, addr: u64) -> Option<&'a str> {
    if !image.section(".rodata")?.contains(&addr) {
        return None;
    }
    let name = image.cstr(addr)?;
    is_id_name(name, catalog).then_some(name)
}

/// Level names stand beside the names of ids. They all begin with `SYNC_`, which few ids do.
fn is_id_name(name: &str, catalog: &IdNames) -> bool {
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
    /// Address of the description in the process.
    pub description: u64,
}

/// Reads the table of latch ids from the process: a vector of pointers to descriptions, of which each begins with its own
/// index and has a pointer to the id's name.
///
/// Where the vector's members are, and the name in a description, is what makes all of the table fit together. `None` when it
/// cannot be read or nothing does; empty while the server is still starting.
pub fn read(process: &Process, catalog: &IdNames) -> Option<Vec<LatchId>> {
    let table = process.image.symbol(catalog.latch_meta)?.addr.wrapping_add(process.bias);
    let vectors: Vec<Vec<u64>> =
        VECTORS.iter().filter_map(|at| vector(&process.memory, table.wrapping_add(*at))).collect();
    if vectors.iter().all(Vec::is_empty) {
        return (!vectors.is_empty()).then(Vec::new);
    }
    let mut found = vectors.iter().flat_map(|vector| NAMES.map(|at| described(&process.memory, vector, at, catalog)));
    let table = found.by_ref().flatten().next()?;
    found.flatten().next().is_none().then_some(table)
}

/// Where in the table its vector can begin: a vector may have its allocator's state before its pointers.
const VECTORS: [u64; 3] = [0, 8, 16];
/// Where in a description the id's name can be; what it begins with is the id.
const NAMES: [u64; 4] = [8, 16, 24, 32];
/// Fewer ids than this are no table.
const FEWEST: usize = 20;

/// The pointers of the vector at `at`; `None` if it is none.
fn vector(memory: &Memory, at: u64) -> Option<Vec<u64>> {
    let [begin, end, capacity] = [0, 8, 16].map(|member| memory.u64(at.wrapping_add(member)));
    let (begin, end, capacity) = (begin?, end?, capacity?);
    let bytes = end.checked_sub(begin).filter(|bytes| bytes % 8 == 0 && end <= capacity)?;
    let slots: Vec<u64> = (0..bytes / 8).take(MAX_IDS as usize + 1).map(|i| begin.wrapping_add(i * 8)).collect();
    (slots.len() <= MAX_IDS as usize).then_some(())?;
    memory.read_many::<8>(&slots).into_iter().map(|pointer| pointer.map(u64::from_le_bytes)).collect()
}

/// The ids of a vector of descriptions with the name at `name`; `None` unless each is such a description. There is none for
/// some numbers, as for 0.
fn described(memory: &Memory, vector: &[u64], name: u64, catalog: &IdNames) -> Option<Vec<LatchId>> {
    let entries = (0..).zip(vector).filter(|(_, description)| **description != 0);
    let found: Vec<LatchId> = entries
        .map(|(id, &description)| {
            (memory.u32(description)? == id).then_some(())?;
            let name = memory.string(memory.u64(description.wrapping_add(name))?)?;
            is_id_name(&name, catalog).then_some(LatchId { id, name, description })
        })
        .collect::<Option<_>>()?;
    (found.len() >= FEWEST).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(name: &str) -> Mention {
        Mention::Name(name.to_owned())
    }

    #[test]
    fn a_step_with_two_candidates_names_nothing() {
        let key = |at| Mention::Key(Some(at));
        assert_eq!(step_of_one(&[key(1), key(2), name("A_B")]), None);
        assert_eq!(step_of_one(&[key(1)]), None);
        assert_eq!(step_of_one(&[key(1), name("A_B"), key(2)]), None);
        assert_eq!(step_of_one(&[key(1), key(1), name("A_B")]), Some(("A_B".to_owned(), Some(1))));
        assert_eq!(step_of_one(&[name("A_B"), Mention::Key(None)]), Some(("A_B".to_owned(), None)));
    }

    #[test]
    fn turns_that_are_shifted_name_nothing() {
        let instruments = Instruments::named(&[(1, "trx_sys_mutex"), (2, "log_mutex"), (3, "purge_mutex")]);
        let (trx, log, purge) = (name("TRX_SYS"), name("LOG"), name("PURGE"));
        let key = |at| Mention::Key(Some(at));
        let right = [key(1), trx.clone(), key(2), log.clone(), Mention::Key(None), name("RTR"), key(3), purge.clone()];
        let wanted = [("TRX_SYS", Some(1)), ("LOG", Some(2)), ("RTR", None), ("PURGE", Some(3))];
        assert_eq!(in_turns(&right, &instruments), Some(keys(&wanted)));
        let shifted = [key(2), trx.clone(), key(3), log.clone(), key(1), purge.clone()];
        assert_eq!(in_turns(&shifted, &instruments), None);
        let hoisted = [key(1), key(2), trx.clone(), log.clone()];
        assert_eq!(in_turns(&hoisted, &instruments), None);
        let unknown = [key(1), trx, log, key(3), purge];
        assert_eq!(in_turns(&unknown, &instruments), Some(keys(&[("TRX_SYS", Some(1)), ("PURGE", Some(3))])));
    }

    const TABLE: [(u64, &str); 6] = [
        (1, "trx_sys_mutex"),
        (2, "log_mutex"),
        (3, "purge_mutex"),
        (4, "fil_system_mutex"),
        (5, "dict_sys_mutex"),
        (6, "recv_sys_mutex"),
    ];
    const IDS: [&str; 6] = ["TRX_SYS", "LOG", "PURGE", "FIL_SHARD", "DICT_SYS", "RECV_SYS"];

    fn keys(of: &[(&str, Option<u64>)]) -> Keys {
        of.iter().map(|(name, key)| ((*name).to_owned(), *key)).collect()
    }

    /// A part in which keys stand before the names that precede or follow their own is too small to outweigh the rest.
    #[test]
    fn turns_of_which_a_part_is_shifted_name_nothing() {
        let instruments = Instruments::named(&TABLE);
        let turns =
            |keys: [u64; 6]| keys.into_iter().zip(IDS).flat_map(|(key, id)| [Mention::Key(Some(key)), name(id)]);
        assert_eq!(in_turns(&turns([1, 2, 3, 4, 5, 6]).collect::<Vec<_>>(), &instruments).map(|k| k.len()), Some(6));
        // The fourth key is not known to be one, and the next are read too early.
        let early: Vec<Mention> = turns([1, 2, 3, 5, 6, 9]).filter(|m| *m != Mention::Key(Some(9))).collect();
        assert_eq!(in_turns(&early, &instruments), None);
        // The last names come before their keys.
        let late: Vec<Mention> = turns([1, 2, 3, 4, 0, 5]).filter(|m| *m != Mention::Key(Some(0))).collect();
        assert_eq!(in_turns(&late, &instruments), None);
    }

    #[test]
    fn an_instrument_may_be_named_like_the_id_before_its_own() {
        let instruments = Instruments::named(&[(1, "trx_sys_mutex"), (2, "log_sys_mutex"), (3, "log_sys_write_mutex")]);
        let key = |at| Mention::Key(Some(at));
        let turns = [key(1), name("TRX_SYS"), key(2), name("LOG_SYS"), key(3), name("LOG_WRITE")];
        let wanted = [("TRX_SYS", Some(1)), ("LOG_SYS", Some(2)), ("LOG_WRITE", Some(3))];
        assert_eq!(in_turns(&turns, &instruments), Some(keys(&wanted)));
    }

    /// The key is read once.
    #[test]
    fn two_ids_may_share_an_instrument() {
        let instruments = Instruments::named(&[(1, "trx_sys_mutex"), (2, "log_mutex"), (3, "index_tree_rw_lock")]);
        let key = |at| Mention::Key(Some(at));
        let turns = [key(1), name("TRX_SYS"), key(2), name("LOG"), key(3), name("IBUF_INDEX_TREE"), name("INDEX_TREE")];
        let wanted = [("TRX_SYS", Some(1)), ("LOG", Some(2)), ("IBUF_INDEX_TREE", Some(3))];
        assert_eq!(in_turns(&turns, &instruments), Some(keys(&wanted)));
    }

    /// Each key is read before the call before its id's, so that the name and the key between two calls are those of two ids.
    #[test]
    fn steps_that_are_shifted_name_nothing() {
        let instruments = Instruments::named(&TABLE);
        let steps = |keys: [u64; 6]| -> Vec<Vec<Mention>> {
            keys.into_iter().zip(IDS).map(|(key, id)| vec![name(id), Mention::Key(Some(key))]).collect()
        };
        assert_eq!(by_steps(&steps([1, 2, 3, 4, 5, 6]), &instruments).map(|k| k.len()), Some(6));
        assert_eq!(by_steps(&steps([2, 3, 4, 5, 6, 1]), &instruments), None);
        assert_eq!(by_steps(&steps([1, 2, 3, 4, 6, 5]), &instruments), None);
    }
}
