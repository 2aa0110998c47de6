//! bpftrace, which provides counts to compare with.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::server::wait_for;

/// How long bpftrace may take to attach, and to exit.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often to repeat SIGINT. On a busy machine, bpftrace 0.17 ignored one of 22 and exited at the next.
const SIGINT_INTERVAL: Duration = Duration::from_secs(2);

/// A running bpftrace.
pub struct Tracer {
    child: Child,
    lines: Receiver<String>,
    since: Instant,
}

/// The output of a bpftrace run.
pub struct Printed {
    text: String,
    /// How long the probes were attached, in seconds.
    pub seconds: f64,
}

impl Tracer {
    /// Runs probes written in bpftrace's language. Returns once they are attached.
    pub fn start(probes: &str) -> Result<Tracer> {
        let code = format!("{probes} BEGIN {{ printf(\"ready\\n\"); }}");
        let mut child =
            Command::new("bpftrace").args(["-e", &code]).stdout(Stdio::piped()).spawn().context("starting bpftrace")?;
        let stdout = BufReader::new(child.stdout.take().context("no output from bpftrace")?);
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let mut tracer = Tracer { child, lines, since: Instant::now() };
        while tracer.lines.recv_timeout(PATIENCE).context("bpftrace does not attach")?.trim() != "ready" {}
        tracer.since = Instant::now();
        Ok(tracer)
    }

    /// Stops bpftrace and returns what it has printed.
    pub fn stop(mut self) -> Result<Printed> {
        let seconds = self.since.elapsed().as_secs_f64();
        let mut signalled: Option<Instant> = None;
        wait_for("bpftrace to exit", PATIENCE, || {
            if signalled.is_none_or(|then| then.elapsed() > SIGINT_INTERVAL) {
                // SAFETY: a signal to our own child, which has not been waited for.
                unsafe { libc::kill(self.child.id() as i32, libc::SIGINT) };
                signalled = Some(Instant::now());
            }
            Ok(self.child.try_wait()?)
        })?;
        Ok(Printed { text: self.lines.iter().collect::<Vec<_>>().join("\n"), seconds })
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Printed {
    /// Returns the value of a map without keys, such as `@calls`.
    pub fn value(&self, map: &str) -> Result<f64> {
        let value = self.text.lines().find_map(|line| line.strip_prefix(map)?.strip_prefix(": "));
        Ok(value.with_context(|| format!("no {map} in {}", self.text))?.trim().parse()?)
    }
}
