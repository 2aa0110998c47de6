//! The names that this host may be asked by.
//!
//! A web page may make its own name stand for an address of this host (DNS rebinding), and then read what the port
//! tells, with the browser that shows it. Its requests still have the page's name.

use std::fs;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};

use axum::http::header::HOST;
use axum::http::{HeaderMap, StatusCode, Uri, Version};
use axum::response::{IntoResponse, Response};

use crate::host::Machine;

/// The value of the option that allows every name.
const ANY: &str = "*";

/// Which names are accepted in the `Host` of a request.
pub struct Hosts {
    /// The names of this host itself.
    own: Vec<String>,
    /// The names that the user gave.
    allowed: Vec<String>,
    warned: AtomicBool,
}

/// Why the host of a request is not accepted.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum WrongHost {
    /// HTTP/1.1 requires one.
    Missing,
    Several,
    Unknown(String),
}

impl Default for Hosts {
    fn default() -> Hosts {
        Hosts::allowing(&[])
    }
}

impl Hosts {
    /// Accepts this host's own names, and these.
    pub fn allowing(names: &[String]) -> Hosts {
        let own = Machine::this().name().unwrap_or_default();
        Hosts::of(&own, &fs::read_to_string("/etc/resolv.conf").unwrap_or_default(), names)
    }

    fn of(own: &str, resolver: &str, allowed: &[String]) -> Hosts {
        let allowed = allowed.iter().map(|name| plain(name)).collect();
        Hosts { own: own_names(&plain(own), resolver), allowed, warned: AtomicBool::new(false) }
    }

    /// Checks the host that a request is for. Unless the user gave names, a client on another host may use any: which
    /// names a service has there is not known here, and such a client reaches the port anyway.
    pub(super) fn check(
        &self,
        (uri, version, headers): (&Uri, Version, &HeaderMap),
        is_from_here: bool,
    ) -> Result<(), WrongHost> {
        let mut hosts = headers.get_all(HOST).into_iter();
        let header = hosts.next();
        if hosts.next().is_some() {
            return Err(WrongHost::Several);
        }
        let host = match (uri.authority(), header) {
            (Some(authority), _) => authority.as_str(),
            (None, Some(header)) => header.to_str().unwrap_or_default(),
            // No browser speaks HTTP/1.0.
            (None, None) if version < Version::HTTP_11 => return Ok(()),
            (None, None) => return Err(WrongHost::Missing),
        };
        let is_checked = is_from_here || !self.allowed.is_empty();
        if !is_checked || self.accepts(host) {
            Ok(())
        } else {
            Err(WrongHost::Unknown(host.to_owned()))
        }
    }

    /// Returns whether a host, maybe with a port, is an address or has an accepted name.
    fn accepts(&self, host: &str) -> bool {
        if let Some(rest) = host.strip_prefix('[') {
            let address = rest.split_once(']').filter(|(_, port)| is_port(port));
            return address.is_some_and(|(address, _)| address.parse::<Ipv6Addr>().is_ok());
        }
        let (name, port) = host.split_at(host.find(':').unwrap_or(host.len()));
        let name = plain(name);
        let is_known = || self.own.contains(&name) || self.allowed.contains(&name);
        is_port(port) && (name.parse::<IpAddr>().is_ok() || is_known()) || self.allowed.iter().any(|name| name == ANY)
    }

    /// Warns that a client was turned away, but only about the first one.
    pub(super) fn warn(&self, wrong: &WrongHost) {
        if !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!("a request was refused, and later ones will be: {}", wrong.text());
        }
    }
}

impl WrongHost {
    fn text(&self) -> String {
        match self {
            WrongHost::Missing => "the request has no Host".to_owned(),
            WrongHost::Several => "the request has more than one Host".to_owned(),
            WrongHost::Unknown(host) => {
                // What a client sent is repeated only if it could be a name.
                let name = host.split(':').next().unwrap_or_default();
                let is_name = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
                let name = if name.chars().all(is_name) && !name.is_empty() { name } else { "NAME" };
                format!("{name} is not known as a name of this host: use an IP address, or start armtrace with --allowed-hosts {name}")
            }
        }
    }
}

impl IntoResponse for WrongHost {
    fn into_response(self) -> Response {
        let status = match self {
            WrongHost::Missing | WrongHost::Several => StatusCode::BAD_REQUEST,
            WrongHost::Unknown(_) => StatusCode::MISDIRECTED_REQUEST,
        };
        (status, self.text() + "\n").into_response()
    }
}

/// Returns whether a connection comes from this host itself, as that of a browser on it does, by whichever address.
pub(super) fn is_from_here(client: SocketAddr, here: SocketAddr) -> bool {
    let (client, here) = (client.ip().to_canonical(), here.ip().to_canonical());
    client.is_loopback() || client == here
}

/// Returns `localhost`, this host's name, and the same with and without a domain. Its name before any domain will not
/// do: whoever knows the name could have such a domain.
fn own_names(own: &str, resolver: &str) -> Vec<String> {
    let mut names = vec!["localhost".to_owned()];
    let (short, domain) = own.split_once('.').unwrap_or((own, ""));
    if short.is_empty() {
        return names;
    }
    names.extend([short.to_owned(), own.to_owned()]);
    if domain.is_empty() {
        let lines = resolver.lines().map(str::split_whitespace);
        let domains = lines.filter_map(|mut words| ["search", "domain"].contains(&words.next()?).then_some(words));
        names.extend(domains.flatten().map(|domain| format!("{short}.{}", plain(domain))));
    }
    names
}

/// Returns a name as it is compared.
fn plain(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

/// Returns whether this is nothing, or a colon and a number, which may be missing.
fn is_port(text: &str) -> bool {
    text.is_empty() || text.strip_prefix(':').is_some_and(|port| port.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(allowed: &[&str]) -> Hosts {
        let allowed: Vec<String> = allowed.iter().map(|name| (*name).to_owned()).collect();
        Hosts::of("Db1", "nameserver 192.0.2.1\nsearch example.com. lan\n", &allowed)
    }

    fn check(
        hosts: &Hosts,
        uri: &str,
        version: Version,
        headers: &[&str],
        is_from_here: bool,
    ) -> Result<(), WrongHost> {
        let headers = headers.iter().map(|value| (HOST, value.parse().unwrap())).fold(
            HeaderMap::new(),
            |mut headers, (name, value)| {
                headers.append(name, value);
                headers
            },
        );
        hosts.check((&uri.parse().unwrap(), version, &headers), is_from_here)
    }

    #[test]
    fn addresses_and_own_names_are_accepted_in_every_form() {
        let hosts = hosts(&[]);
        for host in [
            "127.0.0.1",
            "192.0.2.7:9435",
            "[::1]",
            "[::1]:9435",
            "[fe80::1]:1",
            "localhost",
            "LOCALHOST:9435",
            "localhost.",
            "db1",
            "DB1:9435",
            "db1.example.com",
            "db1.lan.:80",
            "localhost:",
        ] {
            assert!(hosts.accepts(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "db1.evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "::1",
            "[::1",
            "[::1]x",
            "[evil]",
            "localhost@evil.example",
            "localhost:x",
            "localhost:1:2",
            "db2",
            "2130706433",
            "*",
        ] {
            assert!(!hosts.accepts(host), "{host}");
        }
        let full = Hosts::of("db1.example.org", "search example.com\n", &[]);
        assert!(["db1", "db1.example.org"].into_iter().all(|host| full.accepts(host)));
        assert!(!full.accepts("db1.example.com") && !Hosts::of("", "search lan", &[]).accepts(".lan"));
    }

    #[test]
    fn the_user_may_allow_more_names_or_all() {
        let some = hosts(&["armtrace.monitoring.svc", "Metrics.Example."]);
        assert!(["armtrace.monitoring.svc:9435", "metrics.example"].into_iter().all(|host| some.accepts(host)));
        assert!(!some.accepts("evil.example"));
        assert!(hosts(&["*"]).accepts("evil.example"));
    }

    #[test]
    fn clients_elsewhere_may_use_any_name_unless_the_user_gave_some() {
        let get = |hosts: &Hosts, here| check(hosts, "/", Version::HTTP_11, &["evil.example"], here);
        let unknown = || Err(WrongHost::Unknown("evil.example".to_owned()));
        assert_eq!(get(&hosts(&[]), false), Ok(()));
        assert_eq!(get(&hosts(&[]), true), unknown());
        assert_eq!(get(&hosts(&["x"]), false), unknown());
        let address = |text: &str| text.parse().unwrap();
        assert!(is_from_here(address("127.0.0.1:1"), address("127.0.0.1:9435")));
        assert!(is_from_here(address("[::ffff:192.0.2.1]:1"), address("192.0.2.1:9435")));
        assert!(is_from_here(address("[::1]:1"), address("[::1]:9435")));
        assert!(!is_from_here(address("192.0.2.2:1"), address("192.0.2.1:9435")));
    }

    #[test]
    fn the_host_is_where_http_says() {
        let hosts = hosts(&[]);
        let get = |uri, version, headers: &[&str]| check(&hosts, uri, version, headers, true);
        assert_eq!(get("/", Version::HTTP_11, &[]), Err(WrongHost::Missing));
        assert_eq!(get("/", Version::HTTP_10, &[]), Ok(()));
        assert_eq!(get("/", Version::HTTP_11, &["localhost", "localhost"]), Err(WrongHost::Several));
        assert!(get("/", Version::HTTP_10, &["evil.example"]).is_err());
        assert_eq!(get("http://localhost:9435/", Version::HTTP_11, &["evil.example"]), Ok(()));
        assert!(get("http://evil.example/", Version::HTTP_11, &["localhost"]).is_err());
        assert!(get("http://localhost@evil.example/", Version::HTTP_11, &["localhost"]).is_err());
    }

    #[test]
    fn an_answer_says_what_to_do_and_repeats_nothing_but_names() {
        let text = |host: &str| WrongHost::Unknown(host.to_owned()).text();
        assert!(text("metrics.example:9435").ends_with("--allowed-hosts metrics.example"));
        assert!(text("<script>").ends_with("--allowed-hosts NAME"));
    }
}
