//! Disk space: of a filesystem, and of files.

/// A mounted filesystem.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilesystemFigures {
    pub capacity_bytes: u64,
    /// What no file has, with what is kept for root.
    pub free_bytes: u64,
    /// What is left for others than root.
    pub available_bytes: u64,
    /// Zero on filesystems that do not count inodes.
    pub inodes: u64,
    pub inodes_free: u64,
}

impl FilesystemFigures {
    #[must_use]
    pub fn used(&self) -> DiskUsage {
        DiskUsage {
            bytes: self.capacity_bytes.saturating_sub(self.free_bytes),
            inodes: self.inodes.saturating_sub(self.inodes_free),
        }
    }
}

/// What files take: blocks that are allocated, not lengths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskUsage {
    pub bytes: u64,
    pub inodes: u64,
}

impl DiskUsage {
    /// Of one file, by its blocks of 512 bytes.
    #[must_use]
    pub fn of_blocks(blocks: u64) -> Self {
        Self {
            bytes: blocks.saturating_mul(512),
            inodes: 1,
        }
    }

    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            inodes: self.inodes.saturating_add(other.inodes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn used_is_what_is_not_free() {
        let figures = FilesystemFigures {
            capacity_bytes: 1000,
            free_bytes: 400,
            available_bytes: 300,
            inodes: 10,
            inodes_free: 7,
        };
        assert_eq!(
            figures.used(),
            DiskUsage {
                bytes: 600,
                inodes: 3
            }
        );
    }

    #[test]
    fn sums_end_at_the_largest_number() {
        let most = DiskUsage::of_blocks(u64::MAX);
        assert_eq!(
            most.plus(DiskUsage::of_blocks(2)),
            DiskUsage {
                bytes: u64::MAX,
                inodes: 2
            }
        );
    }
}
