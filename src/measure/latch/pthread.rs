//! The C library's part of a waiting thread's stack: which of its functions wait, for what, and how to get from each to
//! its caller.

use std::collections::{BTreeMap, HashMap};

use crate::bpf::latch::types;
use crate::isa::{decode, Flow, Insn};
use crate::server::{file_mappings, FileMapping};
use crate::symbols::{frame, unwind, Image, Unwind};
use types::primitive as primitives;

/// The capacity of the programs' map.
const MAX_ROWS: usize = types::limit::MAX_FRAME_ROWS.0 as usize;
/// The most libraries that are examined; the process chooses how many files it maps.
const MAX_LIBRARIES: usize = 8;
/// The most functions that are examined per library; those that wait need fewer than 100.
const MAX_FUNCTIONS: usize = 512;

/// The most bytes of a library that is read. The C++ library without its debug information stripped off has 30 MB.
const MAX_LIBRARY: u64 = 64 << 20;

/// The exported functions by which a program waits.
const FUNCTIONS: &[(&str, primitives)] = &[
    ("pthread_mutex_lock", primitives::PRIMITIVE_MUTEX),
    ("pthread_mutex_timedlock", primitives::PRIMITIVE_MUTEX),
    ("pthread_mutex_clocklock", primitives::PRIMITIVE_MUTEX),
    ("pthread_rwlock_rdlock", primitives::PRIMITIVE_RWLOCK_READ),
    ("pthread_rwlock_timedrdlock", primitives::PRIMITIVE_RWLOCK_READ),
    ("pthread_rwlock_clockrdlock", primitives::PRIMITIVE_RWLOCK_READ),
    ("pthread_rwlock_wrlock", primitives::PRIMITIVE_RWLOCK_WRITE),
    ("pthread_rwlock_timedwrlock", primitives::PRIMITIVE_RWLOCK_WRITE),
    ("pthread_rwlock_clockwrlock", primitives::PRIMITIVE_RWLOCK_WRITE),
    ("pthread_cond_wait", primitives::PRIMITIVE_COND),
    ("pthread_cond_timedwait", primitives::PRIMITIVE_COND),
    ("pthread_cond_clockwait", primitives::PRIMITIVE_COND),
    // C++ library functions, which call those above.
    ("_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE", primitives::PRIMITIVE_COND),
    ("malloc", primitives::PRIMITIVE_ALLOCATOR),
    ("calloc", primitives::PRIMITIVE_ALLOCATOR),
    ("realloc", primitives::PRIMITIVE_ALLOCATOR),
    ("free", primitives::PRIMITIVE_ALLOCATOR),
    ("memalign", primitives::PRIMITIVE_ALLOCATOR),
    ("aligned_alloc", primitives::PRIMITIVE_ALLOCATOR),
    ("posix_memalign", primitives::PRIMITIVE_ALLOCATOR),
    // C++'s new and delete, which call those above.
    ("_Znwm", primitives::PRIMITIVE_ALLOCATOR),
    ("_Znam", primitives::PRIMITIVE_ALLOCATOR),
    ("_ZdlPv", primitives::PRIMITIVE_ALLOCATOR),
    ("_ZdlPvm", primitives::PRIMITIVE_ALLOCATOR),
    ("sem_wait", primitives::PRIMITIVE_OTHER),
    ("sem_timedwait", primitives::PRIMITIVE_OTHER),
    ("sem_clockwait", primitives::PRIMITIVE_OTHER),
    ("pthread_join", primitives::PRIMITIVE_OTHER),
    ("pthread_timedjoin_np", primitives::PRIMITIVE_OTHER),
    ("pthread_barrier_wait", primitives::PRIMITIVE_OTHER),
    ("pthread_once", primitives::PRIMITIVE_OTHER),
    ("syscall", primitives::PRIMITIVE_OTHER),
    ("sched_yield", primitives::PRIMITIVE_OTHER),
    ("pthread_yield", primitives::PRIMITIVE_OTHER),
];

/// Returns the rows for process `pid`, by address in the process. Empty if its C library cannot be read; its waits are
/// then counted as lost.
pub(super) fn rows(pid: i32) -> BTreeMap<u64, types::library_frame> {
    let mut rows = BTreeMap::new();
    each_library(pid, |image, bias| {
        rows.extend(rows_of(image).into_iter().map(|(addr, row)| (addr.wrapping_add(bias), row)));
    });
    rows.into_iter().take(MAX_ROWS).collect()
}

/// A thread's place in one of the library's functions.
pub(super) struct LibraryPlace {
    pub unwind: Unwind,
    /// `enum primitive`: what the function means to code outside of the library.
    pub primitive: u32,
}

/// Returns the places in process `pid` where threads sleep, or have called what sleeps, by address in the process.
pub(super) fn places(pid: i32) -> HashMap<u64, LibraryPlace> {
    let mut places = HashMap::new();
    each_library(pid, |image, bias| {
        let of = |insn: &Insn, primitive| Some(LibraryPlace { unwind: unwind(image, insn.addr)?, primitive });
        places.extend(each_call(image, of).into_iter().map(|(addr, place)| (addr.wrapping_add(bias), place)));
    });
    places
}

/// What the C library tells debuggers of a thread's descriptor: the size of its ID in bits, how many there are, and the
/// offset in bytes, as numbers of four bytes (`libthread_db`).
const THREAD_ID: &str = "_thread_db_pthread_tid";

/// Returns where a thread's descriptor (`struct pthread`) has the thread's ID, as the C library, or the thread library
/// before glibc 2.34, says.
pub fn thread_id_offset(image: &Image) -> Option<u32> {
    let is_it = |name: &str| name.split('@').next() == Some(THREAD_ID);
    let at = image.symbols().find(|symbol| is_it(symbol.name))?.addr;
    let (words, _) = image.bytes(at, 12)?.as_chunks::<4>();
    match words.iter().map(|word| u32::from_le_bytes(*word)).collect::<Vec<_>>()[..] {
        [32, 1, offset] => Some(offset),
        _ => None,
    }
}

/// Returns the same for the libraries of a process.
pub(super) fn thread_id_offset_in(pid: i32) -> Option<u32> {
    let mut found = None;
    each_library(pid, |image, _| found = found.or_else(|| thread_id_offset(image)));
    found
}

fn each_library(pid: i32, mut act: impl FnMut(&Image, u64)) {
    for library in libraries(pid) {
        let Ok(image) = library.image(pid, MAX_LIBRARY) else { continue };
        let Some(linked) = image.page_address_of(library.offset) else { continue };
        act(&image, library.start.wrapping_sub(linked));
    }
}

/// Returns the first mappings of the C library, of the C++ library and, before glibc 2.34, of the thread library.
fn libraries(pid: i32) -> Vec<FileMapping> {
    let names = ["libc.so", "libc-2", "libpthread", "libstdc++"];
    let mut found = file_mappings(pid);
    found.retain(|m| names.iter().any(|name| m.name.starts_with(name)));
    found.dedup_by(|a, b| a.name == b.name);
    found.truncate(MAX_LIBRARIES);
    found
}

/// Returns the rows of one library, by link-time address.
pub fn rows_of(image: &Image) -> BTreeMap<u64, types::library_frame> {
    each_call(image, |insn, primitive| row(image, insn, primitive))
}

/// Returns something for each instruction of the library at which its functions sleep or call each other, by the
/// address behind it, from the instruction and what its function means.
fn each_call<T>(image: &Image, of: impl Fn(&Insn, u32) -> Option<T>) -> BTreeMap<u64, T> {
    let exported: HashMap<u64, u32> = image
        .symbols()
        .filter(|s| s.is_function)
        .filter_map(|s| {
            // In .symtab, the names of functions with several versions include the version:
            // `pthread_cond_wait@@GLIBC_2.3.2`.
            let exported = s.name.split('@').next()?;
            Some((s.addr, FUNCTIONS.iter().find(|(name, _)| *name == exported)?.1 .0))
        })
        .collect();
    let mut seen: HashMap<u64, Option<u32>> = HashMap::new();
    let mut functions: Vec<(u64, Option<u32>)> = exported.iter().map(|(&addr, &p)| (addr, Some(p))).collect();
    let mut rows = BTreeMap::new();
    while let Some((addr, primitive)) = functions.pop() {
        if seen.len() >= MAX_FUNCTIONS {
            break;
        }
        // The library also calls its exported functions internally, which does not change their meaning.
        let primitive = exported.get(&addr).copied().or(primitive);
        let meaning = match seen.get(&addr) {
            Some(&known) if known == primitive || known.is_none() => continue,
            // Code that is part of functions with different meanings has no meaning of its own.
            Some(_) => None,
            None => primitive,
        };
        seen.insert(addr, meaning);
        let Some(range) = image.function_at(addr) else { continue };
        for insn in decode(image, range.clone()) {
            if matches!(insn.flow, Flow::Call(_)) || insn.is_system_call() {
                let row = of(&insn, meaning.unwrap_or(primitives::PRIMITIVE_NONE.0));
                rows.extend(row.map(|row| (insn.end(), row)));
            }
            match insn.flow {
                Flow::Call(Some(to)) => functions.push((to, None)),
                // Parts of the function that the compiler moved away, and tail calls.
                Flow::Jump(to) | Flow::Branch(to) if !range.contains(&to) => functions.push((to, meaning)),
                _ => {}
            }
        }
    }
    rows
}

/// Returns the row for a thread whose current instruction follows this one, because it is inside a call or a system
/// call.
fn row(image: &Image, insn: &Insn, primitive: u32) -> Option<types::library_frame> {
    let frame = frame(image, insn.addr)?;
    let return_at = frame.return_at.unwrap_or(types::return_at::RETURN_IN_REGISTER.0);
    Some(types::library_frame { size: frame.size, return_at, primitive })
}
