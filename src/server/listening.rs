//! Whether a server listens where a client is to connect. A client with a password must not follow what any process
//! says about itself: so the address comes from the client's options, and the kernel says who listens there.

use std::collections::HashSet;
use std::fs::{metadata, read_link, read_to_string, Metadata};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use mysql::Opts;
use procfs::net::{TcpNetEntry, TcpState};
use procfs::process::{FDTarget, Process};

use crate::symbols::RootFolder;

/// The flag of sockets that listen (`__SO_ACCEPTCON` in Linux's `include/linux/net.h`).
const LISTENS: u32 = 1 << 16;

/// The most files that are looked at of those on which a process listens. A server listens on one or two.
const MOST_FILES: usize = 64;

/// Where a process listens.
#[derive(Default)]
pub(super) struct Listening {
    /// Sockets in a file system, by device and inode: the process may see them under other paths.
    files: HashSet<(u64, u64)>,
    /// Addresses and ports in the network of this process.
    addresses: HashSet<SocketAddr>,
}

impl Listening {
    /// Returns where process `pid` listens; nowhere if it has ended.
    pub fn of(pid: i32) -> Listening {
        let Ok(process) = Process::new(pid) else { return Listening::default() };
        let own = sockets(&process);
        let mut addresses = HashSet::new();
        if is_in_own_network(pid) {
            let listeners = tcp_listeners().filter(|entry| own.contains(&entry.inode));
            addresses.extend(listeners.map(|entry| entry.local_address));
        }
        Listening { files: listening_files(&process, &own).unwrap_or_default(), addresses }
    }

    /// Returns whether it listens where these options connect to: on a socket of this file system, or on a port at an
    /// address by which this host calls itself. Another server may have the same port at another address.
    pub fn is_at(&self, options: &Opts) -> bool {
        match options.get_socket() {
            Some(path) => metadata(path).is_ok_and(|file| self.files.contains(&identity(&file))),
            None => {
                let port = options.get_tcp_port();
                let at = |ip: &IpAddr| self.addresses.contains(&SocketAddr::new(*ip, port));
                reached_by(&options.get_ip_or_hostname()).iter().any(at)
            }
        }
    }
}

/// Returns the addresses at which a server may listen that a client reaches by this name of this host; none if it is
/// not one. A server that listens at all IPv6 addresses gets connections by IPv4 too, as a rule.
fn reached_by(host: &str) -> Vec<IpAddr> {
    let v4 = [Ipv4Addr::LOCALHOST, Ipv4Addr::UNSPECIFIED];
    let v6 = [Ipv6Addr::LOCALHOST, Ipv6Addr::UNSPECIFIED];
    let mapped = Ipv4Addr::LOCALHOST.to_ipv6_mapped();
    let by_v4 = || v4.map(IpAddr::from).into_iter().chain([v6[1], mapped].map(IpAddr::from));
    match host {
        "127.0.0.1" => by_v4().collect(),
        "::1" => v6.map(IpAddr::from).to_vec(),
        "localhost" => by_v4().chain([IpAddr::from(v6[0])]).collect(),
        _ => Vec::new(),
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

/// Returns whether a process listens on a Unix socket, as a server does that has started.
pub fn listens(pid: i32) -> bool {
    let Ok(process) = Process::new(pid) else { return false };
    let own = sockets(&process);
    let all = read_to_string(format!("/proc/{pid}/net/unix")).unwrap_or_default();
    let mut listening = listening(&all);
    listening.any(|(inode, _)| own.contains(&inode))
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
        assert!(listens(own()));
        assert!(!listens_at(own(), &at_socket(&other)));
        let mut sleeper: Child = Command::new("sleep").arg("60").spawn().expect("a process");
        let sleeping = sleeper.id() as i32;
        assert!(!listens_at(sleeping, &at_socket(&path)) && !listens(sleeping), "it does not listen");
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
        assert!(!listens_at(own(), &at_port("::1", port)), "another address's port");
        drop(listener);
        assert!(!listens_at(own(), &at_port("localhost", port)));
    }

    #[test]
    fn a_server_with_the_same_port_at_another_address_is_another_one() {
        let elsewhere = TcpListener::bind("127.0.0.2:0").expect("a port");
        let port = elsewhere.local_addr().expect("its address").port();
        let hosts = ["127.0.0.1", "localhost", "::1"];
        assert!(hosts.iter().all(|host| !listens_at(own(), &at_port(host, port))));
        let everywhere = TcpListener::bind("0.0.0.0:0").expect("a port");
        let port = everywhere.local_addr().expect("its address").port();
        assert_eq!(hosts.map(|host| listens_at(own(), &at_port(host, port))), [true, true, false]);
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
