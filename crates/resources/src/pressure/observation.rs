//! Computes from the readings the amounts that thresholds are compared with.
//!
//! Owns upstream's arithmetic: memory is what the machine has without the working set and without huge pages; a filesystem is
//! what is left for others than root.

use std::collections::BTreeMap;

use rubelet_model::signals::{FilesystemReading, MemoryReading, ProcessReading};

use super::signal::Signal;
use super::threshold::DiskLayout;

/// What was read in one round. What could not be read is missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readings {
    pub memory: Option<MemoryReading>,
    /// Of the cgroup of all pods.
    pub pods_memory: Option<MemoryReading>,
    /// Where the kubelet's root directory is.
    pub node_filesystem: Option<FilesystemReading>,
    pub image_filesystem: Option<FilesystemReading>,
    /// Where containers write, if the runtime names it; else it is where the images are.
    pub container_filesystem: Option<FilesystemReading>,
    pub processes: Option<ProcessReading>,
}

/// How much there is of something, and how much of it is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observation {
    pub available: i64,
    pub capacity: i64,
}

impl Readings {
    /// Where images and containers are, when all of it was read.
    pub fn layout(&self) -> Option<DiskLayout> {
        let (node, images) = (self.node_filesystem?.device, self.image_filesystem?.device);
        let containers = self.container_filesystem.map_or(images, |one| one.device);
        Some(if images != containers {
            DiskLayout::ContainersOnNodeFs
        } else if images == node {
            DiskLayout::OneFilesystem
        } else {
            DiskLayout::ContainersOnImageFs
        })
    }

    pub fn observations(&self, huge_page_bytes: u64) -> BTreeMap<Signal, Observation> {
        let memory = self
            .memory
            .and_then(|reading| of_memory(reading, huge_page_bytes));
        let pods = self.pods_memory.and_then(|reading| of_memory(reading, 0));
        let containers = self.container_filesystem.or(self.image_filesystem);
        let filesystems = [
            (
                self.node_filesystem,
                Signal::NodeFsAvailable,
                Signal::NodeFsInodesFree,
            ),
            (
                self.image_filesystem,
                Signal::ImageFsAvailable,
                Signal::ImageFsInodesFree,
            ),
            (
                containers,
                Signal::ContainerFsAvailable,
                Signal::ContainerFsInodesFree,
            ),
        ];
        let mut found = BTreeMap::new();
        found.extend(memory.map(|one| (Signal::MemoryAvailable, one)));
        found.extend(pods.map(|one| (Signal::AllocatableMemoryAvailable, one)));
        for (reading, bytes, inodes) in filesystems {
            let Some(reading) = reading else { continue };
            let amounts = Observation {
                available: signed(reading.available_bytes),
                capacity: signed(reading.capacity_bytes),
            };
            found.insert(bytes, amounts);
            // A filesystem that makes inodes as it needs them never runs out of them.
            if reading.inodes > 0 {
                let amounts = Observation {
                    available: signed(reading.inodes_free),
                    capacity: signed(reading.inodes),
                };
                found.insert(inodes, amounts);
            }
        }
        if let Some(ProcessReading { most, running }) = self.processes {
            let amounts = Observation {
                available: signed(most) - signed(running),
                capacity: signed(most),
            };
            found.insert(Signal::PidAvailable, amounts);
        }
        found
    }
}

/// Nothing for memory without a limit: there is no saying what is left of it.
fn of_memory(reading: MemoryReading, huge_page_bytes: u64) -> Option<Observation> {
    let limit = reading.limit_bytes?;
    let working_set = reading.working_set_bytes();
    // The kernel counts no huge page into any cgroup's usage.
    let available = limit.saturating_sub(working_set).saturating_sub(huge_page_bytes);
    Some(Observation {
        available: signed(available),
        capacity: signed(available.saturating_add(working_set)),
    })
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
