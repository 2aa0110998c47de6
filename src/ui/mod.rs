//! What people see of a snapshot: numbers and names made short, and the live table.

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
