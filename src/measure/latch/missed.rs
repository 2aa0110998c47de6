//! Estimates what probes did not see while they were off, from what they saw of late.
//!
//! Looks at the server's threads show how many wait for a latch unseen, and so for how long in all. Where they are not
//! possible, or too little has been learned yet, waits are taken to be as frequent as while the probes were on.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use super::keys::{key_of, latch_key, MapKey};
use super::maps::Counts;
use super::samples::Samples;
use super::stacks::Sampled;
use super::taken_out::{self, other_pages, TakenOut};
use crate::bpf::latch::types;
use crate::model::BUCKETS;

/// In this time, in seconds, the weight of what was seen falls to a third.
const HORIZON: f64 = 20.0;

/// Estimates that follow each other err in the same direction, because they rest on the same waits. If waits came
/// independently, this would be 0.5. But waits of successive seconds resemble each other: with 0.5,
/// performance_schema's sum was within the 95 % interval in 21 of 25 cases, and with 1.5 in 39 of 40 (MariaDB 10.11 and
/// MySQL 9.7, 24 threads of `oltp_write_only`).
const COMMON_ERROR: f64 = 1.5;

/// What was not seen, and what that is estimated from.
#[derive(Default)]
pub(crate) struct Missed {
    sums: Estimates,
    seen: Seen,
    recent: Recent,
    /// Pages that were counted before, and are not in the programs' map any more.
    taken_out: TakenOut,
    /// How many waiters were seen for whose latches or call sites there is no room.
    crowded_latches: u64,
    crowded_callsites: u64,
}

/// What was not seen since attach.
#[derive(Clone, Default)]
pub(super) struct Estimates {
    latches: HashMap<MapKey, Estimate>,
    parts: HashMap<Part, Sum>,
}

/// As many latches and call sites as the programs have room for are kept, so that a server cannot fill the memory.
const MOST_LATCHES: usize = types::limit::MAX_LATCHES.0 as usize;
const MOST_CALLSITES: usize = types::limit::MAX_CALLSITES.0 as usize;

/// For how long the probes of a wait function were on and off since estimates were last made, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Span {
    pub on: f64,
    pub off: f64,
}

/// The keys by which waits for a latch are distinguished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Part {
    Callsite(MapKey, u64, u64),
    /// The space, the type, the level, the index, and the wait function.
    Page(u32, u16, u16, u64, u32),
    /// The domains, and the latch.
    Handoff(MapKey, u8, u8),
    /// The handoffs whose waiter moved meanwhile.
    Migration(MapKey, u8, u8),
}

/// What had been seen when estimates were last made.
#[derive(Default)]
struct Seen {
    latches: HashMap<MapKey, types::waits>,
    /// Waits and nanoseconds.
    parts: HashMap<Part, (u64, u64)>,
}

/// What was seen of late, with less and less weight.
#[derive(Default)]
struct Recent {
    /// The time on and the time off of each wait function, in seconds.
    functions: HashMap<usize, (Steps, f64)>,
    latches: HashMap<MapKey, RecentWaits>,
    /// Waits and nanoseconds.
    parts: HashMap<Part, (f64, f64)>,
}

#[derive(Clone, Default)]
struct RecentWaits {
    waits: Weighted,
    /// The wait time by the time that the probes were on.
    by_time: Pair,
}

/// Two quantities that were seen in turns, of which one is estimated by the other.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Pair {
    sum: f64,
    squares: f64,
    /// The sum over turns of the product with the other quantity.
    products: f64,
}

/// A quantity that was seen in turns.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Steps {
    sum: f64,
    squares: f64,
    /// The sum of the weights, and of their squares.
    weights: f64,
    weight_squares: f64,
}

/// Waits with a weight.
#[derive(Clone, Debug, Default, PartialEq)]
struct Weighted {
    sum_ns: f64,
    slept: f64,
    buckets: [f64; BUCKETS],
}

/// What was missed, as a multiple of the recent waits.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Scale {
    times: f64,
    /// The square of the standard error of the wait time, in square nanoseconds.
    variance: f64,
}

/// The waits for a latch that were not seen.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Estimate {
    /// The address of a latch, if no wait was counted.
    pub example: u64,
    pub sum_ns: f64,
    /// The square of the standard error of `sum_ns`.
    pub variance: f64,
    pub buckets: [f64; BUCKETS],
    /// The sleep in all waits that were not watched, whether they were seen or not, and the number of sleeps.
    pub sleep_ns: f64,
    pub sleeps: f64,
    /// How many of those waits slept, and how many did not.
    pub slept: f64,
    pub won: f64,
    /// The time of those waits whose share of sleep is not known yet.
    unwatched_ns: f64,
}

/// The waits at a call site, or for pages, that were not seen.
#[derive(Clone, Copy, Default)]
pub(super) struct Sum {
    pub count: f64,
    pub sum_ns: f64,
}

impl Missed {
    /// Estimates what was missed since the last call; `spans` says for how long each wait function's probes were on and
    /// off, and `samples` what looks at the threads have shown, if they were sampled all that time. The share of sleep
    /// in waits that were not watched is taken to be the same as in those that were.
    pub(super) fn estimate(&mut self, counts: &Counts, spans: &[Span], samples: Option<&Samples>) {
        self.recent.begin(spans);
        let mut scales: HashMap<MapKey, Scale> = HashMap::new();
        for (key, now) in &counts.latches {
            let (id, function) = (key_of(key), usize::from(key.function));
            let before = self.seen.latches.insert(id, *now).unwrap_or_default();
            let span = spans.get(function).copied().unwrap_or_default();
            let by_time = self.recent.functions.get(&function).copied().unwrap_or_default();
            let elapsed_ns = (span.on + span.off) * 1e9;
            let missed = samples.and_then(|samples| samples.missed(id, key.function, elapsed_ns));
            let recent = self.recent.latches.entry(id).or_default();
            recent.add(&Weighted::between(&before, now), span);
            let scale = recent.scale(by_time, span, missed);
            self.sums.latches.entry(id).or_default().add(
                &recent.waits.times(scale.times),
                scale.variance,
                &before,
                now,
            );
            scales.insert(id, scale);
        }
        self.estimate_parts(counts, spans, &scales);
    }

    /// Estimates the parts of the waits: call sites and handoffs as their latch, pages by time.
    fn estimate_parts(&mut self, counts: &Counts, spans: &[Span], scales: &HashMap<MapKey, Scale>) {
        for (part, latch, function, now) in parts(counts) {
            let before = self.seen.parts.insert(part, now).unwrap_or_default();
            let times = match latch {
                Some(latch) => scales.get(&latch).map_or(0.0, |scale| scale.times),
                None => self.recent.missed_time(function, spans),
            };
            let recent = self.recent.parts.entry(part).or_default();
            recent.0 += now.0.saturating_sub(before.0) as f64;
            recent.1 += now.1.saturating_sub(before.1) as f64;
            if times > 0.0 {
                let missed = self.sums.parts.entry(part).or_default();
                missed.count += times * recent.0;
                missed.sum_ns += times * recent.1;
            }
        }
    }

    /// Adds what the threads' stacks have shown in a time.
    pub(super) fn add_seen(&mut self, seen: &Sampled, elapsed: Duration) {
        let looks = seen.samples.looks;
        if looks == 0 {
            return;
        }
        let elapsed_ns = elapsed.as_secs_f64() * 1e9;
        let time_of = |threads: f64| threads / looks as f64 * elapsed_ns;
        for (latch, waiters) in &seen.samples.latches {
            if self.sums.latches.len() >= MOST_LATCHES && !self.sums.latches.contains_key(latch) {
                self.crowded_latches += 1;
                continue;
            }
            let (ns, variance) = waiters.between(looks, elapsed_ns);
            let estimate = self.sums.latches.entry(*latch).or_default();
            estimate.sum_ns += ns;
            estimate.variance += variance;
            estimate.sleep_ns += time_of(seen.asleep.get(latch).copied().unwrap_or_default());
            estimate.example = seen.examples.get(latch).copied().unwrap_or(estimate.example);
        }
        for ((latch, address, line), threads) in &seen.callsites {
            let part = Part::Callsite(*latch, *address, *line);
            if self.sums.parts.len() >= MOST_CALLSITES && !self.sums.parts.contains_key(&part) {
                self.crowded_callsites += 1;
                continue;
            }
            self.sums.parts.entry(part).or_default().sum_ns += time_of(*threads);
        }
    }

    /// Returns how often there was no room for a latch, and for a call site.
    pub(super) fn crowded(&self) -> [(&'static str, u64); 2] {
        [("latches_full", self.crowded_latches), ("callsites_full", self.crowded_callsites)]
    }

    /// Returns the latches and call sites of which no wait was counted, as the programs would have them.
    pub(super) fn uncounted(&self) -> Counts {
        let latches = self.sums.latches.iter().filter(|(_, estimate)| estimate.example != 0);
        let callsites = self.sums.parts.keys().filter_map(|part| match part {
            Part::Callsite(latch, address, line) if self.sums.latches.get(latch).is_some_and(|e| e.example != 0) => {
                Some((latch_key(latch), *address, *line))
            }
            _ => None,
        });
        Counts {
            latches: latches
                .map(|(key, estimate)| {
                    (latch_key(key), types::waits { example: estimate.example, ..types::waits::default() })
                })
                .collect(),
            callsites: callsites
                .map(|(latch, address, line)| (types::callsite_key { latch, address, line }, Default::default()))
                .collect(),
            ..Counts::default()
        }
    }

    /// Takes note of waits during a time of which it is not known when the probes were on: nothing is estimated. What
    /// is absent from `counts` stays as it was, because reading a map can end early. Otherwise, its whole history would
    /// be taken for new the next time.
    pub(super) fn skip(&mut self, counts: &Counts) {
        self.seen.latches.extend(counts.latches.iter().map(|(key, waits)| (key_of(key), *waits)));
        self.seen.parts.extend(parts(counts).map(|(part, _, _, now)| (part, now)));
    }

    /// Makes room for other pages if the programs' map is nearly full. `take` takes entries out of it, and returns
    /// what they had counted.
    pub(super) fn make_room(
        &mut self,
        counts: &Counts,
        take: impl FnOnce(&[types::page_key]) -> Vec<(types::page_key, types::page_waits)>,
    ) {
        let recent = |key: &types::page_key| self.recent.parts.get(&page_part(key)).map_or(0.0, |(_, ns)| *ns);
        let coldest = taken_out::coldest(&counts.pages, recent);
        if coldest.is_empty() {
            return;
        }
        let taken = take(&coldest);
        for (key, waits) in &taken {
            // If the page is waited for again, its entry begins at zero.
            self.seen.parts.remove(&page_part(key));
            self.recent.parts.remove(&page_part(key));
            self.taken_out.add(*key, waits);
        }
        let taken: HashSet<Part> = taken.iter().map(|(key, _)| page_part(key)).collect();
        let there = counts.pages.iter().map(|(key, _)| *key).filter(|key| !taken.contains(&page_part(key)));
        for key in self.taken_out.bound(there) {
            if let Some(missed) = self.sums.parts.remove(&page_part(&key)) {
                let others = self.sums.parts.entry(page_part(&other_pages())).or_default();
                others.count += missed.count;
                others.sum_ns += missed.sum_ns;
            }
        }
    }

    /// Adds the waits for pages that are not in the programs' map any more.
    pub(super) fn add_taken_out(&self, counts: &mut Counts) {
        self.taken_out.add_to(&mut counts.pages);
    }

    /// Returns what was not seen, as it is now.
    pub(super) fn estimates(&self) -> Estimates {
        self.sums.clone()
    }
}

impl Estimates {
    pub(super) fn latch(&self, key: &MapKey) -> Option<&Estimate> {
        self.latches.get(key)
    }

    pub(super) fn page(&self, key: &types::page_key) -> Sum {
        self.part(page_part(key))
    }

    pub(super) fn handoff(&self, latch: MapKey, from: u8, to: u8) -> Sum {
        self.part(Part::Handoff(latch, from, to))
    }

    pub(super) fn migrations(&self, latch: MapKey, from: u8, to: u8) -> f64 {
        self.part(Part::Migration(latch, from, to)).count
    }

    pub(super) fn callsite(&self, latch: MapKey, address: u64, line: u64) -> Sum {
        self.part(Part::Callsite(latch, address, line))
    }

    fn part(&self, part: Part) -> Sum {
        self.parts.get(&part).copied().unwrap_or_default()
    }
}

/// Returns the parts of the waits with their latch, their wait function, and their waits and nanoseconds so far.
fn parts(counts: &Counts) -> impl Iterator<Item = (Part, Option<MapKey>, usize, (u64, u64))> + '_ {
    let callsites = counts.callsites.iter().map(|(key, waits)| {
        let latch = key_of(&key.latch);
        let part = Part::Callsite(latch, key.address, key.line);
        (part, Some(latch), key.latch.function.into(), (waits.count, waits.sum_ns))
    });
    let pages = counts
        .pages
        .iter()
        .map(|(key, waits)| (page_part(key), None, key.function as usize, (waits.count, waits.sum_ns)));
    let handoffs = counts.handoffs.iter().flat_map(|(key, handoffs)| {
        let (latch, function) = (key_of(&key.latch), key.latch.function.into());
        let [handoff, migration] = [Part::Handoff, Part::Migration].map(|part| part(latch, key.from, key.to));
        [
            (handoff, Some(latch), function, (handoffs.count, handoffs.sum_ns)),
            (migration, Some(latch), function, (handoffs.migrations, 0)),
        ]
    });
    callsites.chain(pages).chain(handoffs)
}

fn page_part(key: &types::page_key) -> Part {
    Part::Page(key.space, key.r#type, key.level, key.index, key.function)
}

impl Recent {
    /// Lets everything fade by the time that has passed, and adds how long the probes were on and off.
    fn begin(&mut self, spans: &[Span]) {
        let elapsed = spans.iter().map(|span| span.on + span.off).fold(0.0, f64::max);
        let keep = (-elapsed / HORIZON).exp();
        for (function, span) in spans.iter().enumerate() {
            let (on, off) = self.functions.entry(function).or_default();
            on.fade(keep);
            on.add(span.on, span.on > 0.0);
            *off = keep * *off + span.off;
        }
        self.latches.values_mut().for_each(|latch| latch.fade(keep));
        self.parts.values_mut().for_each(|part| *part = (keep * part.0, keep * part.1));
    }

    /// Returns how many times the recent waits in a function were missed, going by time.
    fn missed_time(&self, function: usize, spans: &[Span]) -> f64 {
        let on = self.functions.get(&function).map_or(0.0, |(on, _)| on.sum);
        let off = spans.get(function).map_or(0.0, |span| span.off);
        if on > 0.0 {
            off / on
        } else {
            0.0
        }
    }
}

impl RecentWaits {
    fn fade(&mut self, keep: f64) {
        self.waits.fade(keep);
        self.by_time.fade(keep);
    }

    /// Adds what was seen in a span.
    fn add(&mut self, new: &Weighted, span: Span) {
        self.by_time.add(new.sum_ns, span.on);
        self.waits.add(new);
    }

    /// Returns what was missed in a span. `by_time` is the recent time on and off, and `missed` the time waited unseen
    /// and the square of its error, if that is known.
    fn scale(&self, by_time: (Steps, f64), span: Span, missed: Option<(f64, f64)>) -> Scale {
        match missed {
            Some((ns, variance)) if self.waits.sum_ns > 0.0 => Scale { times: ns / self.waits.sum_ns, variance },
            Some(_) => Scale::default(),
            None => self.by_time.scale(&by_time.0, span.off, by_time.1),
        }
    }
}

impl Pair {
    fn fade(&mut self, keep: f64) {
        self.sum *= keep;
        self.squares *= keep;
        self.products *= keep;
    }

    /// Adds what was seen in a turn, and the other quantity.
    fn add(&mut self, seen: f64, other: f64) {
        self.sum += seen;
        self.squares += seen * seen;
        self.products += seen * other;
    }

    /// Estimates by the ratio to the other quantity, of which `missed` was missed now, and `missed_of_late` of late.
    fn scale(&self, other: &Steps, missed: f64, missed_of_late: f64) -> Scale {
        if missed <= 0.0 || other.sum <= 0.0 {
            return Scale::default();
        }
        let ratio = self.sum / other.sum;
        let residuals = (self.squares - 2.0 * ratio * self.products + ratio * ratio * other.squares).max(0.0);
        let variance_per_unit = residuals / other.sum * other.small_sample();
        Scale {
            times: missed / other.sum,
            variance: variance_per_unit * missed * (1.0 + COMMON_ERROR * missed_of_late / other.sum),
        }
    }
}

impl Steps {
    fn fade(&mut self, keep: f64) {
        self.sum *= keep;
        self.squares *= keep;
        self.weights *= keep;
        self.weight_squares *= keep * keep;
    }

    /// Adds what was seen in one turn, if there was one.
    fn add(&mut self, seen: f64, is_turn: bool) {
        self.sum += seen;
        self.squares += seen * seen;
        let weight = f64::from(u8::from(is_turn));
        self.weights += weight;
        self.weight_squares += weight;
    }

    /// Returns by how much the variance between few turns understates the uncertainty: for its own degrees of freedom,
    /// and for the variance of Student's t.
    fn small_sample(&self) -> f64 {
        let turns = if self.weight_squares > 0.0 { self.weights * self.weights / self.weight_squares } else { 0.0 };
        let freedom = (turns - 1.0).max(3.0);
        (freedom + 1.0) / (freedom - 2.0)
    }
}

impl Weighted {
    fn between(before: &types::waits, now: &types::waits) -> Weighted {
        let new = |now: u64, before: u64| now.saturating_sub(before) as f64;
        Weighted {
            sum_ns: new(now.sum_ns, before.sum_ns),
            slept: new(now.slept, before.slept),
            buckets: std::array::from_fn(|i| new(now.buckets[i], before.buckets[i])),
        }
    }

    fn times(&self, times: f64) -> Weighted {
        Weighted {
            sum_ns: times * self.sum_ns,
            slept: times * self.slept,
            buckets: self.buckets.map(|bucket| times * bucket),
        }
    }

    fn fade(&mut self, keep: f64) {
        *self = self.times(keep);
    }

    fn add(&mut self, new: &Weighted) {
        self.sum_ns += new.sum_ns;
        self.slept += new.slept;
        self.buckets.iter_mut().zip(new.buckets).for_each(|(bucket, new)| *bucket += new);
    }
}

impl Estimate {
    /// Adds waits that were missed, while those between `before` and `now` were seen.
    fn add(&mut self, missed: &Weighted, variance: f64, before: &types::waits, now: &types::waits) {
        let new = |now: u64, before: u64| now.saturating_sub(before) as f64;
        let seen_ns = new(now.sum_ns, before.sum_ns);
        let watched_ns = new(now.watched_ns, before.watched_ns);
        self.sum_ns += missed.sum_ns;
        self.variance += variance;
        self.buckets.iter_mut().zip(missed.buckets).for_each(|(bucket, more)| *bucket += more);
        self.unwatched_ns += missed.sum_ns + (seen_ns - watched_ns).max(0.0);
        if now.watched_ns > 0 {
            let ratio = std::mem::take(&mut self.unwatched_ns) / now.watched_ns as f64;
            self.sleep_ns += ratio * now.sleep_ns as f64;
            self.sleeps += ratio * now.sleeps as f64;
            self.slept += ratio * now.slept as f64;
            self.won += ratio * now.watched.saturating_sub(now.slept) as f64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits of 100 ns, some of them watched; half of those slept for 80 ns.
    fn waits(seen: u64, watched: u64) -> types::waits {
        let mut waits = types::waits {
            sum_ns: 100 * seen,
            watched,
            watched_ns: 100 * watched,
            sleep_ns: 40 * watched,
            sleeps: watched,
            slept: watched / 2,
            ..Default::default()
        };
        waits.buckets[3] = seen;
        waits
    }

    fn missed(sum_ns: u64, waits: u64) -> Weighted {
        let mut missed = Weighted { sum_ns: sum_ns as f64, ..Weighted::default() };
        missed.buckets[3] = waits as f64;
        missed
    }

    const LATCH: types::latch_key =
        types::latch_key { id: 0x1000, line: 0, identity: 0, mode: 0, function: 0, primitive: 0 };

    /// Returns what is counted of one latch.
    fn counts(waits: types::waits) -> Counts {
        let callsite = types::callsite_key { latch: LATCH, address: 0x2000, ..Default::default() };
        let at = types::callsite_waits { count: waits.buckets.iter().sum(), sum_ns: waits.sum_ns };
        Counts {
            latches: vec![(LATCH, waits)],
            callsites: vec![(callsite, at)],
            pages: Vec::new(),
            handoffs: Vec::new(),
        }
    }

    /// Returns the estimated waits and their seconds, of the latch and of its call site.
    fn estimated(estimates: &Missed) -> ([f64; 2], [f64; 2]) {
        let of_latch = estimates.sums.latch(&key_of(&LATCH)).map_or([0.0; 2], |e| [e.buckets.iter().sum(), e.sum_ns]);
        let at = estimates.sums.part(Part::Callsite(key_of(&LATCH), 0x2000, 0));
        (of_latch, [at.count, at.sum_ns])
    }

    const fn span(on: f64, off: f64) -> [Span; 1] {
        [Span { on, off }]
    }

    fn is_near(a: [f64; 2], b: [f64; 2]) -> bool {
        a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-3 * b.abs())
    }

    #[test]
    fn without_samples_estimates_go_by_time() {
        let mut estimates = Missed::default();
        estimates.estimate(&counts(waits(10, 10)), &span(1.0, 0.0), None);
        assert_eq!(estimated(&estimates), ([0.0; 2], [0.0; 2]));
        let nothing_learned = Samples { looks: 100, ..Samples::default() };
        estimates.estimate(&counts(waits(10, 10)), &span(0.0, 4.0), Some(&nothing_learned));
        let (latch, callsite) = estimated(&estimates);
        assert!(is_near(latch, [40.0, 4000.0]) && callsite == latch, "{latch:?} {callsite:?}");
        // Another turn sees more. It has more weight than the one before.
        estimates.estimate(&counts(waits(40, 40)), &span(1.0, 1.0), None);
        let more = estimated(&estimates).0[0] - latch[0];
        assert!((20.5..30.0).contains(&more), "{more}");
    }

    /// Threads waited for the latch a millionth of the time, and half as much later.
    #[test]
    fn samples_say_how_much_was_missed() {
        let mut estimates = Missed::default();
        let samples = |waiters| Samples::constant(key_of(&LATCH), LATCH.function, waiters);
        estimates.estimate(&counts(waits(10, 10)), &span(1.0, 0.0), Some(&samples(0.0)));
        assert_eq!(estimated(&estimates), ([0.0; 2], [0.0; 2]));
        estimates.estimate(&counts(waits(10, 10)), &span(0.0, 4.0), Some(&samples(1e-6)));
        let (latch, callsite) = estimated(&estimates);
        assert!(is_near(latch, [40.0, 4000.0]) && callsite == latch, "{latch:?} {callsite:?}");
        estimates.estimate(&counts(waits(30, 30)), &span(1.0, 1.0), Some(&samples(0.5e-6)));
        let (latch, callsite) = estimated(&estimates);
        assert!(is_near(latch, [50.0, 5000.0]) && callsite == latch, "{latch:?} {callsite:?}");
        assert!(estimates.sums.latch(&key_of(&LATCH)).unwrap().variance > 0.0);
    }

    #[test]
    fn what_was_seen_at_an_unknown_time_is_not_scaled_up() {
        let mut estimates = Missed::default();
        estimates.skip(&counts(waits(1000, 1000)));
        estimates.estimate(&counts(waits(1010, 1010)), &span(1.0, 1.0), None);
        let (latch, callsite) = estimated(&estimates);
        assert!(is_near(latch, [10.0, 1000.0]) && callsite == latch, "{latch:?} {callsite:?}");
    }

    #[test]
    fn a_latch_that_one_reading_left_out_is_not_new_the_next_time() {
        let mut estimates = Missed::default();
        estimates.skip(&counts(waits(1000, 1000)));
        estimates.skip(&Counts::default());
        estimates.estimate(&counts(waits(1010, 1010)), &span(1.0, 1.0), None);
        let (latch, callsite) = estimated(&estimates);
        assert!(is_near(latch, [10.0, 1000.0]) && callsite == latch, "{latch:?} {callsite:?}");
    }

    /// Returns the estimated wait time and its standard error after turns of a second, a quarter of the time, in which
    /// so many waits were seen.
    fn after_turns(seen: impl IntoIterator<Item = u64>) -> (f64, f64) {
        let mut estimates = Missed::default();
        let mut sum = 0;
        for more in seen {
            sum += more;
            estimates.estimate(&counts(waits(sum, sum)), &span(1.0, 0.0), None);
            estimates.estimate(&counts(waits(sum, sum)), &span(0.0, 3.0), None);
        }
        let estimate = estimates.sums.latch(&key_of(&LATCH)).unwrap();
        (estimate.sum_ns, estimate.variance.sqrt())
    }

    #[test]
    fn the_error_follows_from_how_much_turns_differ() {
        let (sum, same) = after_turns([100; 20]);
        assert!(same < 1e-6 * sum, "{same} of {sum}");
        let (sum, error) = after_turns((0..20).map(|i| 50 + 100 * (i % 2)));
        assert!((0.05..0.4).contains(&(error / sum)), "{error} of {sum}");
        let (_, more) = after_turns((0..20).map(|i| 200 * (i % 2)));
        assert!(more > 1.5 * error, "{more} {error}");
    }

    /// Waits that come at random, and in convoys of 20: estimates differ from the truth by as much as their error says,
    /// or up to half as much, because these waits come independently.
    #[test]
    fn the_error_is_honest() {
        for convoy in [1, 20] {
            let mut random = fastrand::Rng::with_seed(7);
            let mut squares = 0.0;
            for _ in 0..200 {
                let mut estimates = Missed::default();
                let (mut all, mut seen) = (0, 0);
                let mut at_first = (0, 0.0, 0.0);
                for second in 0..60 {
                    let arrive = convoy * (0..400 / convoy).filter(|_| random.u32(..2) == 0).count() as u64;
                    let is_on = second % 4 == 0;
                    all += arrive;
                    seen += if is_on { arrive } else { 0 };
                    let on = f64::from(u8::from(is_on));
                    estimates.estimate(&counts(waits(seen, seen)), &span(on, 1.0 - on), None);
                    if second == 39 {
                        let estimate = estimates.sums.latch(&key_of(&LATCH)).unwrap();
                        at_first = (all, seen as f64 + estimate.sum_ns / 100.0, estimate.variance);
                    }
                }
                let estimate = estimates.sums.latch(&key_of(&LATCH)).unwrap();
                let truth = (all - at_first.0) as f64;
                let figure = seen as f64 + estimate.sum_ns / 100.0 - at_first.1;
                let error = (estimate.variance - at_first.2).sqrt() / 100.0;
                squares += ((figure - truth) / error).powi(2);
            }
            let ratio = (squares / 200.0).sqrt();
            assert!((0.5..=1.0).contains(&ratio), "convoys of {convoy}: {ratio}");
        }
    }

    #[test]
    fn what_was_seen_long_ago_has_less_weight() {
        let mut weighted = missed(1000, 10);
        weighted.fade(0.5);
        weighted.add(&missed(300, 3));
        assert_eq!(weighted, missed(800, 8));
    }

    #[test]
    fn the_missed_waits_of_a_latch_slept_as_the_others_did() {
        let mut estimate = Estimate::default();
        estimate.add(&missed(4000, 40), 0.0, &waits(0, 0), &waits(10, 10));
        estimate.add(&missed(300, 3), 0.0, &waits(10, 10), &waits(12, 12));
        let mut buckets = [0.0; BUCKETS];
        buckets[3] = 43.0;
        let expected = Estimate {
            example: 0,
            sum_ns: 4300.0,
            variance: 0.0,
            buckets,
            sleep_ns: 1720.0,
            sleeps: 43.0,
            slept: 21.5,
            won: 21.5,
            unwatched_ns: 0.0,
        };
        assert_eq!(estimate, expected);
    }

    #[test]
    fn what_was_not_watched_slept_as_what_was() {
        let mut estimate = Estimate::default();
        estimate.add(&missed(0, 0), 0.0, &waits(0, 0), &waits(10, 2));
        assert_eq!((estimate.sum_ns, estimate.sleep_ns), (0.0, 320.0));
        // Twice as many were not seen, and none of them was watched.
        estimate.add(&missed(1000, 10), 0.0, &waits(10, 2), &waits(15, 2));
        assert_eq!((estimate.sum_ns, estimate.sleep_ns), (1000.0, 320.0 + 15.0 * 40.0));
    }

    #[test]
    fn sleep_is_made_up_for_when_something_was_watched() {
        let mut estimate = Estimate::default();
        estimate.add(&missed(1000, 10), 0.0, &waits(0, 0), &waits(10, 0));
        assert_eq!(estimate.sleep_ns, 0.0);
        estimate.add(&missed(0, 0), 0.0, &waits(10, 0), &waits(12, 2));
        assert_eq!(estimate.sleep_ns, 800.0);
    }

    #[test]
    fn what_stacks_show_has_a_time_but_no_number() {
        use crate::measure::latch::stacks::Sampled;
        let key = types::latch_key { id: 7, function: 2, ..Default::default() };
        let mut sampled = Sampled { samples: Samples::constant(key_of(&key), 2, 3.0), ..Sampled::default() };
        sampled.asleep.insert(key_of(&key), 200.0);
        sampled.callsites.insert((key_of(&key), 0x40, 12), 300.0);
        sampled.examples.insert(key_of(&key), 0x1000);
        let mut missed = Missed::default();
        missed.add_seen(&sampled, Duration::from_secs(2));
        let estimate = missed.sums.latch(&key_of(&key)).unwrap();
        assert_eq!((estimate.sum_ns, estimate.sleep_ns), (6e9, 4e9));
        assert_eq!(missed.sums.callsite(key_of(&key), 0x40, 12).sum_ns, 6e9);
        let counts = missed.uncounted();
        let [(latch, waits)] = counts.latches[..] else { panic!("{} latches", counts.latches.len()) };
        assert_eq!((latch.id, waits.example, waits.sum_ns), (7, 0x1000, 0));
        assert_eq!(counts.callsites.len(), 1);
        missed.add_seen(&Sampled::default(), Duration::from_secs(2));
        assert_eq!(missed.sums.latch(&key_of(&key)).unwrap().sum_ns, 6e9, "nothing was looked at");
        for id in 0..2 * MOST_CALLSITES as u64 {
            let key = key_of(&types::latch_key { id: 100 + id, ..key });
            sampled.samples = Samples::constant(key, 2, 1.0);
            sampled.callsites = [((key, 0x40, 12), 1.0)].into_iter().collect();
            missed.add_seen(&sampled, Duration::from_secs(2));
        }
        assert_eq!((missed.sums.latches.len(), missed.sums.parts.len()), (MOST_LATCHES, MOST_CALLSITES));
        let lost = missed.crowded().map(|(_, lost)| lost as usize);
        assert_eq!(lost, [2 * MOST_CALLSITES + 1 - MOST_LATCHES, MOST_CALLSITES + 1]);
    }

    /// The programs' map of pages, as the kernel has it.
    #[derive(Default)]
    struct Kernel(HashMap<u64, (types::page_key, types::page_waits)>);

    impl Kernel {
        fn wait(&mut self, index: u64) {
            let key = types::page_key { index, r#type: 17, ..Default::default() };
            let waits = &mut self.0.entry(index).or_insert((key, types::page_waits::default())).1;
            waits.count += 1;
            waits.sum_ns += 100;
            assert!(self.0.len() <= types::limit::MAX_PAGES.0 as usize, "the map is full");
        }

        fn counts(&self) -> Counts {
            Counts { pages: self.0.values().copied().collect(), ..Counts::default() }
        }
    }

    /// Returns the waits for each page, with those that were not seen.
    fn page_waits(missed: &Missed, kernel: &Kernel) -> HashMap<u64, f64> {
        let mut counts = kernel.counts();
        missed.add_taken_out(&mut counts);
        let estimates = missed.estimates();
        counts.pages.iter().map(|(key, waits)| (key.index, waits.count as f64 + estimates.page(key).count)).collect()
    }

    /// Every step, a thousand new tables are waited for, and one that stays hot. The old ones come back at times.
    #[test]
    fn there_is_always_room_for_new_pages_and_none_steps_back() {
        const HOT: u64 = 1;
        const OLD: u64 = 2;
        let (mut missed, mut kernel) = (Missed::default(), Kernel::default());
        let mut before = HashMap::<u64, f64>::new();
        for step in 1..40 {
            (0..1000).for_each(|table| kernel.wait(1000 * step + table));
            (0..10).for_each(|_| kernel.wait(HOT));
            if step % 10 == 1 {
                kernel.wait(OLD);
            }
            missed.estimate(&kernel.counts(), &span(5.0, 5.0), None);
            let counts = kernel.counts();
            missed.make_room(&counts, |keys| keys.iter().filter_map(|key| kernel.0.remove(&key.index)).collect());
            assert!(kernel.0.contains_key(&HOT), "what is hot stays");
            let now = page_waits(&missed, &kernel);
            let sum = |all: &HashMap<u64, f64>| all.values().sum::<f64>();
            assert!(sum(&now) >= sum(&before) - 1e-6, "{} then {}", sum(&before), sum(&now));
            let steps_back = |(page, waits): (&u64, &f64)| now.get(page).is_some_and(|now| *now < waits - 1e-6);
            assert_eq!(before.iter().find(|entry| steps_back(*entry)), None);
            assert!(now.len() <= 2 * types::limit::MAX_PAGES.0 as usize + 1, "{}", now.len());
            assert!(missed.sums.parts.len() <= now.len() && missed.recent.parts.len() <= kernel.0.len());
            before = now;
        }
        let seen: u64 = 39 * 1010 + 4;
        let all: f64 = before.values().sum();
        assert!(all >= 1.3 * seen as f64, "half of the time was not seen: {all} of {seen}");
        assert!(before[&0] > 1000.0, "what is gone is among the others: {}", before[&0]);
    }
}
