//! What is known of latches, and of what else makes servers wait: what each protects, what usually causes waits for it,
//! the figures that show that cause, what helps, and what that costs.
//!
//! The knowledge is data: `latches.toml` has the entries, `settings.toml` where the settings exist that they name. An
//! entry is quoted only where its conditions hold by the figures.

mod condition;
mod page;
mod version;

pub use condition::{Bound, Figure, When};
pub use page::reference;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use version::Version;

/// The page that has all entries, relative to the repository.
pub const PAGE: &str = "docs/reference/latches.md";

/// The most findings that a report or a comparison has room for.
pub const MOST: usize = 5;

static ENTRIES: LazyLock<Vec<Entry>> = LazyLock::new(|| {
    let list: List = toml::from_str(include_str!("latches.toml")).expect("the entries, which a test parses");
    list.entry
});

static SETTINGS: LazyLock<BTreeMap<String, Setting>> =
    LazyLock::new(|| toml::from_str(include_str!("settings.toml")).expect("the settings, which a test parses"));

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    entry: Vec<Entry>,
}

/// What is known of some latches, or of something else that makes a server wait.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Its anchor on the page.
    pub id: String,
    /// Its heading.
    pub title: String,
    /// The event names of its latches, without `wait/synch/` and the kind; empty if it is about no single latch.
    pub latches: Vec<String>,
    /// What the latches protect, or what the entry is about.
    pub protects: String,
    /// Which figures of armtrace show it.
    pub shows: String,
    /// What must hold before any of its causes is named.
    #[serde(default)]
    pub when: When,
    /// The versions in which something changed, with the bug or worklog.
    pub history: Vec<String>,
    /// The findings of `docs/explanation/arm-findings.md` that it is about.
    #[serde(default)]
    pub arm: Vec<String>,
    /// Its usual causes, the first that holds being quoted.
    #[serde(rename = "cause")]
    pub causes: Vec<Cause>,
}

/// A cause of waits.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cause {
    /// The cause, without a full stop.
    pub what: String,
    /// What must hold, besides the entry's conditions, before it is named.
    #[serde(default)]
    pub when: When,
    /// Whether no figure in a recording can show it, so that only the page names it.
    #[serde(default)]
    pub page_only: bool,
    /// What helps.
    #[serde(rename = "remedy")]
    pub remedies: Vec<Remedy>,
}

/// A change that helps.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Remedy {
    /// What to change.
    #[serde(rename(deserialize = "do", serialize = "change"))]
    pub change: String,
    /// The settings that it names. It is of no use to a server that has none of them.
    #[serde(default)]
    pub settings: Vec<String>,
    /// What it costs.
    pub price: String,
    /// What following it did, and on which machine; `None` if it was not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<String>,
}

/// Where a setting exists. A server that it does not exist in is `None`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    /// MySQL, and servers derived from it.
    pub mysql: Option<Versions>,
    /// MariaDB.
    pub mariadb: Option<Versions>,
}

/// The versions of a server that have a setting.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Versions {
    since: Option<Version>,
    ignored: Option<Version>,
    removed: Option<Version>,
    /// Whether only some builds have it.
    #[serde(default)]
    some_builds: bool,
    #[serde(default)]
    default: BTreeMap<Version, String>,
}

impl Versions {
    /// Returns whether this version has the setting, even if it ignores it.
    fn has(&self, version: &Version) -> bool {
        self.since.as_ref().is_none_or(|since| since <= version)
            && self.removed.as_ref().is_none_or(|removed| version < removed)
    }

    fn uses(&self, version: &Version) -> bool {
        self.has(version) && self.ignored.as_ref().is_none_or(|ignored| version < ignored)
    }
}

impl Setting {
    fn of(&self, flavor: &str) -> Option<&Versions> {
        if flavor == "mariadb" { &self.mariadb } else { &self.mysql }.as_ref()
    }

    /// Returns whether this server has the setting, according to the data; `None` if that depends on the build.
    /// `flavor` is as in [`TargetInfo`](crate::model::TargetInfo).
    pub fn exists(&self, flavor: &str, version: &str) -> Option<bool> {
        let version = Version::from(version.to_owned());
        let Some(versions) = self.of(flavor) else { return Some(false) };
        (!versions.some_builds).then(|| versions.has(&version))
    }

    /// Returns the default in this version, if the data has it.
    pub fn default_in(&self, flavor: &str, version: &str) -> Option<&str> {
        let version = Version::from(version.to_owned());
        let (_, default) = self.of(flavor)?.default.iter().rfind(|(since, _)| **since <= version)?;
        Some(default)
    }

    fn is_used(&self, flavor: &str, version: &Version) -> bool {
        self.of(flavor).is_some_and(|versions| versions.uses(version))
    }
}

/// Returns all entries.
pub fn entries() -> &'static [Entry] {
    &ENTRIES
}

/// Returns the settings that entries name.
pub fn settings() -> &'static BTreeMap<String, Setting> {
    &SETTINGS
}

/// Returns the entry of the latch with this name, which is an event name without `wait/synch/` and the kind.
pub fn entry_of(latch: &str) -> Option<&'static Entry> {
    entries().iter().find(|entry| entry.latches.iter().any(|name| name == latch))
}

/// The value of a figure, and the words to quote it in.
#[derive(Clone, Debug, PartialEq)]
pub struct Quoted {
    /// The value.
    pub value: f64,
    /// The value in words: `9.3% of all wait time`.
    pub words: String,
}

/// What is known of one server over some time.
pub trait Facts {
    /// Returns a figure of an entry's latches, or of the server; `None` if it is not known.
    fn figure(&self, figure: Figure, entry: &Entry) -> Option<Quoted>;

    /// Returns the value of a setting, as the server reports it; `None` if it is not known.
    fn setting(&self, name: &str) -> Option<&str>;

    /// Returns the server's flavor and version.
    fn server(&self) -> (&str, &str);

    /// Returns how many threads or CPUs the entry is about.
    fn weight(&self, entry: &Entry) -> f64;
}

/// A finding: an entry, one of its causes whose conditions hold, and what helps.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Advised {
    /// The anchor of the entry in `docs/reference/latches.md`.
    pub entry: String,
    /// What it is about.
    pub title: String,
    /// The figures and settings by which the conditions hold.
    pub evidence: Vec<String>,
    /// The cause.
    pub cause: String,
    /// What helps, of what this server has.
    pub remedies: Vec<Remedy>,
}

impl Advised {
    /// Returns the first line: what it is about, and by which figures.
    pub fn heading(&self) -> String {
        format!("{}: {}", self.title, self.evidence.join(", "))
    }

    /// Returns where its entry is.
    pub fn link(&self) -> String {
        format!("{PAGE}#{}", self.entry)
    }
}

/// Formats a finding in several lines, for a terminal.
impl fmt::Display for Advised {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        writeln!(f, "{}", self.heading())?;
        writeln!(f, "    {}.", self.cause)?;
        for remedy in &self.remedies {
            writeln!(f, "  → {}", plain(&remedy.to_string()))?;
        }
        write!(f, "    {}", self.link())
    }
}

/// Formats a change with its price: `CHANGE. Price: PRICE Measured: WHAT`.
impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}. Price: {}", self.change, self.price)?;
        self.measured.iter().try_for_each(|measured| write!(f, " Measured: {measured}."))
    }
}

/// Returns a text without the marks that the page has: of code, and of links, of which the words stay.
pub fn plain(text: &str) -> String {
    let mut parts = text.split("](");
    let begin = parts.next().unwrap_or_default().to_owned();
    let without_target = |rest: &str| rest.split_once(')').map_or(rest, |(_, rest)| rest).to_owned();
    let text = parts.fold(begin, |text, rest| text + &without_target(rest));
    text.replace(['`', '['], "")
}

/// Returns the findings, the heaviest first, at most [`MOST`].
pub fn find(facts: &dyn Facts) -> Vec<Advised> {
    let mut found: Vec<(f64, Advised)> =
        entries().iter().filter_map(|entry| Some((facts.weight(entry), finding(entry, facts)?))).collect();
    found.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    found.into_iter().map(|(_, advised)| advised).take(MOST).collect()
}

/// Returns what to say about an entry, if its conditions and those of a cause hold. A cause whose settings are known
/// comes before one that depends on what is not known.
pub fn finding(entry: &Entry, facts: &dyn Facts) -> Option<Advised> {
    let general = entry.when.evidence(entry, facts)?;
    let causes = entry.causes.iter().filter(|cause| !cause.page_only);
    let holding = causes.filter_map(|cause| {
        let remedies = usable(cause, facts);
        let evidence = cause.when.evidence(entry, facts).filter(|_| !remedies.is_empty())?;
        Some((evidence, cause, remedies))
    });
    let (particular, cause, remedies) = holding.min_by_key(|(evidence, ..)| evidence.guesses)?;
    Some(Advised {
        entry: entry.id.clone(),
        title: entry.title.clone(),
        evidence: [general.words, particular.words].concat(),
        cause: cause.what.clone(),
        remedies,
    })
}

/// Returns the remedies that this server has the settings for.
fn usable(cause: &Cause, facts: &dyn Facts) -> Vec<Remedy> {
    let (flavor, version) = facts.server();
    let version = Version::from(version.to_owned());
    let has = |name: &String| settings().get(name).is_some_and(|setting| setting.is_used(flavor, &version));
    let is_usable = |remedy: &&Remedy| remedy.settings.is_empty() || remedy.settings.iter().any(has);
    cause.remedies.iter().filter(is_usable).cloned().collect()
}

#[cfg(test)]
mod tests;
