//! The HTTP server with well-behaved and badly behaved clients.

use armtrace::measure::{Replayed, Snapshot};
use armtrace::model::{Kind, Mode};
use lab::exporter::ServedExporter;
use lab::http::get;
use lab::snapshots::{busy, latch};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{mpsc, Arc, Mutex};
use std::thread;
use std::time::Duration;

#[test]
fn metrics_are_text_0_0_4() {
    let server = ServedExporter::of(|| busy(5));
    let answer = get(&server.address, "/metrics").unwrap();
    assert!(answer.head.starts_with("HTTP/1.0 200"), "{}", answer.head);
    assert!(answer.head.contains("content-type: text/plain; version=0.0.4; charset=utf-8"), "{}", answer.head);
    assert!(answer.body.contains("\narmtrace_target_up 1\n"));
}

#[test]
fn health_needs_no_snapshot() {
    let server = ServedExporter::of(|| panic!("no snapshot is needed"));
    assert_eq!(get(&server.address, "/healthz").unwrap().body, "ok\n");
}

#[test]
fn the_landing_page_names_the_server_and_escapes_text() {
    let server = ServedExporter::of(|| {
        let mut snapshot = busy(5);
        snapshot.latch.waits.push(latch("unnamed:f<T>&\"", Kind::Mutex, Mode::None, 100, 1_000_000_000));
        snapshot
    });
    let page = get(&server.address, "/").unwrap();
    assert!(page.head.contains("text/html"), "{}", page.head);
    for text in ["MySQL 9.7.4", "Neoverse-N1", "href=\"/metrics\"", "innodb/trx_mutex", "unnamed:f&lt;T&gt;&amp;&quot;"]
    {
        assert!(page.body.contains(text), "{text}\n{}", page.body);
    }
    assert!(!page.body.contains("<T>"));
}

#[test]
fn the_landing_page_of_a_replay_says_so() {
    let page = |replayed: Option<Replayed>| {
        let server = ServedExporter::of(move || Snapshot { replayed: replayed.clone(), ..busy(5) });
        get(&server.address, "/").unwrap().body
    };
    let name = "<demo>.rec".to_owned();
    let replay = page(Some(Replayed { name, length: Duration::from_secs(40), ..Replayed::default() }));
    assert!(replay.contains("REPLAY of &lt;demo&gt;.rec, 40s recorded 1970-01-01 00:00 UTC"), "{replay}");
    assert!(replay.contains("played for 5s") && !replay.contains("attached"), "{replay}");
    assert!(!page(None).contains("REPLAY"));
}

#[test]
fn other_paths_are_not_found() {
    let server = ServedExporter::of(|| busy(5));
    assert!(get(&server.address, "/x").unwrap().head.starts_with("HTTP/1.0 404"));
}

#[test]
fn a_snapshot_that_fails_is_one_failed_scrape() {
    let calls = AtomicUsize::new(0);
    let server = ServedExporter::of(move || {
        assert!(calls.fetch_add(1, Ordering::Relaxed) > 0, "the first snapshot fails");
        busy(5)
    });
    assert!(get(&server.address, "/metrics").unwrap().head.starts_with("HTTP/1.0 500"));
    assert!(get(&server.address, "/metrics").unwrap().head.starts_with("HTTP/1.0 200"));
}

#[test]
fn snapshots_are_taken_one_at_a_time_and_block_no_other_request() {
    let (running, most) = (AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
    let most_seen = most.clone();
    let (begun, begins) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let released = Mutex::new(released);
    let server = ServedExporter::of(move || {
        most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        begun.send(()).unwrap();
        // Wait until `release` is dropped, and then for long enough that concurrent snapshots would be seen.
        _ = released.lock().unwrap().recv();
        thread::sleep(Duration::from_millis(200));
        running.fetch_sub(1, Ordering::SeqCst);
        busy(5)
    });
    let scrape = |path: &'static str| {
        let address = server.address.clone();
        thread::spawn(move || get(&address, path).unwrap().head)
    };
    let scrapes = ["/metrics", "/", "/metrics", "/"].map(scrape);
    begins.recv().unwrap();
    let health = get(&server.address, "/healthz");
    drop(release);
    assert!(health.is_ok(), "health waits for a snapshot");
    assert!(scrapes.into_iter().all(|scrape| scrape.join().unwrap().contains("200")));
    assert_eq!(most_seen.load(Ordering::SeqCst), 1);
}

#[test]
fn it_stops_soon_with_any_clients() {
    let server = ServedExporter::of(|| {
        thread::sleep(Duration::from_secs(3));
        busy(5)
    });
    let connect = |request: &str| {
        let mut stream = TcpStream::connect(&server.address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        stream
    };
    let mut silent = connect("");
    let _half = connect("GET /metrics HTTP/1.1\r\nHost:");
    let _waiting = connect("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    get(&server.address, "/healthz").unwrap();
    let address = server.address.clone();
    let took = server.stop();
    // The stop takes half a second, or more on a busy machine, while the snapshot takes three seconds.
    assert!(took < Duration::from_millis(2500), "{took:?}");
    assert!(TcpStream::connect(address).is_err(), "nothing listens any more");
    assert_eq!(silent.read(&mut [0]).unwrap_or(0), 0, "connections are closed");
}

#[test]
fn idle_connections_do_not_delay_the_stop() {
    let stop = || {
        let server = ServedExporter::of(|| busy(5));
        let mut stream = TcpStream::connect(&server.address).unwrap();
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        assert!(stream.read(&mut [0; 1024]).unwrap() > 0);
        server.stop()
    };
    // The shortest of five counts, because other tests run at the same time.
    let took = (0..5).map(|_| stop()).min().unwrap();
    assert!(took < Duration::from_millis(300), "{took:?}");
}

#[test]
fn a_scrape_in_progress_is_answered_before_the_stop() {
    let (begun, begins) = mpsc::channel();
    let server = ServedExporter::of(move || {
        begun.send(()).unwrap();
        thread::sleep(Duration::from_millis(100));
        busy(5)
    });
    let address = server.address.clone();
    let scrape = thread::spawn(move || get(&address, "/metrics").unwrap());
    begins.recv().unwrap();
    server.stop();
    assert!(scrape.join().unwrap().body.contains("armtrace_target_up"));
}

#[test]
fn hanging_clients_do_not_block_others() {
    let server = ServedExporter::of(|| busy(5));
    let _hanging: Vec<_> = (0..40).map(|_| TcpStream::connect(&server.address).unwrap()).collect();
    assert!(get(&server.address, "/metrics").unwrap().head.contains("200"));
}
