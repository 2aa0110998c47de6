//! How long waiters spin, in a comparison.

use serde::Serialize;

use super::figures::SpinSettings;
use crate::present::format;
use crate::recording::compare::{Figure, Part, Per, Section, Side};
use crate::recording::Recording;

/// How long the waiters of both systems spin, in seconds; what is not known of both is absent.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SpinComparison {
    /// The duration of one turn of the server's spin loop.
    pub spin_turn: Option<[f64; 2]>,
    /// The duration of all spinning before a sleep.
    pub spin_before_sleep: Option<[f64; 2]>,
}

impl Part for SpinComparison {
    type Side = Option<SpinSettings>;

    fn side(recording: &Recording) -> Option<SpinSettings> {
        recording.code.spin.clone()
    }

    fn new(_sides: [&Side; 2], own: [&Option<SpinSettings>; 2], _ranked_by: Per) -> SpinComparison {
        let both = |of: fn(&SpinSettings) -> f64| {
            let [a, b] = own.map(|settings| settings.as_ref().map(|settings| of(settings) / 1e9));
            Some([a?, b?])
        };
        SpinComparison {
            spin_turn: both(|settings| settings.turn_ns),
            spin_before_sleep: both(SpinSettings::budget_ns),
        }
    }
}

impl Section for SpinComparison {
    fn figures(&self) -> Vec<Figure> {
        let figure = |name: &str, times: Option<[f64; 2]>| {
            let [a, b] = times?.map(|seconds| format::nanoseconds(seconds * 1e9));
            Some(Figure { name: name.to_owned(), a, b, ratio: None })
        };
        let turn = figure("one turn of the spin loop", self.spin_turn);
        turn.into_iter().chain(figure("spinning before a sleep", self.spin_before_sleep)).collect()
    }
}
