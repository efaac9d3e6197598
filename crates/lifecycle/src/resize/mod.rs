//! A change of a pod's resources while it runs.
//!
//! Owns every decision about it, each as a function of values:
//!
//! ```text
//! spec changes ─► requested   which numbers change, for the metrics
//!              ─► queue       the order in which waiting resizes are judged
//!              ─► judge       what can never be done here; the rest is admission's
//!              ─► conditions  what the status shows, and which change of it is an event (`message`)
//! allocated    ─► needs       which containers differ from what they have: restart, update
//!              ─► steps       the order of writes, so that no container has more than its pod
//! ```
//!
//! It must not write anything: the records are `allocation`, the work is the agent's.

pub mod conditions;
pub mod judge;
pub mod message;
pub mod needs;
pub mod queue;
pub mod requested;
pub mod steps;

pub use conditions::{Deferred, ResizeConditions};
pub use judge::{Infeasible, ResizeTerms, infeasible};
pub use needs::{ContainerChange, ContainerUpdate, PodResize, ResizeNeeds, is_in_progress, resize_needs};
pub use queue::{PendingResize, Trigger, in_order};
