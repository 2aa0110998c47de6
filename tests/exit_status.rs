//! The exit status of each command, where no server is needed: scripts rely on it.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

/// Returns the exit status of armtrace, after checking that it prints one line of error with these words.
fn status(args: &[&str], words: &str) -> i32 {
    status_of(Command::new(env!("CARGO_BIN_EXE_armtrace")), args, words)
}

/// The same, of armtrace as this command starts it.
fn status_of(mut command: Command, args: &[&str], words: &str) -> i32 {
    let output = command.args(args).env_remove("ARMTRACE_MYSQL").stdin(Stdio::null()).output().expect("armtrace");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.stdout.is_empty(), "{args:?}");
    assert!(
        error.starts_with("armtrace: ") && error.contains(words) && error.lines().count() == 1,
        "{args:?}: {error}"
    );
    output.status.code().unwrap_or_else(|| panic!("{args:?} was killed"))
}

/// The commands that read a file, and what they say if it does not exist.
fn of_file<'a>(file: &'a str, output: &'a str) -> Vec<Vec<&'a str>> {
    vec![
        vec!["report", file],
        vec!["replay", file],
        vec!["compare", file, file],
        vec!["compare", "--by", "threads", file, file],
        vec!["compare", "--from-ps", file, "--ps-unit", "ps", "--ps-duration", "1s", file],
        vec!["audit", file],
        vec!["audit", "/proc/self/exe", file],
        vec!["audit", "/proc/self/exe", "--symbols", file],
        vec!["symbols", "export", file, "-o", output],
    ]
}

#[test]
fn a_missing_file_is_a_failure_of_every_command() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (missing, output) = (path("missing"), path("output"));
    for args in of_file(&missing, &output) {
        assert_eq!(status(&args, "No such file or directory"), 1, "{args:?}");
    }
    assert!(!Path::new(&output).exists());
}

#[test]
fn a_file_of_another_kind_is_a_failure_of_every_command() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (text, output) = (path("text"), path("output"));
    std::fs::write(&text, "neither a program nor a recording\n").expect("a file");
    for args in of_file(&text, &output) {
        assert_eq!(status(&args, &text), 1, "{args:?}");
    }
    assert!(!Path::new(&output).exists());
}

/// A limit on threads, such as `TasksMax=`, makes the kernel refuse them in the same way.
#[test]
fn a_command_without_threads_is_a_failure() {
    let refused = [libc::SYS_clone, libc::SYS_clone3].map(|call| (call, Vec::new())).into();
    let arch = std::env::consts::ARCH.try_into().expect("a known architecture");
    let refuse = SeccompAction::Errno(libc::EAGAIN as u32);
    let filter = SeccompFilter::new(refused, SeccompAction::Allow, refuse, arch).expect("a filter");
    let filter: BpfProgram = filter.try_into().expect("a program");
    let mut command = Command::new(env!("CARGO_BIN_EXE_armtrace"));
    // SAFETY: makes two system calls, and an error of them is not allocated.
    unsafe {
        command.pre_exec(move || seccompiler::apply_filter(&filter).map_err(|_| std::io::ErrorKind::Other.into()))
    };
    let args = ["replay", "tests/fixtures/recording-v1.rec", "--listen", "127.0.0.1:0"];
    assert_eq!(status_of(command, &args, "Resource temporarily unavailable"), 1);
}

#[test]
fn bad_usage_has_a_status_of_its_own() {
    assert_eq!(status(&["compare", "x"], "two recordings"), 2);
    assert_eq!(status(&["replay", "x", "x"], "is given twice"), 2);
    assert_eq!(
        status(&["compare", "--from-ps", "x", "--ps-unit", "ps", "--ps-duration", "1s", "x", "x"], "stands for A"),
        2
    );
    assert_eq!(status(&["compare", "--prometheus", "http://127.0.0.1:1"], "the labels of B's servers"), 2);
    assert_eq!(status(&["top", "--pid", "1"], "needs a terminal"), 2);
    for (args, words) in [
        (&["--dump-when-waiting", "20"][..], "--dump-when-waiting needs --dump-to FOLDER"),
        (&["--dump-to", "/", "--dump-when-statement", "1m"], "--dump-when-statement needs --mysql or --defaults-file"),
        (&["--dump-to", "/", "--keep", "0"], "--keep 0 keeps nothing"),
    ] {
        assert_eq!(status(&[&NO_PROCESS[..], args].concat(), words), 2);
    }
    let all = ["--discover", "--dump-to", "/", "--dump-when-statement", "1m"];
    assert_eq!(status(&all, "--dump-when-statement needs --defaults-file"), 2);
}

#[test]
fn the_past_of_no_server_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    for args in [&[][..], &["--when-waiting", "3"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_armtrace"));
        command.args(["dump", "-o", "/nonexistent/x.rec"]).args(args).env("RUNTIME_DIRECTORY", folder.path());
        let output = command.stdin(Stdio::null()).output().expect("armtrace");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.starts_with("armtrace: no armtrace runs here that keeps the past"), "{error}");
        assert_eq!(output.status.code(), Some(3));
    }
}

#[test]
fn a_process_that_does_not_exist_has_a_status_of_its_own() {
    // Process ids are below 4194304.
    assert_eq!(status(&["--pid", "2147483647"], "no process 2147483647"), 3);
    assert_eq!(status(&["doctor", "--pid", "2147483647"], "no process 2147483647"), 3);
}

/// Returns what armtrace says on standard error, and its exit status.
fn refusal(command: &mut Command) -> (String, Option<i32>) {
    let output = command.stdin(Stdio::null()).output().expect("armtrace");
    assert!(output.stdout.is_empty());
    (String::from_utf8_lossy(&output.stderr).into_owned(), output.status.code())
}

#[test]
fn a_wrong_log_level_is_bad_usage() {
    let (error, status) = refusal(Command::new(env!("CARGO_BIN_EXE_armtrace")).args(["top", "--log-level", "=x="]));
    assert!(error.contains("'=x=' for '--log-level <LEVEL>'"), "{error}");
    assert_eq!(status, Some(2));
}

/// No process has this ID, so that nothing is attached to whatever a test may have missed.
const NO_PROCESS: [&str; 2] = ["--pid", "2147483647"];

#[test]
fn a_wrong_setting_is_bad_usage() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("armtrace.toml").display().to_string();
    let line = ["run", NO_PROCESS[0], NO_PROCESS[1], "--config", &file];
    for (text, words) in [
        ("max-overhead = '1%'\nlisten = \n", "armtrace.toml:2: not TOML: "),
        ("max-overhed = '1%'\n", "armtrace.toml:1: there is no setting max-overhed: did you mean max-overhead?"),
        ("\nmax-overhead = true\n", "armtrace.toml:2: max-overhead is true or false: it takes a string or a number"),
        ("max-overhead = '1x'\n", "armtrace.toml:1: max-overhead = \"1x\": not a share: write 1% or 0.01"),
    ] {
        std::fs::write(&file, text).expect("a file");
        assert_eq!(status(&line, words), 2, "{text}");
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_armtrace"));
    command.env("ARMTRACE_MAX_OVERHEAD", "1x");
    let words = "ARMTRACE_MAX_OVERHEAD in the environment: max-overhead = \"1x\": not a share";
    assert_eq!(status_of(command, &NO_PROCESS, words), 2);
}

#[test]
fn settings_that_cannot_be_read_are_a_failure() {
    let (error, status) = refusal(Command::new(env!("CARGO_BIN_EXE_armtrace")).args(["run", "--config", "/no/such"]));
    assert!(error.starts_with("armtrace: cannot read the settings in /no/such: No such file or directory"), "{error}");
    assert_eq!(status, Some(1));
}

#[test]
fn right_settings_are_no_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("armtrace.toml").display().to_string();
    std::fs::write(&file, "pid = 2147483647\nmax-overhead = '2%'\nallowed-hosts = ['a', 'b']\n").expect("a file");
    assert_eq!(status(&["run", "--config", &file], "no process 2147483647"), 3);
    assert_eq!(status(&["--config", &file], "no process 2147483647"), 3);
}

#[test]
fn an_error_is_json_if_the_log_is() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_armtrace"));
    let (error, status) = refusal(command.args(NO_PROCESS).args(["--log-format", "json"]));
    let line: serde_json::Value = serde_json::from_str(&error).expect("one object");
    assert_eq!((&line["level"], status), (&"ERROR".into(), Some(3)), "{error}");
    assert!(line["message"].as_str().is_some_and(|text| text.contains("no process 2147483647")), "{error}");
    assert!(line["timestamp"].is_string(), "{error}");
}
