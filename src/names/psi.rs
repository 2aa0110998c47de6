//! performance_schema's tables of instruments, as they stand in a server's program file.
//!
//! A server registers its instruments from arrays of structures that begin with a pointer to a key variable and a
//! pointer to the instrument's name. In a position-independent program both are relative relocations, one behind the
//! other, which is how the arrays are found in a stripped binary too.

use std::collections::HashMap;

use crate::symbols::Image;

/// Link-time addresses of key variables to instruments' own names (`log_writer_mutex`).
pub(super) fn instruments(image: &Image) -> HashMap<u64, String> {
    let pointers: HashMap<u64, u64> = image.relative_relocations().into_iter().collect();
    let mut found = HashMap::new();
    for (&at, &key) in &pointers {
        if key % 4 != 0 || !image.is_static_data(key) {
            continue;
        }
        let Some(name) = pointers.get(&(at + 8)).and_then(|&name| image.cstr(name)) else { continue };
        if is_instrument(name) && image.section(".rodata").is_some_and(|r| r.contains(&pointers[&(at + 8)])) {
            found.insert(key, name.to_owned());
        }
    }
    found
}

/// What an instrument's name looks like.
fn is_instrument(name: &str) -> bool {
    (3..=60).contains(&name.len())
        && name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "_:.- ".contains(c))
}
