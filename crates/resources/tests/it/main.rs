//! The crate's integration tests.
#![allow(clippy::expect_used, reason = "a test that cannot read its own input fails")]

mod cgroups;
mod containers;
mod pods;
mod totals;
