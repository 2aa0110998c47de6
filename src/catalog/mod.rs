//! Facts about each server family, as data: how to recognize it, which functions wait for latches, and where latches
//! store what identifies them.
//!
//! A new server version is an entry here with a test, not new code.

mod cpu;
mod events;
mod futex;
mod hardware;
mod mariadb;
mod mariadb_sync;
mod mysql;
mod pages;
mod pthread;
mod spin;
mod sync0;
mod variables;

#[cfg(test)]
pub(crate) use mariadb::NAMES as MARIADB_NAMES;

pub use cpu::{class_of_function, is_futex_function, ChosenChecksum, PointerAt, CHECKSUMS, MEMORY_FUNCTIONS};
pub use events::{event_waits, EVENTS};
pub use hardware::{
    cpu as hardware_cpu, where_counters_are, Access, Cpu, EventCode, HardwareEvent, Instruction, Proof, RelativeNode,
    Uncore,
};
pub use pages::{Dictionary, DictionaryAt, PageLatch, Pages, SpaceAt};
pub use pthread::{
    is_word, lock_starts, metadata_lock_event, mutex_size, prlock_kind, psi_pointers, pthread_lock, tracked_id,
    PsiClass, Pthread,
};
pub use spin::{SpinRounds, Turns};
pub use variables::{number, variable, Number, Table};

use std::collections::{BTreeSet, HashSet};
use std::ops::Range;

use strum::IntoStaticStr;

use crate::analysis::{self, Kept, Left};
use crate::model::{Kind, Mode};
use crate::symbols::{self, plain_name, Image, Parameter, Symbol};

/// The maintainer of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum Flavor {
    Mysql,
    Percona,
    Mariadb,
}

impl Flavor {
    /// Returns the value of the `flavor` label.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// Servers that wait for latches in the same functions and name them the same way.
#[derive(Debug)]
pub struct Family {
    /// The maintainer. MySQL also stands for Percona Server.
    pub flavor: Flavor,
    pub wait_functions: &'static [WaitFunction],
    /// Prefixes of the mangled names of lock functions through which waiters for all kinds of latches pass. The call
    /// site is the frame above them.
    pub wrappers: &'static [&'static str],
    pub naming: Naming,
    /// The locks of its SQL layer.
    pub pthread: &'static Pthread,
    /// How to identify the page that a latch belongs to; `None` where that is unknown.
    pub pages: Option<&'static Pages>,
    /// How long its waiters spin; `None` where that is unknown.
    pub spin: Option<&'static SpinRounds>,
}

/// How a family's latches get their names.
#[derive(Debug)]
pub enum Naming {
    /// InnoDB of MySQL, and of MariaDB up to 10.5: by latch ids and creation sites.
    Mysql(&'static MysqlNames),
    /// InnoDB of MariaDB 10.6 and newer: lock words, identified by the object that contains them.
    Mariadb(&'static MariadbNames),
    /// No names: only locks of the SQL layer are measured.
    None,
}

/// Where naming finds its facts in MySQL's program and memory.
#[derive(Debug)]
pub struct MysqlNames {
    /// How mutexes get their names, in versions whose mutexes have a latch id.
    pub ids: Option<&'static IdNames>,
    /// The key variable of latches that are deliberately not instrumented. Builds without this variable use a number
    /// instead.
    pub not_instrumented: &'static str,
    /// The kinds of latches that remember where they were created.
    pub created: &'static [Created],
}

/// Where naming finds latch ids.
#[derive(Debug)]
pub struct IdNames {
    /// The function that fills the vector of latch descriptions, or calls the function that does.
    pub latch_init: Function,
    /// The symbol of the vector of latch descriptions.
    pub latch_meta: &'static str,
    /// Latch ids whose names have the same prefix as the names of latch levels.
    pub sync_ids: &'static [&'static str],
    /// Latch ids that the server no longer instruments, with the name of their former instrument.
    pub uninstrumented_ids: &'static [(&'static str, &'static str)],
}

/// Latches that remember where they were created.
#[derive(Debug)]
pub struct Created {
    /// The function that creates them.
    pub by: Function,
    /// The member that holds the line of the call that created them.
    pub line: &'static Member,
    /// Their kind, unless their instrument says that the lock has a third mode.
    pub kind: Kind,
    /// The names of those that are created without an instrument, by the file that creates them.
    pub uninstrumented: &'static [(&'static str, Latch)],
}

/// Where naming finds latches in MariaDB's memory.
#[derive(Debug)]
pub struct MariadbNames {
    /// The distance from a lock word to the pointer to its performance_schema instance, in bytes.
    pub psi_from_latch: i32,
    /// The latch of a page.
    pub page_latch: Latch,
    /// The instruments of latches that are lock words. The code that creates such a latch shows where it lies.
    pub instrumented: &'static [&'static str],
    /// The instruments of InnoDB's mutexes that are C library mutexes. The code that creates one shows where it lies,
    /// too.
    pub mutexes: &'static [&'static str],
    /// Latches at a fixed distance from an instrumented latch.
    pub beside: &'static [Beside],
    /// Latches in static objects that are found through their members, which the server's tables of variables list.
    pub around: &'static [Around],
    /// Latches in heap arrays that static data points to.
    pub arrays: &'static [ArrayLatches],
    /// Latches inside structures, recognized by the data around them; the offsets of all versions.
    pub inside: &'static [InsideLatch],
}

/// A latch's kind and the last component of its event name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latch {
    /// The kind. Where the server registers an instrument of this name, the instrument decides between rwlock and
    /// sxlock.
    pub kind: Kind,
    pub name: &'static str,
}

/// A latch in the same static object as an instrumented latch.
#[derive(Debug)]
pub struct Beside {
    pub instrumented: &'static str,
    /// The distance from the instrumented latch's lock word to this one's.
    pub distance: u64,
    pub latch: Latch,
}

/// A static object that begins and ends at a cache line boundary, as objects do whose latches have a line of their own.
/// Everything on a line with one of its members belongs to it.
#[derive(Debug)]
pub struct Around {
    /// Members that are system or status variables.
    pub variables: &'static [(Table, &'static str)],
    /// The only rw-lock in the object.
    pub rwlock: Latch,
    /// The only mutex in the object, in builds that have one.
    pub mutex: Latch,
}

/// A static object.
#[derive(Clone, Copy, Debug)]
pub enum Object {
    /// An object with this symbol and size. A build in which the size differs has another layout, so the object is not
    /// found there.
    Symbol { name: &'static str, size: u64 },
    /// An object with an instrumented latch at this offset.
    Around { instrumented: &'static str, at: u64 },
}

/// A heap array with a latch in each element.
#[derive(Debug)]
pub struct ArrayLatches {
    /// The object that holds the pointer to the first element.
    pub object: Object,
    pub array_at: u64,
    pub count: Count,
    pub stride: u64,
    /// The offset of the lock word in an element.
    pub word: u64,
    pub latch: Latch,
}

/// How many elements an array has.
#[derive(Debug)]
pub enum Count {
    /// A single object rather than an array.
    One,
    /// The u64 in this static variable.
    Variable(&'static str),
    /// The array is a hash table with a latch at the beginning of every 64 bytes. The u64 at this offset of the object
    /// is its number of 8-byte cells, without the latches and padding among them.
    HashCells(u64),
}

/// A latch inside a structure.
#[derive(Debug)]
pub struct InsideLatch {
    pub word: Word,
    /// The evidence, all of which must hold. Together it rules out chance, so another version's offsets merely lead to
    /// no name.
    pub evidence: &'static [Evidence],
    pub latch: Latch,
}

/// The offset of a lock word in a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    At(u64),
    /// The offset that the code shows which creates latches with the instrument of this name.
    Made,
}

/// Pointers to follow from an object: the offset of each in what the previous one points to.
pub type Path = &'static [u64];

/// A condition on an object.
#[derive(Debug)]
pub enum Evidence {
    /// The u64 at offset `at` of what the path leads to is `value`.
    Magic { path: Path, at: u64, value: u64 },
    /// Both paths lead to the same address, which is not null.
    Same(Path, Path),
    /// The path leads to a name: readable text.
    Name(Path),
    /// The path leads to a page in memory whose header has the page number and tablespace of the page id at offset
    /// `id`.
    PageHeader { path: Path, id: u64 },
}

/// A function in which threads wait for latches.
#[derive(Debug)]
pub struct WaitFunction {
    pub found: Found,
    /// A short, stable name for its probes.
    pub label: &'static str,
    pub mode: Mode,
    pub shape: Shape,
    /// The number of the argument that is the latch.
    pub latch_argument: usize,
    pub callsite: Callsite,
    pub identity: IdentityIn,
}

/// How a wait function is found in a binary.
#[derive(Clone, Copy, Debug)]
pub enum Found {
    /// By its name.
    Symbol(Function),
    /// By its name. In a stripped program, where a function that is not exported has no name, it is the only function
    /// other than the listed ones that calls both of these.
    CallerOf { name: Function, calls: [Function; 2] },
    /// By its name or, among functions without a name, by how it waits in a futex.
    Futex(Function, FutexShape),
}

/// The beginning of a function's mangled name: its name and its first parameter types. What follows differs between
/// versions, so the parameters that matter are found by their types.
pub type Function = &'static str;

/// The properties that distinguish lock primitives with their own futex wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FutexShape {
    /// The offset in the latch of the futex word.
    pub word: i64,
    /// Whether it wakes all other sleepers after acquiring the latch.
    pub wakes_all: bool,
    /// Whether it spins in rounds first, that is, reads the number of rounds (`innodb_sync_spin_loops`).
    pub spins: bool,
}

/// The part of a function that runs only when a latch is contended.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    /// The whole function.
    Whole,
    /// The part of a hot function that spins by calling one of `spin`, or sleeps by calling one of `sleep`.
    Contended { spin: &'static [Function], sleep: &'static [Function] },
    /// The whole function and what follows, until another function is called.
    Until { end: Function },
    /// The last function that waiters call, where the rest of a mutex is inlined. Each call outside of the other wait
    /// functions is a wait, which begins with spinning by a call of one of these.
    Inlined { spin: &'static [Function] },
    /// The whole function, in builds in which some of its inlined callers are not recognized.
    Rest,
}

/// How the call site of a wait is identified.
#[derive(Clone, Copy, Debug)]
pub enum Callsite {
    /// By the source file and line that the caller passes as arguments; their numbers follow from the parameter types.
    FileLine,
    /// By the return address.
    Caller,
}

/// How the latches of a wait function are identified.
#[derive(Clone, Copy, Debug)]
pub enum IdentityIn {
    /// Always in the same way, in the function's mode.
    Always(IdentifiedBy),
    /// By the kind of wait, whose number is passed as this argument.
    ByKind { argument: usize, kinds: &'static [WaitKind] },
    /// By the latch id that the waiting code reads, among these, where the compiler inlined that code. This applies to
    /// waits that do not pass a kind known at compile time as this argument.
    LookedAt { argument: usize, ids: &'static [IdentifiedBy] },
}

/// A kind of wait, where one function waits for several kinds of latches.
#[derive(Clone, Copy, Debug)]
pub struct WaitKind {
    pub number: u16,
    pub mode: Mode,
    pub identity: IdentifiedBy,
}

/// What identifies a latch, by its members.
#[derive(Clone, Copy, Debug)]
pub enum IdentifiedBy {
    LatchId(&'static Member),
    /// A pointer to the name of the creating file, and the line in the low bits of a u32.
    Created {
        file: &'static Member,
        line: &'static Member,
    },
    /// Nothing inside the latch, which is a bare lock word.
    Word,
}

/// A member of a latch, found through the functions that set it: each build's code shows its offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// The functions that set it; each takes the latch as its first argument.
    pub set_by: &'static [Function],
    /// The parameter whose value they store.
    pub to: Parameter,
    /// Other code that shows the offset, for builds in which the setters are inlined.
    pub shown_by: Option<Showing>,
}

/// EventCode that prints latches of two kinds, for which it reads this member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Showing {
    /// The function to which it passes the member, as `parameter`. It returns a string.
    pub reader: Function,
    pub parameter: Parameter,
    /// If a method of a part of the latch does this, that method.
    pub method: Function,
    /// The same member of the other kind of latch.
    pub other: &'static Member,
}

impl Member {
    /// Returns the member's location in this build. `None` if no function sets it, or if the setters disagree.
    pub fn find(&self, image: &Image) -> Option<Kept> {
        let setters = self.set_by.iter().flat_map(|function| image.functions_named(function));
        let places = |setter: Symbol<'_>| {
            let number = symbols::parameters(setter.name)?.iter().position(|p| *p == self.to)?;
            Some(analysis::kept(image, setter.addr, u8::try_from(number).ok()?, 0))
        };
        let found: BTreeSet<Kept> = setters.filter_map(places).flatten().collect();
        let shown = self.shown_by.as_ref().filter(|_| found.is_empty()).and_then(|code| code.find(image));
        let mut found = found.into_iter().chain(shown);
        found.next().filter(|kept| kept.offset >= 0 && found.next().is_none())
    }
}

impl Showing {
    fn find(&self, image: &Image) -> Option<Kept> {
        let reader = image.functions_named(self.reader).next()?;
        let number = symbols::parameters(reader.name)?.iter().position(|p| *p == self.parameter)?;
        let method = image.functions_named(self.method).next();
        let other = self.other.find(image)?.offset;
        let number = number + result_registers(image);
        let mut shown = BTreeSet::new();
        for (call, function) in calls_of(image, reader.addr) {
            let Some(Left::Loaded(member)) = function.left_for(call, number) else { continue };
            match method.filter(|m| m.addr == function.entry()) {
                // A method's object follows the address for the result, too.
                Some(method) => {
                    let parts = calls_of(image, method.addr).into_iter();
                    let parts = parts.filter_map(|(call, caller)| caller.added_for(call, result_registers(image)));
                    shown.extend(parts.map(|part| part.wrapping_add(member)));
                }
                None => _ = shown.insert(member),
            }
        }
        let mut own = shown.into_iter().filter(|offset| *offset != other);
        own.next().filter(|_| own.next().is_none()).map(|offset| Kept { offset, mask: u32::MAX })
    }
}

/// Returns how many argument registers the address takes at which a function stores a string that it returns.
fn result_registers(image: &Image) -> usize {
    match image.arch() {
        symbols::Arch::X86_64 => 1,
        symbols::Arch::Aarch64 => 0,
    }
}

/// Returns the direct calls of the function at `callee`, each with the function that contains it.
fn calls_of(image: &Image, callee: u64) -> Vec<(u64, analysis::Function)> {
    let calls = analysis::direct_calls(image, &HashSet::from([callee])).into_iter();
    calls.filter_map(|(at, _)| Some((at, analysis::Function::new(image, image.function_at(at)?)?))).collect()
}

/// Where the latches of one build store what identifies them.
#[derive(Debug, Default)]
pub struct Layout {
    members: Vec<(Member, Kept)>,
}

impl Layout {
    /// Collects the members whose location the build's code shows.
    pub fn of(image: &Image, family: &Family) -> Layout {
        let mut layout = Layout::default();
        let members = family.wait_functions.iter().flat_map(WaitFunction::identities).flat_map(|i| i.members());
        for member in members {
            if layout.place(member).is_none() {
                layout.members.extend(member.find(image).map(|kept| (*member, kept)));
            }
        }
        layout
    }

    /// Iterates over all members whose location is known.
    pub fn members(&self) -> impl Iterator<Item = (&Member, Kept)> {
        self.members.iter().map(|(member, kept)| (member, *kept))
    }

    /// Returns the location of a member.
    pub fn place(&self, member: &Member) -> Option<Kept> {
        self.members.iter().find(|(known, _)| known == member).map(|(_, kept)| *kept)
    }
}

/// The sizes of InnoDB's latches, in bytes: of a mutex with a latch id and of an rw-lock that remembers where it was
/// created, in MySQL 9.7.4 and MariaDB 10.2; and of MariaDB's lock words since 10.6, of which an rw-lock has two.
pub const MUTEX_BYTES: u64 = 0x30;
pub const RW_LOCK_BYTES: u64 = 0x78;
pub const WORDS_BYTES: u64 = 8;

/// A function with a spin loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpinFunction {
    pub name: String,
    pub range: Range<u64>,
}

/// Returns the family whose wait functions this binary has. The name of each family's first wait function occurs in no
/// family that is tried before it. If no wait function is found, or nothing that identifies the latches, but InnoDB
/// waits by events, this is the family without wait functions.
///
/// # Errors
/// Fails with what the program is instead, for a message that begins "process PID (NAME) is".
pub fn family(image: &Image) -> Result<&'static Family, &'static str> {
    let known = [&sync0::MYSQL_5_6, &mariadb::MARIADB_10_6, &mariadb_sync::MARIADB_10_2, &mysql::MYSQL];
    let has_first = |f: &&Family| f.wait_functions.first().is_some_and(|w| !w.find(image).is_empty());
    let found = known.into_iter().find(has_first).map(|family| sync0::maintained(family, image));
    if let Some(family) = found.filter(|f| f.wait_functions.iter().any(|w| w.is_identified(image))) {
        return Ok(family);
    }
    match (found, image.symbol("server_version")) {
        (None, None) => Err("not a MySQL or MariaDB server: find one with: pgrep -a 'mysqld|mariadbd'"),
        _ if !event_waits(image).is_empty() => Ok(&mariadb_sync::SLEEPS_ONLY),
        (Some(_), _) => {
            Err("a MySQL or MariaDB server, but armtrace cannot find in its code how latches are identified")
        }
        (None, _) => Err("a MySQL or MariaDB server, but armtrace cannot find its latch functions"),
    }
}

/// Returns whether the image lacks symbols by which the catalog recognizes a server. MySQL exports all that matter; a
/// stripped MariaDB has no names for InnoDB's functions. For any other program this is false.
pub fn misses_symbols(image: &Image) -> bool {
    match family(image) {
        Ok(family) => !family.wait_functions.iter().any(|w| w.is_named(image)),
        Err(_) => image.symbol("server_version").is_some(),
    }
}

/// Returns the package with a server's debug symbols, given the version that the server reports. `None` for builds
/// other than Debian's and Ubuntu's.
///
/// The package names are those of bullseye, bookworm and Ubuntu 22.04; up to 10.6 they contain the version.
pub fn debug_package(version: &str) -> Option<String> {
    let (number, build) = version.split_once("-MariaDB-")?;
    if !build.contains("deb") && !build.contains("ubuntu") {
        return None;
    }
    let mut parts = number.split('.');
    let (major, minor): (u32, u32) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    let versioned = (major, minor) <= (10, 6);
    Some(if versioned {
        format!("mariadb-server-core-{major}.{minor}-dbgsym")
    } else {
        "mariadb-server-core-dbgsym".to_owned()
    })
}

/// Returns the maintainer of this server of a known family.
pub fn flavor(family: &Family, image: &Image) -> Flavor {
    match family.flavor {
        Flavor::Mysql if mysql::is_percona(image) => Flavor::Percona,
        flavor => flavor,
    }
}

impl WaitFunction {
    /// Describes a function that waits for an `rw_lock_t`, its first argument.
    const fn rw_lock(
        symbol: Function,
        label: &'static str,
        mode: Mode,
        shape: Shape,
        identity: IdentifiedBy,
    ) -> WaitFunction {
        WaitFunction {
            found: Found::Symbol(symbol),
            label,
            mode,
            shape,
            latch_argument: 0,
            callsite: Callsite::FileLine,
            identity: IdentityIn::Always(identity),
        }
    }

    /// Returns the beginning of its mangled name.
    fn name(&self) -> Function {
        match self.found {
            Found::Symbol(name) | Found::Futex(name, _) | Found::CallerOf { name, .. } => name,
        }
    }

    /// Returns whether a symbol of this binary has its name.
    fn is_named(&self, image: &Image) -> bool {
        image.functions_named(self.name()).next().is_some()
    }

    /// Returns what its latches can be identified by.
    fn identities(&self) -> impl Iterator<Item = IdentifiedBy> {
        let (always, kinds, ids) = match self.identity {
            IdentityIn::Always(identity) => (Some(identity), &[][..], &[][..]),
            IdentityIn::ByKind { kinds, .. } => (None, kinds, &[][..]),
            IdentityIn::LookedAt { ids, .. } => (None, &[][..], ids),
        };
        always.into_iter().chain(kinds.iter().map(|kind| kind.identity)).chain(ids.iter().copied())
    }

    /// Returns whether this build shows where its latches, or some kind of them, store what identifies them.
    fn is_identified(&self, image: &Image) -> bool {
        self.identities().any(|identity| identity.members().iter().all(|member| member.find(image).is_some()))
    }

    /// Returns its address ranges in this binary; there are several when variants share this entry.
    pub fn find(&self, image: &Image) -> Vec<Range<u64>> {
        let by_name: Vec<Range<u64>> = image.functions_named(self.name()).filter_map(|s| bounds(image, &s)).collect();
        match self.found {
            _ if !by_name.is_empty() => by_name,
            Found::Symbol(_) => Vec::new(),
            Found::CallerOf { calls, .. } => only_caller(image, calls).into_iter().collect(),
            Found::Futex(_, shape) => {
                futex::primitives(image).into_iter().filter(|(_, s)| *s == shape).map(|(range, _)| range).collect()
            }
        }
    }

    /// Returns the numbers of the arguments that hold the caller's file and line, for the variant at `entry`. `None` if
    /// neither its name shows them nor its code, which passes them on.
    pub fn location(&self, image: &Image, entry: u64) -> Option<[usize; 2]> {
        let by_name = image.functions_named(self.name()).find(|s| s.addr == entry).and_then(|s| location_in(s.name));
        let Found::CallerOf { calls, .. } = self.found else { return by_name };
        by_name.or_else(|| calls.iter().find_map(|callee| location_passed_to(image, entry, callee)))
    }
}

/// Returns which arguments of the function with this name are a file and a line.
fn location_in(mangled: &str) -> Option<[usize; 2]> {
    let parameters = symbols::parameters(mangled)?;
    let file = parameters.iter().position(|p| *p == Parameter::File)?;
    Some([file, file + 1])
}

/// Returns which arguments of the function at `entry` it passes on to `callee` as file and line.
fn location_passed_to(image: &Image, entry: u64, callee: Function) -> Option<[usize; 2]> {
    let callee = image.functions_named(callee).next()?;
    let [file, line] = location_in(callee.name)?;
    let function = analysis::Function::new(image, image.function_at(entry)?)?;
    let calls = function.handed_on();
    let call = calls
        .iter()
        .find(|call| call.callee == callee.addr && call.arguments.get(file).is_some_and(Option::is_some))?;
    let own =
        |number: usize| call.arguments.get(number)?.filter(|(_, offset)| *offset == 0).map(|(own, _)| usize::from(own));
    Some([own(file)?, own(line)?])
}

impl IdentifiedBy {
    /// Returns the members that identify the latch.
    fn members(&self) -> Vec<&'static Member> {
        match *self {
            IdentifiedBy::LatchId(member) => vec![member],
            IdentifiedBy::Created { file, line } => vec![file, line],
            IdentifiedBy::Word => Vec::new(),
        }
    }
}

/// Returns a function's bounds. The unwind table is preferred over the symbol, whose size may be missing.
fn bounds(image: &Image, symbol: &Symbol<'_>) -> Option<Range<u64>> {
    image
        .function_at(symbol.addr)
        .or_else(|| (symbol.size > 0).then(|| symbol.addr..symbol.addr.saturating_add(symbol.size)))
}

/// Returns the only function that calls both of these and is not exported; an exported one would have been found by its
/// name.
fn only_caller(image: &Image, callees: [Function; 2]) -> Option<Range<u64>> {
    let callers = |callee: Function| -> BTreeSet<(u64, u64)> {
        let targets: HashSet<u64> = image.functions_named(callee).map(|s| s.addr).collect();
        analysis::direct_calls(image, &targets)
            .into_iter()
            .filter_map(|(site, _)| image.function_at(site))
            .map(|f| (f.start, f.end))
            .collect()
    };
    let [first, second] = callees.map(callers);
    let exported = image.exported_functions();
    let mut both = first.intersection(&second).filter(|f| !exported.contains(&f.0));
    let &(start, end) = both.next()?;
    both.next().is_none().then_some(start..end)
}

impl Family {
    /// Returns the link-time return addresses inside wrappers: for these, the actual caller is one frame further up.
    pub fn wrapper_returns(&self, image: &Image) -> Vec<u64> {
        if self.wrappers.is_empty() {
            return Vec::new();
        }
        let is_wrapper = |name: &str| self.wrappers.iter().any(|w| name.starts_with(w));
        let wrappers: HashSet<u64> =
            image.symbols().filter(|s| s.is_function && is_wrapper(s.name)).map(|s| s.addr).collect();
        let waits = self.wait_functions.iter().flat_map(|w| w.find(image)).map(|r| r.start);
        let targets: HashSet<u64> = wrappers.iter().copied().chain(waits).collect();
        analysis::direct_calls(image, &targets)
            .into_iter()
            .filter(|(site, _)| image.symbol_at(*site).is_some_and(|s| is_wrapper(s.name)))
            .map(|(site, _)| site)
            .filter_map(|site| analysis::decode(image, site..site.saturating_add(15)).first().map(analysis::Insn::end))
            .collect()
    }

    /// Returns the functions in which threads spin for latches in this binary: those that a contended part calls to
    /// spin, and those that spin before they sleep.
    pub fn spin_functions(&self, image: &Image) -> Vec<SpinFunction> {
        let mut found = Vec::new();
        for function in self.wait_functions {
            if let Shape::Contended { spin, .. } | Shape::Inlined { spin } = function.shape {
                let called = spin.iter().flat_map(|name| image.functions_named(name));
                let called = called.filter_map(|s| Some((plain_name(s.name), bounds(image, &s)?)));
                found.extend(called.map(|(name, range)| SpinFunction { name, range }));
            }
            if let Found::Futex(_, FutexShape { spins: true, .. }) = function.found {
                let name = || function.label.to_owned();
                found.extend(function.find(image).into_iter().map(|range| SpinFunction { name: name(), range }));
            }
        }
        found.sort_by_key(|f| f.range.start);
        found.dedup_by_key(|f| f.range.start);
        found
    }

    /// Returns the distance from a lock word to the pointer to its performance_schema instance, where latches are
    /// identified by it.
    pub fn psi_from_latch(&self) -> Option<i32> {
        match self.naming {
            Naming::Mariadb(names) => Some(names.psi_from_latch),
            Naming::Mysql(_) | Naming::None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::debug_package;

    #[test]
    fn debug_packages_are_those_of_the_distribution() {
        let package = |version| debug_package(version).unwrap_or_default();
        assert_eq!(package("10.5.29-MariaDB-0+deb11u1"), "mariadb-server-core-10.5-dbgsym");
        assert_eq!(package("10.6.22-MariaDB-0ubuntu0.22.04.1"), "mariadb-server-core-10.6-dbgsym");
        assert_eq!(package("10.11.19-MariaDB-0+deb12u1"), "mariadb-server-core-dbgsym");
        for other in ["11.4.5-MariaDB", "9.7.4", "x-MariaDB-0+deb11u1", "10-MariaDB-deb"] {
            assert_eq!(package(other), "", "{other}");
        }
    }
}

/// Test functions in this executable that set a member.
#[cfg(all(test, target_arch = "x86_64"))]
mod member_tests {
    use super::*;

    const HERE: Function = "_Z8set_hereP4Lock10latch_id_t";
    const THERE: Function = "_Z9set_thereP4Lock10latch_id_t";
    const TWICE: Function = "_Z9set_twiceP4Lock10latch_id_t";
    const NOWHERE: Function = "_Z11set_nowhereP4Lock10latch_id_t";

    macro_rules! function {
        ($name:literal, $code:literal) => {
            concat!(
                ".globl ",
                $name,
                "\n.type ",
                $name,
                ",@function\n",
                $name,
                ":\n.cfi_startproc\n",
                $code,
                "\nret\n.cfi_endproc\n.size ",
                $name,
                ", .-",
                $name
            )
        };
    }

    std::arch::global_asm!(
        function!("_Z8set_hereP4Lock10latch_id_t", "mov %esi,0x20(%rdi)"),
        function!("_Z9set_thereP4Lock10latch_id_t", "mov %esi,0x28(%rdi)"),
        function!("_Z9set_twiceP4Lock10latch_id_t", "mov %esi,0x20(%rdi)\nmov %esi,0x28(%rdi)"),
        function!("_Z11set_nowhereP4Lock10latch_id_t", "nop"),
        options(att_syntax)
    );

    extern "C" {
        #[link_name = "_Z8set_hereP4Lock10latch_id_t"]
        fn here();
        #[link_name = "_Z9set_thereP4Lock10latch_id_t"]
        fn there();
        #[link_name = "_Z9set_twiceP4Lock10latch_id_t"]
        fn twice();
        #[link_name = "_Z11set_nowhereP4Lock10latch_id_t"]
        fn nowhere();
    }

    fn found(set_by: &'static [Function]) -> Option<Kept> {
        // This use keeps the linker from dropping them.
        std::hint::black_box([here, there, twice, nowhere].map(|function| function as *const ()));
        let image = Image::open(std::path::Path::new("/proc/self/exe")).expect("the test's own executable");
        assert!(set_by.iter().all(|name| image.functions_named(name).next().is_some()));
        Member { set_by, to: Parameter::LatchId, shown_by: None }.find(&image)
    }

    #[test]
    fn a_member_lies_where_all_setters_say() {
        let here = Some(Kept { offset: 0x20, mask: u32::MAX });
        assert_eq!(found(&[HERE]), here);
        assert_eq!(found(&[HERE, NOWHERE]), here);
    }

    #[test]
    fn setters_that_disagree_tell_nothing() {
        assert_eq!(found(&[HERE, THERE]), None);
        assert_eq!(found(&[TWICE]), None);
        assert_eq!(found(&[HERE, TWICE]), None);
        assert_eq!(found(&[NOWHERE]), None);
    }
}
