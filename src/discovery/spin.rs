//! Functions in which threads spin for latches.

use std::ops::Range;

use super::wait_functions::{bounds, find_wait_function};
use crate::catalog::{Family, Found, FutexShape, Shape};
use crate::symbols::{plain_name, Image};

/// A function with a spin loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpinFunction {
    /// The name in source form, or the label of a wait function.
    pub name: String,
    /// Its link-time addresses.
    pub range: Range<u64>,
}

/// Returns the functions in which threads spin for latches in this binary: those that a contended part calls to spin,
/// and those that spin before they sleep.
pub fn spin_functions(image: &Image, family: &Family) -> Vec<SpinFunction> {
    let mut found = Vec::new();
    for function in family.wait_functions {
        if let Shape::Contended { spin, .. } | Shape::Inlined { spin } = function.shape {
            let called = spin.iter().flat_map(|name| image.functions_named(name));
            let called = called.filter_map(|s| Some((plain_name(s.name), bounds(image, &s)?)));
            found.extend(called.map(|(name, range)| SpinFunction { name, range }));
        }
        if let Found::Futex(_, FutexShape { spins: true, .. }) = function.found {
            let name = || function.label.to_owned();
            found.extend(
                find_wait_function(image, function).into_iter().map(|range| SpinFunction { name: name(), range }),
            );
        }
    }
    found.sort_by_key(|f| f.range.start);
    found.dedup_by_key(|f| f.range.start);
    found
}
