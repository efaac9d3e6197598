//! The machine as rubelet sees it: cgroup version, processors and memory, the lock file, the service manager.
//!
//! An adapter: it reads and writes the kernel's files and sockets and decides nothing.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "an adapter is where files are read"
)]

pub mod cgroup;
pub mod lock;
pub mod machine;
pub mod service_manager;
