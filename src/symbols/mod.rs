//! Server binaries: names to addresses and back, function bounds, bytes.

mod image;
mod table;

pub use image::{Arch, Image, ImageError, SymbolSource};
pub use table::{Symbol, Table};
