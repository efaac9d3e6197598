//! How many processes the machine can have, and which processors run them.
//!
//! Read once at start-up. What cannot be read counts as not there.

use std::fs;
use std::path::Path;

/// The smaller of the kernel's two limits on processes and threads.
#[must_use]
pub fn most() -> Option<u64> {
    most_below(Path::new("/"))
}

pub(crate) fn most_below(root: &Path) -> Option<u64> {
    ["proc/sys/kernel/pid_max", "proc/sys/kernel/threads-max"]
        .iter()
        .filter_map(|path| fs::read_to_string(root.join(path)).ok()?.trim().parse().ok())
        .min()
}

/// The online processors, as the kernel lists them: `0-3`. Empty when the list cannot be read.
#[must_use]
pub fn processors() -> String {
    let list = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    list.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smaller_limit_counts() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(most_below(root.path()), None);
        fs::create_dir_all(root.path().join("proc/sys/kernel")).unwrap();
        fs::write(root.path().join("proc/sys/kernel/pid_max"), "4194304\n").unwrap();
        assert_eq!(most_below(root.path()), Some(4_194_304));
        fs::write(root.path().join("proc/sys/kernel/threads-max"), "7000\n").unwrap();
        assert_eq!(most_below(root.path()), Some(7000));
    }
}
