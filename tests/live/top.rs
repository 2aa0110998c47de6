//! `armtrace top` in a real terminal: tmux with 80 columns and 24 lines.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use armtrace::server::running_servers;

use crate::watch::{all_watchpoints, none_is_left, survive_watching};
use lab::agent::{loaded_programs, program};
use lab::load::Load;
use lab::machine::patience;
use lab::releases::Release;
use lab::server::{wait_for, Options, Server};

/// A private tmux server with one terminal. Dropping it stops it.
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

    /// Waits until the screen contains `part` and returns the screen.
    fn wait(&self, part: &str) -> Result<String> {
        self.wait_long(part, Duration::from_secs(20))
    }

    fn wait_long(&self, part: &str, time: Duration) -> Result<String> {
        let shown = wait_for(&format!("{part:?} on the screen"), time, || {
            let screen = self.screen()?;
            Ok(screen.contains(part).then_some(screen))
        });
        shown.with_context(|| self.screen().unwrap_or_default())
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
    // Wait for a row of the table: the line on wake-ups above it can name a latch before there is one.
    tmux.wait("\ninnodb/")?;
    // Wait for the last line, which is drawn last, so that the screen is complete.
    let screen = tmux.wait("q quit")?;
    let lines: Vec<&str> = screen.lines().collect();
    ensure!(lines.len() == 24 && lines[0].starts_with("MySQL 9.7"), "{screen}");
    // The lines on row locks and on wake-ups, where there are any, are above the table's head.
    ensure!(lines[3..6].iter().any(|line| line.contains("wait/s▼")) && lines[23].ends_with("q quit"), "{screen}");
    // Show totals since attach, because the last seconds may have no waits for this latch.
    tmux.keys(&["Enter", "t"])?;
    let opened = tmux.wait("█")?;
    ensure!(opened.contains("wait/synch/") && opened.contains("histogram of waits"), "{opened}");
    tmux.keys(&["t", "Escape"])?;
    tmux.wait("wait/s▼")?;
    tmux.keys(&["4"])?;
    // The first samples may all be in the kernel.
    let cpu = tmux.wait("other · ")?;
    ensure!(cpu.contains("cpu: ") && cpu.contains("class · function"), "{cpu}");
    // On a machine with one node, the page says so.
    tmux.keys(&["5"])?;
    let numa = tmux.wait("one NUMA node").or_else(|_| tmux.wait("handed/s"))?;
    ensure!(numa.contains("5 NUMA"), "{numa}");
    tmux.keys(&["6"])?;
    tmux.wait("CPU tim")?;
    // A new size is drawn immediately, over the full width.
    tmux.run(&["resize-window", "-x", "120", "-y", "30"])?;
    wait_for("the new size", Duration::from_secs(10), || {
        let screen = tmux.screen()?;
        let lines: Vec<&str> = screen.lines().collect();
        Ok((lines.len() == 30 && lines[29].ends_with("q quit") && !lines[23].contains("q quit")).then_some(()))
    })?;
    tmux.keys(&["q"])?;
    // The terminal's earlier content is restored, and so are its settings.
    let after = tmux.wait("md5sum")?;
    ensure!(!after.contains("wait/s"), "{after}");
    tmux.keys(&["clear; stty -a | sed s/120/80/ | sed s/30/24/ | md5sum; echo status $?", "Enter"])?;
    let after = tmux.wait("status 0")?;
    ensure!(checksum(&after) == checksum(&settings), "{settings}\n{after}");
    wait_for("the programs to go", Duration::from_secs(10), || Ok(loaded_programs()?.is_empty().then_some(())))?;
    load.stop()?;
    server.stop()
}

/// Without `--pid`, the only server is taken, and among several the user chooses. A server without load is called idle.
#[test]
fn top_lets_choose_the_server() -> Result<()> {
    let mysql = Server::start(Release::MYSQL_9_7, &Options::default())?;
    let tmux = Tmux::start()?;
    let top = format!("clear; {} top; echo status $?", program().display());
    // Another server on this host would have to be chosen from.
    if running_servers().len() == 1 {
        tmux.keys(&[&top, "Enter"])?;
        // A few events may be lost while it starts, which the line above says, too.
        let screen = tmux.wait("\nserver is idle: ")?;
        ensure!(screen.contains("% of a CPU"), "{screen}");
        println!("{screen}");
        ensure!(screen.contains(&format!("pid {}", mysql.pid())) && screen.contains("\n0.00 threads"), "{screen}");
        tmux.keys(&["q"])?;
        let after = tmux.wait("status 0")?;
        ensure!(after.contains("the only server here"), "{after}");
    }
    let mariadb = Server::start(Release::MARIADB_11_4, &Options::default())?;
    tmux.keys(&[&top, "Enter"])?;
    let question = tmux.wait("(q quits)")?;
    println!("{question}");
    ensure!(question.contains("MySQL 9.7") && question.contains("MariaDB 11.4"), "{question}");
    tmux.keys(&["x", "Enter"])?;
    wait_for("the question again", Duration::from_secs(10), || {
        Ok((tmux.screen()?.matches("(q quits)").count() == 2).then_some(()))
    })?;
    tmux.keys(&[&mariadb.pid().to_string(), "Enter"])?;
    let screen = tmux.wait("F1 help")?;
    ensure!(screen.starts_with("MariaDB 11.4"), "{screen}");
    tmux.keys(&["q"])?;
    tmux.wait("status 0")?;
    wait_for("the programs to go", Duration::from_secs(10), || Ok(loaded_programs()?.is_empty().then_some(())))?;
    mysql.stop()?;
    mariadb.stop()
}

/// The longest time that a watch may take with a budget of 10 %, including the search for waiters.
const WATCH: Duration = Duration::from_secs(90);

/// How many times a watch that saw too little is repeated.
const MOST_REPEATS: usize = 3;

/// Selects the latch to watch, whether or not any thread is waiting for it.
fn select(tmux: &Tmux) -> Result<()> {
    tmux.keys(&["1", "/", "trx_sys_mutex", "Enter"])?;
    tmux.wait("[trx_sys_mutex]").map(drop)
}

/// The figures keep updating during the bursts, and then the page lists the functions that touch the latch.
fn watches(tmux: &Tmux) -> Result<()> {
    tmux.keys(&["w"])?;
    tmux.wait("bursts")?;
    tmux.keys(&["Escape"])?;
    let list = tmux.wait("[watching innodb/trx_sys_mutex")?;
    ensure!(list.contains("wait/s▼"), "{list}");
    // Remove the filter, so that all probes are listed. The watchpoint's row remains when the watch is over.
    tmux.keys(&["6", "/", "Escape"])?;
    tmux.wait("watchpoint ")?;
    select(tmux)?;
    tmux.keys(&["Enter"])?;
    let found = verdict(tmux)?;
    println!("{found}");
    ensure!(found.contains("SHARING"), "{found}");
    let latch = found.lines().find(|line| line.contains("the latch  ")).unwrap_or_default();
    // The columns are the offset, the object ("the latch"), touches, touches per millisecond, and writes.
    let touches = latch.split_whitespace().nth(3).unwrap_or("0");
    ensure!(touches != "0" && latch.contains('%'), "{found}");
    ensure!(found.contains("mutex_enter") || found.contains("exit"), "no function is named:\n{found}");
    tmux.keys(&["Escape"])?;
    tmux.wait("histogram of waits").map(drop)
}

/// Returns the page of a watched latch once its watch is over, when the last line offers to watch again. Repeats a
/// watch that saw too little.
fn verdict(tmux: &Tmux) -> Result<String> {
    for _ in 0..MOST_REPEATS {
        let found = tmux.wait_long("w watch again", WATCH)?;
        if !found.contains("TOO LITTLE") {
            return Ok(found);
        }
        tmux.keys(&["w"])?;
        tmux.wait("w stop watching")?;
    }
    tmux.wait_long("w watch again", WATCH)
}

/// A watch that is not possible shows the reason in place of a result.
fn explains_missing_watchpoints(tmux: &Tmux) -> Result<()> {
    let taken = all_watchpoints()?;
    tmux.keys(&["w"])?;
    let refused = tmux.wait("w watch again")?;
    drop(taken);
    for part in ["NOT WATCHED", "no hardware watchpoint is free", "histogram of waits"] {
        ensure!(refused.contains(part), "{part:?} is not in\n{refused}");
    }
    Ok(())
}

/// Quitting in the middle of a burst takes effect promptly.
fn quits_while_watching(tmux: &Tmux) -> Result<()> {
    tmux.keys(&["w"])?;
    tmux.wait("bursts")?;
    let begin = Instant::now();
    tmux.keys(&["q"])?;
    tmux.wait("status 0")?;
    let took = begin.elapsed();
    ensure!(took < patience(Duration::from_secs(4)), "quitting took {took:?}");
    wait_for("the programs to go", Duration::from_secs(10), || Ok(loaded_programs()?.is_empty().then_some(())))?;
    none_is_left()
}

#[test]
fn top_watches_the_cache_line_of_a_latch() -> Result<()> {
    survive_watching(Release::MYSQL_9_7, cache_line_is_watched)
}

fn cache_line_is_watched(server: &Server) -> Result<()> {
    let mut load = Load::start(server, "oltp_update_index", 16)?;
    load.wait_running()?;
    let tmux = Tmux::start()?;
    let options = "--max-overhead 10% --accept-crash-risk";
    let top = format!("{} top --pid {} {options}; echo status $?", program().display(), server.pid());
    tmux.keys(&[&top, "Enter"])?;
    tmux.wait("innodb/")?;
    select(&tmux)?;
    tmux.wait("innodb/trx_sys_mutex")?;
    watches(&tmux)?;
    explains_missing_watchpoints(&tmux)?;
    quits_while_watching(&tmux)?;
    let report = load.stop()?;
    ensure!(report.errors == 0, "{} statements failed", report.errors);
    Ok(())
}
