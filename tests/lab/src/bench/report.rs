//! Results, and the tables made of them.

use serde::{Deserialize, Serialize, Serializer};

use super::stats::{Summary, Together};

/// One continuous load on one server, and everything that was attached to it by turns.
#[derive(Debug, Serialize, Deserialize)]
pub struct Run {
    pub server: String,
    pub version: String,
    pub test: String,
    pub threads: u32,
    pub date: String,
    pub machine: String,
    pub tools: String,
    /// Windows with nothing attached.
    pub detached: Vec<Window>,
    pub modes: Vec<ModeRun>,
}

/// A few seconds of the load.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Window {
    /// Transactions a second.
    #[serde(serialize_with = "rounded")]
    pub tps: f64,
    /// The server's CPU seconds per 1,000 queries.
    #[serde(serialize_with = "rounded")]
    pub cpu: f64,
    /// 95th percentile of a transaction's time, milliseconds: the mean of sysbench's figures for the seconds in it; `None` where
    /// there is no whole one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p95: Option<f64>,
    /// What the tool itself took, where it is a process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<ToolUse>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ToolUse {
    /// CPU time by wall time: 1 is a whole core.
    #[serde(serialize_with = "rounded")]
    pub cpu: f64,
    /// Resident, MiB.
    #[serde(serialize_with = "rounded")]
    pub memory: f64,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct ModeRun {
    pub mode: String,
    pub title: String,
    /// Started and ended for each window.
    pub pairs: Vec<Pair>,
    /// There all the time, and only switched on for each window, which are short.
    #[serde(default)]
    pub switched: Vec<Pair>,
    /// Seconds from start to the first figure, and from SIGINT to the end.
    pub attach: Vec<f64>,
    pub detach: Vec<f64>,
    /// Why there are no (more) pairs.
    pub gave_up: Option<String>,
}

/// A window with something attached, and the mean of the detached windows before and after it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Pair {
    pub with: Window,
    pub without: Window,
}

/// To six digits: more than can be measured, and no more than a file needs.
fn rounded<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    let text = format!("{value:.5e}");
    serializer.serialize_f64(text.parse().unwrap_or(*value))
}

impl Pair {
    pub fn new(before: Window, with: Window, after: Window) -> Pair {
        let mean = |f: fn(&Window) -> f64| (f(&before) + f(&after)) / 2.0;
        let p95 = before.p95.zip(after.p95).map(|(before, after)| (before + after) / 2.0);
        let without = Window { tps: mean(|w| w.tps), cpu: mean(|w| w.cpu), p95, tool: None };
        Pair { with, without }
    }
}

impl ModeRun {
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

    /// The newest pair, for who watches.
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

    /// With to without: from the short windows, which tell more, where there are any.
    pub fn ratio(&self, figure: fn(&Window) -> f64) -> Option<Summary> {
        Summary::of(&ratios(self.telling(), figure))
    }

    fn telling(&self) -> &[Pair] {
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
        self.telling().iter().filter_map(|p| p.with.tool.as_ref().map(figure)).collect()
    }

    /// The kernel counts a process's CPU time in hundredths of a second, which are more than most tools take in a window: no
    /// median of windows would tell that.
    fn own_cpu(&self) -> Option<f64> {
        let uses = self.tool(|tool| tool.cpu);
        (!uses.is_empty()).then(|| uses.iter().sum::<f64>() / uses.len() as f64)
    }

    fn memory(&self) -> Option<f64> {
        Some(Summary::of(&self.tool(|tool| tool.memory))?.median)
    }

    /// Nothing where nothing was tried.
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

/// With to without, for one figure.
pub fn ratios(pairs: &[Pair], figure: fn(&Window) -> f64) -> Vec<f64> {
    pairs.iter().map(|p| figure(&p.with) / figure(&p.without)).collect()
}

fn range((low, high): (f64, f64)) -> String {
    format!("{low:.3} to {high:.3}")
}

impl Run {
    pub fn name(&self) -> String {
        format!("{}-{}-{}", self.server, self.test, self.threads)
    }

    /// This run's windows, and in place of those that a newer one has too, the newer one's.
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

    /// The table of one load.
    pub fn table(&self) -> String {
        let median = |figure: fn(&Window) -> f64| {
            Summary::of(&self.detached.iter().map(figure).collect::<Vec<_>>()).map_or(0.0, |s| s.median)
        };
        // Short windows have none.
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

/// What each tool costs over all loads, of each server and of both.
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
                Together::of(&same.iter().map(|mode| ratios(mode.telling(), figure)).collect::<Vec<_>>())
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

/// How long the tools take to start and to stop, over all loads of a server.
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

/// Everything, as `docs/benchmarks.md` has it.
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
