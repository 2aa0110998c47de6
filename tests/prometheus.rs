//! The exporter's metrics, the dashboards and the rules, with hand-built snapshots and a real Prometheus.

use std::fs;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use armtrace::export::{Exporter, Policy, Web};
use armtrace::fleet::{HttpConfig, Limits, Range, Selection};
use armtrace::measure::checksum::Implementation;
use armtrace::measure::Snapshot;
use armtrace::model::{CpuClass, BUCKET_BOUNDS_NS};
use armtrace::recording::compare::{Comparison, Options, Per, Side};
use armtrace::recording::{Ending, Recorder, Recording, Replay, Server, Start};
use lab::dashboard::{run, Query, FILES};
use lab::exporter::{of_many, ServedExporter};
use lab::prometheus::{promtool, promtool_complaints, Pace, Prometheus, VictoriaMetrics, QUICK};
use lab::snapshots::{busy, checksum, cpu, empty};
use lab::tls::Authority;
use lab::{repository, rules};

/// Returns one scrape.
fn metrics(snapshot: Snapshot) -> String {
    Exporter::new(Arc::new(move || snapshot.clone())).unwrap().metrics().unwrap()
}

#[test]
fn promtool_has_no_complaints() {
    assert_eq!(promtool_complaints(&metrics(busy(5))), "");
    assert_eq!(promtool_complaints(&metrics(empty())), "");
}

#[test]
fn promtool_complains_about_bad_metrics() {
    assert_ne!(promtool_complaints("# TYPE x_total gauge\nx_total 1\n"), "");
}

#[test]
fn promtool_accepts_the_rules() {
    for name in rules::FILES {
        let file = format!("dashboards/rules/{name}.yml");
        assert_eq!(promtool(&["check", "rules", "--lint-fatal", &file]), Ok(()));
    }
}

#[test]
fn promtool_accepts_the_example_of_a_configuration() {
    let example = fs::read_to_string(repository("dashboards/provisioning/prometheus/prometheus.yml")).unwrap();
    let installed = ["/etc/prometheus/rules/armtrace/", "/etc/prometheus/targets/armtrace/"];
    let here = ["dashboards/rules/", "dashboards/provisioning/prometheus/targets/"].map(repository);
    let config = installed.iter().zip(here).fold(example, |config, (from, to)| {
        assert!(config.contains(from));
        config.replace(from, &format!("{}/", to.display()))
    });
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, config).unwrap();
    assert_eq!(promtool(&["check", "config", "--lint-fatal", &file.path().display().to_string()]), Ok(()));
}

/// Each alert fires where it must, and is silent where it must be.
#[test]
fn alerts_fire_when_they_should() {
    let tests = fs::read_to_string(repository("tests/rules/alerts.yml")).unwrap();
    for rule in rules::all().iter().filter(|rule| rule.is_alert) {
        let about = |what: &str| tests.matches(&format!("alertname: {}, {what}", rule.name)).count();
        assert!(about("eval_time") >= 3, "{} is not tested: before it fires, when it does, and on nothing", rule.name);
        assert!(tests.contains("exp_alerts"), "{} never fires", rule.name);
    }
    assert_eq!(promtool(&["test", "rules", "tests/rules/alerts.yml", "tests/rules/recording.yml"]), Ok(()));
}

/// Serves a busy server of this architecture, whose counters grow with time. It computes a checksum in software.
fn server(arch: &'static str) -> ServedExporter {
    let began = Instant::now();
    ServedExporter::of(move || {
        let n = began.elapsed().as_millis() as u64 / 100;
        let mut snapshot: Snapshot = busy(n);
        snapshot.target.arch = arch.to_string();
        snapshot.checksum.chosen.push(checksum("software::crc32", Implementation::Software));
        snapshot.cpu.time.push(cpu(CpuClass::Checksum, "software::crc32", 50_000_000 * n));
        snapshot
    })
}

#[test]
fn a_real_prometheus_answers_every_query() {
    let servers = [server("aarch64"), server("x86_64")];
    // What only one with several servers has.
    let many = ServedExporter::serving(Policy::default(), of_many(Vec::new()));
    let scraped: Vec<String> = servers.iter().chain([&many]).map(|server| server.address.clone()).collect();
    let prometheus = Prometheus::scraping(&scraped);
    prometheus.wait_for_rates(scraped.len());
    let has_both = |query: &Query, series: usize| series.is_multiple_of(2) || !query.promql.contains("by (arch");
    for name in FILES {
        let file = repository(&format!("dashboards/{name}"));
        for (query, series) in run(&prometheus, &file, |query, series| series > 0 && has_both(query, series)) {
            let series = series.unwrap_or_else(|error| panic!("{name}: {}: {error}", query.owner));
            assert!(series > 0, "{name}: {} returns nothing: {}", query.owner, query.promql);
            assert!(
                has_both(&query, series),
                "{name}: {} has {series} series, which is not as many for each architecture",
                query.owner
            );
        }
    }
    for rule in rules::all().iter().filter(|rule| !rule.is_alert) {
        // A rule is evaluated at its own time, so what it says of the server scraped last may be one evaluation away.
        let series = || prometheus.query(&rule.name).unwrap_or_else(|error| panic!("{}: {error}", rule.name)).len();
        prometheus.wait_for(&format!("to evaluate {}", rule.name), || series() >= servers.len());
    }
}

/// Returns two minutes of a server that waits this many times as much as a busy one, with these statements a second.
fn recorded(arch: &str, waits: u64, statements: u64) -> Recording {
    let server = Server { flavor: "mysql".to_owned(), arch: arch.to_owned(), ..Server::default() };
    let start = Start {
        server,
        bounds_ns: BUCKET_BOUNDS_NS.to_vec(),
        sleeps_seen: true,
        reacquires_seen: true,
        ..Start::default()
    };
    let mut bytes = Vec::new();
    let mut recorder = Recorder::begin(&mut bytes, &start, Some(0)).unwrap();
    // A busy server begins as if a tick were over.
    let at = |second: u64| Snapshot { elapsed: Duration::from_secs(second), ..busy(waits * second - 1) };
    (1..=120).for_each(|second| recorder.second(&at(second), Some(statements * second)).unwrap());
    recorder.end(Ending::Complete, &at(120)).unwrap();
    Recording::read_from(&bytes[..]).unwrap()
}

/// Serves a recording as `armtrace replay` does.
fn replayed(recording: &Recording) -> ServedExporter {
    let replay = Mutex::new(Replay::new(recording.clone(), "x.rec".to_owned(), false));
    let began = Instant::now();
    ServedExporter::of(move || {
        let mut replay = replay.lock().unwrap();
        replay.advance_to(began.elapsed());
        replay.snapshot()
    })
}

/// Compares the servers of both architectures in this many seconds up to now, but one that is still on its way.
fn compared(url: &str, seconds: u64) -> Comparison {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64;
    let range = Range::before(now - 1500, Duration::from_secs(seconds));
    let of = |arch: &str| Selection { servers: format!("arch=\"{arch}\"").parse().unwrap(), range };
    let prometheus = armtrace::fleet::Prometheus::new(url, HttpConfig::default(), Limits::default()).unwrap();
    let [a, b] = prometheus.sides([&of("x86_64"), &of("aarch64")]).map_err(|error| error.to_string()).unwrap();
    Comparison::new(&a, &b, Options::default())
}

/// Checks that two comparisons have the same figures. A replay goes on once a second, and a scrape may get figures that
/// another got up to a second ago. So both ends of the time that was scraped are off by two seconds at most, and what
/// is per second by two seconds of that time. Statements and waits are off together, so what is per statement is not.
fn agree(from: &str, scraped: &Comparison, recorded: &Comparison, seconds: u64) {
    let rows = |comparison: &Comparison| {
        let rows = comparison.changes.iter().chain(&comparison.unclear).chain(&comparison.reacquires);
        rows.chain([&comparison.all]).cloned().collect::<Vec<_>>()
    };
    let near = |what: &str, a: f64, b: f64, tolerance: f64| {
        println!("{from}: {what}: {a:.6} scraped, {b:.6} recorded");
        assert!((a / b - 1.0).abs() <= tolerance, "{from}: {what}: {a} scraped, {b} recorded");
    };
    let of_time = 2.0 / (seconds - 2) as f64;
    let throughput = [scraped, recorded].map(|comparison| comparison.throughput.unwrap());
    near("statements/s of A", throughput[0].a, throughput[1].a, of_time);
    near("statements/s of B", throughput[0].b, throughput[1].b, of_time);
    let cpu = [scraped, recorded].map(|comparison| comparison.cpu[0].used.cpu(Per::Query).copied().unwrap());
    near("CPU time of a class, B/A", cpu[0].ratio.unwrap().value, cpu[1].ratio.unwrap().value, 1e-6);
    let (ours, theirs) = (rows(scraped), rows(recorded));
    assert_eq!(ours.len(), theirs.len(), "{from}: {ours:?}");
    for row in &theirs {
        // The only latch with too small a share for a series of its own.
        let own =
            ours.iter().find(|own| own.latch == row.latch).or_else(|| ours.iter().find(|own| own.latch == "other"));
        let own = own.unwrap_or_else(|| panic!("{from}: {}", row.latch));
        let [a, b] = [own, row].map(|row| *row.wait(Per::Query).unwrap());
        near(&row.latch, a.a, b.a, 1e-6);
        near(&row.latch, a.b, b.b, 1e-6);
        assert!(a.ratio.unwrap().interval.is_some(), "{from}: {}: {a:?}", row.latch);
        let awake = own.awake.iter().flatten().zip(row.awake.iter().flatten());
        awake.for_each(|(a, b)| near("share awake", *a, *b, 1e-6));
    }
}

/// What the API of each has of two replays is compared as the recordings are.
#[test]
fn what_prometheus_and_victoria_metrics_have_is_compared_as_recordings_are() {
    const SECONDS: u64 = 24;
    let recordings = [recorded("x86_64", 1, 100_000), recorded("aarch64", 3, 50_000)];
    let servers = recordings.each_ref().map(replayed);
    let targets = servers.each_ref().map(|server| server.address.clone());
    let prometheus = Prometheus::scraping_at(Pace { scrape_interval: "1s", rate_interval: "5s" }, &targets);
    let victoria = VictoriaMetrics::scraping(&targets);
    prometheus.wait_for_rates(servers.len());
    std::thread::sleep(Duration::from_secs(SECONDS));
    let [a, b] = recordings.each_ref().map(|recording| Side::of_recording("x.rec", recording, None));
    let recorded = Comparison::new(&a, &b, Options::default());
    for (from, url) in [("Prometheus", prometheus.url()), ("VictoriaMetrics", victoria.url())] {
        let scraped = compared(&url, SECONDS);
        let fleet = scraped.a.fleet.unwrap();
        assert!(fleet.windows >= 10, "{from}: {fleet:?}");
        agree(from, &scraped, &recorded, SECONDS);
    }
}

/// Prometheus shows a certificate that the file's authority issued, and a password.
#[test]
fn a_real_prometheus_scrapes_over_mutual_tls_with_a_password() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let (server, client) = (authority.issue("127.0.0.1"), authority.issue("prometheus.example"));
    let hash = bcrypt::hash("secret", 10).unwrap();
    let web = format!(
        "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n  client_ca_file: ca.crt\n  \
         client_auth_type: RequireAndVerifyClientCert\n  client_allowed_sans: [prometheus.example]\n\
         basic_auth_users:\n  prometheus: {hash}\n"
    );
    for (name, text) in [
        ("ca.crt", &authority.certificate()),
        ("server.crt", &server.certificate),
        ("server.key", &server.key),
        ("client.crt", &client.certificate),
        ("client.key", &client.key),
        ("web.yml", &web),
    ] {
        fs::write(folder.path().join(name), text).unwrap();
    }
    let web = Web::open(&folder.path().join("web.yml")).unwrap();
    let exporter = ServedExporter::with(Policy { web: Some(web), ..Policy::default() }, || busy(5));
    let path = |name: &str| folder.path().join(name).display().to_string();
    let secured = |password: &str| {
        format!(
            ", scheme: https, tls_config: {{ca_file: {}, cert_file: {}, key_file: {}}}, \
             basic_auth: {{username: prometheus, password: {password}}}",
            path("ca.crt"),
            path("client.crt"),
            path("client.key")
        )
    };
    let targets = std::slice::from_ref(&exporter.address);
    let prometheus = Prometheus::scraping_with(QUICK, targets, &secured("secret"));
    prometheus.wait_for_rates(1);
    let strangers = [secured("wrong"), String::new()].map(|more| Prometheus::scraping_with(QUICK, targets, &more));
    for stranger in strangers {
        stranger.wait_for("a failed scrape", || stranger.query("up == 0").is_ok_and(|series| series.len() == 1));
    }
    assert_eq!(prometheus.query("up == 1").unwrap().len(), 1);
}
