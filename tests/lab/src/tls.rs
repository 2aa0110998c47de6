//! Certificates, and a client that speaks TLS.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::http::Answer;

/// An authority that issues certificates.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, in PEM.
#[derive(Clone)]
pub struct Issued {
    /// The certificate.
    pub certificate: String,
    /// The key.
    pub key: String,
}

impl Authority {
    /// Makes an authority with a key of its own.
    pub fn new() -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Authority(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Returns its own certificate, in PEM.
    pub fn certificate(&self) -> String {
        self.0.pem()
    }

    /// Issues a certificate for a DNS name or IP address.
    pub fn issue(&self, name: &str) -> Issued {
        self.sign(CertificateParams::new([name.to_owned()]).unwrap())
    }

    /// Issues one for a URI.
    pub fn issue_for_uri(&self, uri: &str) -> Issued {
        let mut params = CertificateParams::default();
        params.subject_alt_names.push(SanType::URI(uri.try_into().unwrap()));
        self.sign(params)
    }

    /// Issues one that expired long ago.
    pub fn issue_expired(&self, name: &str) -> Issued {
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(2019, 1, 1);
        params.not_after = rcgen::date_time_ymd(2020, 1, 1);
        self.sign(params)
    }

    fn sign(&self, params: CertificateParams) -> Issued {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        Issued { certificate: certificate.pem(), key: key.serialize_pem() }
    }
}

impl Default for Authority {
    fn default() -> Authority {
        Authority::new()
    }
}

/// A connection over TLS.
pub struct Connection(StreamOwned<ClientConnection, TcpStream>);

impl Connection {
    /// Connects to 127.0.0.1, whose certificate must be the authority's, with a certificate of its own if given.
    pub fn open(address: &str, authority: &Authority, client: Option<&Issued>) -> io::Result<Connection> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(authority.certificate().as_bytes()).unwrap()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
        let config = match client {
            Some(Issued { certificate, key }) => {
                let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
                builder.with_client_auth_cert(vec![certificate], key).unwrap()
            }
            None => builder.with_no_client_auth(),
        };
        let name = ServerName::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST).into());
        let mut client = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        while client.is_handshaking() {
            client.complete_io(&mut stream)?;
        }
        Ok(Connection(StreamOwned::new(client, stream)))
    }

    /// Gets a path, with these headers, and returns the answer's status line and headers, and what came with them.
    ///
    /// # Errors
    /// Fails if the server refuses the client's certificate, which it does after the handshake.
    pub fn head(&mut self, path: &str, headers: &str) -> io::Result<String> {
        write!(self.0, "GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n")?;
        let mut answer = [0; 4096];
        let length = self.0.read(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer[..length]).into_owned())
    }

    /// Gets a path, with these headers, and closes the connection.
    ///
    /// # Errors
    /// Fails as [`head`](Connection::head) does.
    pub fn get(mut self, path: &str, headers: &str) -> io::Result<Answer> {
        write!(self.0, "GET {path} HTTP/1.0\r\nHost: localhost\r\n{headers}\r\n")?;
        let mut answer = String::new();
        self.0.read_to_string(&mut answer)?;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        Ok(Answer { head: head.to_owned(), body: body.to_owned() })
    }
}
