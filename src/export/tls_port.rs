//! The beginning of a connection on a port that speaks TLS.

use std::io;
use std::pin::Pin;
use std::sync::Arc;

use rustls::ServerConfig;
use tokio::net::TcpStream;
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::server::TlsStream;
use tokio_rustls::TlsAcceptor;

use super::http::impatient;

/// The first byte of a TLS connection: a record of the handshake.
const HANDSHAKE: u8 = 22;

/// What a client that speaks plain HTTP gets.
const PLAIN: &[u8] = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n\
    this port speaks https: begin the URL with https://, and set `scheme: https` in Prometheus\n";

/// A connection over TLS.
type Secured = TlsStream<Pin<Box<TimeoutStream<TcpStream>>>>;

/// Returns the connection after its handshake.
///
/// # Errors
/// Fails if the client does not speak TLS, or not as it must. Then it has been told.
pub(super) async fn accept(stream: TcpStream, config: Arc<ServerConfig>) -> io::Result<Secured> {
    let mut first = [0];
    if stream.peek(&mut first).await? == 1 && first[0] != HANDSHAKE {
        // What is left unread when the connection is closed would keep the client from reading its answer.
        _ = stream.try_read(&mut [0; 4096]);
        _ = stream.try_write(PLAIN);
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the client does not speak TLS"));
    }
    TlsAcceptor::from(config).accept(impatient(stream)).await
}
