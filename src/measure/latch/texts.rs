//! Counts with which texts threads were seen that did something, such as to wait for one latch, in bounded memory: what
//! they executed, and through which calls they came to wait.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use super::figures::{Account, StatementWaits};

/// The most texts that are counted. A server can have more; samples of the others count as [`Shown::Other`].
const MOST_TEXTS: usize = 200;

/// The most counters. With more, samples of a latch count as [`Shown::Other`], for which there are as many again.
const MOST_COUNTERS: usize = 8192;

/// After this many samples, the weight of those before is halved: what was heavy once gives way to what is now.
const HALF_LIFE: u64 = 20_000;

/// With what a thread was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(in crate::measure) enum Shown {
    /// A text, by its number, which no other text gets.
    Text(u64),
    /// One of those for which there is no room.
    Other,
    /// None, like the statement of a thread of the server's own, or of one between two statements.
    Nothing,
    /// Something that could not be read, or that changed while it was read.
    Unread,
}

/// A text, as it may be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::measure) struct Text {
    /// The hash of the whole text, in hexadecimal digits.
    pub hash: String,
    /// What may be shown of it.
    pub shown: String,
    /// For whom it was executed, if it is a statement.
    pub account: Account,
}

/// How often threads were seen that did something, with a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::measure) struct Sample<D> {
    /// What they did.
    pub doing: D,
    pub shown: Shown,
    /// Which text it is, if it is one.
    pub text: Option<Arc<Text>>,
    pub samples: u64,
}

/// What was counted so far of threads that did something.
pub(in crate::measure) struct Texts<D> {
    /// By the whole text and the account.
    numbers: HashMap<(String, Account), Number>,
    /// The numbers of those that were displaced.
    displaced: HashMap<(String, Account), u64>,
    texts: HashMap<u64, Arc<Text>>,
    samples: HashMap<(D, Shown), u64>,
    last_number: u64,
    /// The number of samples since weights were last halved.
    since_halved: u64,
    /// The most texts that were displaced and keep what was counted for them, so that it does not become less. Beyond,
    /// what was counted for the lighter half of them becomes part of [`Shown::Other`].
    most_displaced: usize,
    /// Returns what may be shown of a text.
    show: fn(&str) -> String,
}

#[derive(Clone, Copy)]
struct Number {
    number: u64,
    /// Its samples, with less weight for older ones.
    weight: f64,
}

impl<D> Sample<D> {
    /// Returns the digest and the text of what the threads executed, where texts are statements. What is no single
    /// statement has no digest.
    pub fn statement(&self) -> (String, String) {
        let text = match (&self.text, self.shown) {
            (Some(text), _) => return (text.hash.clone(), text.shown.clone()),
            (None, Shown::Nothing) => StatementWaits::NOTHING,
            (None, Shown::Unread) => StatementWaits::UNREAD,
            (None, Shown::Other | Shown::Text(_)) => StatementWaits::OTHER,
        };
        (String::new(), text.to_owned())
    }

    /// Returns for whom the threads executed it, as far as that is known.
    pub fn account(&self) -> Account {
        self.text.as_ref().map(|text| text.account.clone()).unwrap_or_default()
    }
}

impl<D: Copy + Eq + Hash> Texts<D> {
    /// Creates one that has counted nothing, and keeps the counts of so many displaced texts. `show` returns what may
    /// be shown of a text.
    pub fn new(most_displaced: usize, show: fn(&str) -> String) -> Texts<D> {
        Texts {
            numbers: HashMap::new(),
            displaced: HashMap::new(),
            texts: HashMap::new(),
            samples: HashMap::new(),
            last_number: 0,
            since_halved: 0,
            most_displaced,
            show,
        }
    }

    /// Adds `weight` samples of a text, executed for someone, to what was seen. Returns what they count as.
    pub fn seen(&mut self, text: &str, account: &Account, weight: u64) -> Shown {
        self.fade(weight);
        let key = (text.to_owned(), account.clone());
        if let Some(known) = self.numbers.get_mut(&key) {
            known.weight += weight as f64;
            return Shown::Text(known.number);
        }
        if self.numbers.len() >= MOST_TEXTS && !self.make_room(weight as f64) {
            return Shown::Other;
        }
        let number = self.displaced.remove(&key).unwrap_or_else(|| self.add(text, account));
        self.numbers.insert(key, Number { number, weight: weight as f64 });
        Shown::Text(number)
    }

    fn add(&mut self, text: &str, account: &Account) -> u64 {
        self.last_number += 1;
        let hash = Sha256::digest(text).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        let text = Text { hash, shown: (self.show)(text), account: account.clone() };
        self.texts.insert(self.last_number, Arc::new(text));
        self.last_number
    }

    /// Adds `weight` samples of threads that did something. Without room for a text, they are of another one. Without
    /// room for what they did they are left out: a program that only claims to be a server could show ever new latches.
    pub fn count(&mut self, doing: D, shown: Shown, weight: u64) {
        let has_room = |(most, shown)| self.samples.len() < most || self.samples.contains_key(&(doing, shown));
        let counters = [(MOST_COUNTERS, shown), (2 * MOST_COUNTERS, Shown::Other)];
        if let Some((_, shown)) = counters.into_iter().find(|counter| has_room(*counter)) {
            *self.samples.entry((doing, shown)).or_default() += weight;
        }
    }

    /// Returns what was counted.
    pub fn all(&self) -> Vec<Sample<D>> {
        let text = |shown| match shown {
            Shown::Text(number) => self.texts.get(&number).cloned(),
            Shown::Other | Shown::Nothing | Shown::Unread => None,
        };
        self.samples
            .iter()
            .map(|((doing, shown), samples)| Sample {
                doing: *doing,
                shown: *shown,
                text: text(*shown),
                samples: *samples,
            })
            .collect()
    }

    fn fade(&mut self, weight: u64) {
        self.since_halved += weight;
        if self.since_halved >= HALF_LIFE {
            self.since_halved = 0;
            self.numbers.values_mut().for_each(|number| number.weight /= 2.0);
        }
    }

    /// Lets the lightest text go, with a probability that makes it likely that the heaviest ones stay: a text that
    /// is seen often gets in soon, and one that is seen once seldom displaces a heavier one.
    fn make_room(&mut self, weight: f64) -> bool {
        let lightest = self.numbers.iter().min_by(|(_, a), (_, b)| a.weight.total_cmp(&b.weight));
        let Some((text, lightest)) = lightest.map(|(text, number)| (text.clone(), *number)) else { return false };
        if fastrand::f64() * (lightest.weight + weight) >= weight {
            return false;
        }
        self.numbers.remove(&text);
        self.displaced.insert(text, lightest.number);
        if self.displaced.len() > self.most_displaced {
            self.merge_displaced();
        }
        true
    }

    /// Makes what was counted for the lighter half of the displaced texts part of [`Shown::Other`].
    fn merge_displaced(&mut self) {
        let mut sums: HashMap<Shown, u64> = HashMap::new();
        for ((_, shown), samples) in &self.samples {
            *sums.entry(*shown).or_default() += samples;
        }
        let sum = |number: u64| sums.get(&Shown::Text(number)).copied().unwrap_or_default();
        let mut numbers: Vec<u64> = self.displaced.values().copied().collect();
        numbers.sort_by_key(|number| (sum(*number), *number));
        let light: HashSet<u64> = numbers.into_iter().take(self.most_displaced / 2).collect();
        self.displaced.retain(|_, number| !light.contains(number));
        self.texts.retain(|number, _| !light.contains(number));
        let is_light = |shown: Shown| matches!(shown, Shown::Text(number) if light.contains(&number));
        for ((doing, shown), samples) in std::mem::take(&mut self.samples) {
            let shown = if is_light(shown) { Shown::Other } else { shown };
            *self.samples.entry((doing, shown)).or_default() += samples;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::latch::keys::MapKey;

    const LATCH: MapKey = [7; size_of::<MapKey>()];

    fn samples(texts: &Texts<MapKey>) -> u64 {
        texts.all().iter().map(|sample| sample.samples).sum()
    }

    fn see(texts: &mut Texts<MapKey>, text: &str, weight: u64) -> Shown {
        let shown = texts.seen(text, &Account::default(), weight);
        texts.count(LATCH, shown, weight);
        shown
    }

    #[test]
    fn samples_are_counted_by_text() {
        let mut texts = Texts::new(1000, str::to_owned);
        let one = see(&mut texts, "SELECT ?", 1);
        assert_eq!(see(&mut texts, "SELECT ?", 4), one);
        texts.count(LATCH, Shown::Nothing, 2);
        let mut all = texts.all();
        all.sort_by_key(|sample| sample.shown);
        // sha256sum of the text
        let text =
            Text { hash: "66cbb3a40d4bbd15".to_owned(), shown: "SELECT ?".to_owned(), account: Account::default() };
        let sample = |shown, text, samples| Sample { doing: LATCH, shown, text, samples };
        assert_eq!(all, [sample(one, Some(Arc::new(text)), 5), sample(Shown::Nothing, None, 2)]);
    }

    #[test]
    fn only_what_may_be_shown_is_kept_for_output() {
        let mut texts = Texts::new(1000, |_| "UPDATE".to_owned());
        see(&mut texts, "update t set a = ?", 1);
        see(&mut texts, "update u set a = ?", 1);
        let all: Vec<Arc<Text>> = texts.all().into_iter().filter_map(|sample| sample.text).collect();
        assert!(all.iter().all(|text| text.shown == "UPDATE") && all[0].hash != all[1].hash);
    }

    /// 20 heavy statements among thousands that are seen once stay, or come back, and nothing is lost.
    #[test]
    fn heavy_texts_replace_light_ones() {
        fastrand::seed(1);
        let mut texts = Texts::new(1000, str::to_owned);
        let mut sum = 0;
        for i in 0..20_000 {
            see(&mut texts, &format!("SELECT a{i}"), 1);
            see(&mut texts, &format!("UPDATE b{}", i % 20), 1);
            sum += 2;
        }
        assert_eq!(samples(&texts), sum);
        assert!(texts.numbers.len() <= MOST_TEXTS && texts.displaced.len() <= 1000);
        assert_eq!(texts.texts.len(), texts.numbers.len() + texts.displaced.len());
        let is_heavy =
            |sample: &Sample<MapKey>| sample.text.as_ref().is_some_and(|text| text.shown.starts_with("UPDATE"));
        let heavy: u64 = texts.all().into_iter().filter(is_heavy).map(|sample| sample.samples).sum();
        assert!(heavy >= 19_000, "{heavy} of 20000");
    }

    /// What was heavy once gives way to what is now, and keeps what was counted for it.
    #[test]
    fn a_displaced_text_keeps_its_samples() {
        fastrand::seed(1);
        let mut texts = Texts::new(1000, str::to_owned);
        let once = see(&mut texts, "SELECT once", 500);
        for i in 0..400_000 {
            see(&mut texts, &format!("UPDATE b{}", i % 400), 1);
        }
        assert!(!texts.numbers.keys().any(|(text, _)| text == "SELECT once"), "it is still counted");
        for i in 0..20_000 {
            see(&mut texts, &format!("SELECT a{i}"), 1);
        }
        assert_eq!(texts.samples[&(LATCH, once)], 500);
        assert_eq!(see(&mut texts, "UPDATE b1", 1_000_000), see(&mut texts, "UPDATE b1", 1), "it comes back as itself");
    }

    #[test]
    fn memory_is_bounded() {
        let mut texts = Texts::new(1000, str::to_owned);
        let shown = texts.seen("SELECT ?", &Account::default(), 1);
        for i in 0..2 * MOST_COUNTERS as u64 {
            let mut latch = LATCH;
            latch[..8].copy_from_slice(&(i % 5000).to_ne_bytes());
            texts.count(latch, if i < 5000 { shown } else { Shown::Nothing }, 1);
        }
        assert!(texts.samples.len() <= MOST_COUNTERS + 5000);
        assert_eq!(samples(&texts), 2 * MOST_COUNTERS as u64);
        // No server has so many latches.
        for i in 5000..5000 + 4 * MOST_COUNTERS as u64 {
            let mut latch = LATCH;
            latch[..8].copy_from_slice(&i.to_ne_bytes());
            texts.count(latch, Shown::Nothing, 1);
        }
        assert_eq!(texts.samples.len(), 2 * MOST_COUNTERS);
    }
}
