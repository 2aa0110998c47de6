//! Benchmark results and their tables.

use serde::{Deserialize, Serialize, Serializer};

use super::stats::{Summary, Together};

/// One continuous load on one server, with each tool attached in turn.
#[derive(Debug, Serialize, Deserialize)]
pub struct Run {
    /// The name of the release in the lab: `mysql-9.7`.
    pub server: String,
    /// The version that the server reports.
    pub version: String,
    /// The sysbench test.
    pub test: String,
    /// The number of its threads.
    pub threads: u32,
    /// The day of the run: `2026-01-31`.
    pub date: String,
    /// The machine, in words.
    pub machine: String,
    /// The versions of the tools, in words.
    pub tools: String,
    /// Windows with nothing attached.
    pub detached: Vec<Window>,
    /// The tools, and the ways to use each.
    pub modes: Vec<ModeRun>,
}

/// A few seconds of the load.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Window {
    /// Transactions per second.
    #[serde(serialize_with = "rounded")]
    pub tps: f64,
    /// The server's CPU seconds per 1,000 queries.
    #[serde(serialize_with = "rounded")]
    pub cpu: f64,
    /// The 95th percentile of transaction time in milliseconds, averaged over sysbench's reports for the seconds inside
    /// the window. `None` if the window contains no full second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p95: Option<f64>,
    /// What the tool itself used, if it is a process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<ToolUse>,
}

/// What a tool used during a window.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ToolUse {
    /// CPU time divided by wall time: 1 is a full core.
    #[serde(serialize_with = "rounded")]
    pub cpu: f64,
    /// Resident memory in MiB.
    #[serde(serialize_with = "rounded")]
    pub memory: f64,
}

/// A tool, used in one way, under one load.
#[derive(Debug, Serialize, Deserialize)]
pub struct ModeRun {
    /// The identifier of the mode.
    pub mode: String,
    /// The name of the mode in tables.
    pub title: String,
    /// Pairs for which the tool was started before and ended after the window.
    pub pairs: Vec<Pair>,
    /// Pairs of short windows, for which the tool was always present and was only switched on and off.
    #[serde(default)]
    pub switched: Vec<Pair>,
    /// Seconds from the start to the first figure.
    pub attach: Vec<f64>,
    /// Seconds from SIGINT to the exit.
    pub detach: Vec<f64>,
    /// Why there are no pairs, or no more.
    pub gave_up: Option<String>,
}

/// A window with something attached, and the mean of the detached windows before and after it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Pair {
    /// The window with something attached.
    pub with: Window,
    /// The mean of the detached windows.
    pub without: Window,
}

/// Rounds to six digits, which is more than can be measured and keeps the file small.
fn rounded<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    let text = format!("{value:.5e}");
    serializer.serialize_f64(text.parse().unwrap_or(*value))
}

impl Pair {
    /// Pairs a window with the detached ones before and after it.
    pub fn new(before: Window, with: Window, after: Window) -> Pair {
        let mean = |f: fn(&Window) -> f64| (f(&before) + f(&after)) / 2.0;
        let p95 = before.p95.zip(after.p95).map(|(before, after)| (before + after) / 2.0);
        let without = Window { tps: mean(|w| w.tps), cpu: mean(|w| w.cpu), p95, tool: None };
        Pair { with, without }
    }
}

impl ModeRun {
    /// Creates a mode without results.
    pub fn new(mode: String, title: &str) -> ModeRun {
        let title = title.to_owned();
        ModeRun {
            mode,
            title,
            pairs: Vec::new(),
            switched: Vec::new(),
            attach: Vec::new(),
            detach: Vec::new(),
            gave_up: None,
        }
    }

    fn renew(&mut self, newer: ModeRun) {
        if !newer.switched.is_empty() {
            self.switched = newer.switched;
        }
        if !newer.pairs.is_empty() {
            (self.pairs, self.attach, self.detach) = (newer.pairs, newer.attach, newer.detach);
        }
        self.gave_up = newer.gave_up;
    }

    /// Returns the newest pair as a line of progress output.
    pub fn last(&self) -> String {
        match (self.switched.last().or(self.pairs.last()), &self.gave_up) {
            (_, Some(reason)) => format!("{} given up: {reason}", self.mode),
            (Some(Pair { with, without }), None) => format!(
                "{}: {:.0} without, {:.0} with, ratio {:.3}; CPU per query {:.3}",
                self.mode,
                without.tps,
                with.tps,
                with.tps / without.tps,
                with.cpu / without.cpu
            ),
            (None, None) => String::new(),
        }
    }

    /// Summarises the ratios of a figure, attached to detached, from the short windows if there are any: they are more
    /// precise.
    pub fn ratio(&self, figure: fn(&Window) -> f64) -> Option<Summary> {
        Summary::of(&ratios(self.precise_pairs(), figure))
    }

    /// Returns the short windows' pairs if there are any, otherwise the others.
    fn precise_pairs(&self) -> &[Pair] {
        if self.switched.is_empty() {
            &self.pairs
        } else {
            &self.switched
        }
    }

    fn p95(&self) -> Option<f64> {
        let ratios: Vec<f64> = self.pairs.iter().filter_map(|p| Some(p.with.p95? / p.without.p95?)).collect();
        Some(Summary::of(&ratios)?.median)
    }

    fn tool(&self, figure: fn(&ToolUse) -> f64) -> Vec<f64> {
        self.precise_pairs().iter().filter_map(|p| p.with.tool.as_ref().map(figure)).collect()
    }

    /// Returns the mean over the windows, not the median: the kernel counts a process's CPU time in hundredths of a
    /// second, and most tools use less than that in a window.
    fn own_cpu(&self) -> Option<f64> {
        let uses = self.tool(|tool| tool.cpu);
        (!uses.is_empty()).then(|| uses.iter().sum::<f64>() / uses.len() as f64)
    }

    fn memory(&self) -> Option<f64> {
        Some(Summary::of(&self.tool(|tool| tool.memory))?.median)
    }

    /// Returns the mode's row of the table, or an empty string if the mode was not tried.
    fn row(&self) -> String {
        let (Some(tps), Some(cpu)) = (self.ratio(|w| w.tps), self.ratio(|w| w.cpu)) else {
            let tried = self.gave_up.as_ref().map(|_| format!("| {} | 0 | | | | | | | | |\n", self.title));
            return tried.unwrap_or_default();
        };
        let optional = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
        format!(
            "| {} | {} | **{:.3}** | {} | {} | {:.3} | {} | {} | {} | {} |\n",
            self.title,
            tps.count,
            tps.median,
            range(tps.quartiles),
            range(tps.interval),
            cpu.median,
            range(cpu.interval),
            optional(self.p95().map(|ratio| format!("{ratio:.2}"))),
            optional(self.own_cpu().map(|share| format!("{:.1} %", 100.0 * share))),
            optional(self.memory().map(|mib| format!("{mib:.0} MiB"))),
        )
    }
}

/// Returns the ratios of one figure, attached to detached.
pub fn ratios(pairs: &[Pair], figure: fn(&Window) -> f64) -> Vec<f64> {
    pairs.iter().map(|p| figure(&p.with) / figure(&p.without)).collect()
}

fn range((low, high): (f64, f64)) -> String {
    format!("{low:.3} to {high:.3}")
}

impl Run {
    /// Returns the name of the load: server, test and number of threads.
    pub fn name(&self) -> String {
        format!("{}-{}-{}", self.server, self.test, self.threads)
    }

    /// Merges a newer run into this one. Where both have pairs of a mode, the newer run's are used.
    pub fn with_newer(mut self, newer: Run) -> Run {
        for mode in newer.modes {
            match self.modes.iter_mut().find(|kept| kept.mode == mode.mode) {
                Some(kept) => kept.renew(mode),
                None => self.modes.push(mode),
            }
        }
        Run { modes: self.modes, ..newer }
    }

    fn product(&self) -> &'static str {
        if self.server.starts_with("mysql") {
            "MySQL"
        } else {
            "MariaDB"
        }
    }

    /// Returns the table of this load.
    pub fn table(&self) -> String {
        let median = |figure: fn(&Window) -> f64| {
            Summary::of(&self.detached.iter().map(figure).collect::<Vec<_>>()).map_or(0.0, |s| s.median)
        };
        // Short windows have no p95.
        let p95: Vec<f64> =
            self.modes.iter().flat_map(|mode| &mode.pairs).filter_map(|pair| pair.without.p95).collect();
        let p95 = Summary::of(&p95).map_or_else(String::new, |p95| format!(", p95 {:.2} ms", p95.median));
        let mut text = format!(
            "### {} {}, `{}`, {} threads\n\n\
             {}. {} windows with nothing attached, medians: {:.0} transactions/s, {:.3} CPU seconds per 1,000 queries{p95}.\n\n\
             | attached | pairs | throughput | middle half | 95 % interval | CPU per query | 95 % interval | p95 | own CPU | memory |\n\
             |---|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n",
            self.product(),
            self.version,
            self.test,
            self.threads,
            self.date,
            self.detached.len(),
            median(|w| w.tps),
            median(|w| w.cpu),
        );
        self.modes.iter().for_each(|mode| text += &mode.row());
        for mode in &self.modes {
            if let Some(reason) = &mode.gave_up {
                text += &format!("\n{} was given up: {}\n", mode.title, reason.replace('\n', " "));
            }
        }
        text
    }
}

/// Returns the table of what each tool costs over all loads, for each server and for both.
pub fn together(runs: &[Run]) -> String {
    let mut text =
        "| server | attached | loads | pairs | throughput | 95 % interval | CPU per query | 95 % interval |\n\
                    |---|---|--:|--:|--:|--:|--:|--:|\n"
            .to_owned();
    let mut modes: Vec<&ModeRun> = Vec::new();
    for mode in runs.iter().flat_map(|run| &run.modes) {
        if !modes.iter().any(|known| known.mode == mode.mode) {
            modes.push(mode);
        }
    }
    for product in ["MySQL", "MariaDB", "both"] {
        for mode in &modes {
            let of_product = runs.iter().filter(|run| product == "both" || run.product() == product);
            let same: Vec<&ModeRun> =
                of_product.flat_map(|run| &run.modes).filter(|other| other.mode == mode.mode).collect();
            let all = |figure: fn(&Window) -> f64| {
                Together::of(&same.iter().map(|mode| ratios(mode.precise_pairs(), figure)).collect::<Vec<_>>())
            };
            if let (Some(tps), Some(cpu)) = (all(|w| w.tps), all(|w| w.cpu)) {
                text += &format!(
                    "| {product} | {} | {} | {} | **{:.3}** | {} | {:.3} | {} |\n",
                    mode.title,
                    tps.samples,
                    tps.count,
                    tps.mean,
                    range(tps.interval),
                    cpu.mean,
                    range(cpu.interval),
                );
            }
        }
    }
    text
}

/// Returns the table of how long the tools take to start and to stop, over all loads of a server.
pub fn times(runs: &[Run]) -> String {
    let mut rows: Vec<(String, Vec<f64>, Vec<f64>)> = Vec::new();
    for run in runs {
        for mode in &run.modes {
            let name = format!("{} | {}", run.product(), mode.title);
            let row = match rows.iter().position(|row| row.0 == name) {
                Some(row) => row,
                None => {
                    rows.push((name, Vec::new(), Vec::new()));
                    rows.len() - 1
                }
            };
            rows[row].1.extend(&mode.attach);
            rows[row].2.extend(&mode.detach);
        }
    }
    rows.retain(|(_, attach, detach)| !attach.is_empty() || !detach.is_empty());
    rows.sort_by(|a, b| a.0.cmp(&b.0));
    let seconds = |times: &[f64]| {
        let longest = times.iter().copied().fold(0.0, f64::max);
        Summary::of(times).map_or("- | -".to_owned(), |s| format!("{:.2} s | {longest:.2} s", s.median))
    };
    let mut text =
        "| server | attached | first figure, median | longest | end, median | longest |\n|---|---|--:|--:|--:|--:|\n"
            .to_owned();
    for (name, attach, detach) in rows {
        text += &format!("| {name} | {} | {} |\n", seconds(&attach), seconds(&detach));
    }
    text
}

/// Returns the full text of `docs/explanation/benchmarks.md`.
pub fn document(runs: &[Run]) -> String {
    let mut machines: Vec<String> = runs.iter().map(|run| format!("{}; {}", run.machine, run.tools)).collect();
    machines.sort();
    machines.dedup();
    let mut text = include_str!("introduction.md").to_owned();
    text += &format!("\n## Machine\n\n{}.\n", machines.join(".\n\n"));
    text += &format!("\n## All loads together\n\n{}\n## Each load\n", together(runs));
    runs.iter().for_each(|run| text += &format!("\n{}", run.table()));
    text + "\n## Start and end\n\n" + &times(runs)
}
