//! The HTTP server with well-behaved and badly behaved clients.

use armtrace::export::{Hosts, Policy};
use armtrace::measure::{locks, Replayed, Snapshot};
use armtrace::model::{Kind, Mode};
use lab::exporter::{of_many, ServedExporter};
use lab::http::{get, url_encode};
use lab::snapshots::{busy, empty, latch, locks_waited_for};
use socket2::{Domain, Socket, Type};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{mpsc, Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

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
fn the_landing_page_has_all_figures() {
    let server = ServedExporter::of(|| busy(5));
    let body = get(&server.address, "/").unwrap().body;
    let figures = body.find("<main").expect("the figures");
    // A line for each element, so that a difference is short.
    lab::golden::check("export/landing.html", &body[figures..].replace("><", ">\n<"));
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
    assert!(replay.contains("played for 5s") && !replay.contains("attached for"), "{replay}");
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
    let _waiting = connect("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
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
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
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

/// A client that asks all the time costs no more than one that asks once a second.
#[test]
fn requests_within_a_second_share_a_snapshot() {
    let (server, taken) = counted();
    let began = Instant::now();
    let mut answers: Vec<String> = Vec::new();
    while began.elapsed() < Duration::from_millis(2500) {
        answers.push(get(&server.address, "/metrics").unwrap().body);
        assert!(get(&server.address, "/").unwrap().head.contains("200"));
    }
    let taken = taken.load(Ordering::SeqCst) as u64;
    // Three for each path, and one that a slow machine adds.
    assert!(answers.len() > 20 && taken <= 2 * (began.elapsed().as_secs() + 1) + 1, "{taken} for {}", answers.len());
    let changes = answers.windows(2).filter(|pair| sums(&pair[0]) != sums(&pair[1])).count();
    assert!((2..=3).contains(&changes), "{changes} changes: an answer is a second old at most");
}

/// Returns the lines about latches: others differ between scrapes of the same snapshot.
fn sums(metrics: &str) -> Vec<&str> {
    metrics.lines().filter(|line| line.starts_with("armtrace_latch_wait_seconds_sum")).collect()
}

/// More connections than are served at a time, each of which has asked once and may ask again.
#[test]
fn idle_connections_do_not_keep_others_out() {
    let server = ServedExporter::of(|| busy(5));
    let idle = || {
        let mut stream = TcpStream::connect(&server.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let answered = stream.read(&mut [0; 1024]).is_ok_and(|bytes| bytes > 0);
        (stream, answered)
    };
    let idle: Vec<(TcpStream, bool)> = (0..200).map(|_| idle()).collect();
    assert!(idle.iter().all(|(_, answered)| *answered));
    let began = Instant::now();
    for _ in 0..5 {
        assert!(get(&server.address, "/metrics").unwrap().head.contains("200"));
    }
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    // The last ones still have their place.
    let (mut last, _) = idle.into_iter().next_back().unwrap();
    last.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    assert!(last.read(&mut [0; 1024]).is_ok_and(|bytes| bytes > 0));
}

/// A connection from this address, on which answers are awaited for ten seconds.
fn connection_from(from: [u8; 4], server: &ServedExporter) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((from, 0)).into()).unwrap();
    socket.connect(&server.address.parse::<SocketAddr>().unwrap().into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream
}

/// A client elsewhere that sends thousands of requests at once takes a part of a CPU, and delays nobody else.
#[test]
fn a_flood_of_requests_is_slowed_down() {
    const ASK: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let server = ServedExporter::of(|| busy(5));
    let mut flood = connection_from([127, 0, 0, 2], &server);
    let mut answers = flood.try_clone().unwrap();
    let began = Instant::now();
    let sender = thread::spawn(move || flood.write_all(&ASK.repeat(2500)).map(|()| flood));
    let counter = thread::spawn(move || {
        // The first answer tells how long all are.
        let mut text = vec![0; 1 << 16];
        let first = answers.read(&mut text).unwrap();
        let one = text[..first].windows(4).position(|part| part == b"\nok\n").unwrap() + 4;
        answers.read_exact(&mut vec![0; 2500 * one - first]).unwrap();
        began.elapsed()
    });
    let asked = Instant::now();
    assert!(get(&server.address, "/metrics").unwrap().head.contains("200"));
    assert!(asked.elapsed() < Duration::from_millis(900), "{:?}", asked.elapsed());
    let took = counter.join().unwrap();
    assert!(took >= Duration::from_secs(2), "{took:?}");
    sender.join().unwrap().unwrap();
}

/// A client elsewhere that connects all the time takes its own places, not those of others.
#[test]
fn a_flood_of_connections_keeps_nobody_else_out() {
    const ASK: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let server = ServedExporter::of(|| busy(5));
    let asks = |stream: &mut TcpStream| {
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream.write_all(ASK).is_ok() && stream.read(&mut [0; 1024]).is_ok_and(|bytes| bytes > 0)
    };
    let mut scraper = TcpStream::connect(&server.address).unwrap();
    assert!(asks(&mut scraper));
    let elsewhere = || {
        let mut stream = connection_from([127, 0, 0, 2], &server);
        assert!(asks(&mut stream));
        stream
    };
    let flood: Vec<TcpStream> = (0..200).map(|_| elsewhere()).collect();
    assert!(asks(&mut scraper), "it was closed");
    drop(flood);
}

/// The most pages that may be open at a time.
const PAGES: usize = 16;

/// An open page: what it receives of `/events`.
struct Page(BufReader<TcpStream>);

impl Page {
    /// Opens a page, and returns it with the status of the answer.
    fn open(address: &str) -> (Page, String) {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        write!(stream, "GET /events HTTP/1.1\r\nHost: {address}\r\n\r\n").unwrap();
        let mut page = Page(BufReader::new(stream));
        let status = page.line().unwrap();
        (page, status)
    }

    /// Returns the next line, or `None` at the end.
    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        self.0.read_line(&mut line).ok().filter(|n| *n > 0).map(|_| line)
    }

    /// Returns the next event, or `None` at the end.
    fn event(&mut self) -> Option<String> {
        std::iter::from_fn(|| self.line()).find(|line| line.starts_with("data: "))
    }
}

/// Returns an event that all pages show. One that is slow to read misses some.
fn shared_event(pages: &mut [Page]) -> String {
    let mut shown = vec![Vec::new(); pages.len()];
    for _ in 0..10 {
        pages.iter_mut().zip(&mut shown).for_each(|(page, events)| events.push(page.event().unwrap()));
        let by_all = |event: &&String| shown.iter().all(|events: &Vec<String>| events.contains(event));
        if let Some(event) = shown[0].iter().find(by_all) {
            return event.clone();
        }
    }
    panic!("each page shows something else: {shown:?}")
}

/// Serves a busy server, and counts the snapshots taken.
fn counted() -> (ServedExporter, Arc<AtomicUsize>) {
    let taken = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&taken);
    (ServedExporter::of(move || busy(counter.fetch_add(1, Ordering::SeqCst) as u64)), taken)
}

#[test]
fn open_pages_share_a_snapshot_a_second() {
    let (server, taken) = counted();
    let mut pages: Vec<Page> = (0..3).map(|_| Page::open(&server.address).0).collect();
    let began = Instant::now();
    assert!(pages[0].event().unwrap().contains("since attach"));
    let shared = shared_event(&mut pages);
    assert!(shared.contains("in the last "), "{shared}");
    let (taken, seconds) = (taken.load(Ordering::SeqCst) as u64, began.elapsed().as_secs());
    assert!(taken <= seconds + 2, "{taken} snapshots in {seconds} s");
}

#[test]
fn closed_pages_cost_no_snapshots() {
    let (server, taken) = counted();
    let (mut page, _) = Page::open(&server.address);
    page.event().unwrap();
    drop(page);
    // The next event shows that nobody is there.
    thread::sleep(Duration::from_millis(2500));
    let before = taken.load(Ordering::SeqCst);
    thread::sleep(Duration::from_millis(2500));
    assert_eq!(taken.load(Ordering::SeqCst), before);
}

#[test]
fn pages_beyond_the_limit_are_turned_away_and_scrapes_are_not() {
    let (server, _) = counted();
    let mut pages: Vec<(Page, String)> = (0..PAGES).map(|_| Page::open(&server.address)).collect();
    assert!(pages.iter().all(|(_, status)| status.contains("200")));
    assert!(Page::open(&server.address).1.contains("503"));
    assert!(pages.iter_mut().all(|(page, _)| page.event().is_some()));
    assert!(get(&server.address, "/metrics").unwrap().head.contains("200"));
    assert!(get(&server.address, "/healthz").unwrap().head.contains("200"));
    pages.pop();
    let is_served = |_| {
        thread::sleep(Duration::from_millis(100));
        Page::open(&server.address).1.contains("200")
    };
    assert!((0..50).any(is_served), "a closed page makes room");
}

#[test]
fn a_page_that_does_not_read_is_closed() {
    let (server, _) = counted();
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let address: std::net::SocketAddr = server.address.parse().unwrap();
    socket.connect(&address.into()).unwrap();
    let mut stream = TcpStream::from(socket);
    write!(stream, "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    thread::sleep(Duration::from_secs(16));
    // What was under way is still there to read, and then nothing more comes.
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let began = Instant::now();
    while !matches!(stream.read(&mut [0; 65536]), Ok(0) | Err(_)) {
        assert!(began.elapsed() < Duration::from_secs(4), "it goes on");
    }
    assert!(began.elapsed() < Duration::from_secs(4), "it is not closed");
}

#[test]
fn open_pages_do_not_delay_the_stop() {
    let stop = || {
        let (server, _) = counted();
        let (mut page, _) = Page::open(&server.address);
        page.event().unwrap();
        let took = server.stop();
        assert!(page.event().is_none(), "the events end");
        took
    };
    // The shortest of three, because other tests run at the same time.
    let took = (0..3).map(|_| stop()).min().unwrap();
    assert!(took < Duration::from_millis(300), "{took:?}");
}

#[test]
fn what_is_not_measured_is_absent_with_the_reason() {
    let page = |snapshot: fn() -> Snapshot| {
        let server = ServedExporter::of(snapshot);
        get(&server.address, "/").unwrap().body
    };
    let nothing = page(|| Snapshot {
        elapsed: Duration::from_secs(9),
        server_cpu_ns: Some(9_000_000),
        not_measured: vec!["CPU time is not sampled: <perf> is not permitted".to_owned()],
        ..empty()
    });
    for text in [
        "Not measured: CPU time is not sampled: &lt;perf&gt; is not permitted",
        "No thread has waited for a latch so far.",
        "No wait for a page was seen so far.",
        "No CPU time was sampled so far.",
        "The server is idle: it used 0.10% of a CPU since attach.",
    ] {
        assert!(nothing.contains(text), "{text}\n{nothing}");
    }
    assert!(!nothing.contains("statements/s") && !nothing.contains("is estimated"), "{nothing}");
    let locked = page(|| Snapshot { locks: locks_waited_for(4, 2), ..busy(5) });
    assert!(locked.contains("Waits for other transactions: row lock"), "{locked}");
    let resting = page(|| Snapshot { locks: locks::Figures { rests: true, ..locks::Figures::default() }, ..busy(5) });
    assert!(resting.contains("Waits for row locks and metadata locks are not measured for some minutes"), "{resting}");
    let busy = page(|| busy(5));
    let place = "sbtest/<wbr>sbtest1.<wbr>k_<wbr>1<wbr>";
    for text in ["statements/s", "<dd>2.40</dd>", "<dd>~0.36%</dd>", place, "spin loops"] {
        assert!(busy.contains(text), "{text}\n{busy}");
    }
    assert!(busy.contains("Events not counted: 18 map_full.") && !busy.contains("is idle"), "{busy}");
}

#[test]
fn the_page_may_run_and_load_only_what_is_in_it() {
    let server = ServedExporter::of(|| busy(5));
    let head = get(&server.address, "/").unwrap().head;
    let policy = head.lines().find_map(|line| line.strip_prefix("content-security-policy: ")).unwrap();
    assert!(policy.starts_with("default-src 'none'; script-src 'sha256-") && !policy.contains("unsafe"), "{policy}");
}

/// Asks with these headers only, and returns the head and the body.
fn get_with(server: &ServedExporter, path: &str, headers: &str) -> (String, Vec<u8>) {
    let mut stream = TcpStream::connect(&server.address).unwrap();
    write!(stream, "GET {path} HTTP/1.0\r\n{headers}\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n").expect("the end of the head");
    (String::from_utf8(answer[..end].to_vec()).unwrap(), answer[end + 4..].to_vec())
}

#[test]
fn only_clients_that_accept_gzip_get_it() {
    let server = ServedExporter::of(|| busy(5));
    for (path, content_type) in [("/metrics", "text/plain"), ("/", "text/html")] {
        let (head, gzip) = get_with(&server, path, "Host: localhost\r\nAccept-Encoding: gzip\r\n");
        assert!(head.contains("content-encoding: gzip") && head.contains("vary: accept-encoding"), "{head}");
        assert!(head.contains(content_type), "{head}");
        let mut unpacked = Vec::new();
        flate2::read::GzDecoder::new(&gzip[..]).read_to_end(&mut unpacked).unwrap();
        let (head, plain) = get_with(&server, path, "Host: localhost\r\n");
        assert!(!head.contains("content-encoding") && head.contains("vary: accept-encoding"), "{head}");
        assert!(unpacked == plain, "{path} differs");
        println!("{path}: {} bytes, {} with gzip", plain.len(), gzip.len());
    }
}

/// A web page's own name may stand for this host's address, but its requests have the page's name.
#[test]
fn a_request_for_another_host_is_turned_away() {
    let server = ServedExporter::of(|| busy(5));
    let status = |request: &str| {
        let mut stream = TcpStream::connect(&server.address).unwrap();
        write!(stream, "{request}\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.contains(" 200 ") || !answer.contains("armtrace_"), "{answer}");
        (answer[9..12].to_owned(), answer)
    };
    for path in ["/metrics", "/", "/events", "/healthz"] {
        let (code, answer) = status(&format!("GET {path} HTTP/1.1\r\nHost: evil.example:9435"));
        assert!(code == "421" && answer.contains("start armtrace with --allowed-hosts evil.example"), "{answer}");
    }
    assert_eq!(status(&format!("GET /metrics HTTP/1.1\r\nHost: {}", server.address)).0, "200");
    assert_eq!(status("GET /metrics HTTP/1.1\r\nHost: localhost").0, "200");
    assert_eq!(status("GET /metrics HTTP/1.0").0, "200");
    assert_eq!(status("GET /metrics HTTP/1.1").0, "400");
    assert_eq!(status("GET /metrics HTTP/1.1\r\nHost: localhost\r\nHost: evil.example").0, "400");
    assert_eq!(status("GET http://evil.example/metrics HTTP/1.1\r\nHost: localhost").0, "421");
}

#[test]
fn a_name_that_the_user_allows_is_served() {
    let hosts = Hosts::allowing(&["metrics.example".to_owned()]);
    let server = ServedExporter::with(Policy { hosts, ..Policy::default() }, || busy(5));
    let head = |host: &str| get_with(&server, "/metrics", &format!("Host: {host}\r\n")).0;
    assert!(head("metrics.example:9435").contains(" 200 ") && head("other.example").contains(" 421 "));
}

#[test]
fn one_of_several_servers_can_be_scraped_alone() {
    let name = "/srv/my data&target=b";
    let server = ServedExporter::serving(Policy::default(), of_many(vec![(name, busy(5)), ("b", busy(7))]));
    let scrape = |target: &str| get(&server.address, &format!("/metrics?target={}", url_encode(target))).unwrap();
    let all = get(&server.address, "/metrics").unwrap().body;
    for target in [name, "b", "ended"] {
        let label = format!("target=\"{target}\"");
        let own: BTreeSet<&str> = all.lines().filter(|line| line.contains(&label)).collect();
        let alone = scrape(target).body;
        let alone: BTreeSet<&str> = alone.lines().filter(|line| !line.starts_with('#')).collect();
        let difference: Vec<_> = alone.symmetric_difference(&own).collect();
        assert!(difference.is_empty() && !own.is_empty(), "{target}: {difference:?}");
    }
    let unknown = scrape("c");
    assert!(unknown.head.starts_with("HTTP/1.0 404 ") && unknown.body.contains("no server has this name"));
    let only = ServedExporter::of(|| busy(5));
    let of_one = |path| get(&only.address, path).unwrap().body.lines().count();
    assert_eq!(of_one("/metrics?target=b"), of_one("/metrics"), "where there is one, it has no name");
}
