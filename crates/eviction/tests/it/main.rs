//! Pressure and evictions on a paused clock, with a node whose memory, disks and pods the tests set.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "tests are an edge: they spawn tasks, share state, and fail by panicking"
)]

mod evictions;
mod generated;
mod limits;
mod node;
mod pressure;
mod system_oom;
