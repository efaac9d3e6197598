//! `/metrics/cadvisor`: every cgroup of the node in detail, the machine, its filesystems and disks.
//!
//! Owns the look at all of them ([`ContainerLooks`]) and its text ([`Pieces`]), which is made piece by piece while it is sent. It must not
//! know HTTP, and leaves out what cannot be read. With the gate `PodAndContainerStatsFromCRI` the runtime has the figures of containers
//! ([`RuntimeMetrics`]), and only the machine is looked at.
//!
//! ```text
//! question ─► single flight ─► look: lists, cgroups, devices ─► one text for each client, in pieces
//! ```

mod families;
mod labels;
mod look;
mod names;
mod pieces;
mod rows;
mod runtime_page;

pub use look::MachineNames;
pub(crate) use look::{ContainerLooks, Look};
pub(crate) use pieces::Pieces;
pub(crate) use runtime_page::{RuntimeMetrics, RuntimePage};
