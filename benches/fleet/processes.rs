//! The processes that a simulated fleet consists of.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use lab::http;
use procfs::process::Stat;
use procfs::WithCurrentSystemInfo;

/// The longest that a process may take until it answers.
const PATIENCE: Duration = Duration::from_secs(60);

/// A process that serves HTTP. Dropping it ends it.
pub struct Process {
    child: Child,
    /// Where it listens.
    pub address: String,
}

impl Process {
    /// Starts a program with the arguments that it has for its address, and waits until it answers. Its output goes to
    /// a file in `folder`.
    pub fn start(folder: &Path, program: &str, address: &str, args: impl Fn(&str) -> Vec<String>) -> Result<Process> {
        let name = Path::new(program).file_name().context("no program")?.to_string_lossy().into_owned();
        let log = folder.join(format!("{name}.log"));
        let mut command = Command::new(program);
        let output = File::create(&log)?;
        command.args(args(address)).stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        // SAFETY: prctl is async-signal-safe.
        unsafe { command.pre_exec(|| Ok(_ = libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))) };
        let child = command.spawn().with_context(|| format!("{name}; Debian has it in a package"))?;
        let process = Process { child, address: address.to_owned() };
        let began = Instant::now();
        while process.text().is_err() {
            if began.elapsed() > PATIENCE {
                bail!("{name} does not answer: {}", fs::read_to_string(&log)?);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(process)
    }

    fn text(&self) -> io::Result<String> {
        let answer = http::get(&self.address, "/metrics")?;
        if answer.head.contains(" 200 ") {
            Ok(answer.body)
        } else {
            Err(io::Error::other(answer.head))
        }
    }

    /// Returns one of its own metrics, the sum of all its series.
    pub fn metric(&self, name: &str) -> Result<f64> {
        self.sum(name, "")
    }

    /// Returns the sum of the series of a metric whose labels have this text in them.
    pub fn sum(&self, name: &str, label: &str) -> Result<f64> {
        let text = self.text()?;
        let is_of_it = |line: &&str| {
            let rest = line.strip_prefix(name);
            rest.is_some_and(|rest| rest.starts_with([' ', '{']) && rest.contains(label))
        };
        let values = text.lines().filter(is_of_it).filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        let values: Vec<f64> = values.collect();
        if values.is_empty() {
            bail!("no {name}");
        }
        Ok(values.iter().sum())
    }

    /// Returns the CPU time that it has taken.
    pub fn cpu_seconds(&self) -> Result<f64> {
        let stat = self.stat()?;
        Ok((stat.utime + stat.stime) as f64 / procfs::ticks_per_second() as f64)
    }

    /// Returns how much memory it has.
    pub fn resident_bytes(&self) -> Result<f64> {
        Ok(self.stat()?.rss_bytes().get() as f64)
    }

    fn stat(&self) -> Result<Stat> {
        Ok(procfs::process::Process::new(self.child.id() as i32)?.stat()?)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}
