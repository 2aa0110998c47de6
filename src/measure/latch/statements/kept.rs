//! Counts which statements the waiting threads executed, in bounded memory.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use super::digest::verb_of;
use crate::measure::latch::keys::MapKey;

/// The most digests that are counted. A server can have more; samples of the others count as [`Shown::Other`].
const MOST_DIGESTS: usize = 200;

/// The most digests that were displaced and keep what was counted for them, so that it does not become less. Beyond,
/// what was counted for the lighter half of them becomes part of [`Shown::Other`].
const MOST_DISPLACED: usize = 1000;

/// The most counters. With more, samples of a latch count as [`Shown::Other`], for which there are as many again.
const MOST_COUNTERS: usize = 8192;

/// After this many samples, the weight of those before is halved: what was heavy once gives way to what is now.
const HALF_LIFE: u64 = 20_000;

/// What a thread executed that was seen to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(in crate::measure::latch) enum Shown {
    /// A statement, by the number of its digest, which no other digest gets.
    Digest(u64),
    /// One of those for which there is no room.
    Other,
    /// None: a thread of the server's own, or one between two statements.
    Nothing,
    /// Something that could not be read, or that changed while it was read.
    Unread,
}

/// A kind of statement, as it may be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::measure::latch) struct Digest {
    /// The hash of the text without values, in hexadecimal digits.
    pub hash: String,
    /// The text without values, or only its first word.
    pub text: String,
}

/// How often threads were seen that waited for a latch and executed a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::measure::latch) struct Sample {
    pub latch: MapKey,
    pub shown: Shown,
    /// Which statement it is, if it is one.
    pub digest: Option<Arc<Digest>>,
    pub samples: u64,
}

/// What was counted so far.
#[derive(Default)]
pub(in crate::measure::latch) struct Kept {
    /// By the text without values.
    numbers: HashMap<String, Number>,
    /// The numbers of those that were displaced.
    displaced: HashMap<String, u64>,
    digests: HashMap<u64, Arc<Digest>>,
    samples: HashMap<(MapKey, Shown), u64>,
    last_number: u64,
    /// The number of samples since weights were last halved.
    since_halved: u64,
    /// Whether only the first word of statements may be shown.
    verbs_only: bool,
}

#[derive(Clone, Copy)]
struct Number {
    number: u64,
    /// Its samples, with less weight for older ones.
    weight: f64,
}

impl Kept {
    /// Creates one that has counted nothing.
    pub fn new(verbs_only: bool) -> Kept {
        Kept { verbs_only, ..Kept::default() }
    }

    /// Adds `weight` samples of a statement, given without values, to what was seen. Returns what they count as.
    pub fn seen(&mut self, text: &str, weight: u64) -> Shown {
        self.fade(weight);
        if let Some(known) = self.numbers.get_mut(text) {
            known.weight += weight as f64;
            return Shown::Digest(known.number);
        }
        if self.numbers.len() >= MOST_DIGESTS && !self.make_room(weight as f64) {
            return Shown::Other;
        }
        let number = self.displaced.remove(text).unwrap_or_else(|| self.add(text));
        self.numbers.insert(text.to_owned(), Number { number, weight: weight as f64 });
        Shown::Digest(number)
    }

    fn add(&mut self, text: &str) -> u64 {
        self.last_number += 1;
        self.digests.insert(self.last_number, Arc::new(self.digest(text)));
        self.last_number
    }

    /// Adds `weight` samples of threads that waited for a latch. Without room for a statement, they are of another one.
    /// Without room for a latch they are left out: a program that only claims to be a server could show ever new ones.
    pub fn count(&mut self, latch: MapKey, shown: Shown, weight: u64) {
        let has_room = |(most, shown)| self.samples.len() < most || self.samples.contains_key(&(latch, shown));
        let counters = [(MOST_COUNTERS, shown), (2 * MOST_COUNTERS, Shown::Other)];
        if let Some((_, shown)) = counters.into_iter().find(|counter| has_room(*counter)) {
            *self.samples.entry((latch, shown)).or_default() += weight;
        }
    }

    /// Returns what was counted.
    pub fn all(&self) -> Vec<Sample> {
        let digest = |shown| match shown {
            Shown::Digest(number) => self.digests.get(&number).cloned(),
            Shown::Other | Shown::Nothing | Shown::Unread => None,
        };
        self.samples
            .iter()
            .map(|((latch, shown), samples)| Sample {
                latch: *latch,
                shown: *shown,
                digest: digest(*shown),
                samples: *samples,
            })
            .collect()
    }

    fn digest(&self, text: &str) -> Digest {
        let hash = Sha256::digest(text).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        Digest { hash, text: if self.verbs_only { verb_of(text) } else { text.to_owned() } }
    }

    fn fade(&mut self, weight: u64) {
        self.since_halved += weight;
        if self.since_halved >= HALF_LIFE {
            self.since_halved = 0;
            self.numbers.values_mut().for_each(|number| number.weight /= 2.0);
        }
    }

    /// Lets the lightest digest go, with a probability that makes it likely that the heaviest ones stay: a digest that
    /// is seen often gets in soon, and one that is seen once seldom displaces a heavier one.
    fn make_room(&mut self, weight: f64) -> bool {
        let lightest = self.numbers.iter().min_by(|(_, a), (_, b)| a.weight.total_cmp(&b.weight));
        let Some((text, lightest)) = lightest.map(|(text, number)| (text.clone(), *number)) else { return false };
        if fastrand::f64() * (lightest.weight + weight) >= weight {
            return false;
        }
        self.numbers.remove(&text);
        self.displaced.insert(text, lightest.number);
        if self.displaced.len() > MOST_DISPLACED {
            self.merge_displaced();
        }
        true
    }

    /// Makes what was counted for the lighter half of the displaced digests part of [`Shown::Other`].
    fn merge_displaced(&mut self) {
        let mut sums: HashMap<Shown, u64> = HashMap::new();
        for ((_, shown), samples) in &self.samples {
            *sums.entry(*shown).or_default() += samples;
        }
        let sum = |number: u64| sums.get(&Shown::Digest(number)).copied().unwrap_or_default();
        let mut numbers: Vec<u64> = self.displaced.values().copied().collect();
        numbers.sort_by_key(|number| (sum(*number), *number));
        let light: HashSet<u64> = numbers.into_iter().take(MOST_DISPLACED / 2).collect();
        self.displaced.retain(|_, number| !light.contains(number));
        self.digests.retain(|number, _| !light.contains(number));
        let is_light = |shown: Shown| matches!(shown, Shown::Digest(number) if light.contains(&number));
        for ((latch, shown), samples) in std::mem::take(&mut self.samples) {
            let shown = if is_light(shown) { Shown::Other } else { shown };
            *self.samples.entry((latch, shown)).or_default() += samples;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATCH: MapKey = [7; size_of::<MapKey>()];

    fn samples(kept: &Kept) -> u64 {
        kept.all().iter().map(|sample| sample.samples).sum()
    }

    fn see(kept: &mut Kept, text: &str, weight: u64) -> Shown {
        let shown = kept.seen(text, weight);
        kept.count(LATCH, shown, weight);
        shown
    }

    #[test]
    fn samples_are_counted_by_digest() {
        let mut kept = Kept::new(false);
        let one = see(&mut kept, "SELECT ?", 1);
        assert_eq!(see(&mut kept, "SELECT ?", 4), one);
        kept.count(LATCH, Shown::Nothing, 2);
        let mut all = kept.all();
        all.sort_by_key(|sample| sample.shown);
        // sha256sum of the text
        let digest = Digest { hash: "66cbb3a40d4bbd15".to_owned(), text: "SELECT ?".to_owned() };
        let sample = |shown, digest, samples| Sample { latch: LATCH, shown, digest, samples };
        assert_eq!(all, [sample(one, Some(Arc::new(digest)), 5), sample(Shown::Nothing, None, 2)]);
    }

    #[test]
    fn where_texts_are_not_wanted_only_the_verb_is_kept_for_output() {
        let mut kept = Kept::new(true);
        see(&mut kept, "update t set a = ?", 1);
        see(&mut kept, "update u set a = ?", 1);
        let digests: Vec<Arc<Digest>> = kept.all().into_iter().filter_map(|sample| sample.digest).collect();
        assert!(digests.iter().all(|digest| digest.text == "UPDATE") && digests[0].hash != digests[1].hash);
    }

    /// 20 heavy statements among thousands that are seen once stay, or come back, and nothing is lost.
    #[test]
    fn heavy_digests_replace_light_ones() {
        fastrand::seed(1);
        let mut kept = Kept::new(false);
        let mut sum = 0;
        for i in 0..20_000 {
            see(&mut kept, &format!("SELECT a{i}"), 1);
            see(&mut kept, &format!("UPDATE b{}", i % 20), 1);
            sum += 2;
        }
        assert_eq!(samples(&kept), sum);
        assert!(kept.numbers.len() <= MOST_DIGESTS && kept.displaced.len() <= MOST_DISPLACED);
        assert_eq!(kept.digests.len(), kept.numbers.len() + kept.displaced.len());
        let is_heavy = |sample: &Sample| sample.digest.as_ref().is_some_and(|digest| digest.text.starts_with("UPDATE"));
        let heavy: u64 = kept.all().into_iter().filter(is_heavy).map(|sample| sample.samples).sum();
        assert!(heavy >= 19_000, "{heavy} of 20000");
    }

    /// What was heavy once gives way to what is now, and keeps what was counted for it.
    #[test]
    fn a_displaced_digest_keeps_its_samples() {
        fastrand::seed(1);
        let mut kept = Kept::new(false);
        let once = see(&mut kept, "SELECT once", 500);
        for i in 0..400_000 {
            see(&mut kept, &format!("UPDATE b{}", i % 400), 1);
        }
        assert!(!kept.numbers.contains_key("SELECT once"), "it is still counted");
        for i in 0..20_000 {
            see(&mut kept, &format!("SELECT a{i}"), 1);
        }
        assert_eq!(kept.samples[&(LATCH, once)], 500);
        assert_eq!(see(&mut kept, "UPDATE b1", 1_000_000), see(&mut kept, "UPDATE b1", 1), "it comes back as itself");
    }

    #[test]
    fn memory_is_bounded() {
        let mut kept = Kept::new(false);
        let shown = kept.seen("SELECT ?", 1);
        for i in 0..2 * MOST_COUNTERS as u64 {
            let mut latch = LATCH;
            latch[..8].copy_from_slice(&(i % 5000).to_ne_bytes());
            kept.count(latch, if i < 5000 { shown } else { Shown::Nothing }, 1);
        }
        assert!(kept.samples.len() <= MOST_COUNTERS + 5000);
        assert_eq!(samples(&kept), 2 * MOST_COUNTERS as u64);
        // No server has so many latches.
        for i in 5000..5000 + 4 * MOST_COUNTERS as u64 {
            let mut latch = LATCH;
            latch[..8].copy_from_slice(&i.to_ne_bytes());
            kept.count(latch, Shown::Nothing, 1);
        }
        assert_eq!(kept.samples.len(), 2 * MOST_COUNTERS);
    }
}
