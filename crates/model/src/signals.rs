//! What is read from the kernel to see whether the node runs short of something.
//!
//! Owns the readings as they come, with no judgement in them: no threshold, no percentage.

/// Memory of a cgroup and of everything below.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryReading {
    /// What it may use; `None` where nothing limits it. For the root it is what the machine has.
    pub limit_bytes: Option<u64>,
    pub usage_bytes: u64,
    /// Inactive file pages: the kernel reclaims them first.
    pub inactive_file_bytes: u64,
}

impl MemoryReading {
    /// What cannot be given up easily.
    #[must_use]
    pub fn working_set_bytes(&self) -> u64 {
        self.usage_bytes.saturating_sub(self.inactive_file_bytes)
    }
}

/// One mounted filesystem.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilesystemReading {
    /// The kernel's number of the device: two paths with the same one share everything below.
    pub device: u64,
    pub capacity_bytes: u64,
    /// What is left for others than root.
    pub available_bytes: u64,
    /// Zero on filesystems that do not count inodes.
    pub inodes: u64,
    pub inodes_free: u64,
}

/// Processes and threads of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessReading {
    pub most: u64,
    pub running: u64,
}
