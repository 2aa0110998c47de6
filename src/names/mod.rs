//! How an identity measured in the kernel becomes the name of a latch.

pub mod created;
pub mod latch_ids;
pub mod psi;
pub mod references;
