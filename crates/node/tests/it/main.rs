//! The helper chains of the packet filter: with a filter that is only remembered, and with the kernel's own.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "tests are an edge: they run programs, spawn tasks, and fail by panicking"
)]

mod kept;
mod real;
mod short_clock;
