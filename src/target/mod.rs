//! A server process.

mod maps;
mod memory;

pub use maps::load_bias;
pub use memory::Memory;
