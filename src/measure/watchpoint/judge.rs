//! Decides from accesses to a cache line which threads make it move between CPUs.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

use super::points::{Touch, WORD};
use crate::host::Topology;
use crate::isa::Access;
use crate::measure::watchpoint::{Moves, Sharing, TouchingFunction, WatchedWord, LEAST_MOVES};

/// The share of accesses that must come from a different CPU for a line to count as moving.
const RESTLESS: f64 = 0.01;

/// One burst: the words that were watched at the same time, the duration, and the accesses.
#[derive(Clone, Debug)]
pub struct Burst {
    /// The latch's first word, and another word of its line.
    pub words: [u64; 2],
    /// From when all CPUs had started to when the first was to stop, in the same clock as [`Touch::time_ns`].
    pub time_ns: Range<u64>,
    /// The accesses of all processes, in no particular order.
    pub touches: Vec<Touch>,
    /// The number of accesses to a word after which a CPU stopped watching it.
    pub limit: u32,
}

impl Burst {
    /// Returns the time in which all CPUs watched both words. A longer time would favor CPUs that had not reached their
    /// limit.
    fn watched(&self) -> Range<u64> {
        let mut seen: HashMap<(u32, u64), Vec<u64>> = HashMap::new();
        for touch in &self.touches {
            seen.entry((touch.cpu, touch.word)).or_default().push(touch.time_ns);
        }
        let full = seen.into_values().filter_map(|mut times| {
            times.sort_unstable();
            times.get((self.limit as usize).checked_sub(1)?).copied()
        });
        let end = full.fold(self.time_ns.end, u64::min);
        self.time_ns.start..end.max(self.time_ns.start)
    }
}

/// What is known about the code at an instruction pointer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CodeAt {
    /// The function's name in source form, or its file and address.
    pub function: String,
    /// The disassembled instruction that accessed the word; `None` if it is not known.
    pub instruction: Option<String>,
    /// Whether the instruction reads or writes; `None` if that is not known, as in the kernel.
    pub access: Option<Access>,
}

/// What is known about a line and its surroundings.
pub struct Scene<'a> {
    /// The server's process ID.
    pub pid: u32,
    /// The word by which the latch is identified.
    pub word: u64,
    /// The whole latch, in addresses of the process.
    pub latch: Range<u64>,
    /// The domains of the machine, if it has several.
    pub topology: Option<&'a Topology>,
}

/// Summarizes all bursts for each word.
pub fn words(scene: &Scene, bursts: &[Burst], code: &mut impl FnMut(&Touch) -> CodeAt) -> Vec<WatchedWord> {
    let mut all: BTreeMap<u64, Account> = BTreeMap::new();
    for burst in bursts {
        let watched = burst.watched();
        let of_server = |touch: &&Touch| touch.pid == scene.pid && watched.contains(&touch.time_ns);
        let mut touches: Vec<(Touch, CodeAt)> =
            burst.touches.iter().filter(of_server).map(|touch| (*touch, code(touch))).collect();
        touches.sort_by_key(|(touch, _)| touch.time_ns);
        for word in burst.words {
            all.entry(word).or_default().watched_ns += watched.end - watched.start;
        }
        for (touch, at) in &touches {
            all.entry(touch.word).or_default().add(touch, at);
        }
        all.entry(burst.words[1]).or_default().moves.add(&moves(scene, &touches, &burst.touches));
    }
    all.into_iter().map(|(word, account)| account.word(word, scene)).collect()
}

/// Counts how the line moved, from the accesses that count; `all` contains every access of the same burst.
fn moves(scene: &Scene, touches: &[(Touch, CodeAt)], all: &[Touch]) -> Moves {
    let is_latch = |touch: &Touch| is_of(&scene.latch, touch.word);
    // Several readers can hold a latch at once, and only the last of them wrote to it last.
    let users: HashSet<u32> = all.iter().filter(|touch| is_latch(touch)).map(|touch| touch.tid).collect();
    let domain = |cpu: u32| scene.topology.and_then(|topology| topology.of_cpu.get(cpu as usize));
    let mut moves = Moves::default();
    let (mut owner, mut owner_before) = (None, None);
    let mut before: Option<&(Touch, CodeAt)> = None;
    for now in touches {
        let (touch, at) = now;
        let writes = at.access == Some(Access::Write);
        if is_latch(touch) && writes {
            owner = Some(touch.tid);
        }
        if let Some((earlier, earlier_at)) = before {
            moves.followed += 1;
            if touch.cpu != earlier.cpu && (writes || earlier_at.access == Some(Access::Write)) {
                moves.moved += 1;
                moves.between_domains += u64::from(domain(touch.cpu) != domain(earlier.cpu));
                // The neighbor's access, and which threads had written to the latch by then.
                let neighbour = match (is_latch(earlier), is_latch(touch)) {
                    (true, true) => None,
                    (false, true) => Some((earlier.tid, earlier_at, owner_before)),
                    (_, false) => Some((touch.tid, at, owner)),
                };
                match neighbour {
                    None => moves.latch += 1,
                    Some((tid, at, _)) if at.access != Some(Access::Write) && users.contains(&tid) => moves.user += 1,
                    Some((tid, _, Some(owner))) if tid == owner => moves.user += 1,
                    Some((_, _, Some(_))) => moves.foreign += 1,
                    Some((_, _, None)) => {}
                }
            }
        }
        owner_before = owner;
        before = Some(now);
    }
    moves
}

/// Returns whether a word is part of the latch.
pub fn is_of(latch: &Range<u64>, word: u64) -> bool {
    word < latch.end && latch.start < word + WORD
}

#[derive(Default)]
struct Account {
    watched_ns: u64,
    touches: u64,
    writes: u64,
    by_cpu: BTreeMap<u32, u64>,
    by_function: HashMap<String, Vec<(CodeAt, u64)>>,
    moves: Moves,
}

impl Account {
    fn add(&mut self, touch: &Touch, at: &CodeAt) {
        self.touches += 1;
        self.writes += u64::from(at.access == Some(Access::Write));
        *self.by_cpu.entry(touch.cpu).or_default() += 1;
        let places = self.by_function.entry(at.function.clone()).or_default();
        match places.iter_mut().find(|(known, _)| known == at) {
            Some((_, count)) => *count += 1,
            None => places.push((at.clone(), 1)),
        }
    }

    fn word(self, word: u64, scene: &Scene) -> WatchedWord {
        let functions = self.by_function.into_iter().map(|(function, places)| {
            let most = places.iter().max_by_key(|(_, count)| *count);
            let writes = places.iter().filter(|(at, _)| at.access == Some(Access::Write)).map(|(_, count)| count);
            TouchingFunction {
                touches: places.iter().map(|(_, count)| count).sum(),
                writes: writes.sum(),
                instruction: most.and_then(|(at, _)| at.instruction.clone()),
                function,
            }
        });
        let mut functions: Vec<TouchingFunction> = functions.collect();
        functions.sort_by(|a, b| b.touches.cmp(&a.touches).then_with(|| a.function.cmp(&b.function)));
        WatchedWord {
            offset: word.wrapping_sub(scene.word) as i64,
            is_latch: is_of(&scene.latch, word),
            object: None,
            watched_ns: self.watched_ns,
            touches: self.touches,
            writes: self.writes,
            by_cpu: self.by_cpu,
            functions,
            moves: self.moves,
        }
    }
}

/// Decides what makes the line move.
pub fn verdict(words: &[WatchedWord]) -> Sharing {
    let neighbours = || words.iter().filter(|word| !word.is_latch);
    if neighbours().any(WatchedWord::is_foreign) {
        return Sharing::FalseSharing;
    }
    if neighbours().any(WatchedWord::is_users) {
        return Sharing::Shared;
    }
    let (moved, followed) =
        words.iter().fold((0, 0), |(moved, followed), word| (moved + word.moves.moved, followed + word.moves.followed));
    if followed < LEAST_MOVES {
        return Sharing::Quiet;
    }
    if (moved as f64) < RESTLESS * followed as f64 {
        return Sharing::Still;
    }
    Sharing::LatchOnly
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATCH: u64 = 0x1000;
    const OTHER: u64 = 0x1008;
    const SERVER: u32 = 7;

    /// Creates one access per microsecond: thread, which runs on the CPU with its number, word, and whether it writes.
    fn burst(accesses: &[(u32, u64, bool)]) -> Burst {
        let touch = |(i, &(tid, word, writes)): (usize, &(u32, u64, bool))| Touch {
            time_ns: 1000 * (i as u64 + 1),
            cpu: tid,
            pid: SERVER,
            tid,
            word,
            ip: u64::from(writes),
            is_kernel: false,
        };
        let touches = accesses.iter().enumerate().map(touch).collect();
        Burst { words: [LATCH, OTHER], time_ns: 0..10_000_000, touches, limit: 100_000 }
    }

    fn code(touch: &Touch) -> CodeAt {
        let access = Some(if touch.ip == 1 { Access::Write } else { Access::Read });
        CodeAt { function: format!("f{}", touch.tid), instruction: None, access }
    }

    fn seen(bursts: &[Burst]) -> Vec<WatchedWord> {
        let scene = Scene { pid: SERVER, word: LATCH, latch: LATCH..LATCH + 4, topology: None };
        words(&scene, bursts, &mut code)
    }

    fn verdict_of(accesses: &[(u32, u64, bool)]) -> Sharing {
        verdict(&seen(&[burst(&accesses.repeat(30))]))
    }

    #[test]
    fn a_neighbour_of_other_threads_is_to_blame() {
        assert_eq!(verdict_of(&[(0, LATCH, true), (1, OTHER, true)]), Sharing::FalseSharing);
        // Reading makes the line move as well.
        assert_eq!(verdict_of(&[(0, LATCH, true), (1, OTHER, false)]), Sharing::FalseSharing);
    }

    #[test]
    fn a_latch_that_threads_share_is_no_false_sharing() {
        assert_eq!(verdict_of(&[(0, LATCH, true), (1, LATCH, true)]), Sharing::LatchOnly);
        // A thread accesses the neighbor while it holds the latch, on the same CPU.
        let guarded = [0, 1].map(|t| [(t, LATCH, true), (t, OTHER, true), (t, LATCH, true)]).concat();
        assert_eq!(verdict_of(&guarded), Sharing::LatchOnly);
    }

    #[test]
    fn waiters_that_poll_take_the_line_from_who_has_the_latch() {
        let polled = [(0, LATCH, true), (1, LATCH, false), (0, OTHER, true), (1, LATCH, false), (0, OTHER, true)];
        assert_eq!(verdict_of(&polled), Sharing::Shared);
    }

    #[test]
    fn readers_that_have_the_latch_together_may_read_what_it_guards() {
        // Both hold the latch when the first of them reads.
        let readers = [(0, LATCH, true), (1, LATCH, true), (0, OTHER, false), (1, OTHER, false)];
        assert_eq!(verdict_of(&readers), Sharing::Shared);
        // A third thread reads without holding the latch.
        assert_eq!(verdict_of(&[(0, LATCH, true), (1, LATCH, true), (2, OTHER, false)]), Sharing::FalseSharing);
    }

    #[test]
    fn what_stays_on_one_cpu_or_is_only_read_does_not_move() {
        assert_eq!(verdict_of(&[(0, LATCH, true), (0, OTHER, true)]), Sharing::Still);
        assert_eq!(verdict_of(&[(0, LATCH, false), (1, OTHER, false)]), Sharing::Still);
        assert_eq!(verdict(&seen(&[burst(&[(0, LATCH, true), (1, OTHER, true)])])), Sharing::Quiet);
        assert_eq!(verdict(&[]), Sharing::Quiet);
    }

    #[test]
    fn touches_are_counted_by_word() {
        let words = seen(&[burst(&[(0, LATCH, true), (1, LATCH, false), (1, OTHER, true), (1, OTHER, false)])]);
        let [latch, other] = &words[..] else { panic!("{words:?}") };
        assert_eq!((latch.offset, latch.is_latch, latch.touches, latch.writes), (0, true, 2, 1));
        assert_eq!((other.offset, other.is_latch, other.touches, other.writes), (8, false, 2, 1));
        assert_eq!(other.by_cpu, BTreeMap::from([(1, 2)]));
        let function =
            |f: &str, touches, writes| TouchingFunction { function: f.into(), touches, writes, instruction: None };
        assert_eq!(latch.functions, [function("f0", 1, 1), function("f1", 1, 0)]);
        assert_eq!(other.functions, [function("f1", 2, 1)]);
        // CPU 0 writes, then CPU 1 reads.
        assert_eq!(other.moves, Moves { followed: 3, moved: 1, latch: 1, ..Moves::default() });
    }

    #[test]
    fn a_function_shows_the_instruction_that_touches_most() {
        let scene = Scene { pid: SERVER, word: LATCH, latch: LATCH..LATCH + 4, topology: None };
        let accesses = [(0, LATCH, false), (0, LATCH, true), (0, LATCH, true), (0, LATCH, true), (1, LATCH, true)];
        let mut code = |touch: &Touch| CodeAt {
            function: "f".to_owned(),
            instruction: Some(if touch.ip == 1 { "store" } else { "load" }.to_owned()),
            access: Some(if touch.ip == 1 { Access::Write } else { Access::Read }),
        };
        let words = words(&scene, &[burst(&accesses)], &mut code);
        let expected =
            TouchingFunction { function: "f".into(), touches: 5, writes: 4, instruction: Some("store".into()) };
        assert_eq!(words[0].functions, [expected]);
        assert_eq!(words[0].by_cpu, BTreeMap::from([(0, 4), (1, 1)]));
    }

    #[test]
    fn the_moves_of_all_words_count() {
        let word = |followed, moved| {
            let mut words = seen(&[burst(&[(0, LATCH, true)])]);
            words.truncate(1);
            words[0].moves = Moves { followed, moved, ..Moves::default() };
            words.remove(0)
        };
        let half = LEAST_MOVES / 2;
        assert_eq!(verdict(&[word(half, half)]), Sharing::Quiet);
        assert_eq!(verdict(&[word(half, half), word(LEAST_MOVES - half, 0)]), Sharing::LatchOnly);
        assert_eq!(verdict(&[word(half, 0), word(LEAST_MOVES - half, half)]), Sharing::LatchOnly);
        assert_eq!(verdict(&[word(half, 0), word(LEAST_MOVES - half, 0)]), Sharing::Still);
    }

    #[test]
    fn only_the_time_counts_in_which_all_watched() {
        let mut burst = burst(&[(0, LATCH, true), (1, LATCH, true), (0, LATCH, true), (1, OTHER, true)]);
        burst.limit = 2;
        // CPU 0 reaches its limit for the latch at its second access.
        assert_eq!(burst.watched(), 0..3000);
        let words = seen(&[burst.clone()]);
        assert_eq!((words[0].touches, words[1].touches, words[0].watched_ns), (2, 0, 3000));
        burst.touches.iter_mut().for_each(|touch| touch.pid = SERVER + 1);
        assert_eq!(seen(&[burst])[0].touches, 0, "another process's");
    }

    #[test]
    fn a_latch_can_cover_several_words() {
        let latch = 0x1004..0x1014;
        let covered: Vec<u64> = (0xff8..0x1020).step_by(8).filter(|word| is_of(&latch, *word)).collect();
        assert_eq!(covered, [0x1000, 0x1008, 0x1010]);
        let whole: Vec<u64> = (0xff8..0x1020).step_by(8).filter(|word| is_of(&(0x1000..0x1010), *word)).collect();
        assert_eq!(whole, [0x1000, 0x1008]);
    }

    #[test]
    fn moves_between_parts_of_the_machine_are_told() {
        let topology = Topology { names: vec!["0".into(), "1".into()], of_cpu: vec![1, 1, 2] };
        let scene = Scene { pid: SERVER, word: LATCH, latch: LATCH..LATCH + 8, topology: Some(&topology) };
        let burst = burst(&[(0, LATCH, true), (1, LATCH, true), (2, LATCH, true), (0, LATCH, true)]);
        let moves = words(&scene, &[burst], &mut code)[1].moves;
        assert_eq!((moves.moved, moves.between_domains), (3, 2));
    }
}
