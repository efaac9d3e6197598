//! The ports of files and signals on the real kernel.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::unwrap_used,
    reason = "tests look at the machine"
)]

mod disk;
mod files;
mod log_growth;
mod login_manager;
mod memory_kills;
mod processes;
mod signals;
mod trees;
mod usage;
mod volumes;
mod watches;
