//! How an identity measured in the kernel becomes the name of a latch.
//!
//! The kernel side keys every wait by something bounded: the id or creation site that the latch itself holds, its
//! performance_schema class, its address if it is static data, or else who waits. Here each of these becomes
//! the event name that performance_schema uses, whether or not it is on. Where the server defines no event,
//! the name is built the same way from the server's own name for the latch, and `docs` lists it. What cannot be told for
//! sure is `unnamed:FUNCTION`: a missing name is better than a wrong one.

mod created;
mod latch_ids;
mod mariadb;
mod mysql;
mod psi;
mod references;

pub use created::{Key, Site};
pub use latch_ids::LatchId;
pub use psi::{Instrument, Instruments};

use std::collections::HashMap;

use crate::catalog::{Layout, Server};
use crate::model::Kind;
use crate::symbols::Image;
use crate::target::Memory;

/// What the kernel side knows of a latch that somebody waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Identity {
    /// The id that a MySQL mutex holds.
    LatchId(u32),
    /// Where a MySQL rw-lock was made: address of the file name in the process, and line.
    Created { file: u64, line: u32 },
    /// Address in the process of the latch's performance_schema class.
    PsiClass(u64),
    /// Address in the process of a latch in the server's static data.
    Static(u64),
    /// A latch on the heap, known by who waits for it: an address in the process, inside the waiting function.
    Caller(u64),
    /// The only instrument of the wait function; see [`crate::catalog::IdentitySource::Fixed`].
    Fixed(&'static str),
}

/// A latch's name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LatchName {
    /// `wait/synch/mutex/innodb/log_writer_mutex`, or `unnamed:FUNCTION`.
    pub event: String,
    /// For an unnamed latch, the kind with the most modes that it could be.
    pub kind: Kind,
}

impl LatchName {
    /// The InnoDB event of this kind and bare name.
    pub fn innodb(kind: Kind, name: &str) -> LatchName {
        LatchName { event: format!("wait/synch/{}/innodb/{name}", kind.as_str()), kind }
    }

    /// A latch of which only this is known: a function, a variable or a place in the source.
    pub fn unnamed(what: &str) -> LatchName {
        LatchName { event: format!("unnamed:{what}"), kind: Kind::Rwlock }
    }

    /// From a whole event name as performance_schema writes it; `None` if it is none.
    pub fn from_event(event: &str) -> Option<LatchName> {
        let (kind, rest) = event.strip_prefix("wait/synch/")?.split_once('/')?;
        let kinds = [Kind::Mutex, Kind::Rwlock, Kind::Sxlock, Kind::Prlock, Kind::Cond];
        let kind = kinds.into_iter().find(|k| k.as_str() == kind)?;
        let plausible = rest.contains('/') && rest.bytes().all(|b| b.is_ascii_graphic() || b == b' ');
        plausible.then(|| LatchName { event: event.to_owned(), kind })
    }

    pub fn is_named(&self) -> bool {
        !self.event.starts_with("unnamed:")
    }
}

/// Names the latches of one server process.
pub struct Namer<'a> {
    image: &'a Image,
    memory: Memory,
    bias: u64,
    rules: Rules<'a>,
    known: HashMap<Identity, Known>,
}

/// What a family's identities mean.
enum Rules<'a> {
    Mysql(mysql::Rules<'a>),
    Mariadb(mariadb::Rules<'a>),
}

/// A name given before.
struct Known {
    name: LatchName,
    /// The latch that it was given for.
    example: u64,
}

impl<'a> Namer<'a> {
    /// Prepares to name the latches of the process that `memory` reads. `bias` is what
    /// [`crate::target::load_bias`] says of `image`.
    pub fn new(image: &'a Image, memory: Memory, bias: u64, server: &Server) -> Namer<'a> {
        let rules = match server.family.layout {
            Layout::Mysql(layout) => Rules::Mysql(mysql::Rules::new(image, layout)),
            Layout::Mariadb(layout) => Rules::Mariadb(mariadb::Rules::new(image, layout)),
        };
        Namer { image, memory, bias, rules, known: HashMap::new() }
    }

    /// The name of the latch with this identity, of which `example` is one: the address of the latch that somebody
    /// waited for last.
    ///
    /// Instances and shards of one latch have one name. Names are remembered; but where an identity is only the
    /// waiting function, a new example is looked at again, and if one function turns out to wait for different
    /// latches, it names none of them.
    pub fn name(&mut self, identity: &Identity, example: u64) -> LatchName {
        if let Some(known) = self.known.get(identity) {
            let depends_on_example = matches!(identity, Identity::Caller(_));
            if !depends_on_example || known.example == example {
                return known.name.clone();
            }
        }
        let (name, is_final) = self.find(identity, example);
        let name = match self.known.remove(identity) {
            Some(known) => agreed(known.name, name, || self.unnamed_caller(identity)),
            None => name,
        };
        if is_final {
            self.known.insert(*identity, Known { name: name.clone(), example });
        }
        name
    }

    /// The name, and whether it will never be another.
    fn find(&mut self, identity: &Identity, example: u64) -> (LatchName, bool) {
        let process = Process { image: self.image, memory: self.memory, bias: self.bias };
        match (*identity, &mut self.rules) {
            (Identity::LatchId(id), Rules::Mysql(rules)) => match rules.latch_id(&process, id) {
                Some(name) => (name, true),
                None => (LatchName { kind: Kind::Mutex, ..LatchName::unnamed(&format!("latch_id_{id}")) }, false),
            },
            (Identity::Created { file, line }, Rules::Mysql(rules)) => match rules.created(&process, file, line) {
                Some(name) => (name, true),
                None => (LatchName::unnamed("rw_lock"), false),
            },
            (Identity::PsiClass(class), rules) => {
                let at = match rules {
                    Rules::Mysql(rules) => rules.layout.mutex_psi.name,
                    Rules::Mariadb(rules) => rules.layout.psi.name,
                };
                match process.event_name(class, at) {
                    Some(name) => (name, true),
                    None => (LatchName::unnamed("performance_schema_class"), false),
                }
            }
            (Identity::Static(address), rules) => {
                let link = address.wrapping_sub(self.bias);
                let name = match rules {
                    Rules::Mysql(_) => None,
                    Rules::Mariadb(rules) => rules.static_latch(link),
                };
                (name.unwrap_or_else(|| LatchName::unnamed(&process.static_label(link))), true)
            }
            (Identity::Caller(_), Rules::Mariadb(rules)) => {
                let found = rules.heap_latch(&process, example);
                (found.unwrap_or_else(|| self.unnamed_caller(identity)), true)
            }
            (Identity::Fixed(event), _) => {
                (LatchName::from_event(event).unwrap_or_else(|| LatchName::unnamed(event)), true)
            }
            (Identity::Caller(_), _) => (self.unnamed_caller(identity), true),
            (Identity::LatchId(_) | Identity::Created { .. }, Rules::Mariadb(_)) => {
                (LatchName::unnamed("unknown"), true)
            }
        }
    }

    fn unnamed_caller(&self, identity: &Identity) -> LatchName {
        match *identity {
            Identity::Caller(address) => {
                LatchName::unnamed(&function_label(self.image, address.wrapping_sub(self.bias)))
            }
            _ => LatchName::unnamed("unknown"),
        }
    }
}

/// The name that two looks at different latches of one identity agree on. An unrecognised latch contradicts
/// nothing: it may have been freed before it was looked at.
fn agreed(before: LatchName, now: LatchName, unnamed: impl FnOnce() -> LatchName) -> LatchName {
    match (before.is_named(), now.is_named()) {
        (true, true) if before != now => unnamed(),
        (true, _) => before,
        _ => now,
    }
}

/// What is needed to look into the server.
struct Process<'a> {
    image: &'a Image,
    memory: Memory,
    bias: u64,
}

impl Process<'_> {
    /// The event name in a performance_schema class.
    fn event_name(&self, class: u64, name_at: u16) -> Option<LatchName> {
        let event = self.memory.cstr(class.wrapping_add(u64::from(name_at)), 127).ok()?;
        LatchName::from_event(&event)
    }

    /// How a variable that is no known latch is called.
    fn static_label(&self, link: u64) -> String {
        self.image.symbol_at(link).map_or_else(|| "static_data".to_owned(), |s| readable(s.name))
    }
}

/// A short, stable name of the function that contains the link-time address: without arguments, and without the
/// compiler's marks on clones of a function.
pub fn function_label(image: &Image, link: u64) -> String {
    match image.symbol_at(link).filter(|s| s.is_function) {
        Some(symbol) => readable(symbol.name),
        None => image.function_at(link).map_or_else(|| "unknown".to_owned(), |range| format!("sub_{:x}", range.start)),
    }
}

/// A mangled name for people: `buf_page_get_gen`, `trx_t::commit_low`.
fn readable(mangled: &str) -> String {
    let base = mangled.split('.').next().unwrap_or(mangled);
    let options = cpp_demangle::DemangleOptions::new().no_params().no_return_type();
    let demangled = cpp_demangle::Symbol::new(base).ok().and_then(|s| s.demangle_with_options(&options).ok());
    demangled.unwrap_or_else(|| base.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_names_are_taken_apart() {
        let name = LatchName::from_event("wait/synch/prlock/sql/MDL_lock::rwlock").expect("an event");
        assert_eq!(name.kind, Kind::Prlock);
        for bad in [
            "",
            "wait/synch/",
            "wait/synch/mutex/",
            "wait/synch/mutex/sql",
            "wait/io/file/sql/x",
            "wait/synch/no/sql/x",
            "wait/synch/mutex/sql/\u{1}",
        ] {
            assert_eq!(LatchName::from_event(bad), None, "{bad}");
        }
    }

    #[test]
    fn different_latches_of_one_identity_have_no_name() {
        let a = LatchName::innodb(Kind::Mutex, "a");
        let b = LatchName::innodb(Kind::Mutex, "b");
        let none = LatchName::unnamed("f");
        let agree = |x: &LatchName, y: &LatchName| agreed(x.clone(), y.clone(), || none.clone());
        assert_eq!(agree(&a, &b), none);
        assert_eq!(agree(&a, &a), a);
        assert_eq!(agree(&a, &none), a);
        assert_eq!(agree(&none, &a), a);
    }

    #[test]
    fn function_names_are_readable() {
        assert_eq!(readable("_ZN5trx_t10commit_lowEP5mtr_t"), "trx_t::commit_low");
        assert_eq!(readable("_ZN10dict_sys_t6freezeEPKcj.constprop.320"), "dict_sys_t::freeze");
        assert_eq!(
            readable("_Z16buf_page_get_gen9page_id_tm14rw_lock_type_tP11buf_block_tmP5mtr_tP7dberr_t"),
            "buf_page_get_gen"
        );
        assert_eq!(readable("main"), "main");
    }
}
