//! What files take, measured on the real filesystems.
//!
//! Owns the walks: by open directories and names relative to them, on one mount, each hard link once, with a bound in time. A walk
//! pauses again and again, so that a volume of a million files costs the node no more than a small part of a disk and of a processor.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::future::join_all;
use rubelet_ports::{DiskReader, DiskSubject, SignalError};
use rubelet_usage::devices::{disk_counters, mounted_filesystems};
use rubelet_usage::{Devices, DiskUsage, FilesystemFigures};
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, Statx, StatxFlags, open, openat, statvfs, statx,
};
use rustix::io::Errno;
use rustix::path::Arg;

use crate::blocking::{BlockingPool, PoolLimits};

/// The kernel answers in milliseconds; what takes this long is a dead filesystem.
const CALL_DEADLINE: Duration = Duration::from_secs(5);
/// For the space of one mounted filesystem: one that is dead must not hold up a page.
const SPACE_DEADLINE: Duration = Duration::from_secs(2);
/// A walk that takes longer has no result.
const WALK_DEADLINE: Duration = Duration::from_mins(5);
/// After so many files a walk pauses.
const FILES_PER_STEP: u64 = 2048;
const PAUSE: Duration = Duration::from_millis(10);
/// Directories held open at once; what lies deeper ends the walk.
const MAX_DEPTH: usize = 512;
/// Files with several names that are remembered; further ones count once for each name.
const MAX_LINKED: usize = 1 << 20;

/// The disks of this machine.
#[derive(Clone)]
pub struct HostDisk {
    quick: BlockingPool,
    walks: BlockingPool,
}

impl HostDisk {
    #[must_use]
    pub fn new() -> Self {
        let limits = PoolLimits {
            threads: 2,
            stuck_threads: 8,
            queue: 256,
            idle: Duration::from_secs(2),
            ..PoolLimits::default()
        };
        Self {
            quick: BlockingPool::with_own_files(limits),
            walks: BlockingPool::with_own_files(PoolLimits {
                threads: 1,
                stuck_threads: 4,
                stuck_after: WALK_DEADLINE,
                ..limits
            }),
        }
    }
}

impl Default for HostDisk {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl DiskReader for HostDisk {
    async fn filesystem(&self, path: &Path) -> Result<FilesystemFigures, SignalError> {
        let owned = path.to_owned();
        let answer = self.quick.run(path, CALL_DEADLINE, move || filesystem(&owned));
        let answer = answer.await.map_err(|error| error.to_string());
        let answer = answer.and_then(|answer| answer.map_err(|error| error.to_string()));
        answer.map_err(|message| SignalError::new(path.display().to_string(), message))
    }

    async fn devices(&self) -> Result<Devices, SignalError> {
        let read = |path: &'static str| {
            let failed = move |error: String| SignalError::new(path, error);
            async move {
                let call = move || std::fs::read_to_string(path);
                let answer = self.quick.run(Path::new(path), CALL_DEADLINE, call).await;
                let answer = answer.map_err(|error| failed(error.to_string()))?;
                answer.map_err(|error| failed(error.to_string()))
            }
        };
        let mounts = mounted_filesystems(&read("/proc/self/mountinfo").await?);
        let space = mounts.into_iter().map(async |mount| {
            let path = PathBuf::from(&mount.mount_point);
            let call = {
                let path = path.clone();
                move || filesystem(&path)
            };
            let answer = self.quick.run(&path, SPACE_DEADLINE, call).await;
            let problem = match answer {
                Ok(Ok(figures)) => return Some((mount, figures)),
                Ok(Err(error)) => error.to_string(),
                Err(error) => error.to_string(),
            };
            tracing::debug!(place = %path.display(), problem, "A filesystem does not tell its space; it is left out");
            None
        });
        let filesystems = join_all(space).await.into_iter().flatten().collect();
        Ok(Devices {
            filesystems,
            disks: disk_counters(&read("/proc/diskstats").await?),
        })
    }

    async fn measure(&self, subjects: Vec<DiskSubject>) -> Vec<Option<DiskUsage>> {
        let (count, place) = (subjects.len(), first_place(&subjects));
        let call = move || subjects.iter().map(|subject| measure(subject).ok()).collect();
        let answer = self.quick.run(&place, CALL_DEADLINE, call).await;
        answer.unwrap_or_else(|error| {
            tracing::warn!(place = %place.display(), %error, "Files could not be measured; they are left out");
            vec![None; count]
        })
    }

    async fn walk(&self, directory: &Path) -> Result<DiskUsage, SignalError> {
        let owned = directory.to_owned();
        let end = Instant::now() + WALK_DEADLINE;
        let answer = self
            .walks
            .run(directory, WALK_DEADLINE, move || walk(&owned, end));
        let answer = answer.await.map_err(|error| error.to_string());
        let answer = answer.and_then(|answer| answer.map_err(|error| error.to_string()));
        answer.map_err(|message| SignalError::new(directory.display().to_string(), message))
    }
}

fn first_place(subjects: &[DiskSubject]) -> PathBuf {
    match subjects.first() {
        Some(DiskSubject::File(path) | DiskSubject::FilesIn(path)) => path.clone(),
        None => PathBuf::new(),
    }
}

fn filesystem(path: &Path) -> Result<FilesystemFigures, Errno> {
    let facts = statvfs(path)?;
    Ok(FilesystemFigures {
        capacity_bytes: facts.f_blocks.saturating_mul(facts.f_frsize),
        free_bytes: facts.f_bfree.saturating_mul(facts.f_frsize),
        available_bytes: facts.f_bavail.saturating_mul(facts.f_frsize),
        inodes: facts.f_files,
        inodes_free: facts.f_ffree,
    })
}

/// Where a thing is mounted: its device, and the mount itself where the kernel reports it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Mount(u32, u32, u64);

fn look(directory: impl AsFd, path: impl Arg) -> Result<Statx, Errno> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    statx(
        directory,
        path,
        flags,
        StatxFlags::BASIC_STATS | StatxFlags::MNT_ID,
    )
}

fn mount(stat: &Statx) -> Mount {
    let tells_mount = stat.stx_mask & StatxFlags::MNT_ID.bits() != 0;
    let id = if tells_mount { stat.stx_mnt_id } else { 0 };
    Mount(stat.stx_dev_major, stat.stx_dev_minor, id)
}

fn usage(stat: &Statx) -> DiskUsage {
    DiskUsage::of_blocks(stat.stx_blocks)
}

fn is_directory(stat: &Statx) -> bool {
    FileType::from_raw_mode(stat.stx_mode.into()) == FileType::Directory
}

fn measure(subject: &DiskSubject) -> Result<DiskUsage, Errno> {
    let path = match subject {
        DiskSubject::File(path) => {
            return Ok(usage(&look(CWD, path)?));
        }
        DiskSubject::FilesIn(path) => path,
    };
    let directory = open(path, directory_flags(), Mode::empty())?;
    let mut sum = DiskUsage::default();
    for entry in Dir::read_from(&directory)? {
        let entry = entry?;
        // Files go at any time: logs are rotated.
        let Ok(stat) = look(&directory, entry.file_name()) else {
            continue;
        };
        if !is_directory(&stat) {
            sum = sum.plus(usage(&stat));
        }
    }
    Ok(sum)
}

fn directory_flags() -> OFlags {
    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC
}

/// A directory of the walk that was not read to its end.
struct Level {
    directory: OwnedFd,
    /// Directories in it that are still to be entered.
    below: Vec<CString>,
}

struct Walk {
    mount: Mount,
    sum: DiskUsage,
    /// Files with several names that were counted.
    linked: BTreeSet<u64>,
    end: Instant,
}

fn walk(path: &Path, end: Instant) -> Result<DiskUsage, Errno> {
    let root = open(path, directory_flags(), Mode::empty())?;
    let stat = look(&root, c".")?;
    let mut walk = Walk {
        mount: mount(&stat),
        sum: usage(&stat),
        linked: BTreeSet::new(),
        end,
    };
    let mut levels = vec![walk.read(root)?];
    while let Some(level) = levels.last_mut() {
        let Some(name) = level.below.pop() else {
            levels.pop();
            continue;
        };
        let next = match openat(&level.directory, &name, directory_flags(), Mode::empty()) {
            Ok(next) => next,
            // It went meanwhile, or became something else.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
            Err(error) => return Err(error),
        };
        if levels.len() >= MAX_DEPTH {
            return Err(Errno::NAMETOOLONG);
        }
        levels.push(walk.read(next)?);
    }
    Ok(walk.sum)
}

impl Walk {
    /// Counts what is in a directory, and finds what is to be entered.
    fn read(&mut self, directory: OwnedFd) -> Result<Level, Errno> {
        let mut below = Vec::new();
        for entry in Dir::read_from(&directory)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let stat = match look(&directory, name) {
                Ok(stat) => stat,
                Err(Errno::NOENT) => continue,
                Err(error) => return Err(error),
            };
            if mount(&stat) != self.mount {
                continue;
            }
            if is_directory(&stat) {
                below.push(name.to_owned());
            } else if stat.stx_nlink > 1
                && self.linked.len() < MAX_LINKED
                && !self.linked.insert(stat.stx_ino)
            {
                continue;
            }
            self.sum = self.sum.plus(usage(&stat));
            self.pace()?;
        }
        Ok(Level { directory, below })
    }

    fn pace(&self) -> Result<(), Errno> {
        if self.sum.inodes.is_multiple_of(FILES_PER_STEP) {
            if Instant::now() >= self.end {
                return Err(Errno::TIMEDOUT);
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn later() -> Instant {
        Instant::now() + Duration::from_mins(1)
    }

    #[test]
    fn a_walk_counts_everything_once() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        let empty = walk(root.path(), later()).unwrap();
        assert_eq!(empty.inodes, 1);
        fs::create_dir_all(path("a/b")).unwrap();
        fs::write(path("a/b/file"), vec![7; 100_000]).unwrap();
        fs::hard_link(path("a/b/file"), path("a/again")).unwrap();
        std::os::unix::fs::symlink("/usr", path("a/elsewhere")).unwrap();
        let full = walk(root.path(), later()).unwrap();
        assert_eq!(full.inodes, 5, "two directories, a file and a link more");
        assert!(
            (100_000..200_000).contains(&(full.bytes - empty.bytes)),
            "{full:?}"
        );
        // What is only in the middle of a file takes no room.
        fs::File::create(path("sparse"))
            .unwrap()
            .set_len(1 << 30)
            .unwrap();
        let sparse = walk(root.path(), later()).unwrap();
        assert!(sparse.bytes - full.bytes < 100_000, "{sparse:?}");
    }

    #[test]
    fn a_walk_has_an_end() {
        let root = tempfile::tempdir().unwrap();
        for number in 0..FILES_PER_STEP {
            fs::write(root.path().join(number.to_string()), "").unwrap();
        }
        assert_eq!(walk(root.path(), Instant::now()), Err(Errno::TIMEDOUT));
        assert_eq!(walk(root.path(), later()).unwrap().inodes, FILES_PER_STEP + 1);
        assert_eq!(walk(&root.path().join("none"), later()), Err(Errno::NOENT));
    }

    #[test]
    fn files_of_a_directory_count_without_what_is_below() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        fs::create_dir(path("below")).unwrap();
        fs::write(path("below/file"), vec![7; 50_000]).unwrap();
        fs::write(path("one"), vec![7; 5000]).unwrap();
        fs::write(path("two"), "").unwrap();
        let files = measure(&DiskSubject::FilesIn(root.path().to_owned())).unwrap();
        assert_eq!(files.inodes, 2);
        assert!((5000..20_000).contains(&files.bytes), "{files:?}");
        let one = measure(&DiskSubject::File(path("one"))).unwrap();
        assert_eq!(one, DiskUsage { inodes: 1, ..files });
        assert!(measure(&DiskSubject::File(path("none"))).is_err());
    }

    #[tokio::test]
    async fn a_directory_of_many_logs_is_measured_in_time() {
        let root = tempfile::tempdir().unwrap();
        for number in 0..10_000 {
            fs::write(root.path().join(format!("{number}.log")), "").unwrap();
        }
        let subject = DiskSubject::FilesIn(root.path().to_owned());
        let found = HostDisk::new().measure(vec![subject]).await;
        assert_eq!(found[0].map(|found| found.inodes), Some(10_000));
    }

    #[tokio::test]
    async fn answers_are_in_order_and_what_is_missing_is_none() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("one"), "x").unwrap();
        let disk = HostDisk::new();
        let file = |name: &str| DiskSubject::File(root.path().join(name));
        let found = disk.measure(vec![file("none"), file("one")]).await;
        assert_eq!(
            found.iter().map(Option::is_some).collect::<Vec<_>>(),
            [false, true]
        );
        assert_eq!(disk.measure(Vec::new()).await, []);
        let filesystem = disk.filesystem(root.path()).await.unwrap();
        assert!(filesystem.capacity_bytes >= filesystem.free_bytes);
        assert!(filesystem.free_bytes >= filesystem.available_bytes);
        assert!(disk.filesystem(Path::new("/no/such/path")).await.is_err());
        assert!(disk.walk(root.path()).await.unwrap().inodes >= 2);
    }
}
