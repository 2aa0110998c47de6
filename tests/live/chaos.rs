//! Kills at random moments: the server must not notice, nothing may stay behind, and a restart must work at once.
//!
//! `make chaos` does it three hundred times, the tests that everybody runs a few times: `ARMTRACE_CHAOS` is the number,
//! and `ARMTRACE_CYCLES` that of attachments.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use armtrace::attach::breakpoints;
use armtrace::server::{file_mappings, Memory};

use lab::agent::{free_port, loaded_programs, program};
use lab::cgroup::Cgroup;
use lab::http;
use lab::load::Load;
use lab::machine::patience;
use lab::releases::Release;
use lab::server::{wait_for, Options, Server};

/// How long a restarted agent may take until it serves metrics.
const BACK: Duration = Duration::from_secs(5);

/// The longest time that an agent runs before it is killed. Turns of the probes come and go meanwhile.
const LIFE_MS: u64 = 1500;

/// The longest time that an agent attaches or detaches before it is killed. Attaching takes about half a second.
const ATTACHING_MS: u64 = 600;
const DETACHING_MS: u64 = 20;

/// What an agent needs, with the files that it reads.
const SHORT_OF_MEMORY: u64 = 256 << 20;

/// The most memory of its own that the helper may have, in KiB.
const MOST_OF_HELPER: u64 = 4096;

/// What is killed at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Killed {
    /// The agent.
    Agent,
    /// The agent's process group, with its helper.
    Group,
    /// First the helper, a moment later the agent.
    HelperFirst,
    /// The agent's cgroup, as at the end of a container.
    Cgroup,
    /// Whom the OOM killer chooses in a cgroup that is short of memory.
    ByMemory,
}

impl Killed {
    const ALL: [Killed; 5] = [Killed::Agent, Killed::Group, Killed::HelperFirst, Killed::Cgroup, Killed::ByMemory];

    /// Whether the helper finishes what it does.
    fn spares_helper(self) -> bool {
        matches!(self, Killed::Agent | Killed::ByMemory)
    }
}

/// What the agent does when it is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    Attaching,
    Running,
    Detaching,
}

/// An agent in a process group of its own.
struct Victim {
    child: Child,
    address: String,
    /// What it has written to standard error.
    said: tempfile::NamedTempFile,
    began: Instant,
}

impl Victim {
    fn start(server: &Server, address: &str, more: &[&str]) -> Result<Victim> {
        Victim::start_by(Command::new(program()), server, address, more)
    }

    fn start_by(mut command: Command, server: &Server, address: &str, more: &[&str]) -> Result<Victim> {
        let said = tempfile::NamedTempFile::new()?;
        let child = command
            .args(["--pid", &server.pid().to_string(), "--listen", address])
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(said.reopen()?)
            .process_group(0)
            .spawn()
            .context("starting the agent")?;
        Ok(Victim { child, address: address.to_owned(), said, began: Instant::now() })
    }

    fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Waits until it serves metrics. Returns how long that took from its start.
    fn wait_until_it_serves(&mut self) -> Result<Duration> {
        wait_for("metrics", Duration::from_secs(30), || {
            let said = || std::fs::read_to_string(self.said.path()).unwrap_or_default();
            ensure!(self.child.try_wait()?.is_none(), "the agent did not start: {}", said());
            Ok(http::get(&self.address, "/healthz").ok())
        })?;
        Ok(self.began.elapsed())
    }

    /// Kills it, or, if it is to detach, while it detaches.
    fn kill(&mut self, killed: Killed, group: Option<&Cgroup>, moment: Moment, after: Duration) -> Result<()> {
        let pid = self.pid();
        if killed == Killed::ByMemory {
            return self.starve(group.context("no limit of memory")?, moment);
        }
        if moment == Moment::Detaching {
            signal(pid, libc::SIGINT);
            sleep(after);
        }
        match killed {
            Killed::Agent | Killed::ByMemory => signal(pid, libc::SIGKILL),
            Killed::Group => signal(-pid, libc::SIGKILL),
            Killed::HelperFirst => {
                children(pid).into_iter().for_each(|helper| signal(helper, libc::SIGKILL));
                sleep(Duration::from_millis(1));
                signal(pid, libc::SIGKILL);
            }
            Killed::Cgroup => group.context("no group to kill")?.kill()?,
        }
        Ok(())
    }

    /// Has another process take the memory that is left, until the OOM killer ends the agent.
    fn starve(&mut self, memory: &Cgroup, moment: Moment) -> Result<()> {
        std::fs::write(format!("/proc/{}/oom_score_adj", self.pid()), "1000")?;
        let mut greedy = memory.command(&PathBuf::from("tail")).arg("/dev/zero").stdout(Stdio::null()).spawn()?;
        if moment == Moment::Detaching {
            let pid = greedy.id() as i32;
            while resident(pid).is_some_and(|kib| kib << 10 < SHORT_OF_MEMORY / 2) {
                sleep(Duration::from_millis(1));
            }
            signal(self.pid(), libc::SIGINT);
        }
        let ended = wait_for("the OOM killer", Duration::from_secs(20), || Ok(self.child.try_wait()?));
        greedy.kill()?;
        greedy.wait()?;
        ended.map(|_| ())
    }

    /// Waits until its helper has ended too.
    fn wait_for_helper(&self) -> Result<()> {
        // SAFETY: signal 0 asks whether the group has processes.
        let is_empty = || unsafe { libc::kill(-self.pid(), 0) } != 0;
        wait_for("the helper to end", Duration::from_secs(10), || Ok(is_empty().then_some(())))
    }
}

/// Sends a signal to our own child, to its children or its group, or to the lab's server.
fn signal(pid: i32, signal: i32) {
    // SAFETY: takes numbers.
    unsafe { libc::kill(pid, signal) };
}

/// Returns the memory of its own that a process has, in KiB.
fn resident(pid: i32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    line.trim().trim_end_matches(" kB").parse().ok()
}

/// Returns the number of descriptors that a process has.
fn descriptors(pid: i32) -> Result<usize> {
    Ok(std::fs::read_dir(format!("/proc/{pid}/fd"))?.count())
}

/// Returns the children of a process.
fn children(pid: i32) -> Vec<i32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let listed = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    listed.flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect()
}

/// Fails if the code of the server's program is not what its file has.
fn code_is_as_in_its_file(server: &Server) -> Result<()> {
    use std::os::unix::fs::FileExt;
    let exe = std::fs::read_link(format!("/proc/{}/exe", server.pid()))?;
    let exe = exe.to_str().context("the server's path")?;
    let mappings = file_mappings(server.pid());
    let code: Vec<_> = mappings.iter().filter(|mapping| mapping.is_code && mapping.path() == exe).collect();
    ensure!(!code.is_empty(), "the server has no code");
    for mapping in code {
        let length = (mapping.end - mapping.start) as usize;
        let (mut memory, mut original) = (vec![0; length], vec![0; length]);
        Memory::new(server.pid()).read(mapping.start, &mut memory)?;
        let in_file = mapping.file(server.pid())?.read_at(&mut original, mapping.offset)?;
        let differ = memory.iter().zip(&original).take(in_file).filter(|(now, before)| now != before).count();
        ensure!(in_file > 0 && differ == 0, "{differ} bytes of the server's code differ from its file");
    }
    Ok(())
}

fn rounds() -> Result<usize> {
    std::env::var("ARMTRACE_CHAOS").map_or(Ok(15), |rounds| Ok(rounds.parse()?))
}

/// The groups in which agents are killed, as far as this machine has them.
struct Groups {
    killed: Option<Cgroup>,
    memory: Option<Cgroup>,
}

impl Groups {
    fn new() -> Result<Groups> {
        Ok(Groups { killed: Cgroup::that_is_killed(), memory: Cgroup::with_memory(SHORT_OF_MEMORY)? })
    }

    fn of(&self, kind: Killed) -> Option<&Cgroup> {
        match kind {
            Killed::Cgroup => self.killed.as_ref(),
            Killed::ByMemory => self.memory.as_ref(),
            _ => None,
        }
    }

    /// Returns what can be tried.
    fn kinds(&self) -> Vec<Killed> {
        let needs_group = |kind| matches!(kind, Killed::Cgroup | Killed::ByMemory);
        Killed::ALL.into_iter().filter(|kind| !needs_group(*kind) || self.of(*kind).is_some()).collect()
    }
}

/// What came of the kills of one kind.
#[derive(Clone, Copy, Debug, Default)]
struct Outcome {
    kills: usize,
    /// After how many the restarted agent took out breakpoints.
    left: usize,
    /// The longest time from a start to metrics, of the agents that were then killed.
    slowest: Duration,
}

impl Outcome {
    /// Kills an agent that has just been started. Returns what it has said.
    fn add(
        &mut self,
        agent: &mut Victim,
        (kind, moment): (Killed, Moment),
        group: Option<&Cgroup>,
        random: &mut fastrand::Rng,
    ) -> Result<String> {
        let mut longest = ATTACHING_MS;
        if moment != Moment::Attaching {
            let took = agent.wait_until_it_serves()?;
            ensure!(took < patience(BACK), "{took:?} until metrics were back");
            self.slowest = self.slowest.max(took);
            longest = LIFE_MS;
        }
        sleep(Duration::from_millis(random.u64(..longest)));
        for helper in children(agent.pid()) {
            let kib = resident(helper).unwrap_or(0);
            ensure!(kib < MOST_OF_HELPER, "the helper takes {kib} KiB");
        }
        agent.kill(kind, group, moment, Duration::from_millis(random.u64(..DETACHING_MS)))?;
        let status = agent.child.wait()?;
        let said = std::fs::read_to_string(agent.said.path())?;
        ensure!(status.signal() == Some(libc::SIGKILL) || status.success(), "{status}: {said}");
        ensure!(!said.contains("taken by"), "{said}");
        // It may have been quicker.
        self.kills += usize::from(!status.success());
        Ok(said)
    }
}

fn kills(release: Release) -> Result<()> {
    let groups = Groups::new()?;
    let kinds = groups.kinds();
    let server = Server::start(release, &Options::default())?;
    let mut load = Load::start(&server, "oltp_update_index", 16)?;
    load.wait_running()?;
    let address = format!("127.0.0.1:{}", free_port()?);
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    println!("seed {seed}");
    let mut outcomes = [Outcome::default(); Killed::ALL.len()];
    let mut before = None;
    for round in 0..rounds()? {
        let kind = kinds[round % kinds.len()];
        let moment = [Moment::Attaching, Moment::Running, Moment::Detaching][round / kinds.len() % 3];
        let group = groups.of(kind);
        let command = group.map_or_else(|| Command::new(program()), |group| group.command(&program()));
        let mut agent = Victim::start_by(command, &server, &address, &[])?;
        let said = outcomes[kind as usize]
            .add(&mut agent, (kind, moment), group, &mut random)
            .with_context(|| format!("round {round}: {kind:?}, {moment:?}"))?;
        if let Some(before) = before.filter(|_| said.contains("now taken out")) {
            outcomes[before as usize].left += 1;
        }
        before = Some(kind);
        // In other rounds the next agent begins while the helper still detaches.
        if kind.spares_helper() && random.bool() {
            agent.wait_for_helper()?;
            let left = breakpoints(server.pid())?;
            ensure!(left == 0, "round {round}: {kind:?}, {moment:?}: {left} breakpoints were left");
        }
    }
    let mut last = Victim::start(&server, &address, &[])?;
    ensure!(last.wait_until_it_serves()? < patience(BACK), "metrics were not back in time");
    signal(last.pid(), libc::SIGINT);
    ensure!(last.child.wait()?.success(), "the last agent failed");
    nothing_is_left(&server)?;
    let report = load.stop()?;
    println!("{}: {} transactions, {} errors", release.name(), report.transactions, report.errors);
    for kind in kinds {
        println!("{kind:?}: {:?}", outcomes[kind as usize]);
    }
    ensure!(report.errors == 0 && report.reconnects == 0 && report.transactions > 0, "{report:?}");
    server.shut_down()
}

fn nothing_is_left(server: &Server) -> Result<()> {
    wait_for("the last breakpoint to go", Duration::from_secs(5), || {
        Ok((breakpoints(server.pid())? == 0 && loaded_programs()?.is_empty()).then_some(()))
    })?;
    code_is_as_in_its_file(server)
}

#[test]
fn kills_of_the_agent_leave_nothing_on_mysql() -> Result<()> {
    kills(Release::MYSQL_9_7)
}

#[test]
#[ignore = "as on MySQL: make test-all"]
fn kills_of_the_agent_leave_nothing_on_mariadb() -> Result<()> {
    kills(Release::MARIADB_11_4)
}

/// As systemd stops a service: all its processes are told to end (`KillMode=control-group`), or only the main one, and
/// what is left is killed (`mixed`).
#[test]
fn a_stop_of_all_processes_detaches() -> Result<()> {
    let server = Server::start(Release::MARIADB_11_4, &Options::default())?;
    let mut load = Load::start(&server, "oltp_update_index", 16)?;
    load.wait_running()?;
    let address = format!("127.0.0.1:{}", free_port()?);
    for is_mixed in [false, true] {
        let mut agent = Victim::start(&server, &address, &[])?;
        agent.wait_until_it_serves()?;
        ensure!(breakpoints(server.pid())? > 0, "attached, but there is no breakpoint: this test could not fail");
        signal(if is_mixed { agent.pid() } else { -agent.pid() }, libc::SIGTERM);
        ensure!(agent.child.wait()?.success(), "the agent failed");
        if is_mixed {
            signal(-agent.pid(), libc::SIGKILL);
        }
        agent.wait_for_helper()?;
        ensure!(breakpoints(server.pid())? == 0, "mixed: {is_mixed}: breakpoints were left");
    }
    nothing_is_left(&server)?;
    let report = load.stop()?;
    ensure!(report.errors == 0 && report.reconnects == 0 && report.transactions > 0, "{report:?}");
    server.shut_down()
}

/// Memory and descriptors of an agent and its helper.
#[derive(Debug)]
struct Size {
    resident_kib: u64,
    descriptors: usize,
}

fn size(agent: &Victim) -> Result<Size> {
    let helpers = children(agent.pid());
    ensure!(helpers.len() == 1, "the agent has {} helpers", helpers.len());
    let mut sum = Size { resident_kib: 0, descriptors: 0 };
    for pid in helpers.into_iter().chain([agent.pid()]) {
        sum.resident_kib += resident(pid).context("a process without memory")?;
        sum.descriptors += descriptors(pid)?;
    }
    Ok(sum)
}

/// Takes all probes off and puts them back, again and again.
fn attachments(release: Release) -> Result<()> {
    let cycles: usize = std::env::var("ARMTRACE_CYCLES").map_or(Ok(30), |cycles| cycles.parse())?;
    let server = Server::start(release, &Options::default())?;
    let mut load = Load::start(&server, "oltp_update_index", 16)?;
    load.wait_running()?;
    let mut agent = Victim::start(&server, &format!("127.0.0.1:{}", free_port()?), &["--max-overhead", "100%"])?;
    agent.wait_until_it_serves()?;
    let (mut sizes, mut slowest) = (Vec::new(), Duration::ZERO);
    for cycle in 1..=cycles {
        let began = Instant::now();
        for (request, are_there) in [(libc::SIGUSR1, false), (libc::SIGUSR2, true)] {
            signal(agent.pid(), request);
            wait_for("the probes", Duration::from_secs(5), || {
                Ok(((breakpoints(server.pid())? > 0) == are_there).then_some(()))
            })?;
        }
        slowest = slowest.max(began.elapsed());
        if cycle % cycles.div_ceil(10) == 0 {
            sizes.push(size(&agent)?);
        }
    }
    signal(agent.pid(), libc::SIGINT);
    ensure!(agent.child.wait()?.success(), "the agent failed");
    nothing_is_left(&server)?;
    let report = load.stop()?;
    println!("{}: {cycles} cycles, the slowest {slowest:?}, {sizes:?}", release.name());
    println!("{} transactions, {} errors", report.transactions, report.errors);
    ensure!(report.errors == 0 && report.reconnects == 0 && report.transactions > 0, "{report:?}");
    // In the first half, everything has been used for the first time. That takes half a minute: a short run says
    // nothing of memory. What a moment has open depends on what is being read or attached then, so the most counts.
    let is_long = cycles >= 200;
    let (first, second) = sizes.split_at(sizes.len() / 2);
    let most_descriptors = |sizes: &[Size]| sizes.iter().map(|size| size.descriptors).max();
    ensure!(most_descriptors(second) <= most_descriptors(first).map(|most| most + 4), "descriptors: {sizes:?}");
    let (middle, last) = (&sizes[sizes.len() / 2], &sizes[sizes.len() - 1]);
    ensure!(!is_long || last.resident_kib < middle.resident_kib + 4096, "memory: {middle:?}, then {last:?}");
    server.shut_down()
}

#[test]
fn attaching_again_and_again_takes_no_more_on_mysql() -> Result<()> {
    attachments(Release::MYSQL_9_7)
}

#[test]
#[ignore = "as on MySQL: make test-all"]
fn attaching_again_and_again_takes_no_more_on_mariadb() -> Result<()> {
    attachments(Release::MARIADB_11_4)
}

/// How a server is made to stop and to go on.
#[derive(Clone, Copy, Debug)]
enum Stopped<'a> {
    BySignal,
    /// With its group, as a container is.
    Frozen(&'a Cgroup),
}

impl Stopped<'_> {
    fn stop(self, server: &Server) -> Result<()> {
        match self {
            Stopped::BySignal => signal(server.pid(), libc::SIGSTOP),
            Stopped::Frozen(group) => group.freeze()?,
        }
        Ok(())
    }

    fn go_on(self, server: &Server) -> Result<()> {
        match self {
            Stopped::BySignal => signal(server.pid(), libc::SIGCONT),
            Stopped::Frozen(group) => group.thaw()?,
        }
        Ok(())
    }
}

/// A server that is stopped answers nothing, and its threads neither wait nor run.
#[test]
fn a_stopped_server_holds_nothing_up() -> Result<()> {
    let group = Cgroup::that_freezes();
    let server = Server::start(Release::MARIADB_11_4, &Options::default())?;
    let mut load = Load::start(&server, "oltp_update_index", 16)?;
    load.wait_running()?;
    if let Some(group) = &group {
        group.add(server.pid())?;
    }
    for how in [Stopped::BySignal].into_iter().chain(group.as_ref().map(Stopped::Frozen)) {
        attach_and_detach_while(how, &server).with_context(|| format!("{how:?}"))?;
    }
    ensure!(breakpoints(server.pid())? == 0, "breakpoints are left");
    let report = load.stop()?;
    ensure!(report.errors == 0 && report.reconnects == 0 && report.transactions > 0, "{report:?}");
    server.shut_down()
}

/// One agent is attached when the server stops and detaches while it is stopped; another one does both meanwhile.
fn attach_and_detach_while(how: Stopped, server: &Server) -> Result<()> {
    let address = format!("127.0.0.1:{}", free_port()?);
    let mut first = Victim::start(server, &address, &[])?;
    first.wait_until_it_serves()?;
    how.stop(server)?;
    sleep(Duration::from_secs(2));
    let looked = look_and_end(&mut first);
    let second = Victim::start(server, &address, &[]).and_then(|mut second| {
        second.wait_until_it_serves()?;
        look_and_end(&mut second)
    });
    // Go on in any case: a stopped server cannot be shut down.
    how.go_on(server)?;
    looked.and(second)
}

fn look_and_end(agent: &mut Victim) -> Result<()> {
    let began = Instant::now();
    let answer = http::get(&agent.address, "/metrics");
    let took = began.elapsed();
    signal(agent.pid(), libc::SIGINT);
    let ended = wait_for("the agent to exit", Duration::from_secs(20), || Ok(agent.child.try_wait()?))?;
    ensure!(answer?.body.contains("armtrace_target_up 1"), "no metrics of a stopped server");
    ensure!(took < patience(Duration::from_secs(2)), "a scrape of a stopped server took {took:?}");
    ensure!(ended.success());
    Ok(())
}
