//! The program as a user meets it: its command line, its errors, its log, its end.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "black-box tests run the real program"
)]

mod admission;
mod bandwidth;
mod busy_log;
mod churn;
mod command_line;
mod demo;
mod lifecycle;
mod log_rotation;
mod metrics;
mod pods;
mod resizes;
mod server;
mod statistics;
mod top;
mod volumes;
mod why;
