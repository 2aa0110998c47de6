//! Shows snapshots to people: formats numbers and names, and draws the live table and the full screen.

pub mod advice;
pub mod format;
mod history;
pub mod html;
mod live;
pub mod names;
pub mod screen;
pub mod table;
pub mod top;
pub mod watch;

pub use live::LiveView;
