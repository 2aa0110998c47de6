//! Finds the servers that run on this host, and what tells them apart, as far as this user may look into them.

use procfs::process::{all_processes, Process};

use super::{exe_path, load_bias, version, Memory, Place};
use crate::catalog::{Flavor, PERCONA_TEXT};
use crate::symbols::Image;

/// The names of servers' programs. Variants have a suffix: `mysqld-debug`.
const PROGRAMS: [&str; 2] = ["mysqld", "mariadbd"];

/// A process that runs a MySQL or MariaDB server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningServer {
    /// The process ID.
    pub pid: i32,
    /// The name of the process.
    pub name: String,
    /// The maintainer and the version that the server itself reports; `None` if this user may not read its memory.
    pub version: Option<(Flavor, String)>,
    /// The user that it runs as; a number if that has no name on this host.
    pub user: String,
    /// The directory of its data, as the server sees it; `None` if neither its arguments nor /proc tell this user.
    pub data: Option<String>,
    /// The TCP port in its arguments, if it is there.
    pub port: Option<String>,
    /// Whether it has a PID namespace of its own, as in a container.
    pub is_in_container: bool,
    /// Its unit and its container.
    pub place: Place,
}

/// Returns the servers that run here, by process ID. Their programs are recognized by their names, and by what is in
/// them if this user may read them. Servers in containers are among them, under the IDs that this host uses.
pub fn running_servers() -> Vec<RunningServer> {
    let processes = all_processes().into_iter().flatten().flatten();
    let mut servers: Vec<RunningServer> = processes.filter_map(|process| examine(&process)).collect();
    servers.sort_by_key(|server| server.pid);
    servers
}

/// Returns the processes that may be servers by their names, by ID. It reads one short file of each process.
pub fn processes_like_servers() -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let has_such_name = |id: &i32| {
        std::fs::read_to_string(format!("/proc/{id}/comm")).is_ok_and(|name| is_server_name(name.trim_end()))
    };
    let mut found: Vec<i32> = ids.filter(has_such_name).collect();
    found.sort_unstable();
    found
}

/// Returns what is known of process `pid`, if it is a server.
pub fn running_server(pid: i32) -> Option<RunningServer> {
    examine(&Process::new(pid).ok()?)
}

/// Returns what is known of a process, if it is a server.
fn examine(process: &Process) -> Option<RunningServer> {
    let status = process.status().ok()?;
    is_server_name(&status.name).then_some(())?;
    let pid = process.pid;
    let version = match reported_version(pid) {
        Reported::Version(flavor, version) => Some((flavor, version)),
        Reported::Unreadable => None,
        Reported::OtherProgram => return None,
    };
    let arguments = process.cmdline().unwrap_or_default();
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    // A server changes to the directory of its data.
    let directory = || Some(process.cwd().ok()?.display().to_string());
    Some(RunningServer {
        pid,
        version,
        user: user_name(&users, status.euid).unwrap_or_else(|| status.euid.to_string()),
        data: argument(&arguments, "--datadir").or_else(directory),
        port: argument(&arguments, "--port"),
        is_in_container: status.nspid.is_some_and(|ids| ids.len() > 1),
        place: Place::of(process),
        name: status.name,
    })
}

/// Returns whether a process of this name may be a server. `mysqld_safe` and `mysqld_exporter` are not.
fn is_server_name(name: &str) -> bool {
    let rest = PROGRAMS.iter().find_map(|program| name.strip_prefix(program));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['-', '.']))
}

/// What a process's program and memory say about its version.
enum Reported {
    Version(Flavor, String),
    /// This user may not read them, or it is ending.
    Unreadable,
    /// The program lacks the variable that every server has.
    OtherProgram,
}

fn reported_version(pid: i32) -> Reported {
    let Ok(image) = Image::open_running(&exe_path(pid)) else { return Reported::Unreadable };
    if image.symbol("server_version").is_none() {
        return Reported::OtherProgram;
    }
    let text = load_bias(pid, &image).ok().and_then(|bias| version(&image, &Memory::new(pid), bias));
    text.map_or(Reported::Unreadable, |text| Reported::Version(flavor(&image, &text), text))
}

/// Returns the maintainer of the server of this version. MariaDB is in the version itself.
fn flavor(image: &Image, version: &str) -> Flavor {
    if version.contains("MariaDB") {
        Flavor::Mariadb
    } else if image.has_string(PERCONA_TEXT) {
        Flavor::Percona
    } else {
        Flavor::Mysql
    }
}

/// Returns the value of an option such as `--datadir=/var/lib/mysql`; the last one counts.
fn argument(arguments: &[String], option: &str) -> Option<String> {
    let joined = |argument: &String| Some(argument.strip_prefix(option)?.strip_prefix('=')?.to_owned());
    let value = |(i, argument): (usize, &String)| {
        joined(argument).or_else(|| (argument == option).then(|| arguments.get(i + 1).cloned())?)
    };
    arguments.iter().enumerate().rev().find_map(value)
}

/// Returns the name of a user in the text of /etc/passwd.
fn user_name(users: &str, id: u32) -> Option<String> {
    let fields = users.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let found = fields.into_iter().find(|fields| fields.get(2).is_some_and(|number| number.parse() == Ok(id)));
    found.map(|fields| fields[0].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_known_by_their_names() {
        for name in ["mysqld", "mariadbd", "mysqld-debug", "mysqld.bin"] {
            assert!(is_server_name(name), "{name}");
        }
        for name in ["mysqld_safe", "mysqld_exporter", "mysql", "mysqldump", "mariadbd_x", "postgres", ""] {
            assert!(!is_server_name(name), "{name}");
        }
    }

    #[test]
    fn arguments_have_two_forms_and_the_last_one_counts() {
        let arguments = |words: &str| words.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let given = arguments("mysqld --datadir=/a --datadir-else=/b --port 3307 --datadir=/c");
        assert_eq!(argument(&given, "--datadir").as_deref(), Some("/c"));
        assert_eq!(argument(&given, "--port").as_deref(), Some("3307"));
        assert_eq!(argument(&given, "--socket"), None);
        assert_eq!(argument(&arguments("mysqld --port"), "--port"), None);
    }

    #[test]
    fn users_have_names() {
        let users = "root:x:0:0:root:/root:/bin/bash\nbroken\nmysql:x:104:112::/nonexistent:/bin/false\n";
        assert_eq!(user_name(users, 104).as_deref(), Some("mysql"));
        assert_eq!(user_name(users, 0).as_deref(), Some("root"));
        assert_eq!(user_name(users, 999), None);
    }

    /// Without a server, a process is recognized as something else. Its program is this test.
    #[test]
    fn this_process_is_no_server() {
        let own = std::process::id() as i32;
        assert!(matches!(reported_version(own), Reported::OtherProgram));
        assert!(running_servers().iter().all(|server| server.pid != own));
    }
}
