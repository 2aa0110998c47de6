//! An answer that many requests share, with its compressed form.

use std::io::{self, Write};

use axum::body::Bytes;
use axum::http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, VARY};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use flate2::write::GzEncoder;
use flate2::Compression;

/// The text of an answer. It is compressed once, not for each client.
#[derive(Clone)]
pub(super) struct Answer {
    plain: Bytes,
    gzip: Option<Bytes>,
}

impl Answer {
    pub fn new(text: String) -> Answer {
        Answer { plain: text.into(), gzip: None }
    }

    /// Compresses the text, unless that is done.
    pub fn compress(&mut self) -> io::Result<()> {
        if self.gzip.is_none() {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(&self.plain)?;
            self.gzip = Some(encoder.finish()?.into());
        }
        Ok(())
    }

    /// Returns whether it has its compressed form.
    pub fn is_compressed(&self) -> bool {
        self.gzip.is_some()
    }

    /// Returns it without its compressed form.
    pub fn uncompressed(self) -> Answer {
        Answer { gzip: None, ..self }
    }
}

impl IntoResponse for Answer {
    /// Is compressed if [`compress`](Answer::compress) was called.
    fn into_response(self) -> Response {
        match self.gzip {
            Some(gzip) => ([(VARY, "accept-encoding"), (CONTENT_ENCODING, "gzip")], gzip).into_response(),
            None => ([(VARY, "accept-encoding")], self.plain).into_response(),
        }
    }
}

/// Returns whether a client says that it reads gzip.
pub(super) fn accepts_gzip(headers: &HeaderMap) -> bool {
    let values = headers.get_all(ACCEPT_ENCODING).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(is_gzip)
}

/// Returns whether one element of `Accept-Encoding` is gzip with a weight above 0.
fn is_gzip(element: &str) -> bool {
    let (coding, weight) = element.split_once(';').unwrap_or((element, "q=1"));
    let weight = weight.trim().to_ascii_lowercase();
    let weight = weight.strip_prefix("q=").and_then(|weight| weight.parse::<f32>().ok());
    coding.trim().eq_ignore_ascii_case("gzip") && weight.is_some_and(|weight| weight > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepts(value: &str) -> bool {
        accepts_gzip(&HeaderMap::from_iter([(ACCEPT_ENCODING, value.parse().unwrap())]))
    }

    #[test]
    fn only_who_asks_for_gzip_gets_it() {
        assert!(["gzip", "deflate, gzip", "GZIP;q=0.5", "br;q=1.0, gzip; q=0.1"].into_iter().all(accepts));
        assert!(!["", "identity", "gzip;q=0", "gzip; q=0.000", "xgzip", "gzip;q=x"].into_iter().any(accepts));
        assert!(!accepts_gzip(&HeaderMap::new()));
    }
}
