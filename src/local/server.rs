//! The side of the agent.

use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::{Answer, Kept, Request, LONGEST_REQUEST};
use crate::export::SnapshotSource;
use crate::recording::{Ending, Recent, Recorder, Start, LONGEST, SECOND};

/// The modes of the folder and of a socket in it.
const FOLDER_MODE: u32 = 0o750;
const SOCKET_MODE: u32 = 0o660;

/// How long a client may be silent before it has asked, and leave an answer unread.
const PATIENCE: Duration = Duration::from_secs(5);

/// The most clients that are answered at a time. A recording is an answer.
const MOST_CLIENTS: usize = 8;

/// Returns the servers whose past is kept now.
pub type Sources = dyn Fn() -> Vec<Past> + Send + Sync;

/// A server whose past is kept.
pub struct Past {
    /// The value of the label `target`, if there is one.
    pub name: Option<String>,
    /// What is kept.
    pub recent: Arc<Recent>,
    /// The source of what is measured now; `None` if the server has ended.
    pub source: Option<Arc<dyn SnapshotSource>>,
}

impl Past {
    /// Returns the past of a server that is measured; `None` if it is not kept.
    pub fn of_source(name: Option<String>, source: Arc<dyn SnapshotSource>) -> Option<Past> {
        Some(Past { name, recent: source.recent()?, source: Some(source) })
    }

    /// Returns what is told of it. Who asks again and again gets figures of each second.
    fn kept(&self) -> Kept {
        self.recent.watch();
        let server = &self.recent.start().server;
        Kept {
            pid: server.pid,
            name: self.name.clone(),
            flavor: server.flavor.clone(),
            version: server.version.clone(),
            has_ended: self.source.is_none() || self.recent.has_ended(),
            is_paused: self.recent.is_paused(),
            reaches_ms: self.recent.reaches().as_millis() as u64,
            waiting: self.recent.waiting(),
        }
    }

    /// Returns the files with the last so much time.
    ///
    /// # Errors
    /// Fails if there are more figures than fit into a file.
    pub fn files(&self, last: Duration) -> io::Result<Vec<Vec<u8>>> {
        let now = self.source.as_ref().map(|source| source.snapshot()).unwrap_or_default();
        self.recent.files(last, &now)
    }
}

/// A socket in the folder. Dropping it removes it.
pub struct Socket {
    listener: UnixListener,
    path: PathBuf,
}

impl Socket {
    /// Returns what to [`serve`] on.
    ///
    /// # Errors
    /// Fails if there is no descriptor left.
    pub fn listener(&self) -> io::Result<UnixListener> {
        self.listener.try_clone()
    }

    /// Binds the socket of this process in a folder, which is made if there is none.
    ///
    /// # Errors
    /// Fails if this process may not write there.
    pub fn bind(folder: &Path) -> io::Result<Socket> {
        if !folder.is_dir() {
            DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(folder)?;
            // The process's umask has been taken off.
            fs::set_permissions(folder, Permissions::from_mode(FOLDER_MODE))?;
        }
        remove_left(folder)?;
        let path = folder.join(format!("{}.sock", process::id()));
        let listener = UnixListener::bind(&path)?;
        fs::set_permissions(&path, Permissions::from_mode(SOCKET_MODE))?;
        listener.set_nonblocking(true)?;
        Ok(Socket { listener, path })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // It may have been removed already, as with the folder.
        _ = fs::remove_file(&self.path);
    }
}

/// Removes the sockets that processes have left which were killed.
fn remove_left(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_socket() && is_left(&entry.path()) {
            // Another one may remove it, too.
            _ = fs::remove_file(entry.path());
        }
    }
    Ok(())
}

/// Returns whether a socket is that of a process that has ended, by its name, and that nobody answers on.
fn is_left(path: &Path) -> bool {
    let pid = path.file_stem().and_then(|stem| stem.to_str()?.parse::<u32>().ok());
    let may_be = |pid| pid == process::id() || !Path::new(&format!("/proc/{pid}")).exists();
    let is_refused = || UnixStream::connect(path).is_err_and(|why| why.kind() == ErrorKind::ConnectionRefused);
    pid.is_some_and(may_be) && is_refused()
}

/// Answers each client in a thread of its own until it is dropped.
///
/// # Errors
/// Fails if the socket cannot be registered with the runtime.
pub async fn serve(listener: UnixListener, sources: Arc<Sources>) -> io::Result<()> {
    let listener = tokio::net::UnixListener::from_std(listener)?;
    let clients = Arc::new(());
    loop {
        let accepted = match listener.accept().await {
            Ok((client, _)) => client.into_std(),
            Err(why) => Err(why),
        };
        match accepted {
            Ok(client) if Arc::strong_count(&clients) <= MOST_CLIENTS => start(client, &sources, &clients),
            // It is closed.
            Ok(_) => {}
            Err(why) => {
                tracing::debug!("a command that asks cannot be answered: {why}");
                // As when there is no descriptor left.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Starts a thread that answers a client, and counts as one for so long.
fn start(client: UnixStream, sources: &Arc<Sources>, clients: &Arc<()>) {
    let (sources, counted) = (Arc::clone(sources), Arc::clone(clients));
    let work = move || {
        if let Err(why) = answer(&client, &*sources) {
            tracing::debug!("a command that asked got no whole answer: {why}");
        }
        drop(counted);
    };
    if let Err(why) = thread::Builder::new().name("answer".to_owned()).spawn(work) {
        tracing::debug!("a command that asks cannot be answered: {why}");
    }
}

/// Answers one request.
fn answer(client: &UnixStream, sources: &Sources) -> io::Result<()> {
    client.set_nonblocking(false)?;
    client.set_read_timeout(Some(PATIENCE))?;
    client.set_write_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new(client.take(LONGEST_REQUEST)).read_line(&mut line)?;
    match serde_json::from_str(&line) {
        Ok(Request::Servers) => send(client, &Answer::Servers(sources().iter().map(Past::kept).collect())),
        Ok(Request::Files { pid, last_ms }) => {
            let (answer, files) = files(sources, pid, Duration::from_millis(last_ms));
            send(client, &answer)?;
            let mut client = client;
            files.iter().try_for_each(|file| client.write_all(file))
        }
        Ok(Request::Record { pid, duration_ms, labels }) => {
            let Some((recent, source)) = measured(sources, pid) else { return send(client, &not_measured(pid)) };
            send(client, &Answer::Recording)?;
            let start = Start { labels, ..recent.start_now() };
            record(client, source.as_ref(), &recent, start, LONGEST.min(Duration::from_millis(duration_ms)))
        }
        Err(why) => send(client, &Answer::Failed(format!("not a request that this armtrace knows: {why}"))),
    }
}

fn send(mut client: &UnixStream, answer: &Answer) -> io::Result<()> {
    let mut line = serde_json::to_string(answer)?;
    line.push('\n');
    client.write_all(line.as_bytes())
}

fn not_measured(pid: i32) -> Answer {
    Answer::Failed(format!("process {pid} is not measured any more"))
}

/// Returns a server that is measured, with what is kept of it.
fn measured(sources: &Sources, pid: i32) -> Option<(Arc<Recent>, Arc<dyn SnapshotSource>)> {
    let past = sources().into_iter().find(|past| past.recent.start().server.pid == pid)?;
    Some((past.recent, past.source?))
}

/// Records until the client closes its side, the server ends or is no longer measured, or this time is over.
fn record(
    client: &UnixStream,
    source: &dyn SnapshotSource,
    recent: &Recent,
    start: Start,
    duration: Duration,
) -> io::Result<()> {
    let before = source.snapshot();
    let start = start.beginning(SystemTime::now(), &before);
    let mut recorder = Recorder::begin_after(&before, client, &start)?;
    let (began, mut end) = (Instant::now(), Duration::ZERO);
    loop {
        end = duration.min(next_end(end, began.elapsed()));
        let has_closed = closes(client, end.saturating_sub(began.elapsed()))?;
        let now = source.snapshot();
        recorder.second(&now, now.statements)?;
        let ending = match (now.up, has_closed || recent.has_ended()) {
            (false, _) => Some(Ending::ServerEnded),
            (true, true) => Some(Ending::Interrupted),
            (true, false) => (end >= duration).then_some(Ending::Complete),
        };
        if let Some(ending) = ending {
            return recorder.end(ending, &now);
        }
    }
}

/// Returns when the next second ends, after one that should have ended at `end`. Those that have passed meanwhile, as
/// while the machine was suspended, are not made up for.
fn next_end(end: Duration, now: Duration) -> Duration {
    SECOND * (end.max(now).as_secs() as u32 + 1)
}

/// Waits until the client closes its side, but no longer than this. Returns whether it has.
fn closes(client: &UnixStream, time: Duration) -> io::Result<bool> {
    let mut wanted = [PollFd::new(client, PollFlags::IN)];
    let time = Timespec::try_from(time).map_err(io::Error::other)?;
    match poll(&mut wanted, Some(&time)) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(why) => Err(why.into()),
    }
}

/// Returns the files with the last so much time of a server.
fn files(sources: &Sources, pid: i32, last: Duration) -> (Answer, Vec<Vec<u8>>) {
    let all = sources();
    let Some(past) = all.iter().find(|past| past.recent.start().server.pid == pid) else {
        return (not_measured(pid), Vec::new());
    };
    match past.files(last) {
        Ok(files) => (Answer::Files(files.iter().map(|file| file.len() as u64).collect()), files),
        Err(why) => (Answer::Failed(why.to_string()), Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_that_have_passed_are_not_made_up_for() {
        let next = |end, now| next_end(Duration::from_millis(end), Duration::from_millis(now));
        assert_eq!(next(0, 0), SECOND);
        assert_eq!(next(1000, 1002), 2 * SECOND);
        assert_eq!(next(2000, 1999), 3 * SECOND, "a little early");
        assert_eq!(next(3000, 63_400), 64 * SECOND);
    }
}
