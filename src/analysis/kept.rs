//! Finds where a function stores one of its arguments.
//!
//! A function that creates an object stores its arguments in the object's members, either itself or by calling the
//! functions that create the object's parts. So its code shows where a build has those members.

use std::collections::{BTreeSet, HashSet};

use super::function::Function;
use crate::symbols::Image;

/// The depth to which calls are followed. A debug build has one call per layer of a template.
const MAX_DEPTH: usize = 6;

/// A member in which an argument is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kept {
    /// The offset from the beginning of the object, in bytes.
    pub offset: i64,
    /// Which bits of the four bytes there are the argument's low bits: all, unless it is a bit field.
    pub mask: u32,
}

/// Returns the members of what argument `object` points to in which the function at `entry` stores argument `argument`.
pub fn kept(image: &Image, entry: u64, argument: u8, object: u8) -> BTreeSet<Kept> {
    let mut search = Search { image, seen: HashSet::new(), found: BTreeSet::new() };
    search.look(entry, argument, object, 0, MAX_DEPTH);
    search.found
}

struct Search<'a> {
    image: &'a Image,
    seen: HashSet<(u64, u8, u8, i64)>,
    found: BTreeSet<Kept>,
}

impl Search<'_> {
    /// Examines the function at `entry`, whose argument `object` points `base` bytes into the object.
    fn look(&mut self, entry: u64, argument: u8, object: u8, base: i64, depth: usize) {
        if depth == 0 || !self.seen.insert((entry, argument, object, base)) {
            return;
        }
        let range = self.image.function_at(entry).filter(|range| range.start == entry);
        let Some(function) = range.and_then(|range| Function::new(self.image, range)) else { return };
        let stores = function.stores(argument, object);
        self.found.extend(stores.map(|(offset, mask)| Kept { offset: base.wrapping_add(offset), mask }));
        for call in function.handed_on() {
            let number = (0..).zip(call.arguments).find(|(_, a)| *a == Some((argument, 0))).map(|(number, _)| number);
            let Some(number) = number else { continue };
            for (pointer, handed) in (0..).zip(call.arguments) {
                if let Some((_, member)) = handed.filter(|(index, _)| *index == object) {
                    self.look(call.callee, number, pointer, base.wrapping_add(member), depth - 1);
                }
            }
        }
    }
}
