//! Which version of the control groups the kernel offers.

use std::io;
use std::path::Path;

use rustix::fs::statfs;

/// `CGROUP2_SUPER_MAGIC` of the kernel.
const CGROUP2_MAGIC: u64 = 0x6367_7270;

/// The version of the cgroup hierarchy that containers are put into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupVersion {
    V1,
    V2,
}

impl CgroupVersion {
    /// Looks at what is mounted on `/sys/fs/cgroup`. The hybrid layout counts as version 1, as for every container runtime.
    pub fn of_this_machine() -> io::Result<Self> {
        Self::of_mount(Path::new("/sys/fs/cgroup"))
    }

    fn of_mount(path: &Path) -> io::Result<Self> {
        let magic = statfs(path)?.f_type;
        Ok(if u64::try_from(magic) == Ok(CGROUP2_MAGIC) {
            Self::V2
        } else {
            Self::V1
        })
    }
}

impl std::fmt::Display for CgroupVersion {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            Self::V1 => "v1",
            Self::V2 => "v2",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_directory_is_not_version_2() {
        assert_eq!(
            CgroupVersion::of_mount(Path::new("/")).unwrap(),
            CgroupVersion::V1
        );
    }

    #[test]
    fn a_missing_mount_is_an_error() {
        assert!(CgroupVersion::of_mount(Path::new("/nonexistent")).is_err());
    }
}
