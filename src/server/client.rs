//! Reads what a server reports to a client: counters and settings.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use mysql::prelude::Queryable;
use mysql::{Conn, Opts, OptsBuilder};

use super::listening::Listening;
use super::{option_file, ClientError, OptionFileError};

/// How long a server may take to answer. Each second of a recording waits for the answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often to try the first connection, if the server does not accept it in time.
const ATTEMPTS: usize = 4;

/// Where the server is, and who asks it.
#[derive(Clone, Copy, Debug)]
pub enum Access<'a> {
    /// `mysql://USER:PASSWORD@HOST:PORT` or `mysql://USER@localhost?socket=/PATH`.
    Url(&'a str),
    /// An option file with a group `[client]`.
    OptionFile(&'a Path),
}

/// How to ask several servers of this host.
pub struct Accounts(Vec<Opts>);

/// How to ask one of them.
#[derive(Clone, PartialEq, Eq)]
pub struct Account(Opts);

impl Accounts {
    /// Reads the groups `[client]` and `[clientSUFFIX]` of an option file.
    ///
    /// # Errors
    /// Fails if the file is invalid.
    pub fn read(path: &Path) -> Result<Accounts, OptionFileError> {
        Ok(Accounts(option_file::read_all(path)?))
    }

    /// Returns the first account whose address process `pid` listens at.
    pub fn of(self, pid: i32) -> Option<Account> {
        let listening = Listening::of(pid);
        self.0.into_iter().find(|options| listening.is_at(options)).map(Account)
    }
}

/// A connection to a server, which is made again when it was lost.
pub struct Client {
    opts: Opts,
    /// `None` after a failure, until the next query.
    connection: Option<Conn>,
    /// The queries that were made here and by [`Client::another`], which the server counts among its clients' queries.
    own: Arc<AtomicU64>,
    /// The highest count so far. Each query here is noted before the server counts it.
    highest: u64,
}

impl Client {
    /// Connects to a server.
    ///
    /// # Errors
    /// Fails if the URL or the file is invalid, or if the server refuses or does not answer.
    pub fn connect(access: Access<'_>) -> Result<Client, ClientError> {
        let mut client = Client::new(access)?;
        client.connection = Some(open(&client.opts)?);
        Ok(client)
    }

    /// Like [`Client::connect`]. Where the server has as many connections as it allows, the first query connects.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect_when_possible(access: Access<'_>) -> Result<Client, ClientError> {
        let mut client = Client::new(access)?;
        match open(&client.opts).map_err(ClientError::from) {
            Ok(connection) => client.connection = Some(connection),
            Err(error) if error.is_full() => tracing::warn!("{error}"),
            Err(error) => return Err(error),
        }
        Ok(client)
    }

    /// Returns a client whose first query connects.
    pub fn of(account: Account) -> Client {
        Client::with(account.0)
    }

    fn new(access: Access<'_>) -> Result<Client, ClientError> {
        let opts = match access {
            Access::Url(url) => Opts::from_url(url)?,
            Access::OptionFile(path) => option_file::read(path)?,
        };
        Ok(Client::with(opts))
    }

    fn with(opts: Opts) -> Client {
        let opts = OptsBuilder::from_opts(opts)
            .tcp_connect_timeout(Some(PATIENCE))
            .read_timeout(Some(PATIENCE))
            .write_timeout(Some(PATIENCE))
            // Otherwise the client would ask the server for its socket and reconnect.
            .prefer_socket(false);
        Client { opts: opts.into(), connection: None, own: Arc::default(), highest: 0 }
    }

    /// Returns a client of the same server with a connection of its own, which its first query makes.
    pub fn another(&self) -> Client {
        Client { opts: self.opts.clone(), connection: None, own: Arc::clone(&self.own), highest: 0 }
    }

    /// Returns how many statements clients have sent since the server started, without those made here.
    ///
    /// # Errors
    /// Fails if the server does not answer, or has no such counter.
    pub fn queries(&mut self) -> Result<u64, ClientError> {
        let all = self.ask(|connection| count(connection, "GLOBAL"))?;
        self.highest = self.highest.max(all.saturating_sub(self.own.load(Ordering::Relaxed)));
        Ok(self.highest)
    }

    /// Returns the values of the settings in `names` that the server has.
    ///
    /// # Errors
    /// Fails if the server does not answer.
    pub fn settings(&mut self, names: &[&str]) -> Result<BTreeMap<String, String>, ClientError> {
        let names: Vec<String> = names.iter().map(|name| format!("'{name}'")).collect();
        let query = format!("SHOW GLOBAL VARIABLES WHERE Variable_name IN ({})", names.join(","));
        self.ask(|connection| Ok(connection.query_opt::<(String, String), _>(&query)?.into_iter().flatten().collect()))
    }

    /// Makes one query.
    pub(super) fn ask<T, E: From<ClientError>>(
        &mut self,
        query: impl FnOnce(&mut Conn) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.reconnect()?,
        };
        self.own.fetch_add(1, Ordering::Relaxed);
        let answer = query(&mut connection)?;
        self.connection = Some(connection);
        Ok(answer)
    }

    /// Connects anew. The queries with which the connection begins are this client's own.
    fn reconnect(&mut self) -> Result<Conn, ClientError> {
        let mut connection = Conn::new(self.opts.clone())?;
        self.own.fetch_add(count(&mut connection, "SESSION")?, Ordering::Relaxed);
        Ok(connection)
    }
}

/// Connects to a server, with more patience than later: it may be busy with the very problem that is being examined.
fn open(opts: &Opts) -> mysql::Result<Conn> {
    // A refusal is an answer; retrying might lock the account.
    let attempt = || Some(Conn::new(opts.clone())).filter(|result| !result.as_ref().is_err_and(is_timeout));
    (1..ATTEMPTS).find_map(|_| attempt()).unwrap_or_else(|| Conn::new(opts.clone()))
}

/// Returns the number of statements so far, this one included, of all connections (`GLOBAL`) or of this one
/// (`SESSION`).
fn count(connection: &mut Conn, scope: &str) -> Result<u64, ClientError> {
    let query = format!("SHOW {scope} STATUS LIKE 'Questions'");
    let row = connection.query_first_opt::<(String, u64), _>(query)?;
    row.and_then(Result::ok).map(|(_, count)| count).ok_or(ClientError::NoCounter)
}

fn is_timeout(error: &mysql::Error) -> bool {
    matches!(error, mysql::Error::IoError(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_url_keeps_the_password_to_itself() {
        let error = Client::connect(Access::Url("postgres://me:secret@localhost")).err().expect("an error");
        assert!(matches!(error, ClientError::Url(_)), "{error}");
        let message = error.to_string();
        assert!(message.contains("mysql://USER") && !message.contains("secret"), "{message}");
    }

    #[test]
    fn only_silence_is_asked_again() {
        let io = |kind: ErrorKind| mysql::Error::from(std::io::Error::from(kind));
        assert!(is_timeout(&io(ErrorKind::WouldBlock)) && is_timeout(&io(ErrorKind::TimedOut)));
        assert!(!is_timeout(&io(ErrorKind::ConnectionRefused)));
        assert!(!is_timeout(&mysql::Error::DriverError(mysql::DriverError::ConnectTimeout)));
    }

    #[test]
    fn a_server_that_is_not_there_does_not_answer() {
        let error = Client::connect(Access::Url("mysql://me@localhost?socket=/nowhere")).err().expect("an error");
        assert!(matches!(error, ClientError::Server(_)), "{error}");
        assert!(error.to_string().contains("--mysql"), "{error}");
    }
}
