//! Counts a program's instructions, function by function, in one pass that keeps only the counts.

use std::collections::HashMap;

use super::functions::{pieces, Piece};
use super::helpers::Helpers;
use crate::isa::aarch64::{self, words_at, MAX_EXCLUSIVE};
use crate::isa::{x86, Class, ClassId, Group};
use crate::symbols::{Arch, Image};

/// The largest amount of code, in bytes, that is accepted, so that no file keeps the audit busy for long. The largest
/// known, MySQL's for x86-64, is 36 MiB.
const MAX_TEXT: u64 = 512 << 20;

/// The largest distance from an exclusive store to the branch that retries it, in instructions.
const MAX_RETRY: usize = 3;

/// The reason why a program cannot be audited.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuditError {
    /// The program has no `.text`.
    #[error("it has no code: the section .text is missing or empty")]
    NoCode,
    /// The section headers mention code that the file does not contain.
    #[error("its code is not in the file, which may be a debug file: give the program itself")]
    NotInFile,
    /// The program has this many MiB of code.
    #[error("it has {0} MiB of code, more than any server has")]
    TooMuch(u64),
}

/// The number of instructions of each class. Classes that do not occur are omitted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts(Vec<(ClassId, u32)>);

impl Counts {
    /// Iterates over the counts by class, in the order of [`super::classes`].
    pub fn iter(&self) -> impl Iterator<Item = (ClassId, u32)> + '_ {
        self.0.iter().copied()
    }

    /// Returns the number of instructions whose class satisfies `is`.
    pub fn sum(&self, classes: &[Class], mut is: impl FnMut(&Class) -> bool) -> u64 {
        self.iter().filter(|(class, _)| is(&classes[usize::from(*class)])).map(|(_, n)| u64::from(n)).sum()
    }

    /// Returns the number of instructions of a group.
    pub fn of_group(&self, classes: &[Class], group: Group) -> u64 {
        self.sum(classes, |class| class.group == group)
    }
}

/// The counts of one function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionCounts {
    /// Link-time address.
    pub address: u64,
    /// The number of bytes of code that were counted.
    pub size: u64,
    /// Its instructions by class.
    pub counts: Counts,
}

/// Exclusive loads that are paired with their exclusive store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exclusives {
    /// All pairs.
    pub pairs: u64,
    /// The pairs that are retried until the store succeeds.
    pub loops: u64,
    /// The pairs in outline-atomics helpers, which CPUs with LSE never execute.
    pub pairs_in_helpers: u64,
}

/// The counts of a whole program.
#[derive(Debug)]
pub struct Counted {
    /// The size of its code, in bytes.
    pub text: u64,
    /// The number of all its instructions, counted or not.
    pub instructions: u64,
    /// The instructions and helper calls by class.
    pub totals: Counts,
    /// The pairs of exclusive loads and stores.
    pub exclusives: Exclusives,
    /// The outline-atomics helpers.
    pub helpers: Helpers,
    /// The number of calls of each helper, by the helper's entry.
    pub helper_calls: HashMap<u64, u64>,
    /// The functions with any counted instruction, by address.
    pub functions: Vec<FunctionCounts>,
}

/// Decodes all of `.text` and counts.
///
/// # Errors
/// Fails when the file contains no code, or more code than any server has.
pub fn count(image: &Image) -> Result<Counted, AuditError> {
    let text = image.section(".text").filter(|t| t.start < t.end).ok_or(AuditError::NoCode)?;
    let size = text.end - text.start;
    if size > MAX_TEXT {
        return Err(AuditError::TooMuch(size >> 20));
    }
    let bytes = image.bytes(text.start, size as usize).ok_or(AuditError::NotInFile)?;
    let helpers = match image.arch() {
        Arch::X86_64 => Helpers::default(),
        Arch::Aarch64 => Helpers::find(text.start, bytes),
    };
    let mut tally = Tally::new(&helpers);
    for piece in pieces(image, &text, &helpers) {
        let code = &bytes[(piece.range.start - text.start) as usize..(piece.range.end - text.start) as usize];
        tally.begin(&piece);
        match image.arch() {
            Arch::X86_64 => tally.count_x86(piece.range.start, code),
            Arch::Aarch64 => tally.count_aarch64(piece.range.start, code),
        }
    }
    tally.end_function();
    let Tally { instructions, total, exclusives, helper_calls, functions, .. } = tally;
    let (totals, functions) = (total.counts(), merged(functions));
    Ok(Counted { text: size, instructions, totals, exclusives, helpers, helper_calls, functions })
}

/// Counts by class while they are being accumulated.
struct Scratch {
    by_class: [u32; 256],
    /// The classes whose count is not zero.
    touched: Vec<ClassId>,
}

impl Scratch {
    fn new() -> Scratch {
        Scratch { by_class: [0; 256], touched: Vec::new() }
    }

    fn add(&mut self, class: ClassId, n: u32) {
        let count = &mut self.by_class[usize::from(class)];
        if *count == 0 {
            self.touched.push(class);
        }
        *count += n;
    }

    fn counts(mut self) -> Counts {
        self.take()
    }

    fn take(&mut self) -> Counts {
        self.touched.sort_unstable();
        Counts(self.touched.drain(..).map(|c| (c, std::mem::take(&mut self.by_class[usize::from(c)]))).collect())
    }
}

struct Tally<'h> {
    helpers: &'h Helpers,
    instructions: u64,
    total: Scratch,
    exclusives: Exclusives,
    helper_calls: HashMap<u64, u64>,
    functions: Vec<FunctionCounts>,
    function: Scratch,
    address: u64,
    size: u64,
}

impl Tally<'_> {
    fn new(helpers: &Helpers) -> Tally<'_> {
        Tally {
            helpers,
            instructions: 0,
            total: Scratch::new(),
            exclusives: Exclusives::default(),
            helper_calls: HashMap::new(),
            functions: Vec::new(),
            function: Scratch::new(),
            address: 0,
            size: 0,
        }
    }

    fn begin(&mut self, piece: &Piece) {
        if piece.function != self.address {
            self.end_function();
            (self.address, self.size) = (piece.function, 0);
        }
        self.size += piece.range.end - piece.range.start;
    }

    fn end_function(&mut self) {
        let counts = self.function.take();
        if counts == Counts::default() {
            return;
        }
        counts.iter().for_each(|(class, n)| self.total.add(class, n));
        self.functions.push(FunctionCounts { address: self.address, size: self.size, counts });
    }

    fn count_x86(&mut self, base: u64, code: &[u8]) {
        for instruction in x86::classified(base, code) {
            self.instructions += 1;
            if let Some(class) = instruction.class {
                self.function.add(class, 1);
            }
        }
    }

    fn count_aarch64(&mut self, base: u64, code: &[u8]) {
        let mut load = None;
        for (i, (at, word)) in words_at(base, code).enumerate() {
            self.instructions += 1;
            if let Some(class) = aarch64::classify(word) {
                self.function.add(class, 1);
                match aarch64::classes()[usize::from(class)].group {
                    Group::LoadExclusive => load = Some(i),
                    Group::StoreExclusive => {
                        let pair = load.take().filter(|load| i - load <= MAX_EXCLUSIVE);
                        pair.into_iter().for_each(|load| self.add_pair(at, repeats(code, load, i)));
                    }
                    _ => {}
                }
            } else if let Some(helper) = word.branch(at).and_then(|to| self.helpers.at(to)) {
                self.function.add(helper.call, 1);
                *self.helper_calls.entry(helper.range.start).or_default() += 1;
            }
        }
    }

    fn add_pair(&mut self, address: u64, is_loop: bool) {
        self.exclusives.pairs += 1;
        self.exclusives.loops += u64::from(is_loop);
        // Inside a helper, the piece is identified by the helper's entry.
        let in_helper = self.helpers.at(self.address).is_some_and(|h| h.range.contains(&address));
        self.exclusives.pairs_in_helpers += u64::from(in_helper);
    }
}

/// Returns whether the exclusive store at word `store` is followed by a branch back to its load, or to before the load,
/// if the store failed.
fn repeats(code: &[u8], load: usize, store: usize) -> bool {
    let store = store * 4;
    let mut behind = words_at(store as u64, code.get(store..).unwrap_or_default());
    let Some(status) = behind.next().map(|(_, word)| word.status()) else { return false };
    behind
        .take(MAX_RETRY)
        .filter_map(|(at, word)| word.zero_branch(at))
        .any(|branch| !branch.if_zero && branch.register == status && branch.to <= load as u64 * 4)
}

/// Merges the counts of each function. A function that contains others is split into several pieces.
fn merged(mut functions: Vec<FunctionCounts>) -> Vec<FunctionCounts> {
    functions.sort_by_key(|f| f.address);
    functions.dedup_by(|part, first| {
        let same = part.address == first.address;
        if same {
            let mut sum = Scratch::new();
            first.counts.iter().chain(part.counts.iter()).for_each(|(class, n)| sum.add(class, n));
            first.counts = sum.counts();
            first.size += part.size;
        }
        same
    });
    functions
}
