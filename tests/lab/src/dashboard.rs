//! The queries of a Grafana dashboard, and how Prometheus answers them.

use super::prometheus::{Pace, Prometheus};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The dashboards in `dashboards/`.
pub const FILES: [&str; 3] = ["fleet.json", "host.json", "arm-and-x86.json"];

/// A query of a panel or of a variable.
#[derive(Debug)]
pub struct Query {
    /// The panel's title, or `$name` for a variable.
    pub owner: String,
    /// The query, with variables.
    pub promql: String,
}

/// Reads a dashboard file and returns every query in it.
pub fn queries(file: &Path) -> Vec<Query> {
    let dashboard = load(file);
    let mut found = Vec::new();
    panels(&dashboard, &mut |panel| {
        for target in panel["targets"].as_array().into_iter().flatten() {
            found.push(Query { owner: text(&panel["title"]), promql: text(&target["expr"]) });
        }
    });
    for variable in variables(&dashboard) {
        if variable["type"] == "query" {
            let promql = selector(&text(&variable["query"]["query"]));
            found.push(Query { owner: format!("${}", text(&variable["name"])), promql });
        }
    }
    found
}

/// Reads a dashboard file.
pub fn load(file: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap()
}

/// Calls `visit` for each panel, including those inside rows.
pub fn panels(dashboard: &Value, visit: &mut dyn FnMut(&Value)) {
    for panel in dashboard["panels"].as_array().into_iter().flatten() {
        visit(panel);
        panels(panel, visit);
    }
}

/// Returns the variables of a dashboard.
pub fn variables(dashboard: &Value) -> impl Iterator<Item = &Value> {
    dashboard["templating"]["list"].as_array().into_iter().flatten()
}

/// Returns the selector of `label_values(SELECTOR, label)`, which is what Grafana queries.
fn selector(definition: &str) -> String {
    let inner = definition.strip_prefix("label_values(").expect("variables are filled by label_values");
    inner.rsplit_once(',').expect("label_values has two arguments").0.to_string()
}

impl Query {
    /// Returns the query as Grafana sends it with every variable set to All.
    pub fn substituted(&self, dashboard: &Value, pace: Pace) -> String {
        let mut promql =
            self.promql.replace("$__rate_interval", pace.rate_interval).replace("$__range", pace.rate_interval);
        for variable in variables(dashboard) {
            promql = promql.replace(&format!("${}", text(&variable["name"])), ".*");
        }
        promql
    }

    /// Returns every metric name that the query selects.
    pub fn metrics(&self) -> BTreeSet<String> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
        let before_brace = self.promql.match_indices('{').map(|(at, _)| {
            let name = self.promql[..at].rsplit(|c| !is_name(c)).next().unwrap_or_default();
            name.to_string()
        });
        let ours = self.promql.split(|c| !is_name(c)).filter(|word| word.starts_with("armtrace_")).map(str::to_string);
        before_brace.chain(ours).collect()
    }
}

/// A query and the number of series it returned, or why it failed.
pub type Outcome = (Query, Result<usize, String>);

/// How long to repeat a query that returns too few series: a rate needs two scrapes, and a busy machine misses some.
const PATIENCE: Duration = Duration::from_secs(30);

/// Runs every query of a dashboard with all its variables set to All, and repeats each until it fails or returns enough
/// series.
pub fn run(prometheus: &Prometheus, file: &Path, is_enough: impl Fn(&Query, usize) -> bool) -> Vec<Outcome> {
    let dashboard = load(file);
    let ask = |query: Query| {
        let promql = query.substituted(&dashboard, prometheus.pace);
        let began = Instant::now();
        loop {
            let series = count(prometheus, &promql);
            let is_short = series.as_ref().is_ok_and(|series| !is_enough(&query, *series));
            if !is_short || began.elapsed() > PATIENCE {
                break (query, series);
            }
            sleep(Duration::from_millis(100));
        }
    };
    queries(file).into_iter().map(ask).collect()
}

/// Returns the number of series with a value that a query returns.
fn count(prometheus: &Prometheus, promql: &str) -> Result<usize, String> {
    let has_value = |series: &&Value| series["value"][1] != "NaN";
    prometheus.query(promql).map(|series| series.iter().filter(has_value).count())
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_string()
}
