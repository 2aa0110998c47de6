//! The commands for recordings, run as processes: their output and exit status.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use armtrace::recording::Ending;
use lab::http::get;
use tempfile::TempDir;

use crate::{busy_file, busy_seconds, file, start};

fn armtrace(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_armtrace"))
        .args(args)
        .env_remove("ARMTRACE_MYSQL")
        .stdin(Stdio::null())
        .output()
        .expect("cannot run armtrace")
}

/// Returns both ends of a terminal that is nobody's controlling terminal: a process in it gets no signal when it goes.
/// Neither is inherited by processes that other tests start.
fn terminal() -> (File, OwnedFd) {
    let user = File::options().read(true).write(true).custom_flags(libc::O_NOCTTY).open("/dev/ptmx").unwrap();
    let size = libc::winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
    let (locked, flags) = (0, libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC);
    // SAFETY: the first two read a variable of the type that they expect, and the last one returns a new descriptor.
    unsafe {
        assert_eq!(libc::ioctl(user.as_raw_fd(), libc::TIOCSPTLCK, &raw const locked), 0);
        assert_eq!(libc::ioctl(user.as_raw_fd(), libc::TIOCSWINSZ, &raw const size), 0);
        let program = libc::ioctl(user.as_raw_fd(), libc::TIOCGPTPEER, flags);
        assert!(program >= 0, "{}", std::io::Error::last_os_error());
        (user, OwnedFd::from_raw_fd(program))
    }
}

/// The terminal goes at any moment of the start, and when everything is shown.
#[test]
fn the_full_screen_ends_with_its_terminal() {
    for wait in [0, 0, 1, 2, 5, 300].map(Duration::from_millis) {
        ends_with_its_terminal(wait);
    }
}

/// Checks that the full-screen view ends if its terminal goes so long after the first line.
fn ends_with_its_terminal(wait: Duration) {
    let files = Files::new();
    let path = files.write("a.rec", &busy_file(60));
    let (mut user, program) = terminal();
    let mut child = Command::new(env!("CARGO_BIN_EXE_armtrace"))
        .args(["replay", &path, "--top"])
        .env("TERM", "xterm")
        .stdin(program.try_clone().unwrap())
        .stdout(program)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut drawn = [0; 256];
    user.read_exact(&mut drawn).unwrap();
    std::thread::sleep(wait);
    drop(user);
    let ended = (0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(50));
        child.try_wait().unwrap().is_some()
    });
    if !ended {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert!(ended, "it goes on without a terminal");
}

struct Files(TempDir);

impl Files {
    fn new() -> Files {
        Files(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, bytes: &[u8]) -> String {
        let path: PathBuf = self.0.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.display().to_string()
    }
}

/// Checks that the command exits with this status, prints one line of error with these words, and nothing else.
fn fails(args: &[&str], status: i32, words: &str) {
    let output = armtrace(args);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{args:?}: {error}");
    assert!(
        error.starts_with("armtrace: ") && error.contains(words) && error.lines().count() == 1,
        "{args:?}: {error}"
    );
    assert!(output.stdout.is_empty(), "{args:?}");
}

fn prints(args: &[&str]) -> String {
    let output = armtrace(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn reports_have_four_formats() {
    let files = Files::new();
    let recording = files.write("busy.rec", &busy_file(12));
    assert!(prints(&["report", &recording]).starts_with("MySQL 9.7.4"));
    let json: serde_json::Value = serde_json::from_str(&prints(&["report", &recording, "--format", "json"])).unwrap();
    assert_eq!(json["latches"][0]["latch"], "wait/synch/mutex/innodb/trx_mutex");
    assert_eq!(json["ending"], "complete");
    assert!(prints(&["report", &recording, "--format", "html"]).starts_with("<!DOCTYPE html>"));
    assert!(prints(&["report", &recording, "--format", "folded"]).starts_with("mysql 9.7.4;"));
}

#[test]
fn comparisons_have_three_formats() {
    let files = Files::new();
    let (a, b) = (files.write("a.rec", &busy_file(12)), files.write("b.rec", &busy_file(20)));
    assert!(prints(&["compare", &a, &b]).starts_with("A  "));
    let json: serde_json::Value =
        serde_json::from_str(&prints(&["compare", &a, &b, "--format", "json", "--usd-a", "1", "--usd-b", "2"]))
            .unwrap();
    assert_eq!(json["cost_performance"]["price"], serde_json::json!([1.0, 2.0]));
    assert!(prints(&["compare", &a, &b, "--format", "html"]).starts_with("<!DOCTYPE html>"));
    let dump = files.write("ps.txt", b"wait/synch/mutex/innodb/trx_mutex\t150000000000\t100\n");
    let text = prints(&["compare", "--from-ps", &dump, "--ps-unit", "ps", "--ps-duration", "1s", &b]);
    assert!(text.contains("innodb/trx_mutex") && text.contains("150ms"), "{text}");
    let two = ["compare", "--from-ps", &dump, "--from-ps", &dump];
    assert!(prints(&two).contains("shares of all waits"));
    let seconds = ["--ps-duration", "10s", "--ps-duration", "20s"];
    assert!(prints(&[&two[..], &seconds].concat()).contains(" · 20 s\n"));
    let statements = ["--ps-statements", "1000", "--ps-statements", "500"];
    let text = prints(&[&two[..], &statements].concat());
    assert!(text.contains("150ms") && text.contains("300ms"), "{text}");
    // 1,000 statements in a second of A, and 2,000 in a second of B.
    let rates = ["--ps-duration", "1s", "--qps-a", "1000", "--qps-b", "2000"];
    let text = prints(&[&two[..], &rates].concat());
    assert!(text.contains("150ms") && text.contains("75.0ms"), "{text}");
}

#[test]
fn scaling_is_by_a_label() {
    let files = Files::new();
    let at = |threads: u32| {
        files.write(&format!("{threads}.rec"), &file(&start(threads), &busy_seconds(12), Some(Ending::Complete)))
    };
    let (one, four) = (at(1), at(4));
    assert!(prints(&["compare", "--by", "threads", &four, &one])
        .contains("At 4 threads, throughput is 1.00 times that at 1"));
    fails(&["compare", "--by", "os", &one, &four], 1, "no label os");
    let none = files.write("none.rec", &file(&start(0), &busy_seconds(12), Some(Ending::Complete)));
    fails(&["compare", "--by", "threads", &none, &four], 1, "no label threads with a number above 0");
    fails(&["compare", "--by", "threads", &one, &one], 1, "two different values");
    let with_prices = armtrace(&["compare", "--by", "threads", &one, &four, "--usd-a", "1", "--usd-b", "1"]);
    assert_eq!(with_prices.status.code(), Some(2));
}

#[test]
fn bad_files_exit_with_one_error_and_status_1() {
    let files = Files::new();
    let whole = busy_file(3);
    let mut newer = whole.clone();
    newer[8] = 99;
    let mut damaged = whole.clone();
    damaged[40] ^= 0xff;
    let good = files.write("good.rec", &whole);
    for (name, bytes, words) in [
        ("newer.rec", &newer[..], "update armtrace"),
        ("damaged.rec", &damaged, "damaged at byte 12"),
        ("short.rec", &whole[..100], "nothing was recorded"),
        ("empty.rec", b"", "not an armtrace recording"),
        ("foreign.rec", b"#!/bin/sh\nexit 0\n", "not an armtrace recording"),
    ] {
        let bad = files.write(name, bytes);
        fails(&["report", &bad], 1, words);
        fails(&["replay", &bad], 1, words);
        fails(&["compare", &good, &bad], 1, words);
        assert_eq!(std::fs::read(&bad).unwrap(), bytes, "{name} was changed");
    }
    fails(&["report", "/nowhere/x.rec"], 1, "No such file");
    fails(&["replay", "/nowhere/x.rec"], 1, "No such file");
    fails(&["report", "/proc"], 1, "/proc");
}

/// The port of a replay can be secured as that of a live agent, and is not opened if its file is of no use.
#[test]
fn a_replay_takes_a_file_for_its_port() {
    let files = Files::new();
    let good = files.write("good.rec", &busy_file(3));
    for (more, status) in [(&[][..], 1), (&["--top"], 2)] {
        let output = armtrace(&[&["replay", &good, "--web.config.file", "/nowhere/web.yml"], more].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{error}");
        assert!(error.contains("--web.config.file"), "{error}");
    }
}

/// Recordings of many servers, in folders for each host, are served as many servers.
#[test]
fn several_recordings_are_several_servers() {
    let files = Files::new();
    for host in ["a", "b"] {
        std::fs::create_dir(files.0.path().join(host)).unwrap();
    }
    let (a, b) = (files.write("a/x.rec", &busy_file(3)), files.write("b/x.rec", &busy_file(12)));
    let mut command = Command::new(env!("CARGO_BIN_EXE_armtrace"));
    command.args(["replay", &a, &b, "--listen", "127.0.0.1:0", "--speed", "1000", "--stay"]);
    let mut replay = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(replay.stderr.as_mut().unwrap()).read_line(&mut line).unwrap();
    let address =
        line.trim_end().rsplit("://").next().unwrap().trim_end_matches("/metrics").replace("localhost", "127.0.0.1");
    let scraped = |path: &str| get(&address, path).map(|answer| answer.body);
    // All is played by then; an answer before would be given again for a second.
    std::thread::sleep(Duration::from_millis(300));
    let (all, only_b) = (scraped("/metrics"), scraped("/metrics?target=b%2Fx"));
    replay.kill().unwrap();
    replay.wait().unwrap();
    assert!(line.starts_with("armtrace: 2 recordings are served on http://"), "{line}");
    let (all, only_b) = (all.unwrap(), only_b.unwrap());
    let of = |text: &str, target| text.matches(&format!("target=\"{target}\"")).count();
    assert!(of(&all, "a/x") > 50 && of(&all, "b/x") > 50, "{all}");
    assert!(of(&only_b, "b/x") > 50 && of(&only_b, "a/x") == 0, "{only_b}");
    assert!(!all.contains("armtrace_target_attaches_total"), "nothing was attached to");
    fails(&["replay", &a, &b, "--top"], 2, "--top shows one recording");
    fails(&["replay", &a, &a], 2, "is given twice");
}

/// What is not a terminal gets no escape sequences, nor does one whose user wants none.
#[test]
fn the_log_has_no_colours_in_a_file() {
    let files = Files::new();
    let cut = files.write("cut.rec", &file(&start(1), &busy_seconds(3), None));
    let output = armtrace(&["replay", &cut, "--listen", "127.0.0.1:0", "--speed", "1000"]);
    let log = String::from_utf8(output.stderr).unwrap();
    assert!(log.contains("WARN") && log.contains("cut short"), "{log}");
    assert!(!log.contains('\x1b') && !String::from_utf8_lossy(&output.stdout).contains('\x1b'), "{log:?}");
}

/// Replays a recording that was cut short, with the log and the table in files, which systemd says are the journal or
/// not. Returns what both have.
fn replayed_into_files(files: &Files, are_journal: bool) -> (String, String) {
    let cut = files.write("cut.rec", &file(&start(1), &busy_seconds(3), None));
    let replay = |name: &str, stream: fn(&mut Command, File) -> &mut Command| {
        let path = PathBuf::from(files.write(name, b""));
        let opened = File::create(&path).unwrap();
        let status = opened.metadata().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_armtrace"));
        command.args(["replay", &cut, "--listen", "127.0.0.1:0", "--speed", "1000"]).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null()).env_remove("JOURNAL_STREAM");
        if are_journal {
            command.env("JOURNAL_STREAM", format!("{}:{}", status.dev(), status.ino()));
        }
        assert!(stream(&mut command, opened).status().unwrap().success());
        std::fs::read_to_string(&path).unwrap()
    };
    (replay("log", |command, file| command.stderr(file)), replay("table", |command, file| command.stdout(file)))
}

/// The journal has times of its own, and a table every few seconds would bury what matters.
#[test]
fn the_journal_gets_neither_times_nor_a_table() {
    let files = Files::new();
    let (log, table) = replayed_into_files(&files, true);
    assert!(log.trim_start().starts_with("WARN") && table.is_empty(), "{log}{table}");
    let (log, table) = replayed_into_files(&files, false);
    let (time, rest) = log.split_once(' ').unwrap();
    assert!(time.starts_with("20") && time.ends_with('Z') && rest.trim_start().starts_with("WARN"), "{log}");
    assert!(table.contains("latch"), "{table}");
}

#[test]
fn usage_is_checked() {
    let files = Files::new();
    let good = files.write("good.rec", &busy_file(3));
    fails(&["compare", &good], 2, "two recordings");
    fails(&["compare", &good, &good, &good], 2, "two recordings");
    let dump = files.write("ps.txt", b"Hello\n");
    let from = ["--from-ps", &dump, "--ps-unit", "ps", "--ps-duration", "7d"];
    fails(&[&["compare", &good, &good][..], &from].concat(), 2, "--from-ps");
    fails(&[&["compare", &good][..], &from].concat(), 1, "line 1 is not");
    let dumps = ["compare", "--from-ps", &dump, "--from-ps", &dump];
    fails(&[&dumps[..], &[&good]].concat(), 2, "--from-ps a second time");
    fails(&[&dumps[..], &["--ps-statements", "1"]].concat(), 2, "for each --from-ps");
    fails(&[&dumps[..], &["--qps-b", "1"]].concat(), 1, "line 1 is not");
    let (one, rate) = (["compare", "--from-ps", &dump, &good], ["--qps-a", "5"]);
    fails(&[&one[..], &rate].concat(), 2, "give --ps-duration too");
    fails(&[&one[..], &rate, &["--ps-statements", "5"]].concat(), 2, "say the same");
    fails(&["compare", "--from-ps", &dump], 2, "a second time");
    let status = |args: &[&str]| armtrace(args).status.code();
    for args in [
        &["compare", &good, &good, "--usd-a", "1"][..],
        &["compare", &good, &good, "--ghz-a", "0"],
        &["compare", &good, &good, "--ps-duration", "1s"],
        &["record", "--pid", "1"],
        &["record", "--pid", "1", "-o", "x", "--duration", "60"],
        &["record", "--pid", "1", "-o", "x", "--label", "threads"],
    ] {
        assert_eq!(status(args), Some(2), "{args:?}");
    }
}

#[test]
fn an_existing_file_is_not_overwritten() {
    let files = Files::new();
    let precious = files.write("precious.rec", b"precious");
    fails(&["record", "--pid", "4194303", "-o", &precious], 1, "--force");
    // Not even with --force if nothing could be recorded.
    fails(&["record", "--pid", "4194303", "-o", &precious, "--force"], 3, "no process");
    assert_eq!(std::fs::read(&precious).unwrap(), b"precious");
}
