//! The server on real sockets, with pods that a test makes up.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests talk to real sockets and files"
)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod access;
mod answers;
mod authentication;
mod certificates;
mod client;
mod fixture;
mod limits;
mod logs;
mod many_sessions;
mod metrics;
mod node_logs;
mod profiles;
mod real_sessions;
mod reviewer;
mod rotated_logs;
mod runtime;
mod sessions;
mod state_pages;
mod statistics;
mod vanishing;
mod why;
