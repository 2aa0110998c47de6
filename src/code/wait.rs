//! Where a wait inside a function begins and ends.
//!
//! The probes must cost nothing while no latch is contended, so they may sit only where the code goes when a
//! latch was found taken. That part is found from the slow calls, which nobody makes otherwise: it is what the highest
//! block governs that dominates all of them and does not lie on a shortest way through the function. Among the
//! instructions that mark the same moment, one that the kernel emulates is taken.

use std::collections::HashSet;
use std::ops::Range;

use super::cfg::{Block, Graph, Target};
use super::function::Function;
use super::insn::{branch_test, touches_memory, Flow, Insn, Probing, Test};
use super::values::Place;
use crate::symbols::Image;

/// Spin loops beyond this number in one function are not looked at; there are two in the largest known.
const MAX_SPINS: usize = 32;

/// The functions that nobody calls unless they have to wait. Addresses of functions, or of procedure linkage
/// stubs ([`super::imported_calls`]).
#[derive(Clone, Debug, Default)]
pub struct Slow {
    /// One round of a spin loop (`ut_delay`).
    pub spin: HashSet<u64>,
    /// Everything that comes after spinning, sleeps above all (`sync_array_wait_event`).
    pub sleep: HashSet<u64>,
    /// `syscall`: slow unless its arguments say that it is a futex call that only wakes others.
    pub syscall: HashSet<u64>,
}

impl Slow {
    fn is_empty(&self) -> bool {
        self.spin.is_empty() && self.sleep.is_empty() && self.syscall.is_empty()
    }
}

/// Where a wait inside a function begins and ends, as probe sites.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitSites {
    /// First instruction of the block in which the wait begins: what the sites below stand for.
    pub start: u64,
    /// The cheapest single site at which the wait begins.
    pub begin: Site,
    /// Sites on all the ways into the block at `start`, of which every wait passes exactly one, exactly once, where that is
    /// worth knowing: where `begin` repeats or is stepped and these are not the same. Otherwise empty.
    pub entries: Vec<Site>,
    /// Empty when the end cannot be seen from inside the function; a return probe can.
    ///
    /// Where all are [`EndKind::Final`], every wait passes exactly one of them (with its condition met).
    pub ends: Vec<EndSite>,
}

/// An instruction to put a probe on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// Link-time address.
    pub addr: u64,
    /// Whether the kernel emulates the instruction: [`Probing::Emulated`] or, if not, [`Probing::Stepped`].
    pub emulated: bool,
    /// The instruction, for display.
    pub text: String,
    /// Whether it can run again before the function returns: more than once in a wait.
    pub repeats: bool,
    /// Whether it runs once in every round of a spin loop, that is very often.
    pub per_round: bool,
    /// Where the function's first six integer arguments are when the probe fires.
    pub args: [Option<Place>; 6],
}

/// An end of a wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndSite {
    pub site: Site,
    pub kind: EndKind,
    /// The end is passed only when this is met; `None`: whenever the site is.
    pub when: Option<Condition>,
}

/// What passing an end site says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndKind {
    /// The wait is over.
    Final,
    /// The wait is probably over, but it can go on by way of the function's hot part (a retry), without
    /// leaving the function. The last one before the thread's next wait counts.
    Maybe,
}

/// A condition on the registers at a conditional branch: `test` comes out as `holds`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Condition {
    pub test: Test,
    pub holds: bool,
}

/// Finds the contended part of the function at `function` ([`Image::function_at`]): the part that governs its calls
/// to `slow` functions.
///
/// `None` when there is no such call, when no block governs them all without also lying on the way of those who need not wait,
/// or when the function cannot be analysed.
pub fn contended(image: &Image, function: Range<u64>, slow: &Slow) -> Option<WaitSites> {
    Function::new(image, function)?.contended(slow)
}

/// For a function that is called only by those who have to wait: begins at its entry, ends where nothing but
/// the return is left. `slow` helps to find the end and may be empty.
///
/// `None` when the function cannot be analysed.
pub fn whole_function(image: &Image, function: Range<u64>, slow: &Slow) -> Option<WaitSites> {
    Function::new(image, function)?.whole_function(slow)
}

impl Function {
    /// [`contended`], for a function at hand.
    pub fn contended(&self, slow: &Slow) -> Option<WaitSites> {
        if !self.is_complete() {
            return None;
        }
        let wait = Wait::new(self, slow);
        let start = wait.contended_start()?;
        let begin = wait.begin(start)?;
        let entries = if begin.repeats || !begin.emulated { wait.entries(start, &begin) } else { Vec::new() };
        Some(WaitSites { start: self.first(start).addr, begin, entries, ends: wait.contended_ends(start) })
    }

    /// [`whole_function`], for a function at hand.
    pub fn whole_function(&self, slow: &Slow) -> Option<WaitSites> {
        if !self.is_complete() {
            return None;
        }
        let wait = Wait::new(self, slow);
        let begin = wait.entry()?;
        let ends = wait.whole_function_ends();
        Some(WaitSites { start: self.entry, begin, entries: Vec::new(), ends })
    }

    fn first(&self, block: usize) -> &Insn {
        &self.insns[self.blocks[block].insns.start]
    }
}

/// A function together with what is slow in it.
struct Wait<'a> {
    f: &'a Function,
    /// Per block: the index of its last slow instruction.
    last_slow: Vec<Option<usize>>,
    /// Per block: the index of its first slow instruction.
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
        let cyclic = f.graph.cyclic();
        // Told nothing, and with no loop to wait in, it may be any call that waits.
        let any_call = slow.is_empty() && !(0..blocks).any(|b| cyclic[b] && f.is_live(b));
        let mut wait = Wait {
            f,
            last_slow: vec![None; blocks],
            first_slow: vec![None; blocks],
            spins: vec![false; blocks],
            sleeps: vec![false; blocks],
            cyclic,
        };
        for (block, content) in f.blocks.iter().enumerate() {
            for i in content.insns.clone() {
                let insn = &f.insns[i];
                let (spins, sleeps) = classify(f, insn, slow);
                let sleeps = sleeps || any_call && matches!(insn.flow, Flow::Call(_));
                wait.spins[block] |= spins || insn.is_spin_hint();
                wait.sleeps[block] |= sleeps;
                if spins || sleeps {
                    wait.first_slow[block].get_or_insert(i);
                    wait.last_slow[block] = Some(i);
                }
            }
            wait.spins[block] |= is_delay(f, block, content);
        }
        wait
    }

    fn live(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.f.blocks.len()).filter(|&b| self.f.is_live(b))
    }

    fn returned(&self) -> usize {
        self.f.blocks.len()
    }

    /// The highest block that dominates all slow calls and is not on a shortest way from entry to return.
    fn contended_start(&self) -> Option<usize> {
        let f = self.f;
        let slow: Vec<usize> =
            (0..f.blocks.len()).filter(|&b| self.last_slow[b].is_some() && f.dominators.reaches(b)).collect();
        let from_entry = f.graph.distances(&[f.entry_block]);
        let to_return = f.graph.reversed().distances(&[self.returned()]);
        let shortest = from_entry[self.returned()]?;
        let is_fast = |b: usize| from_entry[b].zip(to_return[b]).is_some_and(|(a, z)| a + z == shortest);
        let (first, rest) = slow.split_first()?;
        let mut above: Vec<usize> = f.dominators.chain(*first).collect();
        for &other in rest {
            let theirs: HashSet<usize> = f.dominators.chain(other).collect();
            above.retain(|b| theirs.contains(b));
        }
        above.into_iter().rev().find(|&b| !is_fast(b))
    }

    /// The cheapest site for the beginning in block `start`, or in those that it always goes straight on to.
    fn begin(&self, start: usize) -> Option<Site> {
        let line = self.straight_line(start);
        let emulated = line.iter().find_map(|&b| self.emulated_with_latch(self.before_slow(b)));
        let found = emulated.or_else(|| {
            // A jump whose only purpose is to come here.
            let [from] = self.f.graph.back[start][..] else { return None };
            let jump = self.f.blocks[from].insns.end - 1;
            (!self.is_hot(from, start)).then(|| self.emulated_with_latch(jump..jump + 1)).flatten()
        });
        self.site(found.or_else(|| self.first_probeable(self.before_slow(start)))?)
    }

    /// `start` and the blocks that every one who enters it passes next, without a choice in between. None of them is
    /// entered from outside the contended part, but they may be entered again in the same wait.
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

    /// Whether block `from` is also passed by those who do not go on to `start`.
    fn is_hot(&self, from: usize, start: usize) -> bool {
        self.f.graph.next[from] != [start]
    }

    /// One site on every way into `start` from outside the contended part; empty unless each of them exists, has no other
    /// purpose, and is not passed again.
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

    /// The first emulated instruction of the entry block that still finds the latch, or the first one that
    /// does any work.
    fn entry(&self) -> Option<Site> {
        let insns = self.before_slow(self.f.entry_block);
        let working = insns.clone().find(|&i| !self.f.insns[i].is_landing_pad() && self.is_probeable(i));
        self.site(self.emulated_with_latch(insns).or(working)?)
    }

    /// Ends of a wait that begins in block `start` of a function that has a hot part.
    fn contended_ends(&self, start: usize) -> Vec<EndSite> {
        match self.single_end(start) {
            Some(end) => vec![end],
            None => self.last_ways_out(start).unwrap_or_default(),
        }
    }

    /// A site that every wait from `start` passes once, when nothing slow is left: in the last block that all
    /// of them pass.
    fn single_end(&self, start: usize) -> Option<EndSite> {
        let f = self.f;
        let over = self.settled(start);
        let mut chain: Vec<usize> = f.postdominators.chain(start).filter(|&b| b < f.blocks.len() && over[b]).collect();
        chain.retain(|&b| f.dominators.dominates(start, b) && (b != start || self.last_slow[b].is_some()));
        let latch = chain.iter().rev().find_map(|&b| self.emulated_with_latch(self.after_slow(b)));
        let emulated = || chain.iter().rev().find_map(|&b| self.after_slow(b).find(|&i| self.is_emulated(i)));
        let at = latch.or_else(emulated)?;
        Some(EndSite { site: self.site(at)?, kind: EndKind::Final, when: None })
    }

    /// Per block: whether a wait that began in `start` is over there, once the block's own slow calls are: no way on
    /// leads to a slow call or round a loop, unless by a new beginning.
    fn settled(&self, start: usize) -> Vec<bool> {
        let f = self.f;
        let begins_anew = |to: usize| to == start && start != f.entry_block;
        let mut on = Graph::new(f.graph.next.len());
        for (from, next) in f.graph.next.iter().enumerate() {
            next.iter().filter(|&&to| !begins_anew(to)).for_each(|&to| on.add(from, to));
        }
        let cyclic = on.cyclic();
        let busy: Vec<usize> = self.live().filter(|&b| cyclic[b] || self.last_slow[b].is_some()).collect();
        let goes_on = on.reversed().reached(&busy, |_| false);
        (0..f.blocks.len()).map(|b| f.is_live(b) && !cyclic[b] && !goes_on[b]).collect()
    }

    /// Ends of a wait that is all of a function.
    fn whole_function_ends(&self) -> Vec<EndSite> {
        if let Some(end) = self.single_end(self.f.entry_block) {
            return vec![end];
        }
        let terminal = self.terminal_ends();
        if !terminal.is_empty() {
            return terminal;
        }
        let ends = self.last_ways_out(self.f.entry_block).unwrap_or_default();
        // A return probe is cheaper than a probe that is single-stepped.
        if ends.iter().all(|e| e.site.emulated) {
            ends
        } else {
            Vec::new()
        }
    }

    /// The instructions that leave the function, if the kernel emulates them all (on arm64 it does).
    fn terminal_ends(&self) -> Vec<EndSite> {
        let f = self.f;
        let mut ends = Vec::new();
        for block in self.live().filter(|&b| f.graph.next[b].contains(&self.returned())) {
            let last = f.blocks[block].insns.end - 1;
            let leaves_for_good = f.graph.next[block].len() == 1 && self.last_slow[block] != Some(last);
            match self.site(last) {
                Some(site) if leaves_for_good && self.is_emulated(last) => {
                    ends.push(EndSite { site, kind: EndKind::Final, when: None });
                }
                _ => return Vec::new(),
            }
        }
        ends
    }

    /// Sites on all the ways out of the part of the function in which the wait that began in `start` goes on: from its
    /// blocks to others, to the return, or to blocks from which only these are left. `None` if one has no site.
    fn last_ways_out(&self, start: usize) -> Option<Vec<EndSite>> {
        let f = self.f;
        let inside: Vec<bool> = (0..f.blocks.len()).map(|b| f.is_live(b) && f.dominators.dominates(start, b)).collect();
        // From these the wait can begin anew.
        let retries = f.graph.reversed().reached(&[start], |_| false);
        let over = self.settled(start);
        let calm: Vec<bool> =
            (0..f.blocks.len()).map(|b| inside[b] && over[b] && !retries[b] && self.last_slow[b].is_none()).collect();
        let own: Vec<Option<usize>> = (0..f.blocks.len()).map(|b| self.own_end(b, &calm)).collect();
        let mut ends: Vec<EndSite> = Vec::new();
        for from in (0..f.blocks.len()).filter(|&b| inside[b] && !calm[b]) {
            for at in f.graph.next[from].iter().filter_map(|&to| *own.get(to)?) {
                if !ends.iter().any(|e| e.site.addr == f.insns[at].addr) {
                    ends.push(EndSite { site: self.site(at)?, kind: EndKind::Final, when: None });
                }
            }
            let leaves =
                |to: usize| to == self.returned() || f.is_live(to) && own[to].is_none() && (calm[to] || !inside[to]);
            if let Some(left) = self.exit(from, &leaves) {
                let (site, when) = left.site?;
                let retried = left.targets.iter().any(|&to| retries[to]);
                ends.push(EndSite { site, when, kind: if retried { EndKind::Maybe } else { EndKind::Final } });
            }
        }
        ends.sort_by_key(|e| e.site.addr);
        Some(ends)
    }

    /// An emulated instruction in a calm block to which only blocks lead that are not calm: it runs when one of
    /// those is left for this block, and only then.
    fn own_end(&self, block: usize, calm: &[bool]) -> Option<usize> {
        let entered_late = self.f.graph.back[block].iter().any(|&from| calm[from]);
        if !calm[block] || entered_late {
            return None;
        }
        self.f.blocks[block].insns.clone().find(|&i| self.is_emulated(i))
    }

    /// The site in block `from` for leaving it to any of the nodes that `leaves` names; `None` if it does not go there.
    fn exit(&self, from: usize, leaves: &dyn Fn(usize) -> bool) -> Option<Exit> {
        let node = |target: Target| match target {
            Target::Block(b) => Some(b),
            Target::Out => Some(self.returned()),
            Target::Dead => None,
        };
        let block = &self.f.blocks[from];
        let goes = |target: Option<Target>| target.and_then(node).filter(|&n| leaves(n));
        let (taken, on) = (goes(block.taken), goes(block.fallthrough));
        if taken.is_none() && on.is_none() {
            return None;
        }
        // A way that ends in a trap is none.
        let live =
            |target: Option<Target>| target.and_then(node).is_some_and(|n| n == self.returned() || self.f.is_live(n));
        let always = (taken.is_some() || !live(block.taken)) && (on.is_some() || !live(block.fallthrough));
        let site = if always { self.leaving(from) } else { self.deciding(from, taken.is_some()) };
        Some(Exit { targets: taken.into_iter().chain(on).collect(), site })
    }

    /// A site in block `from`, which is always left for good.
    fn leaving(&self, from: usize) -> Option<(Site, Option<Condition>)> {
        let insns = self.after_slow(from);
        let emulated = insns.clone().find(|&i| self.is_emulated(i));
        let at = emulated.or_else(|| insns.rev().find(|&i| self.is_probeable(i)))?;
        Some((self.site(at)?, None))
    }

    /// The branch at the end of block `from`, which is left for good one way only.
    fn deciding(&self, from: usize, taken: bool) -> Option<(Site, Option<Condition>)> {
        let at = self.f.blocks[from].insns.end - 1;
        let (test, takes) = branch_test(&self.f.insns[at])?;
        let site = self.site(at).filter(|s| s.emulated)?;
        Some((site, Some(Condition { test, holds: takes == taken })))
    }

    /// The instructions of a block up to its first slow one, which is still in time itself.
    fn before_slow(&self, block: usize) -> Range<usize> {
        let insns = self.f.blocks[block].insns.clone();
        insns.start..self.first_slow[block].map_or(insns.end, |i| i + 1)
    }

    /// The instructions of a block behind its last slow one.
    fn after_slow(&self, block: usize) -> Range<usize> {
        let insns = self.f.blocks[block].insns.clone();
        self.last_slow[block].map_or(insns.start, |i| i + 1)..insns.end
    }

    /// The first emulated instruction among some of one block that finds the latch in a known place.
    fn emulated_with_latch(&self, insns: Range<usize>) -> Option<usize> {
        let block = self.f.block_of[insns.start.min(self.f.insns.len() - 1)];
        let known = self.f.latch_known(block);
        let first = self.f.blocks[block].insns.start;
        insns.into_iter().find(|&i| self.is_emulated(i) && known[i - first])
    }

    fn first_probeable(&self, mut insns: Range<usize>) -> Option<usize> {
        insns.find(|&i| self.is_probeable(i))
    }

    fn is_emulated(&self, i: usize) -> bool {
        self.f.insns[i].probing == Probing::Emulated
    }

    fn is_probeable(&self, i: usize) -> bool {
        self.f.insns[i].probing != Probing::Refused
    }

    fn site(&self, i: usize) -> Option<Site> {
        let insn = &self.f.insns[i];
        let block = self.f.block_of[i];
        self.is_probeable(i).then(|| Site {
            addr: insn.addr,
            emulated: self.is_emulated(i),
            text: insn.text(),
            repeats: self.cyclic[block],
            per_round: self.is_per_round(block),
            args: self.f.arguments_at(insn.addr),
        })
    }

    /// Whether a spin goes round only by way of `block`, as long as nobody sleeps: without it, and without the
    /// sleeps, it would go round no more.
    fn is_per_round(&self, block: usize) -> bool {
        let graph = &self.f.graph;
        let spins = self.live().filter(|&s| self.spins[s] && !self.sleeps[s]).take(MAX_SPINS);
        let goes_round = |spin: usize, closed: Option<usize>| {
            // A delay's own loop is no round.
            let starts: Vec<usize> = graph.next[spin].iter().copied().filter(|&n| n != spin).collect();
            let shut = |n: usize| Some(n) == closed || n < self.sleeps.len() && self.sleeps[n];
            let open: Vec<usize> = starts.into_iter().filter(|&n| !shut(n)).collect();
            open.contains(&spin) || graph.reached(&open, shut)[spin]
        };
        spins.into_iter().any(|s| goes_round(s, None) && (s == block || !goes_round(s, Some(block))))
    }
}

/// How a block is left for good.
struct Exit {
    /// The nodes that it is left for.
    targets: Vec<usize>,
    /// `None`: no instruction tells.
    site: Option<(Site, Option<Condition>)>,
}

/// Whether an instruction is a slow one: (a round of spinning, anything else).
fn classify(f: &Function, insn: &Insn, slow: &Slow) -> (bool, bool) {
    let (Flow::Call(Some(to)) | Flow::Jump(to)) = insn.flow else { return (false, false) };
    let waits = slow.sleep.contains(&to) || slow.syscall.contains(&to) && !only_wakes(f, insn);
    (slow.spin.contains(&to), waits)
}

/// Whether a call of `syscall` is known to be a futex call that does not block: its third argument, behind the
/// system call's number and the futex word, is the operation (`include/uapi/linux/futex.h`).
fn only_wakes(f: &Function, insn: &Insn) -> bool {
    const OPERATION: u64 = 0x7f;
    let wakes = |operation: u64| matches!(operation & OPERATION, 1 | 3 | 4 | 5 | 10);
    f.constants_at(insn.addr)[2].is_some_and(wakes)
}

/// Whether a block is a loop that only counts: a delay.
fn is_delay(f: &Function, block: usize, content: &Block) -> bool {
    let idle = |i: &Insn| !touches_memory(i) && !matches!(i.flow, Flow::Call(_));
    f.graph.next[block].contains(&block) && f.insns[content.insns.clone()].iter().all(idle)
}
