//! TLS, passwords and headers, from a file in the format that Prometheus's exporters share (exporter-toolkit).

mod clients;
mod file;
mod passwords;
mod settings;
mod tls;

use axum::http::HeaderMap;
use axum::response::Response;
use rustls::ServerConfig;
use std::sync::Arc;

pub use crate::yaml::{parse as parse_yaml, YamlError};
pub use file::{Web, WebFileError};

use passwords::Users;

/// What a file says, checked and ready to use.
#[derive(Debug)]
pub(super) struct WebConfig {
    /// How TLS is spoken; `None` for plain HTTP.
    pub tls: Option<Arc<ServerConfig>>,
    /// Who is served; nobody in particular if it is empty.
    users: Users,
    headers: HeaderMap,
}

impl WebConfig {
    /// Adds its headers to a response, but those that the response has.
    pub fn add_headers(&self, response: &mut Response) {
        for (name, value) in &self.headers {
            response.headers_mut().entry(name).or_insert_with(|| value.clone());
        }
    }
}
