//! The machine as rubelet sees it: clocks, files, tasks, randomness, cgroup version, processors and memory, the lock file, the
//! service manager.
//!
//! An adapter: it reads and writes the kernel's files and sockets and decides nothing.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "an adapter is where files are read"
)]

pub mod blocking;
pub mod capacity;
pub mod cgroup;
pub mod cgroups;
pub mod clock;
pub mod disk;
mod file_calls;
mod file_watch;
pub mod files;
pub mod iptables;
pub mod kernel;
pub mod kernel_settings;
mod lease;
pub mod lock;
pub mod log_files;
mod log_growth;
pub mod login_manager;
pub mod machine;
pub mod memory_alarm;
pub mod memory_kills;
pub mod node_facts;
pub mod node_logs;
pub mod oom_log;
pub mod open_files;
pub mod processes;
mod races;
pub mod randomness;
pub mod service_manager;
pub mod signals;
pub mod spawner;
pub mod subordinate_ids;
mod tree_removal;
pub mod usage;
pub mod volumes;

pub use clock::HostClock;
pub use disk::HostDisk;
pub use files::HostFiles;
pub use log_files::HostLogFiles;
pub use login_manager::LoginManager;
pub use memory_alarm::HostMemoryAlarm;
pub use memory_kills::HostMemoryKills;
pub use node_logs::HostNodeLogs;
pub use oom_log::HostOomLog;
pub use randomness::HostRandomness;
pub use signals::HostSignals;
pub use spawner::TokioSpawner;
pub use usage::HostUsage;
pub use volumes::HostVolumes;
