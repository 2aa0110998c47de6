//! Bad input results in one clear error with the next step, the right exit status, and nothing attached.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{ensure, Context, Result};

use lab::agent::{free_port, loaded_programs, program, readable_program};
use lab::releases::Release;
use lab::server::{wait_for, Options, Server};

/// Runs the agent, which must fail with this status and print at most two lines that contain these words.
fn fails(command: &mut Command, status: i32, words: &[&str]) -> Result<()> {
    let output = command.stdin(Stdio::null()).output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.code() == Some(status), "{:?} instead of {status}: {said}", output.status);
    for word in words {
        ensure!(said.contains(word), "{word:?} is not in: {said}");
    }
    ensure!(said.lines().count() <= 2, "more than two lines: {said}");
    ensure!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
    // The kernel frees BPF programs shortly after their process has exited.
    wait_for(&format!("the BPF programs to be freed after {said}"), Duration::from_secs(10), || {
        Ok(loaded_programs()?.is_empty().then_some(()))
    })
}

fn agent(args: &[&str]) -> Command {
    let mut command = Command::new(program());
    command.args(args);
    command
}

/// A process that is killed when dropped.
struct Sleeper(Child);

impl Sleeper {
    fn start(program: &Path) -> Result<Sleeper> {
        let sleeper = Sleeper(Command::new(program).arg("60").spawn().context("starting a process to examine")?);
        // spawn() returns before the program is mapped.
        wait_for("the process's program to be mapped", Duration::from_secs(10), || {
            let maps = fs::read_to_string(format!("/proc/{}/maps", sleeper.pid()))?;
            Ok(maps.contains("/ld-linux").then_some(()))
        })?;
        Ok(sleeper)
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_wrong_process_is_explained() -> Result<()> {
    fails(&mut agent(&["--pid", "4194303"]), 3, &["no process 4194303", "`armtrace` alone"])?;
    let sleeper = Sleeper::start(Path::new("/bin/sleep"))?;
    fails(&mut agent(&["--pid", &sleeper.pid()]), 3, &["not a MySQL or MariaDB server", "sleep", "`armtrace` alone"])?;
    // kthreadd has no program, like every kernel thread.
    fails(&mut agent(&["--pid", "2"]), 3, &["not a database server"])?;
    fails(&mut agent(&["doctor", "--pid", "4194303"]), 3, &["no process"])
}

#[test]
fn bad_usage_has_its_own_status() -> Result<()> {
    let code = |args: &[&str]| -> Result<Option<i32>> { Ok(agent(args).stdin(Stdio::null()).output()?.status.code()) };
    for args in [&["--pid", "0"][..], &["--pid", "x"], &["--listen", ":99999"], &["frobnicate"], &["run"]] {
        ensure!(code(args)? == Some(2), "{args:?}");
    }
    for args in [&["--max-overhead", "20%"][..], &["--pid", "1", "--max-overhead", "0"], &["--symbols", "x"]] {
        ensure!(code(&[&["doctor"], args].concat())? == Some(2), "doctor {args:?}");
    }
    Ok(())
}

#[test]
fn a_thread_id_is_rejected_with_the_process_id() -> Result<()> {
    let server = Server::start(Release::MYSQL_9_7, &Options::default())?;
    let thread = fs::read_dir(format!("/proc/{}/task", server.pid()))?
        .filter_map(|t| t.ok()?.file_name().to_str()?.parse::<i32>().ok())
        .find(|t| *t != server.pid())
        .context("the server has only one thread")?;
    let advice = format!("--pid {}", server.pid());
    fails(&mut agent(&["--pid", &thread.to_string()]), 3, &["is a thread", &advice])?;

    let taken = std::net::TcpListener::bind("127.0.0.1:0")?;
    let listen = format!("127.0.0.1:{}", taken.local_addr()?.port());
    let pid = server.pid().to_string();
    fails(&mut agent(&["--pid", &pid, "--listen", &listen]), 1, &["taken", "--listen"])?;

    // Without root, and so without permission to trace the server.
    let (_folder, readable) = readable_program()?;
    let mut nobody = Command::new(&readable);
    nobody.args(["--pid", &pid, "--listen", &format!("127.0.0.1:{}", free_port()?)]).uid(65534).gid(65534);
    fails(&mut nobody, 4, &["sudo"])?;
    server.stop()
}

#[test]
fn a_taken_default_port_mentions_ebpf_exporter() -> Result<()> {
    // The bind may fail, because something else may already listen on the default port.
    let _taken = std::net::TcpListener::bind("[::]:9435");
    let server = Server::start(Release::MARIADB_11_4, &Options::default())?;
    fails(&mut agent(&["--pid", &server.pid().to_string()]), 1, &["taken", "ebpf_exporter"])?;
    server.stop()
}

/// A program is truncated, as by a full disk, but after its loaded segments, so that it still runs.
#[test]
fn a_truncated_program_is_explained() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let whole = fs::read("/bin/sleep")?;
    let loaded = loaded_length(&whole)?;
    ensure!(loaded < whole.len(), "there is nothing to cut off");
    let program = dir.path().join("mysqld");
    fs::write(&program, &whole[..loaded])?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    let sleeper = Sleeper::start(&program)?;
    fails(&mut agent(&["--pid", &sleeper.pid()]), 3, &["not a MySQL or MariaDB server"])?;
    for length in [0, 3, 63, 64, 200, whole.len() / 2] {
        let cut = dir.path().join(format!("cut-{length}"));
        fs::write(&cut, &whole[..length])?;
        ensure!(
            armtrace::symbols::Image::open(&cut).is_err(),
            "a program cut to {length} bytes was opened without an error"
        );
    }
    Ok(())
}

/// Returns the length of the prefix of an ELF file that holds its loaded segments.
fn loaded_length(elf: &[u8]) -> Result<usize> {
    use object::read::elf::{FileHeader, ProgramHeader};
    let header = object::elf::FileHeader64::<object::LittleEndian>::parse(elf)?;
    let endian = header.endian()?;
    let ends =
        header.program_headers(endian, elf)?.iter().filter(|p| p.p_type(endian) == object::elf::PT_LOAD).map(|p| {
            let (offset, size) = p.file_range(endian);
            (offset + size) as usize
        });
    ends.max().context("no loaded segment")
}
