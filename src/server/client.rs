//! Reads what a server reports to a client: counters and settings.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::ErrorKind;
use std::time::Duration;

use mysql::prelude::Queryable;
use mysql::{Conn, Opts, OptsBuilder};

use crate::failure::Failure;

/// How long a server may take to answer. Each second of a recording waits for the answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often to try a connection that the server does not accept in time; it may be busy with the very problem that is
/// being examined.
const ATTEMPTS: usize = 4;

/// A connection to a server.
pub struct Client {
    connection: Conn,
    /// The queries that were made here, which the server counts among its clients' queries.
    own: u64,
}

impl Client {
    /// Connects to the server that a URL names: `mysql://USER:PASSWORD@HOST:PORT` or
    /// `mysql://USER@localhost?socket=/PATH`.
    ///
    /// # Errors
    /// Fails with status 2 if the URL is invalid, and with 1 if the server refuses or does not answer.
    pub fn connect(dsn: &str) -> Result<Client, Failure> {
        // The text is not repeated, because it may contain a password.
        let opts = Opts::from_url(dsn).map_err(|error| {
            Failure::usage(format!(
                "--mysql: {error}. Write mysql://USER:PASSWORD@HOST:PORT or mysql://USER@localhost?socket=/PATH"
            ))
        })?;
        let opts = OptsBuilder::from_opts(opts)
            .tcp_connect_timeout(Some(PATIENCE))
            .read_timeout(Some(PATIENCE))
            .write_timeout(Some(PATIENCE))
            // Otherwise the client would ask the server for its socket and reconnect.
            .prefer_socket(false);
        // A refusal is an answer; retrying might lock the account.
        let attempt = || Some(Conn::new(opts.clone())).filter(|result| !result.as_ref().is_err_and(is_timeout));
        let result = (1..ATTEMPTS).find_map(|_| attempt()).unwrap_or_else(|| Conn::new(opts.clone()));
        Ok(Client { connection: result.map_err(|error| refused(&error))?, own: 0 })
    }

    /// Returns how many statements clients have sent since the server started, without those made here.
    ///
    /// # Errors
    /// Fails with status 1 if the server does not answer, or has no such counter.
    pub fn queries(&mut self) -> Result<u64, Failure> {
        // `Questions` counts this statement too.
        self.own += 1;
        let row: Option<(String, u64)> =
            self.connection.query_first("SHOW GLOBAL STATUS LIKE 'Questions'").map_err(|error| refused(&error))?;
        let (_, count) = row.ok_or_else(|| refused(&"it has no statement counter"))?;
        Ok(count.saturating_sub(self.own))
    }

    /// Returns the values of the settings in `names` that the server has.
    ///
    /// # Errors
    /// Fails with status 1 if the server does not answer.
    pub fn settings(&mut self, names: &[&str]) -> Result<BTreeMap<String, String>, Failure> {
        self.own += 1;
        let names: Vec<String> = names.iter().map(|name| format!("'{name}'")).collect();
        let query = format!("SHOW GLOBAL VARIABLES WHERE Variable_name IN ({})", names.join(","));
        let rows: Vec<(String, String)> = self.connection.query(query).map_err(|error| refused(&error))?;
        Ok(rows.into_iter().collect())
    }
}

fn is_timeout(error: &mysql::Error) -> bool {
    matches!(error, mysql::Error::IoError(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut))
}

fn refused(error: &dyn Display) -> Failure {
    Failure::running(format!(
        "cannot read the server's counters: {error}. Check --mysql, or omit it: figures per query are then absent"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_url_is_bad_usage_and_keeps_the_password_to_itself() {
        let error = Client::connect("postgres://me:secret@localhost").err().expect("an error");
        assert_eq!(error.status, 2);
        assert!(error.message.contains("mysql://USER") && !error.message.contains("secret"), "{error}");
    }

    #[test]
    fn only_silence_is_asked_again() {
        let io = |kind: ErrorKind| mysql::Error::from(std::io::Error::from(kind));
        assert!(is_timeout(&io(ErrorKind::WouldBlock)) && is_timeout(&io(ErrorKind::TimedOut)));
        assert!(!is_timeout(&io(ErrorKind::ConnectionRefused)));
        assert!(!is_timeout(&mysql::Error::DriverError(mysql::DriverError::ConnectTimeout)));
    }

    #[test]
    fn a_server_that_is_not_there_is_status_1() {
        let error = Client::connect("mysql://me@localhost?socket=/nowhere").err().expect("an error");
        assert_eq!(error.status, 1);
        assert!(error.message.contains("--mysql"), "{error}");
    }
}
