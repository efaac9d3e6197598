//! The signals that thresholds are set on.
//!
//! Owns their names, the condition that each belongs to and the resource that is short. Memory comes first, as it does for
//! upstream when something has to be reclaimed.

use std::fmt;

use rubelet_model::quantity::Format;

/// What a threshold is set on, in the order in which shortages are handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Signal {
    MemoryAvailable,
    AllocatableMemoryAvailable,
    NodeFsAvailable,
    NodeFsInodesFree,
    ImageFsAvailable,
    ImageFsInodesFree,
    ContainerFsAvailable,
    ContainerFsInodesFree,
    PidAvailable,
}

/// The node condition that a crossed threshold sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Condition {
    Memory,
    Disk,
    Pid,
}

impl Signal {
    pub const ALL: [Self; 9] = [
        Self::MemoryAvailable,
        Self::AllocatableMemoryAvailable,
        Self::NodeFsAvailable,
        Self::NodeFsInodesFree,
        Self::ImageFsAvailable,
        Self::ImageFsInodesFree,
        Self::ContainerFsAvailable,
        Self::ContainerFsInodesFree,
        Self::PidAvailable,
    ];

    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|signal| signal.name() == name)
    }

    /// As settings and metrics have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::MemoryAvailable => "memory.available",
            Self::AllocatableMemoryAvailable => "allocatableMemory.available",
            Self::NodeFsAvailable => "nodefs.available",
            Self::NodeFsInodesFree => "nodefs.inodesFree",
            Self::ImageFsAvailable => "imagefs.available",
            Self::ImageFsInodesFree => "imagefs.inodesFree",
            Self::ContainerFsAvailable => "containerfs.available",
            Self::ContainerFsInodesFree => "containerfs.inodesFree",
            Self::PidAvailable => "pid.available",
        }
    }

    pub fn condition(self) -> Condition {
        match self {
            Self::MemoryAvailable | Self::AllocatableMemoryAvailable => Condition::Memory,
            Self::NodeFsAvailable
            | Self::NodeFsInodesFree
            | Self::ImageFsAvailable
            | Self::ImageFsInodesFree
            | Self::ContainerFsAvailable
            | Self::ContainerFsInodesFree => Condition::Disk,
            Self::PidAvailable => Condition::Pid,
        }
    }

    /// Whether it is about the filesystem that containers write to, whose thresholds follow from others.
    pub fn is_of_containers(self) -> bool {
        matches!(self, Self::ContainerFsAvailable | Self::ContainerFsInodesFree)
    }

    /// The resource that is short, with the name of upstream's events.
    pub fn resource(self) -> &'static str {
        match self {
            Self::MemoryAvailable | Self::AllocatableMemoryAvailable => "memory",
            Self::NodeFsAvailable | Self::ImageFsAvailable | Self::ContainerFsAvailable => {
                "ephemeral-storage"
            }
            Self::NodeFsInodesFree | Self::ImageFsInodesFree | Self::ContainerFsInodesFree => "inodes",
            Self::PidAvailable => "pids",
        }
    }

    /// How amounts of it are written.
    pub fn format(self) -> Format {
        match self.resource() {
            "memory" | "ephemeral-storage" => Format::BinarySi,
            _ => Format::DecimalSi,
        }
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}
