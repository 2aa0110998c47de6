//! Server binaries: names to addresses and back, function bounds, bytes. Where a binary has no names, from elsewhere.

mod debug_file;
mod debuginfod;
mod debuglink;
mod frame;
mod image;
mod places;
pub mod portable;
mod sources;
mod table;

pub use debug_file::DebugFile;
pub use debuginfod::Debuginfod;
pub use frame::{frame, Frame};
pub use image::{Arch, Identity, Image, ImageError, SymbolSource};
pub use places::{is_deleted, Places};
pub use sources::{complete, read_any, Settings, Trial};
pub use table::{plain_name, Symbol, Table};
