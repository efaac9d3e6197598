//! The dialer against servers that behave, and servers that do not.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "tests of the network's edge run servers of their own"
)]

mod grpc;
mod http;
mod lookups;
mod servers;
mod tcp;
mod tls;
