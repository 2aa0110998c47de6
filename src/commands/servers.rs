//! The servers of this host: `armtrace` alone lists them, and `armtrace top` lets the user choose one.

use std::io::{self, BufRead, Write};

use super::output;
use super::Failure;
use crate::present::foreign::harmless_in_line;
use crate::present::format;
use crate::server::{running_servers, RunningServer};

/// Lists the servers that run here, with the commands that examine one. Attaches nothing.
pub(super) fn list() -> Result<(), Failure> {
    let servers = running_servers();
    let Some(first) = servers.first() else { return Err(Failure::NoServer) };
    let is_root = rustix::process::geteuid().is_root();
    output::print(&overview(&servers, first, is_root))
}

/// Returns the server that `armtrace top` shows if none is given: the only one, or the one that the user chooses;
/// `None` if the user chooses none. The terminal must be one.
pub(super) fn choose() -> Result<Option<i32>, Failure> {
    let servers = running_servers();
    match &servers[..] {
        [] => Err(Failure::NoServer),
        [only] => {
            eprintln!("armtrace: attaching to {}, the only server here", in_words(only));
            Ok(Some(only.pid))
        }
        several => ask(several, &mut io::stdin().lock(), &mut io::stdout()).map_err(Failure::Terminal),
    }
}

/// Returns the servers that could have been chosen, as arguments.
pub(super) fn choices() -> Vec<String> {
    running_servers().iter().map(|server| format!("--pid {} ({})", server.pid, program(server))).collect()
}

/// Asks until the answer is one of the servers, or the wish to leave.
fn ask(servers: &[RunningServer], answers: &mut impl BufRead, screen: &mut impl Write) -> io::Result<Option<i32>> {
    let numbers: Vec<String> = (1..=servers.len()).map(|number| number.to_string()).collect();
    let mut lines = table(servers).into_iter();
    writeln!(screen, "      {}", lines.next().unwrap_or_default())?;
    for (number, line) in numbers.iter().zip(lines) {
        writeln!(screen, "{number:>4}  {line}")?;
    }
    loop {
        write!(screen, "Which server, 1 to {}? (q quits) ", servers.len())?;
        screen.flush()?;
        let mut answer = String::new();
        if answers.read_line(&mut answer)? == 0 || answer.trim() == "q" {
            return Ok(None);
        }
        let named = |(number, server): &(&String, &RunningServer)| {
            answer.trim() == number.as_str() || answer.trim() == server.pid.to_string()
        };
        if let Some((_, server)) = numbers.iter().zip(servers).find(named) {
            return Ok(Some(server.pid));
        }
    }
}

fn overview(servers: &[RunningServer], first: &RunningServer, is_root: bool) -> String {
    let table: String = table(servers).iter().map(|line| format!("  {line}\n")).collect();
    let (sudo, pid) = (if is_root { "" } else { "sudo " }, first.pid);
    let missing = if servers.iter().any(|server| server.version.is_none() || server.data.is_none()) {
        "Not shown is what this user may not read; `sudo armtrace` shows more.\n"
    } else {
        ""
    };
    let command = |command: String, does: &str| format!("  {command:<38}  {does}\n");
    [
        "Servers on this host:\n\n".to_owned(),
        table,
        format!("{missing}\nTo see what a server waits for:\n\n"),
        command(format!("{sudo}armtrace --pid {pid}"), "a live table, and metrics on :9435"),
        command(format!("{sudo}armtrace top --pid {pid}"), "the full screen"),
        command(format!("{sudo}armtrace doctor --pid {pid}"), "what can be measured; attaches nothing"),
    ]
    .concat()
}

/// Returns a line of titles and a line for each server.
fn table(servers: &[RunningServer]) -> Vec<String> {
    let titles = ["pid", "server", "user", "data directory"].map(str::to_owned);
    let rows: Vec<[String; 4]> = std::iter::once(titles).chain(servers.iter().map(row)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let [pids, servers, users] = [0, 1, 2].map(width);
    let line = |[pid, server, user, data]: &[String; 4]| {
        format!("{pid:>pids$}  {server:<servers$}  {user:<users$}  {data}").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

fn row(server: &RunningServer) -> [String; 4] {
    let port = server.port.as_ref().map(|port| format!("port {port}"));
    let container = server.is_in_container.then(|| "in a container".to_owned());
    let place: Vec<String> = server.data.clone().into_iter().chain(port).chain(container).collect();
    [server.pid.to_string(), program(server), server.user.clone(), harmless_in_line(&place.join(", ")).into_owned()]
}

/// Returns the maintainer and version, or at least the program's name: `MySQL 9.7.4`.
fn program(server: &RunningServer) -> String {
    let program = match &server.version {
        Some((flavor, version)) => format!("{} {version}", format::flavor(flavor.as_str())),
        None => server.name.clone(),
    };
    harmless_in_line(&program).into_owned()
}

fn in_words(server: &RunningServer) -> String {
    format!("{} (pid {})", program(server), server.pid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Flavor;
    use crate::server::Place;

    fn server(pid: i32) -> RunningServer {
        RunningServer {
            pid,
            name: "mysqld".to_owned(),
            version: Some((Flavor::Mysql, "9.7.4".to_owned())),
            user: "mysql".to_owned(),
            data: Some("/var/lib/mysql".to_owned()),
            port: None,
            is_in_container: false,
            place: Place::default(),
        }
    }

    /// A server of which this user may only see that it is there.
    fn hidden(pid: i32) -> RunningServer {
        let of_a_container = RunningServer { port: Some("3307".to_owned()), is_in_container: true, ..server(pid) };
        RunningServer { version: None, user: "999".to_owned(), data: None, ..of_a_container }
    }

    #[test]
    fn a_servers_own_words_do_not_reach_the_terminal_as_commands() {
        let hostile = RunningServer {
            version: Some((Flavor::Mysql, "9.7\x1b[2J\n 1 MySQL".to_owned())),
            data: Some("/var/lib/\x1b]0;owned\x07".to_owned()),
            ..server(70)
        };
        let lines = table(&[hostile]);
        assert_eq!(lines.len(), 2);
        assert!(!lines.concat().contains(char::is_control), "{lines:?}");
    }

    fn answered(answers: &str) -> (Option<i32>, String) {
        let mut screen = Vec::new();
        let chosen = ask(&[server(70), hidden(1234)], &mut answers.as_bytes(), &mut screen).unwrap();
        (chosen, String::from_utf8(screen).unwrap())
    }

    #[test]
    fn the_list_offers_commands_to_copy() {
        let servers = [server(70), hidden(1234)];
        let expected = "\
Servers on this host:

   pid  server       user   data directory
    70  MySQL 9.7.4  mysql  /var/lib/mysql
  1234  mysqld       999    port 3307, in a container
Not shown is what this user may not read; `sudo armtrace` shows more.

To see what a server waits for:

  sudo armtrace --pid 70                  a live table, and metrics on :9435
  sudo armtrace top --pid 70              the full screen
  sudo armtrace doctor --pid 70           what can be measured; attaches nothing
";
        assert_eq!(overview(&servers, &servers[0], false), expected);
        let of_root = overview(&servers[..1], &servers[0], true);
        assert!(!of_root.contains("sudo") && of_root.contains("  armtrace --pid 70 "), "{of_root}");
    }

    #[test]
    fn a_server_is_chosen_by_its_place_in_the_list_or_its_id() {
        assert_eq!(answered("2\n").0, Some(1234));
        assert_eq!(answered("70\n").0, Some(70));
        assert_eq!(answered(" 1 \n").0, Some(70));
        for nothing in ["q\n", "", "3\nx\nq\n"] {
            assert_eq!(answered(nothing).0, None, "{nothing:?}");
        }
    }

    #[test]
    fn a_wrong_answer_is_asked_again() {
        let (chosen, screen) = answered("3\n\n1\n");
        assert_eq!((chosen, screen.matches("Which server, 1 to 2?").count()), (Some(70), 3), "{screen}");
        assert!(screen.contains("   1    70  MySQL 9.7.4") && screen.contains("   2  1234  mysqld"), "{screen}");
    }
}
