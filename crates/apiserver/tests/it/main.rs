//! The client against a server of its own: HTTP/2 over TLS in this process, whose every answer a test gives by hand.

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "tests are an edge: they own a server, its files and the patience of their waits, and fail by panicking"
)]

mod calls;
mod credentials;
mod scene;
mod tls;
mod watches;
