//! Which pod gets which pieces of the machine: exclusive CPUs, memory of NUMA nodes, devices.
//!
//! Owns the facts of the machine in the form that decisions need (`machine`), how the wishes of all kinds of resources become
//! one set of NUMA nodes (`topology`), and the choice of CPUs (`cpu`). Everything is a function of (machine, what is held,
//! pod). It must not look at the machine, read a file, or call a plugin: facts come as `MachineFacts`, what a plugin answered
//! comes as data.

pub mod cpu;
pub mod machine;
mod options;
pub mod refusal;
pub mod request;
pub mod topology;

pub use machine::Machine;
pub use options::{BadOption, Stage};
pub use refusal::Refusal;
pub use request::{ContainerKind, ContainerRequest, PodRequest};
pub use topology::{Hint, NumaMask};
