//! Server binaries: names to addresses and back, function bounds, bytes.

mod image;

pub use image::{Arch, Image, ImageError, Symbol, SymbolSource};
