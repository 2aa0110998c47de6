//! TLS and passwords, from a file as Prometheus's exporters have it.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use armtrace::export::{Policy, Web};
use base64::prelude::{Engine, BASE64_STANDARD};
use lab::exporter::ServedExporter;
use lab::http;
use lab::snapshots::busy;
use lab::tls::{Authority, Connection, Issued};
use tempfile::TempDir;

/// A folder with the file, a server's certificate and key, and the authority that issued it.
struct Folder {
    directory: TempDir,
    authority: Authority,
}

/// The part of the file that makes the server speak TLS. Its paths are relative to the folder.
const TLS: &str = "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n";

impl Folder {
    fn new() -> Folder {
        let folder = Folder { directory: tempfile::tempdir().unwrap(), authority: Authority::new() };
        folder.write("ca.crt", &folder.authority.certificate());
        folder.certify(&folder.authority.issue("127.0.0.1"));
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    /// Gives the server another certificate.
    fn certify(&self, issued: &Issued) {
        self.write("server.crt", &issued.certificate);
        self.write("server.key", &issued.key);
    }

    fn open(&self, text: &str) -> Result<Web, String> {
        self.write("web.yml", text);
        Web::open(&self.path("web.yml")).map_err(|error| error.to_string())
    }

    fn serve(&self, text: &str) -> ServedExporter {
        let web = self.open(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        ServedExporter::with(Policy { web: Some(web), ..Policy::default() }, || busy(5))
    }

    /// Returns whether a client with this certificate is answered.
    fn answers(&self, server: &ServedExporter, client: Option<&Issued>) -> bool {
        let answer = Connection::open(&server.address, &self.authority, client);
        answer.and_then(|connection| connection.get("/healthz", "")).is_ok_and(|answer| answer.body == "ok\n")
    }
}

/// Returns the lines of a user with a password, whose hash is as cheap as hashes are.
fn user(name: &str, password: &str) -> String {
    format!("basic_auth_users:\n  {name}: {}\n", bcrypt::hash(password, 4).unwrap())
}

/// Returns the header of a user with a password.
fn password(name: &str, password: &str) -> String {
    format!("Authorization: Basic {}\r\n", BASE64_STANDARD.encode(format!("{name}:{password}")))
}

#[test]
fn each_way_to_ask_for_a_certificate_accepts_what_it_should() {
    let folder = Folder::new();
    let own = folder.authority.issue("prometheus.example");
    let foreign = Authority::new().issue("prometheus.example");
    let expired = folder.authority.issue_expired("prometheus.example");
    let clients = [None, Some(&own), Some(&foreign), Some(&expired)];
    let ca = "  client_ca_file: ca.crt\n";
    for (auth, more, expected) in [
        ("", "", [true, true, true, true]),
        ("NoClientCert", "", [true, true, true, true]),
        ("RequestClientCert", "", [true, true, true, true]),
        ("RequireClientCert", "", [false, true, true, true]),
        ("RequireAnyClientCert", "", [false, true, true, true]),
        ("VerifyClientCertIfGiven", ca, [true, true, false, false]),
        ("RequireAndVerifyClientCert", ca, [false, true, false, false]),
    ] {
        for version in ["TLS12", "TLS13"] {
            let server = folder.serve(
                &format!("{TLS}  max_version: {version}\n  client_auth_type: \"{auth}\"\n{more}")
                    .replace("max_version: TLS13", "min_version: TLS13"),
            );
            let answered = clients.map(|client| folder.answers(&server, client));
            assert_eq!(answered, expected, "{auth} {version}: none, own, foreign, expired");
        }
    }
}

#[test]
fn only_certificates_with_an_allowed_name_are_accepted() {
    let folder = Folder::new();
    let server = folder.serve(&format!(
        "{TLS}  client_ca_file: ca.crt\n  client_auth_type: RequireAndVerifyClientCert\n  \
         client_allowed_sans: [prometheus.example, 192.0.2.1, 'spiffe://example/prometheus']\n"
    ));
    let authority = &folder.authority;
    let uri = |uri| authority.issue_for_uri(uri);
    for allowed in
        [authority.issue("prometheus.example"), authority.issue("192.0.2.1"), uri("spiffe://example/prometheus")]
    {
        assert!(folder.answers(&server, Some(&allowed)));
    }
    for other in [authority.issue("a.prometheus.example"), authority.issue("192.0.2.2"), uri("spiffe://example/x")] {
        assert!(!folder.answers(&server, Some(&other)));
    }
    assert!(!folder.answers(&server, Some(&Authority::new().issue("prometheus.example"))));
}

#[test]
fn a_password_is_required_everywhere_and_headers_are_added() {
    let folder = Folder::new();
    let headers = "http_server_config:\n  headers:\n    X-Frame-Options: deny\n    Content-Security-Policy: x\n";
    for tls in ["", TLS] {
        let server = folder.serve(&format!("{tls}{headers}{}", user("alice", "secret")));
        let get = |path: &str, headers: &str| match tls {
            "" => {
                let mut stream = TcpStream::connect(&server.address).unwrap();
                write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n{headers}\r\n").unwrap();
                let mut answer = String::new();
                stream.read_to_string(&mut answer).unwrap();
                answer
            }
            _ => {
                let answer = Connection::open(&server.address, &folder.authority, None).unwrap().get(path, headers);
                let answer = answer.unwrap();
                answer.head + "\r\n\r\n" + &answer.body
            }
        };
        for path in ["/metrics", "/", "/healthz", "/events", "/x"] {
            for wrong in [String::new(), password("alice", "wrong"), password("bob", "secret")] {
                let answer = get(path, &wrong);
                assert!(answer.starts_with("HTTP/1.0 401") && !answer.contains("armtrace_"), "{path}: {answer}");
                assert!(answer.contains("www-authenticate: Basic realm="), "{answer}");
            }
        }
        let answer = get("/metrics", &password("alice", "secret"));
        assert!(answer.starts_with("HTTP/1.0 200") && answer.contains("\narmtrace_target_up 1\n"), "{answer}");
        assert!(answer.contains("x-frame-options: deny"), "{answer}");
        // The page's own policy stays, without which it would not work.
        let page = get("/", &password("alice", "secret"));
        assert!(page.contains("content-security-policy: default-src 'none'"), "{page}");
    }
}

#[test]
fn plain_http_on_a_port_that_speaks_tls_is_told_so() {
    let folder = Folder::new();
    let server = folder.serve(TLS);
    let answer = http::get(&server.address, "/metrics").unwrap();
    assert!(answer.head.starts_with("HTTP/1.1 400") && answer.body.contains("speaks https"), "{}", answer.body);
}

#[test]
fn slow_handshakes_are_ended_and_keep_nobody_out() {
    let folder = Folder::new();
    let server = folder.serve(TLS);
    let began = Instant::now();
    let mut slow: Vec<_> = (0..200).map(|_| TcpStream::connect(&server.address).unwrap()).collect();
    // A record of the handshake whose rest never comes.
    slow.iter_mut().for_each(|stream| _ = stream.write_all(&[22, 3, 1, 2, 0, 1]));
    for _ in 0..5 {
        assert!(folder.answers(&server, None));
    }
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    let mut last = slow.pop().unwrap();
    last.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    assert_eq!(last.read(&mut [0; 64]).unwrap_or(0), 0, "it is closed");
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

#[test]
fn handshakes_do_not_delay_the_stop() {
    let folder = Folder::new();
    let server = folder.serve(TLS);
    let _silent = TcpStream::connect(&server.address).unwrap();
    assert!(folder.answers(&server, None));
    let took = server.stop();
    assert!(took < Duration::from_millis(400), "{took:?}");
}

#[test]
fn a_changed_certificate_is_picked_up() {
    let mut folder = Folder::new();
    let server = folder.serve(TLS);
    assert!(folder.answers(&server, None));
    // Long enough that the files are not looked at again unless they change.
    sleep(Duration::from_millis(2500));
    assert!(folder.answers(&server, None));
    let old = std::mem::take(&mut folder.authority);
    folder.certify(&folder.authority.issue("127.0.0.1"));
    assert!(folder.answers(&server, None));
    folder.authority = old;
    assert!(!folder.answers(&server, None), "the old certificate is still used");
}

/// What is wrong is not served with the configuration from before.
#[test]
fn a_file_that_became_bad_closes_the_port_until_it_is_good_again() {
    let folder = Folder::new();
    let good = format!("{TLS}{}", user("alice", "secret"));
    let server = folder.serve(&good);
    let status = || {
        let connection = Connection::open(&server.address, &folder.authority, None).ok()?;
        let answer = connection.get("/metrics", &password("alice", "secret")).ok()?;
        answer.head.split(' ').nth(1).map(str::to_owned)
    };
    let other_key = Authority::new().issue("127.0.0.1").key;
    let key = fs::read_to_string(folder.path("server.key")).unwrap();
    assert_eq!(status().as_deref(), Some("200"));
    for bad in ["", "x: 1\n", "{", TLS, &user("alice", "secret")] {
        folder.write("web.yml", bad);
        assert_eq!(status().filter(|status| status == "200"), None, "{bad}");
        folder.write("web.yml", &good);
        assert_eq!(status().as_deref(), Some("200"));
    }
    folder.write("server.key", &other_key);
    assert_eq!(status(), None);
    fs::remove_file(folder.path("server.key")).unwrap();
    assert_eq!(status(), None);
    folder.write("server.key", &key);
    assert_eq!(status().as_deref(), Some("200"));
    fs::remove_file(folder.path("web.yml")).unwrap();
    assert_eq!(status(), None);
}

#[test]
fn without_tls_a_bad_file_fails_each_request() {
    let folder = Folder::new();
    let server = folder.serve(&user("alice", "secret"));
    for bad in ["", "x: 1\n", TLS] {
        folder.write("web.yml", bad);
        let answer = http::get(&server.address, "/metrics").unwrap();
        assert!(answer.head.starts_with("HTTP/1.0 500") && !answer.body.contains("armtrace_"), "{}", answer.body);
    }
    folder.write("web.yml", &user("alice", "secret"));
    assert!(http::get(&server.address, "/metrics").unwrap().head.starts_with("HTTP/1.0 401"));
}

/// A connection may last for days.
#[test]
fn a_withdrawn_password_ends_on_open_connections_too() {
    let folder = Folder::new();
    let server = folder.serve(&format!("{TLS}{}", user("alice", "secret")));
    let mut connection = Connection::open(&server.address, &folder.authority, None).unwrap();
    let mut status = || connection.head("/healthz", &password("alice", "secret")).unwrap()[9..12].to_owned();
    assert_eq!([status(), status()], ["200", "200"]);
    folder.write("web.yml", &format!("{TLS}{}", user("alice", "other")));
    assert_eq!(status(), "401");
}

#[test]
fn everything_that_exporters_allow_and_armtrace_can_do_is_read() {
    let folder = Folder::new();
    let issued = folder.authority.issue("127.0.0.1");
    let indented = |pem: &str| pem.lines().map(|line| format!("    {line}\n")).collect::<String>();
    let inline = format!(
        "tls_server_config:\n  cert: |\n{}  key: |\n{}  client_ca: |\n{}",
        indented(&issued.certificate),
        indented(&issued.key),
        indented(&folder.authority.certificate())
    );
    let server = folder.serve(&format!(
        "{inline}  client_auth_type: VerifyClientCertIfGiven\n  min_version: TLS12\n  max_version: TLS12\n  \
         prefer_server_cipher_suites: false\n  curve_preferences: [CurveP256, X25519]\n  \
         cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256]\n\
         http_server_config:\n  http2: true\nbasic_auth_users:\n"
    ));
    assert!(folder.answers(&server, None));
}

#[test]
fn what_is_wrong_or_impossible_is_said_with_the_next_step() {
    let folder = Folder::new();
    folder.write("empty", "");
    folder.write("other.key", &Authority::new().issue("x").key);
    folder.write("encrypted.key", "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n");
    let tls = |more: &str| format!("{TLS}{more}");
    for (text, words) in [
        ("tls_server_config:\n  cert_file: server.crt\n".to_owned(), "key or key_file is missing"),
        ("tls_server_config:\n  min_version: TLS13\n".to_owned(), "cert or cert_file is missing"),
        (TLS.replace("server.crt", "missing.crt"), "missing.crt: No such file or directory"),
        (TLS.replace("server.crt", "."), "it is not a file"),
        (TLS.replace("server.crt", "empty"), "cert_file has no certificate in PEM"),
        (TLS.replace("server.key", "server.crt"), "key has no private key in PEM"),
        (TLS.replace("server.key", "other.key"), "the key does not belong to the certificate"),
        (TLS.replace("server.key", "encrypted.key"), "the key is encrypted"),
        (tls("  cert: x\n"), "give cert or cert_file, not both"),
        (tls("  client_auth_type: Maybe\n"), "client_auth_type Maybe is unknown: it takes NoClientCert, "),
        (tls("  client_auth_type: RequireAndVerifyClientCert\n"), "needs client_ca or client_ca_file"),
        (tls("  client_ca_file: ca.crt\n"), "client_ca has no effect"),
        (tls("  client_auth_type: RequestClientCert\n  client_allowed_sans: [x]\n"), "client_allowed_sans needs"),
        (tls("  client_auth_type: RequireAnyClientCert\n  client_allowed_sans: [a@b]\n"), "e-mail addresses"),
        (tls("  min_version: TLS10\n"), "min_version TLS10 is not supported"),
        (tls("  min_version: TLS14\n"), "min_version TLS14 is unknown"),
        (tls("  min_version: TLS13\n  max_version: TLS12\n"), "min_version is above max_version"),
        (tls("  curve_preferences: [CurveP521]\n"), "CurveP521 is unknown: it takes X25519, CurveP256, CurveP384"),
        (tls("  cipher_suites: [TLS_RSA_WITH_AES_128_CBC_SHA]\n"), "it takes TLS_"),
        (tls("  cert_fil: x\n"), "unknown field `cert_fil`"),
        (tls("  key_file: x\n"), "key_file is given twice"),
    ] {
        let error = folder.open(&text).err().unwrap_or_else(|| panic!("accepted: {text}"));
        assert!(error.starts_with("--web.config.file /") && error.contains(words), "{text}\n{error}");
        assert!(error.lines().count() == 2 && error.contains("\nnext: "), "{error}");
    }
    let missing = Web::open(&folder.path("missing.yml")).err().unwrap().to_string();
    assert!(missing.contains("No such file or directory"), "{missing}");
}
