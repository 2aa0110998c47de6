//! Which object's metadata lock a thread waits for.
//!
//! The function that requests a metadata lock has a pointer to the request, or to its ticket, while the thread waits:
//! in its own frame, or in a register that the wait function has saved. The request has the lock's key: two lengths,
//! the kind of the object as a byte, and the names of schema and object, all of which match each other.

use std::ops::Range;

use super::calls::Calls;
use super::{is_pointer, Object, Stack};
use crate::names::is_readable;
use crate::server::{Memory, Target};

/// The words of a stack below a frame in which the function that it calls has saved registers, and the words in the
/// frame that are searched.
const SAVED: usize = 8;
const FRAME: usize = 64;
/// The innermost call on a stack may be from earlier, so some more are looked at.
const MOST_CALLS: usize = 4;
/// How much of an object is searched for a key, in bytes, and how large a key is at most.
const SEARCHED: usize = 128;
const KEY: usize = 400;
/// Where a key's text is, in bytes: after the two lengths, and after a third one since MySQL 8.0, or a hash in MariaDB.
const TEXTS: [usize; 3] = [4, 6, 8];
/// The numbers of kinds of objects: all of them, and those that user locks have had.
const KINDS: Range<u8> = 0..32;
const USER_LOCKS: Range<u8> = 7..32;
/// What waits for a user lock are for.
const USER_LOCK: &str = "user lock";
/// The longest name, in bytes: 64 characters.
const MOST_NAME: usize = 256;

/// Returns the words near the frame of the function that has called the wait function, by a thread's stack.
pub(super) fn near(calls: &Calls, target: &Target, stack: &Stack) -> Vec<u64> {
    let near = |call: usize| stack.words.iter().skip(call.saturating_sub(SAVED)).take(SAVED + FRAME);
    calls.on(target, stack).take(MOST_CALLS).flat_map(near).copied().collect()
}

/// Returns what a thread waits for, by these words of its stack and the name of the lock; `None` if that is not found.
pub(super) fn object_of(memory: &Memory, near: &[u64], lock: &str) -> Option<Object> {
    near.iter().filter(|word| is_pointer(**word)).find_map(|at| key(memory, *at, lock))
}

/// Returns whether a metadata lock is at this address, and if so, of which object: `None` for the locks of none.
pub(super) fn is_lock(memory: &Memory, at: u64, lock: &str) -> Option<Option<Object>> {
    /// Before the key there may be a pointer to the functions of the lock's class.
    const KEYS: [usize; 2] = [0, 8];
    let bytes = memory.array::<{ KEYS[1] + KEY }>(at)?;
    let kinds = if lock == USER_LOCK { USER_LOCKS } else { KINDS };
    let places = KEYS.into_iter().flat_map(|key| TEXTS.map(|text| (key, text)));
    let names = places.into_iter().find_map(|(key, text)| names(&bytes[key..], text, &kinds))?;
    Some(object(names, lock))
}

/// Returns the object whose key is in what begins at this address; `None` if there is none.
fn key(memory: &Memory, at: u64, lock: &str) -> Option<Object> {
    let bytes = memory.array::<{ SEARCHED + KEY }>(at)?;
    let kinds = if lock == USER_LOCK { USER_LOCKS } else { KINDS };
    let places = (0..SEARCHED).step_by(2).flat_map(|at| TEXTS.map(|text| (at, text)));
    places.into_iter().find_map(|(at, text)| object(names(&bytes[at..], text, &kinds)?, lock))
}

/// Returns the schema and the object's name of the key with which this begins, if its text is at `text` and its object
/// is of one of these kinds.
fn names<'a>(key: &'a [u8], text: usize, kinds: &Range<u8>) -> Option<[&'a str; 2]> {
    let number = |at: usize| Some(usize::from(u16::from_le_bytes(*key.get(at..)?.first_chunk()?)));
    let (length, schema) = (number(0)?, number(2)?);
    let text = key.get(text..)?.get(..length)?;
    let (kind, text) = text.split_first()?;
    let (schema, rest) = text.split_at_checked(schema)?;
    let rest = rest.strip_prefix(&[0])?;
    // A stored function's name comes twice: as it is compared, and as it was written.
    let name = rest.split(|byte| *byte == 0).next()?;
    let is_whole = rest.last() == Some(&0) && kinds.contains(kind);
    let is_name = |name: &&str| name.is_empty() || name.len() <= MOST_NAME && is_readable(name);
    let text = |name| std::str::from_utf8(name).ok().filter(is_name);
    is_whole.then_some([text(schema)?, text(name)?])
}

/// Returns the object of a key with these names, as far as they fit the kind of lock.
fn object([schema, name]: [&str; 2], lock: &str) -> Option<Object> {
    let object = match (schema, name) {
        ("", "") => return None,
        // MariaDB has the name in place of a schema.
        ("", name) | (name, "") if lock == USER_LOCK => name.to_owned(),
        ("", name) if lock.starts_with("tablespace") => name.to_owned(),
        (schema, "") if lock.starts_with("schema") => schema.to_owned(),
        ("", _) | (_, "") => return None,
        (schema, name) => format!("{schema}.{name}"),
    };
    Some(Object::named(&object))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key_of(text: usize, kind: u8, schema: &str, name: &str) -> Vec<u8> {
        let names = [&[kind], schema.as_bytes(), &[0], name.as_bytes(), &[0]].concat();
        let lengths = [(names.len() as u16).to_le_bytes(), (schema.len() as u16).to_le_bytes()].concat();
        let mut key = lengths;
        key.resize(text, 1);
        key.extend(names);
        key.resize(KEY, 7);
        key
    }

    #[test]
    fn keys_are_recognized() {
        for text in TEXTS {
            assert_eq!(names(&key_of(text, 4, "shop", "orders"), text, &KINDS), Some(["shop", "orders"]));
        }
        let key = key_of(4, 4, "shop", "orders");
        assert_eq!(names(&key, 6, &KINDS), None);
        assert_eq!(names(&key_of(4, KINDS.end, "shop", "orders"), 4, &KINDS), None, "no kind of object");
        assert_eq!(names(&key_of(4, 4, "shop", "a\x1b[31m"), 4, &KINDS), None, "not readable");
        for length in 0..12 {
            assert_eq!(names(&key[..length], 4, &KINDS), None);
        }
    }

    #[test]
    fn keys_have_the_names_that_their_kind_of_lock_has() {
        let shown = |names, lock| object(names, lock).map(|object| object.name);
        assert_eq!(shown(["shop", "orders"], "table metadata lock").as_deref(), Some("shop.orders"));
        assert_eq!(shown(["shop", ""], "schema metadata lock").as_deref(), Some("shop"));
        assert_eq!(
            [["", "job"], ["job", ""]].map(|names| shown(names, USER_LOCK)),
            ["job", "job"].map(|name| Some(name.to_owned()))
        );
        for (names, lock) in [
            (["", ""], "global read lock"),
            (["", "orders"], "table metadata lock"),
            (["shop", ""], "table metadata lock"),
        ] {
            assert_eq!(shown(names, lock), None);
        }
    }

    #[test]
    fn a_key_is_found_inside_of_a_request() {
        let mut request = vec![0xffu8; SEARCHED + KEY];
        let key_bytes = key_of(6, 4, "shop", "orders");
        request[32..32 + KEY].copy_from_slice(&key_bytes);
        let memory = Memory::new(std::process::id() as i32);
        let found = key(&memory, request.as_ptr() as u64, "table metadata lock").map(|object| object.name);
        assert_eq!(found.as_deref(), Some("shop.orders"));
    }
}
