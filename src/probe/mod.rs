//! One module per thing measured: plan what to attach, attach it, and collect what it counted.

pub mod cpu;
pub mod hardware;
pub mod latch;
mod maps;
pub mod watch;
