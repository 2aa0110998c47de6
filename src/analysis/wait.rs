//! Finds where a wait inside a function begins and ends.
//!
//! The probes must cost nothing while no latch is contended, so they may only sit on code that runs after a latch was
//! found taken. That code is found from the slow calls, which are made only in that case: it is what the highest block
//! dominates that dominates all slow calls and does not lie on a shortest path through the function. Among the
//! instructions that mark the same moment, one that the kernel emulates is preferred.

use std::collections::HashSet;
use std::ops::Range;

use super::cfg::Block;
use super::function::Function;
use super::values::Location;
use crate::isa::{Flow, Insn, Probing, Test};
use crate::symbols::Image;

/// The most spin loops per function that are examined; the largest known function has two.
const MAX_SPINS: usize = 32;

/// The functions that are called only in order to wait: addresses of functions or of procedure linkage stubs
/// ([`super::imported_calls`]).
#[derive(Clone, Debug, Default)]
pub struct Slow {
    /// One round of a spin loop (`ut_delay`). If omitted, the wait begins where a sleep is inevitable.
    pub spin: HashSet<u64>,
    /// Everything that comes after spinning, mainly sleeps (`sync_array_wait_event`).
    pub sleep: HashSet<u64>,
    /// `syscall`, which counts as slow unless its arguments show a futex call that only wakes others.
    pub syscall: HashSet<u64>,
}

impl Slow {
    fn is_empty(&self) -> bool {
        self.spin.is_empty() && self.sleep.is_empty() && self.syscall.is_empty()
    }
}

/// The probe sites at which a wait inside a function begins and ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitSites {
    /// The first instruction of the block in which the wait begins, which the sites below represent.
    pub start: u64,
    /// The cheapest single site at which the wait begins.
    pub begin: Site,
    /// Further sites at which it can begin, if a function has several sleeps.
    pub begins: Vec<Site>,
    /// An alternative where `begin` repeats or is single-stepped: sites on all the paths into the block at `start`, of
    /// which every wait passes exactly one, once. Otherwise, or if there are none, empty.
    pub entries: Vec<Site>,
    /// The sites at which the wait ends. Empty if the end cannot be seen from inside the function; a return probe can
    /// see it.
    ///
    /// Where all are [`EndKind::Final`], every wait passes exactly one of them (with its condition met).
    pub ends: Vec<EndSite>,
}

/// An instruction to probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// Link-time address.
    pub addr: u64,
    /// Whether the kernel emulates the instruction: [`Probing::Emulated`], or [`Probing::Stepped`] if not.
    pub emulated: bool,
    /// Whether it is a call. Some kernels emulate a call without the entry on the shadow stack. In a process that has a
    /// shadow stack (`x86_Thread_features` in `/proc/PID/status`), such a site would kill the process.
    pub is_call: bool,
    /// The instruction as text, for display.
    pub text: String,
    /// Whether it can run again before the function returns, that is, more than once per wait.
    pub repeats: bool,
    /// Whether it runs once in every round of a spin loop, that is, very often.
    pub per_round: bool,
    /// Where the function's first six integer arguments are when the probe fires.
    pub args: [Option<Location>; 6],
    /// Where the function's return address is when the probe fires.
    pub return_address: Option<Location>,
}

/// An end of a wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndSite {
    /// The instruction to probe.
    pub site: Site,
    /// Whether passing it ends the wait certainly or probably.
    pub kind: EndKind,
    /// The condition under which passing the site is an end; `None` if it always is.
    pub when: Option<Condition>,
}

/// What passing an end site means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndKind {
    /// The wait is over.
    Final,
    /// The wait is probably over, but it can continue through the function's hot part (a retry) without leaving the
    /// function. The last such end before the thread's next wait counts.
    Maybe,
}

/// A condition on the registers at a conditional branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Condition {
    /// What the branch depends on.
    pub test: Test,
    /// The outcome of the test with which the condition is met.
    pub holds: bool,
}

/// Finds the contended part of the function at `function` ([`Image::function_at`]): the part that governs its calls to
/// `slow` functions.
///
/// `None` if there is no such call, if no block governs them all without also lying on the path of threads that need
/// not wait, or if the function cannot be analyzed. Without spinning calls, each sleeping call has a block of its own.
pub fn contended(image: &Image, function: Range<u64>, slow: &Slow) -> Option<WaitSites> {
    Function::new(image, function)?.contended(slow)
}

/// Finds the sites of a function that is called only in order to wait: it begins at the entry, and ends where nothing
/// but the return is left. `slow` helps to find the end and may be empty.
///
/// `None` if the function cannot be analyzed.
pub fn whole_function(image: &Image, function: Range<u64>, slow: &Slow) -> Option<WaitSites> {
    Function::new(image, function)?.whole_function(slow)
}

impl Function {
    /// Does the same as [`contended`], for an already decoded function.
    pub fn contended(&self, slow: &Slow) -> Option<WaitSites> {
        if !self.is_complete() {
            return None;
        }
        let wait = Wait::new(self, slow);
        if slow.spin.is_empty() {
            let sleeps = self.insns.iter().any(|insn| classify(self, insn, slow).1);
            return sleeps.then(|| wait.contended_from(&wait.inevitable_sleeps()))?;
        }
        wait.contended_from(&[wait.contended_start()?])
    }

    /// Does the same as [`whole_function`], for an already decoded function.
    pub fn whole_function(&self, slow: &Slow) -> Option<WaitSites> {
        if !self.is_complete() {
            return None;
        }
        let wait = Wait::new(self, slow);
        let begin = wait.entry()?;
        let ends = wait.whole_function_ends();
        Some(WaitSites { start: self.entry, begin, begins: Vec::new(), entries: Vec::new(), ends })
    }

    /// Returns the instructions with which the function returns to its caller or continues as another function, in the
    /// order of their addresses. `None` if there is none, if one of them cannot be probed or leaves it only under a
    /// condition, or if the function cannot be analyzed.
    pub fn exits(&self) -> Option<Vec<Site>> {
        if !self.is_complete() {
            return None;
        }
        let wait = Wait::new(self, &Slow::default());
        let leaving = wait.live().filter(|&b| self.graph.next[b].contains(&wait.returned()));
        let exits = leaving.map(|b| {
            let always = self.graph.next[b].len() == 1;
            always.then(|| wait.site(self.blocks[b].insns.end - 1)).flatten()
        });
        exits.collect::<Option<Vec<Site>>>().filter(|exits| !exits.is_empty())
    }

    fn first(&self, block: usize) -> &Insn {
        &self.insns[self.blocks[block].insns.start]
    }
}

/// A function together with its slow instructions.
pub(super) struct Wait<'a> {
    pub f: &'a Function,
    /// For each block, the index of its last slow instruction.
    pub last_slow: Vec<Option<usize>>,
    /// For each block, the index of its first slow instruction.
    first_slow: Vec<Option<usize>>,
    /// Blocks that are one round of spinning, or a delay in it.
    spins: Vec<bool>,
    /// Blocks with a slow call that is not a spin round.
    sleeps: Vec<bool>,
    cyclic: Vec<bool>,
}

impl<'a> Wait<'a> {
    fn new(f: &'a Function, slow: &Slow) -> Wait<'a> {
        let blocks = f.blocks.len();
        let mut wait = Wait {
            f,
            last_slow: vec![None; blocks],
            first_slow: vec![None; blocks],
            spins: vec![false; blocks],
            sleeps: vec![false; blocks],
            cyclic: f.graph.cyclic(),
        };
        wait.mark(&|insn| classify(f, insn, slow));
        // If no waiting function is known, any call may be what waits.
        if !wait.live().any(|b| wait.last_slow[b].is_some() || !slow.is_empty() && wait.cyclic[b]) {
            wait.mark(&|insn| (false, matches!(insn.flow, Flow::Call(_))));
        }
        wait
    }

    /// Marks the slow instructions; `classify` returns for each whether it is (a round of spinning, another wait).
    fn mark(&mut self, classify: &dyn Fn(&Insn) -> (bool, bool)) {
        for (block, content) in self.f.blocks.iter().enumerate() {
            for i in content.insns.clone() {
                let insn = &self.f.insns[i];
                let (spins, sleeps) = classify(insn);
                self.spins[block] |= spins || insn.is_spin_hint();
                self.sleeps[block] |= sleeps;
                if spins || sleeps {
                    self.first_slow[block].get_or_insert(i);
                    self.last_slow[block] = Some(i);
                }
            }
            self.spins[block] |= is_delay(self.f, block, content);
        }
    }

    pub fn live(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.f.blocks.len()).filter(|&b| self.f.is_live(b))
    }

    pub fn returned(&self) -> usize {
        self.f.blocks.len()
    }

    /// Returns the sites of waits that begin in `starts`.
    fn contended_from(&self, starts: &[usize]) -> Option<WaitSites> {
        let start = *starts.first()?;
        let begin = self.begin(start)?;
        let begins = starts[1..].iter().map(|&other| self.begin(other)).collect::<Option<_>>()?;
        let stands_alone = starts.len() == 1 && (begin.repeats || !begin.emulated);
        let entries = if stands_alone { self.entries(start, &begin) } else { Vec::new() };
        Some(WaitSites { start: self.f.first(start).addr, begin, begins, entries, ends: self.contended_ends(starts) })
    }

    /// Returns, for each sleep, the highest block after which no path returns without a sleep.
    fn inevitable_sleeps(&self) -> Vec<usize> {
        let sleeps = |b: usize| self.last_slow.get(b).is_some_and(Option::is_some);
        let returns = self.f.graph.reversed().reached(&[self.returned()], sleeps);
        let sleeping = (0..self.f.blocks.len()).filter(|&b| sleeps(b));
        let mut starts: Vec<usize> =
            sleeping.filter_map(|b| self.f.dominators.chain(b).filter(|&above| !returns[above]).last()).collect();
        starts.sort_unstable();
        starts.dedup();
        starts
    }

    /// Returns the highest block that dominates all slow calls, is not on a shortest path from entry to return, and
    /// does not run in every round of spinning. Where the spin loop has no block of its own at its beginning, this is
    /// the block after it; the spinning part of a wait is then not measured.
    fn contended_start(&self) -> Option<usize> {
        let slow: Vec<bool> = self.last_slow.iter().map(Option::is_some).collect();
        let all = self.above(&slow);
        let calm = |blocks: &[usize]| blocks.iter().rev().copied().find(|&b| !self.is_per_round(b));
        calm(&all).or_else(|| calm(&self.above(&self.sleeps))).or_else(|| all.last().copied())
    }

    /// Returns the blocks that dominate all the `wanted` ones and are not on a shortest path through the function,
    /// lowest first.
    fn above(&self, wanted: &[bool]) -> Vec<usize> {
        let f = self.f;
        let slow: Vec<usize> = (0..f.blocks.len()).filter(|&b| wanted[b] && f.dominators.reaches(b)).collect();
        let from_entry = f.graph.distances(&[f.entry_block]);
        let to_return = f.graph.reversed().distances(&[self.returned()]);
        let shortest = from_entry[self.returned()];
        let is_fast = |b: usize| from_entry[b].zip(to_return[b]).is_some_and(|(a, z)| Some(a + z) == shortest);
        let Some((first, rest)) = slow.split_first() else { return Vec::new() };
        let mut above: Vec<usize> = f.dominators.chain(*first).collect();
        for &other in rest {
            let theirs: HashSet<usize> = f.dominators.chain(other).collect();
            above.retain(|b| theirs.contains(b));
        }
        above.retain(|&b| !is_fast(b));
        above
    }

    /// Returns the cheapest site for the beginning: in block `start`, else in the blocks that always follow it, else in
    /// a jump whose only purpose is to reach it.
    fn begin(&self, start: usize) -> Option<Site> {
        let found = self
            .emulated_with_latch(self.before_slow(start))
            .or_else(|| self.emulated_behind(start))
            .or_else(|| self.jump_to(start))
            .or_else(|| self.first_probeable(self.before_slow(start)))?;
        self.site(found)
    }

    /// Searches the straight line after `start`, but not where a spin loop passes it repeatedly.
    fn emulated_behind(&self, start: usize) -> Option<usize> {
        let line = self.straight_line(start);
        line.into_iter()
            .skip(1)
            .find_map(|b| self.emulated_with_latch(self.before_slow(b)).filter(|_| !self.is_per_round(b)))
    }

    fn jump_to(&self, start: usize) -> Option<usize> {
        let [from] = self.f.graph.back[start][..] else { return None };
        let jump = self.f.blocks[from].insns.end - 1;
        (!self.is_hot(from, start)).then(|| self.emulated_with_latch(jump..jump + 1)).flatten()
    }

    /// Returns `start` and the blocks that always run after it, with no choice in between. None of them is entered from
    /// outside the contended part, but they may be entered again in the same wait.
    fn straight_line(&self, start: usize) -> Vec<usize> {
        let mut line = vec![start];
        let mut at = start;
        while let [next] = self.f.graph.next[at][..] {
            let inside = next < self.f.blocks.len() && self.f.dominators.dominates(start, next);
            if !inside || line.contains(&next) || self.last_slow[at].is_some() {
                break;
            }
            line.push(next);
            at = next;
        }
        line
    }

    /// Returns whether block `from` also runs without going on to `start`.
    fn is_hot(&self, from: usize, start: usize) -> bool {
        self.f.graph.next[from] != [start]
    }

    /// Returns one site on every path into `start` from outside the contended part. Empty unless each of them exists,
    /// has no other purpose, and does not repeat.
    fn entries(&self, start: usize, begin: &Site) -> Vec<Site> {
        let f = self.f;
        let outside = f.graph.back[start].iter().filter(|&&b| f.dominators.reaches(b));
        let sites: Option<Vec<Site>> = outside
            .map(|&from| {
                if self.is_hot(from, start) || self.last_slow[from].is_some() {
                    return None;
                }
                let insns = f.blocks[from].insns.clone();
                let latch = self.emulated_with_latch(insns.clone());
                self.site(latch.or_else(|| self.first_probeable(insns))?).filter(|s| !s.repeats)
            })
            .collect();
        let sites = sites.unwrap_or_default();
        let cheaper = sites.iter().any(|s| s.emulated) || sites.iter().all(|s| s.emulated == begin.emulated);
        if cheaper && sites[..] != [begin.clone()] {
            sites
        } else {
            Vec::new()
        }
    }

    /// Returns the first emulated instruction of the entry block where the latch is still known, or the first one that
    /// does any work.
    fn entry(&self) -> Option<Site> {
        let insns = self.before_slow(self.f.entry_block);
        let working = insns.clone().find(|&i| !self.f.insns[i].is_landing_pad() && self.is_probeable(i));
        self.site(self.emulated_with_latch(insns).or(working)?)
    }

    /// Returns the blocks from which a wait that began in one of `starts` can begin again without leaving the function.
    pub fn retries(&self, starts: &[usize]) -> Vec<bool> {
        self.f.graph.reversed().reached(starts, |_| false)
    }

    /// Returns the instructions of a block up to and including its first slow one.
    fn before_slow(&self, block: usize) -> Range<usize> {
        let insns = self.f.blocks[block].insns.clone();
        insns.start..self.first_slow[block].map_or(insns.end, |i| i + 1)
    }

    /// Returns the instructions of a block after its last slow one.
    pub fn after_slow(&self, block: usize) -> Range<usize> {
        let insns = self.f.blocks[block].insns.clone();
        self.last_slow[block].map_or(insns.start, |i| i + 1)..insns.end
    }

    /// Returns the first emulated instruction in this range of one block where the latch is in a known place.
    pub fn emulated_with_latch(&self, insns: Range<usize>) -> Option<usize> {
        let block = self.f.block_of[insns.start.min(self.f.insns.len() - 1)];
        let known = self.f.latch_known(block);
        let first = self.f.blocks[block].insns.start;
        insns.into_iter().find(|&i| self.is_emulated(i) && known[i - first])
    }

    fn first_probeable(&self, mut insns: Range<usize>) -> Option<usize> {
        insns.find(|&i| self.is_probeable(i))
    }

    pub fn is_emulated(&self, i: usize) -> bool {
        self.f.insns[i].probing == Probing::Emulated
    }

    pub fn is_probeable(&self, i: usize) -> bool {
        self.f.insns[i].probing != Probing::Refused
    }

    pub fn site(&self, i: usize) -> Option<Site> {
        let insn = &self.f.insns[i];
        let block = self.f.block_of[i];
        self.is_probeable(i).then(|| Site {
            addr: insn.addr,
            emulated: self.is_emulated(i),
            is_call: matches!(insn.flow, Flow::Call(_)),
            text: insn.text(),
            repeats: self.cyclic[block],
            per_round: self.is_per_round(block),
            args: self.f.arguments_at(insn.addr),
            return_address: self.f.return_address_at(insn.addr),
        })
    }

    /// Returns whether every spin round passes through `block` as long as the thread does not sleep: without the block
    /// and the sleeps, there is no loop.
    fn is_per_round(&self, block: usize) -> bool {
        let graph = &self.f.graph;
        let spins = self.live().filter(|&s| self.spins[s] && !self.sleeps[s]).take(MAX_SPINS);
        let goes_round = |spin: usize, closed: Option<usize>| {
            // A delay's own loop is not a round.
            let starts: Vec<usize> = graph.next[spin].iter().copied().filter(|&n| n != spin).collect();
            let shut = |n: usize| Some(n) == closed || n < self.sleeps.len() && self.sleeps[n];
            let open: Vec<usize> = starts.into_iter().filter(|&n| !shut(n)).collect();
            open.contains(&spin) || graph.reached(&open, shut)[spin]
        };
        spins.into_iter().any(|s| goes_round(s, None) && (s == block || !goes_round(s, Some(block))))
    }
}

/// Classifies an instruction as slow: (a round of spinning, anything else).
fn classify(f: &Function, insn: &Insn, slow: &Slow) -> (bool, bool) {
    let (Flow::Call(Some(to)) | Flow::Jump(to)) = insn.flow else { return (false, false) };
    let waits = slow.sleep.contains(&to) || slow.syscall.contains(&to) && !only_wakes(f, insn);
    (slow.spin.contains(&to), waits)
}

/// Returns whether a call of `syscall` is known to be a futex call that does not block. Its third argument, after the
/// system call's number and the futex word, is the operation (`include/uapi/linux/futex.h`).
fn only_wakes(f: &Function, insn: &Insn) -> bool {
    const OPERATION: u64 = 0x7f;
    let wakes = |operation: u64| matches!(operation & OPERATION, 1 | 3 | 4 | 5 | 10);
    f.constants_at(insn.addr)[2].is_some_and(wakes)
}

/// Returns whether a block is a loop that only counts: a delay.
fn is_delay(f: &Function, block: usize, content: &Block) -> bool {
    let idle = |i: &Insn| !i.touches_memory() && !matches!(i.flow, Flow::Call(_));
    f.graph.next[block].contains(&block) && f.insns[content.insns.clone()].iter().all(idle)
}
