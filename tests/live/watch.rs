//! Watchpoints on the cache line of a latch.

use std::ops::Range;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use armtrace::agent::{self, Agent};
use armtrace::host::{Domains, Machine};
use armtrace::isa::Access;
use armtrace::measure::latch::{StatementDetail, StatementOptions};
use armtrace::measure::watchpoint::{self, Allowance, CodeAt, Scene};
use armtrace::measure::watchpoint::{Sharing, WatchedWord};
use armtrace::server::Target;

use lab::agent::{loaded_programs, program};
use lab::load::Load;
use lab::releases::Release;
use lab::server::{wait_for, Options, Server};

/// More than one cache line on any machine.
#[repr(align(512))]
struct Counters([AtomicU64; 128]);

/// Pins the calling thread to a CPU.
fn pin_to(cpu: usize) {
    // SAFETY: the set is plain data, and is set up before it is passed.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set);
    }
}

/// Survives the traps without a cause that a hypervisor may let through: see [`survive_watching`].
fn survive_traps() {
    extern "C" fn nothing(_signal: i32) {}
    // SAFETY: the handler does nothing. A signal that the kernel forces on a thread cannot be ignored, only handled.
    unsafe { libc::signal(libc::SIGTRAP, nothing as extern "C" fn(i32) as libc::sighandler_t) };
}

/// Watches the cache line of counter 0 while two threads on two CPUs count, one in counter 0 and one in `other`.
fn watch_two_threads(other: usize) -> Result<Vec<WatchedWord>> {
    let counters = Counters(std::array::from_fn(|_| AtomicU64::new(0)));
    let is_over = AtomicBool::new(false);
    let count = |cpu: usize, counter: usize| {
        pin_to(cpu);
        // Plain stores: on emulated machines, watchpoints miss atomic instructions.
        for count in 0.. {
            if is_over.load(Ordering::Relaxed) {
                break;
            }
            counters.0[counter].store(count, Ordering::Relaxed);
            (0..50).for_each(|_| std::hint::spin_loop());
        }
    };
    let address = std::ptr::from_ref(&counters.0[0]) as u64;
    let bursts = std::thread::scope(|scope| {
        scope.spawn(|| count(0, 0));
        scope.spawn(|| count(1, other));
        let no_limit = Allowance { share: 1.0, hit_ns: 0.0 };
        let bursts =
            watchpoint::watch(std::process::id() as i32, address, Machine::this().cache_line_bytes(), no_limit, |_| {
                false
            });
        is_over.store(true, Ordering::Relaxed);
        bursts
    })?;
    let latch: Range<u64> = address..address + watchpoint::WORD;
    let scene = Scene { pid: std::process::id(), word: address, latch, topology: None };
    let writes = CodeAt { access: Some(Access::Write), ..CodeAt::default() };
    Ok(watchpoint::words(&scene, &bursts, &mut |_| writes.clone()))
}

/// Watches until there are enough touches. With `moves`, there must also be enough by the two CPUs in alternation.
fn verdict(other: usize, moves: bool) -> Result<Sharing> {
    let is_enough = |words: &[WatchedWord]| {
        let moved: u64 = words.iter().map(|word| word.moves.moved).sum();
        words.iter().any(|word| word.moves.followed >= 100) && (!moves || moved >= 100)
    };
    let words = wait_for("enough touches", Duration::from_secs(30), || {
        Ok(Some(watch_two_threads(other)?).filter(|words| is_enough(words)))
    })?;
    println!("other counter at {}: {:?}", 8 * other, words.iter().map(|w| (w.offset, w.moves)).collect::<Vec<_>>());
    Ok(watchpoint::verdict(&words))
}

#[test]
fn two_counters_on_one_line_are_false_sharing_and_on_two_lines_are_not() -> Result<()> {
    survive_traps();
    ensure!(verdict(1, true)? == Sharing::FalseSharing);
    ensure!(verdict(0, true)? == Sharing::LatchOnly, "two threads share one counter");
    ensure!(verdict(64, false)? == Sharing::Still, "the counters are on two lines");
    Ok(())
}

/// Takes four watchpoints, which every processor has.
pub fn all_watchpoints() -> Result<watchpoint::Watchpoints> {
    let words = [0_u64; 4];
    let addresses: Vec<u64> = words.iter().map(|word| std::ptr::from_ref(word) as u64).collect();
    watchpoint::Watchpoints::open(&addresses, 1).context("a watchpoint was left behind")
}

/// Checks that no watchpoint and no BPF program was left behind. The kernel frees programs shortly after their process
/// has exited.
pub fn none_is_left() -> Result<()> {
    all_watchpoints()?;
    wait_for("the BPF programs to be freed", Duration::from_secs(10), || {
        Ok(loaded_programs()?.is_empty().then_some(()))
    })
}

/// How many servers may be killed by the fault of hypervisors because of which `--accept-crash-risk` is needed. Here it
/// kills one in about 30.
const MOST_KILLED: usize = 2;

/// Watches latches of a server, and again on another one if the server is killed meanwhile.
pub fn survive_watching(release: Release, watch: impl Fn(&Server) -> Result<()>) -> Result<()> {
    let mut killed = 0;
    loop {
        let server = Server::start(release, &Options::default())?;
        match watch(&server) {
            Err(error) if killed < MOST_KILLED && in_virtual_machine()? && !server.running() => {
                println!("the server was killed: {error:#}");
                killed += 1;
            }
            watched => return watched.and_then(|()| server.stop()),
        }
    }
}

/// Whether a watched access can kill a process here, by what the kernel says of the CPU. Arm64 has no such flag.
fn in_virtual_machine() -> Result<bool> {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo")?;
    Ok(cpuinfo.lines().any(|line| line.starts_with("flags") && line.split(' ').any(|flag| flag == "hypervisor")))
}

/// Watches a hot latch of a server under load. The functions that touch it are named, and the limits are respected.
fn hot_latch_is_watched(server: &Server, threads: u32, latch: &str) -> Result<()> {
    let mut load = Load::start(server, "oltp_update_index", threads)?;
    load.wait_running()?;
    let pid = server.pid().to_string();
    let run = |args: &[&str]| {
        let mut command = Command::new(program());
        command.args(["--pid", &pid, "--max-overhead", "10%", "--accept-crash-risk", "--watch"]);
        command.args(args).stdin(Stdio::null()).output()
    };
    let text = run(&[latch])?;
    let stdout = String::from_utf8_lossy(&text.stdout);
    println!("{stdout}{}", String::from_utf8_lossy(&text.stderr));
    ensure!(text.status.success() && stdout.contains("the latch"), "the report does not mention the latch");
    let json = run(&[latch, "--format", "json"])?;
    let found: serde_json::Value =
        serde_json::from_slice(&json.stdout).with_context(|| String::from_utf8_lossy(&json.stderr).into_owned())?;
    let ambiguous = run(&["wait/synch"])?;
    let report = load.stop()?;
    none_is_left()?;
    ensure!(report.errors == 0, "{} statements failed", report.errors);
    let error = String::from_utf8_lossy(&ambiguous.stderr);
    ensure!(ambiguous.status.code() == Some(2) && error.contains("may mean any of"), "{error}");

    let number = |value: &serde_json::Value| value.as_u64().with_context(|| format!("{value} is not a number"));
    ensure!(found["latch"].as_str().is_some_and(|name| name.ends_with(latch)), "{found}");
    let bursts = number(&found["bursts"])?;
    let most = bursts * 2 * number(&found["hits_per_burst"])? * number(&found["cpus"])?;
    // The kernel may report a few more accesses before it has disabled a watchpoint.
    ensure!(bursts > 10 && number(&found["hits"])? <= most + most / 10, "{} accesses, at most {most}", found["hits"]);
    let words = found["words"].as_array().context("no words")?;
    let own = words.iter().find(|word| word["offset"] == 0).context("the latch was not watched")?;
    let named = |f: &&serde_json::Value| f["function"].as_str().is_some_and(|name| !name.starts_with(['?', '<']));
    let functions = own["functions"].as_array().context("no functions")?;
    ensure!(number(&own["touches"])? > 100 && functions.iter().any(|f| named(&f)), "{own}");
    let sum = |key: &str| functions.iter().map(|f| number(&f[key])).sum::<Result<u64>>();
    ensure!(sum("touches")? == number(&own["touches"])?, "{own}");
    // Acquiring and releasing a latch writes to it.
    ensure!(sum("writes")? > 0 && sum("writes")? == number(&own["writes"])?, "{own}");
    Ok(())
}

#[test]
fn a_hot_latch_of_mysql_is_watched() -> Result<()> {
    survive_watching(Release::MYSQL_9_7, |server| hot_latch_is_watched(server, 16, "trx_sys_mutex"))
}

#[test]
#[ignore = "as on MySQL: make test-all"]
fn a_hot_latch_of_mariadb_is_watched() -> Result<()> {
    survive_watching(Release::MARIADB_11_4, |server| hot_latch_is_watched(server, 32, "lock_latch"))
}

/// Where a watched access can kill the server, `--watch` needs consent.
#[test]
fn the_risk_of_a_crash_must_be_accepted() -> Result<()> {
    let run = |args: &[&str]| Command::new(program()).args(args).stdin(Stdio::null()).output();
    let doctor = String::from_utf8_lossy(&run(&["doctor"])?.stdout).into_owned();
    let warns = doctor.contains("no  hardware watchpoints: no --watch: in a virtual machine");
    ensure!(warns == in_virtual_machine()?, "{doctor}");
    if !warns {
        return Ok(());
    }
    let server = Server::start(Release::MYSQL_9_7, &Options::default())?;
    let refused = run(&["--pid", &server.pid().to_string(), "--watch", "trx_sys_mutex"])?;
    let error = String::from_utf8_lossy(&refused.stderr);
    ensure!(refused.status.code() == Some(4) && error.contains("--accept-crash-risk"), "{error}");
    server.stop()
}

/// When probes are detached, open waits are dropped, because their ends would not be seen.
#[test]
fn detaching_probes_drops_open_waits() -> Result<()> {
    let server = Server::start(Release::MARIADB_11_4, &Options::default())?;
    let mut load = Load::start(&server, "oltp_update_index", 32)?;
    load.wait_running()?;
    let target = Target::open(server.pid())?;
    let agent = Agent::attach(
        target,
        agent::Options {
            max_overhead: 0.01,
            without_probes: false,
            statements: StatementOptions { detail: StatementDetail::Off, ..StatementOptions::default() },
            keep: Duration::ZERO,
            cache: None,
            domains: Domains::Off,
            more: None,
        },
    )?;
    let latches = agent.source().latches();
    let waiting = || Ok::<_, anyhow::Error>(Some(latches.waited_for_now()?.len()).filter(|waiting| *waiting > 3));
    // SAFETY: signals to our own server, which is running.
    let signal = |signal| unsafe { libc::kill(server.pid(), signal) };
    // Stop the server, so that no wait ends before the probes are detached.
    let before = wait_for("several waits at once", Duration::from_secs(20), || {
        signal(libc::SIGSTOP);
        let before = waiting()?;
        if before.is_none() {
            signal(libc::SIGCONT);
        }
        Ok(before)
    })?;
    agent.pause();
    let after = latches.waited_for_now()?;
    signal(libc::SIGCONT);
    agent.resume();
    wait_for("several waits at once again", Duration::from_secs(20), waiting)?;
    agent.detach();
    ensure!(after.is_empty(), "{before} waits were open, and after the pause still {after:?}");
    load.stop()?;
    server.stop()
}
