//! Downloads debug files from debuginfod servers, and caches them.
//!
//! Settings, protocol and cache layout are those of elfutils, so files that its clients downloaded are used here too:
//! debuginfod(8), debuginfod-find(1).

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{flock, FlockOperation};
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::Agent;

use super::sources::UnusableFile;
use crate::worker::can_start;

/// The total time limit per server, unless `DEBUGINFOD_MAXTIME` sets another.
const MAX_TIME: Duration = Duration::from_secs(300);

/// How long a server may send nothing, unless `DEBUGINFOD_TIMEOUT` sets another limit. This is elfutils' default; a
/// server may have to unpack a package first.
const MAX_SILENCE: Duration = Duration::from_secs(90);

/// The time limit for establishing a connection.
const MAX_CONNECT: Duration = Duration::from_secs(10);

/// The largest file to download, in bytes, unless `DEBUGINFOD_MAXSIZE` sets another limit. The largest known, Debian's
/// for MySQL, has less than a tenth of it.
const MAX_SIZE: u64 = 4 << 30;

/// The interval at which progress is shown on a terminal.
const PROGRESS_EVERY: Duration = Duration::from_millis(250);

/// The reason why no debug file could be had.
#[derive(Debug, thiserror::Error)]
pub enum DebuginfodError {
    /// The cache cannot be written.
    #[error("the cache folder {}: {why}", .folder.display())]
    Cache {
        /// Its directory for this build.
        folder: PathBuf,
        /// The kernel's error.
        why: io::Error,
    },
    /// What each server answered. Servers that merely do not have the file are not among them.
    #[error("{}", joined(.0))]
    Servers(Vec<FailedRequest>),
}

/// A request that failed.
#[derive(Debug, thiserror::Error)]
#[error("{url}: {why}")]
pub struct FailedRequest {
    /// What was requested.
    pub url: String,
    /// The reason.
    pub why: RequestError,
}

/// The reason why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The server cannot be reached, or answers with an error.
    #[error(transparent)]
    Http(#[from] Box<ureq::Error>),
    /// The answer ends early.
    #[error("after {got} bytes: {why}")]
    Interrupted {
        /// The number of bytes received.
        got: u64,
        /// The error.
        why: io::Error,
    },
    /// The file has more bytes than this limit.
    #[error("larger than the limit of {0} bytes (DEBUGINFOD_MAXSIZE)")]
    TooLarge(u64),
    /// The file cannot be written to the cache.
    #[error("cannot write it to {}: {why}", .cache.display())]
    Write {
        /// The cache's directory.
        cache: PathBuf,
        /// The kernel's error.
        why: io::Error,
    },
    /// There is no thread that looks up the server's address.
    #[error("no thread for the request: {0}")]
    NoThread(io::Error),
    /// The file's symbols cannot be used.
    #[error(transparent)]
    Unusable(#[from] UnusableFile),
}

fn joined(failed: &[FailedRequest]) -> String {
    failed.iter().map(FailedRequest::to_string).collect::<Vec<_>>().join("; ")
}

/// The user's debuginfod settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Debuginfod {
    urls: Vec<String>,
    cache: PathBuf,
    max_silence: Duration,
    max_time: Duration,
    max_size: u64,
}

impl Debuginfod {
    /// Reads the settings from the environment. Returns `None` unless `DEBUGINFOD_URLS` names a server: nothing is
    /// downloaded unasked.
    pub fn from_env() -> Option<Debuginfod> {
        let is_root = rustix::process::geteuid().is_root();
        Debuginfod::from_variables(|name| std::env::var_os(name).filter(|value| !value.is_empty()), is_root)
    }

    /// Reads the settings from the given variables.
    pub fn from_variables(variable: impl Fn(&str) -> Option<OsString>, is_root: bool) -> Option<Debuginfod> {
        let urls = variable("DEBUGINFOD_URLS")?.into_string().ok()?;
        // Fedora adds elfutils' signature policy to this variable: `ima:enforcing`.
        let urls = urls.split_ascii_whitespace().filter(|word| !word.starts_with("ima:"));
        let urls: Vec<String> = urls.map(str::to_owned).collect();
        // As in elfutils, 0 means unset.
        let number = |name| variable(name)?.to_str()?.parse::<u64>().ok().filter(|&n| n > 0);
        let seconds = |name, otherwise| number(name).map_or(otherwise, Duration::from_secs);
        let cache = match (variable("DEBUGINFOD_CACHE_PATH"), variable("XDG_CACHE_HOME")) {
            (Some(path), _) => path.into(),
            (None, Some(caches)) => Path::new(&caches).join("debuginfod_client"),
            // Under sudo, the home directory may be another user's, who could not remove files that root created there.
            (None, None) if is_root => "/var/cache/armtrace".into(),
            (None, None) => Path::new(&variable("HOME")?).join(".cache/debuginfod_client"),
        };
        (!urls.is_empty()).then(|| Debuginfod {
            urls,
            cache,
            max_silence: seconds("DEBUGINFOD_TIMEOUT", MAX_SILENCE),
            max_time: seconds("DEBUGINFOD_MAXTIME", MAX_TIME),
            max_size: number("DEBUGINFOD_MAXSIZE").unwrap_or(MAX_SIZE),
        })
    }

    /// Returns the debug file of the build and its path, from the cache or else from the first server that has it.
    /// `check` decides whether a file is the right one; a file that it rejects is not cached.
    ///
    /// # Errors
    /// Fails with the reason why there is none. Returns `None` if no server has it.
    pub(super) fn debug_file<T>(
        &self,
        build_id: &str,
        check: impl Fn(&File) -> Result<T, UnusableFile>,
    ) -> Result<Option<(T, PathBuf)>, DebuginfodError> {
        let folder = self.cache.join(build_id);
        let path = folder.join("debuginfo");
        let cached = || File::open(&path).ok().and_then(|file| check(&file).ok()).map(|found| (found, path.clone()));
        if let Some(found) = cached() {
            return Ok(Some(found));
        }
        let in_cache = |why: io::Error| DebuginfodError::Cache { folder: folder.clone(), why };
        fs::create_dir_all(&folder).map_err(in_cache)?;
        // The name is always the same, so the next download overwrites what an interrupted one left. If another process
        // is downloading it, this waits.
        let part = folder.join("debuginfo.part");
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&part).map_err(in_cache)?;
        lock(&file).map_err(in_cache)?;
        if let Some(found) = cached() {
            return Ok(Some(found));
        }
        let mut failures = Vec::new();
        for url in &self.urls {
            let url = format!("{}/buildid/{build_id}/debuginfo", url.trim_end_matches('/'));
            let downloaded = self.download(&url, &mut file);
            match downloaded.and_then(|found| Ok(found.then(|| check(&file)).transpose()?)) {
                Ok(None) => {}
                Ok(Some(found)) => {
                    fs::rename(&part, &path).map_err(in_cache)?;
                    return Ok(Some((found, path)));
                }
                Err(why) => failures.push(FailedRequest { url, why }),
            }
        }
        _ = fs::remove_file(&part);
        if failures.is_empty() {
            Ok(None)
        } else {
            Err(DebuginfodError::Servers(failures))
        }
    }

    /// Downloads `url` into `file`; returns false if nothing is there.
    fn download(&self, url: &str, file: &mut File) -> Result<bool, RequestError> {
        let to_cache = |why: io::Error| RequestError::Write { cache: self.cache.clone(), why };
        // Looking up an address within a time limit takes a thread, and panics without one.
        can_start(1).map_err(RequestError::NoThread)?;
        eprintln!("armtrace: requesting {url}");
        let response = match self.agent().get(url).call() {
            Err(ureq::Error::StatusCode(404)) => return Ok(false),
            other => other.map_err(Box::new)?,
        };
        let length = response.body().content_length();
        if length.is_some_and(|l| l > self.max_size) {
            return Err(RequestError::TooLarge(self.max_size));
        }
        file.set_len(0).and_then(|()| io::Seek::rewind(file)).map_err(to_cache)?;
        let mut progress = Progress::new(length);
        // Reading one byte more than allowed distinguishes a file that is too large from one that just fits.
        let mut body = response.into_body().into_reader().take(self.max_size + 1);
        let mut buffer = vec![0; 256 << 10];
        let mut got = 0;
        loop {
            let n = body.read(&mut buffer).map_err(|why| RequestError::Interrupted { got, why })?;
            if n == 0 {
                break;
            }
            got += n as u64;
            if got > self.max_size {
                return Err(RequestError::TooLarge(self.max_size));
            }
            file.write_all(&buffer[..n]).map_err(to_cache)?;
            progress.show(got);
        }
        progress.finish(got);
        Ok(true)
    }

    fn agent(&self) -> Agent {
        let config = Agent::config_builder()
            .user_agent(concat!("armtrace/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(MAX_CONNECT.min(self.max_silence)))
            .timeout_recv_response(Some(self.max_silence))
            .timeout_per_read(Some(self.max_silence))
            .timeout_global(Some(self.max_time))
            .tls_config(TlsConfig::builder().root_certs(root_certs()).build());
        config.build().new_agent()
    }
}

/// Returns the certificate authorities that this host trusts (`SSL_CERT_FILE` and `SSL_CERT_DIR` apply), or Mozilla's
/// list if the host has none.
pub(crate) fn root_certs() -> RootCerts {
    let own: Vec<_> =
        rustls_native_certs::load_native_certs().certs.iter().map(|c| Certificate::from_der(c).to_owned()).collect();
    if own.is_empty() {
        RootCerts::WebPki
    } else {
        RootCerts::Specific(Arc::new(own))
    }
}

/// Waits for the exclusive lock on an open file. Closing the descriptor releases it.
fn lock(file: &File) -> io::Result<()> {
    Ok(flock(file, FlockOperation::LockExclusive)?)
}

/// Reports a download on standard error: on a terminal as a line that counts up, elsewhere only at the end.
struct Progress {
    length: Option<u64>,
    is_terminal: bool,
    shown: Instant,
}

impl Progress {
    fn new(length: Option<u64>) -> Progress {
        Progress { length, is_terminal: io::stderr().is_terminal(), shown: Instant::now() }
    }

    fn show(&mut self, got: u64) {
        if self.is_terminal && self.shown.elapsed() >= PROGRESS_EVERY {
            let of = self.length.map(|l| format!(" of {}", mebibytes(l))).unwrap_or_default();
            eprint!("\rarmtrace: {}{of}\x1b[K", mebibytes(got));
            self.shown = Instant::now();
        }
    }

    fn finish(&self, got: u64) {
        let begin = if self.is_terminal { "\r\x1b[K" } else { "" };
        eprintln!("{begin}armtrace: fetched {}", mebibytes(got));
    }
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::tests::without_threads;
    use std::collections::HashMap;
    use std::net::TcpListener;

    fn settings(variables: &[(&str, &str)], is_root: bool) -> Option<Debuginfod> {
        let variables: HashMap<_, _> = variables.iter().copied().collect();
        Debuginfod::from_variables(|name| variables.get(name).map(OsString::from), is_root)
    }

    fn cache(variables: &[(&str, &str)], is_root: bool) -> PathBuf {
        let all = [&[("DEBUGINFOD_URLS", "http://h"), ("HOME", "/home/u")], variables].concat();
        settings(&all, is_root).expect("settings").cache
    }

    #[test]
    fn nothing_is_fetched_unasked() {
        assert_eq!(settings(&[("HOME", "/root")], true), None);
        assert_eq!(settings(&[("DEBUGINFOD_URLS", "  ")], true), None);
        assert_eq!(settings(&[("DEBUGINFOD_URLS", "ima:ignore")], true), None);
    }

    #[test]
    fn settings_are_elfutils() {
        let found = settings(
            &[
                ("DEBUGINFOD_URLS", "http://a ima:enforcing https://b/"),
                ("DEBUGINFOD_MAXSIZE", "10"),
                ("DEBUGINFOD_TIMEOUT", "0"),
            ],
            true,
        );
        let found = found.expect("settings");
        assert_eq!(found.urls, ["http://a", "https://b/"]);
        assert_eq!((found.max_size, found.max_silence, found.max_time), (10, MAX_SILENCE, MAX_TIME));
    }

    #[test]
    fn the_cache_is_where_it_is_expected() {
        assert_eq!(cache(&[], true), Path::new("/var/cache/armtrace"));
        assert_eq!(cache(&[], false), Path::new("/home/u/.cache/debuginfod_client"));
        assert_eq!(cache(&[("XDG_CACHE_HOME", "/x")], true), Path::new("/x/debuginfod_client"));
        let both = [("XDG_CACHE_HOME", "/x"), ("DEBUGINFOD_CACHE_PATH", "/d")];
        assert_eq!(cache(&both, false), Path::new("/d"));
    }

    /// Answers one connection after the other with these bytes.
    fn server(answers: Vec<&'static [u8]>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("its address"));
        std::thread::spawn(move || {
            for answer in answers {
                let (mut stream, _) = listener.accept().expect("a client");
                let mut request = [0; 4096];
                _ = stream.read(&mut request);
                _ = stream.write_all(answer);
            }
        });
        url
    }

    struct Fetched {
        result: Result<Option<String>, DebuginfodError>,
        files: Vec<String>,
    }

    /// Returns the result of querying servers with these answers, and the contents of the cache afterwards.
    fn fetch(answers: Vec<Vec<&'static [u8]>>, max_size: u64) -> Fetched {
        let cache = tempfile::tempdir().expect("a folder");
        let debuginfod = Debuginfod {
            urls: answers.into_iter().map(server).collect(),
            cache: cache.path().to_owned(),
            max_silence: Duration::from_secs(2),
            max_time: Duration::from_secs(5),
            max_size,
        };
        let check = |mut file: &File| {
            let mut text = String::new();
            io::Seek::rewind(&mut file)
                .and_then(|()| file.read_to_string(&mut text))
                .map_err(UnusableFile::Unreadable)?;
            text.starts_with("good").then_some(text).ok_or(UnusableFile::NoBuildId)
        };
        let result = debuginfod.debug_file("abcd", check).map(|found| found.map(|(text, _)| text));
        let files = fs::read_dir(cache.path().join("abcd")).expect("the folder");
        let files = files.map(|f| f.expect("a file").file_name().to_string_lossy().into_owned()).collect();
        Fetched { result, files }
    }

    #[test]
    fn a_request_without_a_thread_is_an_error() {
        let cache = tempfile::tempdir().expect("a folder");
        let path = cache.path().to_str().expect("a path");
        let variables = [("DEBUGINFOD_URLS", "http://127.0.0.1:1"), ("DEBUGINFOD_CACHE_PATH", path)];
        let debuginfod = settings(&variables, false).expect("settings");
        let failed = without_threads(move || debuginfod.debug_file("abcd", |_| Ok(()))).unwrap_err();
        assert!(failed.to_string().contains("no thread for the request"), "{failed}");
    }

    const GOOD: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nConnection: close\r\n\r\ngood file";
    const MISSING: &[u8] = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

    #[test]
    fn the_first_server_that_has_the_file_gives_it() {
        let fetched = fetch(vec![vec![MISSING], vec![GOOD], vec![]], 100);
        assert_eq!(fetched.result.expect("an answer"), Some("good file".to_owned()));
        assert_eq!(fetched.files, ["debuginfo"]);
    }

    #[test]
    fn a_file_that_no_server_has_is_no_failure() {
        let fetched = fetch(vec![vec![MISSING]], 100);
        assert_eq!(fetched.result.expect("an answer"), None);
        assert!(fetched.files.is_empty(), "{:?}", fetched.files);
    }

    #[test]
    fn bad_answers_are_failures_and_leave_nothing() {
        let cases: [(&[u8], &str); 6] = [
            (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwrong", "no build id"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\ngood", "after 4 bytes"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 101\r\n\r\n", "DEBUGINFOD_MAXSIZE"),
            (b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\ngood0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000", "DEBUGINFOD_MAXSIZE"),
            (b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n", "500"),
            (b"garbage\r\n\r\n", ""),
        ];
        for (answer, words) in cases {
            let fetched = fetch(vec![vec![answer]], 100);
            let why = fetched.result.expect_err("a failure").to_string();
            assert!(why.contains(words) && why.contains("/buildid/abcd/debuginfo: "), "{why}");
            assert!(fetched.files.is_empty(), "{:?}", fetched.files);
        }
    }

    #[test]
    fn a_server_that_is_silent_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let cache = tempfile::tempdir().expect("a folder");
        let debuginfod = Debuginfod {
            urls: vec![format!("http://{}", listener.local_addr().expect("its address"))],
            cache: cache.path().to_owned(),
            max_silence: Duration::from_millis(300),
            max_time: Duration::from_secs(30),
            max_size: 100,
        };
        let start = Instant::now();
        assert!(debuginfod.debug_file("abcd", |_| Ok(())).is_err());
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    }

    #[test]
    fn what_was_fetched_is_not_asked_for_again() {
        let cache = tempfile::tempdir().expect("a folder");
        let url = server(vec![GOOD]);
        let debuginfod = Debuginfod {
            urls: vec![url],
            cache: cache.path().to_owned(),
            max_silence: Duration::from_secs(2),
            max_time: Duration::from_secs(5),
            max_size: 100,
        };
        for _ in 0..2 {
            let path = debuginfod.debug_file("abcd", |_| Ok(())).expect("an answer").expect("a file").1;
            assert_eq!(fs::read(path).expect("the file"), b"good file");
        }
    }
}
