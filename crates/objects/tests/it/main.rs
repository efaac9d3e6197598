//! Objects of pods between simulated edges, with a clock that can be moved.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "the tests' edges stand on tokio's paused clock"
)]

mod adopted_tokens;
mod api;
mod bed;
mod certificates;
mod convergence;
mod followed;
mod references;
mod sets;
mod strategies;
mod tokens;
mod volume_files;
