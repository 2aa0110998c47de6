//! `/events`: what the landing page shows, once a second. All pages that are open share one snapshot.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::response::sse::Event;
use parking_lot::Mutex;
use tokio::sync::{watch, Notify, Semaphore};
use tokio_stream::wrappers::WatchStream;
use tokio_stream::{Stream, StreamExt};

use crate::measure::Snapshot;
use crate::ui::history::History;

/// The time between two events.
pub const INTERVAL: Duration = Duration::from_secs(1);
/// The most pages that are kept up to date at a time. The other connections are left for scrapes.
const MAX_PAGES: usize = 16;
/// The age from which the last snapshot is too old to tell what happened since.
const STALE: Duration = Duration::from_secs(10);

/// Sends the same events to every open page.
pub struct Feed {
    /// The newest event; `None` once there will be no more.
    newest: watch::Sender<Option<Event>>,
    /// Notified when a page is opened.
    opened: Notify,
    places: Arc<Semaphore>,
    recent: Mutex<Recent>,
}

/// The snapshots of the last seconds in which a page was open.
#[derive(Default)]
struct Recent {
    history: History,
    newest: Option<Instant>,
}

impl Recent {
    /// Drops snapshots that are so old that figures since then would not be those of the last seconds.
    fn refresh(&mut self) {
        if self.newest.is_some_and(|taken| taken.elapsed() > STALE) {
            *self = Recent::default();
        }
    }
}

impl Feed {
    /// Creates a feed that no page listens to yet.
    pub fn new() -> Feed {
        Feed {
            newest: watch::Sender::new(Some(Event::default())),
            opened: Notify::new(),
            places: Arc::new(Semaphore::new(MAX_PAGES)),
            recent: Mutex::default(),
        }
    }

    /// Returns the events from now on; `None` if too many pages are open. A page that reads too slowly misses events.
    pub fn open(&self) -> Option<impl Stream<Item = Result<Event, Infallible>>> {
        let place = Arc::clone(&self.places).try_acquire_owned().ok()?;
        let events = WatchStream::from_changes(self.newest.subscribe());
        self.opened.notify_one();
        Some(events.map_while(move |event| {
            // The place is taken for as long as the stream exists.
            let _taken = &place;
            event.map(Ok)
        }))
    }

    /// Waits until a page is open.
    pub async fn until_open(&self) {
        while self.newest.receiver_count() == 0 {
            self.opened.notified().await;
        }
    }

    /// Sends an event with this text to all open pages.
    pub fn send(&self, text: &str) {
        self.newest.send_replace(Some(Event::default().data(text)));
    }

    /// Ends the events of all open pages.
    pub fn end(&self) {
        self.newest.send_replace(None);
    }

    /// Returns what `show` makes of a snapshot and of the one that figures of the last seconds are a difference from,
    /// if there is one.
    pub fn show<T>(&self, now: &Snapshot, show: impl FnOnce(&Snapshot, Option<&Snapshot>) -> T) -> T {
        let mut recent = self.recent.lock();
        recent.refresh();
        show(now, recent.history.before(now))
    }

    /// Remembers a snapshot, so that later ones can be compared with it.
    pub fn remember(&self, snapshot: Snapshot) {
        let mut recent = self.recent.lock();
        recent.history.push(snapshot);
        recent.newest = Some(Instant::now());
    }
}
