//! Mounting and unmounting.
//!
//! Owns the options of each kind of mount and what counts as mounted already. Which volume needs what is not known here.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rubelet_ports::VolumeErrorKind;
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_change, unmount,
};

use super::failure::{Failure, failed, is_corrupted};
use super::mount_table::{self, MountEntry, is_mount_point, look, mounted_at};

/// Mounts that may be stacked at one path; rubelet and container runtimes never stack more.
const MAX_STACKED: usize = 64;

/// Set once a kernel has refused `noswap` (before 6.4), so that it is not asked each time.
static HAS_NO_NOSWAP: AtomicBool = AtomicBool::new(false);

/// What is mounted at a path, asking for the list of mounts only when something is.
pub(super) fn present_at(target: &Path) -> Result<Option<MountEntry>, Failure> {
    match look(target) {
        Ok(found) if !is_mount_point(target, &found)? => Ok(None),
        Ok(_) => mounted_at(target),
        Err(errno) if is_corrupted(errno) => mounted_at(target),
        Err(errno) => Err(failed("look at", target)(errno)),
    }
}

fn other_mount(target: &Path, present: &MountEntry) -> Failure {
    let message = format!(
        "something else is mounted at {}: {}",
        target.display(),
        present.filesystem
    );
    Failure::new(VolumeErrorKind::Mounted, message)
}

pub(super) fn mount_tmpfs(target: &Path, size_bytes: Option<u64>) -> Result<(), Failure> {
    match present_at(target)? {
        Some(present) if present.filesystem == "tmpfs" => return Ok(()),
        Some(present) => return Err(other_mount(target, &present)),
        None => {}
    }
    let size = size_bytes.map(|bytes| format!("size={bytes}"));
    let attempt = |with_noswap: bool| {
        let options: Vec<&str> = size
            .as_deref()
            .into_iter()
            .chain(with_noswap.then_some("noswap"))
            .collect();
        mount_filesystem("tmpfs", "tmpfs", target, &options.join(","))
    };
    let failed = failed("mount tmpfs at", target);
    if !HAS_NO_NOSWAP.load(Ordering::Relaxed) {
        match attempt(true) {
            Err(Errno::INVAL) => {}
            done => return done.map_err(failed),
        }
    }
    attempt(false).map_err(failed)?;
    HAS_NO_NOSWAP.store(true, Ordering::Relaxed);
    Ok(())
}

pub(super) fn mount_huge_pages(target: &Path, page_size_bytes: u64, any_size: bool) -> Result<(), Failure> {
    if let Some(present) = present_at(target)? {
        if present.filesystem != "hugetlbfs" {
            return Err(other_mount(target, &present));
        }
        return match page_size_of(&present.options) {
            _ if any_size => Ok(()),
            Some(bytes) if bytes == page_size_bytes => Ok(()),
            other => {
                let other = other.map_or_else(|| "unknown".to_owned(), |bytes| format!("{bytes} bytes"));
                let message = format!(
                    "the page size of what is mounted at {} is {other}, not {page_size_bytes} bytes",
                    target.display()
                );
                Err(Failure::new(VolumeErrorKind::Mounted, message))
            }
        };
    }
    let options = format!("pagesize={page_size_bytes}");
    mount_filesystem("nodev", "hugetlbfs", target, &options).map_err(failed("mount hugetlbfs at", target))
}

fn mount_filesystem(source: &str, filesystem: &str, target: &Path, options: &str) -> Result<(), Errno> {
    let options = std::ffi::CString::new(options).map_err(|_| Errno::INVAL)?;
    mount(
        source,
        target,
        filesystem,
        MountFlags::empty(),
        Some(options.as_c_str()),
    )
}

/// The kernel writes the size of a hugetlbfs's pages with a unit.
fn page_size_of(options: &str) -> Option<u64> {
    let size = options
        .split(',')
        .find_map(|option| option.strip_prefix("pagesize="))?;
    let digits = size.trim_end_matches(|character: char| !character.is_ascii_digit());
    let shift = match size.get(digits.len()..)? {
        "" => 0,
        "K" | "k" => 10,
        "M" | "m" => 20,
        "G" | "g" => 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// Unmounts everything that is mounted exactly at a path. A filesystem that answers with an error of a lost server is detached,
/// also without `lazy`.
pub(super) fn unmount_all(target: &Path, lazy: bool) -> Result<(), Failure> {
    for _ in 0..MAX_STACKED {
        let mut flags = UnmountFlags::NOFOLLOW;
        flags.set(UnmountFlags::DETACH, lazy);
        let mut result = unmount(target, flags);
        if result.is_err_and(is_corrupted) {
            result = unmount(target, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH);
        }
        match result {
            Ok(()) => {}
            // Nothing is mounted there (any more), or there is no such path.
            Err(Errno::INVAL | Errno::NOENT | Errno::NOTDIR) => return Ok(()),
            Err(errno) => return Err(failed("unmount", target)(errno)),
        }
    }
    let message = format!(
        "{} has more than {MAX_STACKED} mounts upon each other",
        target.display()
    );
    Err(Failure::new(VolumeErrorKind::Busy, message))
}

/// Makes mounts below the kubelet's directory shared: containers with mount propagation see them, and what those containers mount
/// there is seen by the node and by others. The directory is made when it is missing.
///
/// # Errors
/// When the directory or its mount cannot be made, or when mounts below it would be covered.
pub fn share(root_dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o750).create(root_dir)?;
    let root_dir = fs::canonicalize(root_dir)?;
    let mounts = mount_table::read()?;
    let is_on = mounts
        .iter()
        .rev()
        .find(|mount| root_dir.starts_with(&mount.target));
    if is_on.is_some_and(|mount| mount.is_shared) {
        return Ok(());
    }
    let is_below = |mount: &&MountEntry| mount.target.starts_with(&root_dir) && mount.target != root_dir;
    if let Some(below) = mounts.iter().find(is_below) {
        let message = format!("{} is mounted already", below.target.display());
        return Err(io::Error::other(message));
    }
    if is_on.is_none_or(|mount| mount.target != root_dir) {
        mount_bind(&root_dir, &root_dir)?;
    }
    let shared = MountPropagationFlags::SHARED | MountPropagationFlags::REC;
    Ok(mount_change(&root_dir, shared)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_sizes_are_read_with_their_unit() {
        let check = |options: &str, expected: Option<u64>| {
            assert_eq!(page_size_of(options), expected, "{options}");
        };
        check("rw,relatime,pagesize=2M", Some(2 << 20));
        check("pagesize=1024M,rw", Some(1 << 30));
        check("pagesize=64K", Some(64 << 10));
        check("pagesize=1G", Some(1 << 30));
        check("pagesize=4096", Some(4096));
        check("rw", None);
        check("pagesize=2X", None);
        check("pagesize=", None);
    }
}
