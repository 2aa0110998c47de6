use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::*;
use crate::export::SnapshotSource;
use crate::measure::Snapshot;
use crate::recording::{Recent, Recording, Start};

/// A server whose past is kept.
struct Measured(Arc<Recent>);

impl Measured {
    fn with_pid(pid: i32) -> Measured {
        let mut start = Start::default();
        start.server.pid = pid;
        let recent = Recent::new(start, Duration::from_secs(60));
        recent.add(&after(1));
        Measured(Arc::new(recent))
    }
}

impl SnapshotSource for Measured {
    fn snapshot(&self) -> Snapshot {
        after(2)
    }

    fn recent(&self) -> Option<Arc<Recent>> {
        Some(Arc::clone(&self.0))
    }
}

fn after(seconds: u64) -> Snapshot {
    Snapshot { elapsed: Duration::from_secs(seconds), ..Snapshot::default() }
}

/// Answers in this folder for two servers, one of which keeps nothing, until the test ends.
fn answering(folder: PathBuf) {
    let socket = Socket::bind(&folder).expect("a socket");
    thread::spawn(move || {
        let sources: Arc<Sources> = Arc::new(|| {
            let measured: Arc<dyn SnapshotSource> = Arc::new(Measured::with_pid(7));
            let keeps_nothing: Arc<dyn SnapshotSource> = Arc::new(Snapshot::default);
            let sources = [(None, keeps_nothing), (Some("db.service".to_owned()), measured)];
            sources.into_iter().filter_map(|(name, source)| Past::of_source(name, source)).collect()
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(serve(socket.listener()?, sources))
    });
}

#[test]
fn a_command_gets_the_past_of_a_server() {
    let folder = tempfile::tempdir().expect("a folder");
    answering(folder.path().to_owned());
    let all = servers(folder.path()).expect("an answer");
    assert_eq!(all.len(), 1, "only one keeps it: {all:?}");
    assert_eq!((all[0].server.pid, all[0].server.name.as_deref()), (7, Some("db.service")));
    let files = all[0].files(Duration::from_secs(60)).expect("files");
    let recording = Recording::read_from(files[0].as_slice()).expect("a recording");
    assert_eq!((files.len(), recording.duration()), (1, Duration::from_secs(2)));
    let mut ended = all[0].clone();
    ended.server.pid = 8;
    assert!(ended.files(Duration::from_secs(1)).expect_err("no server").to_string().contains("process 8"));
}

#[test]
fn only_root_and_its_group_may_ask() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path().join("new");
    let socket = Socket::bind(&folder).expect("a socket");
    let mode = |path: &Path| fs::metadata(path).expect("metadata").permissions().mode() & 0o777;
    let path = folder.join(format!("{}.sock", std::process::id()));
    assert_eq!((mode(&folder), mode(&path)), (0o750, 0o660));
    drop(socket);
    assert!(!path.exists(), "it is removed at the end");
}

#[test]
fn what_a_killed_process_left_is_removed() {
    let folder = tempfile::tempdir().expect("a folder");
    let [left, used, file, starting] =
        ["2147483647.sock", "2147483646.sock", "2147483645.sock", "1.sock"].map(|name| folder.path().join(name));
    drop(UnixListener::bind(&left).expect("a socket"));
    assert_eq!(servers(folder.path()).expect("nobody").len(), 0);
    let _used = UnixListener::bind(&used).expect("a socket");
    fs::write(&file, "").expect("a file");
    // Its process runs, and does not answer yet.
    drop(UnixListener::bind(&starting).expect("a socket"));
    let _socket = Socket::bind(folder.path()).expect("a socket");
    assert!(!left.exists() && [used, file, starting].iter().all(|path| path.exists()));
}

/// One that is stuck, or is none, keeps no other from being asked.
#[test]
fn others_answer_beside_an_agent_that_does_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let _silent = UnixListener::bind(folder.path().join("2147483647.sock")).expect("a socket");
    answering(folder.path().to_owned());
    assert_eq!(servers(folder.path()).expect("an answer").len(), 1);
}

#[test]
fn nothing_is_kept_where_there_is_no_folder() {
    assert_eq!(servers(Path::new("/nonexistent")).expect("no folder").len(), 0);
}

#[test]
fn an_agent_that_is_no_agent_is_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let listener = UnixListener::bind(folder.path().join("3.sock")).expect("a socket");
    let other = thread::spawn(move || {
        let (mut client, _) = listener.accept().expect("a client");
        let mut line = String::new();
        BufReader::new(&client).read_line(&mut line).expect("a request");
        client.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").expect("a reader");
    });
    assert!(matches!(servers(folder.path()), Err(LocalError::NoAnswer(_))));
    other.join().expect("the other side");
}
