//! The recording that a snapshot is from.

use std::fmt;
use std::time::Duration;

use crate::present::format;

/// The recording that a snapshot is from, in place of a live server.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Replayed {
    /// The name of its file.
    pub name: String,
    /// The length of the whole recording.
    pub length: Duration,
    /// When recording began, in milliseconds since 1970, UTC.
    pub began_ms: u64,
    /// The name of the host that it was recorded on; empty if it is not known.
    pub host: String,
    /// Whether its last second was played.
    pub is_over: bool,
    /// CPU time that probes took from the server so far, in nanoseconds; `None` if it is not known. A recording has it
    /// only for all probes together.
    pub probe_cost_ns: Option<u64>,
}

/// Formats it as `REPLAY of demo.rec, 40s recorded 2026-11-24 20:30 UTC on db1`, with `, over` at its end.
impl fmt::Display for Replayed {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let length = format::span(Duration::from_secs_f64(self.length.as_secs_f64().round()));
        write!(f, "REPLAY of {}, {length} recorded {}", self.name, format::date(self.began_ms))?;
        if !self.host.is_empty() {
            write!(f, " on {}", self.host)?;
        }
        f.write_str(if self.is_over { ", over" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replay_says_what_it_is() {
        let replayed = Replayed {
            name: "demo.rec".to_owned(),
            length: Duration::from_millis(39_998),
            began_ms: 1_795_552_212_000,
            host: "db1".to_owned(),
            ..Replayed::default()
        };
        assert_eq!(replayed.to_string(), "REPLAY of demo.rec, 40s recorded 2026-11-24 20:30 UTC on db1");
        let over = Replayed { host: String::new(), is_over: true, ..replayed };
        assert_eq!(over.to_string(), "REPLAY of demo.rec, 40s recorded 2026-11-24 20:30 UTC, over");
    }
}
