//! Predicts from what threads do which latches they wait for.
//!
//! A thread's stack says what it waits for, if its code is understood; what else a thread does says it only on average.
//! While the probes of a group are on, it is learned how many of the threads that do something wait for which latch.
//! A turn of the probes also shows how good the predictions are that were learned before it.

use std::rc::Rc;

use foldhash::{HashMap, HashMapExt};

use super::keys::{latch_key, MapKey};
use super::sampler::Probes;
use super::samples::Samples;
use crate::bpf::latch::types;

/// The weight of what was learned falls to a third after this many looks with the probes on.
const MEMORY: f64 = 2000.0;

/// How many looks with the probes on make the predictions better than estimates by time.
const ENOUGH_LOOKS: f64 = 20.0;

/// How many times a thread must have been seen doing something before it is known what that means.
const ENOUGH_SEEN: f64 = 2.0;

/// What a stack says counts like this many looks in which the probes said the same.
const PRIOR: f64 = 2.0;

/// After this many looks with the probes on, what was seen counts as a turn.
const LONGEST_TURN: f64 = 500.0;

/// How many turns the error of predictions is taken from: its square falls to a third after this many more.
const CHECKS: f64 = 12.0;

/// Turns that follow each other err alike: so many of them say no more than one. Measured: with 1, performance_schema's
/// sums were 1.8 times as far away as the error says, on MariaDB 11.4.
const ALIKE: f64 = 3.0;

/// The relative error of predictions that no turn has checked yet, and the largest of those that were: where turns had
/// next to no waiters, it could be anything.
const UNCHECKED: f64 = 0.3;
const MOST_ERROR: f64 = 1.0;

/// What remains of the weight of sleepers after so many evaluations, of which there is one a second, and the weight at
/// which they are forgotten.
const KEEP: f64 = 0.8;
const KEPT_FOR: u64 = 4;
const LEAST_WEIGHT: f64 = 0.05;

/// For how many evaluations sleepers are remembered on average.
const REMEMBERED: f64 = KEPT_FOR as f64 / (1.0 - KEEP);

/// The most words for which sleepers are remembered, so that a server cannot fill the memory.
const MOST_WORDS: usize = 8_192;

/// Stands for all words on which looks have never shown a sleeper before and, with a kind, for anything new of it.
const NEW: u64 = 1 << (types::doing_bit::DOING_KIND.0 - 1);

/// Latches, and with which probability a thread waits for each.
type Prediction = [(MapKey, f64)];

/// What a look has shown of a thread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Thread {
    /// What it does, as the programs describe it.
    pub doing: u64,
    /// The latches for which it waits as its stack says, and whether it is asleep.
    pub waits: [Option<(MapKey, bool)>; 2],
    /// The latch that it waits for, in a wait that the probes see, and its wait function.
    pub seen: Option<(MapKey, u8)>,
}

/// What glances have shown.
#[derive(Default)]
pub(super) struct Glanced {
    /// The words on which threads slept.
    pub words: Vec<u64>,
    /// The end of each glance in `words`, and the groups whose probes were off, a bit for each.
    pub ends: Vec<(usize, u64)>,
}

/// What a thread does, as far as that says what it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Activity {
    /// It waits for a latch as its stack says, asleep or not.
    Waits(MapKey, bool),
    /// Anything else, as the programs describe it.
    Other(u64),
}

/// What is known of the threads.
pub(super) struct Predictor {
    groups: Vec<Group>,
    /// The index of the group of each wait function.
    group_of: HashMap<u8, usize>,
    /// What is predicted for a thread, by the groups it is predicted for and by what it does.
    predictions: HashMap<(usize, Activity), Rc<Prediction>>,
    /// The number of looks so far.
    looks: u64,
    evaluations: u64,
    /// What looks have shown of threads that sleep on a word.
    words: HashMap<u64, Sleepers>,
    /// What the next samples begin with.
    next: Samples,
}

/// What looks have shown of threads that sleep on a word, with less weight for older ones.
struct Sleepers {
    /// The number of looks that have shown any.
    looks: f64,
    /// The last of them, and whether it was the first that is remembered.
    last: u64,
    are_new: bool,
    /// What they do, as it concerns each group.
    activities: Vec<Vec<(Activity, f64)>>,
}

/// What threads that sleep on a word wait for.
#[derive(Default)]
struct Division {
    /// By the indices of latches.
    shares: Vec<(usize, f64)>,
    /// How many looks this is known from; 0 if it is only the average of words.
    looks: f64,
}

/// What is known of the threads that wait in the functions of a group.
#[derive(Default)]
struct Group {
    /// Whether stacks show all of its waits, so that nothing has to be learned first.
    is_readable: bool,
    /// Whether they have shown any. Where the C library cannot be unwound, they show no sleep.
    was_read: bool,
    /// The number of looks with the probes on, with less weight for older ones.
    looks: f64,
    /// By what a thread does.
    known: HashMap<Activity, Doing>,
    /// What this turn has shown.
    turn: Turn,
    checks: HashMap<MapKey, Check>,
}

/// What threads that do this wait for.
#[derive(Clone, Default)]
struct Doing {
    /// How many were seen while the probes were on, and how many of them waited for which latch.
    seen: f64,
    waited: HashMap<MapKey, f64>,
}

#[derive(Default)]
struct Turn {
    looks: f64,
    doing: HashMap<Activity, Doing>,
    /// The sum of what was predicted for each latch.
    predicted: HashMap<MapKey, f64>,
}

/// How good predictions were.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Check {
    turns: f64,
    /// Sums over turns.
    predicted: f64,
    squared_errors: f64,
}

impl Predictor {
    /// Creates one for groups that have these wait functions, and of which stacks show all waits or not. It has learned
    /// nothing yet.
    pub fn new(groups: &[(Vec<u8>, bool)]) -> Predictor {
        let group_of =
            groups.iter().enumerate().flat_map(|(group, (all, _))| all.iter().map(move |f| (*f, group))).collect();
        let groups = groups.iter().map(|(_, is_readable)| Group { is_readable: *is_readable, ..Group::default() });
        let groups = groups.collect();
        let (predictions, words) = (HashMap::new(), HashMap::new());
        Predictor { groups, group_of, predictions, looks: 0, evaluations: 0, words, next: Samples::default() }
    }

    /// Returns samples without looks.
    pub fn begin(&mut self) -> Samples {
        self.predictions.clear();
        std::mem::take(&mut self.next)
    }

    /// Adds a look at the threads. `has_glances` says whether those asleep that probes do not see are left to
    /// [`Predictor::add_glances`]. `latch_of` returns the latch, and its wait function, for which threads slept on a
    /// word.
    pub fn add(
        &mut self,
        threads: &[Thread],
        probes: &[Probes],
        has_glances: bool,
        mut latch_of: impl FnMut(u64) -> Option<(MapKey, u8)>,
        samples: &mut Samples,
    ) {
        self.end_turns(probes);
        self.looks += 1;
        let mut waiters = HashMap::new();
        for thread in threads {
            let seen_by = thread.seen.and_then(|(_, function)| self.group_of.get(&function).copied());
            let is_asleep = thread.doing >> types::doing_bit::DOING_KIND.0 == 0;
            if has_glances && is_asleep {
                self.note_sleeper(thread);
            }
            for (index, probes) in probes.iter().enumerate() {
                let activity = self.activity(index, thread);
                if let Activity::Waits(latch, _) = activity {
                    self.groups[index].was_read |= self.is_of(index, &latch);
                }
                match probes {
                    Probes::On => {
                        let latch = thread.seen.filter(|_| seen_by == Some(index)).map(|(latch, _)| latch);
                        let predicted = self.predict(index, activity, &mut latch_of);
                        self.groups[index].turn.add(activity, latch, &predicted);
                    }
                    // The end of such a wait is seen.
                    Probes::Off if seen_by == Some(index) => {}
                    Probes::Off if has_glances && is_asleep => {}
                    Probes::Off => {
                        for (latch, share) in &*self.predict(index, activity, &mut latch_of) {
                            *waiters.entry(*latch).or_default() += share;
                        }
                    }
                    Probes::Partly => {}
                }
            }
        }
        for (group, _) in self.groups.iter_mut().zip(probes).filter(|(_, probes)| **probes == Probes::On) {
            group.turn.looks += 1.0;
        }
        samples.add(&waiters);
    }

    /// Adds glances. Threads are taken to sleep for a latch as often as those that looks have shown on the same word.
    pub fn add_glances(
        &mut self,
        glanced: &Glanced,
        mut latch_of: impl FnMut(u64) -> Option<(MapKey, u8)>,
        samples: &mut Samples,
    ) {
        let mut latches = Latches::default();
        let mut known: HashMap<(u64, u64), (Division, f64)> = HashMap::new();
        let mut glances = Vec::with_capacity(glanced.ends.len());
        let mut start = 0;
        for (end, off) in &glanced.ends {
            let mut sleepers = vec![0.0; latches.all.len()];
            for word in &glanced.words[start..*end] {
                let (division, times) = known
                    .entry((*off, *word))
                    .or_insert_with(|| (self.division(*off, *word, &mut latch_of, &mut latches), 0.0));
                *times += 1.0;
                sleepers.resize(latches.all.len(), 0.0);
                division.shares.iter().for_each(|(latch, share)| sleepers[*latch] += share);
            }
            glances.push(sleepers);
            start = *end;
        }
        let mut divided = vec![0.0; latches.all.len()];
        known.values().for_each(|(division, times)| division.add_variance(*times, &mut divided));
        samples.add_glances(&latches.all, &glances, &divided);
        self.evaluations += 1;
        if self.evaluations.is_multiple_of(KEPT_FOR) {
            self.words.retain(|_, sleepers| sleepers.fade());
        }
    }

    /// Returns which latches threads that sleep on a word wait for in the functions of these groups.
    fn division(
        &mut self,
        groups: u64,
        word: u64,
        mut latch_of: impl FnMut(u64) -> Option<(MapKey, u8)>,
        latches: &mut Latches,
    ) -> Division {
        let is_shown = self.words.contains_key(&word);
        let like = if is_shown || latch_of(word).is_some() { word } else { NEW };
        let (looks, activities) = match self.words.get_mut(&like) {
            Some(sleepers) => (sleepers.looks, std::mem::take(&mut sleepers.activities)),
            None => (1.0, vec![vec![(Activity::Other(word), 1.0)]; self.groups.len()]),
        };
        let looks = if like == word { looks } else { 0.0 };
        let mut division = Division { looks, ..Division::default() };
        for group in (0..self.groups.len()).filter(|group| (groups >> group) & 1 == 1) {
            let all: f64 = activities[group].iter().map(|(_, weight)| weight).sum();
            for (activity, weight) in &activities[group] {
                for (latch, share) in &*self.predict(group, *activity, &mut latch_of) {
                    division.add(latches.index(*latch), share * weight / all);
                }
            }
        }
        if let Some(sleepers) = self.words.get_mut(&like) {
            sleepers.activities = activities;
        }
        division
    }

    /// Takes note of what a thread does that a look has shown asleep on a word.
    fn note_sleeper(&mut self, thread: &Thread) {
        let (look, word) = (self.looks, thread.doing);
        let activities: Vec<Activity> = (0..self.groups.len()).map(|group| self.activity(group, thread)).collect();
        if self.words.len() >= MOST_WORDS && !self.words.contains_key(&word) {
            return;
        }
        let groups = activities.len();
        let sleepers = self.words.entry(word).or_insert_with(|| Sleepers::none(groups));
        sleepers.add(&activities, look);
        if sleepers.are_new {
            let of_any_word = |activity| match activity {
                Activity::Other(word) => novelty(word),
                waits @ Activity::Waits(..) => waits,
            };
            let activities: Vec<Activity> = activities.into_iter().map(of_any_word).collect();
            self.words.entry(NEW).or_insert_with(|| Sleepers::none(groups)).add(&activities, look);
        }
    }

    /// Notes how good the predictions in samples are.
    pub fn finish(&mut self, samples: &mut Samples) {
        self.next = samples.after();
        for group in &self.groups {
            for (latch, waiters) in &mut samples.latches {
                if let Some(check) = group.checks.get(latch) {
                    waiters.set_error(check.error());
                }
            }
        }
        let learned = |function: &u8| self.groups[self.group_of[function]].is_known();
        samples.learned = self.group_of.keys().copied().filter(learned).collect();
    }

    /// Learns from the turns that have ended before a look.
    fn end_turns(&mut self, probes: &[Probes]) {
        for (group, probes) in self.groups.iter_mut().zip(probes) {
            let looks = group.turn.looks;
            if looks >= LONGEST_TURN || (looks > 0.0 && *probes != Probes::On) {
                group.end_turn();
                self.predictions.clear();
            }
        }
    }

    /// Returns what a thread does, as far as that says which latch of a group it waits for.
    fn activity(&self, group: usize, thread: &Thread) -> Activity {
        let mut waits = thread.waits.iter().flatten();
        let of_group = waits.clone().find(|(latch, _)| self.is_of(group, latch));
        match of_group.or_else(|| waits.next()) {
            Some((latch, is_asleep)) => Activity::Waits(*latch, *is_asleep),
            None => Activity::Other(thread.doing),
        }
    }

    fn is_of(&self, group: usize, latch: &MapKey) -> bool {
        self.group_of.get(&latch_key(latch).function) == Some(&group)
    }

    /// Returns which latches of a group threads wait for that do this, and with which probability.
    fn predict(
        &mut self,
        group: usize,
        activity: Activity,
        mut latch_of: impl FnMut(u64) -> Option<(MapKey, u8)>,
    ) -> Rc<Prediction> {
        if let Some(known) = self.predictions.get(&(group, activity)) {
            return Rc::clone(known);
        }
        let prediction = match activity {
            Activity::Waits(latch, _) => self.groups[group].predict_waits(activity, latch, self.is_of(group, &latch)),
            Activity::Other(doing) => {
                match latch_of(doing).filter(|(_, function)| self.group_of.get(function) == Some(&group)) {
                    Some((latch, _)) => Rc::from([(latch, 1.0)]),
                    None => self.groups[group].predict(doing),
                }
            }
        };
        self.predictions.insert((group, activity), Rc::clone(&prediction));
        prediction
    }
}

impl Group {
    /// Returns what threads wait for whose stacks say that they wait for a latch, of this group or of another.
    fn predict_waits(&self, activity: Activity, latch: MapKey, is_of_group: bool) -> Rc<Prediction> {
        let mut known = self.known.get(&activity).cloned().unwrap_or_default();
        if is_of_group {
            known.seen += PRIOR;
            *known.waited.entry(latch).or_default() += PRIOR;
        }
        known.prediction().collect()
    }

    /// Whether predictions are better than estimates by time.
    fn is_known(&self) -> bool {
        (self.is_readable && self.was_read) || self.looks >= ENOUGH_LOOKS
    }

    fn predict(&self, doing: u64) -> Rc<Prediction> {
        let exactly = Activity::Other(doing);
        let is_known = self.known.get(&exactly).is_some_and(|known| known.seen >= ENOUGH_SEEN);
        let known = self.known.get(&if is_known { exactly } else { novelty(doing) });
        known.into_iter().flat_map(Doing::prediction).collect()
    }

    /// Checks what was predicted, and learns from what was seen.
    fn end_turn(&mut self) {
        let turn = std::mem::take(&mut self.turn);
        if self.is_known() {
            self.check(&turn);
        }
        for (doing, seen) in turn.doing {
            let known = self.known.entry(doing).or_default();
            let is_new = known.seen < ENOUGH_SEEN;
            known.add(&seen);
            if let (true, Activity::Other(doing)) = (is_new, doing) {
                self.known.entry(novelty(doing)).or_default().add(&seen.times((ENOUGH_SEEN / seen.seen).min(1.0)));
            }
        }
        self.looks += turn.looks;
        self.fade();
    }

    fn check(&mut self, turn: &Turn) {
        let mut waited: HashMap<MapKey, f64> = HashMap::new();
        for (latch, n) in turn.doing.values().flat_map(|doing| &doing.waited) {
            *waited.entry(*latch).or_default() += n;
        }
        for latch in waited.keys().chain(turn.predicted.keys()) {
            self.checks.entry(*latch).or_default();
        }
        for (latch, check) in &mut self.checks {
            let [waited, predicted] = [&waited, &turn.predicted].map(|of| of.get(latch).copied().unwrap_or_default());
            check.add(waited, predicted);
        }
    }

    /// Lets what was learned fade. What has not been seen for long is forgotten.
    fn fade(&mut self) {
        if self.looks <= MEMORY {
            return;
        }
        let keep = MEMORY / self.looks;
        self.looks = MEMORY;
        self.known.retain(|_, known| {
            known.seen *= keep;
            known.waited.values_mut().for_each(|waited| *waited *= keep);
            known.seen > 0.1
        });
    }
}

/// Returns what stands for everything of this kind that threads were seldom seen doing: sleeping on a word, a system
/// call, or running some code.
fn novelty(doing: u64) -> Activity {
    const KIND: u32 = types::doing_bit::DOING_KIND.0;
    Activity::Other(doing >> KIND << KIND | NEW)
}

/// Latches by index.
#[derive(Default)]
struct Latches {
    all: Vec<MapKey>,
    index: HashMap<MapKey, usize>,
}

impl Latches {
    fn index(&mut self, latch: MapKey) -> usize {
        *self.index.entry(latch).or_insert_with(|| {
            self.all.push(latch);
            self.all.len() - 1
        })
    }
}

impl Sleepers {
    fn none(groups: usize) -> Sleepers {
        Sleepers { looks: 0.0, last: 0, are_new: true, activities: vec![Vec::new(); groups] }
    }

    /// Adds a sleeper that the look of this number has shown; looks count from 1.
    fn add(&mut self, activities: &[Activity], look: u64) {
        if look != self.last {
            // Only then, glances would not know the word.
            self.are_new = self.looks == 0.0;
            (self.looks, self.last) = (self.looks + 1.0, look);
        }
        for (all, activity) in self.activities.iter_mut().zip(activities) {
            match all.iter_mut().find(|(known, _)| known == activity) {
                Some((_, weight)) => *weight += 1.0,
                None => all.push((*activity, 1.0)),
            }
        }
    }

    /// Takes weight from all. Returns whether they are still remembered.
    fn fade(&mut self) -> bool {
        self.looks *= KEEP;
        self.activities.iter_mut().flatten().for_each(|(_, weight)| *weight *= KEEP);
        self.looks > LEAST_WEIGHT
    }
}

impl Division {
    fn add(&mut self, latch: usize, share: f64) {
        match self.shares.iter_mut().find(|(known, _)| *known == latch) {
            Some((_, sum)) => *sum += share,
            None => self.shares.push((latch, share)),
        }
    }

    /// Adds the variance of how many of so many sleepers are taken to wait for each latch.
    fn add_variance(&self, sleepers: f64, sums: &mut [f64]) {
        for (latch, share) in &self.shares {
            // Even if all looks have shown the same, others could show something else.
            let likely = (share * self.looks + 0.5) / (self.looks + 1.0);
            let variance = match self.looks {
                // All that sleep on one word mostly wait for the same latch, but it is not known for which.
                0.0 => share * (1.0 - share),
                // The same looks say this for as many evaluations as they are remembered, so the errors add up.
                looks => likely * (1.0 - likely) / (looks + 2.0) * REMEMBERED,
            };
            sums[*latch] += sleepers * sleepers * variance.max(0.0);
        }
    }
}

impl Doing {
    /// Returns for which latches they wait, and with which probability.
    fn prediction(&self) -> impl Iterator<Item = (MapKey, f64)> + '_ {
        self.waited.iter().map(|(latch, n)| (*latch, n / self.seen))
    }

    fn times(&self, times: f64) -> Doing {
        Doing { seen: times * self.seen, waited: self.waited.iter().map(|(latch, n)| (*latch, times * n)).collect() }
    }

    fn add(&mut self, other: &Doing) {
        self.seen += other.seen;
        for (latch, waited) in &other.waited {
            *self.waited.entry(*latch).or_default() += waited;
        }
    }
}

impl Turn {
    fn add(&mut self, activity: Activity, latch: Option<MapKey>, predicted: &[(MapKey, f64)]) {
        let doing = self.doing.entry(activity).or_default();
        doing.seen += 1.0;
        if let Some(latch) = latch {
            *doing.waited.entry(latch).or_default() += 1.0;
        }
        for (latch, share) in predicted {
            *self.predicted.entry(*latch).or_default() += share;
        }
    }
}

impl Check {
    fn add(&mut self, waited: f64, predicted: f64) {
        const OF_TURNS: f64 = 1.0 - 1.0 / CHECKS;
        self.turns = OF_TURNS * self.turns + 1.0;
        self.predicted = OF_TURNS * self.predicted + predicted;
        self.squared_errors = OF_TURNS * self.squared_errors + (waited - predicted).powi(2);
    }

    /// Returns the standard error of the sum of predictions, as a part of it.
    fn error(&self) -> f64 {
        if self.predicted <= 0.0 {
            return UNCHECKED;
        }
        // With few turns, the error is itself uncertain.
        let few = (self.turns + 1.0) / self.turns;
        (few * (ALIKE * self.squared_errors).sqrt() / self.predicted).min(MOST_ERROR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATCH: MapKey = [1; size_of::<types::latch_key>()];
    const OTHER: MapKey = [2; size_of::<types::latch_key>()];
    const KIND: u32 = types::doing_bit::DOING_KIND.0;
    const WORD: u64 = 0x7f00;
    const CODE: u64 = (3 << KIND) + 0x40;

    /// A predictor of two groups, of the functions 1 and 2.
    fn predictor() -> Predictor {
        Predictor::new(&[(vec![1], false), (vec![2], true)])
    }

    fn idle(doing: u64) -> Thread {
        Thread { doing, waits: [None; 2], seen: None }
    }

    fn waiting(doing: u64) -> Thread {
        Thread { doing, waits: [None; 2], seen: Some((LATCH, 1)) }
    }

    /// Adds the same look some times. Threads sleep on no known word.
    fn add(predictor: &mut Predictor, looks: usize, threads: &[Thread], probes: Probes) -> Samples {
        let mut samples = predictor.begin();
        for _ in 0..looks {
            predictor.add(threads, &[probes, probes], false, |_| None, &mut samples);
        }
        predictor.finish(&mut samples);
        samples
    }

    /// Returns how many threads wait for the latch, on average, and the standard error of that.
    fn waiters(samples: &Samples, latch: MapKey) -> (f64, f64) {
        let (mean, variance) = samples.missed(latch, 1, 1.0).expect("enough was learned");
        (mean, variance.sqrt())
    }

    #[test]
    fn threads_that_do_the_same_wait_as_often() {
        let mut predictor = predictor();
        let on = add(&mut predictor, 50, &[waiting(CODE), idle(CODE), waiting(WORD), idle(WORD + 8)], Probes::On);
        assert!(on.missed(LATCH, 1, 1.0).is_none(), "the turn has not ended yet");
        let off = add(&mut predictor, 50, &[idle(CODE), idle(CODE), idle(WORD), idle(WORD + 8)], Probes::Off);
        let (mean, _) = waiters(&off, LATCH);
        assert!((mean - 2.0).abs() < 1e-9, "{mean}");
        assert_eq!(waiters(&off, OTHER).0, 0.0);
        // What was learned in another group has no effect.
        assert!(off.missed(LATCH, 9, 1.0).is_none());
    }

    #[test]
    fn what_was_never_seen_counts_as_the_average_of_its_kind() {
        let mut predictor = predictor();
        // Each word is seen once; threads wait on one of four.
        let on: Vec<Thread> =
            (0..100).map(|i| if i % 4 == 0 { waiting(WORD + 8 * i) } else { idle(WORD + 8 * i) }).collect();
        let mut samples = predictor.begin();
        for threads in on.chunks(4) {
            predictor.add(threads, &[Probes::On; 2], false, |_| None, &mut samples);
        }
        let off = add(&mut predictor, 10, &[idle(0x9000), idle(CODE)], Probes::Off);
        assert!((waiters(&off, LATCH).0 - 0.25).abs() < 1e-9);
    }

    #[test]
    fn a_known_word_decides() {
        let mut predictor = predictor();
        add(&mut predictor, 30, &[idle(WORD)], Probes::On);
        let mut samples = predictor.begin();
        let latch_of = |word| (word == WORD).then_some((LATCH, 1));
        predictor.add(&[idle(WORD), idle(WORD + 8)], &[Probes::Off; 2], false, latch_of, &mut samples);
        predictor.finish(&mut samples);
        assert_eq!(waiters(&samples, LATCH).0, 1.0);
    }

    #[test]
    fn waits_whose_end_is_seen_are_not_missed() {
        let mut predictor = predictor();
        add(&mut predictor, 30, &[waiting(CODE)], Probes::On);
        let off = add(&mut predictor, 10, &[waiting(CODE)], Probes::Off);
        assert_eq!(waiters(&off, LATCH).0, 0.0);
        let partly = add(&mut predictor, 10, &[idle(CODE)], Probes::Partly);
        assert_eq!(waiters(&partly, LATCH).0, 0.0);
    }

    /// What stacks say is believed at first, and weighed against what the probes see later.
    #[test]
    fn stacks_say_what_threads_wait_for() {
        let latch = types::latch_key { function: 1, id: 7, ..Default::default() };
        let latch = crate::measure::latch::keys::key_of(&latch);
        let reads = |seen| Thread { doing: WORD, waits: [Some((latch, true)), None], seen };
        let mut predictor = predictor();
        add(&mut predictor, 20, &[idle(CODE)], Probes::On);
        let off = add(&mut predictor, 10, &[reads(None), idle(WORD)], Probes::Off);
        assert_eq!(waiters(&off, latch).0, 1.0);
        add(&mut predictor, 200, &[reads(Some((LATCH, 1))), reads(None)], Probes::On);
        let off = add(&mut predictor, 10, &[reads(None)], Probes::Off);
        assert!(waiters(&off, latch).0 < 0.01 && (waiters(&off, LATCH).0 - 0.5).abs() < 0.01);
    }

    #[test]
    fn of_what_stacks_show_nothing_must_be_learned_first() {
        let latch = types::latch_key { function: 2, ..Default::default() };
        let latch = crate::measure::latch::keys::key_of(&latch);
        let thread = Thread { doing: WORD, waits: [Some((latch, false)), None], seen: None };
        let off = add(&mut predictor(), 10, &[thread; 3], Probes::Off);
        assert_eq!(off.missed(latch, 2, 1.0).map(|(ns, _)| ns), Some(3.0));
        assert_eq!(off.missed(LATCH, 1, 1.0), None);
        let unread = add(&mut predictor(), 10, &[idle(WORD)], Probes::Off);
        assert_eq!(unread.missed(latch, 2, 1.0), None);
    }

    /// Of four threads that looks show asleep on a word, three wait for a latch.
    #[test]
    fn glances_are_divided_as_looks_saw_the_sleepers() {
        let latch = types::latch_key { function: 2, id: 7, ..Default::default() };
        let latch = crate::measure::latch::keys::key_of(&latch);
        let waits = Thread { doing: WORD, waits: [Some((latch, true)), None], seen: None };
        let threads = [waits, waits, idle(WORD), waits, Thread { doing: CODE, ..waits }];
        let mut predictor = predictor();
        let mut samples = predictor.begin();
        (0..10).for_each(|_| predictor.add(&threads, &[Probes::Off; 2], true, |_| None, &mut samples));
        let known = |word| (word == WORD + 8).then_some((OTHER, 2));
        let glanced = Glanced { words: vec![WORD, WORD, WORD + 8, WORD], ends: vec![(3, 0b10), (4, 0b01)] };
        predictor.add_glances(&glanced, known, &mut samples);
        predictor.finish(&mut samples);
        // Each look shows one waiter awake; the second glance is of the other group.
        let ns = |latch| samples.missed(latch, 2, 1.0).map(|(ns, _)| ns);
        assert_eq!((ns(latch), ns(OTHER)), (Some(1.0 + 0.75), Some(0.5)));
    }

    /// Words are new in each look, and two threads of three that sleep on one wait for a latch.
    #[test]
    fn sleepers_on_a_new_word_are_like_those_on_other_new_ones() {
        let latch = types::latch_key { function: 2, id: 7, ..Default::default() };
        let latch = crate::measure::latch::keys::key_of(&latch);
        let mut predictor = predictor();
        let mut samples = predictor.begin();
        for n in 0..20 {
            let waits = Thread { doing: WORD + 16 * n, waits: [Some((latch, true)), None], seen: None };
            predictor.add(&[waits, waits, idle(WORD + 16 * n + 8)], &[Probes::Off; 2], true, |_| None, &mut samples);
        }
        let glanced = Glanced { words: vec![WORD + 0x900; 3], ends: vec![(3, 0b10)] };
        predictor.add_glances(&glanced, |_| None, &mut samples);
        assert_eq!(predictor.words.len(), 41);
        // A word that was seen before says nothing of new ones.
        (0..KEPT_FOR).for_each(|_| predictor.add_glances(&Glanced::default(), |_| None, &mut Samples::default()));
        predictor.add(&[idle(WORD)], &[Probes::Off; 2], true, |_| None, &mut samples);
        let others: f64 = predictor.words[&NEW].activities[1].iter().map(|(_, weight)| weight).sum();
        assert!((others - 60.0 * KEEP).abs() < 1e-9, "{others}");
        predictor.finish(&mut samples);
        let (ns, variance) = samples.missed(latch, 2, 1.0).unwrap();
        assert!((ns - 2.0).abs() < 1e-9 && variance > 1.0, "{ns} {variance}");
        let nothing = Glanced::default();
        (0..120).for_each(|_| predictor.add_glances(&nothing, |_| None, &mut samples));
        assert!(predictor.words.is_empty());
    }

    /// Turns in which always half, or now all and now none of the threads wait.
    #[test]
    fn turns_show_how_good_predictions_are() {
        let error = |all_or_none: bool| {
            let mut predictor = predictor();
            let mut last = (0.0, 0.0);
            for turn in 0..20 {
                let threads = match (all_or_none, turn % 2) {
                    (false, _) => [waiting(CODE), idle(CODE)],
                    (true, 0) => [waiting(CODE); 2],
                    (true, _) => [idle(CODE); 2],
                };
                add(&mut predictor, 30, &threads, Probes::On);
                last = waiters(&add(&mut predictor, 400, &[idle(CODE); 2], Probes::Off), LATCH);
            }
            assert!((last.0 - 1.0).abs() < 0.05, "{last:?}");
            last.1
        };
        let (steady, changing) = (error(false), error(true));
        // Of some twelve turns, each is wrong by all of it, and three say no more than one.
        assert!(steady < 0.06 && (0.4..0.7).contains(&changing), "{steady} {changing}");
    }

    #[test]
    fn turns_with_few_waiters_say_little_of_the_error() {
        let mut check = Check::default();
        check.add(1.0, 0.02);
        assert_eq!((check.error(), Check::default().error()), (MOST_ERROR, UNCHECKED));
    }

    #[test]
    fn what_was_learned_long_ago_is_forgotten() {
        let mut predictor = predictor();
        add(&mut predictor, 100, &[waiting(CODE)], Probes::On);
        for _ in 0..40 {
            add(&mut predictor, 500, &[idle(CODE + 64)], Probes::On);
            add(&mut predictor, 1, &[], Probes::Off);
        }
        assert!(!predictor.groups[0].known.contains_key(&Activity::Other(CODE)));
    }
}
