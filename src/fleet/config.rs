//! How to connect: a file in the format that Prometheus's own clients share, as promtool's `--http.config.file`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::prelude::{Engine, BASE64_STANDARD};
use serde::Deserialize;
use serde_json::Value;
use ureq::tls::{parse_pem, Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig};

use super::FleetError;
use crate::symbols::root_certs;
use crate::yaml::{self, YamlError};

/// The largest file that is read.
const MOST_BYTES: u64 = 1 << 20;

/// The reason why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error(transparent)]
    Unreadable(#[from] io::Error),
    /// A file that it names cannot be read.
    #[error("{setting}: {}: {why}", .path.display())]
    File {
        /// The setting.
        setting: &'static str,
        /// The file.
        path: PathBuf,
        /// The reason.
        why: io::Error,
    },
    /// It is no such YAML.
    #[error(transparent)]
    Yaml(#[from] YamlError),
    /// It has unknown settings, or values of another kind.
    #[error("{0}. Known are basic_auth, authorization, http_headers, tls_config and follow_redirects")]
    Settings(#[from] serde_json::Error),
    /// Two settings exclude each other.
    #[error("give {0} or {1}, not both")]
    Both(&'static str, &'static str),
    /// A setting lacks another one.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// The value is none of these.
    #[error("{0} is true or false")]
    Flag(&'static str),
    /// A certificate or key cannot be used.
    #[error("{setting}: {what}")]
    Pem {
        /// The setting.
        setting: &'static str,
        /// What is wrong.
        what: &'static str,
    },
}

/// How to connect, and as whom. The default is anonymous, and trusts the authorities that the host trusts.
pub struct HttpConfig {
    /// Headers of each request, with whatever is secret in them.
    pub(super) headers: Vec<(String, String)>,
    pub(super) tls: TlsConfig,
    pub(super) follows_redirects: bool,
}

impl Default for HttpConfig {
    fn default() -> HttpConfig {
        let tls = TlsConfig::builder().root_certs(root_certs()).build();
        HttpConfig { headers: Vec::new(), tls, follows_redirects: true }
    }
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Settings {
    basic_auth: Option<BasicAuth>,
    authorization: Option<Authorization>,
    http_headers: BTreeMap<String, Header>,
    tls_config: Tls,
    follow_redirects: Option<String>,
    /// armtrace speaks HTTP/1.1, as every server of HTTP/2 does too.
    #[serde(rename = "enable_http2")]
    _http2: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct BasicAuth {
    username: Option<String>,
    username_file: Option<String>,
    password: Option<String>,
    password_file: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Authorization {
    r#type: Option<String>,
    credentials: Option<String>,
    credentials_file: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Header {
    values: Vec<String>,
    secrets: Vec<String>,
    files: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Tls {
    ca: Option<String>,
    ca_file: Option<String>,
    cert: Option<String>,
    cert_file: Option<String>,
    key: Option<String>,
    key_file: Option<String>,
    insecure_skip_verify: Option<String>,
}

impl HttpConfig {
    /// Reads a file, and those that it names. Their paths begin in its folder.
    ///
    /// # Errors
    /// Fails if one of them cannot be read or used.
    pub fn read(path: &Path) -> Result<HttpConfig, FleetError> {
        let files = Files { folder: path.parent().unwrap_or(Path::new("")) };
        let config = text_of(path).map_err(ConfigError::from).and_then(|text| files.config(&text));
        config.map_err(|why| FleetError::Config { path: path.to_owned(), why })
    }
}

/// Reads a text file of bounded size.
fn text_of(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(MOST_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MOST_BYTES {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is larger than 1 MiB"));
    }
    Ok(text)
}

/// The files that a configuration names.
struct Files<'a> {
    folder: &'a Path,
}

impl Files<'_> {
    fn config(&self, text: &str) -> Result<HttpConfig, ConfigError> {
        let settings: Settings = match yaml::parse(text)? {
            Value::Null => Settings::default(),
            value => serde_json::from_value(value)?,
        };
        let mut headers = self.headers(settings.http_headers)?;
        headers.extend(match (settings.basic_auth, settings.authorization) {
            (Some(_), Some(_)) => return Err(ConfigError::Both("basic_auth", "authorization")),
            (Some(basic), None) => Some(self.basic(basic)?),
            (None, Some(authorization)) => Some(self.authorization(authorization)?),
            (None, None) => None,
        });
        let follows_redirects = flag("follow_redirects", settings.follow_redirects)?.unwrap_or(true);
        Ok(HttpConfig { headers, tls: self.tls(settings.tls_config)?, follows_redirects })
    }

    fn headers(&self, given: BTreeMap<String, Header>) -> Result<Vec<(String, String)>, ConfigError> {
        let mut headers = Vec::new();
        for (name, header) in given {
            let files = header.files.iter().map(|file| self.secret("http_headers", file));
            let written = header.values.into_iter().chain(header.secrets).map(Ok);
            for value in written.chain(files) {
                headers.push((name.clone(), value?));
            }
        }
        Ok(headers)
    }

    fn basic(&self, basic: BasicAuth) -> Result<(String, String), ConfigError> {
        let user = self.either(["username", "username_file"], basic.username, basic.username_file)?;
        let user = user.ok_or(ConfigError::Missing("username"))?;
        let password = self.either(["password", "password_file"], basic.password, basic.password_file)?;
        let both = BASE64_STANDARD.encode(format!("{user}:{}", password.unwrap_or_default()));
        Ok(("Authorization".to_owned(), format!("Basic {both}")))
    }

    fn authorization(&self, given: Authorization) -> Result<(String, String), ConfigError> {
        let names = ["credentials", "credentials_file"];
        let credentials = self.either(names, given.credentials, given.credentials_file)?;
        let credentials = credentials.ok_or(ConfigError::Missing("credentials"))?;
        let kind = given.r#type.unwrap_or("Bearer".to_owned());
        Ok(("Authorization".to_owned(), format!("{kind} {credentials}")))
    }

    fn tls(&self, tls: Tls) -> Result<TlsConfig, ConfigError> {
        let authorities = self.either(["ca", "ca_file"], tls.ca, tls.ca_file)?;
        let certificate = self.either(["cert", "cert_file"], tls.cert, tls.cert_file)?;
        let key = self.either(["key", "key_file"], tls.key, tls.key_file)?;
        let roots = match authorities {
            Some(pem) => RootCerts::Specific(Arc::new(certificates("ca", &pem)?)),
            None => root_certs(),
        };
        let client = match (certificate, key) {
            (Some(certificate), Some(key)) => Some(client(&certificate, &key)?),
            (None, None) => None,
            (None, Some(_)) => return Err(ConfigError::Missing("cert_file")),
            (Some(_), None) => return Err(ConfigError::Missing("key_file")),
        };
        let is_unverified = flag("insecure_skip_verify", tls.insecure_skip_verify)?.unwrap_or(false);
        Ok(TlsConfig::builder().root_certs(roots).client_cert(client).disable_verification(is_unverified).build())
    }

    /// Returns the value of a setting that is given in the configuration or in a file of its own.
    fn either(
        &self,
        names: [&'static str; 2],
        value: Option<String>,
        file: Option<String>,
    ) -> Result<Option<String>, ConfigError> {
        match (value, file) {
            (Some(_), Some(_)) => Err(ConfigError::Both(names[0], names[1])),
            (None, Some(file)) => self.secret(names[1], &file).map(Some),
            (value, None) => Ok(value),
        }
    }

    /// Returns what a file holds, without space around it.
    fn secret(&self, setting: &'static str, file: &str) -> Result<String, ConfigError> {
        let path = self.folder.join(file);
        let text = text_of(&path).map_err(|why| ConfigError::File { setting, path, why })?;
        Ok(text.trim().to_owned())
    }
}

fn flag(name: &'static str, text: Option<String>) -> Result<Option<bool>, ConfigError> {
    text.map(|text| text.parse().map_err(|_| ConfigError::Flag(name))).transpose()
}

fn certificates(setting: &'static str, pem: &str) -> Result<Vec<Certificate<'static>>, ConfigError> {
    let unusable = |what| ConfigError::Pem { setting, what };
    let mut all = Vec::new();
    for item in parse_pem(pem.as_bytes()) {
        if let PemItem::Certificate(certificate) = item.map_err(|_| unusable("it is no PEM"))? {
            all.push(certificate);
        }
    }
    if all.is_empty() {
        return Err(unusable("it has no certificate in PEM"));
    }
    Ok(all)
}

fn client(certificate: &str, key: &str) -> Result<ClientCert, ConfigError> {
    let chain = certificates("cert", certificate)?;
    let key = PrivateKey::from_pem(key.as_bytes());
    let key =
        key.map_err(|_| ConfigError::Pem { setting: "key", what: "it has no key in PEM without a passphrase" })?;
    Ok(ClientCert::new_with_certs(&chain, key))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Result<HttpConfig, ConfigError> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("secret"), "s3cret\n").unwrap();
        Files { folder: folder.path() }.config(text)
    }

    fn headers(text: &str) -> Vec<(String, String)> {
        config(text).map_err(|error| error.to_string()).unwrap().headers
    }

    #[test]
    fn who_asks_is_said_in_a_header() {
        let header = |value: &str| vec![("Authorization".to_owned(), value.to_owned())];
        assert_eq!(headers(""), []);
        // `printf 'me:s3cret' | base64`
        let basic = header("Basic bWU6czNjcmV0");
        assert_eq!(headers("basic_auth: {username: me, password_file: secret}"), basic);
        assert_eq!(headers("basic_auth: {username: me, password: s3cret}\nenable_http2: true"), basic);
        assert_eq!(headers("authorization: {credentials_file: secret}"), header("Bearer s3cret"));
        assert_eq!(headers("authorization: {type: Token, credentials: x}"), header("Token x"));
        let tenant = headers("http_headers: {X-Scope-OrgID: {values: [db]}}");
        assert_eq!(tenant, [("X-Scope-OrgID".to_owned(), "db".to_owned())]);
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        let error = |text: &str| config(text).err().expect(text).to_string();
        for (text, words) in [
            (
                "basic_auth: {username: a}\nauthorization: {credentials: b}",
                "give basic_auth or authorization, not both",
            ),
            ("basic_auth: {password: a}", "username is missing"),
            ("authorization: {credentials: a, credentials_file: secret}", "credentials_file, not both"),
            ("authorization: {credentials_file: missing}", "missing: No such file"),
            ("oauth2: {client_id: x}", "unknown field `oauth2`"),
            ("bearer_token: x", "Known are basic_auth, authorization"),
            ("tls_config: {ca_file: secret}", "ca: it has no certificate"),
            ("tls_config: {cert: x}", "key_file is missing"),
            ("follow_redirects: perhaps", "follow_redirects is true or false"),
            ("a: [", "line "),
        ] {
            assert!(error(text).contains(words), "{text}: {}", error(text));
        }
    }
}
