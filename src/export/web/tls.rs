//! From the section `tls_server_config` to a configuration of rustls.

use std::io;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use rustls::crypto::{ring, CryptoProvider};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, ServerConfig, VerifierBuilderError};
use rustls::version::{TLS12, TLS13};
use rustls::{InconsistentKeys, NamedGroup, RootCertStore, SupportedCipherSuite, SupportedProtocolVersion};
use strum::VariantNames;

use super::clients::{self, ClientAuth};
use super::settings::{Flag, TlsSettings};

/// Why TLS cannot be spoken as the file says.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A setting is missing.
    #[error("tls_server_config: {0} or {0}_file is missing")]
    Missing(&'static str),
    /// Something is given in the file and as a file.
    #[error("tls_server_config: give {0} or {0}_file, not both")]
    Twice(&'static str),
    /// A file cannot be read.
    #[error("tls_server_config: {setting} {}: {why}", .path.display())]
    Unreadable {
        /// The setting that names it.
        setting: &'static str,
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        why: io::Error,
    },
    /// There is no certificate where one should be.
    #[error("tls_server_config: {0} has no certificate in PEM")]
    NoCertificate(&'static str),
    /// One of the certificates is damaged.
    #[error("tls_server_config: a certificate in {0} cannot be used: {1}")]
    Certificate(&'static str, String),
    /// There is no key where one should be.
    #[error("tls_server_config: key has no private key in PEM")]
    NoKey,
    /// A passphrase would be needed.
    #[error("tls_server_config: the key is encrypted: write it without a passphrase, readable by armtrace only")]
    EncryptedKey,
    /// The key belongs to another certificate.
    #[error("tls_server_config: the key does not belong to the certificate")]
    OtherKey,
    /// The key cannot be used.
    #[error("tls_server_config: the key cannot be used with the certificate: {0}")]
    Key(rustls::Error),
    /// There is no such value.
    #[error("tls_server_config: {setting} {value} is unknown: it takes {known}")]
    Unknown {
        /// The setting.
        setting: &'static str,
        /// Its value.
        value: String,
        /// The values that there are.
        known: String,
    },
    /// The minimum is above the maximum.
    #[error("tls_server_config: min_version is above max_version")]
    NoVersion,
    /// A version that is no longer safe is asked for.
    #[error("tls_server_config: {0} {1} is not supported, because it is no longer safe: TLS12 and TLS13 are")]
    OldVersion(&'static str, String),
    /// A list has no element.
    #[error("tls_server_config: {0} is empty: leave it out, or name what is allowed")]
    Empty(&'static str),
    /// Certificates are to be verified, but not by whom they are issued.
    #[error("tls_server_config: client_auth_type {0} needs client_ca or client_ca_file")]
    NoAuthority(&'static str),
    /// Authorities are given that would have no effect.
    #[error("tls_server_config: client_ca has no effect unless client_auth_type is VerifyClientCertIfGiven or RequireAndVerifyClientCert")]
    UselessAuthority,
    /// Names are given that clients without a certificate would evade.
    #[error("tls_server_config: client_allowed_sans needs client_auth_type RequireAndVerifyClientCert, or RequireAnyClientCert")]
    NamesOfNobody,
    /// A kind of name that is not read.
    #[error("tls_server_config: client_allowed_sans {0}: e-mail addresses cannot be compared; DNS names, IP addresses and URIs can")]
    EmailName(String),
    /// The authorities cannot be used.
    #[error("tls_server_config: client_ca: {0}")]
    Verifier(#[from] VerifierBuilderError),
}

/// Where a certificate or a key comes from.
pub(super) struct Pem {
    /// The setting that has it or names its file.
    setting: &'static str,
    text: Vec<u8>,
}

/// Makes what the settings ask for. `read` reads a file that they name.
///
/// # Errors
/// Fails with what is wrong, or cannot be done.
pub(super) fn server_config(
    settings: TlsSettings,
    mut read: impl FnMut(&str) -> (PathBuf, io::Result<Vec<u8>>),
) -> Result<ServerConfig, TlsError> {
    let mut pem = |inline, file, settings: [&'static str; 2]| pem(inline, file, settings, &mut read);
    let certificate =
        pem(settings.cert, settings.cert_file, ["cert", "cert_file"])?.ok_or(TlsError::Missing("cert"))?;
    let key = pem(settings.key, settings.key_file, ["key", "key_file"])?.ok_or(TlsError::Missing("key"))?;
    let authorities = pem(settings.client_ca, settings.client_ca_file, ["client_ca", "client_ca_file"])?;

    let auth = client_auth(settings.client_auth_type)?;
    let names = names(settings.client_allowed_sans, auth)?;
    let authorities = trusted(authorities, auth)?;
    let provider = Arc::new(provider(settings.cipher_suites, settings.curve_preferences)?);
    let versions = versions(settings.min_version, settings.max_version)?;

    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider)).with_protocol_versions(&versions);
    let builder = builder.map_err(|_| TlsError::Empty("cipher_suites"))?;
    let builder = match clients::verifier(auth, authorities, names, &provider)? {
        Some(verifier) => builder.with_client_cert_verifier(verifier),
        None => builder.with_no_client_auth(),
    };
    let config = builder.with_single_cert(certificates(&certificate)?, private_key(&key)?);
    let mut config = config.map_err(unusable_key)?;
    config.ignore_client_order = !matches!(settings.prefer_server_cipher_suites, Some(Flag::False));
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    // Every connection proves anew who it is from: what has expired or was withdrawn is of no use.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// Returns a certificate or key from one of the two settings that it may come from. Blank ones count as missing.
fn pem(
    inline: Option<String>,
    file: Option<String>,
    [inline_setting, file_setting]: [&'static str; 2],
    read: &mut impl FnMut(&str) -> (PathBuf, io::Result<Vec<u8>>),
) -> Result<Option<Pem>, TlsError> {
    let given = |setting: Option<String>| setting.filter(|text| !text.trim().is_empty());
    match (given(inline), given(file)) {
        (Some(_), Some(_)) => Err(TlsError::Twice(inline_setting)),
        (Some(text), None) => Ok(Some(Pem { setting: inline_setting, text: text.into_bytes() })),
        (None, Some(file)) => match read(&file) {
            (_, Ok(text)) => Ok(Some(Pem { setting: file_setting, text })),
            (path, Err(why)) => Err(TlsError::Unreadable { setting: file_setting, path, why }),
        },
        (None, None) => Ok(None),
    }
}

fn certificates(pem: &Pem) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem.text).collect();
    let all = all.map_err(|why| TlsError::Certificate(pem.setting, why.to_string()))?;
    if all.is_empty() {
        return Err(TlsError::NoCertificate(pem.setting));
    }
    Ok(all)
}

fn private_key(pem: &Pem) -> Result<PrivateKeyDer<'static>, TlsError> {
    const ENCRYPTED: [&[u8]; 2] = [b"BEGIN ENCRYPTED PRIVATE KEY", b"Proc-Type: 4,ENCRYPTED"];
    if ENCRYPTED.iter().any(|mark| memchr::memmem::find(&pem.text, mark).is_some()) {
        return Err(TlsError::EncryptedKey);
    }
    PrivateKeyDer::from_pem_slice(&pem.text).map_err(|_| TlsError::NoKey)
}

fn unusable_key(error: rustls::Error) -> TlsError {
    match error {
        rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => TlsError::OtherKey,
        error => TlsError::Key(error),
    }
}

/// Returns the value of a setting by its name, which an enum's variant has.
fn client_auth(name: Option<String>) -> Result<ClientAuth, TlsError> {
    let name = name.filter(|name| !name.is_empty());
    let Some(value) = name else { return Ok(ClientAuth::NoClientCert) };
    ClientAuth::from_str(&value).map_err(|_| TlsError::Unknown {
        setting: "client_auth_type",
        value,
        known: ClientAuth::VARIANTS.join(", "),
    })
}

fn names(names: Option<Vec<String>>, auth: ClientAuth) -> Result<Option<Vec<String>>, TlsError> {
    let Some(names) = names else { return Ok(None) };
    if !auth.requires() {
        return Err(TlsError::NamesOfNobody);
    }
    match names.iter().find(|name| name.contains('@') && !name.contains(':')) {
        Some(address) => Err(TlsError::EmailName(address.clone())),
        None if names.is_empty() => Err(TlsError::Empty("client_allowed_sans")),
        None => Ok(Some(names)),
    }
}

/// Returns the authorities that issue clients' certificates.
fn trusted(authorities: Option<Pem>, auth: ClientAuth) -> Result<RootCertStore, TlsError> {
    let mut store = RootCertStore::empty();
    match authorities {
        None if auth.verifies() => Err(TlsError::NoAuthority(auth.into())),
        None => Ok(store),
        Some(_) if !auth.verifies() => Err(TlsError::UselessAuthority),
        Some(pem) => {
            for authority in certificates(&pem)? {
                store.add(authority).map_err(|why| TlsError::Certificate(pem.setting, why.to_string()))?;
            }
            Ok(store)
        }
    }
}

/// Returns ring's algorithms, as far as they are allowed. Those of TLS 1.3 always are, as in Go.
fn provider(suites: Option<Vec<String>>, curves: Option<Vec<String>>) -> Result<CryptoProvider, TlsError> {
    let mut provider = ring::default_provider();
    if let Some(names) = suites.filter(|names| !names.is_empty()) {
        let known = |suite: &SupportedCipherSuite| (suite_name(suite), *suite);
        let mut chosen = choose("cipher_suites", names, provider.cipher_suites.iter().map(known).collect())?;
        chosen.retain(|suite| suite.tls13().is_none());
        provider.cipher_suites.retain(|suite| suite.tls13().is_some());
        provider.cipher_suites.append(&mut chosen);
    }
    if let Some(names) = curves.filter(|names| !names.is_empty()) {
        let known = provider.kx_groups.iter().map(|group| (curve_name(group.name()), *group)).collect();
        provider.kx_groups = choose("curve_preferences", names, known)?;
    }
    Ok(provider)
}

/// Returns the things with these names, in the order of the names.
fn choose<T: Copy>(setting: &'static str, names: Vec<String>, known: Vec<(String, T)>) -> Result<Vec<T>, TlsError> {
    let find = |value: String| match known.iter().find(|(name, _)| *name == value) {
        Some((_, thing)) => Ok(*thing),
        None => {
            let known: Vec<&str> = known.iter().map(|(name, _)| name.as_str()).collect();
            Err(TlsError::Unknown { setting, value, known: known.join(", ") })
        }
    };
    names.into_iter().map(find).collect()
}

/// Returns a suite's name in Go.
fn suite_name(suite: &SupportedCipherSuite) -> String {
    format!("{:?}", suite.suite()).replace("TLS13_", "TLS_")
}

/// Returns a curve's name in Go.
fn curve_name(group: NamedGroup) -> String {
    match group {
        NamedGroup::secp256r1 => "CurveP256".to_owned(),
        NamedGroup::secp384r1 => "CurveP384".to_owned(),
        other => format!("{other:?}"),
    }
}

/// Returns the versions of TLS between two.
fn versions(min: Option<String>, max: Option<String>) -> Result<Vec<&'static SupportedProtocolVersion>, TlsError> {
    let all = [&TLS12, &TLS13];
    let place = |setting, value: Option<String>, default| match value.as_deref() {
        None | Some("") => Ok(default),
        Some("TLS12") => Ok(0),
        Some("TLS13") => Ok(1),
        Some(old @ ("TLS10" | "TLS11")) => Err(TlsError::OldVersion(setting, old.to_owned())),
        Some(other) => Err(TlsError::Unknown { setting, value: other.to_owned(), known: "TLS12, TLS13".to_owned() }),
    };
    let (min, max) = (place("min_version", min, 0)?, place("max_version", max, 1)?);
    all.get(min..=max).filter(|some| !some.is_empty()).map(<[_]>::to_vec).ok_or(TlsError::NoVersion)
}
