//! One server as pages and scrapes show it.

use std::sync::Arc;

use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use tokio::task::JoinHandle;

use super::events::Feed;
use super::http::Latest;
use super::page;
use super::{SnapshotCollector, SnapshotSource};
use crate::measure::Snapshot;

/// A source of snapshots, with what is remembered of it from one answer to the next.
pub struct View {
    source: Arc<dyn SnapshotSource>,
    pub(super) collector: SnapshotCollector,
    pub(super) feed: Feed,
    pub(super) page: Arc<Latest>,
    /// The metrics of this server alone, where there are several.
    pub(super) scrape: Arc<Latest>,
    publisher: Mutex<Publisher>,
}

/// The task that keeps open pages up to date.
#[derive(Default)]
enum Publisher {
    /// No page was opened yet.
    #[default]
    None,
    Running(JoinHandle<()>),
    /// There will be no more events.
    Ended,
}

impl View {
    /// Creates a view of a source from which nothing was taken yet.
    pub fn new(source: Arc<dyn SnapshotSource>) -> View {
        let collector = SnapshotCollector::new(Arc::clone(&source));
        View {
            source,
            collector,
            feed: Feed::new(),
            page: Arc::default(),
            scrape: Arc::default(),
            publisher: Mutex::default(),
        }
    }

    /// Returns the source.
    pub fn source(&self) -> Arc<dyn SnapshotSource> {
        Arc::clone(&self.source)
    }

    /// Takes a snapshot for the pages that are open, and returns what has changed in them.
    pub(super) fn figures(&self) -> String {
        self.remembering(page::figures).into_string()
    }

    /// Takes a snapshot for the page. `is_one_of_many` says whether there is a list that it belongs to.
    pub(super) fn landing(&self, is_one_of_many: bool) -> String {
        self.feed.show(&self.source.snapshot(), |now, earlier| page::landing(now, earlier, is_one_of_many))
    }

    /// Returns what `show` makes of a new snapshot and of an earlier one, if there is one. The new one is remembered.
    pub fn remembering<T>(&self, show: impl FnOnce(&Snapshot, Option<&Snapshot>) -> T) -> T {
        let snapshot = self.source.snapshot();
        let shown = self.feed.show(&snapshot, show);
        self.feed.remember(snapshot);
        shown
    }

    /// Starts the task that keeps open pages up to date, unless it runs. Returns false if there are no more events.
    pub(super) fn publish(self: &Arc<View>, start: impl FnOnce(Arc<View>) -> JoinHandle<()>) -> bool {
        let mut publisher = self.publisher.lock();
        if matches!(*publisher, Publisher::None) {
            *publisher = Publisher::Running(start(Arc::clone(self)));
        }
        !matches!(*publisher, Publisher::Ended)
    }

    /// Ends the events of all open pages. Call it when the server or the port ends.
    pub fn end(&self) {
        if let Publisher::Running(publisher) = std::mem::replace(&mut *self.publisher.lock(), Publisher::Ended) {
            publisher.abort();
        }
        self.feed.end();
    }
}

/// The metrics of the only server.
pub(super) struct OneServer(pub Arc<View>);

impl Collector for OneServer {
    fn desc(&self) -> Vec<&Desc> {
        self.0.collector.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.0.collector.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The server ends between the moment in which its page is looked up and that in which its events are asked for.
    #[test]
    fn after_the_end_nothing_is_published() {
        let view = Arc::new(View::new(Arc::new(Snapshot::default)));
        view.end();
        assert!(!view.publish(|_| unreachable!("a task that nobody would end")));
    }
}
