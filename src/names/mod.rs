//! How what the kernel tells latches apart by becomes a name: the one that performance_schema gives it.

mod mariadb;
mod mysql;
mod psi;

use std::collections::HashMap;
use std::sync::Arc;

use crate::catalog::{IdentityIn, Naming};
use crate::failure::Failure;
use crate::model::Kind;
use crate::target::{Memory, Target};

/// By what a latch was told from others while it was waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Identity {
    /// The latch's own class number.
    LatchId(u32),
    /// Where the server's code created it: the file name's address in the process, and the line.
    Created { file: u64, line: u32 },
    /// performance_schema's class of it, by address.
    PsiClass(u64),
    /// Its address in the server's static data.
    Static(u64),
    /// Only who waited: a return address.
    Caller(u64),
    /// Only which wait function it was, by its index in the catalog.
    Function(u8),
}

/// What a latch is called.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LatchName {
    pub event: String,
    pub kind: Kind,
}

impl LatchName {
    /// The name as performance_schema builds it for an InnoDB latch.
    fn innodb(kind: Kind, name: &str) -> LatchName {
        LatchName { event: format!("wait/synch/{}/innodb/{name}", kind.as_str()), kind }
    }

    /// For what could not be named: who waits for it, never a guess.
    fn unnamed(kind: Kind, function: &str) -> LatchName {
        LatchName { event: format!("unnamed:{function}"), kind }
    }
}

/// Names latches of one server. What was named once stays named.
pub struct Namer {
    target: Arc<Target>,
    memory: Memory,
    rules: Rules,
    known: HashMap<Identity, LatchName>,
}

enum Rules {
    Mysql(mysql::Names),
    Mariadb(mariadb::Names),
}

impl Namer {
    /// Reads the server's tables of names.
    ///
    /// # Errors
    /// Status 4 when the server's memory cannot be read.
    pub fn new(target: &Arc<Target>) -> Result<Namer, Failure> {
        let memory = Memory::new(target.pid);
        let rules = match target.family.naming {
            Naming::Mysql(catalog) => Rules::Mysql(mysql::Names::read(target, &memory, catalog)?),
            Naming::Mariadb(catalog) => Rules::Mariadb(mariadb::Names::new(target, &memory, catalog)),
        };
        Ok(Namer { target: Arc::clone(target), memory, rules, known: HashMap::new() })
    }

    /// The name of the latches with this identity; `example` is the address of one of them.
    pub fn name(&mut self, identity: &Identity, example: u64) -> LatchName {
        if let Some(known) = self.known.get(identity) {
            return known.clone();
        }
        let found = match &self.rules {
            _ if matches!(identity, Identity::Function(_)) => self.fixed(identity),
            Rules::Mysql(names) => names.name(&self.memory, identity),
            Rules::Mariadb(names) => names.name(&self.memory, identity, example),
        };
        match found {
            Some(name) => {
                self.known.insert(*identity, name.clone());
                name
            }
            None => self.unnamed(identity),
        }
    }

    /// The name that the catalog gives to all latches of a wait function.
    fn fixed(&self, identity: &Identity) -> Option<LatchName> {
        let Identity::Function(index) = *identity else { return None };
        match self.target.family.wait_functions.get(usize::from(index))?.identity {
            IdentityIn::Fixed(name) => Some(LatchName::innodb(Kind::Mutex, name)),
            _ => None,
        }
    }

    /// A string of the server's.
    pub fn string_at(&self, addr: u64) -> Option<String> {
        self.memory.string(addr)
    }

    fn unnamed(&self, identity: &Identity) -> LatchName {
        match *identity {
            Identity::LatchId(id) => LatchName::unnamed(Kind::Mutex, &format!("latch_id_{id}")),
            Identity::Created { file, line } => {
                let file = self.memory.string(file).unwrap_or_default();
                let base = file.rsplit('/').next().unwrap_or_default().to_owned();
                LatchName::unnamed(Kind::Sxlock, &format!("{base}:{line}"))
            }
            Identity::Static(addr) => LatchName::unnamed(Kind::Rwlock, &self.target.data_name(addr)),
            Identity::Function(index) => LatchName::unnamed(Kind::Mutex, &format!("wait_function_{index}")),
            Identity::PsiClass(addr) | Identity::Caller(addr) => {
                LatchName::unnamed(Kind::Rwlock, &self.target.function_name(addr))
            }
        }
    }
}
