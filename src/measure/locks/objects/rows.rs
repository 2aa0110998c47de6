//! Which row a transaction waits for: the table and index of the lock that it has requested.
//!
//! The words of a waiting thread's stack lead to its transaction, which points to the lock that it waits for, and that
//! points back to the transaction and to the index. Where these structures keep that differs between versions, so it
//! is found in the running server: nothing but a transaction and its locks point to each other and to an index. Of the
//! locks that a transaction points to, the one that it waits for comes first, and it is also the last in the list of
//! all of them, so a transaction points to it twice.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use super::{is_pointer, words, Object, Stack};
use crate::names::is_readable;
use crate::server::Memory;

/// How much of a transaction is searched, in bytes.
const TRANSACTION: usize = 1536;
/// How much of a lock is searched, in bytes. It begins with the pointer to its transaction.
const LOCK: usize = 64;
/// How much of an index is searched, in bytes, and how much of its table.
const INDEX: usize = 56;
const TABLE: usize = 128;
/// The words of an index that can be its name. The name of its table comes after it, or a pointer to the table, or
/// both.
const NAMES: RangeInclusive<usize> = 2..=4;
/// How often the same offsets must be found before they are relied on.
const AGREEING: u32 = 3;
/// How often offsets are searched for in vain before that is given up.
const MOST_FAILURES: u32 = 50;
/// The most pointers that are followed to find them. A transaction is found among the first few hundred.
const MOST_POINTERS: usize = 16_384;

/// Where one server's structures keep pointers; offsets in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Layout {
    /// In a transaction, the one to the lock that it waits for.
    wait_lock: u64,
    /// In a lock, the one to its index.
    index: u64,
}

/// A transaction's wait for a row lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RowWait {
    /// The table and index of the row.
    pub object: Object,
    /// The address of the transaction.
    pub transaction: u64,
    /// The offset in it of the pointer to the lock that it waits for, in bytes.
    pub wait_lock: u64,
}

/// Finds the table and index of the rows for which threads wait.
#[derive(Debug, Default)]
pub(super) struct RowLocks {
    layout: Option<Layout>,
    /// How often each layout was found.
    found: HashMap<Layout, u32>,
    failures: u32,
}

impl RowLocks {
    /// Returns what a thread waits for, by its stack; `None` if that is not found.
    pub fn wait(&mut self, memory: &Memory, stack: &Stack) -> Option<RowWait> {
        let transactions = pointers(&stack.words);
        if let Some(layout) = self.layout {
            return transactions.iter().find_map(|at| layout.wait(memory, *at));
        }
        if self.failures >= MOST_FAILURES {
            return None;
        }
        let found = search(memory, &transactions);
        let Some((layout, wait)) = found else {
            self.failures += 1;
            return None;
        };
        let times = self.found.entry(layout).or_default();
        *times += 1;
        self.layout = (*times >= AGREEING).then_some(layout);
        Some(wait)
    }
}

impl Layout {
    /// Returns the wait of the transaction at this address; `None` if there is none.
    fn wait(self, memory: &Memory, transaction: u64) -> Option<RowWait> {
        let lock = memory.u64(transaction.wrapping_add(self.wait_lock)).filter(|lock| is_pointer(*lock))?;
        let owner = memory.u64(lock)?;
        let object = (owner == transaction).then(|| index(memory, memory.u64(lock.wrapping_add(self.index))?))??;
        Some(RowWait { object, transaction, wait_lock: self.wait_lock })
    }
}

/// Searches what can be transactions for one that waits for a lock.
fn search(memory: &Memory, transactions: &[u64]) -> Option<(Layout, RowWait)> {
    let mut left = MOST_POINTERS;
    transactions.iter().find_map(|at| search_transaction(memory, *at, &mut left))
}

fn search_transaction(memory: &Memory, transaction: u64, left: &mut usize) -> Option<(Layout, RowWait)> {
    let words = words(&memory.array::<TRANSACTION>(transaction)?);
    let mut twice = (0..words.len()).filter(|at| is_pointer(words[*at]) && words[at + 1..].contains(&words[*at]));
    twice.find_map(|at| {
        *left = left.checked_sub(1)?;
        let lock = self::words(&memory.array::<LOCK>(words[at])?);
        if lock[0] != transaction {
            return None;
        }
        let to_index = (1..lock.len()).find_map(|to| Some((to, index(memory, lock[to])?)));
        let layout = |to: usize| Layout { wait_lock: 8 * at as u64, index: 8 * to as u64 };
        to_index.map(|(to, object)| (layout(to), RowWait { object, transaction, wait_lock: layout(to).wait_lock }))
    })
}

/// Returns the table and the name of the index at this address; `None` if there is none.
fn index(memory: &Memory, at: u64) -> Option<Object> {
    let words = words(&memory.array::<INDEX>(Some(at).filter(|at| is_pointer(*at))?)?);
    NAMES.into_iter().find_map(|at| {
        let index = string(memory, words[at]).filter(|name| is_name(name))?;
        let name = words[at + 1..=at + 2].iter().find_map(|table| table_name(memory, *table))?;
        Some(Object { name, index })
    })
}

/// Returns the name of a table, `schema.table`, that is at this address itself, or to which a table there points.
fn table_name(memory: &Memory, at: u64) -> Option<String> {
    let name = |at| in_words(&string(memory, at)?);
    name(at).or_else(|| {
        let table = words(&memory.array::<TABLE>(Some(at).filter(|at| is_pointer(*at))?)?);
        table.into_iter().find_map(name)
    })
}

fn string(memory: &Memory, at: u64) -> Option<String> {
    memory.string(Some(at).filter(|at| is_pointer(*at))?)
}

/// Returns a table's name as users write it. InnoDB writes `schema/table`.
fn in_words(name: &str) -> Option<String> {
    let (schema, table) = name.split_once('/')?;
    (is_name(schema) && is_name(table) && !schema.starts_with('.')).then(|| format!("{schema}.{table}"))
}

fn is_name(name: &str) -> bool {
    is_readable(name) && !name.contains('/')
}

/// Returns the words that can be pointers, each once, in their order.
fn pointers(words: &[u64]) -> Vec<u64> {
    let mut found: Vec<u64> = Vec::new();
    for word in words {
        if is_pointer(*word) && !found.contains(word) {
            found.push(*word);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A transaction of a server that keeps its list of locks at word 36, and the lock that it waits for at word 20.
    struct Server {
        transaction: Box<[u64; TRANSACTION / 8]>,
        granted: Box<[u64; 12]>,
        wanted: Box<[u64; 12]>,
        _other: Box<Index>,
        _index: Box<Index>,
    }

    struct Index {
        index: [u64; INDEX / 8],
        table: [u64; TABLE / 8],
    }

    const WAIT_LOCK: usize = 20;
    const LOCKS: usize = 36;

    fn addr<T>(of: &T) -> u64 {
        std::ptr::from_ref(of) as u64
    }

    fn make_index(name: &'static std::ffi::CStr, table: &'static std::ffi::CStr) -> Box<Index> {
        let mut made = Box::new(Index { index: [0; INDEX / 8], table: [0; TABLE / 8] });
        made.table[2] = table.as_ptr() as u64;
        made.index[*NAMES.start()] = name.as_ptr() as u64;
        made.index[NAMES.start() + 1] = addr(&made.table);
        made
    }

    // The names must be aligned, as the server's are.
    #[repr(align(8))]
    struct Names([u8; 40]);
    static TEXTS: Names = Names(*b"PRIMARY\0shop/orders\0\0\0\0\0shop/items\0\0\0\0\0\0");

    fn name(at: usize) -> &'static std::ffi::CStr {
        std::ffi::CStr::from_bytes_until_nul(&TEXTS.0[at..]).unwrap()
    }

    fn server() -> Server {
        let (other, index) = (make_index(name(0), name(24)), make_index(name(0), name(8)));
        let mut transaction = Box::new([0; TRANSACTION / 8]);
        let lock = |transaction: u64, index: u64| {
            let mut lock = Box::new([0; 12]);
            (lock[0], lock[3]) = (transaction, index);
            lock
        };
        let (granted, wanted) =
            (lock(addr(&*transaction), addr(&other.index)), lock(addr(&*transaction), addr(&index.index)));
        transaction[WAIT_LOCK] = addr(&*wanted);
        (transaction[LOCKS], transaction[LOCKS + 1]) = (addr(&*granted), addr(&*wanted));
        Server { transaction, granted, wanted, _other: other, _index: index }
    }

    fn stack(of: &Server) -> Stack {
        Stack { words: vec![7, addr(&*of.granted), addr(&*of.wanted), addr(&*of.transaction)] }
    }

    fn wait_of(server: &Server) -> RowWait {
        let orders = Object { name: "shop.orders".to_owned(), index: "PRIMARY".to_owned() };
        RowWait { object: orders, transaction: addr(&*server.transaction), wait_lock: 8 * WAIT_LOCK as u64 }
    }

    #[test]
    fn the_lock_that_is_waited_for_is_found() {
        let (server, memory) = (server(), Memory::new(std::process::id() as i32));
        let mut locks = RowLocks::default();
        for _ in 0..2 * AGREEING {
            assert_eq!(locks.wait(&memory, &stack(&server)), Some(wait_of(&server)));
        }
        assert_eq!(locks.layout, Some(Layout { wait_lock: 8 * WAIT_LOCK as u64, index: 24 }));
    }

    #[test]
    fn a_transaction_that_does_not_wait_has_none() {
        let (mut server, memory) = (server(), Memory::new(std::process::id() as i32));
        let mut locks = RowLocks::default();
        (0..AGREEING).for_each(|_| _ = locks.wait(&memory, &stack(&server)));
        server.transaction[WAIT_LOCK] = 0;
        assert_eq!(locks.wait(&memory, &stack(&server)), None);
        assert_eq!(RowLocks::default().wait(&memory, &stack(&server)), None);
    }

    #[test]
    fn names_of_tables_are_those_of_innodb() {
        assert_eq!(in_words("shop/orders#p#p0").as_deref(), Some("shop.orders#p#p0"));
        for name in ["shop", "/etc/passwd", "./shop/orders", "shop/", "a/b/c", "shop/\u{1b}[31m"] {
            assert_eq!(in_words(name), None, "{name:?}");
        }
    }
}
