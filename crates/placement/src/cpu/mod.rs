//! The static CPU policy: containers of Guaranteed pods that request whole CPUs get them for themselves.
//!
//! Owns which CPUs are shared and which belong to a container, and the choice. The shared set shrinks with each exclusive
//! set; reserved CPUs are never exclusive. It must not know memory or devices.

mod distribute;
mod options;
mod pod;
mod state;
mod static_policy;
mod take;

pub use options::{BadCpuOptions, CpuOptions, OptionGates};
pub use state::{ContainerCpus, CpuState};
pub use static_policy::{BadStaticCpus, Given, StaticCpus};
pub use take::{TooFewCpus, take};
