//! Control groups of our own, in which processes are frozen, killed or short of memory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{id, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::server::wait_for;

/// Where groups are, below `/sys/fs/cgroup`: the only hierarchy, or the one beside those of cgroup v1.
const HIERARCHIES: [&str; 5] = ["", "unified", "memory", "freezer", "cpu"];

/// A group of processes. Dropping it waits until they have ended, and removes the group.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
    /// The file that does what the group is for.
    control: &'static str,
}

impl Cgroup {
    /// Makes a group that can be killed. Returns `None` where this machine has none.
    pub fn that_is_killed() -> Option<Cgroup> {
        Cgroup::with(&["cgroup.kill"])
    }

    /// Makes a group that can be frozen. Returns `None` where this machine has none.
    pub fn that_freezes() -> Option<Cgroup> {
        Cgroup::with(&["cgroup.freeze", "freezer.state"])
    }

    /// Makes a group whose processes may have this much memory, in bytes. Returns `None` where this machine has none.
    ///
    /// # Errors
    /// Fails when the kernel refuses the limit.
    pub fn with_memory(bytes: u64) -> Result<Option<Cgroup>> {
        let group = Cgroup::with(&["memory.max", "memory.limit_in_bytes"]);
        group.iter().try_for_each(|group| group.control(&bytes.to_string()))?;
        Ok(group)
    }

    /// Makes a group whose processes may be limited to a part of a CPU. Returns `None` where this machine has none.
    pub fn that_limits_cpu() -> Option<Cgroup> {
        Cgroup::with(&["cpu.max", "cpu.cfs_quota_us"])
    }

    /// Makes a group that has one of these files.
    fn with(controls: &[&'static str]) -> Option<Cgroup> {
        // Tests of one process may have groups at the same time.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("armtrace-test-{}-{}", id(), NEXT.fetch_add(1, Ordering::Relaxed));
        HIERARCHIES.iter().find_map(|hierarchy| {
            let path = Path::new("/sys/fs/cgroup").join(hierarchy).join(&name);
            fs::create_dir(&path).ok()?;
            let control = controls.iter().find(|control| path.join(control).exists());
            if control.is_none() {
                _ = fs::remove_dir(&path);
            }
            Some(Cgroup { path, control: control? })
        })
    }

    fn control(&self, text: &str) -> Result<()> {
        fs::write(self.path.join(self.control), text).with_context(|| format!("writing {text} to {}", self.control))
    }

    /// Moves a process into the group.
    pub fn add(&self, pid: i32) -> Result<()> {
        fs::write(self.path.join("cgroup.procs"), pid.to_string()).context("moving a process into a group")
    }

    /// Returns a command that runs `program` in the group.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > \"$0\"/cgroup.procs && exec \"$@\""]).arg(&self.path).arg(program);
        command
    }

    /// Kills all processes of the group at once.
    pub fn kill(&self) -> Result<()> {
        self.control("1")
    }

    /// Lets all processes together run for this long in each tenth of a second.
    pub fn limit_cpu(&self, time: Duration) -> Result<()> {
        // 100 ms is the period that new groups have.
        let text = if self.control == "cpu.max" { "{} 100000" } else { "{}" };
        self.control(&text.replace("{}", &time.as_micros().to_string()))
    }

    /// Stops all processes of the group.
    pub fn freeze(&self) -> Result<()> {
        let is_v1 = self.control == "freezer.state";
        self.control(if is_v1 { "FROZEN" } else { "1" })?;
        let (file, done) = if is_v1 { (self.control, "FROZEN") } else { ("cgroup.events", "frozen 1") };
        wait_for("the group to freeze", Duration::from_secs(5), || {
            Ok(fs::read_to_string(self.path.join(file))?.contains(done).then_some(()))
        })
    }

    /// Lets them go on.
    pub fn thaw(&self) -> Result<()> {
        self.control(if self.control == "freezer.state" { "THAWED" } else { "0" })
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        _ = wait_for("the group to end", Duration::from_secs(5), || Ok(fs::remove_dir(&self.path).ok()));
    }
}
