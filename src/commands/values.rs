//! Parses values that several commands take.

use std::time::Duration;

/// The default share of the server's CPU time that probes may take.
pub(super) const MAX_OVERHEAD: &str = "1%";

/// What is wrong with a value on the command line, or how to write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ValueError {
    #[error("not a process ID")]
    Pid,
    #[error("not a time: write 90s, 5m or 1h")]
    Time,
    #[error("not a moment: write 2026-11-27T12:00Z, 2026-11-27T12:00+01:00, or seconds since 1970")]
    Moment,
    #[error("from 1s to 1h")]
    Duration,
    #[error("at most 1h")]
    Kept,
    #[error("from 0.5s to 1m")]
    Delay,
    #[error("not a share: write 1% or 0.01")]
    Share,
    #[error("a share must be above 0% and at most 100%")]
    ShareRange,
    #[error("a number above 0")]
    Number,
    #[error("a number from 0.1 to 1000")]
    Speed,
    #[error("write KEY=VALUE")]
    Label,
}

/// Parses the ID of a process.
pub(super) fn pid(text: &str) -> Result<i32, ValueError> {
    text.parse().ok().filter(|pid| *pid > 0).ok_or(ValueError::Pid)
}

/// Parses a time such as `90s`, `5m`, `1h` or `7d`.
pub(super) fn time(text: &str) -> Result<Duration, ValueError> {
    let (number, unit) = text.split_at(text.find(|c: char| c.is_ascii_alphabetic()).ok_or(ValueError::Time)?);
    let seconds = match unit {
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return Err(ValueError::Time),
    };
    let number = number.trim().parse::<f64>().map_err(|_| ValueError::Time)?;
    Duration::try_from_secs_f64(number * seconds).ok().filter(|time| !time.is_zero()).ok_or(ValueError::Time)
}

/// Parses a moment such as `2026-11-27T12:00Z`, or seconds since 1970, into milliseconds since 1970.
pub(super) fn moment(text: &str) -> Result<i64, ValueError> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.0..1e11).contains(seconds));
    let written = || text.parse::<jiff::Timestamp>().ok().map(jiff::Timestamp::as_millisecond);
    seconds.map(|seconds| (seconds * 1000.0).round() as i64).or_else(written).ok_or(ValueError::Moment)
}

/// Parses a finite number above 0.
pub(super) fn positive(text: &str) -> Result<f64, ValueError> {
    let number = text.parse::<f64>().ok().filter(|n| *n > 0.0 && n.is_finite());
    number.ok_or(ValueError::Number)
}

/// Parses a share such as `1%` or `0.01` into a number above 0 and at most 1.
pub(super) fn share(text: &str) -> Result<f64, ValueError> {
    let (number, unit) = text.strip_suffix('%').map_or((text, 1.0), |number| (number, 100.0));
    let share = number.trim().parse::<f64>().map_err(|_| ValueError::Share)? / unit;
    if share > 0.0 && share <= 1.0 {
        Ok(share)
    } else {
        Err(ValueError::ShareRange)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{moment, pid, positive, share, time, ValueError};

    #[test]
    fn process_ids_are_positive_numbers() {
        assert_eq!(pid("4194303"), Ok(4_194_303));
        for bad in ["", "0", "-1", "x", "12 34", "4294967296"] {
            assert_eq!(pid(bad), Err(ValueError::Pid), "{bad}");
        }
    }

    #[test]
    fn times_have_units() {
        for (text, seconds) in [("60s", 60), ("5m", 300), ("1h", 3600), ("1.5 m", 90), ("7d", 7 * 86_400)] {
            assert_eq!(time(text), Ok(Duration::from_secs(seconds)));
        }
        for bad in ["", "60", "s", "0s", "0d", "-1s", "nans", "infs", "1e30h", "5 minutes", "5"] {
            assert!(time(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn moments_are_dates_with_a_zone_or_seconds() {
        for text in ["2026-11-27T12:00Z", "2026-11-27T13:00:00+01:00", "2026-11-27 12:00:00Z", "1795780800"] {
            assert_eq!(moment(text), Ok(1_795_780_800_000), "{text}");
        }
        assert_eq!(moment("1.5"), Ok(1500));
        for bad in ["", "yesterday", "2026-11-27T12:00", "2026-11-27", "-1", "nan", "1e300"] {
            assert_eq!(moment(bad), Err(ValueError::Moment), "{bad}");
        }
    }

    #[test]
    fn numbers_are_above_0() {
        assert_eq!(positive("2.5"), Ok(2.5));
        assert!(["0", "-1", "nan", "inf", "", "x"].into_iter().all(|bad| positive(bad).is_err()));
    }

    #[test]
    fn shares_have_two_forms() {
        assert_eq!(share("1%"), Ok(0.01));
        assert_eq!(share("0.5 %"), Ok(0.005));
        assert_eq!(share("0.01"), Ok(0.01));
        for bad in ["", "%", "x", "0", "-1%", "101%", "nan", "1e9", "inf%"] {
            assert!(share(bad).is_err(), "{bad}");
        }
    }
}
