//! Derives the types of the objects that a function's pointers lead to from the names of functions.
//!
//! A mangled name contains the types of the function's arguments. So a pointer on which a method is called, or that is
//! passed to a function as an argument, leads to an object of a known type. But a name does not say which arguments
//! precede those that it lists, so the function's code has to confirm it.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::analysis::{Function, Pointer, Pointers, Root};
use crate::isa::Flow;
use crate::symbols::{parameter_types, Arch, Image};

/// An object of a known type at an offset from a root.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Object {
    pub root: Root,
    pub start: i64,
    pub class: String,
    /// The link-time address of the function whose name gives the type.
    by: u64,
}

/// Types that identify nothing.
const PLAIN: &[&str] = &["void", "char", "unsigned char", "signed char", "bool", "short", "unsigned short", "int"];
const MORE_PLAIN: &[&str] = &["unsigned int", "long", "unsigned long", "long long", "unsigned long long"];

/// A cache of what was found.
#[derive(Debug, Default)]
pub(super) struct Types {
    /// Whether these prefixes of mangled names are classes rather than namespaces.
    classes: Mutex<HashMap<String, bool>>,
    /// The signatures, by the function's address.
    signatures: Mutex<HashMap<u64, Signature>>,
    /// Whether the code of the function at this address confirms its name.
    borne_out: Mutex<HashMap<u64, bool>>,
}

/// What a function's name says about its arguments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Signature {
    /// The arguments that point to objects: their numbers and the objects' types.
    objects: Vec<(u8, String)>,
    needs: Needs,
}

/// What the code has to show for the argument numbers to be right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Needs {
    /// Nothing: the function constructs or destroys an object.
    Nothing,
    /// That it returns no object through a pointer before all other arguments.
    #[default]
    NoResult,
    /// And that it uses the argument with this number, the last that it has unless it is a static method. `None` if
    /// that is not known.
    Last(Option<u8>),
}

impl Types {
    /// Returns the objects that a function's pointers are known to lead to.
    pub fn objects(&self, image: &Image, f: &Function, pointers: &Pointers) -> Vec<Object> {
        let entry = f.entry();
        let own = self.signature(image, entry).objects.into_iter().map(|(number, class)| Object {
            root: Root::Argument(number),
            start: 0,
            class,
            by: entry,
        });
        let mut found: Vec<Object> = own.collect();
        for insn in f.insns() {
            let to = match insn.flow {
                Flow::Call(Some(to)) => to,
                Flow::Jump(to) if !f.contains(to) => to,
                _ => continue,
            };
            let passed = pointers.passed(insn.addr);
            for (number, class) in self.signature(image, to).objects {
                if let Some(&Pointer::Behind { root, offset }) = passed.get(usize::from(number)) {
                    found.push(Object { root, start: offset, class, by: to });
                }
            }
        }
        found.sort();
        found.dedup();
        found
    }

    /// Returns those of these objects at this root whose type the code confirms. Only the needed ones are checked,
    /// because there are many.
    pub fn borne_out<'o>(
        &'o self,
        image: &'o Image,
        objects: &'o [Object],
        root: Root,
    ) -> impl Iterator<Item = &'o Object> {
        objects.iter().filter(move |o| o.root == root && self.is_borne_out(image, o.by))
    }

    fn is_borne_out(&self, image: &Image, entry: u64) -> bool {
        if let Some(&known) = self.borne_out.lock().get(&entry) {
            return known;
        }
        let needs = self.signature(image, entry).needs;
        let function = || Function::new(image, image.function_at(entry).filter(|range| range.start == entry)?);
        let shows = |f: Function| needs.are_met(&Pointers::new(image, &f), image.arch());
        let found = needs == Needs::Nothing || function().is_some_and(shows);
        self.borne_out.lock().insert(entry, found);
        found
    }

    fn signature(&self, image: &Image, entry: u64) -> Signature {
        if let Some(known) = self.signatures.lock().get(&entry) {
            return known.clone();
        }
        let symbol = image.symbol_at(entry).filter(|s| s.is_function && s.addr == entry);
        let is_class = |prefix: &str| self.is_class(image, prefix);
        let found = symbol.and_then(|s| signature(s.name, is_class)).unwrap_or_default();
        self.signatures.lock().insert(entry, found.clone());
        found
    }

    /// Returns whether functions construct or destroy such objects, or the objects have a virtual function table.
    fn is_class(&self, image: &Image, prefix: &str) -> bool {
        if let Some(&known) = self.classes.lock().get(prefix) {
            return known;
        }
        let has_table =
            || [format!("_ZTV{prefix}"), format!("_ZTVN{prefix}E")].iter().any(|t| image.symbol(t).is_some());
        let is_made = |mark: &str| image.functions_named(&format!("_ZN{prefix}{mark}")).next().is_some();
        // A namespace has no methods of its own, but its classes may.
        let is_method = |name: &str| owner(name).is_some_and(|class| class.prefix == prefix);
        let has_method = || image.functions_named(&format!("_ZNK{prefix}")).any(|s| is_method(s.name));
        let found = has_table() || ["C1E", "C2E", "D1E", "D2E"].into_iter().any(is_made) || has_method();
        self.classes.lock().insert(prefix.to_owned(), found);
        found
    }
}

impl Needs {
    fn are_met(self, pointers: &Pointers, arch: Arch) -> bool {
        let has_no_result = || !pointers.may_make_what_it_returns(arch);
        match self {
            Needs::Nothing => true,
            Needs::NoResult => has_no_result(),
            Needs::Last(last) => last.is_some_and(|last| pointers.uses(last)) && has_no_result(),
        }
    }
}

/// Parses what a mangled name says; `is_class` distinguishes classes from namespaces.
fn signature(mangled: &str, is_class: impl Fn(&str) -> bool) -> Option<Signature> {
    // The names of thunks, and of things that are not functions, contain a function's parameters too.
    if mangled.starts_with("_ZT") || mangled.starts_with("_ZG") {
        return None;
    }
    let parameters = parameter_types(mangled)?;
    let class = if mangled.starts_with("_ZN") { Some(owner(mangled)?) } else { None };
    // If it is not known whether an object precedes the arguments, their numbers are not known either.
    if class.as_ref().is_some_and(|class| !is_class(&class.prefix)) {
        return None;
    }
    let first = u8::from(class.is_some());
    let numbered: Vec<(u8, &str)> =
        in_registers(&parameters).map(|(number, p)| (number.saturating_add(first), p)).collect();
    let last = || u8::try_from(parameters.len()).ok().filter(|_| numbered.len() == parameters.len());
    let needs = match &class {
        Some(class) if class.is_made => Needs::Nothing,
        Some(_) if !mangled.starts_with("_ZNK") => Needs::Last(last()),
        _ => Needs::NoResult,
    };
    let others = numbered.iter().filter_map(|&(number, p)| Some((number, pointee(p)?.to_owned())));
    let objects = class.map(|class| (0, class.name)).into_iter().chain(others).collect();
    Some(Signature { objects, needs })
}

/// What a method's mangled name says about its class.
#[derive(Debug, PartialEq, Eq)]
struct Class {
    /// The class's part of the mangled name.
    prefix: String,
    /// The name in source form.
    name: String,
    /// Whether the method constructs or destroys objects of the class.
    is_made: bool,
}

/// Returns the class of a method.
fn owner(mangled: &str) -> Option<Class> {
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
    // Constructors and destructors have no name of their own. Names that consist of anything else but plain names are
    // ignored.
    let own = match rest.as_bytes().first()? {
        b'E' => 1,
        b'C' | b'D' => 0,
        _ => return None,
    };
    let classes = parts.len().checked_sub(own).filter(|&n| n > 0)?;
    let (prefix, name) = (start[..ends[classes]].to_owned(), parts[..classes].join("::"));
    Some(Class { prefix, name, is_made: own == 0 })
}

/// Returns the parameters that are passed in one register each, with the register's number. Parameters after one that
/// may take several registers, or none, are left out.
fn in_registers(parameters: &[String]) -> impl Iterator<Item = (u8, &str)> {
    let is_one = |p: &&str| p.ends_with(['*', '&']) || PLAIN.contains(p) || MORE_PLAIN.contains(p);
    (0..=u8::MAX).zip(parameters.iter().map(String::as_str).take_while(is_one))
}

/// Returns the class that a parameter points to.
fn pointee(parameter: &str) -> Option<&str> {
    let to = parameter.strip_suffix('*').or_else(|| parameter.strip_suffix('&'))?;
    let to = to.strip_suffix(" const").unwrap_or(to);
    let plain = to.ends_with(['*', '&', ')', ']']) || PLAIN.contains(&to) || MORE_PLAIN.contains(&to);
    (!plain).then_some(to)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the needs of a function with this name, whose first three arguments may point to objects, and their
    /// classes.
    fn told(mangled: &str) -> (Needs, [Option<String>; 3]) {
        let Signature { objects, needs } = signature(mangled, |prefix| prefix == "3THD").unwrap_or_default();
        let class = |number: u8| objects.iter().find(|o| o.0 == number).map(|o| o.1.clone());
        (needs, [0, 1, 2].map(class))
    }

    #[test]
    fn names_say_what_the_code_has_to_bear_out() {
        let classes = |of: [&str; 3]| of.map(|class| Some(class.to_owned()).filter(|class| !class.is_empty()));
        assert_eq!(told("_Z4openP3THDjP5TABLE"), (Needs::NoResult, classes(["THD", "", "TABLE"])));
        assert_eq!(told("_ZN3THD4openEjP5TABLE"), (Needs::Last(Some(2)), classes(["THD", "", "TABLE"])));
        assert_eq!(told("_ZN3THD4openEv"), (Needs::Last(Some(0)), classes(["THD", "", ""])));
        assert_eq!(told("_ZN3THD4openE3KeyP5TABLE"), (Needs::Last(None), classes(["THD", "", ""])));
        assert_eq!(told("_ZNK3THD4nameEP5TABLE"), (Needs::NoResult, classes(["THD", "TABLE", ""])));
        assert_eq!(told("_ZN3THDC2EP5TABLE"), (Needs::Nothing, classes(["THD", "TABLE", ""])));
        assert_eq!(told("_ZThn16_N3THD4openEP5TABLE").1, classes(["", "", ""]));
        // This is a namespace.
        assert_eq!(told("_ZN2os4openEP3THD").1, classes(["", "", ""]));
    }

    /// `mov %esi,0x10(%rdi); ret`: a method with a number, or a static method of a pointer and a number.
    const SETS: [u8; 4] = [0x89, 0x77, 0x10, 0xc3];
    /// `mov %rdi,%rax; mov 0x10(%rsi),%edx; mov %edx,(%rdi); ret`
    const MAKES: [u8; 9] = [0x48, 0x89, 0xf8, 0x8b, 0x56, 0x10, 0x89, 0x17, 0xc3];

    #[test]
    fn static_methods_and_makers_of_results_are_not_borne_out() {
        let met = |needs: Needs, code: &[u8]| {
            let f = Function::from_bytes(Arch::X86_64, 0x1000, code).expect("a function");
            needs.are_met(&Pointers::with(&f, Arch::X86_64, HashMap::new()), Arch::X86_64)
        };
        // `_ZN3THD3setEj` has an object argument first; `_ZN3THD3setEPS_j` may be static.
        assert!(met(Needs::Last(Some(1)), &SETS));
        assert!(!met(Needs::Last(Some(2)), &SETS));
        assert!(!met(Needs::Last(None), &SETS));
        assert!(met(Needs::NoResult, &SETS));
        for needs in [Needs::NoResult, Needs::Last(Some(1))] {
            assert!(!met(needs, &MAKES), "{needs:?}");
        }
    }

    #[test]
    fn what_lies_behind_a_structure_has_no_number() {
        let parameters = ["THD*", "unsigned int", "LEX_CSTRING", "TABLE*"].map(str::to_owned);
        let expected = vec![(0, "THD*"), (1, "unsigned int")];
        assert_eq!(in_registers(&parameters).collect::<Vec<_>>(), expected);
        assert_eq!(in_registers(&["double", "TABLE*"].map(str::to_owned)).count(), 0);
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
        let owner = |name| owner(name).map(|class| class.name);
        assert_eq!(owner("_ZN3THD4initEv").as_deref(), Some("THD"));
        assert_eq!(owner("_ZN3THDC2Ejb").as_deref(), Some("THD"));
        assert_eq!(owner("_ZN2cs5index3Foo3barEi").as_deref(), Some("cs::index::Foo"));
        assert_eq!(owner("_ZN3FooIiE3barEv"), None);
        assert_eq!(owner("_Z3foov"), None);
    }
}
