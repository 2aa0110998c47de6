//! One metric family, and its samples.

use std::collections::HashMap;

use prometheus::core::Desc;
use prometheus::proto::{self, Bucket, Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};

use crate::model::{Histogram, BUCKET_BOUNDS_NS};

/// The bounds of the buckets that are served, in nanoseconds: every second one of those that are counted, because each
/// is a series for each latch and mode.
const SERVED_BOUNDS_NS: [u64; 12] = [
    1_000,
    4_000,
    16_000,
    64_000,
    256_000,
    1_000_000,
    4_000_000,
    16_000_000,
    64_000_000,
    256_000_000,
    1_000_000_000,
    10_000_000_000,
];

/// One metric family, as described in `# HELP`, `# TYPE` and `docs/reference/metrics.md`.
#[derive(Debug)]
pub struct Family {
    /// The name, which begins with `armtrace_` or `process_`.
    pub name: &'static str,
    /// Whether samples are counters, gauges or histograms.
    pub kind: MetricType,
    /// The names of the labels, in the order in which samples give their values.
    pub labels: &'static [&'static str],
    /// The description, one line.
    pub help: &'static str,
}

/// Declares the metric families of one measurement: a constant for each, and `FAMILIES`, which has all of them in this
/// order.
macro_rules! families {
    ($($constant:ident = $kind:ident($name:literal, $labels:expr, $help:literal);)+) => {
        $(const $constant: $crate::metrics::Family = $crate::metrics::Family::$kind($name, $labels, $help);)+
        const FAMILIES: &[$crate::metrics::Family] = &[$($constant),+];
    };
}
pub(crate) use families;

impl Family {
    /// Describes a counter; its name must end with `_total`.
    pub const fn counter(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Family {
        Family { name, kind: MetricType::COUNTER, labels, help }
    }

    /// Describes a gauge.
    pub const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Family {
        Family { name, kind: MetricType::GAUGE, labels, help }
    }

    /// Describes a histogram of durations, in seconds.
    pub const fn histogram(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Family {
        Family { name, kind: MetricType::HISTOGRAM, labels, help }
    }

    /// Returns the family's description for the registry.
    ///
    /// # Panics
    /// Panics if a name or a label is not valid in Prometheus.
    pub fn desc(&self) -> Desc {
        let labels = self.labels.iter().map(|label| label.to_string()).collect();
        Desc::new(self.name.to_string(), self.help.to_string(), labels, HashMap::new())
            .expect("family names and labels are valid")
    }

    /// Returns the family with these samples. The registry leaves out a family without samples.
    pub fn with(&self, samples: impl IntoIterator<Item = Metric>) -> MetricFamily {
        let mut family = MetricFamily::default();
        family.set_name(self.name.to_string());
        family.set_help(self.help.to_string());
        family.set_field_type(self.kind);
        family.set_metric(samples.into_iter().collect());
        family
    }

    /// Returns one sample of a counter or a gauge. `values` are the labels' values, in the order of `labels`.
    ///
    /// # Panics
    /// Panics if the number of values is not the number of labels.
    pub fn sample(&self, values: &[&str], value: f64) -> Metric {
        let mut metric = self.labelled(values);
        if self.kind == MetricType::COUNTER {
            let mut counter = Counter::default();
            counter.set_value(value);
            metric.set_counter(counter);
        } else {
            let mut gauge = Gauge::default();
            gauge.set_value(value);
            metric.set_gauge(gauge);
        }
        metric
    }

    /// Returns one sample of a histogram, with the bounds that are served, in seconds.
    ///
    /// # Panics
    /// Panics as [`Family::sample`] does.
    pub fn distribution(&self, values: &[&str], waits: &Histogram) -> Metric {
        let mut cumulative = 0;
        let buckets = BUCKET_BOUNDS_NS.iter().zip(waits.buckets).filter_map(|(bound, n)| {
            cumulative += n;
            let mut bucket = Bucket::default();
            bucket.set_upper_bound(seconds(*bound));
            bucket.set_cumulative_count(cumulative);
            SERVED_BOUNDS_NS.contains(bound).then_some(bucket)
        });
        let mut histogram = proto::Histogram::default();
        histogram.set_bucket(buckets.collect());
        // A histogram that is read while waits end may have counted a wait in its bucket only, but the count must not
        // be below the last bucket.
        histogram.set_sample_count(waits.count.max(waits.buckets.iter().sum()));
        histogram.set_sample_sum(seconds(waits.sum_ns));
        let mut metric = self.labelled(values);
        metric.set_histogram(histogram);
        metric
    }

    /// Returns a sample without a value. A label with an empty value is left out: to Prometheus, it is the same.
    fn labelled(&self, values: &[&str]) -> Metric {
        assert_eq!(self.labels.len(), values.len(), "{}", self.name);
        let pairs = self.labels.iter().zip(values).filter(|(_, value)| !value.is_empty());
        Metric::from_label(pairs.map(|(name, value)| label(name, value)).collect())
    }
}

/// Returns nanoseconds in seconds, the unit of all times in metrics.
pub fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

pub fn label(name: &str, value: &str) -> LabelPair {
    let mut pair = LabelPair::default();
    pair.set_name(name.to_string());
    pair.set_value(value.to_string());
    pair
}
