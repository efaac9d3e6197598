//! The crate's integration tests.

mod static_pods;
