//! Stand-ins for what is behind a port or a socket, for the tests of all crates.
//!
//! Owns the fakes that more than one crate's tests need: clocks (`clock`), tasks and random numbers (`tasks`), recorders of events
//! (`events`), what cgroups use (`usage`), disks (`disk`), a container runtime that misbehaves on request (`cri`). A fake that one crate's tests need, and that has no twin
//! elsewhere, stays beside those tests. A fake must not hold the logic that a test checks: it
//! records what it is called with and answers what the test says. Where a real part can run, tests use the test bed instead.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "fakes serve sockets and share state with tests"
)]

pub mod clock;
pub mod cri;
pub mod disk;
pub mod events;
pub mod tasks;
pub mod usage;

pub use clock::{ManualClock, TokioClock};
pub use disk::FakeDisk;
pub use events::{NodeEvents, PodEvents};
pub use tasks::{SameNumber, Tasks};
pub use usage::FakeUsage;
