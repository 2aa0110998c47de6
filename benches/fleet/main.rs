//! What a fleet takes of the databases behind it: recordings are served as many targets, a Prometheus in agent mode
//! scrapes them and writes to VictoriaMetrics, and vmalert evaluates the recording rules of `dashboards/rules/`. Run it
//! with `make bench-fleet`, as any user.

mod processes;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{ensure, Context, Result};
use clap::Parser;
use lab::dashboard::{self, Query};
use lab::http;
use lab::prometheus::{free_address, Pace};
use tempfile::TempDir;

use self::processes::Process;

/// The pace of a fleet, as `dashboards/provisioning/` has it.
const PACE: Pace = Pace { scrape_interval: "15s", rate_interval: "1m" };

/// The time until all targets were scraped, and the databases have what they keep for each series.
const WARM_UP: Duration = Duration::from_secs(90);

/// The time range that a dashboard shows, and the number of its points.
const RANGE_SECONDS: u64 = 300;
const POINTS: u64 = 100;

/// The longest that a query may take.
const PATIENCE: Duration = Duration::from_secs(180);

/// The longest that merging may take.
const MERGING: Duration = Duration::from_secs(120);

#[derive(Parser)]
struct Args {
    /// Recordings, which the targets take turns in
    #[arg(required = true)]
    files: Vec<PathBuf>,
    #[arg(long, default_value = "1000")]
    targets: usize,
    /// Time to measure, after all targets were scraped
    #[arg(long, default_value = "8")]
    minutes: u64,
    /// As cargo passes it
    #[arg(long, hide = true)]
    bench: bool,
}

/// Everything that runs. The databases come last, so that they end last.
struct Fleet {
    replay: Process,
    agent: Process,
    rules: Process,
    database: Process,
    _folder: TempDir,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let folder = tempfile::tempdir()?;
    let fleet = Fleet::start(&args, folder)?;
    sleep(WARM_UP);
    let targets = args.targets;
    let up = fleet.value("count(up == 1)")?;
    ensure!(up == targets as f64, "{up} of {targets} targets were scraped: {:?}", fleet.scrape_errors()?);
    let before = Counters::read(&fleet)?;
    let began = Instant::now();
    sleep(Duration::from_secs(60 * args.minutes));
    let after = Counters::read(&fleet)?;
    report(&fleet, &args, &before, &after, began.elapsed())?;
    queries(&fleet)?;
    storage(&fleet)
}

impl Fleet {
    fn start(args: &Args, folder: TempDir) -> Result<Fleet> {
        let names: Vec<String> = (0..args.targets).map(|number| format!("db{number:04}")).collect();
        let links = folder.path().join("recordings");
        fs::create_dir(&links)?;
        let mut files = Vec::new();
        for (name, file) in names.iter().zip(args.files.iter().cycle()) {
            let link = links.join(format!("{name}.rec"));
            symlink(file.canonicalize().with_context(|| file.display().to_string())?, &link)?;
            files.push(link.display().to_string());
        }
        let path = folder.path();
        let [port, store] = [free_address(), free_address()];
        let replay = Process::start(path, env!("CARGO_BIN_EXE_armtrace"), &port, |address| {
            [&["replay".to_owned(), "--loop".to_owned(), "--listen".to_owned(), address.to_owned()][..], &files]
                .concat()
        })?;
        let database = Process::start(path, "victoria-metrics", &store, |address| {
            vec![format!("-storageDataPath={}", path.join("data").display()), format!("-httpListenAddr={address}")]
        })?;
        let config = path.join("agent.yml");
        fs::write(&config, agent_config(&names, &port, &store))?;
        let agent = Process::start(path, "prometheus", &free_address(), |address| {
            vec![
                "--enable-feature=agent".to_owned(),
                format!("--config.file={}", config.display()),
                format!("--storage.agent.path={}", path.join("agent").display()),
                format!("--web.listen-address={address}"),
            ]
        })?;
        let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("dashboards/rules");
        let rules = Process::start(path, "vmalert", &free_address(), |address| {
            vec![
                format!("-rule={}", rules.join("recording.yml").display()),
                format!("-datasource.url=http://{store}"),
                format!("-remoteWrite.url=http://{store}"),
                "-disableAlertgroupLabel".to_owned(),
                format!("-httpListenAddr={address}"),
            ]
        })?;
        Ok(Fleet { replay, agent, rules, database, _folder: folder })
    }

    /// Asks VictoriaMetrics, which may have much to do.
    fn ask(&self, path: &str) -> Result<http::Answer> {
        let answer = http::get_within(PATIENCE, &self.database.address, path).with_context(|| path.to_owned())?;
        ensure!(answer.head.contains(" 200 "), "{path}: {}", answer.body);
        Ok(answer)
    }

    /// Returns what VictoriaMetrics answers to a query of one number.
    fn value(&self, promql: &str) -> Result<f64> {
        let answer = self.ask(&format!("/api/v1/query?query={}", http::url_encode(promql)))?;
        let answer: serde_json::Value = serde_json::from_str(&answer.body).with_context(|| answer.body.clone())?;
        let value = answer["data"]["result"][0]["value"][1].as_str();
        value.with_context(|| format!("{promql}: {answer}"))?.parse().with_context(|| promql.to_owned())
    }

    /// Returns why scrapes have failed, each reason once.
    fn scrape_errors(&self) -> Result<BTreeSet<String>> {
        let answer = http::get(&self.agent.address, "/api/v1/targets?state=active")?;
        let answer: serde_json::Value = serde_json::from_str(&answer.body)?;
        let targets = answer["data"]["activeTargets"].as_array().cloned().unwrap_or_default();
        let errors = targets.iter().filter_map(|target| target["lastError"].as_str()).map(|error| {
            // Without the target's own name.
            error.split_once("\": ").map_or(error, |(_, why)| why).to_owned()
        });
        Ok(errors.filter(|error| !error.is_empty()).collect())
    }
}

/// Each server is an instance of its own, as it would be on a host of its own.
fn agent_config(names: &[String], replay: &str, database: &str) -> String {
    let interval = PACE.scrape_interval;
    format!(
        "global: {{scrape_interval: {interval}, scrape_timeout: 10s}}\n\
         scrape_configs:\n\
         - job_name: armtrace\n\
         \x20 static_configs: [{{targets: {names:?}}}]\n\
         \x20 relabel_configs:\n\
         \x20 - {{source_labels: [__address__], target_label: __param_target}}\n\
         \x20 - {{source_labels: [__address__], target_label: instance, replacement: '$1:9435'}}\n\
         \x20 - {{target_label: __address__, replacement: '{replay}'}}\n\
         \x20 metric_relabel_configs: [{{source_labels: [target], target_label: target, replacement: mysql.service}}]\n\
         remote_write: [{{url: 'http://{database}/api/v1/write'}}]\n"
    )
}

/// What the processes have counted up to now.
struct Counters {
    samples: f64,
    wire_bytes: f64,
    cpu_seconds: [f64; 4],
}

impl Counters {
    fn read(fleet: &Fleet) -> Result<Counters> {
        let processes = [&fleet.replay, &fleet.agent, &fleet.database, &fleet.rules];
        let mut cpu_seconds = [0.0; 4];
        for (seconds, process) in cpu_seconds.iter_mut().zip(processes) {
            *seconds = process.cpu_seconds()?;
        }
        Ok(Counters {
            samples: fleet.agent.metric("prometheus_remote_storage_samples_total")?,
            wire_bytes: fleet.agent.metric("prometheus_remote_storage_bytes_total")?,
            cpu_seconds,
        })
    }
}

fn report(fleet: &Fleet, args: &Args, before: &Counters, after: &Counters, time: Duration) -> Result<()> {
    let seconds = time.as_secs_f64();
    let samples = after.samples - before.samples;
    let wire_bytes = after.wire_bytes - before.wire_bytes;
    let ms =
        |share: f64| Ok::<_, anyhow::Error>(1e3 * fleet.value(&format!("quantile({share}, scrape_duration_seconds)"))?);
    let (files, targets) = (args.files.len(), args.targets);
    let series = fleet.database.sum("vm_cache_entries", "storage/hour_metric_ids")?;
    println!("| {targets} targets of {files} recordings, {:.0} minutes | |\n|---|--:|", seconds / 60.0);
    println!("| samples per scrape, mean | {:.0} |", fleet.value("avg(scrape_samples_scraped)")?);
    println!("| series, those of rules and scrapes included | {series:.0} |");
    println!("| samples per second | {:.0} |", samples / seconds);
    println!("| bytes per sample sent, compressed | {:.2} |", wire_bytes / samples);
    println!("| scrapes: median, 99th percentile | {:.0} ms, {:.0} ms |", ms(0.5)?, ms(0.99)?);
    println!("| targets down at the end | {:.0} |", targets as f64 - fleet.value("count(up == 1)")?);
    let rules = fleet.rules.sum("vmalert_iteration_duration_seconds_sum", "")?;
    let rounds = fleet.rules.sum("vmalert_iteration_duration_seconds_count", "")?;
    println!("| evaluating a group of rules, mean | {:.2} s |", rules / rounds);
    let processes = [
        ("replay", &fleet.replay),
        ("agent", &fleet.agent),
        ("VictoriaMetrics", &fleet.database),
        ("vmalert", &fleet.rules),
    ];
    for (number, (name, process)) in processes.into_iter().enumerate() {
        let cpus = (after.cpu_seconds[number] - before.cpu_seconds[number]) / seconds;
        println!("| {name}: CPUs, resident memory | {cpus:.2}, {:.0} MB |", process.resident_bytes()? / 1e6);
    }
    Ok(())
}

/// Times the queries of all dashboards, as Grafana sends them for the last minutes: for the whole fleet, or for one
/// host where the dashboard is of one.
fn queries(fleet: &Fleet) -> Result<()> {
    println!("\n| dashboard | queries | together | slowest |\n|---|--:|--:|---|");
    for file in dashboard::FILES {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("dashboards").join(file);
        let variables = dashboard::load(&path);
        let is_of_one = file == "host.json";
        let mut times = Vec::new();
        for query in dashboard::queries(&path) {
            let promql = if is_of_one { query.promql.replace("$instance", "db0001:9435") } else { query.promql };
            let promql = Query { promql, ..query }.substituted(&variables, PACE);
            times.push((ask(fleet, &promql)?, promql));
        }
        times.sort();
        let total: Duration = times.iter().map(|(time, _)| *time).sum();
        let (slowest, promql) = times.last().context("no query")?;
        println!(
            "| {file} | {} | {:.2} s | {:.2} s: `{promql}` |",
            times.len(),
            total.as_secs_f64(),
            slowest.as_secs_f64()
        );
    }
    Ok(())
}

/// Returns how long a query over the last minutes takes.
fn ask(fleet: &Fleet, promql: &str) -> Result<Duration> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let (start, step) = (now - RANGE_SECONDS, RANGE_SECONDS / POINTS);
    let query = http::url_encode(promql);
    let path = format!("/api/v1/query_range?query={query}&start={start}&end={now}&step={step}&nocache=1");
    let began = Instant::now();
    fleet.ask(&path)?;
    Ok(began.elapsed())
}

/// Prints what a sample takes on the disk, once it is as small as it gets: what is in memory is written, and parts are
/// merged, which keeps the CPUs busy.
fn storage(fleet: &Fleet) -> Result<()> {
    for path in ["/internal/force_flush", "/internal/force_merge"] {
        fleet.ask(path)?;
    }
    let began = Instant::now();
    while began.elapsed() < MERGING && fleet.database.sum("vm_active_merges", "storage/")? > 0.0 {
        sleep(Duration::from_secs(1));
    }
    let bytes = |kind: &str| fleet.database.sum("vm_data_size_bytes", kind);
    let rows = fleet.database.sum("vm_rows", "storage/")?;
    println!(
        "\n{:.2} bytes per sample stored, and {:.0} MB of index",
        bytes("storage/")? / rows,
        bytes("indexdb")? / 1e6
    );
    Ok(())
}
