//! Formats numbers for people, with three digits and a unit.

use std::time::Duration;

use jiff::Timestamp;

use crate::model::{CpuClass, Mode};

/// Stands for an unknown figure.
pub const NOTHING: &str = "-";

/// Formats a duration in nanoseconds: `850ns`, `12.3µs`, `4.56ms`, `1.23s`, `17.4m`, `5.2h`.
pub fn nanoseconds(ns: f64) -> String {
    let (value, unit) = match ns {
        0.0 => return "0".to_string(),
        ..999.5 => return format!("{ns:.0}ns"),
        ..999.5e3 => (ns / 1e3, "µs"),
        ..999.5e6 => (ns / 1e6, "ms"),
        ..999.5e9 => (ns / 1e9, "s"),
        ..3600e9 => (ns / 60e9, "m"),
        _ => (ns / 3600e9, "h"),
    };
    format!("{}{unit}", three_digits(value))
}

/// Formats a number per second, if it is known.
pub fn rate(number: Option<f64>) -> String {
    number.map_or_else(|| NOTHING.to_owned(), count)
}

/// Formats a count or a rate: `<0.1`, `0.4`, `12`, `1.23k`, `45.6M`.
pub fn count(n: f64) -> String {
    let (value, unit) = match n {
        0.0 => return "0".to_string(),
        ..0.05 => return "<0.1".to_string(),
        ..9.95 if n.fract() != 0.0 => return format!("{n:.1}"),
        ..999.5 => return format!("{n:.0}"),
        ..999.5e3 => (n / 1e3, "k"),
        ..999.5e6 => (n / 1e6, "M"),
        _ => (n / 1e9, "G"),
    };
    format!("{}{unit}", three_digits(value))
}

/// Formats a ratio as a percentage: `0.42%`, `12.3%`, `100%`.
pub fn percent(ratio: f64) -> String {
    match ratio * 100.0 {
        0.0 => "0%".to_string(),
        ..0.005 => "<0.01%".to_string(),
        percent @ ..9.995 => format!("{percent:.2}%"),
        percent => format!("{}%", three_digits(percent)),
    }
}

/// Formats a share, 0 to 1, with half the width of its 95 % interval in percentage points: `45±3%`.
pub fn share(share: f64, error: f64) -> String {
    format!("{:.0}±{:.0}%", 100.0 * share, (100.0 * error).max(1.0))
}

/// Formats a figure that may be estimated. `error` is half the width of its 95 % interval, as a part of it, if that is
/// known: `~1.23s ±8%`. An error below half a percent is that of rounding.
pub fn estimate(figure: String, is_estimated: bool, error: Option<f64>) -> String {
    match error {
        _ if !is_estimated => figure,
        None | Some(..0.005) => format!("~{figure}"),
        Some(error @ ..0.995) => format!("~{figure} ±{:.0}%", 100.0 * error),
        Some(_) => format!("~{figure} ±100%"),
    }
}

/// Formats shares of the CPU time, 0 to 1, as `cpu: other 61% · kernel 22% · spin 9%`. Shares that would round to 0%
/// are left out. Returns `None` if none remains.
pub fn cpu_classes(shares: &[(CpuClass, f64)]) -> Option<String> {
    const LEAST: f64 = 0.005;
    let part = |(class, share): &(CpuClass, f64)| format!("{} {:.0}%", class.as_str(), 100.0 * share);
    let parts: Vec<String> = shares.iter().filter(|(_, share)| *share >= LEAST).map(part).collect();
    (!parts.is_empty()).then(|| format!("cpu: {}", parts.join(" · ")))
}

/// Formats the mode in which a latch is waited for: `S`, `SX`, `X`, or `-` if it has no modes.
pub fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::None => NOTHING,
        Mode::S => "S",
        Mode::Sx => "SX",
        Mode::X => "X",
    }
}

/// Formats the shares of a wait spent awake and asleep as `13/87%`. The two always add up to 100.
pub fn spin_and_sleep(sleep_share: f64) -> String {
    let sleep = (sleep_share * 100.0).round();
    format!("{:.0}/{sleep:.0}%", 100.0 - sleep)
}

/// Formats a span of time in whole seconds: `8s`, `1m23s`, `2h05m`, `3d04h`.
pub fn span(time: Duration) -> String {
    let s = time.as_secs();
    match s {
        0..60 => format!("{s}s"),
        60..3_600 => format!("{}m{:02}s", s / 60, s % 60),
        3_600..86_400 => format!("{}h{:02}m", s / 3_600, s / 60 % 60),
        _ => format!("{}d{:02}h", s / 86_400, s / 3_600 % 24),
    }
}

/// Formats a moment, given in milliseconds since 1970: `2026-11-24 20:30 UTC`.
pub fn date(ms: u64) -> String {
    let moment = i64::try_from(ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    moment.map_or("at an unknown time".to_string(), |moment| moment.strftime("%Y-%m-%d %H:%M UTC").to_string())
}

/// Formats a time of the day in UTC, given in milliseconds since 1970: `20:30:05`.
pub fn clock(ms: u64) -> String {
    let s = ms / 1000 % 86_400;
    format!("{:02}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
}

/// Formats a span of time between two moments, given in milliseconds since 1970: `2026-11-24 20:30:05 to 20:31:05 UTC`.
/// The second has a date of its own if it is on another day.
pub fn period(from_ms: u64, to_ms: u64) -> String {
    let day = |ms: u64| {
        let moment = i64::try_from(ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
        moment.map(|moment| moment.strftime("%Y-%m-%d").to_string())
    };
    match (day(from_ms), day(to_ms)) {
        (Some(from), Some(to)) if from == to => format!("{from} {} to {} UTC", clock(from_ms), clock(to_ms)),
        (Some(from), Some(to)) => format!("{from} {} to {to} {} UTC", clock(from_ms), clock(to_ms)),
        _ => "at an unknown time".to_owned(),
    }
}

/// Formats the bound of a bucket, in seconds, which is a short number: `64µs`.
pub fn bound(seconds: f64) -> String {
    match seconds {
        ..1e-6 => format!("{:.0}ns", seconds * 1e9),
        ..1e-3 => format!("{:.0}µs", seconds * 1e6),
        ..1.0 => format!("{:.0}ms", seconds * 1e3),
        _ => format!("{seconds}s"),
    }
}

/// Returns a server's name as its vendor writes it.
pub fn flavor(flavor: &str) -> &str {
    match flavor {
        "mysql" => "MySQL",
        "mariadb" => "MariaDB",
        "percona" => "Percona Server",
        other => other,
    }
}

fn three_digits(value: f64) -> String {
    match value {
        ..9.995 => format!("{value:.2}"),
        ..99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// Wraps text into lines of at most `width` characters, unless a single word is longer.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut().filter(|line| line.chars().count() + 1 + word.chars().count() <= width) {
            Some(line) => *line = format!("{line} {word}"),
            None => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_have_dates_and_a_zone() {
        let began = 1_795_552_205_000;
        assert_eq!(period(began, began + 60_000), "2026-11-24 20:30:05 to 20:31:05 UTC");
        assert_eq!(period(began, began + 4 * 3_600_000), "2026-11-24 20:30:05 to 2026-11-25 00:30:05 UTC");
        assert_eq!(period(u64::MAX - 1, u64::MAX), "at an unknown time");
    }

    #[test]
    fn durations_have_the_unit_that_fits() {
        let cases = [
            (0.0, "0"),
            (850.0, "850ns"),
            (12_340.0, "12.3µs"),
            (999_400.0, "999µs"),
            (999_600.0, "1.00ms"),
            (4_560_000.0, "4.56ms"),
            (1_234_000_000.0, "1.23s"),
            (99.96e9, "100s"),
            (1_044e9, "17.4m"),
            (18_720e9, "5.20h"),
        ];
        for (ns, text) in cases {
            assert_eq!(nanoseconds(ns), text);
        }
    }

    #[test]
    fn counts_and_shares_have_three_digits() {
        let counts = [0.0, 0.01, 0.44, 12.0, 999.4, 999.6, 12_345.0, 4.56e7, 7e9].map(count);
        assert_eq!(counts, ["0", "<0.1", "0.4", "12", "999", "1.00k", "12.3k", "45.6M", "7.00G"]);
        assert_eq!([0.0, 1e-6, 0.0042, 0.123, 0.9999].map(percent), ["0%", "<0.01%", "0.42%", "12.3%", "100%"]);
    }

    #[test]
    fn dates_are_in_utc() {
        assert_eq!(date(0), "1970-01-01 00:00 UTC");
        assert_eq!(date(1_795_552_212_345), "2026-11-24 20:30 UTC");
        assert_eq!(date(u64::MAX), "at an unknown time");
    }

    #[test]
    fn spans_have_two_units() {
        let spans = [8, 83, 7_500, 273_600].map(|s| span(Duration::from_secs(s)));
        assert_eq!(spans, ["8s", "1m23s", "2h05m", "3d04h"]);
    }
}
