//! Finds the names of the SQL layer's locks in the code that creates them.
//!
//! A C library lock with an instrument is created in two adjacent steps: performance_schema receives the value of the
//! instrument's key variable and the lock's address, and the C library initializes the lock. Whether performance_schema
//! is on does not matter. The key may not be named there: it can be a member of the object that contains the lock, or
//! an argument. In these cases the callers show it, or the code that fills in that member.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::rc::Rc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::types::{Object, Types};
use crate::analysis::{direct_calls, functions_that_mention, import_stubs, Function, Origin, Pointer, Pointers, Root};
use crate::isa::{Flow, Insn};
use crate::model::Kind;
use crate::names::psi::Instruments;
use crate::names::LatchName;
use crate::symbols::Image;

/// The most calls upwards through which a lock and its key are followed.
const MAX_DEPTH: usize = 4;

/// The most calls that are examined of a function that creates a lock.
const MAX_CALLS: usize = 256;

/// The C library's functions that initialize a lock.
const MAKERS: &[(&str, Kind)] =
    &[("pthread_mutex_init", Kind::Mutex), ("pthread_rwlock_init", Kind::Rwlock), ("pthread_cond_init", Kind::Cond)];

/// The possible sizes of an entry in a table of instruments, in bytes.
const ENTRY: std::ops::RangeInclusive<u64> = 24..=64;

/// The creation of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Making {
    /// The number of the instrument.
    key: Pointer,
    lock: Pointer,
    kind: Kind,
    /// Whether the creating function itself names the instrument. Otherwise objects of one type can have several, as
    /// MySQL's binary log and relay logs do.
    is_of_type: bool,
}

/// What one function shows about locks and keys.
#[derive(Default)]
struct Maker {
    makings: Vec<Making>,
    written: Vec<Written>,
    objects: Vec<Object>,
    /// What it writes to static variables: link-time address, and value.
    variables: Vec<(u64, Pointer)>,
}

/// A write of a function to memory, other than of zero, which no instrument has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Written {
    to: Pointer,
    bytes: u8,
    /// The key variable, if the value is the number of an instrument.
    key: Option<u64>,
}

impl Written {
    /// Returns whether it changes the four bytes at this place.
    fn changes(&self, at: Pointer) -> bool {
        distance(self.to, at).is_some_and(|behind| -4 < behind && behind < i64::from(self.bytes))
    }

    /// Returns the key variable, if the write puts its number at this place.
    fn key_at(&self, at: Pointer) -> Option<u64> {
        self.key.filter(|_| self.to == at && self.bytes == 4)
    }
}

/// Returns the distance from the first place to the second, if both are in the same object.
fn distance(from: Pointer, to: Pointer) -> Option<i64> {
    match (from, to) {
        (Pointer::Constant(from), Pointer::Constant(to)) => Some(to.wrapping_sub(from) as i64),
        (Pointer::Behind { root, offset: from }, Pointer::Behind { root: other, offset: to }) if root == other => {
            Some(to.wrapping_sub(from))
        }
        _ => None,
    }
}

/// Returns the key variable whose number is at this place, if nothing else is ever written there.
fn only_key<'w>(at: Pointer, written: impl Iterator<Item = &'w Written>) -> Option<u64> {
    let mut keys = written.filter(|w| w.changes(at)).map(|w| w.key_at(at));
    let first = keys.next()??;
    keys.all(|other| other == Some(first)).then_some(first)
}

/// The locks of a binary whose names are known from the code that creates them.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Locks {
    /// Locks in static data, by link-time address.
    pub statics: BTreeMap<u64, LatchName>,
    /// Locks in objects of a type with a known name.
    #[serde(with = "pairs")]
    members: BTreeMap<Member, LatchName>,
    /// Locks in objects that a static variable points to.
    #[serde(with = "pairs")]
    pointees: BTreeMap<Pointee, LatchName>,
    /// The linkage stubs of the C library's functions.
    stubs: HashMap<u64, String>,
    #[serde(skip)]
    types: Types,
}

/// Maps as lists, because keys of JSON are strings.
mod pairs {
    use super::*;

    pub fn serialize<K: Serialize, V: Serialize, S: Serializer>(
        map: &BTreeMap<K, V>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(map)
    }

    pub fn deserialize<'de, K, V, D>(deserializer: D) -> Result<BTreeMap<K, V>, D::Error>
    where
        K: Deserialize<'de> + Ord,
        V: Deserialize<'de>,
        D: Deserializer<'de>,
    {
        Ok(Vec::<(K, V)>::deserialize(deserializer)?.into_iter().collect())
    }
}

/// The position of a lock in an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
struct Member {
    class: String,
    offset: i64,
    kind: Kind,
}

/// The position of a lock in what a static variable points to: the variable's link-time address, and the offset from
/// the pointer that the creating code stores there.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
struct Pointee {
    variable: u64,
    offset: i64,
    kind: Kind,
}

/// Searches for the code that creates locks.
pub fn locks(image: &Image, instruments: &Instruments) -> Locks {
    let search = Search::new(image, instruments);
    let (makers, mut found) = (search.makers(), Found::default());
    let fields = static_fields(makers.values().flat_map(|m| &m.written));
    let mut open: BTreeMap<u64, Vec<Making>> = BTreeMap::new();
    for (&entry, maker) in &makers {
        let more = search.sort(maker.makings.iter().copied(), maker, &fields, &mut found);
        open.insert(entry, more);
    }
    for _ in 0..MAX_DEPTH {
        open.retain(|_, makings| !makings.is_empty());
        if open.is_empty() {
            break;
        }
        open = search.callers(&open, &fields, &mut found);
    }
    Locks {
        statics: only(found.names),
        members: only(found.members),
        pointees: only(found.pointees),
        stubs: import_stubs(image),
        // A lookup needs few of those that the search has gone through.
        types: Types::default(),
    }
}

/// Keeps the places that have a single name.
fn only<K: Ord>(names: BTreeMap<K, HashSet<LatchName>>) -> BTreeMap<K, LatchName> {
    let only = |names: HashSet<LatchName>| {
        let mut all = names.into_iter();
        all.next().filter(|_| all.next().is_none())
    };
    names.into_iter().filter_map(|(at, names)| Some((at, only(names)?))).collect()
}

/// The names found for each place.
#[derive(Default)]
struct Found {
    names: BTreeMap<u64, HashSet<LatchName>>,
    members: BTreeMap<Member, HashSet<LatchName>>,
    pointees: BTreeMap<Pointee, HashSet<LatchName>>,
}

/// Returns the members of static objects that hold the number of an instrument: the key variable by address. A
/// constructor's writes to its argument do not count: one of MySQL's constructors gives the binary log the key of other
/// logs, which is then replaced with the binary log's own.
fn static_fields<'w>(written: impl Iterator<Item = &'w Written>) -> HashMap<u64, u64> {
    let mut by_address: BTreeMap<u64, Vec<&Written>> = BTreeMap::new();
    for written in written {
        if let Pointer::Constant(at) = written.to {
            by_address.entry(at).or_default().push(written);
        }
    }
    let only = |at: u64| {
        // Writes that begin further before the address do not reach it.
        let near = by_address.range(at.saturating_sub(u64::from(u8::MAX))..=at.saturating_add(3));
        only_key(Pointer::Constant(at), near.flat_map(|(_, written)| written.iter().copied()))
    };
    by_address.keys().filter_map(|&at| Some((at, only(at)?))).collect()
}

/// A function that was analyzed.
struct Analyzed {
    pointers: Pointers,
    maker: Maker,
}

struct Search<'a> {
    image: &'a Image,
    instruments: &'a Instruments,
    categories: HashMap<u64, String>,
    /// The linkage stubs of the functions that initialize locks.
    stubs: HashMap<u64, Kind>,
    types: Types,
    /// The callers that were analyzed, by address.
    analyzed: RefCell<HashMap<u64, Option<Rc<Analyzed>>>>,
    /// The address that a function always returns, if there is one.
    returned: RefCell<HashMap<u64, Option<Pointer>>>,
}

impl<'a> Search<'a> {
    fn new(image: &'a Image, instruments: &'a Instruments) -> Search<'a> {
        let kind = |name: &str| MAKERS.iter().find(|(maker, _)| *maker == name).map(|&(_, kind)| kind);
        let stubs = import_stubs(image).into_iter().filter_map(|(at, name)| Some((at, kind(&name)?))).collect();
        Search {
            image,
            instruments,
            categories: categories(image, instruments),
            stubs,
            types: Types::default(),
            analyzed: RefCell::default(),
            returned: RefCell::default(),
        }
    }

    /// Returns the functions that create locks or write numbers of instruments.
    fn makers(&self) -> BTreeMap<u64, Maker> {
        let keys: HashSet<u64> = self.instruments.keys().map(|k| k.0).collect();
        let mut entries = functions_that_mention(self.image, &self.image.with_got_entries(&keys));
        let makers = direct_calls(self.image, &self.stubs.keys().copied().collect());
        entries.extend(makers.iter().filter_map(|&(at, _)| Some(self.image.function_at(at)?.start)));
        let maker = |entry| {
            let f = Function::new(self.image, self.image.function_at(entry)?)?;
            Some((entry, self.maker(&f, &Pointers::new(self.image, &f))))
        };
        entries.into_iter().filter_map(maker).collect()
    }

    fn maker(&self, f: &Function, pointers: &Pointers) -> Maker {
        let calls: Vec<(&Insn, &[Pointer])> =
            f.insns().iter().filter(|i| is_call(i)).map(|i| (i, pointers.passed(i.addr))).collect();
        let made: HashMap<Pointer, Kind> = calls
            .iter()
            .filter_map(|(i, passed)| Some((*passed.first()?, *self.stubs.get(&calls_directly(i)?)?)))
            .collect();
        let makings = calls.iter().filter_map(|(_, passed)| {
            let [key, lock, ..] = passed[..] else { return None };
            let kind = *made.get(&lock)?;
            let is_of_type = matches!(key, Pointer::Content(_));
            self.may_be_key(key).then_some(Making { key, lock, kind, is_of_type })
        });
        let written = pointers.stores().iter().filter(|store| store.value != Pointer::Constant(0)).map(|store| {
            let key = match store.value {
                Pointer::Content(key) => self.instruments.by_key(key).map(|_| key),
                _ => None,
            };
            Written { to: store.to, bytes: store.bytes, key }
        });
        let makings: Vec<Making> = makings.collect();
        let variables = pointers.stores().iter().filter_map(|store| match (store.to, store.value) {
            (Pointer::Constant(at), Pointer::Behind { .. }) if store.bytes == 8 => Some((at, store.value)),
            _ => None,
        });
        Maker {
            written: written.collect(),
            objects: self.types.objects(self.image, f, pointers),
            variables: variables.collect(),
            makings,
        }
    }

    fn may_be_key(&self, value: Pointer) -> bool {
        match value {
            Pointer::Content(key) => self.instruments.by_key(key).is_some(),
            Pointer::Field { .. } | Pointer::Low(Root::Argument(_)) => true,
            Pointer::Behind { root: Root::Argument(_), offset } => offset == 0,
            _ => false,
        }
    }

    /// Records the creations that are known, and returns those that the function's callers may resolve.
    fn sort(
        &self,
        makings: impl Iterator<Item = Making>,
        maker: &Maker,
        fields: &HashMap<u64, u64>,
        found: &mut Found,
    ) -> Vec<Making> {
        let mut open = Vec::new();
        for making in makings {
            let key = known_key(making.key, &maker.written, fields).map_or(making.key, Pointer::Content);
            if let (Pointer::Content(key), Pointer::Behind { root, offset }, true) =
                (key, making.lock, making.is_of_type)
            {
                self.note_object(key, making.kind, root, offset, maker, found);
            }
            match (key, making.lock) {
                (Pointer::Content(key), Pointer::Constant(at)) => {
                    if let Some(name) = self.name(key, making.kind).filter(|_| self.image.is_static_data(at)) {
                        found.names.entry(at).or_default().insert(name);
                    }
                }
                (key, lock) if is_open(key) || is_open(lock) => open.push(Making { key, lock, ..making }),
                _ => {}
            }
        }
        open
    }

    /// Records the objects that contain the lock at this offset from a root.
    fn note_object(&self, key: u64, kind: Kind, root: Root, offset: i64, maker: &Maker, found: &mut Found) {
        let Some(name) = self.name(key, kind) else { return };
        for object in self.types.borne_out(self.image, &maker.objects, root) {
            let offset = offset.wrapping_sub(object.start);
            // A lock in front of the object is in one around it, and other types can have such an object inside as
            // well.
            if offset < 0 {
                continue;
            }
            let member = Member { class: object.class.clone(), offset, kind };
            found.members.entry(member).or_default().insert(name.clone());
        }
        for &(variable, value) in &maker.variables {
            if let Pointer::Behind { root: to, offset: start } = value {
                if to == root {
                    let pointee = Pointee { variable, offset: offset.wrapping_sub(start), kind };
                    found.pointees.entry(pointee).or_default().insert(name.clone());
                }
            }
        }
    }

    /// Resolves lock creations through the callers of the functions.
    fn callers(
        &self,
        open: &BTreeMap<u64, Vec<Making>>,
        fields: &HashMap<u64, u64>,
        found: &mut Found,
    ) -> BTreeMap<u64, Vec<Making>> {
        let mut more = BTreeMap::new();
        for (entry, calls) in self.calls_of(open.keys().copied().collect()) {
            let Some(caller) = self.analyzed(entry) else { continue };
            let mut inner = BTreeSet::new();
            for (at, to) in calls {
                let passed: Vec<Pointer> =
                    caller.pointers.passed(at).iter().map(|&value| self.returned_constant(&caller, value)).collect();
                let makings = open[&to].iter().filter_map(|m| in_caller(*m, &passed));
                inner.extend(self.sort(makings, &caller.maker, fields, found));
            }
            more.insert(entry, inner.into_iter().collect());
        }
        more
    }

    /// Returns the calls of these functions by calling function: (place, callee).
    fn calls_of(&self, functions: HashSet<u64>) -> BTreeMap<u64, Vec<(u64, u64)>> {
        let mut callers: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
        let mut counts: HashMap<u64, usize> = HashMap::new();
        for (at, to) in direct_calls(self.image, &functions) {
            let count = counts.entry(to).or_default();
            *count += 1;
            let Some(range) = self.image.function_at(at).filter(|_| *count <= MAX_CALLS) else { continue };
            callers.entry(range.start).or_default().push((at, to));
        }
        callers
    }

    fn analyzed(&self, entry: u64) -> Option<Rc<Analyzed>> {
        if let Some(known) = self.analyzed.borrow().get(&entry) {
            return known.clone();
        }
        let analyse = |f: Function| {
            let pointers = Pointers::new(self.image, &f);
            let maker = self.maker(&f, &pointers);
            Rc::new(Analyzed { pointers, maker })
        };
        let range = self.image.function_at(entry);
        let found = range.and_then(|range| Function::new(self.image, range)).map(analyse);
        self.analyzed.borrow_mut().insert(entry, found.clone());
        found
    }

    /// Returns the address that the called function always returns, if there is one; otherwise the value itself.
    fn returned_constant(&self, caller: &Analyzed, value: Pointer) -> Pointer {
        let Pointer::Behind { root, offset } = value else { return value };
        let Some(Origin::Returned { from }) = caller.pointers.origin(root) else { return value };
        let known = self.returned.borrow().get(&from).copied();
        let constant = known.unwrap_or_else(|| {
            let found = self.only_returned(from);
            self.returned.borrow_mut().insert(from, found);
            found
        });
        constant.map_or(value, |constant| constant.plus(offset))
    }

    /// Returns the address that the function at `entry` returns, if it always returns the same one.
    fn only_returned(&self, entry: u64) -> Option<Pointer> {
        let range = self.image.function_at(entry).filter(|range| range.start == entry)?;
        let pointers = Pointers::new(self.image, &Function::new(self.image, range)?);
        match pointers.returned() {
            [first @ Pointer::Constant(_), others @ ..] if others.iter().all(|other| other == first) => Some(*first),
            _ => None,
        }
    }

    fn name(&self, key: u64, kind: Kind) -> Option<LatchName> {
        let instrument = self.instruments.by_key(key)?;
        let category = self.categories.get(&instrument.entry)?;
        Some(LatchName { event: format!("wait/synch/{}/{category}/{}", kind.as_str(), instrument.name), kind })
    }
}

/// The C library's functions that lock a lock, with the number of the lock argument.
const LOCKERS: &[(&str, Kind, usize)] = &[
    ("pthread_mutex_lock", Kind::Mutex, 0),
    // MariaDB's function for a mutex with an instance.
    ("psi_mutex_lock", Kind::Mutex, 0),
    ("pthread_rwlock_rdlock", Kind::Rwlock, 0),
    ("pthread_rwlock_wrlock", Kind::Rwlock, 0),
    ("pthread_cond_wait", Kind::Cond, 0),
    ("pthread_cond_timedwait", Kind::Cond, 0),
    // The mutex is locked when the condition holds.
    ("pthread_cond_wait", Kind::Mutex, 1),
    ("pthread_cond_timedwait", Kind::Mutex, 1),
];

/// Returns the number of the argument that is the lock of this kind that the call locks; `None` if it locks none.
fn lock_argument(image: &Image, stubs: &HashMap<u64, String>, call: &Insn, kind: Kind) -> Option<usize> {
    let to = calls_directly(call)?;
    let own = || image.symbol_at(to).filter(|s| s.addr == to).map(|s| s.name);
    let callee = stubs.get(&to).map(String::as_str).or_else(own)?;
    LOCKERS.iter().find(|(name, k, _)| *name == callee && *k == kind).map(|&(_, _, argument)| argument)
}

/// Returns whether the function around this link-time address locks mutexes at a single offset in its objects.
pub fn locks_one_member(image: &Image, addr: u64) -> bool {
    let Some(f) = image.function_at(addr).and_then(|range| Function::new(image, range)) else { return false };
    let (pointers, stubs) = (Pointers::new(image, &f), import_stubs(image));
    let mut offsets = f.insns().iter().filter_map(|insn| {
        let argument = lock_argument(image, &stubs, insn, Kind::Mutex)?;
        Some(match pointers.passed(insn.addr).get(argument) {
            Some(&Pointer::Behind { offset, .. }) => Some(offset),
            _ => None,
        })
    });
    offsets.next().flatten().is_some_and(|first| offsets.all(|other| other == Some(first)))
}

/// Returns the name of the lock that is waited for by the C library call that returns to this link-time address. `None`
/// if the code does not show that it is always the same lock of its objects.
pub fn waited(image: &Image, locks: &Locks, return_address: u64, kind: Kind) -> Option<LatchName> {
    let f = Function::new(image, image.function_at(return_address.checked_sub(1)?)?)?;
    let call = f.insns().iter().find(|i| i.end() == return_address)?;
    let argument = lock_argument(image, &locks.stubs, call, kind)?;
    let pointers = Pointers::new(image, &f);
    let Pointer::Behind { root, offset } = *pointers.passed(call.addr).get(argument)? else { return None };
    let objects = locks.types.objects(image, &f, &pointers);
    let objects = locks.types.borne_out(image, &objects, root);
    let mut names: HashSet<&LatchName> = objects.filter_map(|o| locks.member(o, offset, kind)).collect();
    names.extend(locks.pointee(&pointers, root, offset, kind));
    only_name(names)
}

/// Returns the name, if there is exactly one.
fn only_name(names: HashSet<&LatchName>) -> Option<LatchName> {
    let mut all = names.into_iter();
    all.next().filter(|_| all.next().is_none()).cloned()
}

impl Locks {
    /// Returns whether what was found at an earlier start refers only to what there is in the program.
    pub fn fits(&self, image: &Image) -> bool {
        self.statics.keys().all(|at| image.is_static_data(*at))
            && self.stubs.keys().all(|at| image.extent().contains(at))
    }

    /// Returns the lock at this offset from the root of the object.
    fn member(&self, object: &Object, offset: i64, kind: Kind) -> Option<&LatchName> {
        let offset = offset.wrapping_sub(object.start);
        self.members.get(&Member { class: object.class.clone(), offset, kind })
    }

    /// Returns the lock at this offset from what the code read from a static variable.
    fn pointee(&self, pointers: &Pointers, root: Root, offset: i64, kind: Kind) -> Option<&LatchName> {
        let Some(Origin::Read { at: Pointer::Constant(variable) }) = pointers.origin(root) else { return None };
        self.pointees.get(&Pointee { variable, offset, kind })
    }
}

fn is_call(insn: &Insn) -> bool {
    matches!(insn.flow, Flow::Call(_) | Flow::Jump(_) | Flow::IndirectJump)
}

fn calls_directly(insn: &Insn) -> Option<u64> {
    match insn.flow {
        Flow::Call(to) => to,
        Flow::Jump(to) => Some(to),
        _ => None,
    }
}

/// Returns the key variable behind a number that was read from a member, if this function, or any function for a static
/// object, fills in that member.
fn known_key(key: Pointer, written: &[Written], fields: &HashMap<u64, u64>) -> Option<u64> {
    match key {
        Pointer::Content(at) => Some(fields.get(&at).copied().unwrap_or(at)),
        Pointer::Field { root, offset } => only_key(Pointer::Behind { root, offset }, written.iter()),
        _ => None,
    }
}

/// Returns whether the callers of a function can show more about a value.
fn is_open(value: Pointer) -> bool {
    matches!(
        value,
        Pointer::Behind { root: Root::Argument(_), .. }
            | Pointer::Field { root: Root::Argument(_), .. }
            | Pointer::Low(Root::Argument(_))
    )
}

/// Translates a lock's creation to its caller's point of view, given the arguments that the caller passes.
fn in_caller(making: Making, passed: &[Pointer]) -> Option<Making> {
    let (key, lock) = (value_in_caller(making.key, passed)?, value_in_caller(making.lock, passed)?);
    Some(Making { key, lock, ..making })
}

/// Translates a function's value to its caller's point of view.
fn value_in_caller(value: Pointer, passed: &[Pointer]) -> Option<Pointer> {
    let argument = |number: u8| passed.get(usize::from(number)).copied();
    match value {
        Pointer::Behind { root: Root::Argument(number), offset } => Some(argument(number)?.plus(offset)),
        Pointer::Low(Root::Argument(number)) => Some(argument(number)?.low(4)),
        Pointer::Field { root: Root::Argument(number), offset } => match argument(number)?.plus(offset) {
            Pointer::Constant(at) => Some(Pointer::Content(at)),
            Pointer::Behind { root, offset } => Some(Pointer::Field { root, offset }),
            _ => None,
        },
        other => Some(other),
    }
}

/// Returns the category of each instrument, by its entry in the table. The code passes performance_schema the category
/// together with the table and its length.
fn categories(image: &Image, instruments: &Instruments) -> HashMap<u64, String> {
    let entries: BTreeSet<u64> = instruments.keys().map(|(_, i)| i.entry).collect();
    let mut found = HashMap::new();
    for entry in functions_that_mention(image, &image.with_got_entries(&entries.iter().copied().collect())) {
        let Some(f) = image.function_at(entry).and_then(|range| Function::new(image, range)) else { continue };
        let pointers = Pointers::new(image, &f);
        for insn in f.insns().iter().filter(|i| is_call(i)) {
            let passed = pointers.passed(insn.addr);
            let [Pointer::Constant(category), Pointer::Constant(table), Pointer::Constant(count), ..] = passed[..]
            else {
                continue;
            };
            let Some(category) = category_name(image, category).filter(|_| entries.contains(&table)) else { continue };
            for entry in table_entries(&entries, table, count) {
                found.insert(entry, category.to_owned());
            }
        }
    }
    found
}

fn category_name(image: &Image, addr: u64) -> Option<&str> {
    let name = image.cstr(addr)?;
    let plausible = (2..=32).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    plausible.then_some(name)
}

/// Returns the beginnings of the entries of a table, of which this many are registered.
fn table_entries(entries: &BTreeSet<u64>, table: u64, count: u64) -> Vec<u64> {
    let size = entries.range(table..).nth(1).map_or(0, |next| next - table);
    if !ENTRY.contains(&size) {
        return vec![table];
    }
    let places = (0..count.min(entries.len() as u64)).map_while(|i| table.checked_add(i.checked_mul(size)?));
    places.filter(|at| entries.contains(at)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::symbols::Arch;

    const OBJECT: Root = Root::Argument(0);

    fn behind(offset: i64) -> Pointer {
        Pointer::Behind { root: OBJECT, offset }
    }

    fn written(to: Pointer, bytes: u8, key: Option<u64>) -> Written {
        Written { to, bytes, key }
    }

    #[test]
    fn a_member_that_something_else_is_written_to_has_no_key() {
        let key = Pointer::Field { root: OBJECT, offset: 0x10 };
        let known = |written: &[Written]| known_key(key, written, &HashMap::new());
        let right = written(behind(0x10), 4, Some(0x5000));
        assert_eq!(known(&[right, right, written(behind(0x14), 8, None), written(behind(8), 8, None)]), Some(0x5000));
        for other in [
            written(behind(0x10), 4, Some(0x5004)),
            written(behind(0x10), 4, None),
            written(behind(0xc), 8, None),
            written(behind(0x13), 1, None),
        ] {
            assert_eq!(known(&[right, other]), None, "{other:?}");
            assert_eq!(known(&[other, right]), None, "{other:?}");
        }
        assert_eq!(known(&[]), None);
    }

    #[test]
    fn a_static_member_that_something_else_is_written_to_has_no_key() {
        let at = Pointer::Constant;
        let right = [written(at(0x9000), 4, Some(0x5000)), written(at(0x9004), 4, Some(0x5004))];
        let fields = |more: &[Written]| static_fields(right.iter().chain(more));
        assert_eq!(fields(&[]), HashMap::from([(0x9000, 0x5000), (0x9004, 0x5004)]));
        for other in [written(at(0x9000), 4, Some(0x5004)), written(at(0x8ffc), 8, None)] {
            assert_eq!(fields(&[other]), HashMap::from([(0x9004, 0x5004)]), "{other:?}");
        }
        let end = written(at(u64::MAX), 8, Some(0x5000));
        assert_eq!(fields(&[end]).len(), 2);
    }

    #[test]
    fn an_object_of_a_caller_is_known_there() {
        let passed = [Pointer::Constant(0x9000), behind(8)];
        assert_eq!(value_in_caller(behind(4), &passed), Some(Pointer::Constant(0x9004)));
        let second = Pointer::Field { root: Root::Argument(1), offset: 4 };
        assert_eq!(value_in_caller(second, &passed), Some(Pointer::Field { root: OBJECT, offset: 12 }));
        assert_eq!(value_in_caller(Pointer::Low(Root::Argument(2)), &passed), None);
    }

    #[test]
    fn tables_end_with_the_addresses() {
        assert_eq!(table_entries(&BTreeSet::from([0x100, 0x118, 0x130]), 0x100, 2), [0x100, 0x118]);
        let last = u64::MAX - 0x20;
        assert_eq!(table_entries(&BTreeSet::from([0x100, last, last + 0x18]), last, 3), [last, last + 0x18]);
        assert_eq!(table_entries(&BTreeSet::from([u64::MAX]), u64::MAX, 3), [u64::MAX]);
    }

    /// `mov 0x1000(%rip),%rdi; call; mov 8(%rsi),%rdi; call; ret`: the first object is read from a static variable.
    const WAITS: [u8; 22] = [
        0x48, 0x8b, 0x3d, 0x00, 0x10, 0x00, 0x00, 0xe8, 0x00, 0x00, 0x00, 0x00, 0x48, 0x8b, 0x7e, 0x08, 0xe8, 0x00,
        0x00, 0x00, 0x00, 0xc3,
    ];

    #[test]
    fn only_what_was_read_from_the_variable_has_the_lock_that_its_maker_put_there() {
        let f = Function::from_bytes(Arch::X86_64, 0x1000, &WAITS).expect("a function");
        let pointers = Pointers::with(&f, Arch::X86_64, HashMap::new());
        let name = LatchName::innodb(Kind::Mutex, "some_mutex");
        let place = |variable: u64, offset: i64| Pointee { variable, offset, kind: Kind::Mutex };
        let locks = Locks { pointees: BTreeMap::from([(place(0x2007, 0), name.clone())]), ..Locks::default() };
        let found = |call: u64, behind: i64| match pointers.passed(call)[0] {
            Pointer::Behind { root, offset } => {
                locks.pointee(&pointers, root, offset.wrapping_add(behind), Kind::Mutex).cloned()
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(found(0x1007, 0), Some(name));
        assert_eq!(found(0x1007, 8), None);
        assert_eq!(found(0x1010, 0), None);
    }
}
