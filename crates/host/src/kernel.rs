//! What the kernel offers to pods: page sizes, swap limits, sensors to hide, the address that others reach the node by.
//!
//! Read once at start-up. What cannot be read counts as not there.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::path::Path;

use crate::cgroup::CgroupVersion;

/// Facts of the running kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelFacts {
    pub page_size_bytes: u64,
    /// In bytes, ascending.
    pub huge_page_sizes_bytes: Vec<u64>,
    /// Whether swap can be limited per cgroup.
    pub has_swap_controller: bool,
    /// Directories that show when a processor was throttled; containers may not see them.
    pub thermal_throttle_paths: Vec<String>,
    pub is_selinux_enabled: bool,
}

impl KernelFacts {
    #[must_use]
    pub fn read(cgroup: CgroupVersion) -> Self {
        Self::read_below(Path::new("/"), cgroup)
    }

    fn read_below(root: &Path, cgroup: CgroupVersion) -> Self {
        let mut sizes: Vec<u64> = names_in(&root.join("sys/kernel/mm/hugepages"))
            .iter()
            .filter_map(|name| huge_page_size_bytes(name))
            .collect();
        sizes.sort_unstable();
        let cpus = root.join("sys/devices/system/cpu");
        let mut throttles: Vec<String> = names_in(&cpus)
            .iter()
            .filter(|name| is_numbered_cpu(name))
            .map(|name| cpus.join(name).join("thermal_throttle"))
            .filter(|path| path.is_dir())
            .map(|path| path.to_string_lossy().into_owned())
            .collect();
        throttles.sort();
        Self {
            page_size_bytes: rustix::param::page_size() as u64,
            huge_page_sizes_bytes: sizes,
            has_swap_controller: has_swap_controller(root, cgroup),
            thermal_throttle_paths: throttles,
            is_selinux_enabled: root.join("sys/fs/selinux/enforce").exists(),
        }
    }
}

fn names_in(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}

/// `hugepages-2048kB`
fn huge_page_size_bytes(name: &str) -> Option<u64> {
    let kibibytes: u64 = name
        .strip_prefix("hugepages-")?
        .strip_suffix("kB")?
        .parse()
        .ok()?;
    kibibytes.checked_mul(1024)
}

fn is_numbered_cpu(name: &str) -> bool {
    name.strip_prefix("cpu")
        .is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// On version 2 the root cgroup has no limits, so the process's own cgroup is checked.
fn has_swap_controller(root: &Path, cgroup: CgroupVersion) -> bool {
    match cgroup {
        CgroupVersion::V1 => root
            .join("sys/fs/cgroup/memory/memory.memsw.limit_in_bytes")
            .exists(),
        CgroupVersion::V2 => {
            let own = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
            let own = own
                .lines()
                .find_map(|line| line.strip_prefix("0::/"))
                .unwrap_or_default();
            let groups = root.join("sys/fs/cgroup");
            groups.join(own).join("memory.swap.max").exists()
                || names_in(&groups)
                    .iter()
                    .any(|name| groups.join(name).join("memory.swap.max").exists())
        }
    }
}

/// The addresses that packets to elsewhere leave the machine with, the IPv4 one first. Nothing is sent: the kernel only looks
/// up its routes.
#[must_use]
pub fn default_route_addresses() -> Vec<IpAddr> {
    // Addresses that are reserved for documentation: any that is not local does.
    let elsewhere: [(IpAddr, IpAddr); 2] = [
        (Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::new(192, 0, 2, 1).into()),
        (
            Ipv6Addr::UNSPECIFIED.into(),
            Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
        ),
    ];
    elsewhere
        .into_iter()
        .filter_map(|(any, there)| {
            let socket = UdpSocket::bind((any, 0)).ok()?;
            socket.connect((there, 9)).ok()?;
            Some(socket.local_addr().ok()?.ip())
        })
        .filter(|address| !address.is_unspecified() && !address.is_loopback())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_come_from_the_kernels_files() {
        let root = tempfile::tempdir().unwrap();
        let make = |path: &str| fs::create_dir_all(root.path().join(path)).unwrap();
        make("sys/kernel/mm/hugepages/hugepages-1048576kB");
        make("sys/kernel/mm/hugepages/hugepages-2048kB");
        make("sys/devices/system/cpu/cpu1/thermal_throttle");
        make("sys/devices/system/cpu/cpu0");
        make("sys/devices/system/cpu/cpufreq/thermal_throttle");
        make("sys/fs/cgroup/memory");
        let facts = KernelFacts::read_below(root.path(), CgroupVersion::V1);
        assert_eq!(facts.huge_page_sizes_bytes, [2 << 20, 1 << 30]);
        assert_eq!(facts.thermal_throttle_paths.len(), 1);
        assert!(facts.thermal_throttle_paths[0].ends_with("sys/devices/system/cpu/cpu1/thermal_throttle"));
        assert!(!facts.has_swap_controller);
        fs::write(
            root.path()
                .join("sys/fs/cgroup/memory/memory.memsw.limit_in_bytes"),
            "",
        )
        .unwrap();
        assert!(KernelFacts::read_below(root.path(), CgroupVersion::V1).has_swap_controller);
    }

    #[test]
    fn swap_is_found_in_the_own_group_or_below_the_root() {
        let root = tempfile::tempdir().unwrap();
        let group = root.path().join("sys/fs/cgroup/system.slice");
        fs::create_dir_all(&group).unwrap();
        fs::create_dir_all(root.path().join("proc/self")).unwrap();
        fs::write(root.path().join("proc/self/cgroup"), "0::/\n").unwrap();
        assert!(!KernelFacts::read_below(root.path(), CgroupVersion::V2).has_swap_controller);
        fs::write(group.join("memory.swap.max"), "max").unwrap();
        assert!(KernelFacts::read_below(root.path(), CgroupVersion::V2).has_swap_controller);
    }
}
