//! What armtrace costs a server, compared with the tools in use today. Run it with `make bench`.
//!
//! Single runs of the same load differ by 10 % and more, so two runs cannot show a difference of 1 %. Here all tools
//! take turns within one continuous load, with nothing attached in between, and each window is compared with the
//! windows before and after it. Needs root and the lab.

mod modes;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use armtrace::server::cpu_time_ns;
use clap::{Parser, ValueEnum};

use lab::bench::report::{self, ModeRun, Pair, Run, ToolUse, Window};
use lab::bench::stats;
use lab::load::Load;
use lab::releases::Release;
use lab::server::{Options, Server};
use modes::{Mode, Switch};

/// The time after each change that counts for neither window. It is more than a second, so that every report that
/// sysbench prints within a window covers only that window.
const SETTLE: Duration = Duration::from_millis(1500);
const WINDOW: Duration = Duration::from_millis(2500);
/// The same times for tools that are switched on and off instantly. Short windows are more precise in the same total
/// time, because slow fluctuations of a load are larger than fast ones. Consecutive windows move through the period of
/// armtrace's duty cycle.
const SWITCHED_SETTLE: Duration = Duration::from_millis(150);
const SWITCHED_WINDOW: Duration = Duration::from_secs(1);
/// The fewest pairs for a meaningful interval.
const FEWEST_PAIRS: usize = 7;

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Form {
    /// Every load, until each ratio is known to 1 %: hours.
    Full,
    /// Two loads with 16 threads, few pairs: half an hour.
    Quick,
    /// Only tools that can be switched on and off, added to the stored results.
    Switched,
    /// Measures nothing; regenerates the tables from the stored results.
    Report,
}

#[derive(Parser)]
struct Args {
    #[arg(value_enum, default_value = "full")]
    form: Form,
    /// Write docs/explanation/benchmarks.md; otherwise the tables are printed.
    #[arg(long)]
    write: bool,
    /// Only this server, test, number of threads or mode; each option can be repeated.
    #[arg(long)]
    server: Vec<String>,
    #[arg(long)]
    test: Vec<String>,
    #[arg(long)]
    threads: Vec<u32>,
    #[arg(long)]
    mode: Vec<Mode>,
    /// The most pairs for each mode of each load.
    #[arg(long)]
    pairs: Option<usize>,
    /// Passed by `cargo bench` to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

impl Args {
    fn loads(&self) -> Vec<(Release, &'static str, u32)> {
        let tests = ["oltp_point_select", "oltp_read_write", "oltp_update_index"];
        let mut loads = Vec::new();
        for release in [Release::MYSQL_9_7, Release::MARIADB_11_4] {
            for (test, threads) in tests.into_iter().flat_map(|test| [(test, 16), (test, 64)]) {
                let quick = self.form != Form::Quick || (threads == 16 && test != "oltp_read_write");
                let server = self.server.is_empty() || self.server.iter().any(|s| s == release.name());
                let test_wanted = self.test.is_empty() || self.test.iter().any(|t| t == test);
                let threads_wanted = self.threads.is_empty() || self.threads.contains(&threads);
                if quick && server && test_wanted && threads_wanted {
                    loads.push((release, test, threads));
                }
            }
        }
        loads
    }

    /// Returns the most pairs of a mode that is started and ended for each window.
    fn most_pairs(&self, mode: Mode) -> usize {
        let few = self.form == Form::Quick || mode.is_switched();
        self.pairs.unwrap_or(if few { FEWEST_PAIRS } else { 60 })
    }

    /// Returns the most pairs of a mode that is switched.
    fn most_switched_pairs(&self) -> usize {
        self.pairs.unwrap_or(if self.form == Form::Quick { 30 } else { 400 })
    }

    fn modes(&self, release: Release) -> Vec<Mode> {
        Mode::of(release).into_iter().filter(|mode| self.mode.is_empty() || self.mode.contains(mode)).collect()
    }
}

/// A permanent connection: starting a client for every query would itself be a load.
struct Session {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Session {
    fn open(server: &Server) -> Result<Session> {
        let mut child = Command::new(server.dir().join("sql"))
            .args(["--batch", "--skip-column-names", "--unbuffered"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting the client")?;
        let stdin = child.stdin.take().context("no input")?;
        let stdout = BufReader::new(child.stdout.take().context("no output")?);
        Ok(Session { child, stdin, stdout })
    }

    /// Returns two of the server's counters, read at the same time.
    fn counters(&mut self, names: [&str; 2]) -> Result<[u64; 2]> {
        let [a, b] = names;
        writeln!(self.stdin, "SHOW GLOBAL STATUS WHERE Variable_name IN ('{a}', '{b}');")?;
        let mut counters = [None; 2];
        for _ in names {
            let mut row = String::new();
            self.stdout.read_line(&mut row)?;
            let (name, value) =
                row.trim_end().split_once('\t').with_context(|| format!("the client printed {row:?}"))?;
            let which = names.iter().position(|n| *n == name).with_context(|| format!("{name} was not requested"))?;
            counters[which] = Some(value.parse()?);
        }
        Ok([counters[0].context(a.to_owned())?, counters[1].context(b.to_owned())?])
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server under load.
struct Bench {
    release: Release,
    // Fields are dropped in this order.
    session: Session,
    load: Load,
    server: Server,
    /// The status variable that counts the test's transactions.
    counter: &'static str,
}

impl Bench {
    fn start(release: Release, test: &str, threads: u32) -> Result<Bench> {
        let args = ["--performance-schema=ON", "--performance-schema-instrument=wait/synch/%=OFF"];
        let options = Options { args: args.map(str::to_owned).to_vec(), ..Options::default() };
        let server = Server::start(release, &options)?;
        let mut load = Load::start(&server, test, threads)?;
        load.wait_running()?;
        let counter = match test {
            "oltp_point_select" => "Com_select",
            "oltp_read_write" => "Com_commit",
            _ => "Com_update",
        };
        Ok(Bench { release, session: Session::open(&server)?, load, server, counter })
    }

    /// Measures a window, and the tool's process if there is one.
    fn window(&mut self, tool: Option<i32>) -> Result<Window> {
        sleep(SETTLE);
        let seconds = self.load.p95_by_second()?.len();
        let window = self.measured(WINDOW, tool)?;
        let p95 = &self.load.p95_by_second()?[seconds..];
        ensure!(!p95.is_empty(), "the load has stopped");
        Ok(Window { p95: Some(p95.iter().sum::<f64>() / p95.len() as f64), ..window })
    }

    fn short_window(&mut self, tool: Option<i32>) -> Result<Window> {
        sleep(SWITCHED_SETTLE);
        self.measured(SWITCHED_WINDOW, tool)
    }

    fn measured(&mut self, length: Duration, tool: Option<i32>) -> Result<Window> {
        let (then, before, cpu_before, tool_before) = self.reading(tool)?;
        sleep(length);
        let (now, after, cpu_after, tool_after) = self.reading(tool)?;
        let wall = (now - then).as_secs_f64();
        let [transactions, queries] = [after[0] - before[0], after[1] - before[1]].map(|n| n as f64);
        ensure!(transactions > 0.0, "the load has stopped");
        let tool = match tool {
            Some(pid) => Some(ToolUse { cpu: (tool_after - tool_before) / wall, memory: resident_mib(pid)? }),
            None => None,
        };
        Ok(Window { tps: transactions / wall, cpu: (cpu_after - cpu_before) / queries * 1000.0, p95: None, tool })
    }

    /// Returns the time, the transactions and queries so far, and the CPU seconds of the server and of the tool.
    fn reading(&mut self, tool: Option<i32>) -> Result<(Instant, [u64; 2], f64, f64)> {
        let seconds =
            |pid: i32| Ok::<_, anyhow::Error>(cpu_time_ns(pid).context("the process has exited")? as f64 / 1e9);
        let counters = self.session.counters([self.counter, "Questions"])?;
        Ok((Instant::now(), counters, seconds(self.server.pid())?, tool.map_or(Ok(0.0), seconds)?))
    }

    /// Attaches a tool, measures a window and detaches the tool.
    fn attached(&mut self, mode: Mode, result: &mut ModeRun) -> Result<Window> {
        let (attached, time) = mode.attach(self.release, &self.server)?;
        result.attach.extend(time.map(|t| t.as_secs_f64()));
        let window = self.window(attached.pid());
        // Before returning an error of the window: if the tool has exited, this error says why.
        result.detach.push(attached.detach(mode, &self.server)?.as_secs_f64());
        window
    }
}

fn resident_mib(pid: i32) -> Result<f64> {
    let status = procfs::process::Process::new(pid)?.status()?;
    Ok(status.vmrss.context("no resident size")? as f64 / 1024.0)
}

/// Measures one continuous load: nothing attached, a mode, nothing attached, the next mode, and so on.
fn measure(args: &Args, release: Release, test: &str, threads: u32) -> Result<Run> {
    let mut bench = Bench::start(release, test, threads)?;
    let version = bench.server.query("SELECT VERSION()")?.concat().concat();
    eprintln!("{} {test}, {threads} threads: {version}", release.name());
    // Let the buffer pool warm up.
    sleep(Duration::from_secs(5));
    let modes = args.modes(release);
    let mut run = Run {
        server: release.name().to_owned(),
        version,
        test: test.to_owned(),
        threads,
        date: output("date", &["-u", "+%F"]),
        machine: machine_line()?,
        tools: ["perf", "bpftrace"].map(|tool| output(tool, &["--version"])).join(", ")
            + ", "
            + &output(&lab::agent::program().display().to_string(), &["--version"]),
        detached: Vec::new(),
        modes: modes.iter().map(|mode| ModeRun::new(mode.key(), mode.title())).collect(),
    };
    if args.form != Form::Switched {
        start_and_end(args, &mut bench, &modes, &mut run)?;
    }
    switch(args, &mut bench, &modes, &mut run)?;
    let Bench { session, load, server, .. } = bench;
    drop(session);
    load.stop()?;
    server.stop()?;
    Ok(run)
}

/// Measures windows for which each mode is started and ended.
fn start_and_end(args: &Args, bench: &mut Bench, modes: &[Mode], run: &mut Run) -> Result<()> {
    run.detached.push(bench.window(None)?);
    for round in 0.. {
        let is_wanted = |i: usize| {
            let result: &ModeRun = &run.modes[i];
            result.gave_up.is_none() && wants_more(&result.pairs, args.most_pairs(modes[i]))
        };
        let turns = turns((0..modes.len()).filter(|i| is_wanted(*i)).collect(), round);
        if turns.is_empty() {
            break;
        }
        for turn in turns {
            let before = run.detached[run.detached.len() - 1];
            let result = &mut run.modes[turn];
            let with = bench.attached(modes[turn], result);
            let after = bench.window(None)?;
            run.detached.push(after);
            match with {
                Ok(with) => result.pairs.push(Pair::new(before, with, after)),
                Err(error) => result.gave_up = Some(format!("{error:#}")),
            }
            eprintln!("  {}", result.last());
        }
    }
    Ok(())
}

/// Measures short windows for which modes, all started beforehand, are switched on.
fn switch(args: &Args, bench: &mut Bench, modes: &[Mode], run: &mut Run) -> Result<()> {
    let mut switches = Vec::new();
    for (i, mode) in modes.iter().enumerate() {
        switches.extend(Switch::start(*mode, &bench.server)?.map(|switch| (i, switch)));
    }
    let mut before = bench.short_window(None)?;
    for round in 0.. {
        let is_wanted = |i: usize| wants_more(&run.modes[i].switched, args.most_switched_pairs());
        let turns = turns((0..switches.len()).filter(|i| is_wanted(switches[*i].0)).collect(), round);
        if turns.is_empty() {
            break;
        }
        for turn in turns {
            let (mode, switch) = &switches[turn];
            let result = &mut run.modes[*mode];
            let counted = switch.counted(&bench.server)?;
            switch.turn(true, &bench.server)?;
            let with = bench.short_window(switch.pid())?;
            switch.turn(false, &bench.server)?;
            let after = bench.short_window(None)?;
            let more = switch.counted(&bench.server)?;
            ensure!(counted.is_none() || more > counted, "{} counted nothing while it was on", result.title);
            result.switched.push(Pair::new(before, with, after));
            run.detached.push(after);
            before = after;
            eprintln!("  {}", result.last());
        }
    }
    Ok(())
}

/// Returns whether more pairs are allowed and needed.
fn wants_more(pairs: &[Pair], most: usize) -> bool {
    let settled = || stats::Summary::of(&report::ratios(pairs, |w| w.tps)).is_some_and(|s| s.settled());
    pairs.len() < FEWEST_PAIRS.min(most) || (pairs.len() < most && !settled())
}

/// Returns the turns in a different order each round.
fn turns(mut turns: Vec<usize>, round: usize) -> Vec<usize> {
    if !turns.is_empty() {
        let first = round % turns.len();
        turns.rotate_left(first);
    }
    turns
}

/// Returns the first line that a program prints, or a note that there is none.
fn output(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output();
    let text = output.map(|o| String::from_utf8_lossy(&o.stdout).trim().to_owned()).unwrap_or_default();
    if text.is_empty() {
        format!("no {program}")
    } else {
        text.lines().next().unwrap_or_default().to_owned()
    }
}

fn machine_line() -> Result<String> {
    let info = fs::read_to_string("/proc/cpuinfo")?;
    let model =
        info.lines().find_map(|l| l.strip_prefix("model name")?.split_once(": ")).map_or("", |(_, model)| model);
    let memory = procfs::Current::current().map(|m: procfs::Meminfo| m.mem_total >> 30)?;
    let cpus = std::thread::available_parallelism()?;
    Ok(format!("{cpus} CPUs ({} {model}), {memory} GiB, {}", std::env::consts::ARCH, output("uname", &["-sr"])))
}

/// Returns the folder of results, which has one file per load: next to the benchmark if published, otherwise in the
/// build directory.
fn store(published: bool) -> PathBuf {
    match published {
        true => Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/overhead/results"),
        false => Path::new(env!("CARGO_TARGET_TMPDIR")).join("overhead"),
    }
}

fn stored(store: &Path) -> Result<Vec<Run>> {
    let mut files = fs::read_dir(store)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    files.sort();
    files.iter().map(|file| Ok(serde_json::from_str(&fs::read_to_string(file)?)?)).collect()
}

fn main() -> Result<()> {
    let args = Args::parse();
    let store = store(args.write);
    fs::create_dir_all(&store)?;
    if args.form != Form::Report {
        for (release, test, threads) in args.loads() {
            let mut run = measure(&args, release, test, threads)?;
            let file = store.join(run.name() + ".json");
            if file.exists() {
                run = serde_json::from_str::<Run>(&fs::read_to_string(&file)?)?.with_newer(run);
            }
            eprintln!("\n{}", run.table());
            fs::write(file, serde_json::to_string(&run)? + "\n")?;
        }
    }
    let runs = stored(&store)?;
    ensure!(!runs.is_empty(), "no results in {}", store.display());
    if args.write {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/explanation/benchmarks.md");
        fs::write(&file, report::document(&runs))?;
        println!("wrote {}", file.display());
    } else {
        println!("{}", report::document(&runs));
    }
    println!("results: {}", store.display());
    Ok(())
}
