//! `armtrace top` on a real terminal, tmux's, of 80 columns and 24 lines.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{ensure, Result};

use crate::agent::{loaded_programs, program};
use crate::load::Load;
use crate::server::{wait_for, Family, Options, Server};

/// A tmux server of our own, with one terminal. Dropping it ends it.
struct Tmux {
    socket: String,
}

impl Tmux {
    fn start() -> Result<Tmux> {
        let tmux = Tmux { socket: format!("armtrace-{}", std::process::id()) };
        tmux.run(&["-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", "env PS1='ready> ' sh"])?;
        wait_for("a shell", Duration::from_secs(10), || Ok(tmux.screen()?.contains("ready>").then_some(())))?;
        Ok(tmux)
    }

    fn run(&self, args: &[&str]) -> Result<String> {
        let output = Command::new("tmux").args(["-L", &self.socket]).args(args).stdin(Stdio::null()).output()?;
        ensure!(output.status.success(), "tmux {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn screen(&self) -> Result<String> {
        self.run(&["capture-pane", "-p"])
    }

    fn keys(&self, keys: &[&str]) -> Result<()> {
        self.run(&[&["send-keys"], keys].concat()).map(drop)
    }

    /// Waits until the screen has this, and returns it.
    fn wait(&self, part: &str) -> Result<String> {
        wait_for(&format!("{part:?} on the screen"), Duration::from_secs(20), || {
            let screen = self.screen()?;
            Ok(screen.contains(part).then_some(screen))
        })
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        _ = self.run(&["kill-server"]);
    }
}

#[test]
fn top_shows_a_server_and_leaves_the_terminal_as_it_was() -> Result<()> {
    let server = Server::start(Family::Mysql97, &Options::default())?;
    let mut load = Load::start(&server, "oltp_update_index", 16)?;
    load.wait_running()?;
    let tmux = Tmux::start()?;
    tmux.keys(&["stty -a | md5sum", "Enter"])?;
    let settings = tmux.wait("  -")?;
    let checksum = |screen: &str| screen.lines().rev().find(|line| line.ends_with("  -")).map(str::to_owned);
    tmux.keys(&[&format!("{} top --pid {}", program().display(), server.pid()), "Enter"])?;
    let screen = tmux.wait("innodb/")?;
    let lines: Vec<&str> = screen.lines().collect();
    ensure!(lines.len() == 24 && lines[0].starts_with("MySQL 9.7"), "{screen}");
    ensure!(lines[3].contains("wait/s▼") && lines[23].ends_with("q quit"), "{screen}");
    // Since attach, for nobody need have waited for this latch in the last seconds.
    tmux.keys(&["Enter", "t"])?;
    let opened = tmux.wait("█")?;
    ensure!(opened.contains("wait/synch/") && opened.contains("how long waits took"), "{opened}");
    tmux.keys(&["t", "Escape"])?;
    tmux.wait("wait/s▼")?;
    tmux.keys(&["4"])?;
    let cpu = tmux.wait("class · function")?;
    ensure!(cpu.contains("cpu: ") && cpu.contains("other · "), "{cpu}");
    // A machine of one node says that it is one.
    tmux.keys(&["5"])?;
    let numa = tmux.wait("all one place").or_else(|_| tmux.wait("handed/s"))?;
    ensure!(numa.contains("5 NUMA"), "{numa}");
    tmux.keys(&["6"])?;
    tmux.wait("CPU tim")?;
    // Another size is drawn at once, over its whole width.
    tmux.run(&["resize-window", "-x", "120", "-y", "30"])?;
    wait_for("the new size", Duration::from_secs(10), || {
        let screen = tmux.screen()?;
        let lines: Vec<&str> = screen.lines().collect();
        Ok((lines.len() == 30 && lines[29].ends_with("q quit") && !lines[23].contains("q quit")).then_some(()))
    })?;
    tmux.keys(&["q"])?;
    // What was on the terminal before is there again, and it is set as it was.
    let after = tmux.wait("md5sum")?;
    ensure!(!after.contains("wait/s"), "{after}");
    tmux.keys(&["clear; stty -a | sed s/120/80/ | sed s/30/24/ | md5sum; echo status $?", "Enter"])?;
    let after = tmux.wait("status 0")?;
    ensure!(checksum(&after) == checksum(&settings), "{settings}\n{after}");
    wait_for("the programs to go", Duration::from_secs(10), || Ok(loaded_programs()?.is_empty().then_some(())))?;
    load.stop()?;
    server.stop()
}
