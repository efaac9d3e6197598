//! The crate's integration tests: the client against a runtime that misbehaves on request.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "tests are an edge: they use the clock, spawn tasks, and fail by panicking"
)]

mod calls;
mod containerd;
mod deadlines;
mod events;
mod faults;
mod lists;
mod log;
mod metrics;
mod pull_progress;
mod real_runtime;
mod reconnect;
mod redaction;
mod scene;
mod spans;
mod versions;
