//! What comes over a connection: requests of clients, and answers of debuginfod servers.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex};
use std::thread;
use std::time::Duration;

use tempfile::TempDir;
use tokio::time::timeout;

use super::programs::file;
use crate::export::{serve_one, Exporter};
use crate::measure::Snapshot;
use crate::symbols::{self, DebugRoots, Debuginfod, Image, Settings};

/// How long a client waits for answers.
const PATIENCE: Duration = Duration::from_millis(100);

/// The requests of a client, which then says no more.
pub(super) fn http(input: &[u8]) {
    static EXPORTER: LazyLock<Arc<Exporter>> =
        LazyLock::new(|| Arc::new(Exporter::new(Arc::new(Snapshot::default)).expect("metrics")));
    let (mut client, server) = UnixStream::pair().expect("two sockets");
    server.set_nonblocking(true).expect("a socket");
    // More than the socket's buffer takes is cut off.
    client.set_nonblocking(true).expect("a socket");
    _ = client.write(input);
    _ = client.shutdown(Shutdown::Write);
    client.set_nonblocking(false).expect("a socket");
    let reader = thread::spawn(move || client.read_to_end(&mut Vec::new()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let server = tokio::net::UnixStream::from_std(server).expect("a socket");
        // A page that stays open is served for as long as the client is there.
        _ = timeout(PATIENCE, serve_one(server, Arc::clone(&EXPORTER))).await;
    });
    _ = reader.join().expect("a reader");
}

/// A debuginfod server's answer to every request.
struct Server {
    answer: Arc<Mutex<Vec<u8>>>,
    settings: Settings,
    _cache: TempDir,
}

/// The answer of a debuginfod server.
pub(super) fn debuginfod(input: &[u8]) {
    static SERVER: LazyLock<Mutex<Server>> = LazyLock::new(|| Mutex::new(serve()));
    let server = SERVER.lock().expect("a server");
    *server.answer.lock().expect("an answer") = input.to_vec();
    let (_file, path) = file(include_bytes!("../../fuzz/seeds/audit/aarch64.so")).expect("memory for a file");
    let mut image = Image::open(&path).expect("a program");
    let places = DebugRoots::in_folder(Path::new("/proc/self/fdinfo"), &path).expect("a folder");
    _ = symbols::complete(&mut image, &places, &server.settings, |_| true);
}

fn serve() -> Server {
    let cache = tempfile::tempdir().expect("a folder");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("its address"));
    let answer = Arc::new(Mutex::new(Vec::new()));
    let answered = Arc::clone(&answer);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a client");
            _ = stream.read(&mut [0; 4096]);
            _ = stream.write_all(&answered.lock().expect("an answer"));
        }
    });
    let debuginfod = Debuginfod::from_variables(
        |name| match name {
            "DEBUGINFOD_URLS" => Some(url.clone().into()),
            "DEBUGINFOD_CACHE_PATH" => Some(cache.path().into()),
            "DEBUGINFOD_TIMEOUT" | "DEBUGINFOD_MAXTIME" => Some("2".into()),
            _ => None,
        },
        false,
    );
    Server { answer, settings: Settings { file: None, debuginfod }, _cache: cache }
}
