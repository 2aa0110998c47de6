//! Which types of objects a function's pointers lead to, by the names of functions.
//!
//! A mangled name has the types of the function's arguments in it. So a pointer that a method is called on, or that is
//! passed on to a function as an argument, leads to an object of a known type.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::code::{Flow, Function, Pointer, Pointers, Root};
use crate::symbols::Image;

/// An object of a known type: so many bytes behind a root.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Object {
    pub root: Root,
    pub start: i64,
    pub class: String,
}

/// Types by which nothing can be told.
const PLAIN: &[&str] = &["void", "char", "unsigned char", "signed char", "bool", "short", "unsigned short", "int"];
const MORE_PLAIN: &[&str] = &["unsigned int", "long", "unsigned long", "long long", "unsigned long long"];

/// What was found out once stays known.
#[derive(Debug, Default)]
pub(super) struct Types {
    /// Whether these prefixes of mangled names are classes, and no namespaces.
    classes: Mutex<HashMap<String, bool>>,
    /// By the function's address.
    signatures: Mutex<HashMap<u64, Vec<(u8, String)>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Types {
    /// The objects that a function's pointers are known to lead to.
    pub fn objects(&self, image: &Image, f: &Function, pointers: &Pointers) -> Vec<Object> {
        let own = self.signature(image, f.entry()).into_iter().map(|(number, class)| Object {
            root: Root::Argument(number),
            start: 0,
            class,
        });
        let mut found: Vec<Object> = own.collect();
        for insn in f.insns() {
            let to = match insn.flow {
                Flow::Call(Some(to)) => to,
                Flow::Jump(to) if !f.contains(to) => to,
                _ => continue,
            };
            let passed = pointers.passed(insn.addr);
            for (number, class) in self.signature(image, to) {
                if let Some(&Pointer::Behind { root, offset }) = passed.get(usize::from(number)) {
                    found.push(Object { root, start: offset, class });
                }
            }
        }
        found.sort();
        found.dedup();
        found
    }

    /// The arguments of the function at `entry` that point to objects, by number, and the types of these.
    fn signature(&self, image: &Image, entry: u64) -> Vec<(u8, String)> {
        if let Some(known) = lock(&self.signatures).get(&entry) {
            return known.clone();
        }
        let symbol = image.symbol_at(entry).filter(|s| s.is_function && s.addr == entry);
        let found = symbol.and_then(|s| self.arguments(image, s.name)).unwrap_or_default();
        lock(&self.signatures).insert(entry, found.clone());
        found
    }

    fn arguments(&self, image: &Image, mangled: &str) -> Option<Vec<(u8, String)>> {
        if !mangled.starts_with("_Z") {
            return None;
        }
        let options = cpp_demangle::DemangleOptions::new().no_return_type();
        let name = cpp_demangle::Symbol::new(mangled).ok()?.demangle_with_options(&options).ok()?;
        let parameters = parameters(&name)?;
        let nested = mangled.starts_with("_ZN");
        let class = nested.then(|| owner(mangled)).flatten();
        // Where it is not known whether there is an object in front of them, neither are their numbers.
        let first = match &class {
            Some((prefix, _)) if self.is_class(image, prefix) => 1,
            Some(_) => return None,
            None if nested => return None,
            None => 0,
        };
        let own = class.map(|(_, class)| (0, class));
        let numbered = in_registers(&parameters).map(|(number, p)| (number + first, p));
        let others = numbered.filter_map(|(number, p)| Some((number, pointee(p)?.to_owned())));
        Some(own.into_iter().chain(others).collect())
    }

    /// Whether functions make or destroy such objects, or these have a table of virtual functions.
    fn is_class(&self, image: &Image, prefix: &str) -> bool {
        if let Some(&known) = lock(&self.classes).get(prefix) {
            return known;
        }
        let marks: Vec<String> = ["C1E", "C2E", "D1E", "D2E"].iter().map(|m| format!("_ZN{prefix}{m}")).collect();
        let constant = format!("_ZNK{prefix}");
        let tables = [format!("_ZTV{prefix}"), format!("_ZTVN{prefix}E")];
        let is_mark = |name: &str| {
            // A namespace has no methods of its own; what lies in it may.
            let is_method = || name.starts_with(&constant) && owner(name).is_some_and(|(class, _)| class == prefix);
            marks.iter().any(|m| name.starts_with(m)) || is_method() || tables.iter().any(|t| name == t)
        };
        let found = image.symbols().any(|s| is_mark(s.name));
        lock(&self.classes).insert(prefix.to_owned(), found);
        found
    }
}

/// What a method's mangled name says of its class: the class's part of the name, and the class as people write it.
fn owner(mangled: &str) -> Option<(String, String)> {
    let nested = mangled.strip_prefix("_ZN")?;
    let mut rest = nested.strip_prefix('K').unwrap_or(nested);
    let start = rest;
    let mut parts: Vec<&str> = Vec::new();
    let mut ends = vec![0];
    while let Some(length) = rest.find(|c: char| !c.is_ascii_digit()).filter(|&digits| digits > 0) {
        let (digits, behind) = rest.split_at(length);
        let part = behind.get(..digits.parse().ok()?)?;
        parts.push(part);
        rest = &behind[part.len()..];
        ends.push(start.len() - rest.len());
    }
    // What makes or destroys an object has no name of its own; what is neither, nor plain names only, is left alone.
    let own = match rest.as_bytes().first()? {
        b'E' => 1,
        b'C' | b'D' => 0,
        _ => return None,
    };
    let classes = parts.len().checked_sub(own).filter(|&n| n > 0)?;
    Some((start[..ends[classes]].to_owned(), parts[..classes].join("::")))
}

/// The parameters in a demangled name.
fn parameters(name: &str) -> Option<Vec<&str>> {
    let name = name.strip_suffix(" const").unwrap_or(name).strip_suffix(')')?;
    let mut depth = 0_i32;
    let open = name.char_indices().rev().find(|&(_, c)| {
        match c {
            ')' | '>' => depth += 1,
            '(' | '<' if depth > 0 => depth -= 1,
            '(' => return true,
            _ => {}
        }
        false
    })?;
    let (mut found, mut from, inside) = (Vec::new(), 0, &name[open.0 + 1..]);
    let mut depth = 0_i32;
    for (at, c) in inside.char_indices() {
        match c {
            '(' | '<' => depth += 1,
            ')' | '>' => depth -= 1,
            ',' if depth == 0 => {
                found.push(inside[from..at].trim());
                from = at + 1;
            }
            _ => {}
        }
    }
    found.push(inside[from..].trim());
    Some(found)
}

/// The parameters that are passed in one register each, with the number of that. Those behind one that may take more than one, or
/// none, are left out.
fn in_registers<'p>(parameters: &'p [&str]) -> impl Iterator<Item = (u8, &'p str)> {
    let is_one = |p: &&&str| p.ends_with(['*', '&']) || PLAIN.contains(*p) || MORE_PLAIN.contains(*p);
    (0..).zip(parameters.iter().take_while(is_one).copied())
}

/// The class that a parameter points to.
fn pointee(parameter: &str) -> Option<&str> {
    let to = parameter.strip_suffix('*').or_else(|| parameter.strip_suffix('&'))?;
    let to = to.strip_suffix(" const").unwrap_or(to);
    let plain = to.ends_with(['*', '&', ')', ']']) || PLAIN.contains(&to) || MORE_PLAIN.contains(&to);
    (!plain).then_some(to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_told_apart() {
        assert_eq!(
            parameters("tdc_acquire_share(THD*, TABLE_LIST*, unsigned int)"),
            Some(vec!["THD*", "TABLE_LIST*", "unsigned int"])
        );
        assert_eq!(parameters("f(std::map<int, char>*, void (*)(int, int)) const").map(|p| p.len()), Some(2));
        assert_eq!(parameters("net_real_write"), None);
    }

    #[test]
    fn what_lies_behind_a_structure_has_no_number() {
        let parameters = ["THD*", "unsigned int", "LEX_CSTRING", "TABLE*"];
        let expected = vec![(0, "THD*"), (1, "unsigned int")];
        assert_eq!(in_registers(&parameters).collect::<Vec<_>>(), expected);
        assert_eq!(in_registers(&["double", "TABLE*"]).count(), 0);
    }

    #[test]
    fn only_objects_tell() {
        assert_eq!(pointee("THD*"), Some("THD"));
        assert_eq!(pointee("TABLE_SHARE const*"), Some("TABLE_SHARE"));
        assert_eq!(pointee("ns::T<int>&"), Some("ns::T<int>"));
        for none in ["void*", "char const*", "int", "THD**", "unsigned char*", "void (*)(int)"] {
            assert_eq!(pointee(none), None, "{none}");
        }
    }

    #[test]
    fn a_method_names_its_class() {
        let owner = |name| owner(name).map(|(_, class)| class);
        assert_eq!(owner("_ZN3THD4initEv").as_deref(), Some("THD"));
        assert_eq!(owner("_ZN3THDC2Ejb").as_deref(), Some("THD"));
        assert_eq!(owner("_ZN2cs5index3Foo3barEi").as_deref(), Some("cs::index::Foo"));
        assert_eq!(owner("_ZN3FooIiE3barEv"), None);
        assert_eq!(owner("_Z3foov"), None);
    }
}
