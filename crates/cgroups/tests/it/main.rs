//! The keeper of the tree on simulated cgroups and a virtual clock.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod edge;
mod metrics;
mod node;
mod pods;
mod system;
