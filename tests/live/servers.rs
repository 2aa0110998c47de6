//! `armtrace` alone lists the servers that run here, to root and to others, and attaches nothing.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use anyhow::{ensure, Result};

use lab::agent::{loaded_programs, program, readable_program};
use lab::releases::Release;
use lab::server::{Options, Server};

/// Runs the command, which must exit with this status, and returns what it prints and its errors.
fn run(command: &mut Command, status: i32) -> Result<(String, String)> {
    let output = command.stdin(Stdio::null()).output()?;
    let [printed, errors] = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    ensure!(output.status.code() == Some(status), "{:?} instead of {status}: {printed}{errors}", output.status);
    Ok((printed, errors))
}

/// Returns the line of the list with this process ID.
fn line_of(list: &str, pid: i32) -> &str {
    let pid = pid.to_string();
    list.lines().find(|line| line.split_whitespace().next() == Some(&pid)).unwrap_or_default()
}

#[test]
fn armtrace_alone_lists_the_servers() -> Result<()> {
    let mysql = Server::start(Release::MYSQL_9_7, &Options::default())?;
    let root = tempfile::tempdir_in("/var/tmp")?;
    let in_container = Options { container: Some(root.path().to_owned()), ..Options::default() };
    let mariadb = Server::start(Release::MARIADB_11_4, &in_container)?;
    let (list, errors) = run(&mut Command::new(program()), 0)?;
    println!("{list}");
    ensure!(errors.is_empty(), "{errors}");
    for (pid, words) in [
        (mysql.pid(), ["MySQL 9.7", "nobody", "/var/lib/mysql"]),
        (mariadb.pid(), ["MariaDB 11.4", "root", "in a container"]),
    ] {
        let line = line_of(&list, pid);
        ensure!(words.iter().all(|word| line.contains(word)), "{words:?} are not in {line:?} of\n{list}");
    }
    ensure!(list.contains("  armtrace --pid ") && list.contains("  armtrace doctor --pid "), "{list}");
    ensure!(loaded_programs()?.is_empty(), "the list has attached something");
    others_see_less(&mysql)?;
    not_a_terminal(&[mysql.pid(), mariadb.pid()])?;
    mysql.stop()?;
    mariadb.stop()
}

/// To another user the version is not shown, and this is said.
fn others_see_less(server: &Server) -> Result<()> {
    let (_folder, readable) = readable_program()?;
    // Not the user of any server here, who may read more.
    let (list, _) = run(Command::new(&readable).uid(65533).gid(65533), 0)?;
    println!("{list}");
    let line = line_of(&list, server.pid());
    ensure!(line.contains("mysqld") && line.contains("nobody") && !line.contains("9.7"), "{list}");
    ensure!(list.contains("this user may not read") && list.contains("  sudo armtrace --pid "), "{list}");
    Ok(())
}

/// `top` cannot ask where it has no terminal, and says what it would have offered.
fn not_a_terminal(pids: &[i32]) -> Result<()> {
    let (_, error) = run(Command::new(program()).arg("top"), 2)?;
    ensure!(error.contains("needs a terminal") && error.lines().count() == 2, "{error}");
    for pid in pids {
        ensure!(error.contains(&format!("--pid {pid} (M")), "{error}");
    }
    Ok(())
}

/// A PID namespace of its own hides all servers.
#[test]
fn without_a_server_it_says_what_to_do() -> Result<()> {
    let mut alone = Command::new("unshare");
    alone.args(["--pid", "--fork", "--mount-proc"]).arg(program());
    let (list, error) = run(&mut alone, 3)?;
    ensure!(list.is_empty() && error.lines().count() == 2, "{list}{error}");
    ensure!(error.contains("make demo") && error.contains("armtrace replay"), "{error}");
    Ok(())
}
