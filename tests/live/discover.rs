//! One agent measures all servers of a host: it finds them, tells them apart, and follows their restarts.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use armtrace::attach::breakpoints;

use lab::agent::{without_terminal, Agent, Sample};
use lab::http;
use lab::load::Load;
use lab::releases::Release;
use lab::server::{wait_for, Options, Server};

/// The longest time from a server's start, or its end, until metrics show it.
const SOON: Duration = Duration::from_secs(10);

/// The memory that an agent of ten servers may have, in bytes.
const MEMORY: f64 = 80.0 * (1 << 20) as f64;

/// What a server is called that no unit and no container has started: the directory of its data.
fn name_of(server: &Server) -> Result<String> {
    Ok(fs::read_link(format!("/proc/{}/cwd", server.pid()))?.display().to_string())
}

fn of_target<'a>(samples: &'a [Sample], target: &'a str) -> impl Iterator<Item = &'a Sample> {
    samples.iter().filter(move |sample| sample.labels.get("target").is_some_and(|name| name == target))
}

fn value(samples: &[Sample], target: &str, metric: &str) -> Option<f64> {
    of_target(samples, target).find(|sample| sample.name == metric).map(|sample| sample.value)
}

fn is_up(samples: &[Sample], target: &str) -> Option<bool> {
    value(samples, target, "armtrace_target_up").map(|up| up == 1.0)
}

/// Waits until a server is measured, or is not any more. Returns the time that took.
fn becomes(agent: &Agent, target: &str, up: bool) -> Result<Duration> {
    let began = Instant::now();
    let what = format!("{target} to be {}", if up { "up" } else { "down" });
    wait_for(&what, SOON, || Ok((is_up(&agent.scrape()?, target) == Some(up)).then_some(())))
        .with_context(|| agent.errors().unwrap_or_default())?;
    Ok(began.elapsed())
}

fn nothing_is_left(server: &Server) -> Result<()> {
    wait_for("the last breakpoint to go", SOON, || Ok((breakpoints(server.pid())? == 0).then_some(())))
}

/// A process that is called like a server. Dropping it kills it.
struct Impostor(Child);

impl Impostor {
    /// Starts a copy of a program under the name of a server.
    fn start(folder: &Path, program: &Path, argument: &str) -> Result<Impostor> {
        let copy = folder.join("mysqld");
        fs::copy(program, &copy)?;
        Ok(Impostor(Command::new(&copy).arg(argument).stdout(Stdio::null()).spawn()?))
    }
}

impl Drop for Impostor {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// Returns a copy of a server's data in a folder that the server's user may enter.
fn data_of(server: &Server, folder: &Path) -> Result<PathBuf> {
    fs::set_permissions(folder, Permissions::from_mode(0o755))?;
    let copy = folder.join("data");
    let copied = Command::new("cp").arg("-a").arg(server.dir().join("data")).arg(&copy).status()?;
    ensure!(copied.success(), "copying the data: {copied}");
    Ok(copy)
}

#[test]
fn all_servers_of_a_host_are_measured() -> Result<()> {
    let (folder, programs) = (tempfile::tempdir_in("/var/tmp")?, tempfile::tempdir()?);
    let mariadb = Server::start(Release::MARIADB_11_4, &Options::default())?;
    let data = data_of(&mariadb, folder.path())?;
    let _sleeper = Impostor::start(programs.path(), Path::new("/bin/sleep"), "600")?;
    let agent = Agent::discover(&[])?;
    let first = name_of(&mariadb)?;
    becomes(&agent, &first, true)?;

    // One that starts later, the only one with a load.
    let mysql = Server::start(Release::MYSQL_8_0_31, &Options::default())?;
    let second = name_of(&mysql)?;
    println!("found {:?} after its start", becomes(&agent, &second, true)?);
    let mut load = Load::start(&mysql, "oltp_update_index", 16)?;
    load.wait_running()?;
    let waits = |target: &str| -> Result<f64> {
        let samples = agent.scrape()?;
        let sums = of_target(&samples, target).filter(|sample| sample.name == "armtrace_latch_wait_seconds_sum");
        Ok(sums.map(|sample| sample.value).sum())
    };
    let [idle, busy] = [waits(&first)?, waits(&second)?];
    wait_for("a second of waits", SOON, || Ok((waits(&second)? > busy + 1.0).then_some(())))?;
    let idle = waits(&first)? - idle;
    ensure!(idle < 0.1, "the idle server waits {idle} s: it has figures of the other");

    // One that is killed, and starts again.
    let again = Options { args: vec![format!("--datadir={}", data.display())], ..Options::default() };
    let restarted = Server::start(Release::MARIADB_11_4, &again)?;
    let third = data.display().to_string();
    becomes(&agent, &third, true)?;
    restarted.stop()?;
    println!("lost {:?} after its end", becomes(&agent, &third, false)?);
    let last = BTreeSet::from(["armtrace_target_attaches_total", "armtrace_target_up"].map(str::to_owned));
    wait_for("its other series to go", SOON, || {
        let samples = agent.scrape()?;
        let left: BTreeSet<String> = of_target(&samples, &third).map(|sample| sample.name.clone()).collect();
        Ok((left == last).then_some(()))
    })?;
    let restarted = Server::start(Release::MARIADB_11_4, &again)?;
    println!("found again {:?} after its start", becomes(&agent, &third, true)?);
    let samples = agent.scrape()?;
    let mut attached = of_target(&samples, &third).filter(|s| s.labels.get("result").is_some_and(|r| r == "attached"));
    ensure!(attached.next().is_some_and(|sample| sample.value == 2.0), "it was attached to twice");

    let up: Vec<&Sample> = samples.iter().filter(|sample| sample.name == "armtrace_target_up").collect();
    ensure!(up.len() == 3, "three servers, and no process that is only called like one: {up:?}");
    pages_show(&agent, &[&first, &second, &third])?;
    let errors = agent.errors()?;
    ensure!(errors.lines().count() == 5, "a line for each that was found or has ended:\n{errors}");

    for server in [&mariadb, &mysql, &restarted] {
        ensure!(breakpoints(server.pid())? > 0, "attached, but there is no breakpoint: this test could not fail");
    }
    let (status, _) = agent.stop()?;
    ensure!(status.success(), "{status}");
    [&mariadb, &mysql, &restarted].into_iter().try_for_each(nothing_is_left)?;
    let report = load.stop()?;
    ensure!(report.errors == 0 && report.reconnects == 0 && report.transactions > 0, "{report:?}");
    [mariadb, mysql, restarted].into_iter().try_for_each(Server::shut_down)
}

/// The list links to the page of each server.
fn pages_show(agent: &Agent, names: &[&str]) -> Result<()> {
    let list = http::get(&agent.address, "/")?.body;
    for name in names {
        let page = format!("/servers/{}/", http::url_encode(name));
        ensure!(list.contains(&format!("<a href=\"{page}\">{name}</a>")), "{page} is not in {list}");
        let shown = http::get(&agent.address, &page)?.body;
        let is_mysql = shown.contains("<h1>MySQL 8.0.31</h1>");
        let is_mariadb = shown.contains("<h1>MariaDB 11.4.5-MariaDB</h1>");
        ensure!(is_mysql != is_mariadb && shown.contains("attached for"), "{page}: {shown}");
    }
    let unknown = http::get(&agent.address, "/servers/none/")?;
    ensure!(unknown.head.starts_with("HTTP/1.0 404"), "{}", unknown.head);
    Ok(())
}

/// Returns how often the agent has attached to a server, and the budget that it has.
fn attached(agent: &Agent, target: &str) -> Result<(f64, f64)> {
    let samples = agent.scrape()?;
    let value = |name: &str| {
        let is_it =
            |sample: &&Sample| sample.name == name && sample.labels.get("result").is_none_or(|r| r == "attached");
        of_target(&samples, target).find(is_it).map(|sample| sample.value).context(name.to_owned())
    };
    Ok((value("armtrace_target_attaches_total")?, value("armtrace_overhead_budget_ratio")?))
}

#[test]
fn a_service_reads_its_settings_again() -> Result<()> {
    let server = Server::start(Release::MARIADB_11_4, &Options::default())?;
    let target = name_of(&server)?;
    let file = tempfile::NamedTempFile::with_suffix(".toml")?;
    std::fs::write(file.path(), "max-overhead = \"5%\"\n")?;
    let agent = Agent::discover_by(without_terminal(), &["--config".as_ref(), file.path().as_os_str()])?;
    becomes(&agent, &target, true)?;
    ensure!(attached(&agent, &target)? == (1.0, 0.05));
    let says = |what: &str| {
        wait_for(what, SOON, || Ok(agent.errors()?.contains(what).then_some(())))
            .with_context(|| agent.errors().unwrap_or_default())
    };

    // What is wrong changes nothing.
    std::fs::write(file.path(), "max-overhead = \"2%\"\nno-probs = true\n")?;
    agent.signal(libc::SIGHUP);
    says("the settings stay as they were: ")?;
    says(":2: there is no setting no-probs: did you mean no-probes?")?;
    ensure!(attached(&agent, &target)? == (1.0, 0.05) && breakpoints(server.pid())? > 0);

    // The server is attached to again; the port stays as it was.
    std::fs::write(file.path(), "max-overhead = \"2%\"\nno-probes = true\nallowed-hosts = [\"x.example\"]\n")?;
    agent.signal(libc::SIGHUP);
    says("only the next start changes allowed-hosts")?;
    wait_for("the new settings", SOON, || Ok((attached(&agent, &target).ok() == Some((2.0, 0.02))).then_some(())))?;
    nothing_is_left(&server)?;

    // What has not changed is left alone.
    std::fs::write(file.path(), "max-overhead = \"2%\"\nno-probes = true\nlog-level = \"debug\"\n")?;
    agent.signal(libc::SIGHUP);
    says("DEBUG")?;
    ensure!(attached(&agent, &target)? == (2.0, 0.02));
    let (status, _) = agent.stop()?;
    ensure!(status.success(), "{status}");
    server.stop()
}

/// The statements of each server that an account belongs to, by an option file; the password of one is wrong at first.
#[test]
#[ignore = "takes long: make test-all"]
fn statements_of_all_servers_are_counted() -> Result<()> {
    let mysql = Server::start(Release::MYSQL_8_0_31, &Options::default())?;
    let [mariadb, other] = [(), ()].map(|()| Server::start(Release::MARIADB_11_4, &Options::default()));
    let (mariadb, other) = (mariadb?, other?);
    mysql.query("CREATE USER monitor IDENTIFIED BY 'secret'")?;
    let file = tempfile::NamedTempFile::with_suffix(".cnf")?;
    // MariaDB is reached by another path, and MySQL by its port.
    let folder = tempfile::tempdir()?;
    let link = folder.path().join("link.sock");
    std::os::unix::fs::symlink(mariadb.socket(), &link)?;
    let write = |password: &str| {
        let (port, link) = (mysql.port(), link.display());
        let of_mysql = format!("[client2]\nuser=monitor\npassword={password}\nhost=localhost\nport={port}\n");
        fs::write(file.path(), format!("[client]\nuser=root\n\n{of_mysql}\n[client_db]\nsocket={link}\n"))
    };
    write("wrong")?;
    let agent = Agent::discover(&["--defaults-file".as_ref(), file.path().as_os_str()])?;
    let [of_mysql, of_mariadb, of_other] = [name_of(&mysql)?, name_of(&mariadb)?, name_of(&other)?];
    for name in [&of_mysql, &of_mariadb, &of_other] {
        becomes(&agent, name, true)?;
    }
    let count = |target: &str| Ok(value(&agent.scrape()?, target, "armtrace_statements_total"));
    let begins = |target: &str| wait_for(&format!("statements of {target}"), 3 * SOON, || count(target));
    begins(&of_mariadb)?;
    wait_for("the refusal", SOON, || Ok(agent.errors()?.contains("Access denied").then_some(())))?;
    ensure!(count(&of_mysql)?.is_none() && count(&of_other)?.is_none(), "servers that were not asked have counts");
    let denied = agent.errors()?;
    ensure!(denied.contains(&format!("the statements of process {} are not counted", mysql.pid())), "{denied}");

    write("secret")?;
    begins(&of_mysql)?;
    for (server, name, statements) in [(&mysql, &of_mysql, 300), (&mariadb, &of_mariadb, 200)] {
        let before = count(name)?.context("no count")?;
        server.query(&"DO 1;".repeat(statements))?;
        let expected = before + statements as f64;
        // The client and the server's own threads send some, too.
        let is_counted = |now: f64| now >= expected && now < expected + 20.0;
        wait_for("the statements to be counted", SOON, || Ok(count(name)?.filter(|now| is_counted(*now))))
            .with_context(|| format!("{name}: {:?} after {before}", count(name)))?;
    }
    ensure!(count(&of_other)?.is_none(), "a server without an account has a count");
    ensure!(other.query("SHOW PROCESSLIST")?.len() == 1, "a server without an account was asked");
    ensure!(agent.errors()?.matches("Access denied").count() == 1, "refused more than once: {}", agent.errors()?);
    let (status, _) = agent.stop()?;
    ensure!(status.success(), "{status}");
    [mysql, mariadb, other].into_iter().try_for_each(Server::shut_down)
}

/// Ten servers, as on a host that is shared, with two programs.
#[test]
#[ignore = "takes long: make test-all"]
fn ten_servers_take_little_memory() -> Result<()> {
    let release = |i| if i % 2 == 0 { Release::MARIADB_11_4 } else { Release::MYSQL_8_0_31 };
    let servers = (0..10).map(|i| Server::start(release(i), &Options::default())).collect::<Result<Vec<_>>>()?;
    let agent = Agent::discover(&[])?;
    let names = servers.iter().map(name_of).collect::<Result<Vec<_>>>()?;
    let began = Instant::now();
    wait_for("ten servers", 3 * SOON, || {
        let samples = agent.scrape()?;
        Ok(names.iter().all(|name| is_up(&samples, name) == Some(true)).then_some(()))
    })?;
    println!("ten servers measured after {:?}", began.elapsed());
    let memory = || -> Result<f64> {
        let samples = agent.scrape()?;
        let memory = samples.iter().find(|sample| sample.name == "process_resident_memory_bytes");
        Ok(memory.context("no resident memory")?.value)
    };
    // Reading the programs takes more, which is given back.
    wait_for("the memory of the analysis to be given back", 3 * SOON, || Ok((memory()? < MEMORY).then_some(())))
        .with_context(|| format!("{:?} bytes", memory()))?;
    println!("{:.1} MiB resident", memory()? / f64::from(1 << 20));
    let (status, _) = agent.stop()?;
    ensure!(status.success(), "{status}");
    servers.iter().try_for_each(nothing_is_left)?;
    servers.into_iter().try_for_each(Server::stop)
}
