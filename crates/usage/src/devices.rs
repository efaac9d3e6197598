//! The machine's filesystems and disks, as collectors of container metrics see them.
//!
//! Owns which mounts count, by upstream's rule: filesystems that keep files, each source once; and the counters of disks.

use std::collections::BTreeMap;

use crate::disk::FilesystemFigures;
use crate::io::DeviceNumber;

/// Devices that are no disks of the machine.
const NO_DISKS: [&str; 4] = ["loop", "ram", "sr", "zram"];
const KEEP_FILES: [&str; 22] = [
    "btrfs", "exfat", "ext2", "ext3", "ext4", "f2fs", "fat", "hfs", "hfsplus", "iso9660", "jfs", "msdos",
    "nfs", "nfs4", "ntfs", "overlay", "reiserfs", "squashfs", "tmpfs", "udf", "vfat", "xfs",
];

/// A mount whose space is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountedFilesystem {
    /// As it is called on pages.
    pub name: String,
    pub mount_point: String,
    pub device: DeviceNumber,
}

/// The mounts that count, of `/proc/self/mountinfo`.
#[must_use]
pub fn mounted_filesystems(mountinfo: &str) -> Vec<MountedFilesystem> {
    let mut found: BTreeMap<String, MountedFilesystem> = BTreeMap::new();
    for mount in mountinfo.lines().filter_map(mount_of) {
        // Further mounts of a source are of the same filesystem; that of `/` stands for it.
        if !found.contains_key(&mount.name) || mount.mount_point == "/" {
            found.insert(mount.name.clone(), mount);
        }
    }
    found.into_values().collect()
}

/// `<id> <parent> <major:minor> <root> <mount point> <options…> - <kind> <source> <options>`
fn mount_of(line: &str) -> Option<MountedFilesystem> {
    let (before, after) = line.split_once(" - ")?;
    let mut before = before.split(' ').skip(2);
    let device = DeviceNumber::of_text(before.next()?)?;
    let mount_point = unescaped(before.nth(1)?);
    let mut after = after.split(' ');
    let (kind, source) = (after.next()?, unescaped(after.next()?));
    let name = match kind {
        "tmpfs" => mount_point.clone(),
        "overlay" => format!("{source}_{}-{}", device.major, device.minor),
        kind if KEEP_FILES.contains(&kind) || kind == "zfs" => source,
        _ => return None,
    };
    Some(MountedFilesystem {
        name,
        mount_point,
        device,
    })
}

/// The kernel writes blanks and the like as `\040`.
fn unescaped(text: &str) -> String {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let code = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(code) if byte == b'\\' => {
                plain.push(code);
                rest = &after[3..];
            }
            _ => {
                plain.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&plain).into_owned()
}

/// The counters of one disk or partition. Times are milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskCounters {
    pub name: String,
    pub reads: u64,
    pub reads_merged: u64,
    pub sectors_read: u64,
    pub read_millis: u64,
    pub writes: u64,
    pub writes_merged: u64,
    pub sectors_written: u64,
    pub write_millis: u64,
    pub in_progress: u64,
    pub busy_millis: u64,
    pub weighted_millis: u64,
}

/// The disks of `/proc/diskstats`.
#[must_use]
pub fn disk_counters(text: &str) -> BTreeMap<DeviceNumber, DiskCounters> {
    text.lines().filter_map(disk_of).collect()
}

fn disk_of(line: &str) -> Option<(DeviceNumber, DiskCounters)> {
    let mut fields = line.split_ascii_whitespace();
    let device = DeviceNumber {
        major: fields.next()?.parse().ok()?,
        minor: fields.next()?.parse().ok()?,
    };
    let name = fields.next()?.to_owned();
    if NO_DISKS.iter().any(|prefix| name.starts_with(prefix)) {
        return None;
    }
    let mut next = || fields.next()?.parse::<u64>().ok();
    let counters = DiskCounters {
        name,
        reads: next()?,
        reads_merged: next()?,
        sectors_read: next()?,
        read_millis: next()?,
        writes: next()?,
        writes_merged: next()?,
        sectors_written: next()?,
        write_millis: next()?,
        in_progress: next()?,
        busy_millis: next()?,
        weighted_millis: next()?,
    };
    Some((device, counters))
}

/// The filesystems with their space, and the disks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Devices {
    pub filesystems: Vec<(MountedFilesystem, FilesystemFigures)>,
    pub disks: BTreeMap<DeviceNumber, DiskCounters>,
}

impl Devices {
    /// What a device is called: as a disk, else as what is mounted from it, else nothing.
    #[must_use]
    pub fn name(&self, device: DeviceNumber) -> String {
        if let Some(disk) = self.disks.get(&device) {
            return format!("/dev/{}", disk.name);
        }
        let mut mounted = self.filesystems.iter();
        let mounted = mounted.find(|(filesystem, _)| filesystem.device == device);
        mounted
            .map(|(filesystem, _)| filesystem.name.clone())
            .unwrap_or_default()
    }

    /// The counters of the disk that a filesystem is on; zeros where it is on none.
    #[must_use]
    pub fn counters(&self, filesystem: &MountedFilesystem) -> DiskCounters {
        self.disks.get(&filesystem.device).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MOUNTS: &str = "\
22 1 254:0 / / rw,relatime - ext4 /dev/root rw
23 22 0:5 / /dev rw - devtmpfs devtmpfs rw
24 22 0:22 / /sys/fs/cgroup rw - cgroup2 none rw
25 22 0:30 / /run rw shared:3 - tmpfs tmpfs rw
26 22 0:31 / /dev/shm rw - tmpfs shm rw
27 22 8:1 /sub /data\\040one rw shared:1 master:2 - xfs /dev/sda1 rw
28 22 8:1 / /data rw - xfs /dev/sda1 rw
29 22 0:40 / /var/lib/x/merged rw - overlay overlay rw
30 22 254:0 /etc/hosts /bind rw - ext4 /dev/root rw
31 22 0:50 / /srv rw - nfs4 host:/export rw
odd
";

    #[test]
    fn a_filesystem_counts_once_under_its_source() {
        let found = mounted_filesystems(MOUNTS);
        let rows: Vec<(&str, &str, u32)> = found
            .iter()
            .map(|mount| {
                (
                    mount.name.as_str(),
                    mount.mount_point.as_str(),
                    mount.device.major,
                )
            })
            .collect();
        assert_eq!(
            rows,
            [
                ("/dev/root", "/", 254),
                ("/dev/sda1", "/data one", 8),
                ("/dev/shm", "/dev/shm", 0),
                ("/run", "/run", 0),
                ("host:/export", "/srv", 0),
                ("overlay_0-40", "/var/lib/x/merged", 0),
            ]
        );
    }

    #[test]
    fn disks_have_names_and_counters() {
        let text = "   7       0 loop0 1 2 3 4 5 6 7 8 9 10 11 0 0 0 0\n 254       0 vda 1 2 3 4 5 6 7 8 9 10 11 0 0 0 0 0 0\n 259       0 nvme0n1 21 22 23 24 25 26 27 28 29 30 31\n   8       0 sda 1 2 3\n";
        let disks = disk_counters(text);
        let names: Vec<&str> = disks.values().map(|disk| disk.name.as_str()).collect();
        assert_eq!(names, ["vda", "nvme0n1"]);
        let nvme = &disks[&DeviceNumber { major: 259, minor: 0 }];
        assert_eq!(
            (nvme.reads, nvme.write_millis, nvme.weighted_millis),
            (21, 28, 31)
        );
        let filesystems = mounted_filesystems(MOUNTS);
        let devices = Devices {
            filesystems: filesystems
                .into_iter()
                .map(|mount| (mount, FilesystemFigures::default()))
                .collect(),
            disks,
        };
        let name = |major, minor| devices.name(DeviceNumber { major, minor });
        assert_eq!(name(254, 0), "/dev/vda", "the disk's own name counts first");
        assert_eq!(name(8, 1), "/dev/sda1");
        assert_eq!(name(9, 9), "");
        assert_eq!(devices.counters(&devices.filesystems[0].0).reads, 1);
        assert_eq!(
            devices.counters(&devices.filesystems[1].0),
            DiskCounters::default()
        );
    }

    proptest! {
        #[test]
        fn no_text_upsets_them(text in any::<String>()) {
            let _ = mounted_filesystems(&text);
            let _ = disk_counters(&text);
            let _ = unescaped(&text);
        }
    }
}
