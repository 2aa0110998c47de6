//! The file of a plan, and what makes it that of a program.
//!
//! ```text
//! mark       8 bytes
//! checksum   CRC-32 of what follows, 4 bytes, least significant byte first
//! contents   JSON: the key, a checksum of the code that was analysed, and the plan
//! ```
//!
//! Who can write the file can choose the checksum. So what is read is also compared with the program, and nothing in it
//! may refer to what is not there.

use std::ops::Range;

use crc32fast::Hasher;
use serde::{Deserialize, Serialize};

use super::super::{Allowed, Plan, PlannedFunction, PlannedSite, MAX_FUNCTIONS, MAX_PROBES, MAX_SITES};
use super::Unusable;
use crate::bpf::latch::types;
use crate::catalog::Family;
use crate::symbols::{own_build_id, FileIdentity, Image};

/// The last byte but one changes with the format.
const MARK: &[u8; 8] = b"\x8aPLAN\r1\n";
const SUM: usize = size_of::<u32>();

/// The longest build ID, in hexadecimal digits: it is part of a file's name.
const LONGEST_ID: usize = 128;

/// The most bytes of an instruction.
const INSTRUCTION: usize = 16;

/// What decides which plan a program gets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Key {
    /// The build ID of the armtrace that analyses: another one may find something else.
    agent: String,
    /// The program's build ID.
    build: String,
    /// The program's file. Whoever runs a program chooses its build ID, so a container could have its program analysed
    /// in place of another's.
    file: FileIdentity,
    /// The number of the symbols by which functions are found, and their checksum.
    symbols: (usize, u32),
    allowed: Allowed,
}

impl Key {
    /// Returns the key of a running program's plan; `None` if a build has no ID.
    pub fn new(image: &Image, allowed: Allowed) -> Option<Key> {
        let is_id = |id: &str| (1..=LONGEST_ID).contains(&id.len());
        let (agent, build) = (own_build_id(), image.build_id());
        let file = image.file_identity()?;
        (is_id(&agent) && is_id(&build)).then(|| Key { agent, build, file, symbols: symbols(image), allowed })
    }

    /// Returns the name of its file.
    pub fn file_name(&self) -> String {
        let rest = serde_json::to_vec(self).unwrap_or_default();
        format!("{}.{:08x}", self.build, crc32fast::hash(&rest))
    }
}

fn symbols(image: &Image) -> (usize, u32) {
    let (mut count, mut sum) = (0, Hasher::new());
    for symbol in image.symbols() {
        count += 1;
        sum.update(&symbol.addr.to_le_bytes());
        sum.update(&[u8::from(symbol.is_function)]);
        sum.update(symbol.name.as_bytes());
    }
    (count, sum.finalize())
}

/// A plan as it is in a file.
#[derive(Serialize, Deserialize)]
pub(super) struct Kept<P = Plan> {
    key: Key,
    /// [`code`], when it was analysed.
    code: u32,
    plan: P,
}

impl<'a> Kept<&'a Plan> {
    pub fn new(key: &Key, plan: &'a Plan, image: &Image) -> Kept<&'a Plan> {
        Kept { key: key.clone(), code: code(plan, image), plan }
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        // What is in memory can always be written as JSON.
        let contents = serde_json::to_vec(self).unwrap_or_default();
        [&MARK[..], &crc32fast::hash(&contents).to_le_bytes(), &contents].concat()
    }
}

impl Kept {
    pub fn from_bytes(bytes: &[u8]) -> Result<Kept, Unusable> {
        let rest = bytes.strip_prefix(MARK).ok_or(Unusable::Damaged)?;
        let (sum, contents) = rest.split_first_chunk::<SUM>().ok_or(Unusable::Damaged)?;
        if crc32fast::hash(contents) != u32::from_le_bytes(*sum) {
            return Err(Unusable::Damaged);
        }
        Ok(serde_json::from_slice(contents)?)
    }

    /// Returns the plan if it is the one of this key, and fits the program.
    pub fn checked(self, key: &Key, image: &Image, family: &Family) -> Result<Plan, Unusable> {
        if self.key != *key {
            return Err(Unusable::Other);
        }
        let fits = is_sound(&self.plan, image, family) && self.code == code(&self.plan, image);
        fits.then_some(self.plan).ok_or(Unusable::Code)
    }
}

/// Returns a checksum of the code at the sites and of the wait functions.
fn code(plan: &Plan, image: &Image) -> u32 {
    let mut sum = Hasher::new();
    let sites = plan.sites.iter().map(|site| (site.addr, INSTRUCTION));
    let functions = plan.functions.iter().map(|function| (function.range.start, length(&function.range)));
    for (address, bytes) in sites.chain(functions) {
        sum.update(image.bytes(address, bytes).unwrap_or_default());
    }
    sum.finalize()
}

fn length(range: &Range<u64>) -> usize {
    range.end.saturating_sub(range.start) as usize
}

/// Returns whether a plan refers only to what there is in the program, in the catalog and in the plan itself.
fn is_sound(plan: &Plan, image: &Image, family: &Family) -> bool {
    let functions = family.wait_functions.len().min(MAX_FUNCTIONS);
    let is_function = |index: u8| usize::from(index) < functions;
    let has_code = |f: &PlannedFunction| length(&f.range) > 0 && image.bytes(f.range.start, length(&f.range)).is_some();
    let is_site = |site: &PlannedSite| {
        image.file_offset(site.addr) == Some(site.file_offset)
            && is_function(site.function())
            && usize::from(site.site.probe) < plan.probes.len()
            && u32::from(site.site.role) <= types::role::ROLE_MAYBE_END.0
    };
    plan.sites.len() <= MAX_SITES
        && plan.probes.len() <= MAX_PROBES
        && plan.sites.iter().all(is_site)
        && has_all(plan.groups.iter().flatten(), plan.sites.len())
        && has_all(plan.probes.iter().flat_map(|probe| &probe.sites), plan.sites.len())
        && plan.functions.iter().all(|function| is_function(function.index) && has_code(function))
        && plan.inlined.iter().all(|&index| is_function(index))
        && plan.kinds.iter().all(|kinds| kinds.count as usize <= kinds.kinds.len())
        && plan.wrapper_returns.iter().all(|address| image.extent().contains(address))
        && plan.static_data == image.static_data()
}

/// Returns whether these are all numbers below `count`, each once.
fn has_all<'a>(numbers: impl Iterator<Item = &'a usize>, count: usize) -> bool {
    let mut numbers: Vec<usize> = numbers.copied().collect();
    numbers.sort_unstable();
    numbers.into_iter().eq(0..count)
}

/// Reads a file, and its contents as if the checksum were right, and checks what is read against a program. For
/// fuzzing, which finds neither checksums nor keys.
#[cfg(any(test, fuzzing))]
pub(crate) fn examine(file: &[u8], image: &Image, family: &Family) {
    let with_sum = [&MARK[..], &crc32fast::hash(file).to_le_bytes(), file].concat();
    for bytes in [file, &with_sum] {
        let Ok(kept) = Kept::from_bytes(bytes) else { continue };
        let key = kept.key.clone();
        _ = key.file_name();
        let kept = Kept { code: code(&kept.plan, image), ..kept };
        let Ok(plan) = kept.checked(&key, image, family) else { continue };
        _ = (plan.spins(), plan.wait_functions().count(), plan.site_addresses(1 << 40).count());
        (0..plan.groups.len()).for_each(|group| _ = plan.functions_of(group));
        plan.probes.iter().for_each(|probe| _ = plan.group_of(probe));
    }
}
