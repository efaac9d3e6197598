//! Rotation of real files, with a runtime that a test plays.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests use real files and tasks"
)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod crashes;
mod rotations;
mod scene;
