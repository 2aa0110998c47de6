//! Wait functions in a binary: where they are, which of their arguments say what code waits, and where wrappers call
//! them.

use std::collections::{BTreeSet, HashSet};
use std::ops::Range;

use super::futex;
use crate::analysis;
use crate::catalog::{Family, Found, Function, WaitFunction};
use crate::isa::{decode, Insn};
use crate::symbols::{self, Image, Parameter, Symbol};

/// Returns the address ranges of a wait function in this binary; there are several when variants share this entry.
pub fn find_wait_function(image: &Image, function: &WaitFunction) -> Vec<Range<u64>> {
    let by_name: Vec<Range<u64>> = image.functions_named(function.name()).filter_map(|s| bounds(image, &s)).collect();
    match function.found {
        _ if !by_name.is_empty() => by_name,
        Found::Symbol(_) => Vec::new(),
        Found::CallerOf { calls, .. } => only_caller(image, calls).into_iter().collect(),
        Found::Futex(_, shape) => {
            futex::primitives(image).into_iter().filter(|(_, s)| *s == shape).map(|(range, _)| range).collect()
        }
    }
}

/// Returns a function's bounds. The unwind table is preferred over the symbol, whose size may be missing.
pub(super) fn bounds(image: &Image, symbol: &Symbol<'_>) -> Option<Range<u64>> {
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

/// Returns the numbers of the arguments that hold the caller's file and line, for the variant of a wait function at
/// `entry`. `None` if neither its name shows them nor its code, which passes them on.
pub fn location_arguments(image: &Image, function: &WaitFunction, entry: u64) -> Option<[usize; 2]> {
    let by_name = image.functions_named(function.name()).find(|s| s.addr == entry).and_then(|s| location_in(s.name));
    let Found::CallerOf { calls, .. } = function.found else { return by_name };
    by_name.or_else(|| calls.iter().find_map(|callee| location_passed_to(image, entry, callee)))
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

/// Returns the link-time return addresses inside the family's wrappers: for these, the actual caller is one frame
/// further up.
pub fn wrapper_returns(image: &Image, family: &Family) -> Vec<u64> {
    if family.wrappers.is_empty() {
        return Vec::new();
    }
    let is_wrapper = |name: &str| family.wrappers.iter().any(|w| name.starts_with(w));
    let wrappers: HashSet<u64> =
        image.symbols().filter(|s| s.is_function && is_wrapper(s.name)).map(|s| s.addr).collect();
    let waits = family.wait_functions.iter().flat_map(|w| find_wait_function(image, w)).map(|r| r.start);
    let targets: HashSet<u64> = wrappers.iter().copied().chain(waits).collect();
    analysis::direct_calls(image, &targets)
        .into_iter()
        .filter(|(site, _)| image.symbol_at(*site).is_some_and(|s| is_wrapper(s.name)))
        .map(|(site, _)| site)
        .filter_map(|site| decode(image, site..site.saturating_add(15)).first().map(Insn::end))
        .collect()
}
