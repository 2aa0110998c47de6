//! The control flow of one function: basic blocks, dominators, reachability.
//!
//! Blocks are numbered by address; one more node stands for "the function has returned".

use std::collections::BTreeSet;
use std::ops::Range;

use crate::isa::{Flow, Insn};

/// Where one edge out of a block leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Block(usize),
    /// Out of the function: a return or a tail call.
    Out,
    /// Nowhere: a trap, or a call that does not return.
    Dead,
}

/// A run of instructions that is entered at its first and left at its last instruction.
#[derive(Clone, Debug)]
pub(super) struct Block {
    /// Indices of its instructions; never empty.
    pub insns: Range<usize>,
    /// Where a jump, a taken branch or a return goes.
    pub taken: Option<Target>,
    /// Where it continues if nothing jumps.
    pub fallthrough: Option<Target>,
}

impl Block {
    pub fn targets(&self) -> impl Iterator<Item = Target> {
        self.taken.into_iter().chain(self.fallthrough)
    }
}

/// A directed graph over numbered nodes.
#[derive(Clone, Debug, Default)]
pub(super) struct Graph {
    pub next: Vec<Vec<usize>>,
    pub back: Vec<Vec<usize>>,
}

impl Graph {
    pub fn new(nodes: usize) -> Graph {
        Graph { next: vec![Vec::new(); nodes], back: vec![Vec::new(); nodes] }
    }

    pub fn add(&mut self, from: usize, to: usize) {
        if !self.next[from].contains(&to) {
            self.add_new(from, to);
        }
    }

    /// Adds an edge that must not exist yet.
    pub fn add_new(&mut self, from: usize, to: usize) {
        self.next[from].push(to);
        self.back[to].push(from);
    }

    /// Returns the same nodes without the edges that touch any of the given nodes.
    pub fn without(&self, of: impl Fn(usize) -> bool) -> Graph {
        let mut graph = Graph::new(self.next.len());
        for (from, next) in self.next.iter().enumerate().filter(|(from, _)| !of(*from)) {
            next.iter().filter(|&&to| !of(to)).for_each(|&to| graph.add_new(from, to));
        }
        graph
    }

    pub fn reversed(&self) -> Graph {
        Graph { next: self.back.clone(), back: self.next.clone() }
    }

    /// Returns the nodes that are reached from `starts` (which count only if reached again) without entering a node
    /// that `closed` names.
    pub fn reached(&self, starts: &[usize], closed: impl Fn(usize) -> bool) -> Vec<bool> {
        let mut seen = vec![false; self.next.len()];
        self.reach(starts, closed, &mut seen);
        seen
    }

    /// Adds to `seen` what is reached from `starts` without entering a node that is already in it or that `closed`
    /// names.
    pub fn reach(&self, starts: &[usize], closed: impl Fn(usize) -> bool, seen: &mut [bool]) {
        let mut work = starts.to_vec();
        while let Some(node) = work.pop() {
            for &to in &self.next[node] {
                if !seen[to] && !closed(to) {
                    seen[to] = true;
                    work.push(to);
                }
            }
        }
    }

    /// Returns, for every node, whether it lies on a cycle, that is, whether its strongly connected component has an
    /// edge.
    pub fn cyclic(&self) -> Vec<bool> {
        let order = self.postorder_all();
        let reversed = self.reversed();
        let mut cyclic = vec![false; self.next.len()];
        let mut done = vec![false; self.next.len()];
        for &root in order.iter().rev() {
            if done[root] {
                continue;
            }
            done[root] = true;
            let (mut component, mut work) = (vec![root], vec![root]);
            while let Some(node) = work.pop() {
                for &to in &reversed.next[node] {
                    if !std::mem::replace(&mut done[to], true) {
                        component.push(to);
                        work.push(to);
                    }
                }
            }
            if component.len() > 1 || self.next[root].contains(&root) {
                component.iter().for_each(|&node| cyclic[node] = true);
            }
        }
        cyclic
    }

    /// Returns the smallest number of edges from any of `starts` to every node.
    pub fn distances(&self, starts: &[usize]) -> Vec<Option<usize>> {
        let mut found = vec![None; self.next.len()];
        let mut queue = std::collections::VecDeque::new();
        for &start in starts {
            found[start] = Some(0);
            queue.push_back((start, 0));
        }
        while let Some((node, distance)) = queue.pop_front() {
            for &to in &self.next[node] {
                if found[to].is_none() {
                    found[to] = Some(distance + 1);
                    queue.push_back((to, distance + 1));
                }
            }
        }
        found
    }

    fn postorder_all(&self) -> Vec<usize> {
        let mut seen = vec![false; self.next.len()];
        let mut order = Vec::new();
        for root in 0..self.next.len() {
            self.postorder_from(root, &mut seen, &mut order);
        }
        order
    }

    fn postorder_from(&self, root: usize, seen: &mut [bool], order: &mut Vec<usize>) {
        if std::mem::replace(&mut seen[root], true) {
            return;
        }
        // (node, number of its successors that have been visited): an explicit stack instead of recursion, because the
        // input may be hostile.
        let mut stack = vec![(root, 0)];
        while let Some((node, visited)) = stack.last_mut() {
            match self.next[*node].get(*visited) {
                Some(&to) => {
                    *visited += 1;
                    if !std::mem::replace(&mut seen[to], true) {
                        stack.push((to, 0));
                    }
                }
                None => {
                    order.push(*node);
                    stack.pop();
                }
            }
        }
    }
}

/// The immediate dominators of the nodes that are reachable from a root.
#[derive(Clone, Debug)]
pub(super) struct Dominators {
    root: usize,
    parent: Vec<Option<usize>>,
    depth: Vec<usize>,
}

impl Dominators {
    /// Computes dominators by the iteration of Cooper, Harvey and Kennedy. `None` if it does not converge in a number
    /// of rounds that no compiled function needs.
    pub fn new(graph: &Graph, root: usize) -> Option<Dominators> {
        const MAX_ROUNDS: usize = 64;
        let mut order = Vec::new();
        graph.postorder_from(root, &mut vec![false; graph.next.len()], &mut order);
        let mut rank = vec![usize::MAX; graph.next.len()];
        order.iter().enumerate().for_each(|(i, &node)| rank[node] = i);
        let mut parent = vec![None; graph.next.len()];
        parent[root] = Some(root);
        for _ in 0..MAX_ROUNDS {
            let mut changed = false;
            for &node in order.iter().rev().filter(|&&n| n != root) {
                let known = graph.back[node].iter().copied().filter(|&p| parent[p].is_some());
                let new = known.reduce(|a, b| meet(a, b, &parent, &rank));
                if new != parent[node] {
                    parent[node] = new;
                    changed = true;
                }
            }
            if !changed {
                let mut depth = vec![0; graph.next.len()];
                for &node in order.iter().rev().filter(|&&n| n != root) {
                    depth[node] = parent[node].map_or(0, |p| depth[p] + 1);
                }
                return Some(Dominators { root, parent, depth });
            }
        }
        None
    }

    /// Returns whether the root reaches `node` at all.
    pub fn reaches(&self, node: usize) -> bool {
        self.parent[node].is_some()
    }

    /// Returns `node` and its dominators, up to the root; empty if the root does not reach it.
    pub fn chain(&self, node: usize) -> impl Iterator<Item = usize> + '_ {
        let first = self.parent[node].map(|_| node);
        std::iter::successors(first, |&n| if n == self.root { None } else { self.parent[n] })
    }

    /// Returns whether every path from the root to `node` passes `above` (a node dominates itself).
    pub fn dominates(&self, above: usize, node: usize) -> bool {
        self.depth[above] <= self.depth[node] && self.chain(node).any(|n| n == above)
    }
}

fn meet(mut a: usize, mut b: usize, parent: &[Option<usize>], rank: &[usize]) -> usize {
    while a != b {
        // The root ranks highest, so neither side runs past it.
        let lower = if rank[a] < rank[b] { &mut a } else { &mut b };
        match parent[*lower] {
            Some(above) => *lower = above,
            None => return if rank[a] > rank[b] { a } else { b },
        }
    }
    a
}

/// Splits instructions, sorted by address, into blocks. The second result is the block of each instruction.
pub(super) fn blocks(insns: &[Insn]) -> (Vec<Block>, Vec<usize>) {
    let index = |addr: u64| insns.binary_search_by_key(&addr, |i| i.addr).ok();
    let mut leaders = BTreeSet::from([0]);
    for (i, insn) in insns.iter().enumerate() {
        if let Flow::Jump(to) | Flow::Branch(to) = insn.flow {
            leaders.extend(index(to));
        }
        let adjoins = insns.get(i + 1).is_some_and(|next| next.addr == insn.end());
        if !matches!(insn.flow, Flow::Next | Flow::Call(_)) || !adjoins {
            leaders.insert(i + 1);
        }
    }
    let starts: Vec<usize> = leaders.into_iter().filter(|&l| l < insns.len()).collect();
    let mut block_of = vec![0; insns.len()];
    for (block, &start) in starts.iter().enumerate() {
        let end = starts.get(block + 1).copied().unwrap_or(insns.len());
        block_of[start..end].fill(block);
    }
    let target = |addr: u64| index(addr).map_or(Target::Out, |i| Target::Block(block_of[i]));
    let blocks = starts
        .iter()
        .enumerate()
        .map(|(n, &start)| {
            let end = starts.get(n + 1).copied().unwrap_or(insns.len());
            let last = &insns[end - 1];
            // If a function's code ends with a call, that call does not return.
            let behind = index(last.end()).map_or(Target::Dead, |i| Target::Block(block_of[i]));
            let (taken, fallthrough) = match last.flow {
                Flow::Next | Flow::Call(_) => (None, Some(behind)),
                Flow::Jump(to) => (Some(target(to)), None),
                Flow::Branch(to) => (Some(target(to)), Some(behind)),
                Flow::Return | Flow::IndirectJump => (Some(Target::Out), None),
                Flow::Trap => (Some(Target::Dead), None),
            };
            Block { insns: start..end, taken, fallthrough }
        })
        .collect();
    (blocks, block_of)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(nodes: usize, edges: &[(usize, usize)]) -> Graph {
        let mut graph = Graph::new(nodes);
        edges.iter().for_each(|&(from, to)| graph.add(from, to));
        graph
    }

    #[test]
    fn dominators_of_a_loop_with_two_entries() {
        // 0 leads to 1 and 2, which lead to each other and to 3; 4 is not reached.
        let g = graph(5, &[(0, 1), (0, 2), (1, 2), (2, 1), (1, 3), (2, 3), (4, 3)]);
        let dominators = Dominators::new(&g, 0).unwrap();
        assert_eq!([1, 2, 3].map(|n| dominators.chain(n).collect::<Vec<_>>()), [[1, 0], [2, 0], [3, 0]]);
        assert!(dominators.dominates(0, 3) && !dominators.dominates(1, 3));
        assert!(!dominators.reaches(4) && dominators.chain(4).next().is_none());
        let post = Dominators::new(&g.reversed(), 3).unwrap();
        assert_eq!(post.chain(0).collect::<Vec<_>>(), [0, 3]);
        assert!(post.reaches(4));
    }

    #[test]
    fn cycles_and_reachability() {
        let g = graph(6, &[(0, 1), (1, 2), (2, 1), (2, 3), (3, 3), (3, 4), (5, 0)]);
        assert_eq!(g.cyclic(), [false, true, true, true, false, false]);
        assert_eq!(g.reached(&[0], |n| n == 2), [false, true, false, false, false, false]);
        assert_eq!(g.reached(&[1], |_| false), [false, true, true, true, true, false]);
        let mut seen = g.reached(&[4], |_| false);
        g.reach(&[3], |_| false, &mut seen);
        g.reach(&[5], |n| n == 1, &mut seen);
        assert_eq!(seen, [true, false, false, true, true, false]);
        assert_eq!(g.distances(&[0]), [Some(0), Some(1), Some(2), Some(3), Some(4), None]);
    }
}
