//! sysbench on a private server.

use std::fs::{self, File};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use tempfile::TempDir;

use crate::releases::script;
use crate::server::{wait_for, Server};

const LOG: &str = "load.log";

/// Load that runs until stopped or dropped.
#[derive(Debug)]
pub struct Load {
    child: Child,
    /// A separate folder, so that the log outlives the server.
    dir: TempDir,
}

/// sysbench's totals. They are exact, because statements in flight at the end are allowed to finish.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadReport {
    /// The number of transactions.
    pub transactions: u64,
    /// The number of statements.
    pub queries: u64,
    /// Failed statements that sysbench retries, such as deadlocks. [`Load::stop`] fails for any other failure.
    pub errors: u64,
    /// How often a thread connected anew.
    pub reconnects: u64,
    /// Transactions per second, over the whole run.
    pub tps: f64,
    /// The 95th percentile of transaction time.
    pub p95: Duration,
}

impl Load {
    /// Starts a sysbench test, such as `oltp_update_index`, with this many threads.
    pub fn start(server: &Server, test: &str, threads: u32) -> Result<Load> {
        Load::start_with(server, test, threads, &[])
    }

    /// Creates the tables of a test that needs tables of its own.
    pub fn prepare(server: &Server, test: &str) -> Result<()> {
        let mut command = Command::new(script("load"));
        command.arg("--socket").arg(server.socket()).args(["--test", test, "--threads", "1", "prepare"]);
        let output = command.stdin(Stdio::null()).output().context("starting tests/lab/load")?;
        let text = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success() && !text.contains("FATAL"), "no tables for {test}: {text}");
        Ok(())
    }

    /// Like [`Load::start`], with extra arguments for `tests/lab/load`.
    pub fn start_with(server: &Server, test: &str, threads: u32, args: &[&str]) -> Result<Load> {
        let dir = tempfile::tempdir()?;
        let out = File::create(dir.path().join(LOG))?;
        let child = Command::new(script("load"))
            .arg("--socket")
            .arg(server.socket())
            .args(["--test", test, "--threads", &threads.to_string()])
            .args(args)
            // A load that is killed leaves its stop file here.
            .env("TMPDIR", dir.path())
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .spawn()
            .context("starting tests/lab/load")?;
        Ok(Load { child, dir })
    }

    /// Waits until all threads are connected and send queries.
    pub fn wait_running(&mut self) -> Result<()> {
        wait_for("the load's threads", Duration::from_secs(60), || {
            if let Some(status) = self.child.try_wait()? {
                bail!("the load exited while starting ({status}):\n{}", self.output()?);
            }
            Ok(self.output()?.contains("Threads started!").then_some(()))
        })
    }

    /// Returns the transactions per second, one value for each second reported so far.
    pub fn tps_by_second(&self) -> Result<Vec<f64>> {
        Ok(seconds(&self.output()?, " tps: "))
    }

    /// Returns the 95th percentile of transaction time in milliseconds, one value for each second reported so far.
    pub fn p95_by_second(&self) -> Result<Vec<f64>> {
        Ok(seconds(&self.output()?, " lat (ms,95%): "))
    }

    /// Stops the load.
    ///
    /// # Errors
    /// Fails if sysbench failed, or lost a thread.
    pub fn stop(mut self) -> Result<LoadReport> {
        let status = self.end()?;
        let output = self.output()?;
        // A sysbench thread can fail on its own. Only the output says so, not the exit status.
        ensure!(status.success() && !output.contains("FATAL"), "the load failed ({status}):\n{output}");
        parse(&output).with_context(|| format!("reading sysbench's totals:\n{output}"))
    }

    fn output(&self) -> Result<String> {
        fs::read_to_string(self.dir.path().join(LOG)).context("reading the load's log")
    }

    fn end(&mut self) -> Result<ExitStatus> {
        if let Some(status) = self.child.try_wait()? {
            return Ok(status);
        }
        // SAFETY: a signal to a child that has not been waited for.
        unsafe { libc::kill(self.child.id() as i32, libc::SIGTERM) };
        wait_for("the load to exit", Duration::from_secs(30), || Ok(self.child.try_wait()?))
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        if self.end().is_err() {
            // sysbench has a parent-death signal, so it dies with the script.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Returns the value after `label` in every report line: `[ 3s ] thds: 16 tps: 38495.08 qps: …`
fn seconds(output: &str, label: &str) -> Vec<f64> {
    output
        .lines()
        .filter(|line| line.starts_with("[ "))
        .filter_map(|line| line.split_once(label)?.1.split(' ').next()?.parse().ok())
        .collect()
}

fn parse(output: &str) -> Result<LoadReport> {
    // `    transactions:                        223290 (44613.51 per sec.)`: the count, and the rate in brackets.
    let count = |name: &str| -> Result<(u64, f64)> {
        let rest = output
            .lines()
            .find_map(|line| line.trim_start().strip_prefix(name)?.strip_prefix(':'))
            .with_context(|| format!("no {name}"))?;
        let mut words = rest.split_whitespace();
        let number = words.next().with_context(|| format!("{name} is empty"))?.parse()?;
        let rate = words.next().map_or("0", |word| word.trim_start_matches('('));
        Ok((number, rate.parse()?))
    };
    let p95 = output
        .lines()
        .find_map(|line| line.trim_start().strip_prefix("95th percentile:"))
        .context("no 95th percentile")?
        .trim()
        .parse::<f64>()?;
    let (transactions, tps) = count("transactions")?;
    Ok(LoadReport {
        transactions,
        queries: count("queries")?.0,
        errors: count("ignored errors")?.0,
        reconnects: count("reconnects")?.0,
        tps,
        p95: Duration::from_secs_f64(p95 / 1000.0),
    })
}

#[test]
fn totals_are_read_from_sysbench_output() {
    let output = "\
[ 1s ] thds: 16 tps: 33527.80 qps: 33527.80 (r/w/o: 0.00/33527.80/0.00) lat (ms,95%): 1.10 err/s: 0.00 reconn/s: 0.00
[ 2s ] thds: 16 tps: 0.00 qps: 1.00 (r/w/o: 0.00/1.00/0.00) lat (ms,95%): 1.03 err/s: 0.00 reconn/s: 0.00
SQL statistics:
    queries performed:
        total:                           220270
    transactions:                        220264 (40258.02 per sec.)
    queries:                             220270 (40259.00 per sec.)
    ignored errors:                      6      (1.10 per sec.)
    reconnects:                          2      (0.00 per sec.)

Latency (ms):
         95th percentile:                        0.83
";
    assert_eq!(seconds(output, " tps: "), [33527.80, 0.0]);
    assert_eq!(seconds(output, " lat (ms,95%): "), [1.10, 1.03]);
    assert_eq!(
        parse(output).unwrap(),
        LoadReport {
            transactions: 220264,
            queries: 220270,
            errors: 6,
            reconnects: 2,
            tps: 40258.02,
            p95: Duration::from_micros(830),
        }
    );
    assert!(parse("FATAL: error 2013 (Lost connection)").is_err());
}
