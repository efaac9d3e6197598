//! The image actor: against an image service in memory on a clock that only tests move, and in `real` with containerd, a registry and files.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "the lints' exception for tests does not reach functions that tests call, and real edges are real"
)]

mod credentials;
mod edges;
mod ensure;
mod fakes;
mod garbage;
mod metrics;
mod progress;
mod providers;
mod queue;
mod real;
mod records;
mod small_disk;
