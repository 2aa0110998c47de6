//! Tests on real servers under real load. They need root and run one at a time, because two loaded servers would starve
//! each other on a small machine. See `tests/README.md`.

mod bad_input;
mod budget;
mod chaos;
mod cost;
mod cpu;
mod events;
mod export;
mod guest;
mod handoffs;
mod hardware;
mod lab;
mod landing;
mod leftovers;
mod library;
mod life;
mod naming;
mod no_probes;
mod nodes;
mod pages;
mod privileges;
mod programs;
mod recordings;
mod scenario;
mod servers;
mod size;
mod sleeps;
mod symbols;
mod threads;
mod top;
mod truth;
mod truth_suite;
mod waits;
mod wakeups;
mod watch;
mod well_known;
