//! The crate's integration tests: the actors against an API server in memory, on virtual time.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

mod api;
mod bed;
mod events;
mod mirrors;
mod mirrors_converge;
mod statuses;
mod statuses_failures;
#[path = "../../../lifecycle/tests/it/strategic_merge.rs"]
mod strategic_merge;
