//! Compares one load at several numbers of threads: how throughput grows, and what limits it.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::side::Series;
use super::{is_there, rate, ratio, Per, Ratio, ScalabilityLaw, Side};

/// The reason why recordings show no scaling.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ScalingError {
    /// The recording of this name counts no statements.
    #[error("{0} has no count of statements, so its throughput is not known: record with --mysql")]
    NoStatements(String),
    /// There are fewer than two recordings.
    #[error("scaling takes at least two recordings")]
    OneRecording,
    /// The label has the same value in all recordings.
    #[error("all recordings have {by}={value}: scaling takes at least two different values")]
    OneValue {
        /// The label.
        by: String,
        /// Its value.
        value: f64,
    },
}

/// A recording at one number of threads.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Point {
    /// The name of the file.
    pub name: String,
    /// The label's value, such as the number of threads.
    pub n: f64,
    /// Statements per second.
    pub throughput: f64,
    /// Throughput per thread, divided by that with the fewest threads; 1 is perfect scaling.
    pub efficiency: f64,
    /// Statements per second according to the law; `None` if none is fitted.
    pub law: Option<f64>,
    /// Threads that wait for a latch at any moment, on average.
    pub waiting: f64,
    /// CPUs that the server keeps busy; `None` if the recording does not have its CPU time.
    pub cpus: Option<f64>,
}

/// How the waits for a latch grow.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Growth {
    /// The event name.
    pub latch: String,
    /// Threads that wait for it at any moment, on average, at each point.
    pub waiting: Vec<f64>,
    /// A statement's wait for it with the most threads, divided by that with the fewest; `None` if none waited with the
    /// fewest.
    pub per_query: Option<Ratio>,
    /// The share of the threads added between the first point and the last that wait for it.
    pub share_of_added: f64,
}

/// Recordings of one load, by the value of a label.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Scaling {
    /// The name of the label.
    pub by: String,
    /// The recordings, by ascending value.
    pub points: Vec<Point>,
    /// The law that fits them; `None` if they have too few different values.
    pub law: Option<ScalabilityLaw>,
    /// Latches for which a statement clearly waits longer with more threads, the one that most of the added threads
    /// wait for first.
    pub growing: Vec<Growth>,
    /// The findings, in words.
    pub findings: Vec<String>,
    /// What to keep in mind when reading this.
    pub remarks: Vec<String>,
}

/// How far the law is extrapolated, as a multiple of what was measured.
const FURTHEST: f64 = 2.0;
/// The least share of the added threads with which a latch is said to limit scaling.
const STOPS: f64 = 0.1;
/// The least share of the added threads with which a latch gets a row.
const LEAST_SHARE: f64 = 0.001;

impl Scaling {
    /// Compares at least two systems, each with its value of the label.
    ///
    /// # Errors
    /// Fails if a recording counts no statements, or if there are not two different values.
    pub fn new(by: &str, mut sides: Vec<(f64, Side)>) -> Result<Scaling, ScalingError> {
        sides.sort_by(|a, b| a.0.total_cmp(&b.0));
        let measured = sides.iter().map(|(n, side)| Some((*n, rate(&side.throughput()?)?))).collect::<Option<Vec<_>>>();
        let uncounted = sides.iter().find(|(_, side)| side.throughput().is_none());
        let measured = measured.ok_or_else(|| {
            let name = uncounted.map_or("a recording", |(_, side)| &side.about.name);
            ScalingError::NoStatements(name.to_owned())
        })?;
        let ([(first_n, first), .., (last_n, _)], [lowest, .., highest]) = (&measured[..], &sides[..]) else {
            return Err(ScalingError::OneRecording);
        };
        if first_n == last_n {
            return Err(ScalingError::OneValue { by: by.to_owned(), value: *first_n });
        }
        let law = ScalabilityLaw::fit(&measured);
        let points: Vec<Point> = sides
            .iter()
            .zip(&measured)
            .map(|((n, side), (_, throughput))| Point {
                name: side.about.name.clone(),
                n: *n,
                throughput: *throughput,
                efficiency: throughput / n / (first / first_n),
                law: law.map(|law| law.throughput(*n)),
                waiting: waiting(side, Some(&side.all)),
                cpus: side.server_cpu.as_ref().map(|cpu| cpu.iter().sum::<f64>() / side.lengths.iter().sum::<f64>()),
            })
            .collect();
        let growing = growing(&sides, &lowest.1, &highest.1, last_n - first_n);
        let mut scaling =
            Scaling { by: by.to_owned(), points, law, growing, findings: Vec::new(), remarks: remarks(by, &sides) };
        scaling.findings = scaling.in_words();
        Ok(scaling)
    }

    fn in_words(&self) -> Vec<String> {
        let (first, last) = (&self.points[0], &self.points[self.points.len() - 1]);
        let best = self.points.iter().max_by(|a, b| a.throughput.total_cmp(&b.throughput)).unwrap_or(last);
        let cpus =
            last.cpus.map_or_else(String::new, |cpus| format!(" The server keeps {cpus:.2} CPUs busy at {}.", last.n));
        let mut words = vec![format!(
            "At {} {by}, throughput is {:.2} times that at {}. It is highest at {}, with {} statements per second.{cpus}",
            last.n,
            last.throughput / first.throughput,
            first.n,
            best.n,
            crate::present::format::count(best.throughput),
            by = self.by,
        )];
        let added = last.n - first.n;
        words.push(match self.growing.first().filter(|top| top.share_of_added >= STOPS) {
            Some(top) => format!(
                "{} limits it most: {:.1} of the {added} added threads wait for this latch at any moment ({}).",
                top.latch,
                top.share_of_added * added,
                crate::present::format::percent(top.share_of_added)
            ),
            None => "No latch limits it: less than a tenth of the added threads wait for any one latch.".to_owned(),
        });
        words.extend(self.law.map(|law| self.law_in_words(&law)));
        words
    }

    fn law_in_words(&self, law: &ScalabilityLaw) -> String {
        let most = self.points.iter().map(|point| point.n).fold(0.0, f64::max);
        let peak = match law.peak() {
            Some(peak) if peak <= FURTHEST * most => format!("throughput is highest at {peak:.0} {}", self.by),
            Some(_) => {
                format!("there is no peak up to {:.0} {}, beyond which it says nothing", FURTHEST * most, self.by)
            }
            None if law.sigma > 0.0 => {
                let limit = crate::present::format::count(law.lambda / law.sigma);
                format!("there is no peak, and throughput approaches {limit} statements per second")
            }
            None => "throughput grows in proportion".to_owned(),
        };
        format!(
            "The Universal Scalability Law fits within {} (root mean square), with λ = {}, σ = {:.4} and κ = {:.6}: {peak}.",
            crate::present::format::percent(law.error),
            crate::present::format::count(law.lambda),
            law.sigma,
            law.kappa
        )
    }
}

/// Returns the number of threads that wait at any moment, on average.
fn waiting(side: &Side, series: Option<&Series>) -> f64 {
    series.map_or(0.0, |series| series.total() / side.lengths.iter().sum::<f64>())
}

fn growing(sides: &[(f64, Side)], lowest: &Side, highest: &Side, added: f64) -> Vec<Growth> {
    let names: BTreeSet<&str> = sides.iter().flat_map(|(_, side)| side.latches.keys()).map(String::as_str).collect();
    let growth = |name: &str| {
        let series = |side: &Side| side.latches.get(name).map(|series| series.wait.clone());
        let per_query = |side: &Side| side.samples(Per::Query, series(side).as_deref());
        let ratio = ratio(&per_query(lowest)?, &per_query(highest)?);
        let is_new = !lowest.latches.contains_key(name) && is_there(&per_query(highest)?);
        let grows = is_new || ratio.is_some_and(|ratio| ratio.is_clear() && ratio.value > 1.0);
        let waiting: Vec<f64> = sides.iter().map(|(_, side)| waiting(side, side.latches.get(name))).collect();
        let share_of_added = (waiting.last()? - waiting.first()?) / added;
        let is_worth_a_row = grows && share_of_added >= LEAST_SHARE;
        is_worth_a_row.then(|| Growth { latch: name.to_owned(), per_query: ratio, share_of_added, waiting })
    };
    let mut growing: Vec<Growth> = names.into_iter().filter_map(growth).collect();
    growing.sort_by(|a, b| b.share_of_added.total_cmp(&a.share_of_added).then_with(|| a.latch.cmp(&b.latch)));
    growing
}

fn remarks(by: &str, sides: &[(f64, Side)]) -> Vec<String> {
    let mut remarks = Vec::new();
    let numbers: BTreeSet<String> = sides.iter().map(|(n, _)| n.to_string()).collect();
    if numbers.len() < super::LEAST_POINTS {
        remarks
            .push(format!("No law is fitted: that takes at least {} different values of {by}.", super::LEAST_POINTS));
    } else {
        let most = sides.iter().map(|(n, _)| *n).fold(0.0, f64::max);
        let cores = sides.iter().filter_map(|(_, side)| side.about.cores).fold(0.0, f64::max);
        remarks.push(format!(
            "The law describes the shape of the curve, not its cause. It says nothing about more than {:.0} {by}, twice the \
             most that was measured.",
            FURTHEST * most
        ));
        if cores > 0.0 && most > cores {
            remarks.push(format!(
                "With more threads than the server's {cores:.0} CPUs, throughput also levels off because no CPU is free, \
                 which the law counts as contention (σ)."
            ));
        }
    }
    let mut by_value: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (_, side) in sides {
        for (key, value) in side.about.labels.iter().filter(|(key, _)| *key != by) {
            by_value.entry(key).or_default().insert(value);
        }
    }
    remarks.extend(by_value.iter().filter(|(_, values)| values.len() > 1).map(|(key, _)| {
        format!("The recordings differ in {key} too, so this is not one load at different values of {by}.")
    }));
    remarks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_law_says_where_throughput_stops_growing() {
        let point = Point {
            name: String::new(),
            n: 16.0,
            throughput: 10_000.0,
            efficiency: 1.0,
            law: None,
            waiting: 0.0,
            cpus: None,
        };
        let scaling = Scaling {
            by: "threads".to_owned(),
            points: vec![point],
            law: None,
            growing: Vec::new(),
            findings: Vec::new(),
            remarks: Vec::new(),
        };
        let says = |sigma, kappa, end: &str| {
            let words = scaling.law_in_words(&ScalabilityLaw { lambda: 1000.0, sigma, kappa, error: 0.01 });
            assert!(words.ends_with(end), "{words}");
        };
        says(0.02, 0.001, ": throughput is highest at 31 threads.");
        says(0.02, 0.0001, ": there is no peak up to 32 threads, beyond which it says nothing.");
        says(0.02, 0.0, ": there is no peak, and throughput approaches 50.0k statements per second.");
        says(0.0, 0.0, ": throughput grows in proportion.");
    }
}
