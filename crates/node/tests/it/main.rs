//! The node: its object and its lease at a simulated API server; the helper chains of the packet filter, with a filter that is
//! only remembered and with the kernel's own.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "tests are an edge: they run programs, spawn tasks, and fail by panicking"
)]

mod bed;
mod host_ips;
mod kept;
mod lease;
mod real;
mod registration;
mod restart;
mod short_clock;
mod status_writes;
