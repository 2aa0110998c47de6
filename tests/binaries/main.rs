//! Tests on the binaries of real servers, of both architectures. The servers do not run. The lab fetches them, as root.
//! See `tests/README.md`.

mod counts;
mod damaged;
mod locks;
mod naming;
mod owners;
mod servers;
mod settings;
mod sites;
mod symbols;
