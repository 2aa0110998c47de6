//! The agent's footprint: its memory, its CPU time when idle, and the cost of a scrape with few and many connections.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use armtrace::measure::barriers::COUNTING_THREAD;
use armtrace::names::ANALYSIS_THREAD;
use procfs::process::Process;

use crate::budget::is_calibrated;
use lab::agent::Agent;
use lab::load::Load;
use lab::machine::{patience, LightWork};
use lab::releases::Release;
use lab::server::{wait_for, Options, Server};

const MIB: u64 = 1 << 20;
/// The most resident memory after attach, with the past that is kept.
const MOST_MEMORY: u64 = 48 * MIB;
/// The threads that analyse the server's code once.
const ANALYSES: [&str; 2] = [ANALYSIS_THREAD, COUNTING_THREAD];
/// The most CPU time when idle, as a multiple of that of light work, with a scrape in each interval. Light work takes
/// some 0.2 % of a CPU; looks at the threads of a server that stands still take up to 0.12 %. It was 4 to 7 times as
/// much on a machine whose kernel pages out what is seldom used.
const MOST_IDLE_CPU: f64 = 8.0;
const SCRAPE_INTERVAL: Duration = Duration::from_secs(15);
/// The number of idle intervals. The cheapest counts, because other load on the machine makes everything slower.
const IDLE_INTERVALS: usize = 4;
/// The most CPU time of one scrape.
const LONGEST_SCRAPE: Duration = Duration::from_millis(5);
/// The most by which the cost of a line of a scrape may grow with a thousand connections. The goal is a fifth more, but
/// a thousand threads leave less space in the CPU caches.
const MOST_GROWTH: f64 = 2.0;
/// The scrapes whose CPU time is measured: as many as take several of the hundredths in which the kernel counts it.
const SCRAPES: u32 = 1000;
/// The number of slow clients, and the most CPU time of an answer beside them, as a multiple of one without them.
const SLOW_CLIENTS: usize = 1000;
const MOST_HTTP_CPU: f64 = 2.5;

/// Returns the CPU time of a process so far.
fn cpu_time(pid: i32) -> Result<Duration> {
    let (mut clock, mut time) = (0, libc::timespec { tv_sec: 0, tv_nsec: 0 });
    // SAFETY: both write to variables of the types that they expect.
    let read = unsafe { libc::clock_getcpuclockid(pid, &mut clock) == 0 && libc::clock_gettime(clock, &mut time) == 0 };
    ensure!(read, "no CPU time of process {pid}");
    Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

fn resident(pid: i32) -> Result<u64> {
    Ok(Process::new(pid)?.status()?.vmrss.context("no resident memory")? * 1024)
}

/// Returns the mean CPU time of a scrape, without what the agent uses by itself in the same time.
fn scrape(agent: &Agent) -> Result<Duration> {
    let (before, age) = (cpu_time(agent.pid())?, agent.age());
    for _ in 0..SCRAPES {
        agent.metrics()?;
    }
    let (used, window) = (cpu_time(agent.pid())? - before, agent.age() - age);
    let before = cpu_time(agent.pid())?;
    sleep(window);
    let idle = cpu_time(agent.pid())? - before;
    Ok(used.saturating_sub(idle) / SCRAPES)
}

/// Returns the least of three measurements, because other load on the machine makes everything slower.
fn least_scrape(agent: &Agent) -> Result<Duration> {
    let costs = (0..3).map(|_| scrape(agent)).collect::<Result<Vec<_>>>()?;
    costs.into_iter().min().context("no scrape")
}

/// Waits until the threads that analyse the server's code have exited and the cost of probes has been measured.
fn wait_until_settled(agent: &Agent) -> Result<()> {
    wait_for("the analysis of the server's code", Duration::from_secs(60), || {
        let mut tasks = Process::new(agent.pid())?.tasks()?;
        let is_analysing = tasks
            .any(|task| task.is_ok_and(|task| task.status().is_ok_and(|status| ANALYSES.contains(&&*status.name))));
        Ok((!is_analysing && is_calibrated(agent)?.is_some()).then_some(()))
    })
}

#[test]
fn many_connections_do_not_slow_scrapes_down() -> Result<()> {
    let args = ["--max-connections=1100", "--innodb-buffer-pool-size=8M"].map(str::to_owned).to_vec();
    let server = Server::start(Release::MYSQL_9_7, &Options { args, ..Options::default() })?;
    let agent = Agent::attach(&server)?;
    wait_until_settled(&agent)?;
    let mut costs = Vec::new();
    for threads in [16, 1024] {
        let mut load = Load::start(&server, "oltp_update_index", threads)?;
        load.wait_running()?;
        wait_for("all connections", Duration::from_secs(60), || {
            Ok((server.status("Threads_connected")? >= u64::from(threads)).then_some(()))
        })?;
        sleep(Duration::from_secs(2));
        costs.push((least_scrape(&agent)?, agent.metrics()?.lines().count(), resident(agent.pid())?));
        load.stop()?;
    }
    println!("CPU time of a scrape, lines, resident memory: {costs:?}");
    agent.stop()?;
    server.stop()?;
    let [(few, few_lines, _), (many, many_lines, memory)] = costs[..] else { unreachable!("two loads") };
    ensure!(few > Duration::ZERO && few <= LONGEST_SCRAPE && many <= LONGEST_SCRAPE, "{few:?} and {many:?}");
    // Compare the cost per line: a heavier load has waits for more latches, and so more lines.
    let per_line = |cost: Duration, lines: usize| cost.as_secs_f64() / lines as f64;
    let growth = per_line(many, many_lines) / per_line(few, few_lines);
    ensure!(growth <= MOST_GROWTH, "a line of a scrape costs {growth:.2} times as much with many connections");
    ensure!(memory <= MOST_MEMORY, "{} MiB are resident", memory / MIB);
    Ok(())
}

/// A client that keeps its connection for nothing.
struct SlowClient {
    stream: TcpStream,
    /// What it has not sent yet, and how much of that it sends at a time.
    unsent: &'static [u8],
    piece: usize,
}

impl SlowClient {
    /// Connects. Depending on its number it never asks, sends a byte now and then, or does not read its answer.
    fn connect(address: &str, number: usize) -> io::Result<SlowClient> {
        const REQUEST: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
        let stream = TcpStream::connect(address)?;
        stream.set_nonblocking(true)?;
        let (unsent, piece) = [(&[][..], 0), (REQUEST, 1), (REQUEST, REQUEST.len())][number % 3];
        Ok(SlowClient { stream, unsent, piece })
    }

    /// Sends its next piece, if there is one. Returns whether the server has closed the connection.
    fn go_on(&mut self) -> bool {
        let (piece, rest) = self.unsent.split_at(self.piece.min(self.unsent.len()));
        self.unsent = rest;
        let mut state = libc::pollfd { fd: self.stream.as_raw_fd(), events: libc::POLLRDHUP, revents: 0 };
        // SAFETY: there is one element, which is valid during the call.
        unsafe { libc::poll(&mut state, 1, 0) };
        self.stream.write_all(piece).is_err() || state.revents != 0
    }
}

/// Keeps so many slow clients at it; one that is cut off comes back five seconds later. Returns how often that was.
fn be_slow(address: &str, stop: &AtomicBool) -> usize {
    const PAUSE: Duration = Duration::from_secs(5);
    let connect = |number| SlowClient::connect(address, number).map_err(|_| Instant::now());
    let began = Instant::now();
    let mut clients: Vec<_> = (0..SLOW_CLIENTS).map(connect).collect();
    println!("{} slow clients connected in {:?}", clients.iter().flatten().count(), began.elapsed());
    let mut came_back = 0;
    while !stop.load(Ordering::Relaxed) {
        for (number, client) in clients.iter_mut().enumerate() {
            match client {
                Ok(slow) => {
                    if slow.go_on() {
                        *client = Err(Instant::now());
                    }
                }
                Err(since) if since.elapsed() >= PAUSE => {
                    *client = connect(number);
                    came_back += 1;
                }
                Err(_) => {}
            }
        }
        sleep(Duration::from_secs(1));
    }
    came_back
}

/// Asks on one connection, as Prometheus does: again on a new one, if it was closed. Counts the answers.
fn ask_often(address: &str, answers: &AtomicU32, stop: &AtomicBool) -> Result<()> {
    let mut stream = TcpStream::connect(address)?;
    while !stop.load(Ordering::Relaxed) {
        if !ask(&mut stream)? {
            stream = TcpStream::connect(address)?;
            ensure!(ask(&mut stream)?, "a new connection was closed after {} answers", answers.load(Ordering::Relaxed));
        }
        answers.fetch_add(1, Ordering::Relaxed);
        sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// The CPU time of an agent, and the answers that it has given for it.
#[derive(Clone, Copy)]
struct Spent {
    cpu: Duration,
    answers: u32,
}

impl Spent {
    /// Returns the CPU time of an answer.
    fn each(self) -> Duration {
        self.cpu / self.answers
    }
}

/// Returns what an agent spends while something is done.
fn spent_in(agent: &Agent, answers: &AtomicU32, mut act: impl FnMut() -> Result<()>) -> Result<Spent> {
    let so_far = || -> Result<_> { Ok((cpu_time(agent.pid())?, answers.load(Ordering::Relaxed))) };
    let (cpu, before) = so_far()?;
    act()?;
    let (cpu_now, now) = so_far()?;
    ensure!(now > before, "no answer in {:?} of CPU time", cpu_now - cpu);
    Ok(Spent { cpu: cpu_now - cpu, answers: now - before })
}

/// Returns whether there was an answer; if not, the connection was closed before.
fn ask(stream: &mut TcpStream) -> Result<bool> {
    let request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: gzip\r\n\r\n";
    let mut answer = vec![0; 1 << 20];
    let mut got = stream.write_all(request).and_then(|()| stream.read(&mut answer)).unwrap_or(0);
    if got == 0 {
        return Ok(false);
    }
    let mut whole = usize::MAX;
    while got < whole {
        if let Some(head) = answer[..got].windows(4).position(|end| end == b"\r\n\r\n") {
            let text = String::from_utf8_lossy(&answer[..head]).to_ascii_lowercase();
            ensure!(text.starts_with("http/1.1 200"), "{text}");
            let length = text.split("content-length: ").nth(1).and_then(|rest| rest.lines().next());
            whole = head + 4 + length.context("no length")?.parse::<usize>()?;
        }
        if got < whole {
            let more = stream.read(&mut answer[got..])?;
            ensure!(more > 0, "cut off in an answer");
            got += more;
        }
    }
    Ok(true)
}

#[test]
fn slow_clients_and_many_scrapes_cost_little() -> Result<()> {
    const ALONE: Duration = Duration::from_secs(3);
    let seconds: u64 = std::env::var("ARMTRACE_SLOW_CLIENTS").map_or(Ok(10), |seconds| seconds.parse())?;
    let server = Server::start(Release::MYSQL_9_7, &Options::default())?;
    let agent = Agent::attach(&server)?;
    wait_until_settled(&agent)?;
    let (stop, answers) = (AtomicBool::new(false), AtomicU32::new(0));
    let (alone, spent, slowest, came_back) = thread::scope(|scope| -> Result<_> {
        let asking: Vec<_> = (0..4).map(|_| scope.spawn(|| ask_often(&agent.address, &answers, &stop))).collect();
        sleep(Duration::from_secs(1));
        let alone = spent_in(&agent, &answers, || {
            sleep(ALONE);
            Ok(())
        });
        let slow = scope.spawn(|| be_slow(&agent.address, &stop));
        sleep(Duration::from_secs(3));
        let mut slowest = Duration::ZERO;
        let mut scrape = |_| -> Result<()> {
            let began = Instant::now();
            ensure!(agent.metrics()?.contains("armtrace_target_up 1"), "a scrape failed");
            slowest = slowest.max(began.elapsed());
            sleep(Duration::from_secs(1).saturating_sub(began.elapsed()));
            Ok(())
        };
        let spent = spent_in(&agent, &answers, || (0..seconds).try_for_each(&mut scrape));
        // Only then do the others end.
        stop.store(true, Ordering::Relaxed);
        asking.into_iter().try_for_each(|asking| asking.join().expect("no panic"))?;
        let came_back = slow.join().expect("no panic");
        Ok((alone?.each(), spent?, slowest, came_back))
    })?;
    let (Spent { cpu, answers }, each) = (spent, spent.each());
    println!(
        "{SLOW_CLIENTS} slow clients, {answers} answers, {cpu:?} of CPU time in {seconds} s: {each:?} each, {alone:?} alone"
    );
    println!("slow clients came back {came_back} times; the slowest scrape of its own took {slowest:?}");
    agent.stop()?;
    server.stop()?;
    // A busy machine sleeps longer than told.
    ensure!(u64::from(answers) > 150 * seconds, "{answers} answers in {seconds} s");
    ensure!(came_back >= SLOW_CLIENTS / 2, "only {came_back} slow clients came back: they do not compete for places");
    ensure!(slowest < patience(Duration::from_secs(1)), "a scrape took {slowest:?}");
    ensure!(alone <= LONGEST_SCRAPE, "an answer takes {alone:?} of CPU time");
    ensure!(each <= alone.mul_f64(MOST_HTTP_CPU), "an answer takes {each:?} of CPU time, and {alone:?} alone");
    Ok(())
}

#[test]
fn an_idle_server_costs_the_agent_next_to_nothing() -> Result<()> {
    let server = Server::start(Release::MYSQL_9_7, &Options::default())?;
    let agent = Agent::attach(&server)?;
    wait_until_settled(&agent)?;
    agent.metrics()?;
    let mut least = f64::INFINITY;
    for _ in 0..IDLE_INTERVALS {
        let (before, light) = (cpu_time(agent.pid())?, LightWork::start());
        sleep(SCRAPE_INTERVAL);
        agent.metrics()?;
        let (used, light) = (cpu_time(agent.pid())? - before, light.stop()?);
        println!("{used:?} of CPU time, light work {light:?}, {} MiB", resident(agent.pid())? / MIB);
        least = least.min(used.as_secs_f64() / light.as_secs_f64());
        if least <= MOST_IDLE_CPU {
            break;
        }
    }
    agent.stop()?;
    server.stop()?;
    ensure!(least <= MOST_IDLE_CPU, "{least:.2} times the CPU time of light work");
    Ok(())
}
