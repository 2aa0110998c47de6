//! The tools that the benchmark compares: armtrace and other ways to see what a server waits on.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use clap::ValueEnum;
use tempfile::TempDir;

use lab::agent::{by_latch, Agent};
use lab::releases::Release;
use lab::server::{wait_for, Server};

/// How long a tool may take to attach, and to exit. bpftrace needs seconds on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long to wait for the first named latch. Under a load without contention, no latch is ever named.
const FIRST_NAME: Duration = Duration::from_secs(1);
/// Options for everything that is off by default, or on a machine with one NUMA node.
const EVERYTHING: &[&str] = &["--handoffs", "core", "--hardware-events"];
/// How long the duty cycle takes to adapt to the overhead budget.
const DUTY_CYCLE_SETTLE: Duration = Duration::from_secs(8);
/// The most events that are counted after the instruments are switched off. A wait that began before is counted when it
/// ends: at most one for each of the server's threads.
const MOST_IN_FLIGHT: f64 = 500.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// A process that only sleeps. Its apparent cost is the error of the method.
    Control,
    Armtrace,
    /// armtrace with everything that is off by default.
    ArmtraceAll,
    PerfSchema,
    BpftraceWaits,
    BpftraceLocks,
    Perf,
}

/// A tool that is attached.
pub enum Attached {
    Agent(Agent),
    PerfSchema,
    Tool(Tool),
}

/// A tool that is always present and is switched on and off instantly.
pub enum Switch {
    /// There is nothing to switch.
    Control,
    /// armtrace, whose probes are attached or detached.
    Agent(Agent),
    PerfSchema,
}

/// A tool that runs as a process. Dropping it kills it.
pub struct Tool {
    child: Child,
    dir: TempDir,
}

impl Mode {
    pub fn title(self) -> &'static str {
        match self {
            Mode::Control => "control: an idle process",
            Mode::Armtrace => "armtrace",
            Mode::ArmtraceAll => "armtrace, everything on",
            Mode::PerfSchema => "performance_schema, `wait/synch/%`",
            Mode::BpftraceWaits => "bpftrace, waiting functions",
            Mode::BpftraceLocks => "bpftrace, locking functions",
            Mode::Perf => "`perf record -g -F 99`",
        }
    }

    /// Returns the mode's name on the command line.
    pub fn key(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Returns whether the tool can be switched on and off.
    pub fn is_switched(self) -> bool {
        matches!(self, Mode::Control | Mode::Armtrace | Mode::ArmtraceAll | Mode::PerfSchema)
    }

    fn agent(self, server: &Server) -> Result<Agent> {
        let args = if self == Mode::ArmtraceAll { EVERYTHING } else { &[] };
        Agent::attach_with(server, &args.iter().map(OsStr::new).collect::<Vec<_>>())
    }

    /// Returns the modes for a server. On MariaDB, the waiting functions are the only ones for bpftrace to probe.
    pub fn of(release: Release) -> Vec<Mode> {
        let all = Mode::value_variants().iter().copied();
        all.filter(|mode| *mode != Mode::BpftraceLocks || release == Release::MYSQL_9_7).collect()
    }

    /// Attaches the tool. Also returns the time until the first figure, if that is defined for the tool.
    pub fn attach(self, release: Release, server: &Server) -> Result<(Attached, Option<Duration>)> {
        let pid = server.pid().to_string();
        match self {
            Mode::Control => Ok((Attached::Tool(Tool::start("sleep", &["infinity"])?), None)),
            Mode::Armtrace | Mode::ArmtraceAll => {
                let agent = self.agent(server)?;
                let named = first_name(&agent)?;
                Ok((Attached::Agent(agent), named))
            }
            Mode::PerfSchema => {
                let before = instrumented(server)?;
                set_instruments(server, "YES")?;
                sleep(Duration::from_millis(100));
                ensure!(instrumented(server)? > before, "the instruments count nothing after they were switched on");
                Ok((Attached::PerfSchema, None))
            }
            Mode::BpftraceWaits => bpftrace(&pid, release, waiting_functions(release)),
            Mode::BpftraceLocks => bpftrace(&pid, release, LOCKING_FUNCTIONS),
            Mode::Perf => {
                let tool = Tool::start("perf", &["record", "-g", "-F", "99", "-p", &pid, "-o", "perf.data"])?;
                Ok((Attached::Tool(tool), None))
            }
        }
    }
}

impl Switch {
    /// Starts a tool and switches it off. Returns `None` for tools that cannot be switched.
    pub fn start(mode: Mode, server: &Server) -> Result<Option<Switch>> {
        let switch = match mode {
            Mode::Control => Switch::Control,
            Mode::PerfSchema => Switch::PerfSchema,
            Mode::Armtrace | Mode::ArmtraceAll => {
                let agent = mode.agent(server)?;
                first_name(&agent)?;
                sleep(DUTY_CYCLE_SETTLE);
                Switch::Agent(agent)
            }
            Mode::BpftraceWaits | Mode::BpftraceLocks | Mode::Perf => return Ok(None),
        };
        switch.turn(false, server)?;
        Ok(Some(switch))
    }

    /// Returns the tool's process, if it has one.
    pub fn pid(&self) -> Option<i32> {
        match self {
            Switch::Agent(agent) => Some(agent.pid()),
            Switch::Control | Switch::PerfSchema => None,
        }
    }

    pub fn turn(&self, on: bool, server: &Server) -> Result<()> {
        match self {
            Switch::Control => {}
            Switch::Agent(agent) => agent.signal(if on { libc::SIGUSR2 } else { libc::SIGUSR1 }),
            Switch::PerfSchema => set_instruments(server, if on { "YES" } else { "NO" })?,
        }
        Ok(())
    }

    /// Returns the number of events that the tool has counted so far, or `None` if it counts none.
    pub fn counted(&self, server: &Server) -> Result<Option<f64>> {
        Ok(match self {
            Switch::Control => None,
            Switch::Agent(agent) => Some(by_latch(&agent.scrape()?, "armtrace_probe_hits_total").values().sum()),
            Switch::PerfSchema => Some(instrumented(server)?),
        })
    }
}

impl Attached {
    /// Returns the tool's process, if it has one.
    pub fn pid(&self) -> Option<i32> {
        match self {
            Attached::Agent(agent) => Some(agent.pid()),
            Attached::Tool(tool) => Some(tool.child.id() as i32),
            Attached::PerfSchema => None,
        }
    }

    /// Detaches the tool as a user would, and returns how long that took. Fails if the tool measured nothing.
    pub fn detach(self, mode: Mode, server: &Server) -> Result<Duration> {
        match self {
            Attached::Agent(agent) => {
                let (status, time) = agent.stop()?;
                ensure!(status.success(), "armtrace exited with {status}");
                Ok(time)
            }
            Attached::PerfSchema => {
                let start = Instant::now();
                set_instruments(server, "NO")?;
                let time = start.elapsed();
                sleep(Duration::from_millis(100));
                let counted = instrumented(server)?;
                sleep(Duration::from_millis(100));
                let more = instrumented(server)? - counted;
                ensure!(more < MOST_IN_FLIGHT, "the instruments counted {more} events after they were switched off");
                Ok(time)
            }
            Attached::Tool(mut tool) => {
                let time = tool.stop()?;
                ensure!(mode != Mode::Perf || tool.read("err")?.contains(" samples)"), "perf took no samples");
                Ok(time)
            }
        }
    }
}

impl Tool {
    fn start(program: &str, args: &[&str]) -> Result<Tool> {
        let dir = tempfile::tempdir()?;
        // The parent-death signal ensures that the tool does not outlive the benchmark. The default for SIGINT, which
        // stops the tool, must be restored, because a shell makes background programs ignore it.
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--", "env", "--default-signal=INT", program])
            .args(args)
            .current_dir(dir.path())
            .stdin(Stdio::null())
            .stdout(File::create(dir.path().join("out"))?)
            .stderr(File::create(dir.path().join("err"))?)
            .spawn()
            .with_context(|| format!("starting {program}"))?;
        Ok(Tool { child, dir })
    }

    fn read(&self, stream: &str) -> Result<String> {
        Ok(fs::read_to_string(self.dir.path().join(stream))?)
    }

    fn stop(&mut self) -> Result<Duration> {
        if let Some(status) = self.child.try_wait()? {
            bail!("it exited by itself ({status}): {}", self.read("err")?.trim());
        }
        let start = Instant::now();
        // SAFETY: a signal to a child that has not been waited for.
        unsafe { libc::kill(self.child.id() as i32, libc::SIGINT) };
        wait_for("the tool to exit", PATIENCE, || Ok(self.child.try_wait()?))?;
        Ok(start.elapsed())
    }
}

impl Drop for Tool {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for the first named latch, and returns the agent's age then.
fn first_name(agent: &Agent) -> Result<Option<Duration>> {
    let start = Instant::now();
    while start.elapsed() < FIRST_NAME {
        let counts = by_latch(&agent.scrape()?, "armtrace_latch_wait_seconds_count");
        if counts.iter().any(|(latch, count)| latch.starts_with("wait/synch/") && *count > 0.0) {
            return Ok(Some(agent.age()));
        }
        sleep(Duration::from_millis(20));
    }
    Ok(None)
}

fn set_instruments(server: &Server, on: &str) -> Result<()> {
    server.query(&format!(
        "UPDATE performance_schema.setup_instruments SET ENABLED = '{on}', TIMED = '{on}' WHERE NAME LIKE 'wait/synch/%'"
    ))?;
    Ok(())
}

/// Returns the number of events that the instruments have counted so far.
fn instrumented(server: &Server) -> Result<f64> {
    Ok(server.wait_summary()?.values().map(|(count, _)| count).sum())
}

/// Returns the functions that run only while a latch is waited for.
fn waiting_functions(release: Release) -> &'static [&'static str] {
    match release {
        Release::MYSQL_9_7 => &[
            "_Z21sync_array_wait_eventP12sync_array_tRP11sync_cell_t",
            "_Z19rw_lock_s_lock_spinP9rw_lock_tmN2ut8LocationE",
            "_ZN14TTASEventMutexI13GenericPolicyE4waitEPKcjj",
            "_ZN14TTASEventMutexI16BlockMutexPolicyE4waitEPKcjj",
        ],
        _ => &[
            "_ZN14srw_mutex_implILb0EE13wait_and_lockEv",
            "_ZN14srw_mutex_implILb1EE13wait_and_lockEv",
            "_ZN14ssux_lock_implILb0EE7rd_waitEv",
            "_ZN14ssux_lock_implILb1EE7rd_waitEv",
            "_ZN14ssux_lock_implILb0EE7wr_waitEj",
            "_ZN14ssux_lock_implILb1EE7wr_waitEj",
        ],
    }
}

/// The functions of MySQL in which armtrace has its sites. bpftrace, which probes only whole functions, needs them to
/// see the waits that armtrace sees, including those that end before they sleep.
const LOCKING_FUNCTIONS: &[&str] = &[
    "_Z18mutex_enter_inlineI11PolicyMutexI14TTASEventMutexI13GenericPolicyEEEvPT_N2ut8LocationE",
    "_ZN11PolicyMutexI14TTASEventMutexI13GenericPolicyEE5enterEjjPKcj",
    "_ZN14TTASEventMutexI13GenericPolicyE17spin_and_try_lockEjjPKcj",
    "_ZN14TTASEventMutexI16BlockMutexPolicyE17spin_and_try_lockEjjPKcj",
    "_Z19rw_lock_s_lock_spinP9rw_lock_tmN2ut8LocationE",
    "_Z19rw_lock_x_lock_funcP9rw_lock_tmN2ut8LocationE",
    "_Z20rw_lock_sx_lock_funcP9rw_lock_tmN2ut8LocationE",
];

/// Returns the usual script: a histogram, for each function, of the time between entry and return.
fn script(binary: &str, functions: &[&str]) -> String {
    let one = |(i, function): (usize, &&str)| {
        format!(
            "uprobe:{binary}:{function} {{ @start[tid, {i}] = nsecs; }} \
             uretprobe:{binary}:{function} /@start[tid, {i}]/ \
               {{ @wait[{i}] = hist(nsecs - @start[tid, {i}]); delete(@start[tid, {i}]); }} "
        )
    };
    // bpftrace prints the output of BEGIN only after it has attached everything.
    functions.iter().enumerate().map(one).collect::<String>()
        + "BEGIN { printf(\"attached\\n\"); } END { clear(@start); }"
}

fn bpftrace(pid: &str, release: Release, functions: &[&str]) -> Result<(Attached, Option<Duration>)> {
    // MySQL runs in its own root file system.
    let program = fs::read_link(format!("/proc/{pid}/exe"))?;
    let binary = match release {
        Release::MYSQL_9_7 => format!("/proc/{pid}/root/usr/sbin/mysqld"),
        _ => program.display().to_string(),
    };
    let start = Instant::now();
    let mut tool = Tool::start("bpftrace", &["-B", "line", "-p", pid, "-e", &script(&binary, functions)])?;
    wait_for("bpftrace to attach", PATIENCE, || {
        if let Some(status) = tool.child.try_wait()? {
            bail!("bpftrace exited ({status}): {}", tool.read("err")?.trim());
        }
        Ok(tool.read("out")?.lines().any(|line| line == "attached").then_some(()))
    })?;
    Ok((Attached::Tool(tool), Some(start.elapsed())))
}
