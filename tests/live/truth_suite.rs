//! The long form of the comparison with performance_schema: each family under ten loads, three runs each (`make truth`).
//!
//! Each family's figures replace those it has in `docs/truth.tsv`; the tables in `docs/truth.md` are made anew from that
//! file. So families can be measured one by one, and what stands in the documentation is what was measured.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{ensure, Context, Result};

use crate::agent::Agent;
use crate::load::Load;
use crate::server::{Family, Options, Server};
use crate::truth::{uncontended, Reading, Row};

const TESTS: [&str; 5] =
    ["oltp_point_select", "oltp_read_only", "oltp_read_write", "oltp_update_index", "oltp_update_non_index"];
const DISTRIBUTIONS: [&str; 2] = ["uniform", "pareto"];
const RUNS: usize = 3;
const RUN: Duration = Duration::from_secs(4);
const QUIET: Duration = Duration::from_secs(1);
const THREADS: u32 = 32;

/// How many latches of each load are kept, by either account.
const KEPT: usize = 8;
/// Seconds, of all runs together, below which a latch is left out, and of one run, below which that run says nothing.
const FLOOR_S: f64 = 0.01;
const RUN_FLOOR_S: f64 = 0.001;
/// How many of a family's latches have to agree, and how well.
const TOP: usize = 5;
const TOLERANCE: f64 = 0.10;
/// What stands for all loads of a run together.
const ALL: &str = "all";

/// Everything behind this line of `docs/truth.md` is made by this suite.
const MARK: &str = "<!-- Made by `make truth`; what is written below is replaced. -->";

/// One latch under one load: the sums of the runs, and the median of their ratios.
#[derive(Clone, Debug, PartialEq)]
struct Line {
    date: String,
    family: String,
    version: String,
    load: String,
    latch: String,
    truth_count: f64,
    raw_s: f64,
    truth_s: f64,
    waits: f64,
    ours_s: f64,
    ratio: f64,
}

const HEADER: &str = "date\tfamily\tversion\tload\tlatch\tps_count\tps_sum_s\tps_contended_s\tarmtrace_count\tarmtrace_sum_s\tmedian_ratio";

impl Line {
    /// From the same latch's figures in each run.
    fn of(date: &str, family: &str, version: &str, load: &str, runs: &[Row]) -> Line {
        let sum = |of: fn(&Row) -> f64| runs.iter().map(of).sum::<f64>();
        let says = |r: &&Row| r.truth_s >= RUN_FLOOR_S;
        let mut ratios: Vec<f64> = runs.iter().filter(says).map(|r| r.ours_s / r.truth_s).collect();
        ratios.sort_by(f64::total_cmp);
        Line {
            date: date.to_owned(),
            family: family.to_owned(),
            version: version.to_owned(),
            load: load.to_owned(),
            latch: runs.first().map(|r| r.latch.clone()).unwrap_or_default(),
            truth_count: sum(|r| r.truth_count),
            raw_s: sum(|r| r.raw_s),
            truth_s: sum(|r| r.truth_s),
            waits: sum(|r| r.waits),
            ours_s: sum(|r| r.ours_s),
            ratio: ratios.get(ratios.len() / 2).copied().unwrap_or(0.0),
        }
    }

    fn tsv(&self) -> String {
        format!(
            "{}\t{}\t{}\t{}\t{}\t{:.0}\t{:.6}\t{:.6}\t{:.0}\t{:.6}\t{:.3}",
            self.date,
            self.family,
            self.version,
            self.load,
            self.latch,
            self.truth_count,
            self.raw_s,
            self.truth_s,
            self.waits,
            self.ours_s,
            self.ratio
        )
    }

    fn parse(text: &str) -> Option<Line> {
        let fields: Vec<&str> = text.split('\t').collect();
        let [date, family, version, load, latch, rest @ ..] = &fields[..] else { return None };
        let numbers: Vec<f64> = rest.iter().filter_map(|n| n.parse().ok()).collect();
        let &[truth_count, raw_s, truth_s, waits, ours_s, ratio] = &numbers[..] else { return None };
        let [date, family, version, load, latch] = [date, family, version, load, latch].map(|s| (*s).to_owned());
        Some(Line { date, family, version, load, latch, truth_count, raw_s, truth_s, waits, ours_s, ratio })
    }

    /// Whether performance_schema's sum is of waits; see [`Row::is_comparable`].
    fn is_comparable(&self) -> bool {
        Row { truth_s: self.truth_s, raw_s: self.raw_s, ..Row::default() }.is_comparable()
    }

    fn agrees(&self) -> bool {
        (self.ratio - 1.0).abs() <= TOLERANCE
    }

    fn verdict(&self) -> &'static str {
        match (self.is_comparable(), self.agrees()) {
            (false, _) => "not waits",
            (true, true) => "yes",
            (true, false) => "**no**",
        }
    }
}

/// Runs one family through all loads, several times over, and keeps what came out.
fn measure(family: Family) -> Result<()> {
    let server = Server::start(family, &Options { perf_schema: true, ..Options::default() })?;
    let rows = server.query("SELECT VERSION()")?;
    let version = rows.first().and_then(|r| r.first()).context("the server does not say its version")?.clone();
    let agent = Agent::attach_without_budget(&server)?;
    let mut quiet = BTreeMap::new();
    for test in TESTS {
        quiet.insert(test, uncontended(&server, test, QUIET)?);
    }
    let mut runs: BTreeMap<String, Vec<Vec<Row>>> = BTreeMap::new();
    for _ in 0..RUNS {
        let mut all = BTreeMap::new();
        for test in TESTS {
            for distribution in DISTRIBUTIONS {
                let rows = run(&server, &agent, test, distribution, &quiet[test])?;
                for row in &rows {
                    add(all.entry(row.latch.clone()).or_default(), row);
                }
                let load = format!("{} {distribution}", test.trim_start_matches("oltp_"));
                runs.entry(load).or_default().push(rows);
            }
        }
        runs.entry(ALL.to_owned()).or_default().push(all.into_values().collect());
    }
    let (status, _) = agent.stop()?;
    ensure!(status.success(), "{status}");
    server.stop()?;

    let date = first_line(Command::new("date").args(["--utc", "+%F"]))?;
    let lines: Vec<Line> =
        runs.iter().flat_map(|(load, runs)| top_lines(&date, family.name(), &version, load, runs)).collect();
    println!("{}", tables(&lines));
    keep(family.name(), lines)
}

/// One run of one load, both sides measuring: what each latch's counters grew by.
fn run(
    server: &Server,
    agent: &Agent,
    test: &str,
    distribution: &str,
    quiet: &BTreeMap<String, f64>,
) -> Result<Vec<Row>> {
    let mut load = Load::start_with(server, test, THREADS, &["--rand-type", distribution])?;
    load.wait_running()?;
    let before = Reading::take(server, agent)?;
    sleep(RUN);
    let after = Reading::take(server, agent)?;
    load.stop()?;
    let each = |latch: &String| quiet.get(latch).copied().unwrap_or(0.0);
    Ok(after.latches().map(|latch| after.since(&before, latch, each(latch))).collect())
}

fn add(to: &mut Row, row: &Row) {
    to.latch.clone_from(&row.latch);
    to.truth_count += row.truth_count;
    to.raw_s += row.raw_s;
    to.truth_s += row.truth_s;
    to.waits += row.waits;
    to.ours_s += row.ours_s;
}

/// The most contended latches of a load by either account.
fn top_lines(date: &str, family: &str, version: &str, load: &str, runs: &[Vec<Row>]) -> Vec<Line> {
    let mut by_latch: BTreeMap<&str, Vec<Row>> = BTreeMap::new();
    for row in runs.iter().flatten() {
        by_latch.entry(&row.latch).or_default().push(row.clone());
    }
    let mut lines: Vec<Line> = by_latch.values().map(|runs| Line::of(date, family, version, load, runs)).collect();
    lines.sort_by(|a, b| b.ours_s.total_cmp(&a.ours_s));
    let kept: BTreeSet<String> = lines.iter().take(KEPT).map(|l| l.latch.clone()).collect();
    lines.sort_by(|a, b| b.truth_s.total_cmp(&a.truth_s));
    let theirs: BTreeSet<String> = lines.iter().take(KEPT).map(|l| l.latch.clone()).collect();
    lines.retain(|l| kept.contains(&l.latch) || theirs.contains(&l.latch));
    lines
}

/// Puts a family's lines in the place of its old ones, and makes the tables anew.
fn keep(family: &str, lines: Vec<Line>) -> Result<()> {
    let (tsv, page) = (docs("truth.tsv"), docs("truth.md"));
    let old = fs::read_to_string(&tsv).unwrap_or_default();
    let mut all: Vec<Line> = old.lines().filter_map(Line::parse).filter(|l| l.family != family).collect();
    all.extend(lines.into_iter().filter(|l| l.truth_s.max(l.ours_s) >= FLOOR_S));
    all.sort_by(|a, b| a.family.cmp(&b.family));
    let text: String = all.iter().map(|l| l.tsv() + "\n").collect();
    fs::write(&tsv, format!("{HEADER}\n{text}"))?;
    let prose = fs::read_to_string(&page).with_context(|| page.display().to_string())?;
    let (prose, _) = prose.split_once(MARK).context("docs/truth.md has no mark for the tables")?;
    fs::write(&page, format!("{prose}{MARK}\n\n{}\n\n{}", machine()?, tables(&all)))?;
    Ok(())
}

fn docs(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(name)
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
    Ok(format!("Machine: {cpus} CPUs ({}), {kernel}. Each load: {load}.", model.unwrap_or("unknown")))
}

/// All tables: for each family one of all its loads, then one of each.
fn tables(lines: &[Line]) -> String {
    let mut text = String::new();
    let mut title = ("", "");
    for line in lines {
        let of = (line.family.as_str(), line.load.as_str());
        if of != title {
            if of.0 != title.0 {
                _ = writeln!(text, "## {} ({}), {}\n", line.family, line.version, line.date);
            }
            let group: Vec<&Line> = lines.iter().filter(|l| (l.family.as_str(), l.load.as_str()) == of).collect();
            text += &table(of.1, &group);
            title = of;
        }
    }
    text
}

fn table(load: &str, lines: &[&Line]) -> String {
    let title = if load == ALL { "All loads together" } else { load };
    let mut text = format!(
        "### {title}\n\n{}\n| latch | P_S count | P_S sum | contended | armtrace count | armtrace sum | ratio | agrees |\n\
         |---|--:|--:|--:|--:|--:|--:|---|\n",
        if load == ALL { format!("{}\n", bar(lines)) } else { String::new() }
    );
    for l in lines {
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

/// Whether a family meets the bar: the same latches are at the top by both accounts, and their sums agree.
fn bar(lines: &[&Line]) -> String {
    let top = |of: fn(&Line) -> f64| -> BTreeSet<&str> {
        let mut lines: Vec<&&Line> = lines.iter().filter(|l| l.is_comparable()).collect();
        lines.sort_by(|a, b| of(b).total_cmp(&of(a)));
        lines.iter().take(TOP).map(|l| l.latch.as_str()).collect()
    };
    let (theirs, ours) = (top(|l| l.truth_s), top(|l| l.ours_s));
    let missed: Vec<&str> = lines
        .iter()
        .filter(|l| theirs.contains(l.latch.as_str()) && !l.agrees())
        .map(|l| l.latch.trim_start_matches("wait/synch/"))
        .collect();
    let common = theirs.intersection(&ours).count();
    let verdict = if missed.is_empty() && common == theirs.len() { "met" } else { "missed" };
    let by = if missed.is_empty() { String::new() } else { format!(" Off by more than 10 %: {}.", missed.join(", ")) };
    format!("Bar {verdict}: {common} of the top {} are the same by both accounts.{by}", theirs.len())
}

#[test]
#[ignore = "minutes: make truth"]
fn truth_suite_mysql_9_7() -> Result<()> {
    measure(Family::Mysql97)
}

#[test]
#[ignore = "minutes: make truth"]
fn truth_suite_mariadb_11_4() -> Result<()> {
    measure(Family::Mariadb114)
}

#[test]
#[ignore = "minutes: make truth"]
fn truth_suite_mariadb_10_11() -> Result<()> {
    measure(Family::Mariadb1011)
}

#[test]
#[ignore = "minutes: make truth"]
fn truth_suite_mariadb_10_11_debian() -> Result<()> {
    measure(Family::Mariadb1011Debian)
}

#[test]
#[ignore = "minutes: make truth"]
fn truth_suite_mariadb_10_2() -> Result<()> {
    measure(Family::Mariadb102)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(latch: &str, truth_s: f64, ours_s: f64) -> Row {
        Row { latch: latch.to_owned(), raw_s: truth_s, truth_s, ours_s, ..Row::default() }
    }

    fn lines(runs: &[Vec<Row>]) -> Vec<Line> {
        top_lines("2026-01-01", "family", "1.0", ALL, runs)
    }

    #[test]
    fn a_line_is_what_its_text_says() {
        let [line] = &lines(&[vec![row("wait/synch/mutex/a/b", 2.0, 1.5)]])[..] else { panic!("not one line") };
        assert_eq!(Line::parse(&line.tsv()).as_ref(), Some(line));
        assert_eq!(Line::parse(HEADER), None);
    }

    /// One run in three may be disturbed.
    #[test]
    fn the_median_of_runs_decides() {
        let agrees = |ours: [f64; 3]| lines(&ours.map(|o| vec![row("a", 2.0, o)]))[0].agrees();
        assert!(agrees([2.0, 1.0, 2.1]));
        assert!(!agrees([2.0, 1.0, 1.5]));
    }

    #[test]
    fn a_missed_bar_is_said() {
        let text = |ours| {
            let lines = lines(&[vec![row("a", 2.0, 2.0), row("b", 1.0, ours)]]);
            tables(&lines)
        };
        assert!(text(1.0).contains("Bar met: 2 of the top 2"), "{}", text(1.0));
        assert!(text(0.8).contains("Bar missed: 2 of the top 2") && text(0.8).contains("10 %: b."), "{}", text(0.8));
    }
}
