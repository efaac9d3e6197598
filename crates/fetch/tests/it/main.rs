//! The fetcher against servers that behave and that do not.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::unwrap_used,
    reason = "tests are an edge: they listen, spawn tasks, and fail by panicking"
)]

mod plain;
mod proxies;
mod server;
mod tls;
