//! Compares the counters of successive scrapes.

use std::collections::{BTreeMap, HashMap};

use anyhow::{ensure, Result};

/// The counters of all scrapes so far: none may step back, and none may disappear.
#[derive(Debug, Default)]
pub struct Counters(HashMap<String, f64>);

impl Counters {
    /// Compares a scrape with the one before.
    ///
    /// # Errors
    /// Fails if a counter has stepped back, or is gone.
    pub fn check(&mut self, metrics: &str) -> Result<()> {
        let now = counters(metrics);
        for (series, before) in &self.0 {
            let value = now.get(series);
            ensure!(value.is_some_and(|value| value >= before), "{series} was {before}, and is {value:?}");
        }
        self.0 = now;
        Ok(())
    }

    /// Returns how many series there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there was no counter yet.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Returns the values of counters, and of what histograms consist of, by series.
fn counters(metrics: &str) -> HashMap<String, f64> {
    let types = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let types: BTreeMap<&str, &str> = types.collect();
    let is_counter = |name: &str| {
        let histogram = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
        types.get(name) == Some(&"counter")
            || histogram.is_some_and(|histogram| types.get(histogram) == Some(&"histogram"))
    };
    let samples = metrics.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.rsplit_once(' '));
    let counted = samples.filter(|(series, _)| is_counter(series.split('{').next().unwrap_or_default()));
    counted.filter_map(|(series, value)| Some((series.to_owned(), value.parse().ok()?))).collect()
}

#[test]
fn counters_that_step_back_or_disappear_are_found() {
    let scrape = |counter: &str, sum: u8, gauge: u8| {
        format!(
            "# TYPE a_total counter\n{counter}\n# TYPE b gauge\nb {gauge}\n# TYPE c histogram\nc_bucket{{le=\"+Inf\"}} 1\n\
             c_sum {sum}\n"
        )
    };
    let check = |second: &str| {
        let mut counters = Counters::default();
        counters.check(&scrape("a_total{x=\"a b\"} 5", 3, 9)).expect("the first scrape");
        assert_eq!(counters.len(), 3);
        counters.check(second)
    };
    check(&scrape("a_total{x=\"a b\"} 6", 3, 1)).expect("a gauge may fall");
    for bad in [scrape("a_total{x=\"a b\"} 4", 3, 9), scrape("", 3, 9), scrape("a_total{x=\"a b\"} 5", 2, 9)] {
        assert!(check(&bad).is_err(), "{bad}");
    }
}
