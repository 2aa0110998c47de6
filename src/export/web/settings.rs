//! The sections of the file, and which of their values are possible.

use std::collections::BTreeMap;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use serde::de::DeserializeOwned;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::passwords::{Users, MOST_COST};

/// The headers that the format knows, and the only values of those that have few.
const HEADERS: &[(&str, &[&str])] = &[
    ("Content-Security-Policy", &[]),
    ("Strict-Transport-Security", &[]),
    ("X-Content-Type-Options", &["nosniff"]),
    ("X-Frame-Options", &["deny", "sameorigin"]),
    ("X-XSS-Protection", &[]),
];

/// What is wrong with a section of the file.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The file is a list or a single value.
    #[error("the file takes the sections tls_server_config, http_server_config and basic_auth_users")]
    NoSections,
    /// There is no such section.
    #[error("unknown section {0}: there are tls_server_config, http_server_config and basic_auth_users")]
    UnknownSection(String),
    /// Requests are not limited in this way.
    #[error("rate_limit is not supported, and not needed: requests within a second share one answer. Remove it")]
    RateLimit,
    /// A section is a list or a single value.
    #[error("{0} takes settings, each as NAME: VALUE")]
    NotSettings(&'static str),
    /// A setting is unknown, or of the wrong kind.
    #[error("{section}: {why}")]
    Setting {
        /// The section.
        section: &'static str,
        /// The reason.
        why: serde_json::Error,
    },
    /// The format has no such header.
    #[error("http_server_config: the header {0} cannot be set; those that can are {names}", names = header_names())]
    UnknownHeader(String),
    /// The header takes other values.
    #[error("http_server_config: the header {0} takes {1}")]
    HeaderValue(String, String),
    /// A password's hash is missing, or is not one of bcrypt's.
    #[error("basic_auth_users: the password of {0:?} is no bcrypt hash: make one with `htpasswd -nBC 10 {0}`")]
    NoHash(String),
    /// A check would take too long.
    #[error("basic_auth_users: the hash of {0:?} has cost {1}, and {MOST_COST} is the most: make another one with `htpasswd -nBC 10 {0}`")]
    Cost(String, u32),
    /// A name cannot be sent.
    #[error("basic_auth_users: {0:?} cannot be a user's name: clients cannot send a colon in it")]
    UserName(String),
}

fn header_names() -> String {
    HEADERS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}

/// The settings of `tls_server_config`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct TlsSettings {
    pub cert: Option<String>,
    pub key: Option<String>,
    pub client_ca: Option<String>,
    pub cert_file: Option<String>,
    pub key_file: Option<String>,
    pub client_ca_file: Option<String>,
    pub client_auth_type: Option<String>,
    pub client_allowed_sans: Option<Vec<String>>,
    pub min_version: Option<String>,
    pub max_version: Option<String>,
    pub cipher_suites: Option<Vec<String>>,
    pub prefer_server_cipher_suites: Option<Flag>,
    pub curve_preferences: Option<Vec<String>>,
}

/// The settings of `http_server_config`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct HttpSettings {
    /// Every client that speaks HTTP/2 speaks HTTP/1.1 too, which is what it gets.
    #[serde(rename = "http2")]
    _http2: Option<Flag>,
    headers: Option<BTreeMap<String, String>>,
}

/// `true` or `false`.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Flag {
    True,
    False,
}

/// The file's sections.
#[derive(Debug)]
pub(super) struct Settings {
    /// `None` if there is no such section, or nothing in it.
    pub tls: Option<TlsSettings>,
    pub headers: HeaderMap,
    pub users: Users,
}

impl Settings {
    /// Reads the sections of a file.
    ///
    /// # Errors
    /// Fails with what is wrong.
    pub fn read(file: Value) -> Result<Settings, SettingsError> {
        let mut sections = match file {
            Value::Null => Map::new(),
            Value::Object(sections) => sections,
            _ => return Err(SettingsError::NoSections),
        };
        let tls = section(&mut sections, "tls_server_config")?;
        let tls = if tls.is_empty() { None } else { Some(settings("tls_server_config", tls)?) };
        let http: HttpSettings = settings("http_server_config", section(&mut sections, "http_server_config")?)?;
        let users = section(&mut sections, "basic_auth_users")?;
        if sections.contains_key("rate_limit") {
            return Err(SettingsError::RateLimit);
        }
        match sections.into_iter().next() {
            Some((unknown, _)) => Err(SettingsError::UnknownSection(unknown)),
            None => Ok(Settings { tls, headers: headers(http.headers.unwrap_or_default())?, users: users_of(users)? }),
        }
    }
}

/// Takes a section out of the file. It is empty if it is missing.
fn section(sections: &mut Map<String, Value>, name: &'static str) -> Result<Map<String, Value>, SettingsError> {
    match sections.remove(name) {
        None | Some(Value::Null) => Ok(Map::new()),
        Some(Value::Object(settings)) => Ok(settings),
        Some(_) => Err(SettingsError::NotSettings(name)),
    }
}

fn settings<T: DeserializeOwned>(section: &'static str, settings: Map<String, Value>) -> Result<T, SettingsError> {
    serde_json::from_value(Value::Object(settings)).map_err(|why| SettingsError::Setting { section, why })
}

fn headers(given: BTreeMap<String, String>) -> Result<HeaderMap, SettingsError> {
    let mut headers = HeaderMap::new();
    for (name, value) in given {
        let known = HEADERS.iter().find(|(known, _)| *known == name);
        let (_, values) = known.ok_or_else(|| SettingsError::UnknownHeader(name.clone()))?;
        if !values.is_empty() && !values.contains(&value.as_str()) {
            return Err(SettingsError::HeaderValue(name, values.join(" or ")));
        }
        let sent = HeaderName::from_bytes(name.as_bytes()).ok().zip(HeaderValue::from_str(&value).ok());
        let (sent_name, sent_value) = sent.ok_or(SettingsError::HeaderValue(name, "one line of ASCII".to_owned()))?;
        // A blank value leaves the header out.
        if !sent_value.is_empty() {
            headers.insert(sent_name, sent_value);
        }
    }
    Ok(headers)
}

/// Checks users' hashes. No message shows one.
fn users_of(given: Map<String, Value>) -> Result<Users, SettingsError> {
    let mut users = BTreeMap::new();
    for (name, hash) in given {
        let hash = match hash {
            Value::String(hash) => hash,
            _ => return Err(SettingsError::NoHash(name)),
        };
        let Ok(parts) = hash.parse::<bcrypt::HashParts>() else {
            return Err(SettingsError::NoHash(name));
        };
        if parts.get_cost() > MOST_COST {
            return Err(SettingsError::Cost(name, parts.get_cost()));
        }
        if name.contains(':') {
            return Err(SettingsError::UserName(name));
        }
        users.insert(name, hash);
    }
    Ok(Users::new(users))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const HASH: &str = "$2y$10$X0h1gDsPszWURQaxFh.zoubFi6DXncSjhoQNJgRrnGs7EsimhC7zG";

    fn error(file: Value) -> String {
        Settings::read(file).expect_err("an error").to_string()
    }

    #[test]
    fn an_empty_file_asks_for_nothing() {
        for file in [Value::Null, json!({}), json!({"tls_server_config": null, "basic_auth_users": {}})] {
            let settings = Settings::read(file).unwrap();
            assert!(settings.tls.is_none() && settings.headers.is_empty() && settings.users.is_empty());
        }
    }

    #[test]
    fn headers_and_users_are_read() {
        let file = json!({
            "http_server_config": {"http2": "false", "headers": {"X-Frame-Options": "deny", "X-XSS-Protection": ""}},
            "basic_auth_users": {"alice": HASH}
        });
        let settings = Settings::read(file).unwrap();
        assert_eq!(settings.headers["x-frame-options"], "deny");
        assert_eq!(settings.headers.len(), 1);
        assert!(!settings.users.is_empty());
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (file, words) in [
            (json!(["x"]), "takes the sections"),
            (json!({"tls_server_confg": {}}), "unknown section tls_server_confg"),
            (json!({"rate_limit": {"burst": "1"}}), "rate_limit is not supported"),
            (json!({"tls_server_config": "x"}), "tls_server_config takes settings"),
            (json!({"tls_server_config": {"cert_fil": "x"}}), "unknown field `cert_fil`"),
            (json!({"tls_server_config": {"cert_file": ["x"]}}), "tls_server_config: invalid type"),
            (json!({"http_server_config": {"http2": "yes"}}), "unknown variant `yes`"),
            (json!({"http_server_config": {"headers": {"X-Other": "1"}}}), "X-Other cannot be set"),
            (json!({"http_server_config": {"headers": {"X-Frame-Options": "x"}}}), "takes deny or sameorigin"),
            (json!({"http_server_config": {"headers": {"X-XSS-Protection": "a\nb"}}}), "one line of ASCII"),
            (json!({"basic_auth_users": {"alice": "secret"}}), "the password of \"alice\" is no bcrypt hash"),
            (json!({"basic_auth_users": {"alice": null}}), "is no bcrypt hash"),
            (json!({"basic_auth_users": {"alice": HASH.replace("$10$", "$20$")}}), "has cost 20"),
            (json!({"basic_auth_users": {"a:b": HASH}}), "cannot be a user's name"),
        ] {
            let error = error(file);
            assert!(error.contains(words) && !error.contains("secret"), "{error}");
        }
    }
}
