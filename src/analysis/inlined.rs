//! Finds waits for a mutex that the compiler inlined into the functions that take it.
//!
//! A mutex is taken by one atomic instruction. If that fails, the code spins (`ut_delay`), tries again, and finally
//! calls a function that sleeps. The search goes in the opposite direction: from the sleeping call up to the highest
//! block that is entered only after a failed attempt. What that block dominates is the waiting part. The mutex is the
//! operand of the attempt, and must be the one that the call sleeps for. Only x86-64's atomic instructions are known,
//! so none of these waits is recognized in arm64 code.
//!
//! Two shapes are known. If the first attempt precedes the loop, the waiting part has ends of its own. If the loop goes
//! back to the first attempt, which threads that need not wait also pass, the wait probably ends at one of the paths
//! back; the next attempt decides.

use std::collections::HashSet;
use std::ops::Range;

use super::attempt::is_taken_by_failure;
use super::cfg::{Dominators, Graph, Target};
use super::function::{Endings, Function};
use super::origins::{Frame, Origin, Origins};
use super::values::Location;
use super::wait::{Condition, EndKind, EndSite, Site};
use crate::isa::{Flow, Insn, Probing};
use crate::symbols::Image;
use crate::worker::side_by_side;

/// A wait inlined into a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inlined {
    /// Where the wait begins.
    pub begin: Site,
    /// The ends of the wait. [`Site::args`] of these and of `begin` are the arguments of the sleeping call, not of the
    /// function.
    pub ends: Vec<EndSite>,
    /// The one of the requested offsets at which the waiting part reads.
    pub looked_at: Option<i64>,
    /// Where the attempts after the first are made.
    pub region: Region,
}

/// Where a waiting part makes the attempts that follow the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Region {
    /// Within itself.
    Closed,
    /// At the first attempt, to which it goes back once in every round of spinning.
    Retries,
}

/// The most blocks without a choice between an attempt and the waiting part.
const MAX_CONNECTORS: usize = 4;

/// How far above the attempts their operand is followed, in dominators, and how many blocks are examined for that.
const MAX_ABOVE: usize = 8;
const MAX_BLOCKS: usize = 200;

/// Calls that sleep for a mutex.
#[derive(Clone, Debug, Default)]
pub struct InlinedCalls {
    /// The function that is called.
    pub callee: u64,
    /// The number of the argument that is the mutex.
    pub latch: usize,
    /// The number of the argument that says, if known at compile time, that the call is not for a mutex.
    pub other: Option<usize>,
    /// Functions that are one round of spinning.
    pub spin: HashSet<u64>,
    /// Offsets in the mutex, exactly one of which the waiting part must read. If empty, it need not read any.
    pub looked_at: Vec<i64>,
}

/// Finds the waits inlined into the functions at `ranges`: one result per call, with the address of the call, or the
/// reason if the wait cannot be used.
pub fn inlined_waits(
    image: &Image,
    ranges: &[Range<u64>],
    calls: &InlinedCalls,
) -> Vec<(u64, Result<Inlined, &'static str>)> {
    in_shares(ranges, |ranges| {
        let mut endings = Endings::of_many();
        let function = |range: &Range<u64>| Function::with_endings(image, range.clone(), &mut endings);
        ranges.iter().filter_map(function).flat_map(|f| inlined_in(&f, calls)).collect()
    })
}

/// Splits the ranges among CPUs and returns the results of `work` in order.
///
/// # Panics
/// Panics if `work` does; otherwise a share's missing results would go unnoticed.
fn in_shares<T: Send>(ranges: &[Range<u64>], work: impl Fn(&[Range<u64>]) -> Vec<T> + Sync) -> Vec<T> {
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let share = ranges.len().div_ceil(workers).max(1);
    side_by_side(ranges.chunks(share), work).into_iter().flatten().collect()
}

/// Does the same for one function.
pub(super) fn inlined_in(f: &Function, calls: &InlinedCalls) -> Vec<(u64, Result<Inlined, &'static str>)> {
    let is_call = |i: &usize| f.insns[*i].flow == Flow::Call(Some(calls.callee));
    let found: Vec<usize> = (0..f.insns.len()).filter(is_call).collect();
    if found.is_empty() {
        return Vec::new();
    }
    let Some(search) = Search::new(f, calls) else { return Vec::new() };
    let mutexes = found.into_iter().filter(|&i| !search.is_for_another(i));
    mutexes.map(|i| (f.insns[i].addr, search.inlined(i))).collect()
}

/// Returns the loops of a lock function in which threads wait for its first argument, if there are several: such a lock
/// may be held only to wait for its readers, in a copy of the waiting code for each path there. Each loop has a call to
/// a function of `sleep` and one to a function of `spin`.
///
/// `None` if there is no loop, or if one of them has no sites.
pub fn wait_loops(f: &Function, sleep: &HashSet<u64>, spin: &HashSet<u64>) -> Option<Vec<Inlined>> {
    if !f.is_complete() {
        return None;
    }
    let calls = InlinedCalls { spin: spin.clone(), ..InlinedCalls::default() };
    let search = Search::new(f, &calls)?;
    let sleeps = |i: &usize| matches!(f.insns[*i].flow, Flow::Call(Some(to)) if sleep.contains(&to));
    let mut starts: Vec<usize> = Vec::new();
    let mut found = Vec::new();
    for call in (0..f.insns.len()).filter(sleeps).filter(|&i| search.dominators.reaches(f.block_of[i])) {
        let part = search.wait_loop(f.block_of[call])?;
        if !starts.contains(&part.start) {
            starts.push(part.start);
            let sites = Sites { search: &search, part: &part, wanted: Wanted::Own };
            let (begin, ends) = (sites.begin()?, sites.ways_back()?);
            found.push(Inlined { begin, ends, looked_at: None, region: part.region });
        }
    }
    (!found.is_empty()).then_some(found)
}

/// A function with what the search needs to know about it.
struct Search<'a> {
    f: &'a Function,
    calls: &'a InlinedCalls,
    /// Its graph, with an added node from which every block is reached, including those that only jump tables and
    /// unwinding lead to.
    graph: Graph,
    dominators: Dominators,
    /// For each node, whether it is more than a path to a trap.
    live: Vec<bool>,
    /// Blocks with a call that is a round of spinning.
    spins: Vec<bool>,
    /// For each block, its last atomic instruction.
    attempts: Vec<Option<usize>>,
    frame: Frame,
}

/// The part of a function that waits for one mutex.
struct Part {
    /// The block at which it is entered.
    start: usize,
    /// The blocks with the attempts that failed before.
    attempts: Vec<usize>,
    /// Blocks that lead from the attempts to the start.
    connectors: Vec<usize>,
    /// Its blocks.
    inside: Vec<bool>,
    region: Region,
    /// The block of the sleeping call.
    sleeps: usize,
}

impl<'a> Search<'a> {
    fn new(f: &'a Function, calls: &'a InlinedCalls) -> Option<Search<'a>> {
        let blocks = f.blocks.len();
        let (returned, root) = (blocks, blocks + 1);
        let mut graph = Graph::new(blocks + 2);
        for (from, next) in f.graph.next.iter().enumerate() {
            next.iter().for_each(|&to| graph.add_new(from, to));
        }
        let is_padding = |b: usize| f.insns[f.blocks[b].insns.clone()].iter().all(Insn::is_padding);
        let is_entered = |&b: &usize| b == f.entry_block || f.graph.back[b].is_empty() && !is_padding(b);
        (0..blocks).filter(is_entered).for_each(|block| graph.add_new(root, block));
        // Cycles that nothing leads to.
        let mut reached = graph.reached(&[root], |_| false);
        for block in 0..blocks {
            if !reached[block] && !is_padding(block) {
                graph.add_new(root, block);
                reached[block] = true;
                graph.reach(&[block], |_| false, &mut reached);
            }
        }
        // Padding is removed: nothing leads to it.
        let graph = graph.without(|n| !reached[n] && n != root);
        let dominators = Dominators::new(&graph, root)?;
        let cyclic = graph.cyclic();
        let goals: Vec<usize> = (0..=blocks).filter(|&n| n == returned || cyclic[n]).collect();
        let mut live = graph.reversed().reached(&goals, |_| false);
        goals.iter().for_each(|&n| live[n] = true);
        let is_spin = |i: usize| matches!(f.insns[i].flow, Flow::Call(Some(to)) if calls.spin.contains(&to));
        let spins = (0..blocks).map(|b| f.blocks[b].insns.clone().any(is_spin)).collect();
        let attempts = (0..blocks).map(|b| f.blocks[b].insns.clone().rev().find(|&i| f.insns[i].is_atomic())).collect();
        let frame = Frame::of(f.insns[0].arch, &f.insns[f.blocks[f.entry_block].insns.start..]);
        Some(Search { f, calls, graph, dominators, live, spins, attempts, frame })
    }

    /// Returns whether the call is for something other than a mutex, judging by what its block passes.
    fn is_for_another(&self, call: usize) -> bool {
        let passed = || {
            let block = self.f.block_of[call];
            let only: Vec<bool> = (0..self.f.blocks.len()).map(|b| b == block).collect();
            let origins = Origins::new(&self.f.insns, &self.f.blocks, &self.graph, self.frame, &only)?;
            origins.before(block, call)?.argument(self.f.insns[0].arch, self.calls.other?)?.as_constant()
        };
        passed().is_some()
    }

    fn inlined(&self, call: usize) -> Result<Inlined, &'static str> {
        let part = self.part(self.f.block_of[call])?;
        let (origins, values, looked_at) = self.proof(&part, call)?;
        let wanted = Wanted::Passed { origins: &origins, values };
        let sites = Sites { search: self, part: &part, wanted };
        let begin = sites.begin().ok_or("no instruction at its beginning can be probed with the latch known")?;
        let ends = sites.ends()?;
        Ok(Inlined { begin, ends, looked_at, region: part.region })
    }

    /// Returns the arguments of the sleeping call, if all attempts before it were on its latch, and the offset in the
    /// latch that the part reads. Of the code before the attempts, only as much is analyzed as the proof needs.
    #[allow(clippy::type_complexity)]
    fn proof(&self, part: &Part, call: usize) -> Result<(Origins<'a>, [Option<Origin>; 6], Option<i64>), &'static str> {
        let arch = self.f.insns[0].arch;
        let mut with: Vec<bool> = (0..self.f.blocks.len())
            .map(|b| part.inside[b] || part.attempts.contains(&b) || part.connectors.contains(&b))
            .collect();
        let mut above = self.common_dominators(&part.attempts).into_iter().take(MAX_ABOVE);
        let mut why = "the attempt before it is on something else";
        loop {
            let origins = Origins::new(&self.f.insns, &self.f.blocks, &self.graph, self.frame, &with).ok_or(why)?;
            let at_call = origins.before(part.sleeps, call).ok_or(why)?;
            let values: [Option<Origin>; 6] = std::array::from_fn(|n| at_call.argument(arch, n));
            let is_proved = |mutex: &Origin| part.attempts.iter().all(|&b| self.attempts_for(b, *mutex, &origins));
            if let Some(mutex) = values[self.calls.latch].filter(is_proved) {
                if self.calls.looked_at.is_empty() {
                    return Ok((origins, values, None));
                }
                match self.looked_at(part, mutex, &origins)[..] {
                    [one] => return Ok((origins, values, Some(one))),
                    _ => why = "the kind of mutex is not known",
                }
            }
            self.widen(above.next().ok_or(why)?, part, &mut with).ok_or(why)?;
        }
    }

    /// Returns the blocks that dominate all of the given ones, lowest first.
    fn common_dominators(&self, of: &[usize]) -> Vec<usize> {
        let root = self.f.blocks.len() + 1;
        let first = of.first().into_iter().flat_map(|&b| self.dominators.chain(b));
        first.filter(|&b| b != root && of.iter().all(|&o| self.dominators.dominates(b, o))).collect()
    }

    /// Adds the blocks between block `above` and the attempts; `None` if there are too many.
    fn widen(&self, above: usize, part: &Part, with: &mut [bool]) -> Option<()> {
        let shut =
            |n: usize| n >= self.f.blocks.len() || !self.dominators.reaches(n) || !self.dominators.dominates(above, n);
        let between = self.graph.reversed().reached(&part.attempts, shut);
        with.iter_mut().zip(between).for_each(|(with, is_between)| *with |= is_between);
        with[above] = true;
        (with.iter().filter(|&&w| w).count() <= MAX_BLOCKS).then_some(())
    }

    /// Returns the part of the function that leads to the sleep in block `sleeps`.
    fn part(&self, sleeps: usize) -> Result<Part, &'static str> {
        let root = self.f.blocks.len() + 1;
        let mut chain = self.dominators.chain(sleeps).filter(|&b| b != root);
        let (start, attempts, connectors) = chain
            .find_map(|b| self.entered_by_failure(b).map(|(attempts, connectors)| (b, attempts, connectors)))
            .ok_or("no attempt before it was recognized")?;
        let (start, attempts, connectors) = chain
            .take_while(|&b| self.only_next(b).is_some())
            .filter_map(|b| self.entered_by_failure(b).map(|(a, c)| (b, a, c)))
            .last()
            .unwrap_or((start, attempts, connectors));
        let dominated: Vec<bool> = (0..self.f.blocks.len())
            .map(|b| self.dominators.reaches(b) && self.dominators.dominates(start, b))
            .collect();
        let is_dominated = |n: usize| n < dominated.len() && dominated[n];
        let leads_back = |to: usize| self.leads_to_attempt(to, &attempts);
        let mut leaves = (0..dominated.len())
            .filter(|&b| dominated[b])
            .flat_map(|b| self.graph.next[b].iter().copied())
            .filter(|&to| !is_dominated(to) && self.is_live(to))
            .peekable();
        let region = if leaves.peek().is_some() && leaves.all(leads_back) { Region::Retries } else { Region::Closed };
        let inside = match region {
            Region::Retries => dominated,
            Region::Closed => {
                let mut inside = self.graph.reversed().reached(&[sleeps], |n| !is_dominated(n));
                inside.truncate(self.f.blocks.len());
                if !inside[sleeps] {
                    return Err("it is not a loop");
                }
                inside
            }
        };
        if !(0..inside.len()).any(|b| inside[b] && self.spins[b]) {
            return Err("it does not spin");
        }
        Ok(Part { start, attempts, connectors, inside, region, sleeps })
    }

    /// Returns the innermost loop around the sleep in a block that also spins, without what precedes both.
    fn wait_loop(&self, sleeps: usize) -> Option<Part> {
        let mut loops: Vec<Vec<bool>> = Vec::new();
        for head in self.dominators.chain(sleeps) {
            let ends: Vec<usize> = self.before(head).filter(|&b| self.dominators.dominates(head, b)).collect();
            let mut inside = self.graph.reversed().reached(&ends, |n| n == head);
            ends.iter().for_each(|&end| inside[end] = true);
            inside[head] = true;
            inside.truncate(self.f.blocks.len());
            let spins = (0..inside.len()).any(|b| inside[b] && self.spins[b]);
            if !ends.is_empty() && inside[sleeps] && spins {
                loops.push(inside);
            }
        }
        let mut inside = loops.into_iter().min_by_key(|inside| inside.iter().filter(|&&b| b).count())?;
        let slow: Vec<usize> = (0..inside.len()).filter(|&b| inside[b] && self.spins[b]).chain([sleeps]).collect();
        let start = *self.common_dominators(&slow).first()?;
        for (block, is_inside) in inside.iter_mut().enumerate() {
            *is_inside &= self.dominators.dominates(start, block);
        }
        let (attempts, connectors) = (Vec::new(), Vec::new());
        Some(Part { start, attempts, connectors, inside, region: Region::Retries, sleeps })
    }

    /// Returns the attempts' blocks and the blocks in between, if `block` is entered from outside of what it dominates
    /// only after a failed attempt.
    fn entered_by_failure(&self, block: usize) -> Option<(Vec<usize>, Vec<usize>)> {
        let (mut attempts, mut connectors) = (Vec::new(), Vec::new());
        let outside = |p: &usize| !self.dominators.dominates(block, *p);
        let mut work: Vec<(usize, usize)> = self.before(block).filter(outside).map(|from| (from, block)).collect();
        while let Some((from, to)) = work.pop() {
            if from >= self.f.blocks.len() {
                return None;
            }
            if self.is_failure(from, to) {
                attempts.push(from);
            } else if self.attempts[from].is_none() && self.only_next(from).is_some() && !self.has_call(from) {
                if connectors.contains(&from) || connectors.len() == MAX_CONNECTORS {
                    return None;
                }
                connectors.push(from);
                work.extend(self.before(from).map(|before| (before, from)));
            } else {
                return None;
            }
        }
        (!attempts.is_empty()).then_some((attempts, connectors))
    }

    /// Returns whether block `from` ends with a choice that leads to `to` exactly if its attempt has failed.
    fn is_failure(&self, from: usize, to: usize) -> bool {
        let block = &self.f.blocks[from];
        let is_taken = || {
            let attempt = self.attempts[from]? - block.insns.start;
            is_taken_by_failure(&self.f.insns[block.insns.clone()], attempt)
        };
        let (failed, had) = match is_taken() {
            Some(true) => (block.taken, block.fallthrough),
            Some(false) => (block.fallthrough, block.taken),
            None => return false,
        };
        failed == Some(Target::Block(to)) && had != failed && self.next(from).len() == 2
    }

    /// Returns the nodes from which a block is entered.
    fn before(&self, block: usize) -> impl Iterator<Item = usize> + '_ {
        self.graph.back[block].iter().copied().filter(|&from| self.dominators.reaches(from))
    }

    /// Returns a block's successors, without those that end in a trap.
    fn next(&self, block: usize) -> Vec<usize> {
        self.graph.next[block].iter().copied().filter(|&n| self.is_live(n)).collect()
    }

    fn only_next(&self, block: usize) -> Option<usize> {
        match self.next(block)[..] {
            [next] => Some(next),
            _ => None,
        }
    }

    fn is_live(&self, node: usize) -> bool {
        self.live[node]
    }

    fn has_call(&self, block: usize) -> bool {
        self.f.blocks[block].insns.clone().any(|i| matches!(self.f.insns[i].flow, Flow::Call(_)))
    }

    fn leads_to_attempt(&self, mut block: usize, attempts: &[usize]) -> bool {
        for _ in 0..=MAX_CONNECTORS {
            if attempts.contains(&block) {
                return true;
            }
            if block >= self.f.blocks.len() || self.has_call(block) {
                return false;
            }
            match self.only_next(block) {
                Some(next) => block = next,
                None => return false,
            }
        }
        false
    }

    /// Returns whether the last atomic instruction of a block operates on the mutex.
    fn attempts_for(&self, block: usize, mutex: Origin, origins: &Origins<'_>) -> bool {
        let operand = || {
            let at = self.attempts[block]?;
            origins.before(block, at)?.address(&self.f.insns[at])
        };
        operand() == Some(mutex)
    }

    /// Returns which of the requested offsets in the mutex the part reads.
    fn looked_at(&self, part: &Part, mutex: Origin, origins: &Origins<'_>) -> Vec<i64> {
        let mut found = Vec::new();
        for block in (0..part.inside.len()).filter(|&b| part.inside[b]) {
            origins.each(block, |state, insn| {
                if insn.reads_four_bytes() {
                    found.extend(state.address(insn).and_then(|a| a.distance_from(mutex)));
                }
            });
        }
        found.retain(|offset| self.calls.looked_at.contains(offset));
        found.sort_unstable();
        found.dedup();
        found
    }
}

/// The values that a site must know.
enum Wanted<'a> {
    /// The arguments of the sleeping call.
    Passed { origins: &'a Origins<'a>, values: [Option<Origin>; 6] },
    /// The function's own arguments, of which the first is the latch.
    Own,
}

/// The search for sites in a waiting part.
struct Sites<'a> {
    search: &'a Search<'a>,
    part: &'a Part,
    wanted: Wanted<'a>,
}

impl Sites<'_> {
    fn f(&self) -> &Function {
        self.search.f
    }

    fn is_inside(&self, node: usize) -> bool {
        node < self.part.inside.len() && self.part.inside[node]
    }

    /// Returns the cheapest instruction that every wait passes when it begins.
    fn begin(&self) -> Option<Site> {
        let line = self.line();
        let once_in_a_round = |b: &&usize| self.part.region == Region::Retries || !self.is_per_round(**b);
        let emulated = |calls: bool| {
            line.iter().filter(once_in_a_round).find_map(|&b| {
                self.before_slow(b).find(|&i| self.is_emulated(i) && self.is_call(i) == calls && self.knows_latch(i))
            })
        };
        let jump = || {
            let [from] = self.part.connectors[..] else { return None };
            let last = self.f().blocks[from].insns.end - 1;
            (self.is_emulated(last) && self.knows_latch(last)).then_some(last)
        };
        let stepped = || {
            let once = |b: &&usize| !self.repeats(**b);
            let probeable = |i: &usize| self.f().insns[*i].probing != Probing::Refused && self.knows_latch(*i);
            line.iter().filter(once).find_map(|&b| self.before_slow(b).find(probeable))
        };
        let at = emulated(false).or_else(jump).or_else(|| emulated(true)).or_else(stepped)?;
        self.site(at)
    }

    /// Returns the start and the blocks that always follow it, with no choice in between.
    fn line(&self) -> Vec<usize> {
        let mut line = vec![self.part.start];
        let mut at = self.part.start;
        while let Some(next) = self.search.only_next(at) {
            if !self.is_inside(next) || line.contains(&next) || self.search.spins[at] || at == self.part.sleeps {
                break;
            }
            line.push(next);
            at = next;
        }
        line
    }

    /// Returns the instructions of a block up to its first call.
    fn before_slow(&self, block: usize) -> Range<usize> {
        let insns = self.f().blocks[block].insns.clone();
        let is_call = |&i: &usize| self.is_call(i);
        insns.start..insns.clone().find(is_call).map_or(insns.end, |i| i + 1)
    }

    fn ends(&self) -> Result<Vec<EndSite>, &'static str> {
        let ends = match self.part.region {
            Region::Closed => self.own_ends(),
            Region::Retries => self.ways_back(),
        };
        match ends {
            Some(ends) if !ends.is_empty() => Ok(ends),
            _ => Err("not all of its ends can be probed"),
        }
    }

    /// Returns the edges by which a thread leaves the part, except those to a trap.
    fn ways_out(&self) -> Vec<(usize, usize)> {
        let inside = (0..self.part.inside.len()).filter(|&b| self.part.inside[b]);
        inside
            .flat_map(|from| self.search.next(from).into_iter().map(move |to| (from, to)))
            .filter(|&(_, to)| !self.is_inside(to))
            .collect()
    }

    fn own_ends(&self) -> Option<Vec<EndSite>> {
        let out = self.ways_out();
        if let Some(at) = self.common_end(&out) {
            return Some(vec![EndSite { site: self.site(at)?, kind: EndKind::Final, when: None }]);
        }
        let lines: Vec<Vec<usize>> = out.iter().map(|&(_, to)| self.own_line(to)).collect();
        let first = |line: &Vec<usize>| line.iter().find_map(|&b| self.emulated(b));
        let taken: Vec<usize> = lines.iter().filter_map(first).collect();
        let mut ends: Vec<EndSite> = Vec::new();
        for (&(from, to), line) in out.iter().zip(&lines) {
            // Use the last of the taken sites on this path, because no wait may pass two ends.
            let on_line = |at: &&usize| line.contains(&self.f().block_of[**at]);
            let last =
                taken.iter().filter(on_line).max_by_key(|&&at| line.iter().position(|&b| b == self.f().block_of[at]));
            let end = match last.copied() {
                Some(at) => EndSite { site: self.site(at)?, kind: EndKind::Final, when: None },
                None => self.branch_out(from, to, EndKind::Final)?,
            };
            if !ends.contains(&end) {
                ends.push(end);
            }
        }
        Some(ends)
    }

    /// Returns an instruction that runs on every path out of the part, and on no other.
    fn common_end(&self, out: &[(usize, usize)]) -> Option<usize> {
        let ((_, first), rest) = out.split_first()?;
        let mut line = self.own_line(*first);
        for (_, other) in rest {
            let theirs = self.own_line(*other);
            line.retain(|b| theirs.contains(b));
        }
        line.into_iter().find_map(|b| self.emulated(b))
    }

    /// Returns the block `to` and those that always follow it, as long as only threads that left the part run them.
    fn own_line(&self, to: usize) -> Vec<usize> {
        let mut line = Vec::new();
        let mut at = to;
        while at < self.f().blocks.len() && self.dominated(at) && !self.is_inside(at) && !line.contains(&at) {
            line.push(at);
            match self.search.only_next(at) {
                Some(next) => at = next,
                None => break,
            }
        }
        line
    }

    fn dominated(&self, block: usize) -> bool {
        self.search.dominators.dominates(self.part.start, block)
    }

    /// Returns the first emulated instruction of a block that does not follow a call.
    fn emulated(&self, block: usize) -> Option<usize> {
        self.before_slow(block).find(|&i| self.is_emulated(i))
    }

    /// Returns the branch at the end of block `from` as an end, if it goes to `to`.
    fn branch_out(&self, from: usize, to: usize, kind: EndKind) -> Option<EndSite> {
        let block = &self.f().blocks[from];
        let at = block.insns.end - 1;
        let (test, takes) = self.f().insns[at].branch_test()?;
        let is_taken =
            block.taken == Some(Target::Block(to)) || to == self.f().blocks.len() && block.taken == Some(Target::Out);
        // A probable end may run in every round.
        let site = self.site(at).filter(|s| s.emulated && (kind == EndKind::Maybe || !s.per_round))?;
        Some(EndSite { site, kind, when: Some(Condition { test, holds: takes == is_taken }) })
    }

    /// Returns the paths back to the first attempt, or out.
    fn ways_back(&self) -> Option<Vec<EndSite>> {
        let mut ends: Vec<EndSite> = Vec::new();
        for (from, to) in self.ways_out() {
            let end = self.way_back(from, to)?;
            if !ends.contains(&end) {
                ends.push(end);
            }
        }
        Some(ends)
    }

    /// Returns a site in block `from`, if that leads only there; else the branch at its end, or a site in block `to`,
    /// if nothing else leads there.
    fn way_back(&self, from: usize, to: usize) -> Option<EndSite> {
        let emulated = |mut insns: Range<usize>| insns.rfind(|&i| self.is_emulated(i));
        let only = self.search.next(from).iter().all(|&next| !self.is_inside(next));
        if let Some(at) = emulated(self.after_slow(from)).filter(|_| only) {
            return Some(EndSite { site: self.site(at)?, kind: EndKind::Maybe, when: None });
        }
        self.branch_out(from, to, EndKind::Maybe).or_else(|| {
            let is_own = to < self.f().blocks.len() && self.search.before(to).all(|b| b == from);
            let at = self.emulated(to).filter(|_| is_own)?;
            Some(EndSite { site: self.site(at)?, kind: EndKind::Maybe, when: None })
        })
    }

    fn after_slow(&self, block: usize) -> Range<usize> {
        let insns = self.f().blocks[block].insns.clone();
        let last = insns.clone().rev().find(|&i| self.is_call(i));
        last.map_or(insns.start, |i| i + 1)..insns.end
    }

    fn is_emulated(&self, i: usize) -> bool {
        self.f().insns[i].probing == Probing::Emulated
    }

    fn is_call(&self, i: usize) -> bool {
        matches!(self.f().insns[i].flow, Flow::Call(_))
    }

    /// Returns where the values are just before an instruction runs.
    fn args(&self, i: usize) -> [Option<Location>; 6] {
        let state = |origins: &Origins<'_>| origins.before(self.f().block_of[i], i);
        match &self.wanted {
            Wanted::Own => self.f().arguments_at(self.f().insns[i].addr),
            Wanted::Passed { origins, values } => {
                state(origins).map_or([None; 6], |state| values.map(|value| state.location(value?)))
            }
        }
    }

    fn knows_latch(&self, i: usize) -> bool {
        self.args(i)[self.search.calls.latch].is_some()
    }

    /// Returns whether the block can run again in the same wait.
    fn repeats(&self, block: usize) -> bool {
        match self.part.region {
            Region::Retries => true,
            Region::Closed => {
                self.is_inside(block) && self.search.graph.reached(&[block], |n| !self.is_inside(n))[block]
            }
        }
    }

    /// Returns whether every spin round passes through the block as long as the thread does not sleep.
    fn is_per_round(&self, block: usize) -> bool {
        if self.part.region == Region::Retries {
            return true;
        }
        let graph = &self.search.graph;
        let shut = |n: usize| !self.is_inside(n) || n == self.part.sleeps;
        let mut spins = (0..self.part.inside.len()).filter(|&b| self.is_inside(b) && self.search.spins[b]);
        spins
            .any(|s| graph.reached(&[s], shut)[s] && (s == block || !graph.reached(&[s], |n| shut(n) || n == block)[s]))
    }

    fn site(&self, i: usize) -> Option<Site> {
        let insn = &self.f().insns[i];
        let block = self.f().block_of[i];
        Some(Site {
            addr: insn.addr,
            emulated: self.is_emulated(i),
            is_call: self.is_call(i),
            text: insn.text(),
            repeats: self.repeats(block),
            per_round: self.is_inside(block) && self.is_per_round(block),
            args: self.args(i),
            return_address: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_keep_their_order() {
        let ranges: Vec<Range<u64>> = (0..100).map(|n| n..n + 1).collect();
        assert_eq!(in_shares(&ranges, <[_]>::to_vec), ranges);
        assert!(in_shares(&[], <[_]>::to_vec).is_empty());
    }

    #[test]
    #[should_panic(expected = "a bad share")]
    fn a_share_that_panics_is_not_left_out() {
        in_shares::<()>(
            &[0..1, 1..2],
            |ranges| if ranges.contains(&(1..2)) { panic!("a bad share") } else { Vec::new() },
        );
    }
}
