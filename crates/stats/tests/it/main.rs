//! The statistics of a node with a simulated runtime and simulated cgroups, on a clock that only the test moves.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests share state with what they test"
)]

mod containers;
mod node;
mod pages;
mod runtime_counts;
mod summaries;
mod usage;
