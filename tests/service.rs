//! The unit of the service: how little it may do, that it may do what armtrace needs, and what armtrace tells systemd.

use std::collections::BTreeSet;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use lab::server::wait_for;
use tempfile::TempDir;

const UNIT: &str = "packaging/armtrace.service";

/// The largest exposure level, of 10, that the unit may have.
const MOST_EXPOSED: f64 = 4.0;

fn read(path: &str) -> String {
    let full = format!("{}/{path}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(full).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the words of a setting of the unit, which may be in it several times.
fn setting(unit: &str, name: &str) -> BTreeSet<String> {
    let lines = unit.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    lines.flat_map(str::split_whitespace).map(str::to_owned).collect()
}

#[test]
fn the_unit_is_hardened() {
    let analyze = |arguments: &[&str]| {
        Command::new("systemd-analyze").args(arguments).current_dir(env!("CARGO_MANIFEST_DIR")).output()
    };
    // Since systemd 250.
    let knows = analyze(&["--help"]).is_ok_and(|help| String::from_utf8_lossy(&help.stdout).contains("--offline"));
    if !knows {
        eprintln!("skipped: the_unit_is_hardened: there is no systemd-analyze that analyses a file");
        return;
    }
    let output = analyze(&["security", "--offline=true", "--no-pager", UNIT]).expect("systemd-analyze");
    let text = String::from_utf8_lossy(&output.stdout);
    let (_, level) = text.split_once("Overall exposure level").unwrap_or_else(|| panic!("{text}{output:?}"));
    let level = level.split_whitespace().find_map(|word| word.parse::<f64>().ok()).expect("a level");
    assert!(level <= MOST_EXPOSED, "{level}:\n{text}");
}

/// `SECURITY.md` lists what `run` keeps.
#[test]
fn the_unit_has_the_capabilities_that_are_documented() {
    let page = read("SECURITY.md");
    let (_, kept) = page.split_once("- all capabilities but ").expect("the list");
    let (kept, _) = kept.split_once(';').expect("its end");
    let words = kept.split(|c: char| !(c.is_ascii_uppercase() || c == '_')).filter(|word| word.starts_with("CAP_"));
    let documented: BTreeSet<String> = words.map(str::to_owned).chain(["CAP_SYS_ADMIN".to_owned()]).collect();
    assert_eq!(setting(&read(UNIT), "CapabilityBoundingSet"), documented);
}

#[test]
fn the_unit_hides_nothing_that_is_read() {
    let unit = read(UNIT);
    for name in ["PrivateUsers", "PrivatePIDs", "ProtectProc", "ProtectKernelTunables", "ProtectKernelLogs"] {
        assert!(setting(&unit, name).is_empty(), "{name}");
    }
    let filter = setting(&unit, "SystemCallFilter");
    assert!(!filter.contains("@debug") && !filter.contains("~@debug"), "{filter:?}");
}

/// A socket where a service manager would listen, and armtrace as its service. Dropping it kills armtrace.
struct Service {
    manager: UnixDatagram,
    armtrace: Child,
    _folder: TempDir,
}

/// The longest that a message may be on its way.
const SOON: Duration = Duration::from_secs(20);

impl Service {
    /// Starts armtrace on a recording, which needs no privilege. What it says of itself does not depend on the command.
    fn start(watchdog: Option<Duration>) -> Service {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("notify");
        let manager = UnixDatagram::bind(&path).expect("a socket");
        let armtrace = replay(Some(&path), watchdog);
        Service { manager, armtrace, _folder: folder }
    }

    /// Returns the next message; `None` if none comes within this time.
    fn next_within(&self, time: Duration) -> Option<String> {
        self.manager.set_read_timeout(Some(time)).expect("a limit");
        let mut message = [0; 4096];
        let length = self.manager.recv(&mut message).ok()?;
        Some(String::from_utf8(message[..length].to_vec()).expect("UTF-8"))
    }

    fn next(&self) -> String {
        self.next_within(SOON).expect("a message")
    }

    fn signal(&self, signal: i32) {
        // SAFETY: signals this test's own child, which has not been waited for.
        unsafe { libc::kill(self.armtrace.id() as i32, signal) };
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        _ = self.armtrace.kill();
        _ = self.armtrace.wait();
    }
}

fn replay(manager: Option<&Path>, watchdog: Option<Duration>) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_armtrace"));
    command.args(["replay", "tests/fixtures/recording-v1.rec", "--stay", "--listen", "127.0.0.1:0"]);
    command.current_dir(env!("CARGO_MANIFEST_DIR")).stdout(Stdio::null()).stdin(Stdio::null());
    command.env_remove("WATCHDOG_PID").env_remove("WATCHDOG_USEC").env_remove("NOTIFY_SOCKET");
    command.envs(manager.map(|path| ("NOTIFY_SOCKET", path)));
    command.envs(watchdog.map(|time| ("WATCHDOG_USEC", time.as_micros().to_string())));
    command.spawn().expect("armtrace")
}

#[test]
fn the_manager_is_told_of_the_begin_and_the_end() {
    let mut service = Service::start(None);
    assert_eq!(service.next(), "READY=1\nSTATUS=Replaying tests/fixtures/recording-v1.rec\n");
    service.signal(libc::SIGTERM);
    assert_eq!(service.next(), "STOPPING=1\nSTATUS=Stopping\n");
    assert!(service.armtrace.wait().expect("its end").success());
    assert_eq!(service.next_within(Duration::from_millis(10)), None, "a sign of life that nobody asked for");
}

#[test]
fn a_process_that_hangs_gives_no_sign_of_life() {
    let watchdog = Duration::from_secs(1);
    let service = Service::start(Some(watchdog));
    assert!(service.next().starts_with("READY=1\n"));
    let began = Instant::now();
    for _ in 0..8 {
        assert_eq!(service.next(), "WATCHDOG=1\n");
    }
    // The first comes at once, the others four times as often as one is expected.
    assert!(began.elapsed() > watchdog, "{:?}", began.elapsed());
    service.signal(libc::SIGSTOP);
    while service.next_within(watchdog / 2).is_some() {}
    assert_eq!(service.next_within(watchdog), None, "a stopped process");
    service.signal(libc::SIGCONT);
    assert_eq!(service.next(), "WATCHDOG=1\n");
}

/// Without a service manager, and with one that is gone, armtrace does its work.
#[test]
fn nobody_need_listen() {
    for manager in [None, Some(Path::new("/nonexistent/notify"))] {
        let mut armtrace = replay(manager, Some(Duration::from_millis(100)));
        let listens = || {
            let files = std::fs::read_dir(format!("/proc/{}/fd", armtrace.id()))?;
            let links = files.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
            Ok(links.filter(|link| link.to_string_lossy().starts_with("socket:")).count().checked_sub(1))
        };
        let up = wait_for("the port", SOON, listens);
        let running = armtrace.try_wait().expect("a status").is_none();
        _ = armtrace.kill();
        _ = armtrace.wait();
        up.expect("the port");
        assert!(running, "{manager:?}");
    }
}

#[test]
fn the_unit_waits_for_what_it_is_told() {
    let unit = read(UNIT);
    let is = |name, value: &str| assert_eq!(setting(&unit, name), BTreeSet::from([value.to_owned()]), "{name}");
    is("Type", "notify");
    is("NotifyAccess", "main");
    // Not mixed, which kills the process that detaches once armtrace has ended.
    is("KillMode", "control-group");
    let watchdog = setting(&unit, "WatchdogSec");
    assert!(watchdog.iter().all(|time| time.parse::<u32>().is_ok_and(|time| time > 0)) && watchdog.len() == 1);
}

/// The pod of a node does what the unit of a host does.
#[test]
fn the_pod_has_the_capabilities_of_the_unit() {
    let pod = read("packaging/kubernetes/daemonset.yaml");
    let (_, added) = pod.split_once("              add:\n").expect("the list");
    let names = added.lines().map_while(|line| line.trim().strip_prefix("- "));
    let added: BTreeSet<String> = names.map(|name| format!("CAP_{name}")).collect();
    assert_eq!(added, setting(&read(UNIT), "CapabilityBoundingSet"));
}
