//! The file on disk, which may change while it is used.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::http::HeaderMap;
use parking_lot::Mutex;

use super::passwords::Passwords;
use super::settings::{Settings, SettingsError};
use super::tls::{self, TlsError};
use super::WebConfig;
use crate::export::connections::Network;
use crate::yaml::{self, YamlError};

/// The largest file that is read, be it the configuration or a certificate.
const MOST_BYTES: u64 = 1 << 20;

/// A file that changed less than this before it was read may change again without its times showing that.
const SETTLED: Duration = Duration::from_secs(2);

/// The time between two messages with the same error.
const AGAIN: Duration = Duration::from_secs(60);

/// Why the file cannot be used, and what to do next.
#[derive(Debug, thiserror::Error)]
#[error("--web.config.file {}: {why}\nnext: {}", .path.display(), .why.next())]
pub struct WebFileError {
    path: PathBuf,
    why: Unusable,
}

#[derive(Debug, thiserror::Error)]
enum Unusable {
    #[error(transparent)]
    Unreadable(#[from] io::Error),
    #[error(transparent)]
    Yaml(#[from] YamlError),
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("it has no tls_server_config any more")]
    NoTls,
    #[error("it has a tls_server_config now")]
    NewTls,
    #[error("it has no basic_auth_users any more")]
    NoUsers,
}

impl Unusable {
    fn next(&self) -> &'static str {
        match self {
            Unusable::Unreadable(_) | Unusable::Tls(TlsError::Unreadable { .. }) => {
                "give a file that exists and that armtrace may read; relative paths in it begin in its folder"
            }
            Unusable::NoTls | Unusable::NewTls => "restart armtrace to change between http and https",
            Unusable::NoUsers => "restart armtrace to serve without passwords",
            _ => "correct that; docs/how-to/prometheus.md shows the format",
        }
    }
}

/// The configuration in a file, and which passwords were right.
pub struct Web {
    path: PathBuf,
    /// Whether the file had these when armtrace started. A file that is half written must not open what they close.
    speaks_tls: bool,
    has_users: bool,
    state: Mutex<State>,
    passwords: Passwords,
}

struct State {
    read: Reading,
    /// The last error in the log, and when that was.
    logged: Option<(String, Instant)>,
}

impl Web {
    /// Reads a file for the first time.
    ///
    /// # Errors
    /// Fails with the reason, and what to do next.
    pub fn open(path: &Path) -> Result<Web, WebFileError> {
        let Reading { config, files, settled } = Reading::of(path);
        let config = config.map_err(|why| WebFileError { path: path.to_owned(), why })?;
        let read = Reading { config: Ok(Arc::clone(&config)), files, settled };
        Ok(Web {
            path: path.to_owned(),
            speaks_tls: config.tls.is_some(),
            has_users: !config.users.is_empty(),
            state: Mutex::new(State { read, logged: None }),
            passwords: Passwords::new(),
        })
    }

    /// Returns whether TLS is spoken.
    pub fn speaks_tls(&self) -> bool {
        self.speaks_tls
    }

    /// Returns what the file says now. It is read again only if it has changed, or a file that it names. Returns `None`
    /// if it is of no use, which is logged.
    pub(in crate::export) fn current(&self) -> Option<Arc<WebConfig>> {
        let mut state = self.state.lock();
        if !state.read.is_current() {
            state.read = Reading::of(&self.path);
        }
        let why = match &state.read.config {
            Ok(config) => match self.opened_by(config) {
                None => return Some(Arc::clone(config)),
                Some(why) => self.message(&why),
            },
            Err(why) => self.message(why),
        };
        state.log(why);
        None
    }

    /// Returns why what was closed at the start would be open, or served in another way.
    fn opened_by(&self, config: &WebConfig) -> Option<Unusable> {
        match (self.speaks_tls, config.tls.is_some()) {
            (true, false) => Some(Unusable::NoTls),
            (false, true) => Some(Unusable::NewTls),
            _ if self.has_users && config.users.is_empty() => Some(Unusable::NoUsers),
            _ => None,
        }
    }

    fn message(&self, why: &Unusable) -> String {
        format!("--web.config.file {}: {why}; next: {}", self.path.display(), why.next())
    }

    /// Returns whether a request from a client there may be answered.
    pub(in crate::export) async fn admits(&self, config: &WebConfig, headers: &HeaderMap, from: Network) -> bool {
        self.passwords.admit(&config.users, headers, from).await
    }
}

impl State {
    fn log(&mut self, why: String) {
        let is_known = self.logged.as_ref().is_some_and(|(last, at)| *last == why && at.elapsed() < AGAIN);
        if !is_known {
            tracing::error!("requests are refused: {why}");
            self.logged = Some((why, Instant::now()));
        }
    }
}

/// What was read, and of which state of which files.
struct Reading {
    config: Result<Arc<WebConfig>, Unusable>,
    files: Vec<(PathBuf, Option<Stamp>)>,
    /// Whether a change from now on shows in the files' times.
    settled: bool,
}

impl Reading {
    fn of(path: &Path) -> Reading {
        let mut files = Files::default();
        let config = files.config(path).map(Arc::new);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let last = files.0.iter().filter_map(|(_, stamp)| stamp.as_ref().map(Stamp::changed)).max();
        let settled = last.is_none_or(|last| now.saturating_sub(last) > SETTLED);
        Reading { config, files: files.0, settled }
    }

    fn is_current(&self) -> bool {
        let is_same = |(path, stamp): &(PathBuf, Option<Stamp>)| *stamp == path.metadata().ok().map(|m| Stamp::of(&m));
        self.settled && self.files.iter().all(is_same)
    }
}

/// What a file has that changes whenever its contents do.
#[derive(Debug, PartialEq, Eq)]
struct Stamp([i64; 7]);

impl Stamp {
    fn of(file: &Metadata) -> Stamp {
        let [device, inode, size] = [file.dev(), file.ino(), file.size()].map(|number| number as i64);
        Stamp([device, inode, size, file.mtime(), file.mtime_nsec(), file.ctime(), file.ctime_nsec()])
    }

    /// Returns the time of the last change, since 1970.
    fn changed(&self) -> Duration {
        Duration::new(self.0[5].max(0) as u64, self.0[6] as u32)
    }
}

/// The files that were read, with their stamps at that time: `None` for one that cannot be found.
#[derive(Default)]
struct Files(Vec<(PathBuf, Option<Stamp>)>);

impl Files {
    fn config(&mut self, path: &Path) -> Result<WebConfig, Unusable> {
        let text = String::from_utf8(self.read(path)?).map_err(|_| invalid("it is not text in UTF-8"))?;
        let Settings { tls, headers, users } = Settings::read(yaml::parse(&text)?)?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let read = |name: &str| {
            let path = folder.join(name);
            let text = self.read(&path);
            (path, text)
        };
        let tls = tls.map(|tls| tls::server_config(tls, read)).transpose()?;
        Ok(WebConfig { tls: tls.map(Arc::new), users, headers })
    }

    fn read(&mut self, path: &Path) -> io::Result<Vec<u8>> {
        // A pipe must not block until somebody writes to it.
        let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
        let stamp = match &opened {
            Ok(file) => Some(Stamp::of(&file.metadata()?)),
            Err(_) => path.metadata().ok().map(|metadata| Stamp::of(&metadata)),
        };
        self.0.push((path.to_owned(), stamp));
        contents(opened?)
    }
}

fn contents(file: File) -> io::Result<Vec<u8>> {
    if !file.metadata()?.is_file() {
        return Err(invalid("it is not a file"));
    }
    let mut contents = Vec::new();
    file.take(MOST_BYTES + 1).read_to_end(&mut contents)?;
    if contents.len() as u64 > MOST_BYTES {
        return Err(invalid("it is larger than 1 MiB"));
    }
    Ok(contents)
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what)
}
