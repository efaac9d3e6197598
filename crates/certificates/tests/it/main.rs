//! The node's certificates on virtual time, with a signer and files in memory.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "the tests' edges stand on tokio's paused clock"
)]

mod bed;
mod client;
mod files;
mod serving;
mod signer;
