//! The agent as its users run it: the built program, as a process of its own.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{PipeReader, Write};
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use tempfile::TempDir;

use crate::http;
use crate::server::{wait_for, Server};

/// The agent's program: the one built with these tests, or the one that `$ARMTRACE_PROGRAM` names where they run on another
/// machine.
pub fn program() -> PathBuf {
    // Test programs lie in a folder beside it.
    let built = || {
        let tests = std::env::current_exe().expect("this program's path");
        tests.parent().and_then(Path::parent).expect("the folder of what was built").join("armtrace")
    };
    std::env::var_os("ARMTRACE_PROGRAM").map_or_else(built, PathBuf::from)
}

/// An attached agent that serves metrics. Dropping it kills it.
pub struct Agent {
    child: Child,
    pub address: String,
    dir: TempDir,
    started: Instant,
}

/// One sample of the text format.
#[derive(Clone, Debug)]
pub struct Sample {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

/// A port of this host that nobody listens on.
pub fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

impl Agent {
    /// Starts the agent on a server and waits until it serves metrics, which it does only once attached.
    pub fn attach(server: &Server) -> Result<Agent> {
        Agent::attach_with(server, &[])
    }

    /// The same, with no limit to what its probes may cost: all waits are seen, none is estimated.
    pub fn attach_without_budget(server: &Server) -> Result<Agent> {
        Agent::attach_with(server, &["--max-overhead", "100%"].map(OsStr::new))
    }

    /// The same, with more arguments.
    pub fn attach_with(server: &Server, args: &[&OsStr]) -> Result<Agent> {
        Agent::attach_to(server.pid(), args)
    }

    /// The same on a process that is only made up to be a server.
    pub fn attach_to(pid: i32, args: &[&OsStr]) -> Result<Agent> {
        let dir = tempfile::tempdir()?;
        let out = File::create(dir.path().join("out"))?;
        Agent::start(pid, dir, out.into(), args)
    }

    /// The same, with a standard output that takes nothing; the second value keeps it open.
    pub fn attach_to_full_pipe(server: &Server) -> Result<(Agent, PipeReader)> {
        let (reader, mut writer) = std::io::pipe()?;
        // SAFETY: the descriptor is open; F_SETPIPE_SZ takes a number.
        unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_SETPIPE_SZ, 4096) };
        writer.write_all(&[b'x'; 4096])?;
        Ok((Agent::start(server.pid(), tempfile::tempdir()?, writer.into(), &[])?, reader))
    }

    fn start(pid: i32, dir: TempDir, out: Stdio, args: &[&OsStr]) -> Result<Agent> {
        let address = format!("127.0.0.1:{}", free_port()?);
        let started = Instant::now();
        let child = Command::new(program())
            .args(["--pid", &pid.to_string(), "--listen", &address])
            .args(args)
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(File::create(dir.path().join("err"))?)
            .spawn()
            .context("starting the agent")?;
        let mut agent = Agent { child, address, dir, started };
        wait_for("the agent's metrics", Duration::from_secs(30), || {
            if let Some(status) = agent.child.try_wait()? {
                bail!("the agent ended while attaching ({status}): {}", agent.errors()?);
            }
            Ok(http::get(&agent.address, "/healthz").ok())
        })?;
        Ok(agent)
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Time since the program was started.
    pub fn age(&self) -> Duration {
        self.started.elapsed()
    }

    /// How long after the program's start its metrics name a latch; to be asked as soon as it is attached.
    pub fn first_name(&self) -> Result<Duration> {
        let named = "armtrace_latch_wait_seconds_count{latch=\"wait/synch/";
        wait_for("a named latch", Duration::from_secs(20), || Ok(self.metrics()?.contains(named).then(|| self.age())))
    }

    pub fn metrics(&self) -> Result<String> {
        Ok(http::get(&self.address, "/metrics")?.body)
    }

    pub fn scrape(&self) -> Result<Vec<Sample>> {
        self.metrics()?.lines().filter(|l| !l.starts_with('#') && !l.is_empty()).map(parse).collect()
    }

    pub fn errors(&self) -> Result<String> {
        Ok(std::fs::read_to_string(self.dir.path().join("err"))?)
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: a signal to our own child, which has not been waited for.
        unsafe { libc::kill(self.pid(), signal) };
    }

    /// Waits for the agent to end by itself; how it did, and how long that took.
    pub fn wait(&mut self) -> Result<(ExitStatus, Duration)> {
        let start = Instant::now();
        let child = &mut self.child;
        let status = wait_for("the agent's end", Duration::from_secs(20), || Ok(child.try_wait()?))?;
        Ok((status, start.elapsed()))
    }

    /// Ends it as Ctrl-C does.
    pub fn stop(mut self) -> Result<(ExitStatus, Duration)> {
        self.signal(libc::SIGINT);
        self.wait()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The least time of three agents on a loaded server, one after the other, from the program's start to the first named latch: what
/// else the machine does only adds to it.
pub fn quickest_name(server: &Server) -> Result<Duration> {
    let mut quickest = Duration::MAX;
    for _ in 0..3 {
        let agent = Agent::attach(server)?;
        let first = agent.first_name()?;
        println!("from the program's start to the first named latch: {first:?}");
        quickest = quickest.min(first);
        agent.stop()?;
    }
    Ok(quickest)
}

fn parse(line: &str) -> Result<Sample> {
    let (series, value) = line.rsplit_once(' ').with_context(|| format!("no value in {line}"))?;
    let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
    let labels = labels.trim_end_matches('}');
    let labels = labels
        .split("\",")
        .filter(|l| !l.is_empty())
        .map(|l| {
            let (key, value) = l.split_once("=\"").with_context(|| format!("no label in {l}"))?;
            Ok((key.to_owned(), value.trim_end_matches('"').to_owned()))
        })
        .collect::<Result<_>>()?;
    Ok(Sample { name: name.to_owned(), labels, value: value.parse()? })
}

/// The sum of a metric's samples for each latch.
pub fn by_latch(samples: &[Sample], metric: &str) -> BTreeMap<String, f64> {
    let mut sums = BTreeMap::new();
    for s in samples.iter().filter(|s| s.name == metric) {
        *sums.entry(s.labels.get("latch").cloned().unwrap_or_default()).or_insert(0.0) += s.value;
    }
    sums
}

/// What `armtrace doctor` says of a server, as JSON.
pub fn doctor(pid: i32) -> Result<serde_json::Value> {
    doctor_with(pid, &[])
}

/// The same with further arguments.
pub fn doctor_with(pid: i32, args: &[&str]) -> Result<serde_json::Value> {
    let pid = pid.to_string();
    let output = Command::new(program()).args(["doctor", "--pid", &pid, "--format", "json"]).args(args).output()?;
    serde_json::from_slice(&output.stdout)
        .with_context(|| format!("doctor said: {}", String::from_utf8_lossy(&output.stderr)))
}

/// A probe site's bytes in a process beside those in its program file.
pub struct SiteBytes {
    pub name: String,
    pub in_process: u8,
    pub in_file: u8,
}

/// Reads the first byte of every site that the agent would probe, to see whether a breakpoint stands there.
pub fn site_bytes(pid: i32) -> Result<Vec<SiteBytes>> {
    let exe = PathBuf::from(format!("/proc/{pid}/exe"));
    let image = armtrace::symbols::Image::open(&exe)?;
    let bias = armtrace::server::load_bias(pid, &image)?;
    let memory = armtrace::server::Memory::new(pid);
    let probes = doctor(pid)?;
    let probes = probes["server"]["probes"].as_array().context("doctor lists no probes")?.clone();
    probes
        .iter()
        .map(|probe| {
            let name = probe["name"].as_str().context("a probe without a name")?.to_owned();
            let address = probe["address"].as_str().context("a probe without an address")?;
            let address = u64::from_str_radix(address.trim_start_matches("0x"), 16)?;
            let mut byte = [0];
            memory.read(address + bias, &mut byte)?;
            let in_file = image.bytes(address, 1).context("a site outside of the file")?[0];
            Ok(SiteBytes { name, in_process: byte[0], in_file })
        })
        .collect()
}

/// Sites at which the process has something else than its program file.
pub fn changed_sites(pid: i32) -> Result<Vec<String>> {
    let sites = site_bytes(pid)?;
    Ok(sites.into_iter().filter(|s| s.in_process != s.in_file).map(|s| s.name).collect())
}

/// BPF programs of the agent's that the kernel still has.
pub fn loaded_programs() -> Result<Vec<String>> {
    let mut names = Vec::new();
    for program in libbpf_rs::query::ProgInfoIter::default() {
        let name = program.name.to_string_lossy().into_owned();
        // The kernel keeps 15 characters of a name.
        if ["latch_", "futex_", "thread_exit", "cpu_sample", "getcpu_", "checksum_", "empty"]
            .iter()
            .any(|ours| name.starts_with(ours))
        {
            names.push(name);
        }
    }
    Ok(names)
}
