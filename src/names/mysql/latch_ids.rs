//! Finds the instruments of MySQL's mutexes by the latch id that a mutex holds.
//!
//! The server describes every latch id in a table (`latch_meta`), which one long function fills at start. For each id,
//! the function stores the id's name, its level's name and the value of the instrument's key variable in a new
//! description, or passes them to a function that does. With performance_schema off, that value is 0, but the code
//! still shows the variable that it is read from.

use std::collections::{BTreeMap, HashMap};

use crate::analysis::{Function, Pointer, Pointers, Root};
use crate::catalog::IdNames;
use crate::isa::Flow;
use crate::names::psi::Instruments;
use crate::names::references::References;
use crate::names::Process;
use crate::server::Memory;
use crate::symbols::Image;

/// The most latch ids that are read from the process; real servers have 110 to 130.
const MAX_IDS: u64 = 1024;

/// The most characters of an id's name. Longer text is none.
const MAX_NAME: usize = 64;

/// The link-time addresses of instruments' key variables by the latch id's own name (`LOG_WRITER`); `None` for ids that
/// the server does not instrument.
pub type Keys = HashMap<String, Option<u64>>;

/// Returns the key of each latch id, from the code that fills the table.
///
/// The key of an id without an instrument is a variable that no table of instruments registers, or a number of all
/// ones. Ids whose key the code does not show are left out.
pub fn keys(code: &References, ids: &IdNames, instruments: &Instruments) -> Keys {
    let Some(function) = initializer(code, ids, instruments) else { return Keys::new() };
    let pointers = Pointers::new(code.image, &function);
    let stored = key_column(&stored(code.image, ids, &pointers), instruments);
    let passed = key_column(&passed(code.image, ids, &function, &pointers), instruments);
    let rows: Vec<_> = stored.into_iter().chain(passed).collect();
    let mut keys = Keys::new();
    for (name, key) in &rows {
        if rows.iter().all(|(other, its)| other != name || its == key) {
            keys.insert(name.clone(), *key);
        }
    }
    let known = keys.values().flatten().count();
    if known >= FEWEST {
        keys
    } else {
        Keys::new()
    }
}

/// The key that the code has for an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    /// Read from, or passed as, the variable at this link-time address.
    Variable(u64),
    /// The number that MariaDB has in place of a key for latches that are not instrumented.
    AllOnes,
}

/// An id's name, and the possible keys that the code has for it.
type Row = (String, Columns);

/// Possible keys by position: the distance in bytes from the pointer to the name, or the number of the argument.
type Columns = BTreeMap<i64, Key>;

/// The names of ids and the possible keys that the code stores in one object, by offset.
#[derive(Default)]
struct Object<'a> {
    names: Vec<(i64, &'a str)>,
    keys: Columns,
}

/// Returns the ids whose descriptions the function itself fills.
fn stored(image: &Image, ids: &IdNames, pointers: &Pointers) -> Vec<Row> {
    let mut objects: HashMap<Root, Object> = HashMap::new();
    for store in pointers.stores() {
        let Pointer::Behind { root, offset } = store.to else { continue };
        let Object { names, keys } = objects.entry(root).or_default();
        match (store.bytes, store.value) {
            (8, Pointer::Constant(at)) => names.extend(id_name(image, ids, at).map(|name| (offset, name))),
            (4, Pointer::Content(at)) if image.is_static_data(at) => drop(keys.insert(offset, Key::Variable(at))),
            (4, Pointer::Constant(number)) if number as u32 == u32::MAX => drop(keys.insert(offset, Key::AllOnes)),
            _ => {}
        }
    }
    let row = |object: Object| match object.names[..] {
        [(at, name)] => Some((name.to_owned(), object.keys.into_iter().map(|(to, key)| (to - at, key)).collect())),
        _ => None,
    };
    objects.into_values().filter_map(row).collect()
}

/// Returns the ids whose name and key, as the key variable's address or value, the function passes to another one.
fn passed(image: &Image, ids: &IdNames, function: &Function, pointers: &Pointers) -> Vec<Row> {
    let calls = function.insns().iter().filter(|i| matches!(i.flow, Flow::Call(_)));
    let rows = calls.filter_map(|call| {
        let arguments = pointers.passed(call.addr);
        let mut names = arguments.iter().filter_map(|argument| match *argument {
            Pointer::Constant(at) => id_name(image, ids, at),
            _ => None,
        });
        let name = names.next().filter(|_| names.next().is_none())?;
        let keys = (0..).zip(arguments).filter_map(|(number, argument)| match *argument {
            Pointer::Constant(at) | Pointer::Content(at) if image.is_static_data(at) => {
                Some((number, Key::Variable(at)))
            }
            _ => None,
        });
        Some((name.to_owned(), keys.collect()))
    });
    rows.collect()
}

/// Returns the ids' keys. They are all at the same position, the one where most rows have the key of an instrument.
fn key_column(rows: &[Row], instruments: &Instruments) -> Vec<(String, Option<u64>)> {
    let is_instrument = |key: &Key| matches!(key, Key::Variable(at) if instruments.by_key(*at).is_some());
    let mut columns: BTreeMap<i64, usize> = BTreeMap::new();
    for (column, _) in rows.iter().flat_map(|(_, keys)| keys).filter(|(_, key)| is_instrument(key)) {
        *columns.entry(*column).or_default() += 1;
    }
    let Some((column, _)) = columns.into_iter().max_by_key(|(_, count)| *count) else { return Vec::new() };
    let key = |(name, keys): &Row| match *keys.get(&column)? {
        Key::Variable(at) if instruments.is_contradicted(at) => None,
        Key::Variable(at) => Some((name.clone(), instruments.by_key(at).map(|_| at))),
        Key::AllOnes => Some((name.clone(), None)),
    };
    rows.iter().filter_map(key).collect()
}

/// Returns the function that fills the table: `sync_check_init` or one that it calls, whichever mentions the most key
/// variables.
fn initializer(code: &References, catalog: &IdNames, instruments: &Instruments) -> Option<Function> {
    let start = code.image.functions_named(catalog.latch_init).next()?.addr;
    let called = code.function(start).into_iter().filter_map(|i| match i.flow {
        Flow::Call(Some(to)) | Flow::Jump(to) => Some(to),
        _ => None,
    });
    let mentions = |start: &u64| {
        let insns = code.function(*start);
        let mentioned = (0..insns.len()).filter_map(|i| code.of(&insns, i));
        mentioned.filter(|&address| instruments.by_key(address).is_some()).count()
    };
    let filling = called.chain([start]).max_by_key(mentions)?;
    Function::new(code.image, code.image.function_at(filling)?)
}

/// Returns the string at `addr` if it can be an id's name.
fn id_name<'a>(image: &'a Image, catalog: &IdNames, addr: u64) -> Option<&'a str> {
    if !image.section(".rodata")?.contains(&addr) {
        return None;
    }
    let name = image.cstr(addr)?;
    is_id_name(name, catalog).then_some(name)
}

/// Returns whether this can be an id's name. The names of levels, which are stored next to them, all begin with
/// `SYNC_`; few ids do.
fn is_id_name(name: &str, catalog: &IdNames) -> bool {
    (2..=MAX_NAME).contains(&name.len())
        && (!name.starts_with("SYNC_") || catalog.sync_ids.contains(&name))
        && name.starts_with(|c: char| c.is_ascii_uppercase())
        && name.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_')
}

/// A latch id as the running server describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LatchId {
    /// The id, which is the index of the description.
    pub id: u32,
    /// The id's own name, such as `LOG_WRITER`.
    pub name: String,
    /// The address of the description in the process.
    pub description: u64,
}

/// Reads the table of latch ids from the process: a vector of pointers to descriptions, each of which begins with its
/// own index and has a pointer to the id's name.
///
/// The position of the vector in the table, and of the name in a description, are those with which the whole table
/// makes sense. Returns `None` if the table cannot be read, or makes sense in no way or in several; an empty list while
/// the server is still starting.
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

/// The possible offsets of the vector's pointers in the table, which may follow the allocator's state.
const VECTORS: [u64; 3] = [0, 8, 16];
/// The possible offsets of the pointer to the id's name in a description, which begins with the id.
const NAMES: [u64; 4] = [8, 16, 24, 32];
/// The fewest ids that a table has.
const FEWEST: usize = 20;

/// Returns the pointers in the vector at `at`; `None` if there is no vector.
fn vector(memory: &Memory, at: u64) -> Option<Vec<u64>> {
    let [begin, end, capacity] = [0, 8, 16].map(|member| memory.u64(at.wrapping_add(member)));
    let (begin, end, capacity) = (begin?, end?, capacity?);
    let bytes = end.checked_sub(begin).filter(|bytes| bytes % 8 == 0 && end <= capacity)?;
    let slots: Vec<u64> = (0..bytes / 8).take(MAX_IDS as usize + 1).map(|i| begin.wrapping_add(i * 8)).collect();
    (slots.len() <= MAX_IDS as usize).then_some(())?;
    memory.read_many::<8>(&slots).into_iter().map(|pointer| pointer.map(u64::from_le_bytes)).collect()
}

/// Returns the ids of a vector of descriptions that have the pointer to the name at offset `name`; `None` unless all
/// pointers lead to such a description. Some ids have no description, such as 0.
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
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    fn row(name: &str, keys: &[(i64, Key)]) -> Row {
        (name.to_owned(), keys.iter().copied().collect())
    }

    /// The vector of descriptions, as if this test's own process were a server: its begin, end and capacity after one
    /// other word.
    #[export_name = "latch_meta"]
    static LATCH_META: [AtomicU64; 5] = [const { AtomicU64::new(0) }; 5];

    const CATALOG: IdNames = IdNames {
        latch_init: "sync_check_init",
        latch_meta: "latch_meta",
        sync_ids: &["SYNC_THREAD"],
        uninstrumented_ids: &[],
    };

    /// A description of a latch id; the pointer to the name may also stand elsewhere.
    #[repr(C)]
    struct Description {
        id: u64,
        before: u64,
        name: *const std::ffi::c_char,
        behind: [u64; 3],
    }

    fn described_as(id: u64, name: &std::ffi::CStr) -> Description {
        Description { id, before: 0, name: name.as_ptr(), behind: [0; 3] }
    }

    fn read_own(vector: &[*const Description]) -> Option<Vec<LatchId>> {
        let range = vector.as_ptr_range();
        let words = [1, range.start as u64, range.end as u64, range.end as u64 + 64, 0];
        LATCH_META.iter().zip(words).for_each(|(member, word)| member.store(word, Ordering::Relaxed));
        let pid = std::process::id() as i32;
        let image = Image::open(std::path::Path::new("/proc/self/exe")).expect("the test's own executable");
        let bias = crate::server::load_bias(pid, &image).expect("where it is loaded");
        read(&Process { image: &image, memory: Memory::new(pid), bias }, &CATALOG)
    }

    #[test]
    fn the_servers_own_descriptions_name_its_ids() {
        let names = [c"TRX_SYS", c"LOG_WRITER", c"SYNC_THREAD"];
        let all: Vec<Description> = (0..24).map(|id| described_as(id, names[id as usize % names.len()])).collect();
        let mut vector: Vec<*const Description> = all.iter().map(std::ptr::from_ref).collect();
        // Not every number is used.
        vector[0] = std::ptr::null();
        let found = read_own(&vector).expect("the descriptions");
        assert_eq!(found.iter().map(|id| id.id).collect::<Vec<_>>(), (1..24).collect::<Vec<_>>());
        assert_eq!(found[0], LatchId { id: 1, name: "LOG_WRITER".to_owned(), description: vector[1] as u64 });
        // Too few, as while the server starts, and none yet.
        assert_eq!(read_own(&vector[..FEWEST]), None);
        assert_eq!(read_own(&vector[..FEWEST + 1]).map(|ids| ids.len()), Some(FEWEST));
        assert_eq!(read_own(&[]), Some(vec![]));
        // One does not have its own number, and one has a level's name.
        for wrong in [described_as(7, c"TRX_SYS"), described_as(5, c"SYNC_LEVEL")] {
            vector[5] = &wrong;
            assert_eq!(read_own(&vector), None);
        }
    }

    #[test]
    fn ids_have_names_of_their_own() {
        for (name, is_one) in [
            ("TRX_SYS", true),
            ("LOG2", true),
            ("T1", true),
            ("SYNC_THREAD", true),
            ("SYNC_LEVEL", false),
            ("T", false),
            ("", false),
            ("Trx", false),
            ("_TRX", false),
            ("1TRX", false),
            ("TRX SYS", false),
        ] {
            assert_eq!(is_id_name(name, &CATALOG), is_one, "{name}");
        }
        assert!(is_id_name(&"X".repeat(MAX_NAME), &CATALOG));
        assert!(!is_id_name(&"X".repeat(MAX_NAME + 1), &CATALOG));
    }

    #[test]
    fn keys_stand_in_one_column() {
        let instruments = Instruments::named(&[(1, "trx_sys_mutex"), (2, "log_mutex"), (3, "purge_mutex")]);
        let rows = [
            row("TRX_SYS", &[(0x20, Key::Variable(1))]),
            row("LOG", &[(0x20, Key::Variable(2)), (0x18, Key::Variable(3))]),
            // Its key was not followed, and what stands elsewhere is none.
            row("PURGE", &[(0x18, Key::Variable(3))]),
            row("EVENT", &[(0x20, Key::Variable(9))]),
            row("RTR", &[(0x20, Key::AllOnes)]),
        ];
        let wanted = [("TRX_SYS", Some(1)), ("LOG", Some(2)), ("EVENT", None), ("RTR", None)];
        assert_eq!(key_column(&rows, &instruments), wanted.map(|(name, key)| (name.to_owned(), key)));
        assert_eq!(key_column(&rows[2..], &Instruments::named(&[])), []);
    }
}
