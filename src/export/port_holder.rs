//! Finds the process that already listens on a port.

use std::collections::HashSet;
use std::fmt;

use procfs::process::all_processes;

use crate::server::{sockets, tcp_listeners};

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
    let listening = tcp_listeners().filter(|entry| entry.local_address.port() == port);
    let listening: HashSet<u64> = listening.map(|entry| entry.inode).collect();
    if listening.is_empty() {
        return None;
    }
    let holder = all_processes().ok()?.flatten().find(|process| !sockets(process).is_disjoint(&listening))?;
    Some(PortHolder { name: holder.stat().ok()?.comm, pid: holder.pid })
}
