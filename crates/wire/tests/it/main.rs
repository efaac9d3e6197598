//! The crate's integration tests.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    reason = "tests read files and fail by panicking"
)]

mod csi;
mod facts;
mod golden;
mod redaction;
