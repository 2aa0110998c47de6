//! Shows snapshots on a terminal: the live table and the full-screen view.

mod history;
pub mod lines;
mod live;
pub mod screen;
pub mod table;
pub mod top;
pub mod watch;

pub use live::LiveView;
