//! The full comparison with performance_schema: every server under every load that it supports, three runs each
//! (`make truth`).
//!
//! A server's new figures replace its old ones in `docs/explanation/truth.tsv`, from which the tables in
//! `docs/explanation/truth.md` are generated. So servers can be measured one at a time, and the documentation always
//! shows what was measured.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};

use crate::scenario::{Scenario, Setup, Stage, SCENARIOS};
use crate::truth::{sleep_and_measure_delay, uncontended, Reading, Row};
use lab::agent::Agent;
use lab::releases::Release;

const RUNS: usize = 3;
const RUN: Duration = Duration::from_secs(3);
const QUIET: Duration = Duration::from_secs(1);
const THREADS: u32 = 32;

/// How many of each load's top latches, according to either side, are kept.
const KEPT: usize = 8;
/// The least sum over all runs for a latch to be kept, in seconds.
const FLOOR_S: f64 = 0.01;
/// The least sum in one run for its ratio to count, in seconds.
const RUN_FLOOR_S: f64 = 0.001;
/// How many of a load's latches have to agree.
const TOP: usize = 5;
/// The least share of the threads' time that a latch's waits must take for it to be judged.
const BAR_FLOOR: f64 = 0.001;
/// How far a latch's ratio may differ from 1.
const TOLERANCE: f64 = 0.10;
/// The name for all loads of a run together.
const ALL: &str = "all";

const MACHINE: &str = "Machine: ";

/// Everything after this line of `docs/explanation/truth.md` is generated.
const MARK: &str = "<!-- Made by `make truth`; what is written below is replaced. -->";

/// One latch under one load: the sums over the runs, and the median of their ratios.
#[derive(Clone, Debug, PartialEq)]
struct Line {
    date: String,
    release: String,
    version: String,
    load: String,
    latch: String,
    truth_count: f64,
    raw_s: f64,
    truth_s: f64,
    /// See [`Row::preempted_s`].
    preempted_s: f64,
    waits: f64,
    ours_s: f64,
    ratio: f64,
}

const HEADER: &str = "date\tserver\tversion\tload\tlatch\tps_count\tps_sum_s\tps_contended_s\tps_preempted_s\tarmtrace_count\tarmtrace_sum_s\tmedian_ratio";

impl Line {
    /// Summarises a latch's figures in each run.
    fn of(date: &str, release: &str, version: &str, load: &str, runs: &[Row]) -> Line {
        let sum = |of: fn(&Row) -> f64| runs.iter().map(of).sum::<f64>();
        let counts = |r: &&Row| r.truth_s >= RUN_FLOOR_S;
        let mut ratios: Vec<f64> = runs.iter().filter(counts).map(|r| r.ours_s / r.truth_s).collect();
        ratios.sort_by(f64::total_cmp);
        Line {
            date: date.to_owned(),
            release: release.to_owned(),
            version: version.to_owned(),
            load: load.to_owned(),
            latch: runs.first().map(|r| r.latch.clone()).unwrap_or_default(),
            truth_count: sum(|r| r.truth_count),
            raw_s: sum(|r| r.raw_s),
            truth_s: sum(|r| r.truth_s),
            preempted_s: sum(|r| r.preempted_s),
            waits: sum(|r| r.waits),
            ours_s: sum(|r| r.ours_s),
            ratio: ratios.get(ratios.len() / 2).copied().unwrap_or(0.0),
        }
    }

    fn tsv(&self) -> String {
        format!(
            "{}\t{}\t{}\t{}\t{}\t{:.0}\t{:.6}\t{:.6}\t{:.6}\t{:.0}\t{:.6}\t{:.3}",
            self.date,
            self.release,
            self.version,
            self.load,
            self.latch,
            self.truth_count,
            self.raw_s,
            self.truth_s,
            self.preempted_s,
            self.waits,
            self.ours_s,
            self.ratio
        )
    }

    fn parse(text: &str) -> Option<Line> {
        let fields: Vec<&str> = text.split('\t').collect();
        let [date, release, version, load, latch, rest @ ..] = &fields[..] else { return None };
        let numbers: Vec<f64> = rest.iter().filter_map(|n| n.parse().ok()).collect();
        let &[truth_count, raw_s, truth_s, preempted_s, waits, ours_s, ratio] = &numbers[..] else { return None };
        let [date, release, version, load, latch] = [date, release, version, load, latch].map(|s| (*s).to_owned());
        Some(Line {
            date,
            release,
            version,
            load,
            latch,
            truth_count,
            raw_s,
            truth_s,
            preempted_s,
            waits,
            ours_s,
            ratio,
        })
    }

    /// Returns whether performance_schema's sum consists of all waits and nothing else; see [`Row::is_comparable`].
    fn is_comparable(&self) -> bool {
        let times_all = Release::all().find(|f| f.name() == self.release).is_none_or(Release::times_purge);
        let &Line { truth_count, truth_s, raw_s, preempted_s, waits, .. } = self;
        Row { truth_count, truth_s, raw_s, preempted_s, waits, ..Row::default() }.is_comparable(times_all)
    }

    fn agrees(&self) -> bool {
        (self.ratio - 1.0).abs() <= TOLERANCE
    }

    /// Returns whether armtrace reports no waits for the latch, because it has no name or its waits cannot be seen.
    fn is_unseen(&self) -> bool {
        self.waits == 0.0
    }

    fn verdict(&self) -> &'static str {
        match (self.is_comparable(), self.agrees()) {
            (false, _) => "not comparable",
            (true, true) => "yes",
            (true, false) if self.is_unseen() => "**not seen**",
            (true, false) => "**no**",
        }
    }
}

/// The rows of each run, by load.
type Runs = BTreeMap<String, Vec<Vec<Row>>>;

/// Runs a server through these loads several times.
fn measure(release: Release, scenarios: &[Scenario]) -> Result<Vec<Line>> {
    let (mut runs, mut version) = (Runs::new(), String::new());
    for setup in Setup::ALL {
        let of_setup = scenarios.iter().filter(|s| s.setup == setup && s.suits(release));
        let of_setup: Vec<Scenario> = of_setup.copied().collect();
        if !of_setup.is_empty() {
            version = measure_setup(release, setup, &of_setup, &mut runs).with_context(|| format!("{setup:?}"))?;
        }
    }
    let all = (0..RUNS).map(|i| together(runs.values().filter_map(|of_load| of_load.get(i)))).collect();
    runs.insert(ALL.to_owned(), all);
    let date = first_line(Command::new("date").args(["--utc", "+%F"]))?;
    Ok(runs.iter().flat_map(|(load, runs)| top_lines(&date, release.name(), &version, load, runs)).collect())
}

/// Runs the loads of one setup, and returns the server's version.
fn measure_setup(release: Release, setup: Setup, scenarios: &[Scenario], runs: &mut Runs) -> Result<String> {
    let stage = Stage::start(release, setup)?;
    let rows = stage.server.query("SELECT VERSION()")?;
    let version = rows.first().and_then(|r| r.first()).context("the server does not report its version")?.clone();
    let _history = (!release.times_purge()).then(|| stage.server.keep_history()).transpose()?;
    let agent = Agent::attach_without_budget(&stage.server)?;
    let mut quiet = BTreeMap::new();
    for scenario in scenarios {
        stage.prepare(scenario)?;
        if !quiet.contains_key(scenario.test) {
            let each = uncontended(&stage.server, stage.load(scenario, 1)?, QUIET)?;
            quiet.insert(scenario.test, each);
        }
    }
    for _ in 0..RUNS {
        for scenario in scenarios {
            let rows = run(&stage, &agent, scenario, &quiet[scenario.test]).with_context(|| scenario.name)?;
            runs.entry(scenario.name.to_owned()).or_default().push(rows);
        }
    }
    let (status, _) = agent.stop()?;
    ensure!(status.success(), "{status}");
    stage.stop()?;
    Ok(version)
}

/// Runs a load once while both sides measure. Returns the increase of each latch's counters.
fn run(stage: &Stage, agent: &Agent, scenario: &Scenario, quiet: &BTreeMap<String, f64>) -> Result<Vec<Row>> {
    let counter = stage.server.status(scenario.counter)?;
    let load = stage.load(scenario, THREADS)?;
    let before = Reading::take(&stage.server, agent)?;
    let delay = sleep_and_measure_delay(RUN)?;
    let after = Reading::take(&stage.server, agent)?;
    load.stop()?;
    ensure!(stage.server.status(scenario.counter)? > counter, "{} did not grow", scenario.counter);
    let each = |latch: &String| quiet.get(latch).copied().unwrap_or(0.0);
    Ok(after.latches().map(|latch| after.since(&before, latch, each(latch), delay)).collect())
}

/// Adds up the rows of one run of every load.
fn together<'a>(loads: impl Iterator<Item = &'a Vec<Row>>) -> Vec<Row> {
    let mut all = BTreeMap::new();
    for row in loads.flatten() {
        add(all.entry(row.latch.clone()).or_default(), row);
    }
    all.into_values().collect()
}

fn add(to: &mut Row, row: &Row) {
    to.latch.clone_from(&row.latch);
    to.truth_count += row.truth_count;
    to.raw_s += row.raw_s;
    to.truth_s += row.truth_s;
    to.preempted_s += row.preempted_s;
    to.waits += row.waits;
    to.ours_s += row.ours_s;
}

/// Returns the most contended latches of a load according to either side.
fn top_lines(date: &str, release: &str, version: &str, load: &str, runs: &[Vec<Row>]) -> Vec<Line> {
    let mut by_latch: BTreeMap<&str, Vec<Row>> = BTreeMap::new();
    for row in runs.iter().flatten() {
        by_latch.entry(&row.latch).or_default().push(row.clone());
    }
    let mut lines: Vec<Line> = by_latch.values().map(|runs| Line::of(date, release, version, load, runs)).collect();
    lines.sort_by(|a, b| b.ours_s.total_cmp(&a.ours_s));
    let kept: BTreeSet<String> = lines.iter().take(KEPT).map(|l| l.latch.clone()).collect();
    lines.sort_by(|a, b| b.truth_s.total_cmp(&a.truth_s));
    let theirs: BTreeSet<String> = lines.iter().take(KEPT).map(|l| l.latch.clone()).collect();
    lines.retain(|l| kept.contains(&l.latch) || theirs.contains(&l.latch));
    lines
}

/// Replaces a release's lines and regenerates the page.
fn keep(release: &str, lines: Vec<Line>) -> Result<()> {
    let mut all: Vec<Line> = kept()?.into_iter().filter(|l| l.release != release).collect();
    all.extend(lines.into_iter().filter(|l| l.truth_s.max(l.ours_s) >= FLOOR_S));
    all.sort_by(|a, b| a.release.cmp(&b.release));
    let text: String = all.iter().map(|l| l.tsv() + "\n").collect();
    fs::write(docs("truth.tsv"), format!("{HEADER}\n{text}"))?;
    write_page(&machine()?)
}

/// Returns the lines of earlier measurements.
fn kept() -> Result<Vec<Line>> {
    Ok(fs::read_to_string(docs("truth.tsv"))?.lines().filter_map(Line::parse).collect())
}

/// Regenerates the tables, under a line that names the machine.
fn write_page(machine: &str) -> Result<()> {
    let page = docs("truth.md");
    let text = fs::read_to_string(&page).with_context(|| page.display().to_string())?;
    let (prose, _) = text.split_once(MARK).context("docs/explanation/truth.md has no mark for the tables")?;
    fs::write(&page, format!("{prose}{}", generated(machine)?))?;
    Ok(())
}

/// Returns the generated part of the page.
fn generated(machine: &str) -> Result<String> {
    let all = kept()?;
    let text = format!("{MARK}\n\n{machine}\n\n{}{}", grids(&all), tables(&all));
    Ok(text.trim_end().to_owned() + "\n")
}

/// Returns the line of the page that names the machine of the measurements.
fn machine_of_page() -> Result<String> {
    let text = fs::read_to_string(docs("truth.md"))?;
    let line =
        text.lines().find(|line| line.starts_with(MACHINE)).context("docs/explanation/truth.md names no machine")?;
    Ok(line.to_owned())
}

fn docs(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/explanation").join(name)
}

fn first_line(command: &mut Command) -> Result<String> {
    let output = command.output()?;
    Ok(String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().trim().to_owned())
}

fn machine() -> Result<String> {
    let cpus = std::thread::available_parallelism()?;
    let kernel = first_line(Command::new("uname").args(["-s", "-r", "-m"]))?;
    let cpuinfo = fs::read_to_string("/proc/cpuinfo")?;
    let model =
        cpuinfo.lines().find_map(|l| l.strip_prefix("model name")?.split_once(':')).map(|(_, name)| name.trim());
    let load = format!("{THREADS} threads, {RUNS} runs of {} s each", RUN.as_secs());
    Ok(format!("{MACHINE}{cpus} CPUs ({}), {kernel}. Each load: {load}.", model.unwrap_or("unknown")))
}

/// Returns a table for MySQL and one for MariaDB with the worst ratio of each server under each load.
fn grids(lines: &[Line]) -> String {
    ["mysql-", "mariadb-"]
        .map(|flavor| grid(&lines.iter().filter(|l| l.release.starts_with(flavor)).collect::<Vec<_>>(), flavor))
        .concat()
}

fn grid(lines: &[&Line], flavor: &str) -> String {
    let releases: BTreeSet<&str> = lines.iter().map(|l| l.release.as_str()).collect();
    if releases.is_empty() {
        return String::new();
    }
    let heads: String = releases.iter().map(|release| format!(" {} |", release.trim_start_matches(flavor))).collect();
    let mut text = format!("| {} |{heads}\n|---|{}\n", flavor.trim_end_matches('-'), "--:|".repeat(releases.len()));
    for load in SCENARIOS.map(|s| s.name).into_iter().chain([ALL]) {
        let cell = |release: &&str| {
            let of_load: Vec<&Line> =
                lines.iter().copied().filter(|l| l.release == **release && l.load == load).collect();
            worst(&of_load)
        };
        let cells: String = releases.iter().map(|release| format!(" {} |", cell(release))).collect();
        _ = writeln!(text, "| {load} |{cells}");
    }
    text + "\n"
}

/// Returns the ratio farthest from 1 among the judged latches, and the number of those that armtrace does not see.
fn worst(lines: &[&Line]) -> String {
    let far = |l: &Line| (l.ratio - 1.0).abs();
    let (unseen, seen): (Vec<&Line>, Vec<&Line>) = judged(lines).into_iter().partition(|line| line.is_unseen());
    let worst = seen.into_iter().max_by(|a, b| far(a).total_cmp(&far(b)));
    let worst = worst.map_or_else(
        || "–".to_owned(),
        |l| if l.agrees() { format!("{:.2}", l.ratio) } else { format!("**{:.2}**", l.ratio) },
    );
    if unseen.is_empty() {
        worst
    } else {
        format!("{worst} **(−{})**", unseen.len())
    }
}

/// The number of latches in each server's table on the page. `docs/explanation/truth.tsv` has more.
const SHOWN: usize = 3;

/// Returns one table for each server, over all its loads, after a summary of each load.
fn tables(lines: &[Line]) -> String {
    let mut text = String::new();
    for server in lines.chunk_by(|a, b| a.release == b.release) {
        let first = &server[0];
        _ = writeln!(text, "## {} ({}), {}\n\n{}\n", first.release, first.version, first.date, loads(server));
        text += &table(&of_load(server, ALL), SHOWN);
    }
    text
}

fn of_load<'a>(lines: &'a [Line], load: &str) -> Vec<&'a Line> {
    lines.iter().filter(|l| l.load == load).collect()
}

/// Returns the table of the top latches according to either side, at most `shown` of them.
fn table(lines: &[&Line], shown: usize) -> String {
    let mut text = "| latch | P_S count | P_S sum | contended | armtrace count | armtrace sum | ratio | agrees |\n\
         |---|--:|--:|--:|--:|--:|--:|---|\n"
        .to_owned();
    let mut first = lines.to_vec();
    first.sort_by(|a, b| b.truth_s.max(b.ours_s).total_cmp(&a.truth_s.max(a.ours_s)));
    for l in first.iter().take(shown) {
        _ = writeln!(
            text,
            "| {} | {} | {:.3} s | {:.3} s | {} | {:.3} s | {:.3} | {} |",
            l.latch.trim_start_matches("wait/synch/"),
            l.truth_count,
            l.raw_s,
            l.truth_s,
            l.waits,
            l.ours_s,
            l.ratio,
            l.verdict()
        );
    }
    text + "\n"
}

/// The most loads that miss the bar of which the page lists the latches.
const MOST_LISTED: usize = 3;

/// Summarises which of a server's loads meet the bar, and which latches the others miss it by.
fn loads(lines: &[Line]) -> String {
    let names: BTreeSet<&str> = lines.iter().map(|l| l.load.as_str()).filter(|load| *load != ALL).collect();
    let missed: Vec<String> =
        names.iter().filter_map(|load| Some(format!("{load} ({})", missed(&of_load(lines, load))?))).collect();
    let all = missed_or_met(&of_load(lines, ALL));
    let others = match missed.len() {
        0 => String::new(),
        1..=MOST_LISTED => format!(" The others: {}.", missed.join("; ")),
        _ => " The others are in [truth.tsv](truth.tsv).".to_owned(),
    };
    format!(
        "All loads together: bar {all}. By itself, {} of {} loads meet it.{others}",
        names.len() - missed.len(),
        names.len()
    )
}

fn missed_or_met(lines: &[&Line]) -> String {
    missed(lines).map_or_else(|| "met".to_owned(), |what| format!("missed ({what})"))
}

/// Returns the latches by which a load misses the bar, or `None` if it meets it. The bar is that both sides have the
/// same top latches and that their sums agree.
fn missed(lines: &[&Line]) -> Option<String> {
    let name = |l: &Line| l.latch.trim_start_matches("wait/synch/").to_owned();
    let off = judged(lines).into_iter().filter(|l| !l.agrees()).map(|l| format!("{} {:.2}", name(l), l.ratio));
    let missed: Vec<String> = off.collect();
    (!missed.is_empty()).then(|| missed.join(", "))
}

/// Returns the latches that are judged: the top latches according to performance_schema, and those that are at the top
/// only according to armtrace and do not agree. Latches in fifth and sixth place that hardly differ may change places.
fn judged<'a>(lines: &[&'a Line]) -> Vec<&'a Line> {
    let floor = BAR_FLOOR * f64::from(THREADS) * RUNS as f64 * RUN.as_secs_f64();
    let top = |of: fn(&Line) -> f64| -> Vec<&'a Line> {
        let mut lines: Vec<&Line> = lines.iter().copied().filter(|l| l.is_comparable() && of(l) >= floor).collect();
        lines.sort_by(|a, b| of(b).total_cmp(&of(a)));
        lines.truncate(TOP);
        lines
    };
    let (theirs, ours) = (top(|l| l.truth_s), top(|l| l.ours_s));
    let stray: Vec<&Line> = ours.into_iter().filter(|l| !theirs.contains(l) && !l.agrees()).collect();
    theirs.into_iter().chain(stray).collect()
}

/// Returns the comma-separated words of an environment variable, or nothing if it is empty.
fn words(variable: &str) -> Vec<String> {
    let value = std::env::var(variable).unwrap_or_default();
    value.split(',').filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// Returns whether a name starts with one of these words, in which `_` matches any punctuation, or there are no words.
fn is_wanted(name: &str, words: &[String]) -> bool {
    let plain = |text: &str| text.replace(['-', '.', ' '], "_");
    words.is_empty() || words.iter().any(|word| plain(name).starts_with(&plain(word)))
}

/// A failing server does not prevent the others from being measured. If only some loads are selected, the figures are
/// printed but not stored.
#[test]
#[ignore = "hours: make truth"]
fn truth_suite() -> Result<()> {
    let (servers, loads) = (words("ARMTRACE_TRUTH_SERVERS"), words("ARMTRACE_TRUTH_LOADS"));
    let releases: Vec<Release> = Release::all().filter(|release| is_wanted(release.name(), &servers)).collect();
    ensure!(!releases.is_empty(), "no server is called {servers:?}");
    let scenarios: Vec<Scenario> = SCENARIOS.into_iter().filter(|s| is_wanted(s.name, &loads)).collect();
    ensure!(!scenarios.is_empty(), "no load is called {loads:?}");
    let mut failed = Vec::new();
    for release in releases {
        let start = Instant::now();
        match measure(release, &scenarios) {
            Ok(lines) if loads.is_empty() => {
                println!("{}", tables(&lines));
                keep(release.name(), lines)?;
            }
            Ok(lines) => println!("{}", every_load(&lines)),
            Err(error) => failed.push(format!("{}: {error:#}", release.name())),
        }
        println!("{}: {:.0} s\n", release.name(), start.elapsed().as_secs_f64());
    }
    if !failed.is_empty() {
        bail!("{}", failed.join("\n"));
    }
    Ok(())
}

/// Regenerates the tables, after a change to how they are generated.
#[test]
#[ignore = "writes docs/explanation/truth.md"]
fn truth_page() -> Result<()> {
    write_page(&machine_of_page()?)
}

/// Returns a table for each load.
fn every_load(lines: &[Line]) -> String {
    let of_loads = lines.chunk_by(|a, b| a.load == b.load).map(|of_load| {
        let of_load: Vec<&Line> = of_load.iter().collect();
        format!(
            "### {}, {}: bar {}\n\n{}",
            of_load[0].release,
            of_load[0].load,
            missed_or_met(&of_load),
            table(&of_load, KEPT)
        )
    });
    of_loads.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(latch: &str, truth_s: f64, ours_s: f64) -> Row {
        let (truth_count, waits) = (10.0, if ours_s > 0.0 { 10.0 } else { 0.0 });
        Row { latch: latch.to_owned(), truth_count, raw_s: truth_s, truth_s, waits, ours_s, ..Row::default() }
    }

    fn lines(runs: &[Vec<Row>]) -> Vec<Line> {
        top_lines("2026-01-01", "release", "1.0", ALL, runs)
    }

    #[test]
    fn a_line_is_parsed_from_its_text() {
        let [line] = &lines(&[vec![row("wait/synch/mutex/a/b", 2.0, 1.5)]])[..] else { panic!("not one line") };
        assert_eq!(Line::parse(&line.tsv()).as_ref(), Some(line));
        assert_eq!(Line::parse(HEADER), None);
    }

    /// One run in three may be disturbed.
    #[test]
    fn the_median_of_the_runs_counts() {
        let agrees = |ours: [f64; 3]| lines(&ours.map(|o| vec![row("a", 2.0, o)]))[0].agrees();
        assert!(agrees([2.0, 1.0, 2.1]));
        assert!(!agrees([2.0, 1.0, 1.5]));
    }

    #[test]
    fn a_missed_bar_is_reported() {
        let text = |ours| {
            let mut of_load = lines(&[vec![row("a", 2.0, 2.0), row("b", 1.0, ours)]]);
            of_load.extend(of_load.clone().into_iter().map(|l| Line { load: "tpcc".to_owned(), ..l }));
            tables(&of_load)
        };
        let grid = |ours| {
            grids(
                &lines(&[vec![row("a", 2.0, 2.0), row("b", 1.0, ours)]])
                    .into_iter()
                    .map(|l| Line { release: "mysql-1".to_owned(), ..l })
                    .collect::<Vec<_>>(),
            )
        };
        assert!(grid(0.8).contains("| all | **0.80** |") && grid(0.8).contains("| tpcc | – |"), "{}", grid(0.8));
        assert!(grid(0.95).contains("| all | 0.95 |"), "{}", grid(0.95));
        assert!(grid(0.0).contains("| all | 1.00 **(−1)** |"), "{}", grid(0.0));
        assert!(text(1.0).contains("bar met. By itself, 1 of 1 loads"), "{}", text(1.0));
        assert!(text(0.8).contains("bar missed (b 0.80). By itself, 0 of 1"), "{}", text(0.8));
        assert!(text(0.8).contains("The others: tpcc (b 0.80)."), "{}", text(0.8));
    }

    /// A latch that is at the top only according to one side also misses the bar.
    #[test]
    fn waits_that_only_one_side_has_miss_the_bar() {
        let bar = |rows: Vec<Row>| missed(&lines(&[rows]).iter().collect::<Vec<_>>());
        assert_eq!(bar(vec![row("a", 2.0, 0.0)]).as_deref(), Some("a 0.00"));
        let one = Row { raw_s: 0.2, ..row("a", 0.2, 2.0) };
        assert_eq!(
            bar((0..5).map(|i| row(&i.to_string(), 1.0, 1.0)).chain([one]).collect()).as_deref(),
            Some("a 10.00")
        );
        assert_eq!(bar(vec![row("a", 0.01, 0.05)]), None);
    }

    #[test]
    fn the_page_matches_the_measurements() -> Result<()> {
        let text = fs::read_to_string(docs("truth.md"))?;
        ensure!(
            text.ends_with(&generated(&machine_of_page()?)?),
            "docs/explanation/truth.md does not match docs/explanation/truth.tsv: run make truth-page"
        );
        Ok(())
    }

    #[test]
    fn names_are_selected_by_their_beginning() {
        let words = ["mysql_8_0".to_owned()];
        assert!(is_wanted("mysql-8.0.31", &words) && is_wanted("anything", &[]));
        assert!(!is_wanted("mysql-9.7", &words));
    }
}
