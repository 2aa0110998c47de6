//! The side of a command that asks.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Answer, Kept, Request, LONGEST_ANSWER};

/// How long an agent may take for a part of its answer. It reads all the figures of a server first.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long it may take to say which servers it measures.
const SHORT_PATIENCE: Duration = Duration::from_secs(3);
/// The most bytes of all files of an answer. An agent keeps a fraction of it.
const MOST_BYTES: u64 = 256 << 20;

/// The reason why no agent answers.
#[derive(Debug, thiserror::Error)]
#[cfg_attr(test, derive(strum::VariantNames, strum::IntoStaticStr))]
pub enum LocalError {
    /// There is a socket that this process may not open.
    #[error("{0} belongs to others: only root and its group may ask an armtrace for what it keeps. Use sudo")]
    NotPermitted(PathBuf),
    /// The agent says why it has no answer, or says something else than was asked for.
    #[error("the armtrace that runs here has no answer: {0}")]
    NoAnswer(String),
    /// The connection is broken.
    #[error("cannot ask the armtrace that runs here: {0}")]
    Io(#[from] io::Error),
}

/// An agent, asked about one of its servers.
#[derive(Clone, Debug)]
pub struct Asked {
    socket: PathBuf,
    /// The server.
    pub server: Kept,
}

/// Returns the servers whose past is kept by any armtrace that has a socket in this folder.
///
/// # Errors
/// Fails if none answers, and there is one that may not be asked or has no answer. One that has ended is none.
pub fn servers(folder: &Path) -> Result<Vec<Asked>, LocalError> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(why) if why.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(why) => return Err(of_path(folder, why)),
    };
    let (mut all, mut refusal) = (Vec::new(), None);
    for entry in entries {
        match of_agent(&entry?.path()) {
            Ok(servers) => all.extend(servers),
            Err(why) => refusal = Some(why),
        }
    }
    all.sort_by_key(|asked| asked.server.pid);
    match refusal {
        Some(why) if all.is_empty() => Err(why),
        _ => Ok(all),
    }
}

/// Returns the servers of one agent.
fn of_agent(socket: &Path) -> Result<Vec<Asked>, LocalError> {
    match ask(socket, &Request::Servers, SHORT_PATIENCE) {
        Ok((Answer::Servers(servers), _)) => {
            Ok(servers.into_iter().map(|server| Asked { socket: socket.to_owned(), server }).collect())
        }
        Ok((other, _)) => Err(unexpected(other)),
        // It was killed, or ends just now.
        Err(LocalError::Io(why)) if [ErrorKind::ConnectionRefused, ErrorKind::NotFound].contains(&why.kind()) => {
            Ok(Vec::new())
        }
        Err(why) => Err(why),
    }
}

impl Asked {
    /// Returns the recordings that together have the server's last so much time, the oldest first.
    ///
    /// # Errors
    /// Fails if the agent has ended, or measures the server no more.
    pub fn files(&self, last: Duration) -> Result<Vec<Vec<u8>>, LocalError> {
        let wanted = Request::Files { pid: self.server.pid, last_ms: last.as_millis() as u64 };
        let (sizes, mut rest) = match ask(&self.socket, &wanted, PATIENCE)? {
            (Answer::Files(sizes), rest) => (sizes, rest),
            (other, _) => return Err(unexpected(other)),
        };
        if sizes.iter().fold(0_u64, |sum, size| sum.saturating_add(*size)) > MOST_BYTES {
            return Err(LocalError::NoAnswer("it has too much".to_owned()));
        }
        let mut file = |size: u64| {
            let mut file = vec![0; size as usize];
            rest.read_exact(&mut file).map(|()| file)
        };
        Ok(sizes.into_iter().map(&mut file).collect::<io::Result<_>>()?)
    }

    /// Begins a recording of this length, with these labels. It can be read as it is made, second by second.
    ///
    /// # Errors
    /// Fails if the agent has ended, or measures the server no more.
    pub fn record(&self, duration: Duration, labels: BTreeMap<String, String>) -> Result<Recorded, LocalError> {
        let wanted = Request::Record { pid: self.server.pid, duration_ms: duration.as_millis() as u64, labels };
        match ask(&self.socket, &wanted, PATIENCE)? {
            (Answer::Recording, from) => Ok(Recorded { from }),
            (other, _) => Err(unexpected(other)),
        }
    }
}

/// A recording that an agent is making.
pub struct Recorded {
    from: BufReader<UnixStream>,
}

impl Recorded {
    /// Returns what ends it when it is called.
    ///
    /// # Errors
    /// Fails if there is no descriptor left.
    pub fn end(&self) -> io::Result<impl FnOnce()> {
        let agent = self.from.get_ref().try_clone()?;
        // An agent that has ended has ended the recording, too.
        Ok(move || _ = agent.shutdown(Shutdown::Write))
    }
}

impl Read for Recorded {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.from.read(into)
    }
}

/// Sends a request. Returns the answer, and what has the rest of it.
fn ask(socket: &Path, request: &Request, patience: Duration) -> Result<(Answer, BufReader<UnixStream>), LocalError> {
    let mut agent = UnixStream::connect(socket).map_err(|why| of_path(socket, why))?;
    agent.set_read_timeout(Some(patience))?;
    agent.set_write_timeout(Some(patience))?;
    let mut line = serde_json::to_string(request).map_err(io::Error::other)?;
    line.push('\n');
    agent.write_all(line.as_bytes())?;
    let (mut answer, mut from) = (String::new(), BufReader::new(agent));
    (&mut from).take(LONGEST_ANSWER).read_line(&mut answer)?;
    let answer = serde_json::from_str(&answer).map_err(|why| LocalError::NoAnswer(why.to_string()))?;
    Ok((answer, from))
}

fn unexpected(answer: Answer) -> LocalError {
    match answer {
        Answer::Failed(why) => LocalError::NoAnswer(why),
        Answer::Servers(_) | Answer::Files(_) | Answer::Recording => {
            LocalError::NoAnswer("it answers another question".to_owned())
        }
    }
}

fn of_path(path: &Path, why: io::Error) -> LocalError {
    match why.kind() {
        ErrorKind::PermissionDenied => LocalError::NotPermitted(path.to_owned()),
        _ => LocalError::Io(why),
    }
}
