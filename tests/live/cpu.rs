//! Sampled CPU time, compared with the kernel's accounting and with `perf`.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use armtrace::audit::OrderingSites;
use armtrace::server::{cpu_time_ns, file_mappings, load_bias, FileMapping};
use armtrace::symbols::Image;

use lab::agent::{by_latch, doctor, Agent, Sample};
use lab::load::Load;
use lab::releases::Release;
use lab::server::{wait_for, within_four_attempts, Options, Server};
use lab::tracer::Tracer;

/// armtrace's and `perf`'s sampling frequency in hertz. The two must not run in lockstep.
const HZ: &str = "499";
const OTHER_HZ: &str = "997";
/// How far a class's share may differ from `perf`'s, in percentage points.
const POINTS: f64 = 3.0;
/// How far the kernel's share may differ. `perf`'s includes its own work.
const KERNEL_POINTS: f64 = 8.0;

fn cpu_seconds(samples: &[Sample]) -> BTreeMap<(String, String), f64> {
    let rows = samples.iter().filter(|s| s.name == "armtrace_cpu_seconds_total");
    let label = |s: &Sample, name: &str| s.labels.get(name).cloned().unwrap_or_default();
    rows.map(|s| ((label(s, "class"), label(s, "function")), s.value)).collect()
}

fn value(samples: &[Sample], name: &str, label: &str) -> Option<f64> {
    samples.iter().find(|s| s.name == name && s.labels.values().any(|v| v == label)).map(|s| s.value)
}

fn is_kernel_class(class: &str) -> bool {
    class == "kernel" || class == "futex"
}

/// The increase of each row between two readings.
struct Growth(BTreeMap<(String, String), f64>);

impl Growth {
    fn between(before: &[Sample], after: &[Sample]) -> Growth {
        let before = cpu_seconds(before);
        let grown = |(key, now): ((String, String), f64)| {
            let then = before.get(&key).copied().unwrap_or(0.0);
            (key, now - then)
        };
        Growth(cpu_seconds(after).into_iter().map(grown).collect())
    }

    fn sum(&self, is: impl Fn(&str) -> bool) -> f64 {
        self.0.iter().filter(|((class, _), _)| is(class)).fold(0.0, |sum, (_, seconds)| sum + seconds)
    }

    fn share_in_kernel(&self) -> f64 {
        100.0 * self.sum(is_kernel_class) / self.sum(|_| true)
    }

    /// Returns the share of a class in the time outside the kernel, in percent. It includes the time of atomics and
    /// barriers in functions with these names.
    fn share_of_program(&self, class: &str, names: &[&str]) -> f64 {
        let on_ordering = |(class, function): &(String, String)| {
            ["atomic", "barrier"].contains(&class.as_str()) && names.iter().any(|name| function.contains(name))
        };
        let ordering: f64 = self.0.iter().filter(|(row, _)| on_ordering(row)).map(|(_, seconds)| seconds).sum();
        100.0 * (self.sum(|c| c == class) + ordering) / self.sum(|class| !is_kernel_class(class))
    }
}

/// Attaches an agent with a high sampling frequency and waits until it has samples.
fn attach(server: &Server) -> Result<Agent> {
    let agent = Agent::attach_with(server, &["--sample-hz", HZ].map(OsStr::new))?;
    wait_for("samples", Duration::from_secs(20), || {
        let sampled = value(&agent.scrape()?, "armtrace_probe_hits_total", "cpu_sample");
        Ok(sampled.is_some_and(|n| n > 100.0).then_some(()))
    })?;
    Ok(agent)
}

/// Returns the machine's steal time so far, in seconds: its CPUs had work while its host ran something else.
fn stolen_seconds() -> Result<f64> {
    let stat = std::fs::read_to_string("/proc/stat")?;
    let ticks: f64 = stat.split_whitespace().nth(8).context("no stolen time in /proc/stat")?.parse()?;
    // SAFETY: takes a number.
    let hz = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    Ok(ticks / hz as f64)
}

fn adds_up(release: Release) -> Result<()> {
    let server = Server::start(release, &Options::default())?;
    let mut load = Load::start(&server, "oltp_update_index", 16)?;
    load.wait_running()?;
    let agent = attach(&server)?;
    // One interval includes the scrapes and the other does not; the sampled time lies between the two.
    let cpu = || Ok::<_, anyhow::Error>(cpu_time_ns(server.pid()).context("no CPU time")? as f64 / 1e9);
    // A scrape returns older figures while the agent drains samples from the kernel. One that differs from the scrape
    // before it is current.
    let read = || -> Result<_> {
        let mut earlier = None;
        wait_for("newer figures", Duration::from_secs(20), || {
            let (from, samples, to) = (cpu()?, agent.scrape()?, cpu()?);
            let now: f64 = cpu_seconds(&samples).values().sum();
            let is_newer = earlier.replace(now).is_some_and(|earlier| earlier != now);
            Ok(is_newer.then_some((from, samples, to)))
        })
    };
    within_four_attempts(|| {
        let ((from, before, first), stolen_before) = (read()?, stolen_seconds()?);
        sleep(Duration::from_secs(5));
        let ((last, after, to), stolen) = (read()?, stolen_seconds()? - stolen_before);
        let (least, most) = (last - first, to - from);
        let sampled = Growth::between(&before, &after).sum(|_| true);
        let hits = |samples: &[Sample]| value(samples, "armtrace_probe_hits_total", "cpu_sample").unwrap_or(0.0);
        let clock = (hits(&after) - hits(&before)) / HZ.parse::<f64>()?;
        println!(
            "{}: {sampled:.2} s by class, {least:.2} to {most:.2} s of CPU time, {clock:.2} s by samples alone, {stolen:.2} s stolen",
            release.name()
        );
        let is_within =
            |seconds: f64, tolerance: f64| (least * (1.0 - tolerance)..=most * (1.0 + tolerance)).contains(&seconds);
        ensure!(is_within(sampled, 0.05), "{sampled} s by class, {least} to {most} s of CPU time");
        // The number of samples is wrong by as much as timer interrupts are late, which on a virtual machine depends on
        // its host. It is not checked if steal time is more than a tenth of the server's CPU time.
        let is_reliable = stolen <= 0.1 * least;
        ensure!(!is_reliable || is_within(clock, 0.25), "{clock} s by samples alone, {least} to {most} s of CPU time");
        ensure!(value(&after, "armtrace_lost_events_total", "samples_full") == Some(0.0), "samples were lost");
        Ok(())
    })?;
    agent.stop()?;
    load.stop()?;
    server.stop()
}

/// A CPU that is taken offline until this is dropped.
struct Offline(String);

impl Offline {
    fn take(cpu: u32) -> std::io::Result<Offline> {
        let switch = format!("/sys/devices/system/cpu/cpu{cpu}/online");
        std::fs::write(&switch, "0")?;
        Ok(Offline(switch))
    }
}

impl Drop for Offline {
    fn drop(&mut self) {
        _ = std::fs::write(&self.0, "1");
    }
}

/// A CPU is offline while the agent attaches, and comes online later; then it goes and comes again.
#[test]
#[ignore = "takes long: make test-all"]
fn cpus_that_come_online_are_sampled() -> Result<()> {
    let Ok(offline) = Offline::take(1) else {
        println!("not checked: this machine has one CPU, or lets none be taken offline");
        return Ok(());
    };
    let server = Server::start(Release::MARIADB_11_4, &Options::default())?;
    let mut load = Load::start(&server, "oltp_update_index", 16)?;
    load.wait_running()?;
    let agent = attach(&server)?;
    drop(offline);
    let hits = || Ok::<_, anyhow::Error>(value(&agent.scrape()?, "armtrace_probe_hits_total", "cpu_sample"));
    let covered = || -> Result<f64> {
        let cpu = || cpu_time_ns(server.pid()).context("no CPU time");
        let before = (cpu()?, hits()?.unwrap_or_default());
        sleep(Duration::from_secs(4));
        let after = (cpu()?, hits()?.unwrap_or_default());
        Ok((after.1 - before.1) / HZ.parse::<f64>()? / ((after.0 - before.0) as f64 / 1e9))
    };
    for when in ["later", "again"] {
        sleep(Duration::from_secs(3));
        let covered = covered()?;
        println!("{:.0} % of the CPU time is sampled after a CPU came online {when}", 100.0 * covered);
        // One CPU of two would be half, and of many, it would not be seen.
        ensure!(covered > 0.75, "{covered}");
        let _offline = Offline::take(1)?;
        // The agent looks every second.
        sleep(Duration::from_secs(2));
    }
    agent.stop()?;
    load.stop()?;
    server.stop()
}

#[test]
fn sampled_time_is_the_cpu_time_of_mysql() -> Result<()> {
    adds_up(Release::MYSQL_9_7)
}

#[test]
#[ignore = "as on MySQL: make test-all"]
fn sampled_time_is_the_cpu_time_of_mariadb() -> Result<()> {
    adds_up(Release::MARIADB_11_4)
}

/// Samples all CPUs with `perf` and returns the server's samples, with their functions.
fn perf(server: &Server, seconds: u32) -> Result<Vec<String>> {
    let dir = tempfile::tempdir()?;
    let data = dir.path().join("perf.data");
    let status = Command::new("perf")
        .args(["record", "-q", "-a", "-B", "-N", "-e", "cpu-clock", "-F", OTHER_HZ, "-o"])
        .arg(&data)
        .args(["--", "sleep", &seconds.to_string()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .context("starting perf")?;
    ensure!(status.success(), "perf record: {status}");
    let script = Command::new("perf")
        .args(["script", "-F", "ip,sym,dso", "--pid", &server.pid().to_string(), "-i"])
        .arg(&data)
        .stderr(Stdio::null())
        .output()?;
    ensure!(script.status.success(), "perf script: {}", script.status);
    Ok(String::from_utf8_lossy(&script.stdout).lines().map(str::to_owned).collect())
}

fn is_in_kernel(line: &str) -> bool {
    line.contains("[kernel") || line.contains("(bpf_prog") || line.contains(".ko")
}

/// Returns the share of samples in the kernel, in percent.
fn kernel_share_by_perf(samples: &[String]) -> f64 {
    let in_kernel = samples.iter().filter(|line| is_in_kernel(line)).count();
    100.0 * in_kernel as f64 / samples.len().max(1) as f64
}

/// Returns the share of the samples outside the kernel that contain one of these names, in percent.
fn share_by_perf(samples: &[String], names: &[&str]) -> f64 {
    let program: Vec<&String> = samples.iter().filter(|line| !is_in_kernel(line)).collect();
    let with = program.iter().filter(|line| names.iter().any(|name| line.contains(name))).count();
    100.0 * with as f64 / program.len().max(1) as f64
}

/// Compares the CPU classes with `perf`'s function names on a server that writes many pages and so computes many
/// checksums.
fn agrees_with_perf(release: Release, args: &[&str], classes: &[(&str, &[&str])]) -> Result<()> {
    let options = Options { args: args.iter().map(|a| (*a).to_owned()).collect(), ..Options::default() };
    let server = Server::start(release, &options)?;
    let mut load = Load::start(&server, "oltp_update_non_index", 16)?;
    load.wait_running()?;
    let agent = attach(&server)?;
    let last = within_four_attempts(|| {
        let before = agent.scrape()?;
        let samples = perf(&server, 6)?;
        let ours = Growth::between(&before, &agent.scrape()?);
        let (ours_kernel, theirs_kernel) = (ours.share_in_kernel(), kernel_share_by_perf(&samples));
        println!("{}: in the kernel {ours_kernel:.1} %, by perf {theirs_kernel:.1} %", release.name());
        classes.iter().try_for_each(|(class, names)| {
            let (ours, theirs) = (ours.share_of_program(class, names), share_by_perf(&samples, names));
            println!("{}: {class}: {ours:.1} %, by perf {theirs:.1} % of {} samples", release.name(), samples.len());
            ensure!((ours - theirs).abs() <= POINTS, "{class} has {ours:.1} %, by perf {theirs:.1} %");
            ensure!(*class != "checksum" || ours > 0.3, "a load that flushes pages computes no checksums");
            Ok(())
        })?;
        ensure!(
            (ours_kernel - theirs_kernel).abs() <= KERNEL_POINTS,
            "{ours_kernel:.1} % in the kernel, by perf {theirs_kernel:.1} %"
        );
        Ok(())
    });
    agent.stop()?;
    load.stop()?;
    server.stop()?;
    last
}

#[test]
fn mysql_cpu_classes_agree_with_perf() -> Result<()> {
    agrees_with_perf(
        Release::MYSQL_9_7,
        &["--innodb-buffer-pool-size=16M"],
        &[
            ("spin", &["ut_delay"]),
            ("checksum", &["crc32"]),
            (
                "latch",
                &[
                    "mutex_enter_inline",
                    "TTASEventMutex",
                    "PolicyMutex",
                    "rw_lock_",
                    "pthread_mutex",
                    "sync_array",
                    "os_event",
                    "rw_pr_",
                ],
            ),
        ],
    )
}

#[test]
#[ignore = "as on MySQL: make test-all"]
fn mariadb_cpu_classes_agree_with_perf() -> Result<()> {
    agrees_with_perf(
        Release::MARIADB_11_4,
        &["--innodb-buffer-pool-size=16M"],
        &[
            ("spin", &["mutex_impl<true>::wait_and_lock", "lock_impl<true>::rd_wait", "lock_impl<true>::wr_wait"]),
            ("checksum", &["crc32"]),
            ("memcpy", &["memcpy", "memmove", "memset", "memcmp", "memchr"]),
        ],
    )
}

/// Returns the CPU seconds on instructions that order memory.
fn ordering_seconds(samples: &[Sample]) -> f64 {
    samples.iter().filter(|s| s.name == "armtrace_barrier_cpu_seconds_total").map(|s| s.value).sum()
}

/// The files that a process has code mapped from.
struct Files {
    pid: i32,
    mappings: Vec<FileMapping>,
    /// By path, each with its load bias.
    images: BTreeMap<String, Option<(Image, u64)>>,
}

impl Files {
    fn of(server: &Server) -> Files {
        let pid = server.pid();
        Files { pid, mappings: file_mappings(pid), images: BTreeMap::new() }
    }

    fn at(&mut self, address: u64) -> Option<&(Image, u64)> {
        let mapping = self.mappings.iter().find(|m| (m.start..m.end).contains(&address))?;
        let open = || {
            let image = mapping.image(self.pid, 1 << 30).ok()?;
            let bias = mapping.start.wrapping_sub(image.page_address_of(mapping.offset)?);
            Some((image, bias))
        };
        self.images.entry(mapping.path().to_owned()).or_insert_with(open).as_ref()
    }
}

/// Returns how many of `perf`'s samples are on instructions that order memory, and how many are outside the kernel.
fn ordering_by_perf(server: &Server, samples: &[String]) -> (usize, usize) {
    let mut files = Files::of(server);
    let (mut found, mut all) = (0, 0);
    let mut sites = BTreeMap::new();
    for line in samples.iter().filter(|line| !is_in_kernel(line)) {
        all += 1;
        let Some(ip) = line.split_whitespace().next().and_then(|ip| u64::from_str_radix(ip, 16).ok()) else { continue };
        let Some((image, bias)) = files.at(ip) else { continue };
        let at = ip.wrapping_sub(*bias);
        let Some(range) = image.function_at(at) else { continue };
        let of_function = sites.entry(range.start + bias).or_insert_with(|| OrderingSites::of(image, range));
        found += usize::from(of_function.at(at).is_some());
    }
    (found, all)
}

/// Atomics take time where many threads contend, according to both armtrace and `perf`.
#[test]
fn time_on_atomics_agrees_with_perf() -> Result<()> {
    let server = Server::start(Release::MYSQL_9_7, &Options::default())?;
    let mut load = Load::start(&server, "oltp_update_index", 16)?;
    load.wait_running()?;
    let agent = attach(&server)?;
    wait_for("time on atomics", Duration::from_secs(40), || {
        Ok((ordering_seconds(&agent.scrape()?) > 0.0).then_some(()))
    })?;
    let last = within_four_attempts(|| {
        let before = agent.scrape()?;
        let samples = perf(&server, 6)?;
        let after = agent.scrape()?;
        let (theirs, all) = ordering_by_perf(&server, &samples);
        let program = Growth::between(&before, &after).sum(|class| !is_kernel_class(class));
        let ours = (ordering_seconds(&after) - ordering_seconds(&before)) / program * 100.0;
        let theirs = theirs as f64 / all as f64 * 100.0;
        println!("on atomics and barriers: {ours:.2} %, by perf {theirs:.2} % of {all} samples");
        ensure!(ours > 0.2, "no time on atomics");
        ensure!(
            (ours - theirs).abs() <= POINTS && (0.4..=2.5).contains(&(ours / theirs)),
            "{ours} %, by perf {theirs} %"
        );
        Ok(())
    });
    agent.stop()?;
    load.stop()?;
    server.stop()?;
    last
}

/// Under `oltp_update_index` threads queue for latches. Among the latches whose code spins, the one with the longest
/// waits according to performance_schema must have the most spin CPU time.
fn spins_for_the_most_contended_latch(release: Release, threads: u32, args: &[&str]) -> Result<()> {
    let args = args.iter().map(|a| (*a).to_owned()).collect();
    let server = Server::start(release, &Options { perf_schema: true, args, ..Options::default() })?;
    let mut load = Load::start(&server, "oltp_update_index", threads)?;
    load.wait_running()?;
    let agent = Agent::attach_with(&server, &["--sample-hz", HZ, "--max-overhead", "100%"].map(OsStr::new))?;
    let (before, truth_before) = (agent.scrape()?, server.wait_summary()?);
    // Each attempt extends the same interval, so the figures become less noisy.
    let last = within_four_attempts(|| {
        sleep(Duration::from_secs(5));
        let (after, truth) = (agent.scrape()?, server.wait_summary()?);
        spin_agrees(release, &before, &after, |latch| {
            let sum = |summary: &BTreeMap<String, (f64, f64)>| summary.get(latch).map_or(0.0, |(_, seconds)| *seconds);
            sum(&truth) - sum(&truth_before)
        })
    });
    agent.stop()?;
    load.stop()?;
    server.stop()?;
    last
}

fn spin_agrees(release: Release, before: &[Sample], after: &[Sample], truth: impl Fn(&str) -> f64) -> Result<()> {
    let grown = |metric| -> BTreeMap<String, f64> {
        let then = by_latch(before, metric);
        let now = by_latch(after, metric).into_iter();
        now.map(|(latch, n)| (latch.clone(), n - then.get(&latch).copied().unwrap_or(0.0))).collect()
    };
    let (spins, cpu) = (grown("armtrace_latch_spins_total"), grown("armtrace_latch_spin_cpu_seconds_total"));
    let most = |of: &BTreeMap<String, f64>| {
        let largest = of.iter().max_by(|a, b| a.1.total_cmp(b.1));
        largest.map(|(latch, n)| (latch.clone(), *n)).context("no latch")
    };
    // Page latches have no instrument.
    let spinning = spins.iter().filter(|(_, n)| **n > 0.0);
    let by_truth: BTreeMap<String, f64> = spinning.map(|(latch, _)| (latch.clone(), truth(latch))).collect();
    let mut by_cpu = cpu.clone();
    by_cpu.retain(|latch, _| by_truth.get(latch).is_some_and(|seconds| *seconds > 0.0));
    let ((first, seconds), (ours, spun)) = (most(&by_truth)?, most(&by_cpu)?);
    let total = spins.values().sum::<f64>();
    println!("{}: performance_schema {first} {seconds:.2} s; {ours} {spun:.3} s of CPU; {total} spins", release.name());
    ensure!(total > 100.0 && spun > 0.0, "no spinning");
    // Two latches of the redo log can be close to each other.
    let spun_for_first = cpu.get(&first).copied().unwrap_or(0.0);
    ensure!(spun_for_first >= 0.5 * spun, "{ours} has the most spinning, {first} the most waiting: {cpu:?}");
    Ok(())
}

#[test]
fn mysql_spins_for_its_most_contended_latch() -> Result<()> {
    spins_for_the_most_contended_latch(Release::MYSQL_9_7, 32, &["--innodb-flush-log-at-trx-commit=1"])
}

#[test]
#[ignore = "as on MySQL: make test-all"]
fn mariadb_spins_for_its_most_contended_latch() -> Result<()> {
    spins_for_the_most_contended_latch(Release::MARIADB_11_4, 64, &[])
}

/// A replacement for the C library's function that always makes the system call, as glibc does on aarch64 without rseq.
const GETCPU: &str = "
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <unistd.h>
int sched_getcpu(void)
{
	unsigned cpu;
	return syscall(SYS_getcpu, &cpu, 0, 0) ? -1 : (int)cpu;
}
";

/// Counts a process's hits of an event with bpftrace, and adds up the expression `sum`.
fn count_with_bpftrace(pid: i32, event: &str, sum: &str) -> Result<Tracer> {
    Tracer::start(&format!("{event} /pid == {pid}/ {{ @calls = count(); @sum = sum({sum}); }}"))
}

#[test]
fn getcpu_calls_agree_with_bpftrace() -> Result<()> {
    let folder = Release::MYSQL_9_7.folder()?;
    let (inside, source) = ("/tmp/armtrace-getcpu.so", tempfile::NamedTempFile::with_suffix(".c")?);
    std::fs::write(source.path(), GETCPU)?;
    let library = folder.join(inside.trim_start_matches('/'));
    let gcc = Command::new("gcc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source.path()).status()?;
    ensure!(gcc.success(), "gcc: {gcc}");
    let options = Options {
        args: vec!["--innodb-buffer-pool-size=16M".to_owned()],
        // The path is in the server's root file system, so only the server finds it.
        env: vec![("LD_PRELOAD".to_owned(), inside.to_owned())],
        ..Options::default()
    };
    let server = Server::start(Release::MYSQL_9_7, &options)?;
    let path = &doctor(server.pid())?["server"]["getcpu"]["path"];
    ensure!(path == "elsewhere", "{path}: the C library's function was not replaced");
    let agent = Agent::attach(&server)?;
    let calls = || -> Result<f64> {
        // armtrace answers for a second from one reading of its maps.
        sleep(Duration::from_secs(1));
        value(&agent.scrape()?, "armtrace_getcpu_calls_total", "syscall").context("getcpu calls are not counted")
    };
    let before = calls()?;
    let counter = count_with_bpftrace(server.pid(), "tracepoint:syscalls:sys_enter_getcpu", "1")?;
    let started = calls()?;
    let mut load = Load::start(&server, "oltp_update_non_index", 16)?;
    load.wait_running()?;
    wait_for("calls to count", Duration::from_secs(20), || Ok((calls()? > started + 10_000.0).then_some(())))?;
    sleep(Duration::from_secs(3));
    load.stop()?;
    // The server still writes pages, for longer where disks are slow: bpftrace counts at least what armtrace counts
    // while it runs, and at most what armtrace counts from before its start to after its end.
    let least = calls()? - started;
    let theirs = counter.stop()?.value("@calls")?;
    let most = calls()? - before;
    println!("armtrace: {least} to {most} getcpu calls, bpftrace: {theirs}");
    ensure!(most < least * 1.5, "the server was never at rest: {least} to {most} calls");
    ensure!(
        (least * 0.995..=most * 1.005).contains(&theirs),
        "armtrace counts {least} to {most} calls, bpftrace {theirs}"
    );
    agent.stop()?;
    server.stop()?;
    Ok(std::fs::remove_file(library)?)
}

/// armtrace counts calls in bursts and scales them up; bpftrace counts every call. A few bursts can be far off, because
/// the server may write more or less than usual during them.
#[test]
#[ignore = "takes half a minute: make test-all"]
fn checksum_calls_roughly_agree_with_bpftrace() -> Result<()> {
    const FUNCTION: &str = "_ZN8hardware18crc32_using_pclmulEPKhm";
    let args = vec!["--innodb-buffer-pool-size=16M".to_owned()];
    let server = Server::start(Release::MYSQL_9_7, &Options { args, ..Options::default() })?;
    let mut load = Load::start(&server, "oltp_update_non_index", 16)?;
    load.wait_running()?;
    let agent = Agent::attach(&server)?;
    // Returns the counts right after a burst was added, and the time.
    let after_burst = |before: (f64, f64)| {
        wait_for("a burst", Duration::from_secs(60), || {
            let samples = agent.scrape()?;
            let of = |name: &str| value(&samples, name, "hardware").unwrap_or(0.0);
            let now = (of("armtrace_checksum_calls_total"), of("armtrace_checksum_bytes_total"));
            Ok((now.0 > before.0).then(|| (now, Instant::now())))
        })
    };
    let (first, since) = after_burst((0.0, 0.0))?;
    let program = Release::MYSQL_9_7.program()?;
    let counter = count_with_bpftrace(server.pid(), &format!("uprobe:{}:{FUNCTION}", program.display()), "arg1")?;
    let mut last = (first, since);
    for _ in 0..5 {
        last = after_burst(last.0)?;
    }
    let counted = counter.stop()?;
    let (calls, bytes) = (counted.value("@calls")?, counted.value("@sum")?);
    let ours = (last.0 .0 - first.0) / (last.1 - since).as_secs_f64();
    let (size, their_size) = ((last.0 .1 - first.1) / (last.0 .0 - first.0), bytes / calls);
    let theirs = calls / counted.seconds;
    println!("{ours:.0} calls per second of {size:.0} bytes; bpftrace: {theirs:.0} of {their_size:.0}");
    agent.stop()?;
    load.stop()?;
    server.stop()?;
    ensure!((0.3..=3.0).contains(&(ours / theirs)), "{ours} calls per second, according to bpftrace {theirs}");
    ensure!((0.4..=2.5).contains(&(size / their_size)), "{size} bytes per call, according to bpftrace {their_size}");
    Ok(())
}

/// MySQL's pointer to its checksum function is a plain variable, which the test points at the software implementation.
#[test]
fn software_checksums_are_distinguished_from_hardware() -> Result<()> {
    let args = vec!["--innodb-buffer-pool-size=16M".to_owned()];
    let server = Server::start(Release::MYSQL_9_7, &Options { args, ..Options::default() })?;
    let chosen = || -> Result<(String, String)> {
        let doctor = doctor(server.pid())?;
        let text = |field: &str| doctor["server"]["checksums"][0][field].as_str().unwrap_or_default().to_owned();
        Ok((text("function"), text("implementation")))
    };
    let (function, implementation) = chosen()?;
    ensure!(implementation == "hardware" && function.starts_with("hardware::crc32"), "{function}: {implementation}");
    use_software_checksums(server.pid())?;
    ensure!(chosen()? == ("software::crc32".to_owned(), "software".to_owned()), "{:?}", chosen()?);

    let mut load = Load::start(&server, "oltp_update_non_index", 16)?;
    load.wait_running()?;
    let agent = attach(&server)?;
    let software = wait_for("samples of the checksum", Duration::from_secs(20), || {
        let samples = agent.scrape()?;
        Ok(value(&samples, "armtrace_checksum_seconds_total", "software").filter(|seconds| *seconds > 0.2))
    })?;
    let all: f64 = cpu_seconds(&agent.scrape()?).values().sum();
    println!("{software:.2} s of {all:.2} s in the software checksum");
    agent.stop()?;
    load.stop()?;
    server.stop()
}

/// Makes MySQL use its software checksum.
fn use_software_checksums(pid: i32) -> Result<()> {
    let image = Image::open(Path::new(&format!("/proc/{pid}/exe")))?;
    let bias = load_bias(pid, &image)?;
    let address = |name: &str| image.symbol(name).map(|s| s.addr + bias).with_context(|| format!("no {name}"));
    let software = address("_ZN8software5crc32EPKhm")?;
    let memory = File::options().write(true).open(format!("/proc/{pid}/mem"))?;
    memory.write_all_at(&software.to_le_bytes(), address("ut_crc32")?)?;
    Ok(())
}
