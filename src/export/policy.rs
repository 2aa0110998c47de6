//! Who is served, and how connections are secured.

use std::sync::Arc;

use axum::extract::{Extension, Request};
use axum::http::header::WWW_AUTHENTICATE;
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use rustls::ServerConfig;

use super::connections::{Activity, Network};
use super::hosts::Hosts;
use super::pace::Pace;
use super::web::Web;

/// Who is served, and how. By default, everybody is, over plain HTTP, by the names of this host.
#[derive(Default)]
pub struct Policy {
    /// TLS, passwords and headers, if there is a file for them.
    pub web: Option<Web>,
    /// The names that this host may be asked by.
    pub hosts: Hosts,
}

/// Who asks on a connection, and what decides about its requests. Each of them brings it along.
#[derive(Clone)]
pub(super) struct Caller {
    pub policy: Arc<Policy>,
    /// Whether the client is on this host.
    pub is_from_here: bool,
    /// Where the client is.
    pub from: Network,
    /// How often each network asks.
    pub asking: Arc<Pace>,
    /// What the connection does.
    pub activity: Arc<Activity>,
}

/// No connection is served at the moment.
pub(super) struct Refused;

impl Policy {
    /// Returns whether TLS is spoken.
    pub fn speaks_tls(&self) -> bool {
        self.web.as_ref().is_some_and(Web::speaks_tls)
    }

    /// Returns how a new connection is secured, if it is.
    pub(super) fn tls(&self) -> Result<Option<Arc<ServerConfig>>, Refused> {
        match self.web.as_ref().filter(|web| web.speaks_tls()) {
            // Without TLS, a file of no use is a matter of each request.
            None => Ok(None),
            Some(web) => Ok(Some(web.current().and_then(|config| config.tls.clone()).ok_or(Refused)?)),
        }
    }
}

/// Answers a request if it is allowed. What is allowed is looked up each time, because a connection may last for days.
pub(super) async fn guarded(Extension(caller): Extension<Caller>, request: Request, next: Next) -> Response {
    let Caller { policy, is_from_here, from, asking, .. } = caller;
    asking.wait(from).await;
    let sent = (request.uri(), request.version(), request.headers());
    if let Err(wrong) = policy.hosts.check(sent, is_from_here) {
        policy.hosts.warn(&wrong);
        return wrong.into_response();
    }
    let Some(web) = &policy.web else { return next.run(request).await };
    let Some(config) = web.current() else {
        return (StatusCode::INTERNAL_SERVER_ERROR, "the web configuration cannot be used; see the log\n")
            .into_response();
    };
    let mut response = match web.admits(&config, request.headers(), from).await {
        true => next.run(request).await,
        false => {
            let ask = [(WWW_AUTHENTICATE, "Basic realm=\"armtrace\", charset=\"UTF-8\"")];
            (StatusCode::UNAUTHORIZED, ask, "a user's name and password are required\n").into_response()
        }
    };
    config.add_headers(&mut response);
    response
}
