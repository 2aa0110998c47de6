//! Reports the server's CPU time.

use std::collections::BTreeMap;
use std::fmt::{self, Formatter};

use maud::{html, Markup};
use serde::Serialize;
use strum::IntoEnumIterator;

use super::figures::{CpuTime, OrderingTime, StatementCpu};
use crate::html::{more, table, table_of_words};
use crate::measure::latch::report::{clients, html_clients, write_clients, write_statement, ClientReport, LatchReport};
use crate::measure::latch::shares::{divide, Share, Statement};
use crate::model::CpuClass;
use crate::present::format;
use crate::present::names::cut_middle;
use crate::recording::report::{seconds, timeline, Findings, Report, Section};
use crate::recording::{Recording, Second};

/// The number of functions, of instructions in functions, and of instructions listed. JSON has all.
const TEXT_FUNCTIONS: usize = 8;
const HTML_FUNCTIONS: usize = 30;
const TEXT_ORDERING: usize = 5;
const HTML_ORDERING: usize = 20;
const INSTRUCTIONS: usize = 6;
const TEXT_STATEMENTS: usize = 10;
const HTML_STATEMENTS: usize = 30;
/// The greatest width of a function's name.
const TEXT_FUNCTION: usize = 60;
const HTML_FUNCTION: usize = 80;
/// Shares of the CPU time that are worth a sentence.
const MUCH_SPINNING: f64 = 0.05;
const MUCH_ORDERING: f64 = 0.05;

/// CPU time that was sampled. Times are in seconds.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CpuReport {
    /// The CPU time of all functions.
    pub cpu: f64,
    /// Classes that took any time, the most first.
    pub classes: Vec<ClassReport>,
    /// Functions, the most time first; `other` stands for all functions of its class without a row of their own.
    pub functions: Vec<FunctionReport>,
    /// The part of it in instructions that order memory, the most first; empty if that was not seen.
    pub ordering: Vec<OrderingReport>,
    /// What threads executed meanwhile, the most CPU time first. Empty if statements were not read.
    pub statements: Vec<StatementCpuReport>,
    /// What threads executed that were at instructions which order memory, the most CPU time first.
    pub ordering_statements: Vec<StatementCpuReport>,
    /// For whom they executed it, the most CPU time first. Empty if that is not known.
    pub clients: Vec<ClientReport>,
}

/// The CPU time of one class.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ClassReport {
    /// The class, as in the `class` label.
    pub class: &'static str,
    /// CPU time, in seconds.
    pub cpu: f64,
    /// Its share of all CPU time, 0 to 1.
    pub share: f64,
    /// CPU seconds in each second of the recording.
    pub cpu_by_second: Vec<f64>,
}

/// The CPU time of one function.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FunctionReport {
    /// The class, as in the `class` label.
    pub class: &'static str,
    /// The function's name, or `other`.
    pub function: String,
    /// CPU time, in seconds.
    pub cpu: f64,
    /// Its share of all CPU time, 0 to 1.
    pub share: f64,
}

/// An instruction that orders memory, in a function.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OrderingReport {
    /// The instruction: `lock cmpxchg`, `dmb ish`.
    pub instruction: String,
    /// The function's name, or `other`.
    pub function: String,
    /// CPU time, in seconds.
    pub cpu: f64,
    /// Its share of all CPU time, 0 to 1.
    pub share: f64,
}

/// A statement's part of the CPU time, by the number of times that threads were seen.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct StatementCpuReport {
    /// The hash of the statement without its values; empty if this is no single statement.
    pub digest: String,
    /// The statement without its values, or its first word; or what stands in its place: `no statement`, `not read`,
    /// `other`.
    pub statement: String,
    /// The number of times that a thread was seen which ran and executed it, in the CPU time that is divided.
    pub samples: u64,
    /// CPU time, in seconds.
    pub cpu: f64,
    /// Its share of all CPU time that is divided, 0 to 1.
    pub share: f64,
    /// Half the width of the 95 % confidence interval of `share`.
    pub share_error: f64,
}

impl CpuReport {
    /// Reports on a recording; returns `None` if CPU time was not sampled, or none was used.
    pub(crate) fn new(recording: &Recording) -> Option<CpuReport> {
        let rows = recording.cpu();
        let all = seconds(CpuTime::sum(rows.iter()));
        (all > 0.0).then_some(())?;
        let by_second = |class| by_second(recording, class);
        let class = |class: CpuClass| {
            let cpu = seconds(CpuTime::sum(rows.iter().filter(|row| row.class == class)));
            let report =
                || ClassReport { class: class.as_str(), cpu, share: cpu / all, cpu_by_second: by_second(class) };
            (cpu > 0.0).then(report)
        };
        let mut classes: Vec<ClassReport> = CpuClass::iter().filter_map(class).collect();
        classes.sort_by(|a, b| b.cpu.total_cmp(&a.cpu));
        let function = |row: &CpuTime| FunctionReport {
            class: row.class.as_str(),
            function: row.function.clone(),
            cpu: seconds(row.ns),
            share: seconds(row.ns) / all,
        };
        let functions = rows.iter().filter(|row| row.ns > 0).map(function).collect();
        let ordering = |row: OrderingTime| OrderingReport {
            cpu: seconds(row.ns),
            share: seconds(row.ns) / all,
            instruction: row.instruction,
            function: row.function,
        };
        let ordering: Vec<OrderingReport> =
            recording.ordering().into_iter().filter(|row| row.ns > 0).map(ordering).collect();
        let ordering_cpu = ordering.iter().map(|row| row.cpu).sum();
        let seen = recording.cpu_statements();
        Some(CpuReport {
            cpu: all,
            classes,
            functions,
            ordering,
            statements: statements(&seen, |row| row.samples, all),
            ordering_statements: statements(&seen, |row| row.ordering_samples, ordering_cpu),
            clients: clients(&divide(seen.iter().map(|row| (row.client(), row.samples))), all),
        })
    }

    /// Returns the share of the CPU time in instructions that order memory, 0 to 1; `None` if that was not seen.
    pub fn ordering_share(&self) -> Option<f64> {
        (!self.ordering.is_empty()).then(|| self.ordering.iter().map(|row| row.share).sum())
    }

    /// Returns the share of the CPU time in each instruction that orders memory, 0 to 1, the most first.
    pub fn instructions(&self) -> Vec<(&str, f64)> {
        let mut shares: BTreeMap<&str, f64> = BTreeMap::new();
        self.ordering.iter().for_each(|row| *shares.entry(&row.instruction).or_default() += row.share);
        let mut shares: Vec<(&str, f64)> = shares.into_iter().collect();
        shares.sort_by(|a, b| b.1.total_cmp(&a.1));
        shares
    }

    /// Returns a class's share of the CPU time, 0 to 1.
    pub fn share(&self, class: CpuClass) -> f64 {
        self.classes.iter().find(|row| row.class == class.as_str()).map_or(0.0, |row| row.share)
    }

    /// Returns the shares of all classes: `cpu: other 61% · kernel 22% · spin 9%`.
    fn line(&self) -> Option<String> {
        let mut shares: Vec<(CpuClass, f64)> = CpuClass::iter().map(|class| (class, self.share(class))).collect();
        shares.sort_by(|a, b| b.1.total_cmp(&a.1));
        format::cpu_classes(&shares)
    }
}

/// Divides so many seconds of CPU time by these samples of each statement.
fn statements(seen: &[StatementCpu], samples: fn(&StatementCpu) -> u64, all: f64) -> Vec<StatementCpuReport> {
    let report = |part: Share<Statement>| StatementCpuReport {
        digest: part.of.digest.to_owned(),
        statement: part.of.text.to_owned(),
        samples: part.samples,
        cpu: part.share * all,
        share: part.share,
        share_error: part.error,
    };
    divide(seen.iter().map(|row| (row.statement(), samples(row)))).into_iter().map(report).collect()
}

fn by_second(recording: &Recording, class: CpuClass) -> Vec<f64> {
    let of_class: Vec<bool> = recording.rows.cpu.iter().map(|key| key.class() == class).collect();
    let sum = |second: &Second| {
        second.cpu.iter().filter(|delta| of_class[delta.row]).map(|delta| delta.counts[0] as f64).sum::<f64>()
    };
    recording.seconds.iter().map(|second| sum(second) / 1e9).collect()
}

impl Section for Option<CpuReport> {
    fn text(&self, report: &Report, f: &mut Formatter) -> fmt::Result {
        let Some(cpu) = self else { return Ok(()) };
        write_text(cpu, f)?;
        write_statements("statements that use CPU time, from samples", &cpu.statements, report.duration, f)?;
        write_clients(f, "users whose statements use CPU time", &cpu.clients, report.duration)?;
        let title = "statements that execute barriers and atomics, from samples";
        write_statements(title, &cpu.ordering_statements, report.duration, f)
    }

    fn html(&self, report: &Report) -> Markup {
        self.as_ref().map(|cpu| page_part(cpu, report)).unwrap_or_default()
    }

    fn findings(&self, report: &Report, findings: &mut Findings) {
        findings.problem(spinning(self.as_ref(), report));
        findings.fact(self.as_ref().and_then(ordering));
    }
}

fn write_text(cpu: &CpuReport, f: &mut Formatter) -> fmt::Result {
    writeln!(f, "\n{}", cpu.line().unwrap_or_default())?;
    let named = cpu.functions.iter().filter(|row| row.function != CpuTime::OTHER).take(TEXT_FUNCTIONS);
    for row in named {
        let function = cut_middle(&row.function, TEXT_FUNCTION);
        writeln!(f, "  {:>6}  {:8}  {function}", format::percent(row.share), row.class)?;
    }
    let Some(line) = barriers_line(cpu) else { return Ok(()) };
    writeln!(f, "{line}")?;
    let named = cpu.ordering.iter().filter(|row| row.function != CpuTime::OTHER).take(TEXT_ORDERING);
    for row in named {
        let function = cut_middle(&row.function, TEXT_FUNCTION);
        writeln!(f, "  {:>6}  {} in {function}", format::percent(row.share), row.instruction)?;
    }
    Ok(())
}

fn write_statements(title: &str, rows: &[StatementCpuReport], duration: f64, f: &mut Formatter) -> fmt::Result {
    if rows.is_empty() {
        return Ok(());
    }
    writeln!(f, "\n{title}")?;
    for row in rows.iter().take(TEXT_STATEMENTS) {
        let share = format::share(row.share, row.share_error);
        write_statement(f, row.cpu / duration, &share, row.samples, (&row.digest, &row.statement))?;
    }
    Ok(())
}

/// Returns the shares of instructions that order memory: `barriers and atomics 10.4%: lock cmpxchg 3.2% · xchg 2.9%`.
fn barriers_line(cpu: &CpuReport) -> Option<String> {
    let share = format::percent(cpu.ordering_share()?);
    let instruction = |(name, share): &(&str, f64)| format!("{name} {}", format::percent(*share));
    let instructions: Vec<String> = cpu.instructions().iter().take(INSTRUCTIONS).map(instruction).collect();
    Some(format!("barriers and atomics {share}: {}", instructions.join(" · ")))
}

/// Returns CPU time by class over time, by function, and in instructions that order memory.
fn page_part(cpu: &CpuReport, report: &Report) -> Markup {
    let over_time: Vec<_> = cpu.classes.iter().map(|row| (row.class.to_owned(), row.cpu_by_second.clone())).collect();
    let cells = |share: f64, seconds: f64| vec![format::percent(share), format!("{:.2}", seconds / report.duration)];
    let classes = cpu.classes.iter().map(|row| (row.class.to_owned(), cells(row.share, row.cpu)));
    let function = |row: &FunctionReport| {
        let cells = cells(row.share, row.cpu);
        (cut_middle(&row.function, HTML_FUNCTION), [vec![row.class.to_owned()], cells].concat())
    };
    let functions = cpu.functions.iter().filter(|row| row.function != CpuTime::OTHER).take(HTML_FUNCTIONS);
    let instruction = |row: &OrderingReport| {
        let function = cut_middle(&row.function, HTML_FUNCTION);
        (row.instruction.clone(), [vec![function], cells(row.share, row.cpu)].concat())
    };
    let instructions = cpu.ordering.iter().filter(|row| row.function != CpuTime::OTHER).take(HTML_ORDERING);
    let statement = |row: &StatementCpuReport| {
        let share = format::share(row.share, row.share_error);
        let cpus = format!("{:.2}", row.cpu / report.duration);
        (row.statement.clone(), vec![row.digest.clone(), share, cpus, row.samples.to_string()])
    };
    let statements = |title: &str, of: &[StatementCpuReport]| {
        let rows = of.iter().take(HTML_STATEMENTS).map(statement);
        html! {
            h2 { (title) }
            p.soft { "From samples of the CPU time, with values replaced. Errors are those of 95 % confidence." }
            (table(&["statement", "digest", "share", "CPUs", "seen"], rows))
            (more(of.len().saturating_sub(HTML_STATEMENTS)))
        }
    };
    html! {
        h2 { "CPUs busy, over time" }
        (timeline("cpu", &over_time, report, "CPUs busy"))
        h2 { "CPU time" }
        (table_of_words(&["class", "share", "CPUs"], classes))
        details open {
            summary { "functions" }
            (table(&["function", "class", "share", "CPUs"], functions.map(function)))
        }
        @if let Some(line) = barriers_line(cpu) {
            h2 { "Barriers and atomics" }
            p.soft { "Of the CPU time, sampled at the instruction or the one after it: " (line) }
            (table(&["instruction", "function", "share", "CPUs"], instructions.map(instruction)))
        }
        @if !cpu.statements.is_empty() {
            (statements("Statements that use CPU time", &cpu.statements))
        }
        (html_clients("Users whose statements use CPU time", "CPU time", &cpu.clients))
        @if !cpu.ordering_statements.is_empty() {
            (statements("Statements that execute barriers and atomics", &cpu.ordering_statements))
        }
    }
}

/// Judges by samples of CPU time if there are any, otherwise by the time that waiters were awake.
fn spinning(cpu: Option<&CpuReport>, report: &Report) -> Option<String> {
    let Some(cpu) = cpu else { return awake(report) };
    let share = cpu.share(CpuClass::Spin);
    (share >= MUCH_SPINNING).then(|| {
        let latch = spun_for_most(&report.latch.latches).unwrap_or_default();
        format!("Spinning takes {} of the server's CPU time.{latch}", format::percent(share))
    })
}

fn spun_for_most(latches: &[LatchReport]) -> Option<String> {
    let spinning = |latch: &LatchReport| latch.spin_cpu.unwrap_or(0.0);
    let all: f64 = latches.iter().map(spinning).sum();
    let latch = latches.iter().max_by(|a, b| spinning(a).total_cmp(&spinning(b)))?;
    (all > 0.0).then_some(())?;
    let won =
        latch.spins.map(|spins| format!(", for which {} of the spins are won", format::percent(spins.won_share())));
    let share = format::percent(spinning(latch) / all);
    Some(format!(" {share} of that is for {}{}{}.", latch.latch, latch.in_mode(), won.unwrap_or_default()))
}

fn awake(report: &Report) -> Option<String> {
    let share = report.totals.spin? / report.totals.server_cpu.filter(|cpu| *cpu > 0.0)?;
    (share >= MUCH_SPINNING).then(|| {
        format!(
            "The time that waiting threads are awake, spinning or ready without a CPU, amounts to {} of the server's CPU time.",
            format::percent(share)
        )
    })
}

fn ordering(cpu: &CpuReport) -> Option<String> {
    let share = cpu.ordering_share()?;
    let (instruction, most) = cpu.instructions().into_iter().next()?;
    (share >= MUCH_ORDERING).then(|| {
        let (share, most) = (format::percent(share), format::percent(most));
        format!("Barriers and atomics take {share} of the CPU time, {instruction} the most: {most}.")
    })
}
