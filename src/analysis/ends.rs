//! Finds where a wait ends: the search for [`EndSite`]s.

use super::cfg::{Graph, Target};
use super::wait::{Condition, EndKind, EndSite, Site, Wait};

impl Wait<'_> {
    /// Returns the ends of a wait that begins in one of the blocks `starts` of a function that has a hot part.
    pub fn contended_ends(&self, starts: &[usize]) -> Vec<EndSite> {
        let single = if let [start] = *starts { self.single_end(start) } else { None };
        single.map_or_else(|| self.last_ways_out(starts).unwrap_or_default(), |end| vec![end])
    }

    /// Returns whether a wait that began in one of `starts` is in progress in `block`, or has just ended there.
    fn is_inside(&self, starts: &[usize], block: usize) -> bool {
        starts.iter().any(|&start| self.f.dominators.dominates(start, block))
    }

    /// Returns a site that every wait from `start` passes once, when nothing slow is left, in the last block that all
    /// waits pass.
    fn single_end(&self, start: usize) -> Option<EndSite> {
        let f = self.f;
        let over = self.settled(&[start]);
        let mut chain: Vec<usize> = f.postdominators.chain(start).filter(|&b| b < f.blocks.len() && over[b]).collect();
        chain.retain(|&b| f.dominators.dominates(start, b) && (b != start || self.last_slow[b].is_some()));
        let latch = chain.iter().rev().find_map(|&b| self.emulated_with_latch(self.after_slow(b)));
        let emulated = || chain.iter().rev().find_map(|&b| self.after_slow(b).find(|&i| self.is_emulated(i)));
        let at = latch.or_else(emulated)?;
        let kind = kind(self.retries(&[start])[f.block_of[at]]);
        Some(EndSite { site: self.site(at)?, kind, when: None })
    }

    /// Returns, for each block, whether a wait that began in one of `starts` is over after the block's own slow calls:
    /// no path from there leads to a slow call or around a loop, except through a new beginning.
    fn settled(&self, starts: &[usize]) -> Vec<bool> {
        let f = self.f;
        // An edge from one start to another continues the same wait.
        let begins_anew = |from: usize, to: usize| {
            let goes_on = starts.len() > 1 && self.is_inside(starts, from) && !f.dominators.dominates(to, from);
            to != f.entry_block && starts.contains(&to) && !goes_on
        };
        let mut on = Graph::new(f.graph.next.len());
        for (from, next) in f.graph.next.iter().enumerate() {
            next.iter().filter(|&&to| !begins_anew(from, to)).for_each(|&to| on.add(from, to));
        }
        let cyclic = on.cyclic();
        let busy: Vec<usize> = self.live().filter(|&b| cyclic[b] || self.last_slow[b].is_some()).collect();
        let goes_on = on.reversed().reached(&busy, |_| false);
        (0..f.blocks.len()).map(|b| f.is_live(b) && !cyclic[b] && !goes_on[b]).collect()
    }

    /// Returns the ends of a wait that takes up a whole function.
    pub fn whole_function_ends(&self) -> Vec<EndSite> {
        if let Some(end) = self.single_end(self.f.entry_block) {
            return vec![end];
        }
        let terminal = self.terminal_ends();
        if !terminal.is_empty() {
            return terminal;
        }
        let ends = self.last_ways_out(&[self.f.entry_block]).unwrap_or_default();
        // A return probe is cheaper than a single-stepped probe.
        if ends.iter().all(|e| e.site.emulated) {
            ends
        } else {
            Vec::new()
        }
    }

    /// Returns the instructions that leave the function, if the kernel emulates them all (on arm64 it does).
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

    /// Returns sites on all paths out of the part of the function in which the wait that began in one of `starts`
    /// continues: from its blocks to others, to the return, or to blocks from which only these are left. `None` if one
    /// path has no site.
    fn last_ways_out(&self, starts: &[usize]) -> Option<Vec<EndSite>> {
        let f = self.f;
        let inside: Vec<bool> = (0..f.blocks.len()).map(|b| f.is_live(b) && self.is_inside(starts, b)).collect();
        let retries = self.retries(starts);
        let over = self.settled(starts);
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
                ends.push(EndSite { site, when, kind: kind(left.targets.iter().any(|&to| retries[to])) });
            }
        }
        ends.sort_by_key(|e| e.site.addr);
        Some(ends)
    }

    /// Returns an emulated instruction in a calm block that only blocks that are not calm lead to. It runs exactly when
    /// one of those is left for this block.
    fn own_end(&self, block: usize, calm: &[bool]) -> Option<usize> {
        let entered_late = self.f.graph.back[block].iter().any(|&from| calm[from]);
        if !calm[block] || entered_late {
            return None;
        }
        self.f.blocks[block].insns.clone().find(|&i| self.is_emulated(i))
    }

    /// Returns the site in block `from` for leaving it to any of the nodes that `leaves` names; `None` if it does not
    /// go there.
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
        // A path that ends in a trap does not count.
        let live =
            |target: Option<Target>| target.and_then(node).is_some_and(|n| n == self.returned() || self.f.is_live(n));
        let always = (taken.is_some() || !live(block.taken)) && (on.is_some() || !live(block.fallthrough));
        let site = if always { self.leaving(from) } else { self.deciding(from, taken.is_some()) };
        Some(Exit { targets: taken.into_iter().chain(on).collect(), site })
    }

    /// Returns a site in block `from`, which always leaves the waiting part.
    fn leaving(&self, from: usize) -> Option<(Site, Option<Condition>)> {
        let insns = self.after_slow(from);
        let emulated = insns.clone().find(|&i| self.is_emulated(i));
        let at = emulated.or_else(|| insns.rev().find(|&i| self.is_probeable(i)))?;
        Some((self.site(at)?, None))
    }

    /// Returns the branch at the end of block `from`, one direction of which leaves the waiting part.
    fn deciding(&self, from: usize, taken: bool) -> Option<(Site, Option<Condition>)> {
        let at = self.f.blocks[from].insns.end - 1;
        let (test, takes) = self.f.insns[at].branch_test()?;
        let site = self.site(at).filter(|s| s.emulated)?;
        Some((site, Some(Condition { test, holds: takes == taken })))
    }
}

/// How a block leaves the waiting part.
struct Exit {
    /// The nodes to which it leaves.
    targets: Vec<usize>,
    /// The site; `None` if no instruction shows the exit.
    site: Option<(Site, Option<Condition>)>,
}

/// Returns the kind of an end, depending on whether the wait can begin again.
fn kind(retried: bool) -> EndKind {
    if retried {
        EndKind::Maybe
    } else {
        EndKind::Final
    }
}
