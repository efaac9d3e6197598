//! The crate's integration tests.
#![allow(clippy::expect_used, reason = "a test that cannot read its own input fails")]

mod admission;
mod allocatable;
mod cgroups;
mod containers;
mod eviction;
mod ledger;
mod node_cgroups;
mod node_view;
mod pods;
mod pressure;
mod totals;
