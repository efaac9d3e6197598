//! QoS classes, effective requests and limits, the cgroup values of pods and containers, admission, node pressure, and eviction.
//!
//! Owns the arithmetic from a pod's resources to the values for the kernel and the runtime. `PodDemand::read` parses the
//! pod's quantities once; everything after that cannot fail. It must not look at the machine: facts about
//! the node come in as `NodeFacts`, its settings as `Rules`.
//!
//! Left out on purpose: shares of dynamic resource claims (gate `DRANodeAllocatableResources`, off) and resources in the
//! middle of a resize, which read the pod's status.

pub mod admission;
pub mod allocatable;
pub mod amounts;
pub mod cgroup_files;
pub mod cgroup_name;
pub mod container;
pub mod cpu;
pub mod demand;
pub mod eviction;
pub mod huge_pages;
pub mod memory_qos;
pub mod node_cgroup;
pub mod oom;
pub mod pod_cgroup;
pub mod pressure;
pub mod qos;
pub mod rules;
pub mod slice;
pub mod swap;
pub mod system_cgroups;
pub mod tiers;

pub use amounts::Amounts;
pub use demand::{BadQuantity, ContainerDemand, PodDemand};
pub use pod_cgroup::{PodCgroup, pod_cgroup};
pub use qos::qos_class;
pub use rubelet_model::pod::QosClass;
pub use rules::{CgroupVersion, MemoryReservation, NodeFacts, Rules};
