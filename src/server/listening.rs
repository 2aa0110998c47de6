//! Whether a server listens where a client is to connect. A client with a password must not follow what any process
//! says about itself: so the address comes from the client's options, and the kernel says who listens there.

use std::collections::HashSet;
use std::fs::{metadata, read_link, read_to_string, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use mysql::Opts;
use procfs::net::{TcpNetEntry, TcpState};
use procfs::process::{FDTarget, Process};

use crate::symbols::RootFolder;

/// How this host is called by itself.
const THIS_HOST: [&str; 3] = ["127.0.0.1", "::1", "localhost"];

/// The flag of sockets that listen (`__SO_ACCEPTCON` in Linux's `include/linux/net.h`).
const LISTENS: u32 = 1 << 16;

/// The most files that are looked at of those on which a process listens. A server listens on one or two.
const MOST_FILES: usize = 64;

/// Where a process listens.
#[derive(Default)]
pub(super) struct Listening {
    /// Sockets in a file system, by device and inode: the process may see them under other paths.
    files: HashSet<(u64, u64)>,
    /// Ports in the network of this process.
    ports: HashSet<u16>,
}

impl Listening {
    /// Returns where process `pid` listens; nowhere if it has ended.
    pub fn of(pid: i32) -> Listening {
        let Ok(process) = Process::new(pid) else { return Listening::default() };
        let own = sockets(&process);
        let mut ports = HashSet::new();
        if is_in_own_network(pid) {
            let listeners = tcp_listeners().filter(|entry| own.contains(&entry.inode));
            ports.extend(listeners.map(|entry| entry.local_address.port()));
        }
        Listening { files: listening_files(&process, &own).unwrap_or_default(), ports }
    }

    /// Returns whether it listens where these options connect to: on a socket of this file system, or on a port of this
    /// host.
    pub fn is_at(&self, options: &Opts) -> bool {
        match options.get_socket() {
            Some(path) => metadata(path).is_ok_and(|file| self.files.contains(&identity(&file))),
            None => THIS_HOST.contains(&&*options.get_ip_or_hostname()) && self.ports.contains(&options.get_tcp_port()),
        }
    }
}

/// Iterates over the TCP sockets that listen in the network of this process.
pub fn tcp_listeners() -> impl Iterator<Item = TcpNetEntry> {
    let entries = [procfs::net::tcp(), procfs::net::tcp6()].into_iter().flatten().flatten();
    entries.filter(|entry| entry.state == TcpState::Listen)
}

/// Returns the sockets that a process has open, by their inodes.
pub fn sockets(process: &Process) -> HashSet<u64> {
    let files = process.fd().into_iter().flatten().flatten();
    let socket = |target| match target {
        FDTarget::Socket(inode) => Some(inode),
        _ => None,
    };
    files.filter_map(|file| socket(file.target)).collect()
}

/// Returns the files on which these sockets of a process listen.
fn listening_files(process: &Process, own: &HashSet<u64>) -> io::Result<HashSet<(u64, u64)>> {
    let root = RootFolder::open(Path::new(&format!("/proc/{}/root", process.pid)))?;
    let directory = process.cwd().map_err(io::Error::other)?;
    let text = read_to_string(format!("/proc/{}/net/unix", process.pid))?;
    let bound = listening(&text).filter(|(inode, _)| own.contains(inode)).take(MOST_FILES);
    let files = bound.filter_map(|(_, path)| root.metadata(&directory.join(path)).ok());
    Ok(files.map(|file| identity(&file)).collect())
}

/// Returns the sockets that listen, by the kernel's list: their inodes and paths. Any user can choose a path that is
/// not understood; its line is left out.
fn listening(text: &str) -> impl Iterator<Item = (u64, PathBuf)> + '_ {
    text.lines().filter_map(|line| {
        // The kernel separates with single spaces, but fills up inodes.
        let mut rest = line;
        let mut field = || {
            let (field, behind) = rest.trim_start().split_once(' ')?;
            rest = behind;
            Some(field)
        };
        let [_, _, _, flags, _, _, inode] = std::array::from_fn(|_| field());
        let listens = u32::from_str_radix(flags?, 16).ok()? & LISTENS != 0;
        let inode = inode?.parse().ok()?;
        listens.then(|| (inode, PathBuf::from(rest)))
    })
}

fn identity(file: &Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

/// Returns whether the process has the network of this one, as one in a container has not.
fn is_in_own_network(pid: i32) -> bool {
    let [its, own] = [format!("/proc/{pid}/ns/net"), "/proc/self/ns/net".to_owned()].map(read_link);
    matches!((its, own), (Ok(its), Ok(own)) if its == own)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::process::{Child, Command};

    use mysql::OptsBuilder;

    use super::*;

    fn at_socket(path: &Path) -> Opts {
        OptsBuilder::new().socket(path.to_str()).into()
    }

    fn at_port(host: &str, port: u16) -> Opts {
        OptsBuilder::new().ip_or_hostname(Some(host)).tcp_port(port).into()
    }

    fn listens_at(pid: i32, options: &Opts) -> bool {
        Listening::of(pid).is_at(options)
    }

    fn own() -> i32 {
        std::process::id() as i32
    }

    #[test]
    fn the_process_that_listens_on_a_file_is_known() {
        let folder = tempfile::tempdir().expect("a folder");
        let [path, link, other] = ["my sql.sock", "link", "other"].map(|name| folder.path().join(name));
        let listener = UnixListener::bind(&path).expect("a socket");
        let _client = UnixStream::connect(&path).expect("a connection");
        symlink(&path, &link).expect("a link");
        assert!(listens_at(own(), &at_socket(&path)) && listens_at(own(), &at_socket(&link)));
        assert!(!listens_at(own(), &at_socket(&other)));
        let mut sleeper: Child = Command::new("sleep").arg("60").spawn().expect("a process");
        assert!(!listens_at(sleeper.id() as i32, &at_socket(&path)), "it does not listen");
        sleeper.kill().and_then(|()| sleeper.wait()).expect("its end");
        drop(listener);
        assert!(!listens_at(own(), &at_socket(&path)), "nobody listens any more");
        assert!(!listens_at(i32::MAX, &at_socket(&path)));
    }

    #[test]
    fn the_process_that_listens_on_a_port_is_known() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("its address").port();
        assert!(listens_at(own(), &at_port("localhost", port)) && listens_at(own(), &at_port("127.0.0.1", port)));
        assert!(!listens_at(own(), &at_port("db.example", port)), "another host's port");
        drop(listener);
        assert!(!listens_at(own(), &at_port("localhost", port)));
    }

    #[test]
    fn lines_that_are_not_understood_are_left_out() {
        let text = "\
Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0001 01 10513 /run/my sql.sock
0000000000000000: 00000003 00000000 00000000 0001 03 10514 /run/my sql.sock
0000000000000000: 00000002 00000000 00010000 0001 01 11 /run/a
b
0000000000000000: 00000003 00000000 00000000 0001 03  9514
";
        let found: Vec<_> = listening(text).collect();
        assert_eq!(found, [(10513, PathBuf::from("/run/my sql.sock")), (11, PathBuf::from("/run/a"))]);
    }
}
