//! The crate's integration tests.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "tests fail by panicking")]

mod goldens;
mod static_pods;
