//! Stripped servers with separate symbols, servers in a container, and servers whose program was deleted from disk.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use armtrace::symbols::Image;
use tempfile::TempDir;

use lab::agent::{doctor, program, quickest_name, Agent};
use lab::load::Load;
use lab::machine::patience;
use lab::releases::script;
use lab::releases::Release;
use lab::server::{wait_for, Options, Server};

/// The longest time from the agent's start to the first named latch.
const FIRST_NAME: Duration = Duration::from_millis(1500);

/// The latches of the log, the lock system, the dictionary and the rollback segments.
const STATIC_LATCHES: &[&str] = &[
    "rwlock/innodb/log_latch",
    "rwlock/innodb/lock_latch",
    "rwlock/innodb/dict_operation_lock",
    "rwlock/innodb/trx_rseg_latch",
];

/// MariaDB 11.4 as in a package: a stripped program and its debug file.
struct Package {
    folder: TempDir,
    original: PathBuf,
}

impl Package {
    fn new() -> Result<Package> {
        let fetched = Command::new(script("fetch")).arg(Release::MARIADB_11_4.name()).output()?;
        let original = Path::new(String::from_utf8(fetched.stdout)?.trim()).join("bin/mariadbd");
        let package = Package { folder: tempfile::tempdir_in("/var/tmp")?, original };
        objcopy(&["--only-keep-debug".as_ref(), package.original.as_os_str(), package.debug().as_os_str()])?;
        objcopy(&["--strip-all".as_ref(), package.original.as_os_str(), package.program().as_os_str()])?;
        Ok(package)
    }

    fn program(&self) -> PathBuf {
        self.folder.path().join("mariadbd")
    }

    fn debug(&self) -> PathBuf {
        self.folder.path().join("mariadbd.debug")
    }

    /// Returns the debug file's path by build ID, relative to the root folder.
    fn build_id_path(&self) -> Result<PathBuf> {
        let id = Image::open(&self.original)?.build_id();
        Ok(format!("usr/lib/debug/.build-id/{}/{}.debug", &id[..2], &id[2..]).into())
    }

    fn options(&self) -> Options {
        Options { program: Some(self.program()), ..Options::default() }
    }
}

fn objcopy(args: &[&OsStr]) -> Result<()> {
    ensure!(Command::new("objcopy").args(args).status()?.success(), "objcopy {args:?}");
    Ok(())
}

/// Attaches the agent to a server under load and waits until it names latches with symbols from this source.
fn names_latches(server: &Server, args: &[&OsStr], source: &str) -> Result<Agent> {
    let mut load = Load::start(server, "oltp_update_index", 16)?;
    load.wait_running()?;
    let agent = Agent::attach_with(server, args)?;
    println!("symbols from {source}: {:?} to the first named latch", agent.first_name()?);
    // Latches in static data are named by data symbols, which a stripped program does not have.
    wait_for("a latch in static data", Duration::from_secs(20), || {
        let metrics = agent.metrics()?;
        let series = |name: &str| format!("armtrace_latch_wait_seconds_count{{latch=\"wait/synch/{name}");
        Ok(STATIC_LATCHES.iter().any(|name| metrics.contains(&series(name))).then_some(()))
    })?;
    let info = agent.metrics()?.lines().find(|l| l.starts_with("armtrace_target_info")).unwrap_or_default().to_owned();
    ensure!(info.contains(&format!("symbol_source=\"{source}\"")), "{info}");
    load.stop()?;
    Ok(agent)
}

#[test]
fn latches_of_an_unstripped_server_are_named_in_time() -> Result<()> {
    let server = Server::start(Release::MARIADB_11_4, &Options::default())?;
    names_latches(&server, &[], "symtab")?.stop()?;
    let mut load = Load::start(&server, "oltp_update_index", 16)?;
    load.wait_running()?;
    let limit = patience(FIRST_NAME);
    let first = quickest_name(&server, limit)?;
    load.stop()?;
    ensure!(first < limit, "the first named latch came after {first:?}");
    server.stop()
}

#[test]
fn a_symbol_file_names_the_latches_of_a_stripped_server() -> Result<()> {
    let package = Package::new()?;
    let (debug, symbols) = (package.debug(), package.folder.path().join("mariadbd.symbols"));
    let export = [OsStr::new("symbols"), "export".as_ref(), debug.as_ref(), "-o".as_ref(), symbols.as_ref()];
    ensure!(Command::new(program()).args(export).status()?.success(), "exporting symbols failed");
    let server = Server::start(Release::MARIADB_11_4, &package.options())?;
    names_latches(&server, &["--symbols".as_ref(), symbols.as_ref()], "file")?.stop()?;

    // Symbols of another program, and a missing file.
    let other = package.folder.path().join("other");
    objcopy(&["--only-keep-debug".as_ref(), program().as_os_str(), other.as_os_str()])?;
    for file in [other.as_path(), Path::new("/nowhere")] {
        let mut command = Command::new(program());
        command.args(["--pid", &server.pid().to_string(), "--symbols"]).arg(file);
        let output = command.stdin(Stdio::null()).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.code() == Some(1), "{:?}: {said}", output.status);
        ensure!(said.contains("--symbols") && said.lines().count() == 1, "{said}");
    }
    server.stop()
}

/// As with Docker, the server's paths refer to different files on the host.
#[test]
fn debug_files_are_found_inside_the_servers_container() -> Result<()> {
    let package = Package::new()?;
    let root = tempfile::tempdir_in("/var/tmp")?;
    let debug = root.path().join(package.build_id_path()?);
    fs::create_dir_all(debug.parent().context("a folder")?)?;
    fs::rename(package.debug(), &debug)?;
    let server = Server::start(
        Release::MARIADB_11_4,
        &Options { container: Some(root.path().to_owned()), ..package.options() },
    )?;
    // On the host, the path of the server's program is that of the unstripped one.
    let path = fs::read_link(format!("/proc/{}/exe", server.pid()))?;
    let inside = path.strip_prefix(root.path()).map_or(path.clone(), |p| Path::new("/").join(p));
    ensure!(inside == package.original, "{path:?} is not {:?}", package.original);
    ensure!(fs::metadata(&inside)?.len() != fs::metadata(format!("/proc/{}/exe", server.pid()))?.len());
    for namespace in ["mnt", "pid"] {
        let of = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/{namespace}"));
        ensure!(of(&server.pid().to_string())? != of("self")?, "not in another {namespace} namespace");
    }
    names_latches(&server, &[], "build-id")?.stop()?;
    let found = doctor(server.pid())?;
    let file = found["server"]["symbol_file"].as_str().context("no symbol file")?.to_owned();
    ensure!(file.starts_with(&format!("/proc/{}/root/usr/lib/debug/.build-id/", server.pid())), "{file}");
    server.stop()
}

/// A package upgrade replaces the program next to the debug file, which may remain.
#[test]
fn a_replaced_program_is_read_from_the_running_server() -> Result<()> {
    let package = Package::new()?;
    let program = package.program();
    objcopy(&[format!("--add-gnu-debuglink={}", package.debug().display()).as_ref(), program.as_ref()])?;
    let server = Server::start(Release::MARIADB_11_4, &package.options())?;
    ensure!(doctor(server.pid())?["server"]["program_deleted"] == false);
    fs::remove_file(&program)?;
    fs::write(&program, "another program")?;
    let agent = names_latches(&server, &[], "debuglink")?;
    let said = agent.errors()?;
    ensure!(said.contains("was deleted or replaced on disk"), "{said}");
    agent.stop()?;
    ensure!(doctor(server.pid())?["server"]["program_deleted"] == true);
    server.stop()
}
