//! Parses the address to listen on, and binds it.

use super::port_holder::{port_holder, PortHolder};
use socket2::{Domain, Socket, Type};
use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

/// The default port. ebpf_exporter has the same default.
pub const DEFAULT_PORT: u16 = 9435;

const BACKLOG: i32 = 128;

/// How long a killed process may take to give back its port, and the interval of attempts to get it. Most of it is what
/// the kernel needs to take probes off.
const PATIENCE: Duration = Duration::from_secs(3);
const RETRY: Duration = Duration::from_millis(20);

/// An address to listen on: `:9435` or `9435` (all interfaces), `127.0.0.1:9435`, `[::1]:9435`, `localhost:9435`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listen {
    /// `None` stands for all interfaces, IPv6 and IPv4.
    host: Option<IpAddr>,
    port: u16,
}

impl Default for Listen {
    fn default() -> Listen {
        Listen { host: None, port: DEFAULT_PORT }
    }
}

/// The error for text that is not an address to listen on.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not an address to listen on; write ADDR:PORT, for example :9435, 127.0.0.1:9435 or [::1]:9435")]
pub struct ParseListenError(String);

impl FromStr for Listen {
    type Err = ParseListenError;

    fn from_str(text: &str) -> Result<Listen, ParseListenError> {
        parse(text).ok_or_else(|| ParseListenError(text.to_string()))
    }
}

fn parse(text: &str) -> Option<Listen> {
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Some(Listen { host: Some(address.ip()), port: address.port() });
    }
    let (host, port) = text.rsplit_once(':').unwrap_or(("", text));
    let host = match host {
        "" | "*" => None,
        "localhost" => Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        _ => return None,
    };
    Some(Listen { host, port: port.parse().ok()? })
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self.host {
            Some(host) => SocketAddr::new(host, self.port).fmt(f),
            None => write!(f, ":{}", self.port),
        }
    }
}

/// The reason why a port could not be bound, and what to do next.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another process listens on the port.
    #[error("cannot listen on {listen}: the port is taken{}\n{}", by(.holder), taken_next(.listen))]
    Taken {
        /// The requested address.
        listen: Listen,
        /// That process; `None` if armtrace may not see it.
        holder: Option<PortHolder>,
    },
    /// No interface of this host has the address.
    #[error(
        "cannot listen on {0}: no interface of this host has that address\nnext: --listen :{port} for all interfaces",
        port = .0.port
    )]
    NoSuchAddress(Listen),
    /// The port is one of those that need root.
    #[error(
        "cannot listen on {0}: ports below 1024 need root\nnext: choose a higher port, for example --listen :{DEFAULT_PORT}"
    )]
    Privileged(Listen),
    /// The kernel refuses for another reason.
    #[error("cannot listen on {0}: {1}")]
    Other(Listen, io::Error),
}

fn by(holder: &Option<PortHolder>) -> String {
    holder.as_ref().map(|holder| format!(" by {holder}")).unwrap_or_default()
}

fn taken_next(listen: &Listen) -> String {
    let next = Listen { port: listen.port.checked_add(1).unwrap_or(DEFAULT_PORT), ..*listen };
    let same_default = if listen.port == DEFAULT_PORT { " (ebpf_exporter's default is 9435 too)" } else { "" };
    format!("next: choose another port with --listen {next}, or stop that process{same_default}")
}

/// A bound port on which nothing is served yet.
#[derive(Debug)]
pub struct Listener(TcpListener);

impl Listen {
    /// Binds the port. Call this before attaching, so that a port in use costs the server nothing.
    ///
    /// # Errors
    /// Fails with the reason, and what to do next.
    pub fn bind(&self) -> Result<Listener, BindError> {
        let began = Instant::now();
        loop {
            match self.try_bind() {
                Ok(bound) => return Ok(Listener(bound)),
                Err(error) if error.kind() == ErrorKind::AddrInUse && began.elapsed() < PATIENCE && self.is_dying() => {
                    thread::sleep(RETRY);
                }
                Err(error) => return Err(self.explain(error)),
            }
        }
    }

    fn try_bind(&self) -> io::Result<TcpListener> {
        match self.host {
            Some(host) => bind_to(SocketAddr::new(host, self.port)),
            None => self.bind_all_interfaces(),
        }
    }

    /// Whether the port is that of a process which was killed and still gives back what it had: it has no descriptors
    /// any more.
    fn is_dying(&self) -> bool {
        port_holder(self.port).is_none()
    }

    /// Binds IPv6 and IPv4 with one socket, or only IPv4 on hosts without IPv6.
    fn bind_all_interfaces(&self) -> io::Result<TcpListener> {
        match bind_to((Ipv6Addr::UNSPECIFIED, self.port).into()) {
            Err(error) if is_no_ipv6(&error) => bind_to((Ipv4Addr::UNSPECIFIED, self.port).into()),
            result => result,
        }
    }

    fn explain(&self, error: io::Error) -> BindError {
        match error.kind() {
            ErrorKind::AddrInUse => BindError::Taken { listen: *self, holder: port_holder(self.port) },
            ErrorKind::AddrNotAvailable => BindError::NoSuchAddress(*self),
            ErrorKind::PermissionDenied if self.port < 1024 => BindError::Privileged(*self),
            _ => BindError::Other(*self, error),
        }
    }
}

fn bind_to(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    if address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED) {
        socket.set_only_v6(false)?;
    }
    // Connections of an earlier run that linger in TIME_WAIT must not keep the port in use.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

fn is_no_ipv6(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL | libc::EPROTONOSUPPORT))
}

impl Listener {
    /// Returns the bound address, with the actual port if port 0 was requested.
    pub fn address(&self) -> SocketAddr {
        self.0.local_addr().expect("a bound socket has an address")
    }

    /// Returns the URL of the metrics for a browser on this host, with `https` if the port is to speak TLS.
    pub fn url(&self, speaks_tls: bool) -> String {
        let scheme = if speaks_tls { "https" } else { "http" };
        let address = self.address();
        if address.ip().is_unspecified() {
            format!("{scheme}://localhost:{}/metrics", address.port())
        } else {
            format!("{scheme}://{address}/metrics")
        }
    }

    pub(super) fn into_std(self) -> TcpListener {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::TcpStream;

    fn listen(text: &str) -> Listen {
        text.parse().unwrap()
    }

    #[test]
    fn addresses_are_read_in_every_form_and_written_back() {
        for text in [":9435", "127.0.0.1:80", "[::1]:9435", "0.0.0.0:1"] {
            assert_eq!(listen(text).to_string(), text);
        }
        assert_eq!(listen("9435"), Listen::default());
        assert_eq!(listen("*:9435"), Listen::default());
        assert_eq!(listen("localhost:1").to_string(), "127.0.0.1:1");
    }

    #[test]
    fn what_is_no_address_is_refused_with_an_example() {
        for text in ["", ":", "x:1", "1.2.3:4", "::1:9435", ":99999", "127.0.0.1", "-1"] {
            let error = text.parse::<Listen>().expect_err(text).to_string();
            assert!(error.contains(":9435"), "{error}");
        }
    }

    #[test]
    fn all_interfaces_are_both_ip_versions() {
        let listener = listen(":0").bind().unwrap();
        let port = listener.address().port();
        TcpStream::connect(("127.0.0.1", port)).unwrap();
        if listener.address().is_ipv6() {
            TcpStream::connect(("::1", port)).unwrap();
        }
        assert_eq!(listener.url(false), format!("http://localhost:{port}/metrics"));
        assert_eq!(listener.url(true), format!("https://localhost:{port}/metrics"));
    }

    #[test]
    fn only_a_host_without_ipv6_is_content_with_ipv4() {
        let is_no_ipv6 = |code| is_no_ipv6(&io::Error::from_raw_os_error(code));
        assert!([libc::EAFNOSUPPORT, libc::EADDRNOTAVAIL, libc::EPROTONOSUPPORT].into_iter().all(is_no_ipv6));
        assert!(![libc::EADDRINUSE, libc::EACCES].into_iter().any(is_no_ipv6));
    }

    #[test]
    fn a_taken_port_names_its_holder_and_the_way_out() {
        let holder = listen("127.0.0.1:0").bind().unwrap();
        let taken = Listen { host: None, port: holder.address().port() };
        let message = taken.bind().unwrap_err().to_string();
        assert!(message.contains(&format!("(pid {})", std::process::id())), "{message}");
        assert!(message.contains(&format!("--listen :{}", taken.port + 1)), "{message}");
        assert_eq!(message.lines().count(), 2);
    }

    #[test]
    fn a_taken_default_port_names_ebpf_exporter() {
        let taken = BindError::Taken { listen: Listen::default(), holder: None };
        assert_eq!(
            taken.to_string(),
            "cannot listen on :9435: the port is taken\n\
             next: choose another port with --listen :9436, or stop that process (ebpf_exporter's default is 9435 too)"
        );
    }

    #[test]
    fn an_address_of_another_host_is_said_to_be_one() {
        let error = listen("192.0.2.1:9435").bind().unwrap_err().to_string();
        assert!(error.contains("no interface of this host has that address"), "{error}");
    }

    #[test]
    fn a_port_is_free_again_after_its_connections_closed() {
        let listener = listen("127.0.0.1:0").bind().unwrap();
        let address = listener.address();
        let mut client = TcpStream::connect(address).unwrap();
        listener.0.set_nonblocking(false).unwrap();
        drop(listener.0.accept().unwrap());
        client.read_to_end(&mut Vec::new()).unwrap();
        drop((client, listener));
        Listen { host: Some(address.ip()), port: address.port() }.bind().unwrap();
    }
}
