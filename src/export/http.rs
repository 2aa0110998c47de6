//! The HTTP server: `/metrics`, `/healthz`, and pages with the events that keep them up to date.

use super::answer::{accepts_gzip, Answer};
use super::connections::Connections;
use super::events::INTERVAL;
use super::hosts::is_from_here;
use super::pace::Pace;
use super::policy::{guarded, Caller, Policy, Refused};
use super::servers::{self, ManyServers, Server, Servers};
use super::view::{OneServer, View};
use super::{page, tls_port, Listener, ProcessSelf, SnapshotSource};
use axum::extract::{Extension, Path, Query, Request, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{from_fn, Next};
use axum::response::{IntoResponse, Response, Sse};
use axum::routing::get;
use axum::Router;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{service_fn, Service};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use prometheus::core::Collector;
use prometheus::{Registry, TextEncoder};
use serde::Deserialize;
use std::future::Future;
use std::io;
use std::pin::{pin, Pin};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{watch, AcquireError, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::{interval, sleep, timeout, MissedTickBehavior};
use tokio_io_timeout::TimeoutStream;

/// The longest that a client may take to send a request, and that a connection may be idle between two requests.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest that a TLS handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest that a client may leave a response unread before the connection is closed.
const UNREAD_TIMEOUT: Duration = Duration::from_secs(10);
/// The most bytes of a response that the kernel holds beside those on their way, and that hyper does. Without a limit,
/// both would take many events of a client that does not read before [`UNREAD_TIMEOUT`] begins.
const UNSENT: u32 = 16 << 10;
/// The longest that responses in progress may take to finish once the server stops.
const STOP_TIMEOUT: Duration = Duration::from_millis(500);
/// Requests within this time have the same answer: a client that asks all the time must not cost a CPU.
const FRESH: Duration = Duration::from_secs(1);
/// The most requests of a network that are answered in a second, which takes about a tenth of a CPU; others wait.
const MOST_REQUESTS: u32 = 1000;
/// The most connections of a network that are served in a second; others are closed at once.
const MOST_CONNECTIONS: u32 = 2000;

/// The reason why a request cannot be answered.
#[derive(Debug, thiserror::Error)]
enum ServeError {
    #[error(transparent)]
    Encoding(#[from] prometheus::Error),
    #[error("the answer cannot be compressed: {0}")]
    Compression(#[from] io::Error),
    #[error(transparent)]
    Turn(#[from] AcquireError),
    #[error("a snapshot could not be taken; see the log")]
    NoSnapshot,
}

/// Everything that the server serves.
pub struct Exporter {
    registry: Registry,
    /// Held while a snapshot is taken, so that concurrent requests take turns.
    turn: Arc<Semaphore>,
    scrape: Arc<Latest>,
    shown: Shown,
}

/// What pages show.
enum Shown {
    /// One server, at `/`.
    One(Arc<View>),
    /// A list at `/`, and a page of each server.
    Many { servers: Arc<dyn Servers>, list: Arc<Latest> },
}

/// The last answer of a kind, and when it was made.
#[derive(Default)]
pub(super) struct Latest(Mutex<Option<(Instant, Answer)>>);

impl Latest {
    /// Returns it if it is fresh, in this form, and nobody makes another one.
    fn if_fresh(&self, gzip: bool) -> Option<Answer> {
        let latest = self.0.try_lock()?;
        let (_, answer) = latest.as_ref().filter(|(made, _)| made.elapsed() < FRESH)?;
        if gzip {
            answer.is_compressed().then(|| answer.clone())
        } else {
            Some(answer.clone().uncompressed())
        }
    }

    /// Returns it if it is fresh, otherwise makes a new one. It is compressed for the first client that wants that.
    fn or_make(&self, gzip: bool, make: impl FnOnce() -> Result<String, ServeError>) -> Result<Answer, ServeError> {
        let mut latest = self.0.lock();
        latest.take_if(|(made, _)| made.elapsed() >= FRESH);
        if latest.is_none() {
            // It is as old as what it was made from.
            let made = Instant::now();
            *latest = Some((made, Answer::new(make()?)));
        }
        let (_, answer) = latest.as_mut().expect("it was just made, or is fresh");
        if gzip {
            answer.compress()?;
            return Ok(answer.clone());
        }
        Ok(answer.clone().uncompressed())
    }
}

impl Exporter {
    /// Registers the metrics of a source and of armtrace's own process.
    ///
    /// # Errors
    /// Fails if two metrics have the same name.
    pub fn new(source: Arc<dyn SnapshotSource>) -> prometheus::Result<Exporter> {
        let view = Arc::new(View::new(source));
        Exporter::with(Box::new(OneServer(Arc::clone(&view))), Shown::One(view))
    }

    /// Registers the metrics of several servers, with the label `target`, and of armtrace's own process.
    ///
    /// # Errors
    /// Fails if two metrics have the same name.
    pub fn of_many(servers: Arc<dyn Servers>) -> prometheus::Result<Exporter> {
        let collector = ManyServers::new(Arc::clone(&servers));
        Exporter::with(Box::new(collector), Shown::Many { servers, list: Arc::default() })
    }

    fn with(collector: Box<dyn Collector>, shown: Shown) -> prometheus::Result<Exporter> {
        let registry = Registry::new();
        registry.register(collector)?;
        registry.register(Box::new(ProcessSelf::new()))?;
        Ok(Exporter { registry, turn: Arc::new(Semaphore::new(1)), scrape: Arc::default(), shown })
    }

    /// Returns all metrics in the Prometheus text format, version 0.0.4.
    ///
    /// # Errors
    /// Fails if the metrics cannot be encoded.
    pub fn metrics(&self) -> prometheus::Result<String> {
        TextEncoder::new().encode_to_string(&self.registry.gather())
    }

    /// Returns the server whose page has this path; `None` stands for `/`.
    fn view(&self, name: Option<&str>) -> Option<Arc<View>> {
        match (&self.shown, name) {
            (Shown::One(view), None) => Some(Arc::clone(view)),
            (Shown::Many { servers, .. }, Some(name)) => servers.server(name)?.view,
            _ => None,
        }
    }

    /// Ends the events of all open pages.
    fn end_events(&self) {
        match &self.shown {
            Shown::One(view) => view.end(),
            Shown::Many { servers, .. } => {
                servers.servers().into_iter().filter_map(|server| server.view).for_each(|view| view.end());
            }
        }
    }
}

/// Serves until `stop` completes, and returns within a second of that, whatever clients do.
///
/// A snapshot in progress at that moment continues on its own thread. End the runtime with `shutdown_background` to
/// avoid waiting for it.
///
/// # Errors
/// Fails if the listener cannot be registered with the runtime.
pub async fn serve(
    listener: Listener,
    exporter: Exporter,
    policy: Policy,
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    let policy = Arc::new(policy);
    let listener = TcpListener::from_std(listener.into_std())?;
    let exporter = Arc::new(exporter);
    let router = router(Arc::clone(&exporter));
    let (stopping, _) = watch::channel(false);
    let mut connections = Connections::default();
    let (connecting, asking) = (Pace::new(MOST_CONNECTIONS), Arc::new(Pace::new(MOST_REQUESTS)));
    let mut stop = pin!(stop);
    loop {
        tokio::select! {
            () = &mut stop => break,
            accepted = listener.accept(), if connections.have_room() => match accepted {
                Ok((_, client)) if connecting.count(client.ip().into()).is_err() => {}
                Ok((stream, client)) => connections.serve(client.ip().into(), |activity| {
                    let is_from_here = stream.local_addr().is_ok_and(|here| is_from_here(client, here));
                    let (policy, asking) = (Arc::clone(&policy), Arc::clone(&asking));
                    let caller = Caller { policy, is_from_here, from: client.ip().into(), asking, activity };
                    connection(stream, caller, router.clone(), stopping.subscribe())
                }),
                Err(error) => pause_after(&error).await,
            },
            () = connections.change() => {}
        }
    }
    drop(listener);
    exporter.end_events();
    stopping.send_replace(true);
    if timeout(STOP_TIMEOUT, connections.end()).await.is_err() {
        tracing::debug!("closing {} unfinished HTTP connections", connections.len());
    }
    Ok(())
}

/// Sends the newest figures to the pages of one server that are open. While there are none, no snapshot is taken.
async fn publish(exporter: Arc<Exporter>, view: Arc<View>) {
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        view.feed.until_open().await;
        ticks.tick().await;
        let shown = Arc::clone(&view);
        match in_turn(&exporter, move || Ok(shown.figures())).await {
            Ok(figures) => view.feed.send(&figures),
            Err(error) => tracing::error!("cannot update open pages: {error}"),
        }
    }
}

/// Waits a moment after a failed `accept`, because running out of file descriptors is temporary. A connection that the
/// client aborted before it was accepted needs no pause and no warning.
async fn pause_after(error: &io::Error) {
    if error.kind() != io::ErrorKind::ConnectionAborted {
        tracing::warn!("cannot accept an HTTP connection: {error}");
        sleep(Duration::from_millis(100)).await;
    }
}

/// Serves one connection until the client closes it, idles too long, or the server stops.
async fn connection(stream: TcpStream, caller: Caller, router: Router, mut stopping: watch::Receiver<bool>) {
    let socket = socket2::SockRef::from(&stream);
    // The connection works without these options too, so failures do not matter.
    let _ = socket.set_tcp_nodelay(true);
    let _ = socket.set_tcp_user_timeout(Some(UNREAD_TIMEOUT));
    let _ = socket.set_tcp_notsent_lowat(UNSENT);
    let tls = match caller.policy.tls() {
        Ok(None) => return requests(impatient(stream), caller, router, stopping).await,
        Ok(Some(tls)) => tls,
        Err(Refused) => return,
    };
    let secured = tokio::select! {
        secured = timeout(HANDSHAKE_TIMEOUT, tls_port::accept(stream, tls)) => secured,
        _ = stopping.changed() => return,
    };
    match secured {
        Ok(Ok(stream)) => requests(stream, caller, router, stopping).await,
        Ok(Err(error)) => tracing::debug!("TLS connection: {error}"),
        Err(_) => tracing::debug!("TLS connection: the handshake takes too long"),
    }
}

/// Returns a stream that is closed if the client does not read.
pub(super) fn impatient(stream: TcpStream) -> Pin<Box<TimeoutStream<TcpStream>>> {
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(UNREAD_TIMEOUT));
    Box::pin(stream)
}

/// Answers the requests of a connection.
async fn requests(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    caller: Caller,
    router: Router,
    mut stopping: watch::Receiver<bool>,
) {
    // All connections share one router, because building one takes longer than an answer that is there.
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(caller.clone());
        router.call(request)
    });
    let mut connection = pin!(http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_TIMEOUT)
        .max_buf_size(UNSENT as usize)
        .serve_connection(TokioIo::new(stream), service));
    let served = tokio::select! {
        served = connection.as_mut() => served,
        _ = stopping.changed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = served {
        tracing::debug!("HTTP connection: {error}");
    }
}

/// Answers the requests of one client on a stream, as [`serve`] does, whichever host they are for.
#[cfg(any(test, fuzzing))]
pub(crate) async fn serve_one(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, exporter: Arc<Exporter>) {
    let hosts = super::Hosts::allowing(&["*".to_owned()]);
    let policy = Arc::new(Policy { hosts, ..Policy::default() });
    let activity = Arc::new(super::connections::Activity::new());
    let from = std::net::IpAddr::from([127, 0, 0, 1]).into();
    let asking = Arc::new(Pace::new(u32::MAX));
    let caller = Caller { policy, is_from_here: true, from, asking, activity };
    let (_stopping, stop) = watch::channel(false);
    requests(stream, caller, router(exporter), stop).await;
}

fn router(exporter: Arc<Exporter>) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(async || "ok\n"))
        .route("/", get(landing))
        .route("/events", get(events))
        .route("/servers/{name}/", get(landing_of))
        .route("/servers/{name}/events", get(events_of))
        .fallback(async || not_found())
        .with_state(exporter)
        // While a connection's requests are not let in, its place is free for others.
        .layer(from_fn(observed))
        .layer(from_fn(guarded))
}

/// Notes what the connection of a request does.
async fn observed(Extension(caller): Extension<Caller>, request: Request, next: Next) -> Response {
    let activity = caller.activity;
    activity.begin();
    let response = next.run(request).await;
    activity.end();
    response
}

/// What a scrape may ask for.
#[derive(Deserialize)]
struct Wanted {
    /// One of several servers, by its name, instead of all.
    target: Option<String>,
}

async fn metrics(State(exporter): State<Arc<Exporter>>, Query(wanted): Query<Wanted>, headers: HeaderMap) -> Response {
    let one = match (wanted.target, &exporter.shown) {
        (Some(name), Shown::Many { servers, .. }) => match servers.server(&name) {
            Some(server) => Some(server),
            None => return (StatusCode::NOT_FOUND, "no server has this name; all are at /\n").into_response(),
        },
        _ => None,
    };
    let gzip = accepts_gzip(&headers);
    let text = match one {
        Some(server) => metrics_of(&exporter, server, gzip).await,
        None => {
            let (latest, made) = (Arc::clone(&exporter.scrape), Arc::clone(&exporter));
            fresh(&exporter, latest, gzip, move || Ok(made.metrics()?)).await
        }
    };
    match text {
        Ok(text) => ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response(),
        Err(error) => failed(&error),
    }
}

/// Returns the metrics of one of several servers.
async fn metrics_of(exporter: &Exporter, server: Server, gzip: bool) -> Result<Answer, ServeError> {
    let latest = server.view.as_ref().map_or_else(Arc::default, |view| Arc::clone(&view.scrape));
    let text = move || Ok(TextEncoder::new().encode_to_string(&servers::families_of(&server))?);
    fresh(exporter, latest, gzip, text).await
}

/// Returns an answer as it was last made, in the form that the client reads, or makes a new one if that is not fresh.
async fn fresh(
    exporter: &Exporter,
    latest: Arc<Latest>,
    gzip: bool,
    make: impl FnOnce() -> Result<String, ServeError> + Send + 'static,
) -> Result<Answer, ServeError> {
    match latest.if_fresh(gzip) {
        Some(answer) => Ok(answer),
        None => in_turn(exporter, move || latest.or_make(gzip, make)).await,
    }
}

async fn landing(State(exporter): State<Arc<Exporter>>, headers: HeaderMap) -> Response {
    match &exporter.shown {
        Shown::One(view) => page_of(&exporter, view, &headers).await,
        Shown::Many { servers, list } => {
            let servers = Arc::clone(servers);
            page(&exporter, Arc::clone(list), &headers, move || page::list(&*servers)).await
        }
    }
}

async fn landing_of(State(exporter): State<Arc<Exporter>>, Path(name): Path<String>, headers: HeaderMap) -> Response {
    match exporter.view(Some(&name)) {
        Some(view) => page_of(&exporter, &view, &headers).await,
        None => not_found(),
    }
}

async fn events(State(exporter): State<Arc<Exporter>>, Extension(caller): Extension<Caller>) -> Response {
    events_on(exporter, None, &caller)
}

async fn events_of(
    State(exporter): State<Arc<Exporter>>,
    Path(name): Path<String>,
    Extension(caller): Extension<Caller>,
) -> Response {
    events_on(exporter, Some(&name), &caller)
}

/// Sends the events of the page with this name.
fn events_on(exporter: Arc<Exporter>, name: Option<&str>, caller: &Caller) -> Response {
    let Some(view) = exporter.view(name) else { return not_found() };
    let Some(events) = view.feed.open() else {
        return (StatusCode::SERVICE_UNAVAILABLE, "too many pages are open\n").into_response();
    };
    // The server may have ended since it was looked up.
    if !view.publish(|view| tokio::spawn(publish(exporter, view))) {
        return not_found();
    }
    caller.activity.stay();
    Sse::new(events).into_response()
}

/// Returns the page of one server.
async fn page_of(exporter: &Arc<Exporter>, view: &Arc<View>, headers: &HeaderMap) -> Response {
    let is_one_of_many = matches!(exporter.shown, Shown::Many { .. });
    let (shown, latest) = (Arc::clone(view), Arc::clone(&view.page));
    page(exporter, latest, headers, move || shown.landing(is_one_of_many)).await
}

/// Returns a page.
async fn page(
    exporter: &Arc<Exporter>,
    latest: Arc<Latest>,
    headers: &HeaderMap,
    make: impl FnOnce() -> String + Send + 'static,
) -> Response {
    let page = fresh(exporter, latest, accepts_gzip(headers), || Ok(make())).await;
    let headers = [(CONTENT_SECURITY_POLICY, page::CONTENT_POLICY.as_str()), (CACHE_CONTROL, "no-store")];
    match page {
        Ok(page) => (headers, [(CONTENT_TYPE, "text/html; charset=utf-8")], page).into_response(),
        Err(error) => failed(&error),
    }
}

/// Runs `work` on a thread that may block, one request at a time.
async fn in_turn<T: Send + 'static>(
    exporter: &Exporter,
    work: impl FnOnce() -> Result<T, ServeError> + Send + 'static,
) -> Result<T, ServeError> {
    // The permit moves into the closure: work continues after a client hangs up, and the next must still wait for it.
    let turn = exporter.turn.clone().acquire_owned().await?;
    let done = spawn_blocking(move || {
        let result = work();
        drop(turn);
        result
    });
    done.await.unwrap_or(Err(ServeError::NoSnapshot))
}

fn not_found() -> Response {
    (StatusCode::NOT_FOUND, "not found; the metrics are at /metrics\n").into_response()
}

fn failed(error: &ServeError) -> Response {
    tracing::error!("cannot serve metrics: {error}");
    (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response()
}
