//! Shows snapshots on a terminal: the live table and the full-screen view.

pub(crate) mod history;
pub(crate) mod lines;
mod live;
pub mod screen;
pub mod servers;
pub mod table;
pub(crate) mod top;
pub mod watch;

pub use live::LiveView;
