//! Statistics of the node, its pods and containers: processors, memory, swap, stalls, network, filesystems.
//!
//! Owns the pages that collectors read and what they are made of. Nothing runs between two questions: a question lists the
//! pods at the runtime, reads their cgroups ([`rubelet_ports::UsageReader`]) and renders a page; all who ask at the same time share
//! one answer. It must not know files, cgroup versions or HTTP, and changes nothing on the node.
//!
//! ```text
//! question ─► single flight ─► sampler: lists, cgroups, the runtime's figures ─► summary ─► page
//! ```

mod containers;
pub mod exposition;
mod local_storage;
mod metrics;
mod places;
mod pod_usage;
mod pods;
mod resource_page;
mod runtime_figures;
mod runtime_pods;
mod sampler;
mod single_flight;
mod statistics;
mod storage;
mod summary;
mod volumes;
mod walks;

pub use containers::MachineNames;
pub use metrics::StatisticsMetrics;
pub use places::CgroupPlaces;
pub use sampler::{PodSource, SystemCgroup};
pub use statistics::{Statistics, StatisticsPorts, StatisticsSettings};
pub use storage::StoragePlaces;
