//! Servers in Prometheus, and in whatever has its HTTP API, as the sides of a comparison.
//!
//! Nothing is computed there but sums: armtrace asks for the values of counters at the ends of windows, and takes the
//! differences itself. So nothing is extrapolated, and all that speak the API give the same figures.

mod client;
mod config;
mod counters;
mod error;
mod figures;
mod grid;
mod labels;
mod targets;
#[cfg(test)]
mod tests;

pub use client::Limits;
pub use config::{ConfigError, HttpConfig};
pub use error::{FleetError, RequestError};
pub use grid::Range;
pub use labels::{Matchers, MatchersError};

use std::collections::BTreeMap;

use client::Client;
use labels::Labels;
use targets::Target;

use crate::recording::compare::Side;

/// Where servers' metrics are asked for.
pub struct Prometheus {
    client: Client,
}

/// Which servers a side has, and over which time.
#[derive(Clone, Debug)]
pub struct Selection {
    /// What the labels of its servers are to match.
    pub servers: Matchers,
    /// The time.
    pub range: Range,
}

impl Prometheus {
    /// Returns the one below whose `url` the API is. Nothing is asked for yet.
    ///
    /// # Errors
    /// Fails if it is no such URL.
    pub fn new(url: &str, config: HttpConfig, limits: Limits) -> Result<Prometheus, FleetError> {
        Ok(Prometheus { client: Client::new(url, config, limits)? })
    }

    /// Returns the figures of two selections of servers, A and B.
    ///
    /// # Errors
    /// Fails if a request fails, or if a side has no figures.
    pub fn sides(&self, selections: [&Selection; 2]) -> Result<[Side; 2], FleetError> {
        let mut hosts = Hosts::default();
        let [a, b] = selections.map(|selection| self.side(selection, &mut hosts));
        Ok([a?, b?])
    }

    fn side(&self, selection: &Selection, hosts: &mut Hosts) -> Result<Side, FleetError> {
        let (targets, grid) = targets::find(&self.client, selection)?;
        let counters = counters::fetch(&self.client, selection, &grid)?;
        figures::side(selection, &grid, &targets, &counters, hosts)
            .ok_or_else(|| FleetError::NoWindows { servers: selection.servers.to_string(), range: selection.range })
    }
}

/// The numbers of hosts, which both sides share.
#[derive(Default)]
struct Hosts(BTreeMap<Labels, usize>);

impl Hosts {
    fn number(&mut self, target: &Target) -> usize {
        let next = self.0.len();
        *self.0.entry(target.host()).or_insert(next)
    }
}
