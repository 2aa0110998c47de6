//! How long waiters spin, in a report.

use serde::Serialize;

use super::figures::SpinSettings;
use crate::recording::report::{Part, Report, Section};
use crate::recording::Recording;

/// How long waiters spin.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SpinReport {
    /// As last set; times are in nanoseconds.
    pub spin_settings: Option<SpinSettings>,
}

impl Part for SpinReport {
    fn new(recording: &Recording) -> SpinReport {
        SpinReport { spin_settings: recording.code.spin.clone() }
    }
}

impl Section for SpinReport {
    fn facts(&self, _report: &Report) -> Vec<(String, String)> {
        self.spin_settings.iter().map(|spin| ("spinning".to_owned(), spin.to_string())).collect()
    }
}
