//! A private Prometheus that scrapes what a test serves and answers queries about it.
//!
//! Needs Debian's package `prometheus`, which also contains promtool.

use super::{http, repository, rules};
use serde_json::Value;
use std::fs::{self, File};
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The scrape interval, and the value substituted for Grafana's `$__rate_interval`. A `rate` needs two scrapes in its
/// range and gets at least four.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// The time between two scrapes, as Prometheus writes durations.
    pub scrape_interval: &'static str,
    /// The value of `$__rate_interval`, written likewise.
    pub rate_interval: &'static str,
}

/// The pace for targets on this machine.
pub const QUICK: Pace = Pace { scrape_interval: "250ms", rate_interval: "2s" };

/// A running Prometheus with its own data directory and loopback port. Dropping it stops it.
pub struct Prometheus {
    process: Child,
    directory: TempDir,
    address: String,
    /// The pace at which it scrapes.
    pub pace: Pace,
}

impl Prometheus {
    /// Starts Prometheus with these targets, for example `127.0.0.1:9435`, and with the rules in `dashboards/`, and
    /// waits until it is ready.
    pub fn scraping(targets: &[String]) -> Prometheus {
        Prometheus::scraping_at(QUICK, targets)
    }

    /// Like [`Prometheus::scraping`], at another pace.
    pub fn scraping_at(pace: Pace, targets: &[String]) -> Prometheus {
        Prometheus::scraping_with(pace, targets, "")
    }

    /// Like [`Prometheus::scraping_at`], with more settings of the scrape, such as `, scheme: https`.
    pub fn scraping_with(pace: Pace, targets: &[String], more: &str) -> Prometheus {
        let directory = tempfile::tempdir().unwrap();
        let address = free_address();
        let interval = pace.scrape_interval;
        let config = format!(
            "global: {{scrape_interval: {interval}, scrape_timeout: {interval}, evaluation_interval: {interval}}}\n\
             rule_files: ['*.rules.yml']\n\
             scrape_configs: [{{job_name: armtrace, static_configs: [{{targets: {targets:?}}}]{more}}}]\n"
        );
        let config_file = directory.path().join("prometheus.yml");
        fs::write(&config_file, config).unwrap();
        for (name, text) in rules::at(pace) {
            fs::write(directory.path().join(format!("{name}.rules.yml")), text).unwrap();
        }
        let log = File::create(directory.path().join("log")).unwrap();
        let mut command = Command::new("prometheus");
        command
            .arg(format!("--config.file={}", config_file.display()))
            .arg(format!("--storage.tsdb.path={}", directory.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .stdout(Stdio::null())
            .stderr(log);
        // Prometheus must not outlive a test that is killed.
        // SAFETY: prctl is async-signal-safe.
        unsafe { command.pre_exec(|| Ok(_ = libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))) };
        let process = command.spawn().expect("prometheus starts; Debian's package prometheus has it");
        let prometheus = Prometheus { process, directory, address, pace };
        prometheus.wait_for("to be ready", || {
            http::get(&prometheus.address, "/-/ready").is_ok_and(|answer| answer.head.contains(" 200 "))
        });
        prometheus
    }

    /// Returns the URL below which its API is.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the series of an instant query, each with its labels and value.
    pub fn query(&self, promql: &str) -> Result<Vec<Value>, String> {
        let path = format!("/api/v1/query?query={}", http::url_encode(promql));
        let answer = http::get(&self.address, &path).map_err(|error| error.to_string())?;
        let answer: Value = serde_json::from_str(&answer.body).map_err(|error| error.to_string())?;
        match &answer["data"]["result"] {
            Value::Array(series) => Ok(series.clone()),
            _ => Err(format!("{}: {}", answer["errorType"], answer["error"])),
        }
    }

    /// Waits until so many targets, or more, have been scraped often enough for a rate.
    pub fn wait_for_rates(&self, targets: usize) {
        let scraped = format!("count_over_time(up[{}]) >= 4 and up == 1", self.pace.rate_interval);
        self.wait_for("to scrape", || self.query(&scraped).is_ok_and(|series| series.len() >= targets));
    }

    /// Waits until something is done.
    pub fn wait_for(&self, what: &str, mut done: impl FnMut() -> bool) {
        let began = Instant::now();
        while !done() {
            if began.elapsed() > Duration::from_secs(180) {
                let log = fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
                panic!("waited three minutes for prometheus {what}; its log:\n{log}");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A running VictoriaMetrics that scrapes each second. Dropping it stops it.
///
/// Needs Debian's package `victoria-metrics`.
pub struct VictoriaMetrics {
    process: Child,
    _directory: TempDir,
    address: String,
}

impl VictoriaMetrics {
    /// Starts it with these targets, for example `127.0.0.1:9435`, and waits until it is ready.
    pub fn scraping(targets: &[String]) -> VictoriaMetrics {
        let directory = tempfile::tempdir().unwrap();
        let address = free_address();
        let config = directory.path().join("scrape.yml");
        let jobs = format!(
            "global: {{scrape_interval: 1s, scrape_timeout: 1s}}\n\
             scrape_configs: [{{job_name: armtrace, static_configs: [{{targets: {targets:?}}}]}}]\n"
        );
        fs::write(&config, jobs).unwrap();
        let mut command = Command::new("victoria-metrics");
        command
            .arg(format!("-promscrape.config={}", config.display()))
            .arg(format!("-storageDataPath={}", directory.path().join("data").display()))
            .arg(format!("-httpListenAddr={address}"))
            .arg("-search.latencyOffset=1s")
            .stdout(Stdio::null())
            .stderr(File::create(directory.path().join("log")).unwrap());
        // SAFETY: prctl is async-signal-safe.
        unsafe { command.pre_exec(|| Ok(_ = libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))) };
        let process = command.spawn().expect("victoria-metrics starts; Debian's package victoria-metrics has it");
        let began = Instant::now();
        while !http::get(&address, "/health").is_ok_and(|answer| answer.head.contains(" 200 ")) {
            assert!(began.elapsed() < Duration::from_secs(60), "victoria-metrics is not ready");
            std::thread::sleep(Duration::from_millis(50));
        }
        VictoriaMetrics { process, _directory: directory, address }
    }

    /// Returns the URL below which its API is.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for VictoriaMetrics {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns a loopback address that nothing listens on.
pub fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

/// Runs promtool, in the project's folder. Returns what it says if it fails.
pub fn promtool(args: &[&str]) -> Result<(), String> {
    let mut command = Command::new("promtool");
    let output = command.args(args).current_dir(repository("")).output();
    let output = output.expect("promtool starts; Debian's package prometheus has it");
    let said = || String::from_utf8_lossy(&[output.stdout.clone(), output.stderr.clone()].concat()).into_owned();
    output.status.success().then_some(()).ok_or_else(said)
}

/// Returns the complaints of `promtool check metrics`, or an empty string if it has none.
pub fn promtool_complaints(metrics: &str) -> String {
    let mut command = Command::new("promtool");
    command.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut promtool = command.spawn().expect("promtool starts; Debian's package prometheus has it");
    promtool.stdin.take().unwrap().write_all(metrics.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    if output.status.success() || !said.is_empty() {
        said
    } else {
        output.status.to_string()
    }
}
