//! Finds the process that already listens on a port.

use procfs::net::{TcpNetEntry, TcpState};
use procfs::process::{all_processes, FDTarget, Process};
use std::collections::HashSet;
use std::fmt;

/// A process that listens on a TCP port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortHolder {
    /// The command name.
    pub name: String,
    /// The process ID.
    pub pid: i32,
}

impl fmt::Display for PortHolder {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} (pid {})", self.name, self.pid)
    }
}

/// Returns the process that listens on `port` in this network namespace, or `None` if armtrace may not see it.
pub fn port_holder(port: u16) -> Option<PortHolder> {
    let sockets = listening_sockets(port);
    if sockets.is_empty() {
        return None;
    }
    let holder = all_processes().ok()?.flatten().find(|process| holds(process, &sockets))?;
    Some(PortHolder { name: holder.stat().ok()?.comm, pid: holder.pid })
}

fn listening_sockets(port: u16) -> HashSet<u64> {
    let listens = |entry: &TcpNetEntry| entry.state == TcpState::Listen && entry.local_address.port() == port;
    let entries = [procfs::net::tcp(), procfs::net::tcp6()];
    entries.into_iter().flatten().flatten().filter(listens).map(|entry| entry.inode).collect()
}

fn holds(process: &Process, sockets: &HashSet<u64>) -> bool {
    let Ok(files) = process.fd() else { return false };
    files.flatten().any(|file| matches!(file.target, FDTarget::Socket(inode) if sockets.contains(&inode)))
}
