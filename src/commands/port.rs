//! The options of the port that a command serves metrics on.

use std::path::PathBuf;

use clap::Args;

use super::Failure;
use crate::export::{Hosts, Listen, Policy, Web};

#[derive(Args, Clone, Debug)]
pub(super) struct PortArgs {
    /// Address to serve metrics on
    #[arg(long, default_value = ":9435", value_name = "ADDR:PORT")]
    pub listen: Listen,
    /// TLS and passwords, as in Prometheus's exporters
    #[arg(long = "web.config.file", value_name = "FILE")]
    pub web_config_file: Option<PathBuf>,
    /// More names that clients may ask for
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub allowed_hosts: Vec<String>,
}

impl PortArgs {
    /// Returns who is served, and how.
    pub fn policy(&self) -> Result<Policy, Failure> {
        let web = self.web_config_file.as_deref().map(Web::open).transpose()?;
        Ok(Policy { web, hosts: Hosts::allowing(&self.allowed_hosts) })
    }
}
