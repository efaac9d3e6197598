//! Deterministic simulation of the agent: the real code on a seeded executor, a virtual clock, and simulated edges.
//!
//! Owns the simulated world (runtime, files, clocks), the scenarios that a seed makes, and the checks of what must always
//! hold. It must not use real time, real files or real chance: a seed replays exactly.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a support crate: its program reads files and its tests use threads"
)]

pub mod api;
pub mod cgroups;
pub mod checks;
pub mod dialer;
pub mod dice;
pub mod edges;
pub mod executor;
pub mod files;
pub mod history;
mod log;
pub mod node;
pub mod replay;
pub mod runtime;
pub mod scenario;
pub mod shutdowns;
pub mod trace;
pub mod volumes;
mod world;

pub use rubelet_lifecycle::deliberate::Bug;
pub use world::{Outcome, Run, load, run_seed};
