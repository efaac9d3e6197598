//! The crate's integration tests: the program as its users see it, from outside.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests look at the real program"
)]

mod commands;
mod grpc;
mod http;
mod server;
