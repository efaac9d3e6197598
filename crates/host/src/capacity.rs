//! What the machine has of things that admission counts, beyond processors and memory.
//!
//! Read once at start-up. What cannot be read counts as not there.

use std::fs;
use std::path::Path;

/// Sizes in bytes, and numbers, of the huge pages that were set aside, by size.
#[must_use]
pub fn huge_pages() -> Vec<(u64, u64)> {
    huge_pages_below(Path::new("/"))
}

fn huge_pages_below(root: &Path) -> Vec<(u64, u64)> {
    let entries = fs::read_dir(root.join("sys/kernel/mm/hugepages"))
        .into_iter()
        .flatten()
        .flatten();
    let mut pages: Vec<(u64, u64)> = entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let kibibytes: u64 = name
                .strip_prefix("hugepages-")?
                .strip_suffix("kB")?
                .parse()
                .ok()?;
            let count = fs::read_to_string(entry.path().join("nr_hugepages")).ok()?;
            Some((kibibytes.checked_mul(1024)?, count.trim().parse().ok()?))
        })
        .collect();
    pages.sort_unstable();
    pages
}

/// The size of the filesystem that a path is on.
#[must_use]
pub fn filesystem_bytes(path: &Path) -> Option<u64> {
    let facts = rustix::fs::statvfs(path).ok()?;
    facts.f_blocks.checked_mul(facts.f_frsize)
}

/// Why AppArmor profiles cannot be enforced here, with upstream's texts.
#[must_use]
pub fn app_armor_problem() -> Option<&'static str> {
    app_armor_problem_below(Path::new("/"))
}

fn app_armor_problem_below(root: &Path) -> Option<&'static str> {
    let enabled = fs::read(root.join("sys/module/apparmor/parameters/enabled")).unwrap_or_default();
    let is_enabled =
        root.join("sys/kernel/security/apparmor").exists() && enabled.len() > 1 && enabled[0] == b'Y';
    (!is_enabled).then_some("AppArmor is not enabled on the host")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_come_from_the_kernels_files() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        assert_eq!(huge_pages_below(root.path()), []);
        assert!(app_armor_problem_below(root.path()).is_some());
        write("sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "1\n");
        write("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "10\n");
        write("sys/kernel/mm/hugepages/hugepages-64kB/nr_hugepages", "lots");
        assert_eq!(huge_pages_below(root.path()), [(2 << 20, 10), (1 << 30, 1)]);
        write("sys/module/apparmor/parameters/enabled", "Y\n");
        assert!(app_armor_problem_below(root.path()).is_some());
        write("sys/kernel/security/apparmor/profiles", "");
        assert_eq!(app_armor_problem_below(root.path()), None);
        write("sys/module/apparmor/parameters/enabled", "N\n");
        assert!(app_armor_problem_below(root.path()).is_some());
        let bytes = filesystem_bytes(root.path()).unwrap();
        assert!(bytes > 1 << 20, "{bytes}");
        assert_eq!(filesystem_bytes(Path::new("/no/such/path")), None);
    }
}
