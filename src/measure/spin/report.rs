//! How long waiters spin, in a report.

use super::figures::SpinSettings;
use crate::recording::report::{Report, Section};

impl Section for Option<SpinSettings> {
    fn facts(&self, _report: &Report) -> Vec<(String, String)> {
        self.iter().map(|spin| ("spinning".to_owned(), spin.to_string())).collect()
    }
}
