//! The prober with a clock that can be moved, and edges that say what a test wants.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "the tests' edges stand on tokio's paused clock"
)]

mod bed;
mod commands;
mod course_of_time;
mod events;
