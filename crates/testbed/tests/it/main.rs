//! The test bed's own tests: each server starts, works, and leaves nothing behind.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests look at the real machine"
)]

mod killed;
mod private_containerd;
mod private_registry;
mod scenario;
mod scopes;
