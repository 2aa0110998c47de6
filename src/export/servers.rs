//! Several servers behind one port: their metrics have the label `target`.

use std::collections::BTreeMap;
use std::sync::Arc;

use prometheus::core::{Collector, Desc};
use prometheus::proto::{Metric, MetricFamily};

use super::agent;
use super::view::View;
use crate::metrics::{families, label, Family};
use crate::recording::Recent;

families! {
    ATTACHES = counter(
        "armtrace_target_attaches_total",
        &["result"],
        "Attempts to attach to a server that was found, by result. Only with --discover."
    );
}

/// The families that only several servers have.
pub(super) const FAMILIES_OF_MANY: &[Family] = FAMILIES;

/// The servers that are measured, and those that were or could not be.
pub trait Servers: Send + Sync {
    /// Returns them by name, as they are now.
    fn servers(&self) -> Vec<Server>;

    /// Returns the one with this name.
    fn server(&self, name: &str) -> Option<Server> {
        self.servers().into_iter().find(|server| server.name == name)
    }

    /// Returns what is kept of servers that have ended, by name.
    fn pasts(&self) -> Vec<(String, Arc<Recent>)> {
        Vec::new()
    }
}

/// One of several servers.
#[derive(Clone)]
pub struct Server {
    /// The value of the label `target`: a name that stays when the server restarts.
    pub name: String,
    /// Whether it is measured.
    pub state: State,
    /// Its figures while it is measured.
    pub view: Option<Arc<View>>,
    /// How often it was attached to; 0 for a recording, like the next.
    pub attached: u64,
    /// How often attaching to it failed.
    pub failed: u64,
}

/// Whether a server is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It is.
    Measured,
    /// It has ended.
    Ended,
    /// It cannot be: the reason.
    Refused(String),
}

/// The metrics of several servers.
pub(super) struct ManyServers {
    servers: Arc<dyn Servers>,
    descs: Vec<Desc>,
}

impl ManyServers {
    pub fn new(servers: Arc<dyn Servers>) -> ManyServers {
        ManyServers { servers, descs: super::families().map(Family::desc).collect() }
    }
}

impl Collector for ManyServers {
    fn desc(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let mut all = Merged::default();
        for server in self.servers.servers() {
            all.add_server(&server);
        }
        let build = agent::build();
        all.0.insert(build.name().to_owned(), build);
        all.0.into_values().collect()
    }
}

/// Returns the metrics of one server alone, as they are among those of all.
pub(super) fn families_of(server: &Server) -> Vec<MetricFamily> {
    let mut one = Merged::default();
    one.add_server(server);
    // Those of armtrace itself come with the metrics of all servers.
    one.0.remove(agent::build().name());
    one.0.into_values().filter(|family| !family.get_metric().is_empty()).collect()
}

/// Families of several servers, by name.
#[derive(Default)]
struct Merged(BTreeMap<String, MetricFamily>);

impl Merged {
    fn add_server(&mut self, server: &Server) {
        let measured = server.view.as_ref().map(|view| view.collector.collect());
        self.add(measured.unwrap_or_else(|| vec![agent::not_measured()]), &server.name);
        self.add(vec![attaches(server)], &server.name);
    }

    /// Adds the families of one server. Their samples get its name as a label.
    fn add(&mut self, families: Vec<MetricFamily>, target: &str) {
        for mut family in families {
            let mut samples = family.take_metric();
            samples.iter_mut().for_each(|sample| name_target(sample, target));
            let merged = self.0.entry(family.name().to_owned()).or_insert(family);
            merged.mut_metric().extend(samples);
        }
    }
}

/// Adds the label `target`, in its place in the order of labels.
fn name_target(sample: &mut Metric, target: &str) {
    let mut labels = sample.take_label();
    labels.push(label("target", target));
    labels.sort_by(|a, b| a.name().cmp(b.name()));
    sample.set_label(labels);
}

fn attaches(server: &Server) -> MetricFamily {
    let results = [("attached", server.attached), ("failed", server.failed)];
    let is_live = results.iter().any(|(_, n)| *n > 0);
    ATTACHES.with(results.map(|(result, n)| ATTACHES.sample(&[result], n as f64)).into_iter().filter(|_| is_live))
}
