//! The image actor against an image service in memory, on a clock that only tests move.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "the lints' exception for tests does not reach functions that tests call"
)]

mod ensure;
mod fakes;
mod queue;
