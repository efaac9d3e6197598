//! The facts of the machine behind `status.nodeInfo` and `status.capacity`.

use std::fs;
use std::path::Path;

use rustix::system::uname;

/// Facts about the machine, read once. A fact that cannot be read is empty or zero, as in upstream's node status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    pub hostname: String,
    pub kernel_version: String,
    pub os_image: String,
    /// Go's name of it, as `kubernetes.io/arch` has it.
    pub architecture: String,
    pub machine_id: String,
    pub boot_id: String,
    pub processors: usize,
    pub memory_bytes: u64,
    pub swap_bytes: u64,
}

impl Machine {
    /// Reads the facts of this machine.
    pub fn read() -> Self {
        Self::read_below(Path::new("/"))
    }

    fn read_below(root: &Path) -> Self {
        let text = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
        let name = uname();
        let meminfo = text("proc/meminfo");
        Self {
            hostname: name.nodename().to_string_lossy().into_owned(),
            kernel_version: name.release().to_string_lossy().into_owned(),
            os_image: os_image(&text("etc/os-release")),
            architecture: go_architecture(&name.machine().to_string_lossy()),
            machine_id: text("etc/machine-id").trim().to_owned(),
            boot_id: text("proc/sys/kernel/random/boot_id").trim().to_owned(),
            processors: online_processors(&text("sys/devices/system/cpu/online")),
            memory_bytes: meminfo_bytes(&meminfo, "MemTotal"),
            swap_bytes: meminfo_bytes(&meminfo, "SwapTotal"),
        }
    }
}

fn os_image(os_release: &str) -> String {
    let value = os_release
        .lines()
        .find_map(|line| line.strip_prefix("PRETTY_NAME="));
    value.map_or_else(
        || "Linux".to_owned(),
        |value| value.trim_matches(['"', '\'']).to_owned(),
    )
}

fn go_architecture(machine: &str) -> String {
    match machine {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "armv7l" | "armv6l" => "arm",
        "i386" | "i686" => "386",
        other => other,
    }
    .to_owned()
}

/// Counts a kernel list such as `0-3,8,10-11`.
fn online_processors(list: &str) -> usize {
    list.trim()
        .split(',')
        .filter_map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
            (last + 1).checked_sub(first)
        })
        .sum()
}

pub(crate) fn meminfo_bytes(meminfo: &str, field: &str) -> u64 {
    let value = meminfo
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    let kibibytes = value.and_then(|value| value.split_whitespace().next()?.parse::<u64>().ok());
    kibibytes.unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(files: &[(&str, &str)], expect: impl Fn(&Machine)) {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        expect(&Machine::read_below(root.path()));
    }

    #[test]
    fn facts_come_from_the_kernels_files() {
        check(
            &[
                (
                    "etc/os-release",
                    "ID=debian\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n",
                ),
                ("etc/machine-id", "abc\n"),
                (
                    "proc/meminfo",
                    "MemTotal:       2048 kB\nMemFree: 1 kB\nSwapTotal:         4 kB\n",
                ),
                ("sys/devices/system/cpu/online", "0-3,8,10-11\n"),
            ],
            |machine| {
                assert_eq!(machine.os_image, "Debian GNU/Linux 12 (bookworm)");
                assert_eq!(machine.machine_id, "abc");
                assert_eq!((machine.memory_bytes, machine.swap_bytes), (2 << 20, 4096));
                assert_eq!(machine.processors, 7);
            },
        );
    }

    #[test]
    fn missing_or_odd_files_give_empty_facts() {
        let odd = [
            ("proc/meminfo", "MemTotal: lots kB"),
            ("sys/devices/system/cpu/online", "3-1,x"),
        ];
        check(&odd, |machine| {
            assert_eq!(machine.os_image, "Linux");
            assert_eq!((machine.memory_bytes, machine.processors), (0, 0));
            assert_eq!(machine.boot_id, "");
        });
    }

    #[test]
    fn architectures_have_gos_names() {
        assert_eq!(
            ["x86_64", "aarch64", "riscv64"].map(go_architecture),
            ["amd64", "arm64", "riscv64"]
        );
    }
}
