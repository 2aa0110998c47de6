//! Comparisons of servers whose metrics a fake API has, and what is said of APIs that are none.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use serde_json::{json, Value};

use super::*;
use crate::recording::compare::{Claim, Comparison, Options, Per, Text};

const LIMITS: Limits = Limits { time: Duration::from_millis(500), bytes: 1 << 20 };
/// Scrapes are 15 s apart in an hour that begins then.
const BEGIN: i64 = 1_795_780_800;
const HOUR: i64 = 3600;
const EVERY: i64 = 15;

/// Serves requests, whose path and query are decoded, and returns the URL.
fn serve(answer: impl Fn(&str) -> (u16, String) + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let answer = Arc::new(answer);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let answer = Arc::clone(&answer);
            std::thread::spawn(move || {
                let mut request = vec![0; 16 << 10];
                let length = stream.read(&mut request).unwrap_or(0);
                let request = String::from_utf8_lossy(&request[..length]).into_owned();
                let path = request.split(' ').nth(1).unwrap_or_default();
                let (status, body) = answer(&percent_decode_str(path).decode_utf8_lossy());
                let head = format!("HTTP/1.1 {status} X\r\nConnection: close\r\nLocation: /login\r\n");
                _ = write!(stream, "{head}Content-Length: {}\r\n\r\n{body}", body.len());
            });
        }
    });
    url
}

fn hour(servers: &str) -> Selection {
    let servers = servers.parse().unwrap();
    Selection { servers, range: Range { from_ms: BEGIN * 1000, to_ms: (BEGIN + HOUR) * 1000 } }
}

fn sides(url: &str, a: &Selection, b: &Selection) -> Result<[Side; 2], FleetError> {
    Prometheus::new(url, HttpConfig::default(), LIMITS)?.sides([a, b])
}

/// Returns what is said of a URL, or of what is behind it.
fn error(url: &str) -> String {
    let all = hour("");
    sides(url, &all, &all).map(|_| ()).expect_err(url).to_string()
}

#[test]
fn what_is_no_answer_of_the_api_is_one_clear_message() {
    let failed = r#"{"status": "error", "errorType": "execution", "error": "too many samples"}"#;
    let vector = r#"{"status": "success", "data": {"resultType": "vector", "result": []}}"#;
    let partial = r#"{"status": "success", "isPartial": true, "data": {"resultType": "matrix", "result": []}}"#;
    let empty = r#"{"status": "success", "data": {"resultType": "matrix", "result": []}}"#;
    let large = "x".repeat(2 << 20);
    for (status, body, words) in [
        (200, "<!DOCTYPE html><form>Log in</form>", "with a web page, which is not the HTTP API"),
        (200, "{\"version\": 1}", "with other JSON"),
        (200, "", "with nothing"),
        (200, vector, "with something else than series"),
        (200, partial, "is incomplete"),
        (200, large.as_str(), "larger than 1 MiB"),
        (200, empty, "no server in Prometheus has any labels from 2026-11-27T12:00:00Z to 2026-11-27T13:00:00Z"),
        (302, "", "with"),
        (401, "Unauthorized", "--http-config"),
        (403, failed, "refuses the request with status 403"),
        (404, "404 page not found", "with status 404"),
        (422, failed, "it says: too many samples"),
        (503, "busy", "with status 503"),
    ] {
        let body = body.to_owned();
        let text = error(&serve(
            move |path| if path == "/login" { (200, "<html>".to_owned()) } else { (status, body.clone()) },
        ));
        assert!(text.contains(words) && text.lines().count() == 2 && text.contains("\nnext: "), "{status}: {text}");
    }
}

#[test]
fn an_api_that_answers_late_or_not_at_all_is_given_up() {
    let late = error(&serve(|_| {
        std::thread::sleep(Duration::from_secs(5));
        (200, String::new())
    }));
    assert!(
        late.contains("/api/v1/query: no answer within 500ms\nnext: try it again, with a shorter --range"),
        "{late}"
    );
    let closed = error("http://127.0.0.1:1");
    assert!(closed.contains("http://127.0.0.1:1/api/v1/query: ") && closed.contains("can be reached"), "{closed}");
}

#[test]
fn urls_are_checked_and_passwords_in_them_are_not_repeated() {
    for (url, words) in [
        ("prometheus:9090", "does not begin with http"),
        ("ftp://prometheus", "does not begin with http"),
        ("http://prometheus/graph?g0=up", "it has a query"),
        ("http:// x", "it is no URL"),
        ("http://me:s3cret@prometheus:9090/p/", "--prometheus http://…@prometheus:9090/p: others see a password"),
    ] {
        let text = error(url);
        assert!(text.contains(words) && !text.contains("s3cret"), "{url}: {text}");
    }
}

/// A server: its counters grow by these amounts each second.
#[derive(Clone, Default)]
struct Server {
    instance: &'static str,
    arch: &'static str,
    /// Metrics with a further label, and what they grow by.
    counters: Vec<(&'static str, (&'static str, &'static str), f64)>,
    /// The seconds of the hour in which it is not scraped.
    gap: std::ops::Range<i64>,
    /// The second in which it is restarted, if it is.
    restart: Option<i64>,
    /// The second in which it begins to wait.
    waits_from: i64,
    /// The second in which its series of waits end, if they do.
    waits_to: Option<i64>,
}

impl Server {
    fn new(instance: &'static str, arch: &'static str, wait: f64, statements: f64) -> Server {
        let latch = ("latch", "wait/synch/mutex/innodb/trx_mutex");
        let counters = vec![
            ("armtrace_statements_total", ("", ""), statements),
            ("armtrace_latch_wait_seconds_sum", latch, wait),
            ("armtrace_latch_wait_seconds_count", latch, 100.0),
            ("armtrace_latch_sleep_seconds_total", latch, wait / 4.0),
            ("armtrace_cpu_seconds_total", ("class", "spin"), 0.5),
            ("armtrace_target_cpu_seconds_total", ("", ""), 0.75),
            ("armtrace_target_cpus", ("", ""), if arch == "x86_64" { 4.0 } else { 8.0 }),
            ("armtrace_target_cpu_max_hertz", ("", ""), 3e9),
            ("armtrace_target_up", ("", ""), 1.0),
        ];
        Server { instance, arch, counters, waits_from: -100_000, ..Server::default() }
    }

    /// Returns the time of the last scrape up to a second of the hour, if it is fresh.
    fn scrape(&self, second: i64) -> Option<i64> {
        // Scrapes are at 7, 22, … seconds.
        let last = (second - 7).div_euclid(EVERY) * EVERY + 7;
        (!self.gap.contains(&last) && last > -60).then_some(last)
    }

    fn value(&self, metric: &str, rate: f64, scrape: i64) -> Option<f64> {
        if ["_up", "_cpus", "_hertz"].iter().any(|end| metric.ends_with(end)) {
            return Some(rate);
        }
        let began = self.restart.filter(|restart| scrape >= *restart).unwrap_or(-100_000);
        let began = if metric.contains("_latch_") { began.max(self.waits_from) } else { began };
        let is_over = metric.contains("_latch_") && self.waits_to.is_some_and(|end| scrape > end);
        (!is_over && (scrape > began || !metric.contains("_latch_"))).then_some(rate * (scrape - began) as f64)
    }

    fn labels(&self, metric: &str, (label, value): (&str, &str)) -> Value {
        let mut labels = json!({"__name__": metric, "instance": self.instance, "job": "armtrace"});
        if metric == labels::INFO {
            labels["arch"] = self.arch.into();
            labels["version"] = "9.7.4".into();
            labels["flavor"] = "mysql".into();
        }
        if !label.is_empty() {
            labels[label] = value.into();
        }
        labels
    }
}

/// Returns the series of a server's counters that are asked for, at these seconds of the hour.
fn counters(server: &Server, query: &str, ends: &[i64]) -> Vec<Value> {
    let asked = server.counters.iter().filter(|(metric, ..)| query.contains(&format!("{metric} and")));
    let series = asked.map(|(metric, label, rate)| {
        let at = |end: &i64| Some((BEGIN + end, server.value(metric, *rate, server.scrape(*end)?)?.to_string()));
        let values: Vec<_> = ends.iter().filter_map(at).collect();
        json!({"metric": server.labels(metric, *label), "values": values})
    });
    series.collect()
}

/// Returns the series that says that there is a server, with all its scrapes.
fn info(server: &Server) -> Value {
    let scrapes = (-50..HOUR).filter(|second| server.scrape(*second) == Some(*second));
    let values: Vec<_> = scrapes.map(|second| (BEGIN + second, "1")).collect();
    json!({"metric": server.labels(labels::INFO, ("", "")), "values": values})
}

/// Serves these servers as Prometheus does.
fn fleet(servers: Vec<Server>) -> String {
    serve(move |path| {
        let parameter = |name: &str| path.split(['?', '&']).find_map(|part| part.strip_prefix(&format!("{name}=")));
        let query = parameter("query").unwrap();
        let chosen = servers.iter().filter(|s| !query.contains("arch=") || query.contains(&format!("\"{}\"", s.arch)));
        let number = |name: &str| parameter(name).unwrap().parse::<f64>().unwrap() as i64;
        let series: Vec<Value> = if path.starts_with("/api/v1/query_range") {
            let ends = (number("start")..=number("end")).step_by(number("step") as usize);
            let ends: Vec<i64> = ends.map(|end| end - BEGIN).collect();
            chosen.flat_map(|server| counters(server, query, &ends)).collect()
        } else {
            chosen.map(info).collect()
        };
        (200, json!({"status": "success", "data": {"resultType": "matrix", "result": series}}).to_string())
    })
}

fn compared(servers: Vec<Server>) -> Comparison {
    let [a, b] = sides(&fleet(servers), &hour("arch=\"x86_64\""), &hour("arch=\"aarch64\"")).unwrap();
    Comparison::new(&a, &b, Options { ghz: [None, Some(1.5)], price: [Some(2.0), Some(1.0)], per: None })
}

fn near(a: f64, b: f64) -> bool {
    (a / b - 1.0).abs() < 1e-6
}

#[test]
fn servers_are_compared_as_recordings_are() {
    let comparison = compared(vec![
        Server::new("x1", "x86_64", 0.9, 1000.0),
        Server::new("x2", "x86_64", 1.1, 1000.0),
        Server::new("a1", "aarch64", 9.0, 2000.0),
        Server::new("a2", "aarch64", 11.0, 2000.0),
    ]);
    assert_eq!((comparison.per, comparison.a.cores, comparison.b.cores), (Per::Query, Some(4.0), Some(8.0)));
    let throughput = comparison.throughput.unwrap();
    assert!(near(throughput.a, 1000.0) && near(throughput.b, 2000.0), "{throughput:?}");
    let all = |per| *comparison.all.wait(per).unwrap();
    // A server of A waits for 1 s each second and 1,000 statements, one of B for 10 s each second.
    assert!(near(all(Per::Second).a, 1.0) && near(all(Per::Second).b, 10.0) && near(all(Per::Query).b, 5.0));
    assert!(near(all(Per::Core).a, 0.25) && near(all(Per::Core).b, 1.25));
    let [row] = &comparison.changes[..] else { panic!("{:?}", comparison.unclear) };
    assert!(row.claim == Claim::More && near(row.awake[0].unwrap(), 0.75), "{row:?}");
    assert!(near(comparison.at_one_clock.unwrap().a_scaled, 500.0));
    assert!(near(comparison.cost_performance.unwrap().per_price[1], 2000.0));
    assert!(near(comparison.server_cpu.unwrap().a, 0.75) && comparison.cpu[0].class == "spin");
    // By hand, as in the test of intervals over hosts: half the width is 4.303 √0.02 of the logarithm.
    let [low, high] = all(Per::Query).ratio.unwrap().interval.unwrap();
    let half = 4.303 * 0.02_f64.sqrt();
    assert!(near(low, 5.0 * (-half).exp()) && near(high, 5.0 * half.exp()), "{low} to {high}");
    let fleet = comparison.a.fleet.unwrap();
    assert_eq!((fleet.servers, fleet.hosts, fleet.windows, fleet.windows_left_out), (2, 2, 120, 0));
    let text = Text(&comparison).to_string();
    let title = "A  arch=\"x86_64\" · 2 servers on 2 hosts · mysql 9.7.4 · x86_64 · 3600 s\n";
    assert!(text.starts_with(title), "{text}");
    assert!(comparison.remarks.is_empty(), "{:?}", comparison.remarks);
}

#[test]
fn gaps_and_restarts_are_left_out_and_counted() {
    let restarted = Server { restart: Some(1800), ..Server::new("x1", "x86_64", 1.0, 1000.0) };
    // 600 s without scrapes, and 1,200 s before the first.
    let gap = Server { gap: 900..1500, ..Server::new("x2", "x86_64", 1.0, 1000.0) };
    let late = Server { gap: -60..1200, ..Server::new("x3", "x86_64", 1.0, 1000.0) };
    let comparison = compared(vec![restarted, gap, late, Server::new("a1", "aarch64", 1.0, 1000.0)]);
    let fleet = comparison.a.fleet.unwrap();
    assert!((180 - 40..180 - 28).contains(&fleet.windows), "{fleet:?}");
    assert_eq!(fleet.windows + fleet.windows_left_out, 180);
    assert!(near(comparison.throughput.unwrap().a, 1000.0), "nothing is extrapolated: {:?}", comparison.throughput);
    assert!(near(comparison.all.wait(Per::Second).unwrap().a, 1.0), "{:?}", comparison.all);
    let remarks = comparison.remarks.join("\n");
    assert!(remarks.contains(&format!("A: {} of 180 windows are left out", fleet.windows_left_out)), "{remarks}");
    assert!(remarks.contains("over time alone, because B has one host"), "{remarks}");
}

#[test]
fn a_series_that_begins_counts_from_0() {
    let begins = Server { waits_from: 1800, ..Server::new("x1", "x86_64", 1.0, 1000.0) };
    let comparison = compared(vec![begins, Server::new("a1", "aarch64", 1.0, 1000.0)]);
    // Scrapes are from 7 s before the hour to 8 s before its end, and 1,792 s of waiting are in them.
    assert!(near(comparison.all.wait(Per::Second).unwrap().a, 1792.0 / 3600.0), "{:?}", comparison.all);
}

/// A latch that has become rare is counted in the others: that is no restart.
#[test]
fn a_series_that_ends_leaves_no_gap() {
    let ends = Server { waits_to: Some(1800), ..Server::new("x1", "x86_64", 1.0, 1000.0) };
    let comparison = compared(vec![ends, Server::new("a1", "aarch64", 1.0, 1000.0)]);
    assert_eq!(comparison.a.fleet.unwrap().windows_left_out, 0);
    // From 7 s before the hour to the last end of a window with a value.
    assert!(near(comparison.all.wait(Per::Second).unwrap().a, 1800.0 / 3600.0), "{:?}", comparison.all);
}

/// A latch with no series of its own may be among the others of that side.
#[test]
fn a_latch_that_may_be_among_others_is_not_called_the_other_sides() {
    let with = |latch: &'static str| {
        let mut server = Server::new("x1", "x86_64", 1.0, 1000.0);
        server.counters.iter_mut().filter(|(_, label, _)| label.0 == "latch").for_each(|(_, label, _)| label.1 = latch);
        server
    };
    let changes = |latch| compared(vec![with(latch), Server::new("a1", "aarch64", 1.0, 1000.0)]).changes;
    assert_eq!(changes("wait/synch/mutex/innodb/lock_mutex").len(), 2);
    let others = changes("other");
    assert!(others.iter().all(|row| row.claim != Claim::OnlyB), "{others:?}");
}

#[test]
fn one_server_is_compared_before_and_after() {
    let server = Server { restart: Some(1800), ..Server::new("x1", "x86_64", 1.0, 1000.0) };
    let part = |from: i64, to: i64| Selection {
        servers: "".parse().unwrap(),
        range: Range { from_ms: (BEGIN + from) * 1000, to_ms: (BEGIN + to) * 1000 },
    };
    let url = fleet(vec![server]);
    let [a, b] = sides(&url, &part(0, 1700), &part(1900, 3600)).unwrap();
    let comparison = Comparison::new(&a, &b, Options::default());
    assert!(near(comparison.all.wait(Per::Query).unwrap().ratio.unwrap().value, 1.0));
    assert!(comparison.changes.is_empty() && comparison.remarks[0].contains("A and B have one host"));
    // Too few windows for an interval, and too short for one.
    let [a, b] = sides(&url, &part(0, 120), &part(1900, 2020)).unwrap();
    let comparison = Comparison::new(&a, &b, Options::default());
    assert!(comparison.remarks[0].contains("takes at least 10 windows, or 2 hosts"), "{:?}", comparison.remarks);
    let short = sides(&url, &part(0, 20), &part(0, 20)).map(|_| ()).unwrap_err().to_string();
    assert!(short.contains("are scraped every 15s, so it has to be at least 30s"), "{short}");
}
