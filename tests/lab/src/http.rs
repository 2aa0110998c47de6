//! A minimal HTTP client for tests.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// A response: the status line and headers as received, and the body.
pub struct Answer {
    /// The status line and the headers.
    pub head: String,
    /// The body.
    pub body: String,
}

/// Gets a path from a server, for example `127.0.0.1:9435`.
pub fn get(address: &str, path: &str) -> io::Result<Answer> {
    get_within(Duration::from_secs(30), address, path)
}

/// Like [`get`], from a server that may take so long until it answers.
pub fn get_within(time: Duration, address: &str, path: &str) -> io::Result<Answer> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(time))?;
    // HTTP/1.0: the response is not chunked and ends with the connection.
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    Ok(Answer { head: head.to_string(), body: body.to_string() })
}

/// Percent-encodes text for the query of a URL.
pub fn url_encode(text: &str) -> String {
    text.bytes()
        .map(|b| if b.is_ascii_alphanumeric() { char::from(b).to_string() } else { format!("%{b:02X}") })
        .collect()
}
