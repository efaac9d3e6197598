//! Removing a directory with everything in it, and nothing else.
//!
//! Owns the walk: by open directories and names relative to them, so that a container cannot lead it elsewhere by swapping a
//! directory for a symlink. Nothing is removed when something is mounted below, and what gets mounted meanwhile is not entered: a
//! volume of a pod must never lose its data because a directory is removed.

use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rubelet_ports::{FileError, FileErrorKind};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, StatxFlags, openat, renameat, statx, unlinkat};
use rustix::io::Errno;

use crate::file_calls::{failed, refused};
use crate::volumes::mount_table::unescaped;

/// Directories held open at once. What lies deeper is moved up and removed from there.
const MAX_DEPTH: usize = 64;

/// Entries that are looked at for mounts one by one. For a larger tree the kernel's list of all mounts is less work.
const MAX_LOOKS: usize = 256;

/// How often a directory that was emptied may turn out to have new entries, over the whole walk.
const MAX_REWINDS: u32 = 100_000;

/// Which mount a thing is on.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Mount {
    /// Zero on kernels that do not report it.
    id: u64,
    device: (u32, u32),
}

struct Looked {
    mount: Mount,
    is_directory: bool,
}

pub(crate) fn remove_tree(path: &Path) -> Result<(), FileError> {
    let attempt = failed(path, "remove the directory");
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(refused(
            path,
            FileErrorKind::WrongKind,
            "not the path of a directory",
        ));
    };
    let parent = match std::fs::canonicalize(Path::new(".").join(parent)) {
        Ok(parent) => parent,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(attempt(error)),
    };
    let place = parent.join(name);
    let name = CString::new(name.as_bytes()).map_err(|error| attempt(error.into()))?;
    let parent = rustix::fs::open(&parent, directory_flags(), Mode::empty());
    let parent = parent.map_err(|errno| attempt(errno.into()))?;
    // The kernel's list has the mounts of all pods.
    if !has_no_mount(&parent, &name).unwrap_or(false) {
        let mounts =
            std::fs::read("/proc/self/mountinfo").map_err(failed(path, "read the list of mounts"))?;
        if let Some(mounted) = mount_below(&mounts, &place) {
            let message = format!(
                "something is mounted on {}; nothing is removed",
                mounted.display()
            );
            return Err(refused(path, FileErrorKind::Mounted, message));
        }
    }
    match remove_below(&parent, &name) {
        Ok(()) => Ok(()),
        Err(Errno::BUSY | Errno::XDEV) => Err(refused(
            path,
            FileErrorKind::Mounted,
            "something is mounted below; it and what is above it are left",
        )),
        Err(errno) => Err(attempt(errno.into())),
    }
}

fn directory_flags() -> OFlags {
    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC
}

/// The first mount point at or below a path, from the kernel's list.
fn mount_below(mountinfo: &[u8], path: &Path) -> Option<PathBuf> {
    mountinfo
        .split(|byte| *byte == b'\n')
        .filter_map(|line| line.split(|byte| *byte == b' ').nth(4))
        .map(unescaped)
        .find(|mount| mount.starts_with(path))
}

fn look(directory: impl AsFd, name: &CStr) -> Result<Looked, Errno> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let found = statx(directory, name, flags, StatxFlags::TYPE | StatxFlags::MNT_ID)?;
    let tells_mount = found.stx_mask & StatxFlags::MNT_ID.bits() != 0;
    Ok(Looked {
        mount: Mount {
            id: if tells_mount { found.stx_mnt_id } else { 0 },
            device: (found.stx_dev_major, found.stx_dev_minor),
        },
        is_directory: FileType::from_raw_mode(found.stx_mode.into()) == FileType::Directory,
    })
}

/// One directory of the walk: its name in the one above, and what is in it.
struct Level {
    name: CString,
    entries: Dir,
}

impl Level {
    fn open(directory: impl AsFd, name: &CStr) -> Result<Self, Errno> {
        let opened = openat(directory, name, directory_flags(), Mode::empty())?;
        Ok(Self {
            name: name.to_owned(),
            entries: Dir::new(opened)?,
        })
    }
}

/// Whether a walk shows that nothing is mounted at or below an entry; false when it would be long, or when the kernel does not tell.
fn has_no_mount(parent: &OwnedFd, name: &CStr) -> Result<bool, Errno> {
    let mount = look(parent, c".")?.mount;
    let looked = match look(parent, name) {
        Err(Errno::NOENT) => return Ok(true),
        looked => looked?,
    };
    if mount.id == 0 || looked.mount != mount {
        return Ok(false);
    }
    let mut levels = Vec::new();
    if looked.is_directory {
        levels.push(Level::open(parent, name)?);
    }
    let mut looks = 0_usize;
    while let Some(mut level) = levels.pop() {
        let Some(entry) = level.entries.read() else {
            continue;
        };
        let entry = entry?;
        levels.push(level);
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        looks += 1;
        let directory = levels.last().map(|level| level.entries.fd()).transpose()?;
        let Some(directory) = directory else { break };
        let looked = look(directory, name)?;
        if looked.mount != mount || looks > MAX_LOOKS || levels.len() >= MAX_DEPTH {
            return Ok(false);
        }
        if looked.is_directory {
            let below = Level::open(directory, name)?;
            levels.push(below);
        }
    }
    Ok(true)
}

/// Removes an entry of a directory. Something that is not there is no error at any point: others may remove too.
pub(crate) fn remove_below(parent: &OwnedFd, name: &CStr) -> Result<(), Errno> {
    let mount = look(parent, c".")?.mount;
    let root = match descend(parent, name, mount) {
        Ok(Some(level)) => level,
        Ok(None) | Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(errno),
    };
    let mut moved_up = 0_u64;
    let mut rewinds = 0_u32;
    let mut levels = vec![root];
    while let Some(level) = levels.last_mut() {
        let Some(entry) = level.entries.read() else {
            rewinds += u32::from(!leave(&mut levels, parent)?);
            if rewinds > MAX_REWINDS {
                return Err(Errno::NOTEMPTY);
            }
            continue;
        };
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        if levels.len() >= MAX_DEPTH {
            move_up(&levels, name, &mut moved_up)?;
            continue;
        }
        let directory = levels.last().map(|level| level.entries.fd()).transpose()?;
        let Some(directory) = directory else { break };
        match descend(directory, name, mount) {
            Ok(Some(level)) => levels.push(level),
            Ok(None) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Removes a file or opens a directory; anything on another mount is an error.
fn descend(directory: impl AsFd, name: &CStr, mount: Mount) -> Result<Option<Level>, Errno> {
    let looked = look(&directory, name)?;
    if looked.mount != mount {
        return Err(Errno::XDEV);
    }
    if !looked.is_directory {
        unlinkat(directory, name, AtFlags::empty())?;
        return Ok(None);
    }
    let level = Level::open(&directory, name)?;
    // What was looked at may have been mounted over before it was opened.
    if look(level.entries.fd()?, c".")?.mount != mount {
        return Err(Errno::XDEV);
    }
    Ok(Some(level))
}

/// Removes the emptied directory of the last level. New entries in it, from others or moved up, are walked first: then it is
/// not removed yet.
fn leave(levels: &mut Vec<Level>, parent: &OwnedFd) -> Result<bool, Errno> {
    let Some(mut level) = levels.pop() else {
        return Ok(true);
    };
    let removed = match levels.last() {
        Some(above) => unlinkat(above.entries.fd()?, &level.name, AtFlags::REMOVEDIR),
        None => unlinkat(parent, &level.name, AtFlags::REMOVEDIR),
    };
    match removed {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(Errno::NOTEMPTY) => {
            level.entries.rewind();
            levels.push(level);
            Ok(false)
        }
        Err(errno) => Err(errno),
    }
}

/// Moves an entry that lies too deep to the root of the tree.
fn move_up(levels: &[Level], name: &CStr, moved_up: &mut u64) -> Result<(), Errno> {
    let (Some(root), Some(last)) = (levels.first(), levels.last()) else {
        return Ok(());
    };
    loop {
        let new_name = format!(".removed-{moved_up}");
        *moved_up += 1;
        match renameat(
            last.entries.fd()?,
            name,
            root.entries.fd()?,
            OsStr::new(&new_name),
        ) {
            // The name is taken by something that was there before.
            Err(Errno::EXIST | Errno::NOTEMPTY | Errno::ISDIR | Errno::NOTDIR) => {}
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(errno) => return Err(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_found_at_and_below_a_path_only() {
        let list = b"22 1 8:1 / / rw - ext4 /dev/a rw\n\
            23 22 0:5 / /pods/a/vol rw - tmpfs t rw\n\
            24 22 0:6 / /pods/with\\040blank rw - tmpfs t rw\n";
        let check = |path: &str, expected: Option<&str>| {
            assert_eq!(
                mount_below(list, Path::new(path)).as_deref(),
                expected.map(Path::new),
                "{path}"
            );
        };
        check("/pods/a", Some("/pods/a/vol"));
        check("/pods/a/vol", Some("/pods/a/vol"));
        check("/pods/a/vol/deeper", None);
        check("/pods/a/v", None);
        check("/pods/with blank", Some("/pods/with blank"));
        check("/pods/b", None);
    }
}
