//! Reads a dump of performance_schema's summary of waits, to compare with.

use crate::model::Kind;

/// The unit of a dump's sums. performance_schema itself uses picoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Unit {
    /// Picoseconds.
    Ps,
    /// Nanoseconds.
    Ns,
    /// Microseconds.
    Us,
    /// Milliseconds.
    Ms,
    /// Seconds.
    S,
}

impl Unit {
    fn seconds(self) -> f64 {
        match self {
            Unit::Ps => 1e-12,
            Unit::Ns => 1e-9,
            Unit::Us => 1e-6,
            Unit::Ms => 1e-3,
            Unit::S => 1.0,
        }
    }
}

/// The reason why a dump cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PsError {
    /// This line, counted from 1, has another form.
    #[error("line {0} is not an event name, a sum and a count, separated by tabs or as in the mysql client's tables")]
    Line(usize),
    /// There is nothing to compare.
    #[error("it has no wait/synch/ events, or only those of condition variables, which are not contention")]
    Empty,
}

/// The waits for latches in a dump.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Dump {
    /// Event names, each with the seconds waited and the number of waits.
    pub rows: Vec<(String, f64, f64)>,
}

/// The columns of a dump.
#[derive(Clone, Copy)]
struct Columns {
    event: usize,
    sum: usize,
    count: usize,
}

/// The columns of a dump without a line of titles.
const USUAL: Columns = Columns { event: 0, sum: 1, count: 2 };

impl Dump {
    /// Parses the mysql client's output, as a table or with tabs (`--batch`). The columns are event name, sum and
    /// count, in that order, or in the order of performance_schema's own column names in the first line.
    ///
    /// # Errors
    /// Fails if a line has another form, or if there is nothing to compare.
    pub fn parse(text: &str, unit: Unit) -> Result<Dump, PsError> {
        let mut columns = USUAL;
        let mut rows = Vec::new();
        for (i, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('+'))
        {
            let cells = cells(line);
            if let Some(titles) = titles(&cells) {
                columns = titles;
                continue;
            }
            let row = row(&cells, columns).ok_or(PsError::Line(i + 1))?;
            if is_contention(row.0) {
                rows.push((row.0.to_owned(), row.1 * unit.seconds(), row.2));
            }
        }
        if rows.is_empty() {
            return Err(PsError::Empty);
        }
        Ok(Dump { rows })
    }
}

fn cells(line: &str) -> Vec<&str> {
    match line.trim().strip_prefix('|') {
        Some(table) => table.trim_end().trim_end_matches('|').split('|').map(str::trim).collect(),
        None => line.split('\t').map(str::trim).collect(),
    }
}

fn titles(cells: &[&str]) -> Option<Columns> {
    let column = |begins: &str| cells.iter().position(|cell| cell.to_ascii_lowercase().starts_with(begins));
    let is_title = |cell: &&str| !cell.contains('/') && cell.parse::<f64>().is_err();
    if !cells.iter().all(is_title) {
        return None;
    }
    Some(Columns { event: column("event")?, sum: column("sum")?, count: column("count")? })
}

fn row<'a>(cells: &[&'a str], columns: Columns) -> Option<(&'a str, f64, f64)> {
    let number = |column: usize| cells.get(column)?.parse::<f64>().ok().filter(|n| n.is_finite() && *n >= 0.0);
    let event = cells.get(columns.event).filter(|event| event.contains('/'))?;
    Some((event, number(columns.sum)?, number(columns.count)?))
}

/// Returns whether these waits are contention. Other events are not latches, and threads that wait on condition
/// variables are idle.
fn is_contention(event: &str) -> bool {
    let kind = event.strip_prefix("wait/synch/").and_then(|rest| rest.split('/').next());
    kind.and_then(Kind::from_name).is_some_and(|kind| kind != Kind::Cond)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPECTED: [(&str, f64, f64); 2] =
        [("wait/synch/mutex/innodb/trx_mutex", 1.5, 10.0), ("wait/synch/sxlock/innodb/index_tree_rw_lock", 0.25, 4.0)];

    fn dump(text: &str, unit: Unit) -> Dump {
        Dump::parse(text, unit).unwrap()
    }

    fn expected() -> Dump {
        Dump { rows: EXPECTED.iter().map(|(event, sum, count)| ((*event).to_owned(), *sum, *count)).collect() }
    }

    #[test]
    fn tables_and_tabs_are_read() {
        let table = "\
+---------------------------------------------+------------+---------------+
| EVENT_NAME                                  | COUNT_STAR | SUM_TIMER_WAIT |
+---------------------------------------------+------------+---------------+
| wait/synch/mutex/innodb/trx_mutex           |         10 | 1500000000000 |
| wait/synch/cond/sql/COND_manager            |          3 |  900000000000 |
| wait/io/file/innodb/innodb_data_file        |          3 |  900000000000 |
| wait/synch/sxlock/innodb/index_tree_rw_lock |          4 |  250000000000 |
+---------------------------------------------+------------+---------------+
";
        assert_eq!(dump(table, Unit::Ps), expected());
        let tabs = "wait/synch/mutex/innodb/trx_mutex\t1500\t10\nwait/synch/sxlock/innodb/index_tree_rw_lock\t250\t4\n";
        assert_eq!(dump(tabs, Unit::Ms), expected());
        assert_eq!(dump(&format!("event_name\tsum(s)\tcount\r\n{}", tabs.replace('\n', "\r\n")), Unit::Ms), expected());
    }

    #[test]
    fn anything_else_is_an_error_that_says_where() {
        let line = |text: &str| Dump::parse(text, Unit::Ps).unwrap_err();
        assert_eq!(line("wait/synch/mutex/innodb/trx_mutex\t1\n"), PsError::Line(1));
        assert_eq!(line("\nwait/synch/mutex/innodb/trx_mutex\t1.2 s\t3\n"), PsError::Line(2));
        assert_eq!(line("wait/synch/mutex/innodb/trx_mutex\t-1\t3\n"), PsError::Line(1));
        assert_eq!(line("wait/synch/mutex/innodb/trx_mutex\tinf\t3\n"), PsError::Line(1));
        assert_eq!(line("Hello\n"), PsError::Line(1));
        assert_eq!(line("wait/synch/cond/sql/COND_manager\t1\t3\n"), PsError::Empty);
        assert_eq!(line(""), PsError::Empty);
    }
}
