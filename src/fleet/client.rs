//! Asks the HTTP API.

use std::time::Duration;

use percent_encoding::{utf8_percent_encode, NON_ALPHANUMERIC};
use serde::Deserialize;
use ureq::http::{Response, Uri};
use ureq::{Agent, Body};

use super::config::HttpConfig;
use super::error::{FleetError, RequestError};
use super::grid::{Grid, Range};
use super::labels::Labels;
use crate::worker::can_start;

/// The time limit for establishing a connection.
const MAX_CONNECT: Duration = Duration::from_secs(10);
/// The most of an error's text that is shown.
const MOST_TEXT: usize = 300;

/// Bounds on each answer.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How long it may take, until all of it is there.
    pub time: Duration,
    /// Its size in bytes.
    pub bytes: u64,
}

/// An hour of a hundred servers with fifty latches each takes a tenth of the size.
impl Default for Limits {
    fn default() -> Limits {
        Limits { time: Duration::from_secs(60), bytes: 128 << 20 }
    }
}

/// A series: its labels, and its values by time.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct Series {
    /// The labels.
    #[serde(rename = "metric")]
    pub labels: Labels,
    /// Seconds since 1970, each with a value.
    #[serde(default)]
    values: Vec<(f64, String)>,
}

impl Series {
    /// Returns its values, each with milliseconds since 1970. What is no number is left out.
    pub fn points(&self) -> impl Iterator<Item = (i64, f64)> + '_ {
        let point = |(seconds, value): &(f64, String)| {
            let value = value.parse::<f64>().ok().filter(|value| value.is_finite())?;
            Some(((seconds * 1000.0).round() as i64, value))
        };
        self.values.iter().filter_map(point)
    }
}

/// What the API answers.
#[derive(Deserialize)]
struct Answer {
    status: String,
    data: Option<Data>,
    error: Option<String>,
    /// Whether a part of the storage gave no answer, in VictoriaMetrics.
    #[serde(default, rename = "isPartial")]
    is_partial: bool,
}

#[derive(Deserialize)]
struct Data {
    #[serde(rename = "resultType")]
    kind: String,
    result: Vec<Series>,
}

/// A client of one API.
pub struct Client {
    /// The URL without a slash at its end.
    url: String,
    agent: Agent,
    headers: Vec<(String, String)>,
    limits: Limits,
}

impl Client {
    pub fn new(url: &str, config: HttpConfig, limits: Limits) -> Result<Client, FleetError> {
        let url = checked(url.trim().trim_end_matches('/'))?;
        let agent = Agent::config_builder()
            .user_agent(concat!("armtrace/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(MAX_CONNECT.min(limits.time)))
            .timeout_global(Some(limits.time))
            .http_status_as_error(false)
            .max_redirects(if config.follows_redirects { 10 } else { 0 })
            .tls_config(config.tls)
            .build()
            .new_agent();
        Ok(Client { url, agent, headers: config.headers, limits })
    }

    /// Returns the samples of a selector's series, as they were scraped, in a range of time.
    pub fn samples(&self, selector: &str, range: Range) -> Result<Vec<Series>, FleetError> {
        let query = format!("{selector}[{}ms]", range.length_ms());
        self.series("query", &[("query", query), ("time", seconds(range.to_ms))])
    }

    /// Returns the series of a query at the ends of windows.
    pub fn at_ends(&self, query: &str, grid: &Grid) -> Result<Vec<Series>, FleetError> {
        let parameters = [
            ("query", query.to_owned()),
            ("start", seconds(grid.from_ms)),
            ("end", seconds(grid.end_ms(grid.windows))),
            ("step", seconds(grid.step_ms)),
            // VictoriaMetrics moves the times otherwise, so that it can cache the answer.
            ("nocache", "1".to_owned()),
        ];
        self.series("query_range", &parameters)
    }

    fn series(&self, path: &str, parameters: &[(&str, String)]) -> Result<Vec<Series>, FleetError> {
        let url = format!("{}/api/v1/{path}", self.url);
        self.answer(&url, parameters).map_err(|why| FleetError::Request { url, why })
    }

    fn answer(&self, url: &str, parameters: &[(&str, String)]) -> Result<Vec<Series>, RequestError> {
        // Looking up an address within a time limit takes a thread, and panics without one.
        can_start(1).map_err(RequestError::NoThread)?;
        let encoded =
            |(name, value): &(&str, String)| format!("{name}={}", utf8_percent_encode(value, NON_ALPHANUMERIC));
        // Thanos leaves stores out otherwise that give no answer.
        let whole = ("partial_response", "false".to_owned());
        let parameters: Vec<String> = parameters.iter().chain([&whole]).map(encoded).collect();
        let mut request = self.agent.get(format!("{url}?{}", parameters.join("&")));
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let response = request.call().map_err(|error| self.failed(error))?;
        self.read(response)
    }

    fn read(&self, response: Response<Body>) -> Result<Vec<Series>, RequestError> {
        let status = response.status().as_u16();
        let mut body = response.into_body();
        let bytes = body.with_config().limit(self.limits.bytes).read_to_vec().map_err(|error| self.failed(error))?;
        match (serde_json::from_slice::<Answer>(&bytes), status) {
            (_, 401 | 403 | 407) => Err(RequestError::Refused(status)),
            (Ok(answer), _) => series_of(answer),
            (Err(_), 200..=299) => Err(RequestError::NotTheApi(kind_of(&bytes))),
            (Err(_), _) => Err(RequestError::Status(status)),
        }
    }

    fn failed(&self, error: ureq::Error) -> RequestError {
        match error {
            ureq::Error::Timeout(_) => RequestError::Late(self.limits.time),
            ureq::Error::BodyExceedsLimit(_) => RequestError::TooLarge(self.limits.bytes),
            other => RequestError::Http(Box::new(other)),
        }
    }
}

fn series_of(answer: Answer) -> Result<Vec<Series>, RequestError> {
    match answer {
        Answer { status, error, .. } if status != "success" => {
            let text = error.unwrap_or(status);
            Err(RequestError::Api(text.chars().take(MOST_TEXT).collect()))
        }
        Answer { is_partial: true, .. } => Err(RequestError::Partial),
        Answer { data: Some(Data { kind, result }), .. } if kind == "matrix" => Ok(result),
        _ => Err(RequestError::NotTheApi("something else than series")),
    }
}

/// Returns what an answer is that is not the API's.
fn kind_of(bytes: &[u8]) -> &'static str {
    match bytes.trim_ascii_start().first() {
        None => "nothing",
        Some(b'<') => "a web page",
        Some(b'{' | b'[') => "other JSON",
        Some(_) => "other text",
    }
}

/// Returns the URL if requests can be made of it.
fn checked(url: &str) -> Result<String, FleetError> {
    let wrong = |url: &str, what| FleetError::Url { url: url.to_owned(), what };
    let shown = url.rsplit_once('@').map_or(url, |(_, host)| host);
    let uri: Uri = url.parse().map_err(|_| wrong(shown, "it is no URL"))?;
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    if let Some((_, host)) = authority.rsplit_once('@') {
        let shown = format!("{}://…@{host}{}", uri.scheme_str().unwrap_or("http"), uri.path().trim_end_matches('/'));
        return Err(wrong(&shown, "others see a password on the command line: put it into a file for --http-config"));
    }
    match uri.scheme_str() {
        Some("http" | "https") if uri.query().is_none() => Ok(url.to_owned()),
        Some("http" | "https") => Err(wrong(url, "it has a query")),
        _ => Err(wrong(url, "it does not begin with http:// or https://")),
    }
}

/// Returns milliseconds as the API takes times and durations: in seconds.
fn seconds(ms: i64) -> String {
    format!("{:.3}", ms as f64 / 1000.0)
}
