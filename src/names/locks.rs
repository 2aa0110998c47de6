//! The SQL layer's locks: from the code that makes a lock to its name.
//!
//! A lock of the C library with an instrument is made in two steps, side by side: performance_schema is given the value of the
//! instrument's key variable and the lock's address, and the C library initialises the lock. Whether performance_schema is
//! on does not matter. The key is not always named there: it may be a member of the object that the lock is in, or an argument.
//! Then the callers tell, and the code that fills in that member.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::psi::Instruments;
use super::types::{Object, Types};
use super::LatchName;
use crate::code::{
    direct_calls, functions_that_mention, import_stubs, Flow, Function, Insn, Origin, Pointer, Pointers, Root,
};
use crate::model::Kind;
use crate::symbols::Image;

/// How many calls up a lock and its key are looked for.
const MAX_DEPTH: usize = 4;

/// More calls of a function that makes a lock are not looked at.
const MAX_CALLS: usize = 256;

/// The C library's functions that initialise a lock.
const MAKERS: &[(&str, Kind)] =
    &[("pthread_mutex_init", Kind::Mutex), ("pthread_rwlock_init", Kind::Rwlock), ("pthread_cond_init", Kind::Cond)];

/// Bytes that an entry of a table of instruments can have.
const ENTRY: std::ops::RangeInclusive<u64> = 24..=64;

/// A lock being made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Making {
    /// The number of the instrument.
    key: Pointer,
    lock: Pointer,
    kind: Kind,
    /// Whether the function that makes it names the instrument itself. Otherwise objects of one type can have several: MySQL's binary
    /// log and relay logs do.
    is_of_type: bool,
}

/// What one function says of locks and keys.
#[derive(Default)]
struct Maker {
    makings: Vec<Making>,
    /// Where it writes the number of an instrument: by place, the key variable.
    keys: Vec<(Pointer, u64)>,
    objects: Vec<Object>,
    /// What it writes to static variables: link-time address, and value.
    variables: Vec<(u64, Pointer)>,
}

/// The locks of a binary whose names are known from the code that makes them.
#[derive(Debug, Default)]
pub struct Locks {
    /// Those in static data, by link-time address.
    pub statics: BTreeMap<u64, LatchName>,
    /// Those in objects of a type that is known by its name.
    members: BTreeMap<Member, LatchName>,
    /// Those in objects that a static variable points to.
    pointees: BTreeMap<Pointee, LatchName>,
    /// The linkage stubs of the C library's functions.
    stubs: HashMap<u64, String>,
    types: Types,
}

/// Where a lock lies in an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Member {
    class: String,
    offset: i64,
    kind: &'static str,
}

/// Where a lock lies in what a static variable points to: link-time address of that, and where it is behind what code that makes it
/// has a pointer to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Pointee {
    variable: u64,
    offset: i64,
    kind: &'static str,
}

/// Looks for the code that makes locks.
pub fn locks(image: &Image, instruments: &Instruments) -> Locks {
    let search = Search::new(image, instruments);
    let (makers, mut found) = (search.makers(), Found::default());
    let fields = static_fields(makers.values());
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
        types: search.types,
    }
}

/// Those that have one name.
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

/// The members of static objects that hold the number of an instrument: by address, the key variable.
fn static_fields<'a>(makers: impl Iterator<Item = &'a Maker>) -> HashMap<u64, u64> {
    let mut found: HashMap<u64, u64> = HashMap::new();
    let mut contradicted = HashSet::new();
    for &(place, key) in makers.flat_map(|m| &m.keys) {
        let Pointer::Constant(at) = place else { continue };
        if found.insert(at, key).is_some_and(|other| other != key) {
            contradicted.insert(at);
        }
    }
    found.retain(|at, _| !contradicted.contains(at));
    found
}

struct Search<'a> {
    image: &'a Image,
    instruments: &'a Instruments,
    categories: HashMap<u64, String>,
    /// The linkage stubs of the functions that initialise locks.
    stubs: HashMap<u64, Kind>,
    types: Types,
}

impl<'a> Search<'a> {
    fn new(image: &'a Image, instruments: &'a Instruments) -> Search<'a> {
        let kind = |name: &str| MAKERS.iter().find(|(maker, _)| *maker == name).map(|&(_, kind)| kind);
        let stubs = import_stubs(image).into_iter().filter_map(|(at, name)| Some((at, kind(&name)?))).collect();
        Search { image, instruments, categories: categories(image, instruments), stubs, types: Types::default() }
    }

    /// The functions that make locks or write numbers of instruments.
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
            f.insns().iter().filter(|i| calls(i).is_some()).map(|i| (i, pointers.passed(i.addr))).collect();
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
        let keys = pointers.stores().iter().filter_map(|store| match store.value {
            Pointer::Content(key) if store.bytes == 4 => Some((store.to, self.instruments.by_key(key).map(|_| key)?)),
            _ => None,
        });
        let makings: Vec<Making> = makings.collect();
        let variables = pointers.stores().iter().filter_map(|store| match (store.to, store.value) {
            (Pointer::Constant(at), Pointer::Behind { .. }) if store.bytes == 8 => Some((at, store.value)),
            _ => None,
        });
        Maker {
            keys: keys.collect(),
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

    /// Takes in those that are known, and returns those that the function's callers may tell.
    fn sort(
        &self,
        makings: impl Iterator<Item = Making>,
        maker: &Maker,
        fields: &HashMap<u64, u64>,
        found: &mut Found,
    ) -> Vec<Making> {
        let mut open = Vec::new();
        for making in makings {
            let key = known_key(making.key, &maker.keys, fields).map_or(making.key, Pointer::Content);
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

    /// Notes which objects the lock is in that lies so many bytes behind a root.
    fn note_object(&self, key: u64, kind: Kind, root: Root, offset: i64, maker: &Maker, found: &mut Found) {
        let Some(name) = self.name(key, kind) else { return };
        let kind = kind.as_str();
        for object in maker.objects.iter().filter(|o| o.root == root) {
            let member = Member { class: object.class.clone(), offset: offset - object.start, kind };
            found.members.entry(member).or_default().insert(name.clone());
        }
        for &(variable, value) in &maker.variables {
            if let Pointer::Behind { root: to, offset: start } = value {
                if to == root {
                    let pointee = Pointee { variable, offset: offset - start, kind };
                    found.pointees.entry(pointee).or_default().insert(name.clone());
                }
            }
        }
    }

    /// What the callers of functions say of the locks that these make.
    fn callers(
        &self,
        open: &BTreeMap<u64, Vec<Making>>,
        fields: &HashMap<u64, u64>,
        found: &mut Found,
    ) -> BTreeMap<u64, Vec<Making>> {
        let mut callers: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
        let mut counts: HashMap<u64, usize> = HashMap::new();
        for (at, to) in direct_calls(self.image, &open.keys().copied().collect()) {
            let count = counts.entry(to).or_default();
            *count += 1;
            let Some(range) = self.image.function_at(at).filter(|_| *count <= MAX_CALLS) else { continue };
            callers.entry(range.start).or_default().push((at, to));
        }
        let mut more = BTreeMap::new();
        for (entry, calls) in callers {
            let Some(f) = self.image.function_at(entry).and_then(|range| Function::new(self.image, range)) else {
                continue;
            };
            let pointers = Pointers::new(self.image, &f);
            let maker = self.maker(&f, &pointers);
            let mut inner = BTreeSet::new();
            for (at, to) in calls {
                let passed: Vec<Pointer> =
                    pointers.passed(at).iter().map(|&value| self.returned_constant(&pointers, value)).collect();
                let makings = open[&to].iter().filter_map(|m| in_caller(*m, &passed));
                inner.extend(self.sort(makings, &maker, fields, found).into_iter().map(Sorted));
            }
            more.insert(entry, inner.into_iter().map(|m| m.0).collect());
        }
        more
    }

    /// The address that a function returns which always returns the same; otherwise the value itself.
    fn returned_constant(&self, pointers: &Pointers, value: Pointer) -> Pointer {
        let Pointer::Behind { root, offset } = value else { return value };
        let Some(Origin::Returned { from }) = pointers.origin(root) else { return value };
        let range = self.image.function_at(from).filter(|range| range.start == from);
        let Some(f) = range.and_then(|range| Function::new(self.image, range)) else { return value };
        let inner = Pointers::new(self.image, &f);
        match inner.returned() {
            [first @ Pointer::Constant(_), others @ ..] if others.iter().all(|other| other == first) => {
                first.plus(offset)
            }
            _ => value,
        }
    }

    fn name(&self, key: u64, kind: Kind) -> Option<LatchName> {
        let instrument = self.instruments.by_key(key)?;
        let category = self.categories.get(&instrument.entry)?;
        Some(LatchName { event: format!("wait/synch/{}/{category}/{}", kind.as_str(), instrument.name), kind })
    }
}

/// The C library's functions that lock a lock, and which of their arguments that is.
const LOCKERS: &[(&str, Kind, usize)] = &[
    ("pthread_mutex_lock", Kind::Mutex, 0),
    // MariaDB's, for a mutex with an instance.
    ("psi_mutex_lock", Kind::Mutex, 0),
    ("pthread_rwlock_rdlock", Kind::Rwlock, 0),
    ("pthread_rwlock_wrlock", Kind::Rwlock, 0),
    ("pthread_cond_wait", Kind::Cond, 0),
    ("pthread_cond_timedwait", Kind::Cond, 0),
    // The mutex, when the condition holds.
    ("pthread_cond_wait", Kind::Mutex, 1),
    ("pthread_cond_timedwait", Kind::Mutex, 1),
];

/// Which argument of a call is the lock of this kind that the call locks; `None` if it locks none.
fn lock_argument(image: &Image, stubs: &HashMap<u64, String>, call: &Insn, kind: Kind) -> Option<usize> {
    let to = calls_directly(call)?;
    let own = || image.symbol_at(to).filter(|s| s.addr == to).map(|s| s.name);
    let callee = stubs.get(&to).map(String::as_str).or_else(own)?;
    LOCKERS.iter().find(|(name, k, _)| *name == callee && *k == kind).map(|&(_, _, argument)| argument)
}

/// Whether the function around this link-time address locks mutexes that are members of objects in one place of these only.
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

/// What the code says of the lock that it waits for in one place.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Waited {
    /// The lock's name, where that is sure from the code alone.
    pub name: Option<LatchName>,
    /// How far behind a pointer it lies.
    pub offset: Option<i64>,
}

/// Looks at the call into the C library that returns to this link-time address.
pub fn waited(image: &Image, locks: &Locks, return_address: u64, kind: Kind) -> Waited {
    let look = || {
        let f = Function::new(image, image.function_at(return_address.checked_sub(1)?)?)?;
        let call = f.insns().iter().find(|i| i.end() == return_address)?;
        let argument = lock_argument(image, &locks.stubs, call, kind)?;
        let pointers = Pointers::new(image, &f);
        let Pointer::Behind { root, offset } = *pointers.passed(call.addr).get(argument)? else { return None };
        let objects = locks.types.objects(image, &f, &pointers);
        let member = |o: &Object| {
            let member = Member { class: o.class.clone(), offset: offset - o.start, kind: kind.as_str() };
            locks.members.get(&member)
        };
        let names: HashSet<&LatchName> = objects.iter().filter(|o| o.root == root).filter_map(member).collect();
        let name = Some(names).filter(|names| names.len() == 1).and_then(|names| names.into_iter().next().cloned());
        Some(Waited { name, offset: Some(offset) })
    };
    look().unwrap_or_default()
}

impl Locks {
    /// Static variables that point to objects with a lock this far behind what they point to: link-time address, and the lock's name.
    pub fn pointees(&self, offset: i64, kind: Kind) -> impl Iterator<Item = (u64, &LatchName)> {
        let fits = move |p: &Pointee| p.offset == offset && p.kind == kind.as_str();
        self.pointees.iter().filter(move |(p, _)| fits(p)).map(|(p, name)| (p.variable, name))
    }
}

/// In an order, so that what is found does not depend on chance.
#[derive(PartialEq, Eq)]
struct Sorted(Making);

impl Ord for Sorted {
    fn cmp(&self, other: &Sorted) -> std::cmp::Ordering {
        format!("{:?}", self.0).cmp(&format!("{:?}", other.0))
    }
}

impl PartialOrd for Sorted {
    fn partial_cmp(&self, other: &Sorted) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

fn calls(insn: &Insn) -> Option<()> {
    matches!(insn.flow, Flow::Call(_) | Flow::Jump(_) | Flow::IndirectJump).then_some(())
}

fn calls_directly(insn: &Insn) -> Option<u64> {
    match insn.flow {
        Flow::Call(to) => to,
        Flow::Jump(to) => Some(to),
        _ => None,
    }
}

/// The key variable behind a number that was read from a member that this function, or any for a static object, fills in.
fn known_key(key: Pointer, keys: &[(Pointer, u64)], fields: &HashMap<u64, u64>) -> Option<u64> {
    match key {
        Pointer::Content(at) => Some(fields.get(&at).copied().unwrap_or(at)),
        Pointer::Field { root, offset } => {
            let place = Pointer::Behind { root, offset };
            let mut all = keys.iter().filter(|(at, _)| *at == place).map(|&(_, key)| key);
            let first = all.next()?;
            all.all(|other| other == first).then_some(first)
        }
        _ => None,
    }
}

/// Whether the callers of a function can tell more of a value.
fn is_open(value: Pointer) -> bool {
    matches!(
        value,
        Pointer::Behind { root: Root::Argument(_), .. }
            | Pointer::Field { root: Root::Argument(_), .. }
            | Pointer::Low(Root::Argument(_))
    )
}

/// A lock's making as its caller sees it, who passes these arguments.
fn in_caller(making: Making, passed: &[Pointer]) -> Option<Making> {
    let argument = |number: u8| passed.get(usize::from(number)).copied();
    let value = |value: Pointer| match value {
        Pointer::Behind { root: Root::Argument(number), offset } => Some(argument(number)?.plus(offset)),
        Pointer::Low(Root::Argument(number)) => Some(argument(number)?.low(4)),
        Pointer::Field { root: Root::Argument(number), offset } => match argument(number)?.plus(offset) {
            Pointer::Constant(at) => Some(Pointer::Content(at)),
            Pointer::Behind { root, offset } => Some(Pointer::Field { root, offset }),
            _ => None,
        },
        other => Some(other),
    };
    Some(Making { key: value(making.key)?, lock: value(making.lock)?, ..making })
}

/// The category of each instrument, by its entry in the table: the code passes both to performance_schema together, and how
/// long the table is.
fn categories(image: &Image, instruments: &Instruments) -> HashMap<u64, String> {
    let entries: BTreeSet<u64> = instruments.keys().map(|(_, i)| i.entry).collect();
    let mut found = HashMap::new();
    for entry in functions_that_mention(image, &image.with_got_entries(&entries.iter().copied().collect())) {
        let Some(f) = image.function_at(entry).and_then(|range| Function::new(image, range)) else { continue };
        let pointers = Pointers::new(image, &f);
        for insn in f.insns().iter().filter(|i| calls(i).is_some()) {
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

/// Where the entries of a table begin, of which this many are registered.
fn table_entries(entries: &BTreeSet<u64>, table: u64, count: u64) -> Vec<u64> {
    let size = entries.range(table + 1..).next().map_or(0, |next| next - table);
    if !ENTRY.contains(&size) {
        return vec![table];
    }
    (0..count.min(entries.len() as u64)).map(|i| table + i * size).filter(|at| entries.contains(at)).collect()
}
