//! `armtrace top` on a real terminal, tmux's, of 80 columns and 24 lines.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{ensure, Result};

use crate::watch::{all_watchpoints, none_is_left};
use lab::agent::{loaded_programs, program};
use lab::load::Load;
use lab::machine::patience;
use lab::releases::Release;
use lab::server::{wait_for, Options, Server};

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
        self.wait_long(part, Duration::from_secs(20))
    }

    fn wait_long(&self, part: &str, time: Duration) -> Result<String> {
        wait_for(&format!("{part:?} on the screen"), time, || {
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
    let server = Server::start(Release::MYSQL_9_7, &Options::default())?;
    let mut load = Load::start(&server, "oltp_update_index", 16)?;
    load.wait_running()?;
    let tmux = Tmux::start()?;
    tmux.keys(&["stty -a | md5sum", "Enter"])?;
    let settings = tmux.wait("  -")?;
    let checksum = |screen: &str| screen.lines().rev().find(|line| line.ends_with("  -")).map(str::to_owned);
    tmux.keys(&[&format!("{} top --pid {}", program().display(), server.pid()), "Enter"])?;
    // A row of the table: the line above it, on wake-ups, can name a latch before there is any.
    tmux.wait("\ninnodb/")?;
    // The last line comes last: a screen may be seen half drawn.
    let screen = tmux.wait("q quit")?;
    let lines: Vec<&str> = screen.lines().collect();
    ensure!(lines.len() == 24 && lines[0].starts_with("MySQL 9.7"), "{screen}");
    ensure!(lines[3].contains("wait/s▼") && lines[23].ends_with("q quit"), "{screen}");
    // Since attach, for nobody need have waited for this latch in the last seconds.
    tmux.keys(&["Enter", "t"])?;
    let opened = tmux.wait("█")?;
    ensure!(opened.contains("wait/synch/") && opened.contains("histogram of waits"), "{opened}");
    tmux.keys(&["t", "Escape"])?;
    tmux.wait("wait/s▼")?;
    tmux.keys(&["4"])?;
    // The first samples may all be the kernel's.
    let cpu = tmux.wait("other · ")?;
    ensure!(cpu.contains("cpu: ") && cpu.contains("class · function"), "{cpu}");
    // A machine of one node says that it is one.
    tmux.keys(&["5"])?;
    let numa = tmux.wait("one NUMA node").or_else(|_| tmux.wait("handed/s"))?;
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

/// The longest that a watch takes with a tenth of the server's CPU time, waiters that are looked for among it.
const WATCH: Duration = Duration::from_secs(90);

/// How often a watch that saw too little is begun again.
const MOST_WATCHES_AGAIN: usize = 3;

/// Selects the latch to watch, whether or not anybody waits for it at this moment.
fn select(tmux: &Tmux) -> Result<()> {
    tmux.keys(&["1", "/", "trx_sys_mutex", "Enter"])?;
    tmux.wait("[trx_sys_mutex]").map(drop)
}

/// While bursts go on, figures do too; then the page says who touches the latch.
fn watches(tmux: &Tmux) -> Result<()> {
    tmux.keys(&["w"])?;
    tmux.wait("bursts")?;
    tmux.keys(&["Escape"])?;
    let list = tmux.wait("[watching innodb/trx_sys_mutex")?;
    ensure!(list.contains("wait/s▼"), "{list}");
    // All probes, whatever their names. The row stays when the watch is over.
    tmux.keys(&["6", "/", "Escape"])?;
    tmux.wait("watchpoint ")?;
    select(tmux)?;
    tmux.keys(&["Enter"])?;
    let found = verdict(tmux)?;
    println!("{found}");
    ensure!(found.contains("SHARING"), "{found}");
    let latch = found.lines().find(|line| line.contains("the latch  ")).unwrap_or_default();
    // Offset, two words of what it is, touches, touches per ms, writes.
    let touches = latch.split_whitespace().nth(3).unwrap_or("0");
    ensure!(touches != "0" && latch.contains('%'), "{found}");
    ensure!(found.contains("mutex_enter") || found.contains("exit"), "no function is named:\n{found}");
    tmux.keys(&["Escape"])?;
    tmux.wait("histogram of waits").map(drop)
}

/// The page of a watched latch once its watch is over. The last line, which is drawn last, then offers another, and that is taken
/// where too little was seen.
fn verdict(tmux: &Tmux) -> Result<String> {
    for _ in 0..MOST_WATCHES_AGAIN {
        let found = tmux.wait_long("w watch again", WATCH)?;
        if !found.contains("TOO LITTLE") {
            return Ok(found);
        }
        tmux.keys(&["w"])?;
        tmux.wait("w stop watching")?;
    }
    tmux.wait_long("w watch again", WATCH)
}

/// A watch that cannot be says why, in place of a result.
fn watchpoints_are_taken(tmux: &Tmux) -> Result<()> {
    let taken = all_watchpoints()?;
    tmux.keys(&["w"])?;
    let refused = tmux.wait("w watch again")?;
    drop(taken);
    for part in ["NOT WATCHED", "no hardware watchpoint is free", "histogram of waits"] {
        ensure!(refused.contains(part), "{part:?} is not in\n{refused}");
    }
    Ok(())
}

/// To quit in the middle of a burst is to quit.
fn quits_while_it_watches(tmux: &Tmux) -> Result<()> {
    tmux.keys(&["w"])?;
    tmux.wait("bursts")?;
    let begin = Instant::now();
    tmux.keys(&["q"])?;
    tmux.wait("status 0")?;
    let took = begin.elapsed();
    ensure!(took < patience(Duration::from_secs(4)), "it took {took:?} to quit");
    wait_for("the programs to go", Duration::from_secs(10), || Ok(loaded_programs()?.is_empty().then_some(())))?;
    none_is_left()
}

#[test]
fn top_watches_the_cache_line_of_a_latch() -> Result<()> {
    let server = Server::start(Release::MYSQL_9_7, &Options::default())?;
    let mut load = Load::start(&server, "oltp_update_index", 16)?;
    load.wait_running()?;
    let tmux = Tmux::start()?;
    let top = format!("{} top --pid {} --max-overhead 10%; echo status $?", program().display(), server.pid());
    tmux.keys(&[&top, "Enter"])?;
    tmux.wait("innodb/")?;
    select(&tmux)?;
    tmux.wait("innodb/trx_sys_mutex")?;
    watches(&tmux)?;
    watchpoints_are_taken(&tmux)?;
    quits_while_it_watches(&tmux)?;
    let report = load.stop()?;
    ensure!(report.errors == 0, "{} statements failed", report.errors);
    server.stop()
}
