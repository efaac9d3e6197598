//! The simulation's own tests: seeds hold, runs repeat, and deliberate mistakes are found.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test fails by panicking, and these use threads"
)]

mod bugs;
mod checks;
mod files;
mod replay;
mod runtime;
mod seeds;
mod work;
