//! Shows through which calls threads come to wait for latches.
//!
//! In some of the looks at the threads, the whole stack of those that wait is unwound, up to the function with which
//! the thread began. A latch's wait time can then be divided by the number of times that each call stack was seen.

use std::sync::Arc;

use foldhash::{HashMap, HashMapExt};
use parking_lot::Mutex;

use super::figures::Account;
use super::holders::is_contended;
use super::keys::MapKey;
use super::looks::{InTurn, Look, Waiting};
use super::stacks::Reader;
use super::texts::{Sample, Shown, Texts};
use crate::bpf::latch::types;
use crate::host::Machine;
use crate::server::Target;

/// The most threads whose stacks are read in one look, which stand for all that wait. Threads that wait at the same
/// moment often came through the same calls, so another look says more than more threads.
const MOST_THREADS: usize = 8;

/// The most call stacks that were displaced and keep what was counted for them. A text takes one or two kilobytes.
const MOST_DISPLACED: usize = 200;

/// The most calls for which the function's name is remembered. There are many stacks, but they are made of the same
/// calls.
const MOST_NAMES: usize = 4096;

/// How long a function's name may be, in characters. Names of templates can be longer.
const LONGEST_NAME: usize = 80;

/// What separates the functions of a stack.
pub(super) const SEPARATOR: char = ';';

/// The call stacks of one server's waiting threads: the names of functions, the outermost first, separated by
/// [`SEPARATOR`].
pub(super) struct SeenCallStacks(Mutex<Texts<MapKey>>);

impl Default for SeenCallStacks {
    fn default() -> SeenCallStacks {
        SeenCallStacks(Mutex::new(Texts::new(MOST_DISPLACED, str::to_owned)))
    }
}

impl SeenCallStacks {
    /// Returns how often each call stack was seen for each latch.
    pub fn samples(&self) -> Vec<Sample<MapKey>> {
        self.0.lock().all()
    }
}

/// Notes in looks through which calls threads came to wait.
pub(super) struct CallStackSampler {
    target: Arc<Target>,
    seen: Arc<SeenCallStacks>,
    /// How many CPUs there are.
    cpus: u64,
    in_turn: InTurn,
    /// The names of functions, by the address of the call in them.
    names: HashMap<u64, String>,
    /// Whether parts of the program were read for new names, which are in memory now.
    has_read: bool,
}

impl CallStackSampler {
    pub fn new(target: &Arc<Target>, seen: &Arc<SeenCallStacks>) -> CallStackSampler {
        let (target, seen) = (Arc::clone(target), Arc::clone(seen));
        let cpus = Machine::this().online_cpus().len() as u64;
        CallStackSampler { target, seen, cpus, in_turn: InTurn::default(), names: HashMap::new(), has_read: false }
    }

    /// Adds the threads of a look that contend for latches. `registers` has those of threads, by index among all. The
    /// registers of a thread that runs on another CPU are not known. One that ran on this CPU until the look was made
    /// stands for them.
    pub fn add(&mut self, look: &Look, registers: &[(usize, types::seen_thread)], reader: &mut Reader) {
        let registers: HashMap<usize, &types::seen_thread> = registers.iter().map(|(index, at)| (*index, at)).collect();
        let contended = look.waiting(1).filter(|waiting| is_contended(&waiting.latch));
        let with_registers = |waiting: Waiting| Some((waiting, *registers.get(&waiting.thread)?));
        let mut waiting: Vec<_> = contended.filter_map(with_registers).collect();
        let all = waiting.len() as u64;
        self.in_turn.keep(&mut waiting, MOST_THREADS);
        let read = waiting.len() as u64;
        for (waiting, at) in waiting {
            let threads = if at.ran_here != 0 { self.cpus } else { 1 };
            let weight = whole(threads * all, read);
            let text = reader.calls(at).map(|calls| self.text(&calls));
            let mut texts = self.seen.0.lock();
            let shown = text.map_or(Shown::Unread, |text| texts.seen(&text, &Account::default(), weight));
            texts.count(waiting.latch, shown, weight);
        }
        if std::mem::take(&mut self.has_read) {
            self.target.image.release_memory();
        }
    }

    /// Returns the text of a stack, given by where its functions were called, the innermost first.
    fn text(&mut self, calls: &[u64]) -> String {
        let mut text = String::new();
        for address in calls.iter().rev() {
            if !text.is_empty() {
                text.push(SEPARATOR);
            }
            text.push_str(self.name(*address));
        }
        text
    }

    /// Returns the name of the function that has an instruction.
    fn name(&mut self, address: u64) -> &str {
        if self.names.len() >= MOST_NAMES && !self.names.contains_key(&address) {
            self.names.clear();
        }
        self.names.entry(address).or_insert_with(|| {
            self.has_read = true;
            name_in_stack(&self.target.function_name(address))
        })
    }
}

/// Divides, and rounds up or down at random, so that the average is right.
pub(in crate::measure) fn whole(number: u64, by: u64) -> u64 {
    (number + fastrand::u64(..by.max(1))) / by.max(1)
}

/// Returns a function's name without what separates functions, and not too long.
fn name_in_stack(name: &str) -> String {
    let name = name.replace(SEPARATOR, ":");
    match name.char_indices().nth(LONGEST_NAME) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_are_read_stand_for_all() {
        fastrand::seed(9);
        assert_eq!((whole(3, 3), whole(12, 3), whole(0, 0)), (1, 4, 0));
        let sum: u64 = (0..8000).map(|_| whole(11, 8)).sum();
        assert!((10_900..11_100).contains(&sum), "{sum}");
    }

    #[test]
    fn names_are_short_and_have_no_separator() {
        assert_eq!(name_in_stack("a;b"), "a:b");
        let long = "x".repeat(LONGEST_NAME + 1);
        assert_eq!(name_in_stack(&long[1..]), long[1..]);
        assert_eq!(name_in_stack(&long), format!("{}…", &long[1..]));
    }
}
