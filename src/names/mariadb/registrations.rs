//! Finds where MariaDB's latches of a given name lie, from the code that creates them.
//!
//! Every instrumented latch is registered when it is created, with the value of its instrument's key variable and its
//! own address. Whether performance_schema is on does not matter, and no symbols are needed: the table that the
//! instrument is registered from contains the variable and the name. The address is one in static data, or that of a
//! member of an object.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use serde::{Deserialize, Serialize};

use crate::analysis::{direct_calls, functions_that_mention, Function, Left, Passed};
use crate::isa::Flow;
use crate::names::psi::Instruments;
use crate::symbols::Image;

/// The most calls upwards through which a latch's location is followed.
const MAX_DEPTH: usize = 3;

/// Where the code creates latches, by the name of their instrument.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Made {
    /// The latches in static data, by link-time address. Each has one name.
    pub statics: BTreeMap<u64, String>,
    /// The offsets of latches in the objects that contain them.
    pub members: HashMap<String, BTreeSet<u64>>,
}

/// Searches for the code that creates latches with one of these instruments.
pub fn made(image: &Image, instruments: &Instruments, names: &HashSet<&str>) -> Made {
    let keys: HashSet<u64> = instruments.keys().filter(|(_, i)| names.contains(i.name.as_str())).map(|k| k.0).collect();
    let mut found = Made::default();
    let mut contradicted = BTreeSet::new();
    for entry in functions_that_mention(image, &image.with_got_entries(&keys)) {
        let Some(f) = image.function_at(entry).and_then(|range| Function::new(image, range)) else { continue };
        for (key, location) in registrations(&f, &keys) {
            let Some(name) = instruments.by_key(key).map(|i| i.name.clone()) else { continue };
            for location in resolved(image, &f, location, MAX_DEPTH) {
                match location {
                    LatchLocation::Static(at) => {
                        if found.statics.insert(at, name.clone()).is_some_and(|other| other != name) {
                            contradicted.insert(at);
                        }
                    }
                    LatchLocation::Member { offset, .. } => {
                        found.members.entry(name.clone()).or_default().extend(u64::try_from(offset));
                    }
                }
            }
        }
    }
    found.statics.retain(|at, _| !contradicted.contains(at));
    found
}

/// The location of a latch, as far as one function shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LatchLocation {
    Static(u64),
    /// In the object that this argument points to or, if there is none, in another object.
    Member {
        argument: Option<u8>,
        offset: i64,
    },
}

/// Returns the calls that pass the value of one of the key variables, followed by a latch.
fn registrations(f: &Function, keys: &HashSet<u64>) -> Vec<(u64, LatchLocation)> {
    let mut found = Vec::new();
    for insn in f.insns().iter().filter(|i| matches!(i.flow, Flow::Call(_) | Flow::IndirectJump | Flow::Jump(_))) {
        let [Some(Passed::Content(key)), latch, ..] = f.passed_at(insn.addr) else { continue };
        if !keys.contains(&key) {
            continue;
        }
        let location = match latch {
            Some(Passed::Constant(at)) => Some(LatchLocation::Static(at)),
            Some(Passed::Member { argument, offset }) => {
                Some(LatchLocation::Member { argument: Some(argument), offset })
            }
            _ => match f.left_for(insn.addr, 1) {
                Some(Left::Offset(offset)) => Some(LatchLocation::Member { argument: None, offset }),
                _ => None,
            },
        };
        found.extend(location.map(|location| (key, location)));
    }
    found
}

/// Resolves a location through callers: where a function is called only with addresses of static data, a member of its
/// argument is in static data too.
fn resolved(image: &Image, f: &Function, location: LatchLocation, depth: usize) -> Vec<LatchLocation> {
    let LatchLocation::Member { argument: Some(argument), offset } = location else { return vec![location] };
    if depth == 0 {
        return vec![location];
    }
    let mut all = Vec::new();
    for (at, _) in direct_calls(image, &HashSet::from([f.entry()])) {
        let Some(caller) = image.function_at(at).and_then(|range| Function::new(image, range)) else {
            return vec![location];
        };
        match caller.passed_at(at).get(usize::from(argument)) {
            Some(Some(Passed::Constant(object))) => all.push(LatchLocation::Static(object.wrapping_add_signed(offset))),
            Some(Some(Passed::Member { argument, offset: outer })) => {
                let outer = LatchLocation::Member { argument: Some(*argument), offset: outer.wrapping_add(offset) };
                all.extend(resolved(image, &caller, outer, depth - 1));
            }
            _ => return vec![location],
        }
    }
    if all.is_empty() {
        all.push(location);
    }
    all
}
