//! The agent as its users run it: the built program, in its own process.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{PipeReader, Write};
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use tempfile::TempDir;

use crate::http;
use crate::server::{wait_for, Server};

/// Returns the path of the agent: the one built with these tests, or `$ARMTRACE_PROGRAM` if the tests run on another
/// machine.
pub fn program() -> PathBuf {
    // Cargo puts test programs into `deps`, next to the agent.
    let built = || {
        let tests = std::env::current_exe().expect("this program's path");
        tests.parent().and_then(Path::parent).expect("the build directory").join("armtrace")
    };
    std::env::var_os("ARMTRACE_PROGRAM").map_or_else(built, PathBuf::from)
}

/// Returns a command that runs the agent's program without a terminal.
pub fn without_terminal() -> Command {
    let mut command = Command::new("setsid");
    command.arg(program());
    command
}

/// An attached agent that serves metrics. Dropping it kills it.
pub struct Agent {
    child: Child,
    /// The address that it serves metrics on.
    pub address: String,
    dir: TempDir,
    started: Instant,
}

/// Which servers an agent measures.
enum Which {
    Process(i32),
    All,
}

impl Which {
    fn arguments(&self) -> Vec<String> {
        match self {
            Which::Process(pid) => vec!["--pid".to_owned(), pid.to_string()],
            Which::All => vec!["--discover".to_owned()],
        }
    }
}

/// One sample of the Prometheus text format.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The metric name, with a suffix such as `_count`.
    pub name: String,
    /// The labels, by name.
    pub labels: BTreeMap<String, String>,
    /// The value.
    pub value: f64,
}

/// Copies the agent's program into a folder that all users may read, and returns it and its path there.
pub fn readable_program() -> Result<(TempDir, PathBuf)> {
    let copy = tempfile::tempdir()?;
    fs::set_permissions(copy.path(), fs::Permissions::from_mode(0o755))?;
    let readable = copy.path().join("armtrace");
    fs::copy(program(), &readable)?;
    Ok((copy, readable))
}

/// Returns a port of this host that nothing listens on.
pub fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

impl Agent {
    /// Attaches the agent to a server. Returns once it serves metrics, which it does only when attached.
    pub fn attach(server: &Server) -> Result<Agent> {
        Agent::attach_with(server, &[])
    }

    /// Like [`Agent::attach`], without an overhead budget, so that every wait is observed and none is estimated.
    pub fn attach_without_budget(server: &Server) -> Result<Agent> {
        Agent::attach_with(server, &["--max-overhead", "100%"].map(OsStr::new))
    }

    /// Like [`Agent::attach`], with extra arguments.
    pub fn attach_with(server: &Server, args: &[&OsStr]) -> Result<Agent> {
        Agent::attach_to(server.pid(), args)
    }

    /// Like [`Agent::attach_with`], to any process: tests also use programs that imitate a server.
    pub fn attach_to(pid: i32, args: &[&OsStr]) -> Result<Agent> {
        let dir = tempfile::tempdir()?;
        let out = File::create(dir.path().join("out"))?;
        Agent::start(Command::new(program()), Which::Process(pid), dir, out.into(), args)
    }

    /// Starts an agent that measures all servers of this host. Returns once it serves metrics.
    pub fn discover(args: &[&OsStr]) -> Result<Agent> {
        Agent::discover_by(Command::new(program()), args)
    }

    /// Like [`Agent::discover`], started by a command that ends with the agent's program.
    pub fn discover_by(command: Command, args: &[&OsStr]) -> Result<Agent> {
        let dir = tempfile::tempdir()?;
        let out = File::create(dir.path().join("out"))?;
        Agent::start(command, Which::All, dir, out.into(), args)
    }

    /// Like [`Agent::attach`], started by a command that ends with the agent's program, as one that changes the user.
    pub fn attach_by(command: Command, server: &Server) -> Result<Agent> {
        let dir = tempfile::tempdir()?;
        let out = File::create(dir.path().join("out"))?;
        Agent::start(command, Which::Process(server.pid()), dir, out.into(), &[])
    }

    /// Like [`Agent::attach`], with a full pipe as standard output. The returned reader keeps the pipe open.
    pub fn attach_to_full_pipe(server: &Server) -> Result<(Agent, PipeReader)> {
        let (reader, mut writer) = std::io::pipe()?;
        // SAFETY: the descriptor is open; F_SETPIPE_SZ takes a number.
        unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_SETPIPE_SZ, 4096) };
        writer.write_all(&[b'x'; 4096])?;
        let which = Which::Process(server.pid());
        let agent = Agent::start(Command::new(program()), which, tempfile::tempdir()?, writer.into(), &[])?;
        Ok((agent, reader))
    }

    /// Starts it without the folder in which plans are kept: tests are of what this build finds in programs.
    fn start(mut command: Command, which: Which, dir: TempDir, out: Stdio, args: &[&OsStr]) -> Result<Agent> {
        let address = format!("127.0.0.1:{}", free_port()?);
        let started = Instant::now();
        let child = command
            .args(which.arguments())
            .args(["--listen", &address])
            .args(args)
            .env("ARMTRACE_CACHE_DIR", "off")
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(File::create(dir.path().join("err"))?)
            .spawn()
            .context("starting the agent")?;
        let mut agent = Agent { child, address, dir, started };
        wait_for("the agent's metrics", Duration::from_secs(30), || {
            if let Some(status) = agent.child.try_wait()? {
                bail!("the agent exited while attaching ({status}): {}", agent.errors()?);
            }
            Ok(http::get(&agent.address, "/healthz").ok())
        })?;
        Ok(agent)
    }

    /// Returns the agent's process ID.
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Returns the time since the program was started.
    pub fn age(&self) -> Duration {
        self.started.elapsed()
    }

    /// Waits until the metrics name a latch. Returns how long that took from the start of the program, so call it right
    /// after attaching.
    pub fn first_name(&self) -> Result<Duration> {
        let named = "armtrace_latch_wait_seconds_count{latch=\"wait/synch/";
        wait_for("a named latch", Duration::from_secs(20), || Ok(self.metrics()?.contains(named).then(|| self.age())))
    }

    /// Returns the text of a scrape.
    pub fn metrics(&self) -> Result<String> {
        Ok(http::get(&self.address, "/metrics")?.body)
    }

    /// Returns the samples of a scrape.
    pub fn scrape(&self) -> Result<Vec<Sample>> {
        self.metrics()?.lines().filter(|l| !l.starts_with('#') && !l.is_empty()).map(parse).collect()
    }

    /// Returns what the agent has written to standard error so far.
    pub fn errors(&self) -> Result<String> {
        Ok(std::fs::read_to_string(self.dir.path().join("err"))?)
    }

    /// Sends a signal to the agent.
    pub fn signal(&self, signal: i32) {
        // SAFETY: a signal to our own child, which has not been waited for.
        unsafe { libc::kill(self.pid(), signal) };
    }

    /// Waits for the agent to exit by itself. Returns its status and how long the wait took.
    pub fn wait(&mut self) -> Result<(ExitStatus, Duration)> {
        let start = Instant::now();
        let child = &mut self.child;
        let status = wait_for("the agent to exit", Duration::from_secs(20), || Ok(child.try_wait()?))?;
        Ok((status, start.elapsed()))
    }

    /// Stops the agent with SIGINT, as Ctrl-C does.
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

/// Attaches agents to a loaded server, one after another, until one has named a latch within `limit`, or eight have
/// not. Returns the shortest time from the start of the program to the first named latch, because other load on the
/// machine can only lengthen it.
pub fn quickest_name(server: &Server, limit: Duration) -> Result<Duration> {
    let mut quickest = Duration::MAX;
    for _ in 0..8 {
        let agent = Agent::attach(server)?;
        let first = agent.first_name()?;
        println!("from the program's start to the first named latch: {first:?}");
        quickest = quickest.min(first);
        agent.stop()?;
        if quickest < limit {
            break;
        }
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

/// Returns the sum of a metric's samples for each latch.
pub fn by_latch(samples: &[Sample], metric: &str) -> BTreeMap<String, f64> {
    let mut sums = BTreeMap::new();
    for s in samples.iter().filter(|s| s.name == metric) {
        *sums.entry(s.labels.get("latch").cloned().unwrap_or_default()).or_insert(0.0) += s.value;
    }
    sums
}

/// Returns the output of `armtrace doctor` for a process, as JSON.
pub fn doctor(pid: i32) -> Result<serde_json::Value> {
    doctor_with(pid, &[])
}

/// Like [`doctor`], with extra arguments.
pub fn doctor_with(pid: i32, args: &[&str]) -> Result<serde_json::Value> {
    let pid = pid.to_string();
    let output = Command::new(program()).args(["doctor", "--pid", &pid, "--format", "json"]).args(args).output()?;
    serde_json::from_slice(&output.stdout)
        .with_context(|| format!("doctor said: {}", String::from_utf8_lossy(&output.stderr)))
}

/// The first byte of a probe site, in the process and in its program file.
pub struct SiteBytes {
    /// The name of the site.
    pub name: String,
    /// The byte in the memory of the process.
    pub in_process: u8,
    /// The byte in the program file.
    pub in_file: u8,
}

/// Reads the first byte of every site that the agent would probe, to find breakpoints.
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
            let in_file = image.bytes(address, 1).context("a site outside the file")?[0];
            Ok(SiteBytes { name, in_process: byte[0], in_file })
        })
        .collect()
}

/// Returns the sites at which the process differs from its program file.
pub fn changed_sites(pid: i32) -> Result<Vec<String>> {
    let sites = site_bytes(pid)?;
    Ok(sites.into_iter().filter(|s| s.in_process != s.in_file).map(|s| s.name).collect())
}

/// Returns the names of the agent's BPF programs that are loaded in the kernel.
pub fn loaded_programs() -> Result<Vec<String>> {
    let mut names = Vec::new();
    for program in libbpf_rs::query::ProgInfoIter::default() {
        let name = program.name.to_string_lossy().into_owned();
        // The kernel keeps 15 characters of a name.
        if ["latch_", "futex_", "thread_exit", "cpu_sample", "getcpu_", "checksum_", "lock_", "empty"]
            .iter()
            .any(|ours| name.starts_with(ours))
        {
            names.push(name);
        }
    }
    Ok(names)
}
