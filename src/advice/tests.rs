use super::*;

use std::collections::BTreeSet;
use std::path::Path;

use strum::IntoEnumIterator;

/// A server on which these figures and settings are known.
struct Server {
    figures: Vec<(Figure, f64)>,
    settings: Vec<(&'static str, &'static str)>,
    server: (&'static str, &'static str),
}

impl Facts for Server {
    fn figure(&self, figure: Figure, entry: &Entry) -> Option<Quoted> {
        let is_known = entry.latches.is_empty() || entry.id == "table-cache" || entry.id == "adaptive-hash-index";
        let (_, value) = self.figures.iter().find(|(known, _)| *known == figure && is_known)?;
        Some(Quoted { value: *value, words: format!("{figure:?} {value}") })
    }

    fn setting(&self, name: &str) -> Option<&str> {
        self.settings.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }

    fn server(&self) -> (&str, &str) {
        self.server
    }

    fn weight(&self, entry: &Entry) -> f64 {
        if entry.latches.is_empty() {
            0.0
        } else {
            1.0
        }
    }
}

const MYSQL: (&str, &str) = ("mysql", "8.0.31");

fn found(
    figures: &[(Figure, f64)],
    settings: &[(&'static str, &'static str)],
    server: (&'static str, &'static str),
) -> Vec<Advised> {
    find(&Server { figures: figures.to_vec(), settings: settings.to_vec(), server })
}

/// The latches of both entries that [`Server`] knows have these figures.
const WAITED_FOR: [(Figure, f64); 2] = [(Figure::Share, 0.2), (Figure::Threads, 0.5)];

#[test]
fn the_data_is_whole() {
    let ids: BTreeSet<&str> = entries().iter().map(|entry| entry.id.as_str()).collect();
    assert_eq!(ids.len(), entries().len(), "an anchor twice");
    let latches: Vec<&String> = entries().iter().flat_map(|entry| &entry.latches).collect();
    assert_eq!(latches.iter().collect::<BTreeSet<_>>().len(), latches.len(), "a latch in two entries");
    let mut named = BTreeSet::new();
    for entry in entries() {
        for cause in &entry.causes {
            let when = [&entry.when, &cause.when];
            let has_figures = when.iter().any(|when| !when.at_least.is_empty());
            assert!(has_figures != cause.page_only, "{}: {} rests on no figure", entry.id, cause.what);
            assert!(!cause.remedies.is_empty() && !cause.what.ends_with('.'), "{}: {}", entry.id, cause.what);
            named.extend(when.iter().flat_map(|when| when.settings.keys().cloned()));
            named.extend(cause.remedies.iter().flat_map(|remedy| remedy.settings.iter().cloned()));
        }
    }
    let unknown: Vec<&String> = named.iter().filter(|name| !settings().contains_key(*name)).collect();
    assert!(unknown.is_empty(), "not in settings.toml: {unknown:?}");
    for name in settings().keys().filter(|name| !named.contains(*name)) {
        let is_quoted = entries().iter().any(|entry| format!("{entry:?}").contains(name.as_str()));
        assert!(is_quoted, "no entry names {name}");
    }
}

/// What looks like a setting in a remedy is one of its settings, so that no server is told to set what it has not.
#[test]
fn remedies_name_the_settings_that_they_use() {
    let prefixes = ["innodb_", "binlog_", "table_", "thread_", "sync_", "performance_"];
    for remedy in entries().iter().flat_map(|entry| &entry.causes).flat_map(|cause| &cause.remedies) {
        let words = remedy.change.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        for word in words.filter(|word| prefixes.iter().any(|prefix| word.starts_with(prefix))) {
            assert!(remedy.settings.iter().any(|name| name == word), "{word} in {}", remedy.change);
        }
    }
}

#[test]
fn every_figure_is_used() {
    for figure in Figure::iter() {
        let uses = |when: &When| when.at_least.contains_key(&figure) || when.at_most.contains_key(&figure);
        let is_used =
            entries().iter().any(|entry| uses(&entry.when) || entry.causes.iter().any(|cause| uses(&cause.when)));
        assert!(is_used, "{figure:?}");
    }
}

#[test]
fn every_finding_on_arm_is_in_an_entry() {
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/explanation/arm-findings.md"));
    let page = page.expect("the page");
    let bugs = page.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" | ").map(|(bug, _)| bug));
    let bugs: BTreeSet<&str> = bugs.filter(|bug| bug.starts_with("MySQL") || bug.starts_with("MDEV")).collect();
    assert!(bugs.len() > 20, "{bugs:?}");
    let told: BTreeSet<&str> = entries().iter().flat_map(|entry| &entry.arm).map(String::as_str).collect();
    let missing: Vec<_> = bugs.difference(&told).collect();
    assert!(missing.is_empty(), "in no entry: {missing:?}");
    let unknown: Vec<_> = told.iter().filter(|bug| !page.contains(**bug)).collect();
    assert!(unknown.is_empty(), "not on the page: {unknown:?}");
}

#[test]
fn a_latch_is_not_enough() {
    let quoted = |share: f64, threads: f64, value: &'static str| {
        let figures = [(Figure::Share, share), (Figure::Threads, threads)];
        let findings = found(&figures, &[("innodb_adaptive_hash_index", value)], MYSQL);
        findings.iter().any(|advised| advised.entry == "adaptive-hash-index")
    };
    assert!(quoted(0.03, 0.05, "ON"));
    assert!(!quoted(0.029, 0.05, "ON"), "a small share");
    assert!(!quoted(0.03, 0.049, "ON"), "hardly anybody waits");
    assert!(!quoted(0.03, 0.05, "OFF"), "it is off");
}

#[test]
fn causes_with_known_settings_come_first() {
    let cause = |settings: &[(&'static str, &'static str)]| {
        let findings = found(&WAITED_FOR, settings, MYSQL);
        let advised = findings.into_iter().find(|advised| advised.entry == "table-cache");
        advised.map(|advised| (advised.cause, advised.evidence.last().cloned().unwrap_or_default()))
    };
    let small = "The cache is too small: tables are closed and opened again".to_owned();
    let one = "All sessions use one part of the cache".to_owned();
    assert_eq!(cause(&[]), Some((small.clone(), "if table_open_cache is at most 400".to_owned())));
    assert_eq!(cause(&[("table_open_cache", "10")]), Some((small, "table_open_cache is 10".to_owned())));
    assert_eq!(
        cause(&[("table_open_cache_instances", "1")]),
        Some((one, "table_open_cache_instances is 1".to_owned()))
    );
    assert_eq!(cause(&[("table_open_cache", "4000"), ("table_open_cache_instances", "16")]), None);
}

#[test]
fn a_server_is_not_told_of_settings_that_it_lacks() {
    let remedies = |server| {
        let findings = found(&WAITED_FOR, &[], server);
        let advised = findings.into_iter().find(|advised| advised.entry == "adaptive-hash-index").expect("a finding");
        advised.remedies.len()
    };
    assert_eq!(remedies(("mariadb", "10.2.11-MariaDB")), 2);
    assert_eq!(remedies(("mysql", "8.0.31")), 2);
    let page = &settings()["innodb_log_writer_threads"];
    let writers = [("mysql", "8.0.22"), ("mysql", "8.0.21"), ("mariadb", "11.4.5")];
    assert_eq!(writers.map(|(flavor, version)| page.exists(flavor, version)), [Some(true), Some(false), Some(false)]);
    assert_eq!(settings()["innodb_numa_interleave"].exists("mariadb", "11.4.5"), None, "some builds have it");
    let pools = &settings()["innodb_buffer_pool_instances"];
    let version = |text: &str| Version::from(text.to_owned());
    assert!(pools.exists("mariadb", "10.5.23") == Some(true) && !pools.is_used("mariadb", &version("10.5.23")));
    assert!(pools.exists("mariadb", "10.11.5") == Some(false) && pools.is_used("mysql", &version("9.7.4")));
    let hash = &settings()["innodb_adaptive_hash_index"];
    assert_eq!(hash.default_in("mysql", "8.0.31"), Some("ON"));
    assert_eq!(hash.default_in("mysql", "9.7.4"), Some("OFF"));
}

#[test]
fn the_heaviest_comes_first_and_there_are_five_at_most() {
    let all: Vec<(Figure, f64)> = Figure::iter().map(|figure| (figure, 1.0)).collect();
    let findings = found(&all, &[], MYSQL);
    assert_eq!(findings.len(), MOST);
    assert!(findings[0].entry == "adaptive-hash-index" && findings[1].entry == "table-cache", "{findings:?}");
}

#[test]
fn a_finding_in_text_has_its_figures_its_price_and_its_page() {
    let findings = found(
        &WAITED_FOR,
        &[("innodb_adaptive_hash_index", "ON"), ("table_open_cache", "4000"), ("table_open_cache_instances", "16")],
        MYSQL,
    );
    let text = findings[0].to_string();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "Adaptive hash index: Share 0.2, Threads 0.5, innodb_adaptive_hash_index is ON");
    assert!(lines[2].starts_with("  → SET GLOBAL innodb_adaptive_hash_index = OFF. Price: "), "{text}");
    assert!(lines[2].contains(" Measured: MySQL 8.0.31"), "{text}");
    assert_eq!(lines.last(), Some(&"    docs/reference/latches.md#adaptive-hash-index"));
}

#[test]
fn terminals_get_no_marks() {
    assert_eq!(plain("`A = 1`: see [pages](#pages), [b](#b)."), "A = 1: see pages, b.");
    assert_eq!(plain("none"), "none");
}

/// The entries on the page are those of the data.
#[test]
fn the_page_is_of_the_data() {
    const MARK: &str = "<!-- Made of src/advice/ by `ARMTRACE_BLESS=1 cargo test --lib advice`; what is written below is replaced. -->\n\n";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE);
    let page = std::fs::read_to_string(&path).expect("the page");
    let (written, made) = page.split_once(MARK).expect("a mark");
    let now = reference();
    if std::env::var_os("ARMTRACE_BLESS").is_some() {
        return std::fs::write(&path, format!("{written}{MARK}{now}")).expect("it can be written");
    }
    assert!(made == now, "{PAGE} is not of the data any more");
    for entry in entries() {
        let anchor = format!("(#{})", entry.id);
        assert!(now.contains(&anchor), "no link to {anchor}");
    }
}

/// The anchors that links use are those that Markdown makes of the headings.
#[test]
fn anchors_are_of_the_headings() {
    for entry in entries() {
        let kept = entry.title.chars().filter(|c| c.is_alphanumeric() || ['-', '_', ' '].contains(c));
        let anchor: String = kept.map(|c| if c == ' ' { '-' } else { c }).flat_map(char::to_lowercase).collect();
        assert_eq!(entry.id, anchor);
    }
}
