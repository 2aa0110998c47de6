//! Names in MySQL and Percona Server: a mutex carries its latch id, an rw-lock where it was created.
//!
//! Neither needs performance_schema to be on. Latch ids name themselves in the server's `latch_meta` vector. Which
//! instrument a creation site belongs to is read from the code there, which hands the instrument's key over.

use std::collections::{HashMap, HashSet};

use super::{psi, Identity, LatchName};
use crate::catalog::{named, MysqlNames};
use crate::code::{self, Insn};
use crate::failure::Failure;
use crate::model::Kind;
use crate::symbols::{Arch, Image};
use crate::target::{Memory, Target};

/// Latch ids beyond this are not ids but garbage read from a wrong place.
const MAX_LATCH_IDS: u64 = 1024;

/// Instructions before a call in which its arguments are prepared.
const ARGUMENT_WINDOW: usize = 60;

pub(super) struct Names {
    catalog: &'static MysqlNames,
    /// By latch id.
    latches: HashMap<u32, LatchName>,
    sites: Vec<CreationSite>,
}

/// A place in the code that creates rw-locks.
struct CreationSite {
    /// The source file, as the code passes it on.
    file: String,
    /// All numbers in the code there, the line among them.
    numbers: HashSet<u32>,
    instrument: Option<String>,
}

impl Names {
    pub(super) fn read(target: &Target, memory: &Memory, catalog: &'static MysqlNames) -> Result<Names, Failure> {
        let instruments = psi::instruments(&target.image);
        let latches = latch_ids(target, memory, catalog)
            .map(|ids| ids.into_iter().map(|(id, name)| (id, mutex_name(&name, catalog, &instruments))).collect())
            .unwrap_or_default();
        Ok(Names { catalog, latches, sites: creation_sites(&target.image, catalog, &instruments) })
    }

    pub(super) fn name(&self, memory: &Memory, identity: &Identity) -> Option<LatchName> {
        match identity {
            Identity::LatchId(id) => self.latches.get(id).cloned(),
            Identity::Created { file, line } => {
                let file = memory.string(*file)?;
                self.rw_lock(&file, *line).map(|name| LatchName::innodb(Kind::Sxlock, name))
            }
            _ => None,
        }
    }

    fn rw_lock(&self, file: &str, line: u32) -> Option<&str> {
        let mut here = self.sites.iter().filter(|s| s.file == file && s.numbers.contains(&line));
        if let (Some(site), None) = (here.next(), here.next()) {
            if let Some(instrument) = &site.instrument {
                return Some(instrument);
            }
        }
        let base = file.rsplit('/').next()?;
        self.catalog.uninstrumented.iter().find(|(f, _)| *f == base).map(|(_, name)| *name)
    }
}

/// The server's latch ids and what it calls them: `latch_meta` is a vector (allocator, begin, end, capacity) of
/// pointers to descriptions that begin with the id and a pointer to its name.
fn latch_ids(target: &Target, memory: &Memory, catalog: &MysqlNames) -> Option<Vec<(u32, String)>> {
    let vector = target.image.symbol(catalog.latch_meta)?.addr + target.bias;
    let (begin, end) = (memory.u64(vector + 8)?, memory.u64(vector + 16)?);
    let count = end.checked_sub(begin)? / 8;
    if count > MAX_LATCH_IDS {
        return None;
    }
    let describe = |i: u64| {
        let entry = memory.u64(begin + i * 8).filter(|&e| e != 0)?;
        Some((memory.u32(entry)?, memory.string(memory.u64(entry + 8)?)?))
    };
    Some((0..count).filter_map(describe).collect())
}

/// A latch id's name as performance_schema has it. Most instruments are called after the id; the catalog has the
/// others. Ids without an instrument get a name built the same way.
fn mutex_name(id: &str, catalog: &MysqlNames, instruments: &HashMap<u64, String>) -> LatchName {
    let other = catalog.instruments.iter().find(|(i, _)| *i == id).map(|(_, name)| (*name).to_owned());
    let plain = id.to_ascii_lowercase();
    let usual = if plain.ends_with("_mutex") { plain.clone() } else { format!("{plain}_mutex") };
    let registered = instruments
        .values()
        .find(|name| name.eq_ignore_ascii_case(&usual) || name.eq_ignore_ascii_case(&plain))
        .cloned();
    LatchName::innodb(Kind::Mutex, &other.or(registered).unwrap_or(usual))
}

fn creation_sites(image: &Image, catalog: &MysqlNames, instruments: &HashMap<u64, String>) -> Vec<CreationSite> {
    let create: HashSet<u64> = named(image, catalog.rw_lock_create).map(|s| s.addr).collect();
    code::direct_calls(image, &create)
        .into_iter()
        .filter_map(|(call, _)| creation_site(image, call, instruments))
        .collect()
}

fn creation_site(image: &Image, call: u64, instruments: &HashMap<u64, String>) -> Option<CreationSite> {
    let function = image.function_at(call)?;
    let code = code::decode(image, function.start..call);
    let window = &code[code.len().saturating_sub(ARGUMENT_WINDOW)..];
    let strings = window.iter().rev().filter_map(|i| image.cstr(i.memory?));
    let file = strings.into_iter().find(|s| s.contains('/') && s.ends_with(".cc"))?.to_owned();
    let instrument = window.iter().rev().find_map(|i| instruments.get(&i.memory?).cloned());
    let numbers = window.iter().filter_map(|i| number(image.arch(), i)).collect();
    Some(CreationSite { file, numbers, instrument })
}

/// The number that an instruction puts into a register, if that is what it does.
fn number(arch: Arch, insn: &Insn) -> Option<u32> {
    let bytes = insn.bytes();
    match arch {
        Arch::X86_64 => {
            // mov r32, imm32: B8+r, behind 41 for r8d to r15d.
            let at = usize::from(bytes.first() == Some(&0x41));
            let opcode = *bytes.get(at)?;
            let value = bytes.get(at + 1..at + 5)?;
            (opcode & 0xf8 == 0xb8).then(|| u32::from_le_bytes([value[0], value[1], value[2], value[3]]))
        }
        Arch::Aarch64 => {
            // movz Rd, #imm16, unshifted.
            let word = u32::from_le_bytes(bytes.try_into().ok()?);
            (word & 0x7fe0_0000 == 0x5280_0000).then_some(word >> 5 & 0xffff)
        }
    }
}
