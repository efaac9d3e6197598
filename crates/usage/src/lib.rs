//! What cgroups and the node use of processors, memory, network, processes and disks.
//!
//! Owns the figures, how they are read from the kernel's texts, and the arithmetic that upstream does with them (working set,
//! rates, what is left of a limit). Everything here is a pure value: bytes of a file come in as an argument. It must not open a
//! file, read a clock, or know which pod a cgroup belongs to.

pub mod cpu;
pub mod detail;
pub mod devices;
pub mod disk;
pub mod figures;
pub mod io;
pub mod machine;
pub mod memory;
pub mod network;
pub mod oom_kills;
pub mod pressure;
pub mod summary;
mod text;

pub use cpu::CpuRate;
pub use detail::{CpuDetail, CpuShare, Detail, FileLimit, MemoryDetail, Tasks};
pub use devices::{Devices, DiskCounters, MountedFilesystem};
pub use disk::{DiskUsage, FilesystemFigures};
pub use figures::{Classes, Figures, boot_time, first_process, process_count};
pub use io::{DeviceNumber, IoFigures, IoTable};
pub use machine::{Dimms, MachineFigures, Processors};
pub use memory::{CgroupVersion, MachineMemory, MemoryFigures, MemoryLimits};
pub use network::{Interface, NetworkFigures};
pub use oom_kills::{OomKill, OomRecords};
pub use pressure::{PressureFigures, PressureKind, Stalls};
pub use text::number;
