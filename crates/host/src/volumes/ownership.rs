//! The group of a volume: everything in it belongs to it and can be used by it.
//!
//! Owns the walk. It goes by open directories, so that a container cannot lead it out of the volume by swapping an entry for a
//! symlink, and it does not enter what is mounted below. However large the tree, it holds a few open directories and a few
//! bytes for each level. The root comes last: as long as it does not have the group, the work is not done.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Instant;

use rubelet_ports::volume_host::{Ownership, OwnershipPolicy};
use rustix::fs::{
    AtFlags, Dir, FileType, Gid, Mode, OFlags, Statx, StatxFlags, chmod, chownat, open, openat, statx,
};
use rustix::io::Errno;

use super::failure::{Failure, errno_text, failed};

const READ_WRITE: u32 = 0o660;
const READ_ONLY: u32 = 0o440;
const ENTER: u32 = 0o110;
const SETGID: u32 = 0o2000;

/// Directories held open at once. One further up is opened again when the walk comes back to it.
const MAX_OPEN: usize = 32;

/// How many entries are changed between two looks at the clock.
const ENTRIES_PER_LOOK: u64 = 256;

/// What a walk has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Walked {
    pub(super) entries: u64,
    /// The number of entries that could not be changed, which is no error, and the kernel's error of the first.
    pub(super) refused: u64,
    pub(super) first_refusal: Option<Errno>,
}

impl Walked {
    /// A sentence for the log, if anything could not be changed.
    pub(super) fn warning(&self, root: &Path) -> Option<String> {
        self.first_refusal.map(|errno| {
            format!(
                "{} of {} entries in {} could not be given to the group: {}",
                self.refused,
                self.entries,
                root.display(),
                errno_text(errno)
            )
        })
    }
}

struct Level {
    /// Nothing while too many others are open.
    entries: Option<Dir>,
    stat: Statx,
    /// Where to go on reading.
    offset: i64,
}

impl Level {
    fn enter(directory: OwnedFd, stat: Statx) -> Result<Self, Errno> {
        Ok(Self {
            entries: Some(Dir::new(directory)?),
            stat,
            offset: 0,
        })
    }
}

struct Walk {
    ownership: Ownership,
    done: Walked,
    end: Instant,
}

/// Gives everything in a volume to its group.
pub(super) fn set(root: &Path, ownership: Ownership, end: Instant) -> Result<Walked, Failure> {
    let failed = failed("set the group of", root);
    let opened = open(
        root,
        OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .map_err(&failed)?;
    let stat = stat_of(&opened).map_err(&failed)?;
    let mut walk = Walk {
        ownership,
        done: Walked::default(),
        end,
    };
    if ownership.policy == OwnershipPolicy::OnRootMismatch && walk.is_satisfied_by(&stat) {
        return Ok(walk.done);
    }
    if file_type(&stat) == FileType::Directory {
        walk.descend(&opened, stat).map_err(|errno| match errno {
            Errno::TIMEDOUT => Failure::too_late(),
            errno => failed(errno),
        })?;
    }
    walk.change(&opened, &stat);
    Ok(walk.done)
}

fn file_type(stat: &Statx) -> FileType {
    FileType::from_raw_mode(stat.stx_mode.into())
}

fn stat_of(file: impl AsFd) -> Result<Statx, Errno> {
    statx(
        file,
        c"",
        AtFlags::EMPTY_PATH,
        StatxFlags::BASIC_STATS | StatxFlags::MNT_ID,
    )
}

fn same_mount(one: &Statx, other: &Statx) -> bool {
    (one.stx_mnt_id, one.stx_dev_major, one.stx_dev_minor)
        == (other.stx_mnt_id, other.stx_dev_major, other.stx_dev_minor)
}

fn same_directory(one: &Statx, other: &Statx) -> bool {
    same_mount(one, other) && one.stx_ino == other.stx_ino
}

/// Opens for reading what was opened as a path only.
fn reopened(directory: impl AsFd, name: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(directory, name, flags, Mode::empty())
}

impl Walk {
    /// Whether a root directory has its group and modes already.
    fn is_satisfied_by(&self, stat: &Statx) -> bool {
        let wanted = self.wanted_bits(FileType::Directory);
        file_type(stat) == FileType::Directory
            && stat.stx_gid == self.ownership.group
            && u32::from(stat.stx_mode) & wanted == wanted
    }

    fn wanted_bits(&self, kind: FileType) -> u32 {
        let bits = if self.ownership.read_only {
            READ_ONLY
        } else {
            READ_WRITE
        };
        match kind {
            FileType::Directory => bits | ENTER | SETGID,
            _ => bits,
        }
    }

    /// Changes everything below a directory, and not the directory.
    fn descend(&mut self, root: &OwnedFd, stat: Statx) -> Result<(), Errno> {
        let mut levels = vec![Level::enter(reopened(root, ".")?, stat)?];
        while let Some(level) = levels.last_mut() {
            let Some(entries) = level.entries.as_mut() else {
                break;
            };
            let Some(entry) = entries.read() else {
                self.leave(&mut levels)?;
                continue;
            };
            let entry = entry?;
            level.offset = entry.offset();
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            if self.done.entries.is_multiple_of(ENTRIES_PER_LOOK) && Instant::now() >= self.end {
                return Err(Errno::TIMEDOUT);
            }
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let opened = match openat(entries.fd()?, name, flags, Mode::empty()) {
                // Gone since the directory was read.
                Err(Errno::NOENT) => continue,
                opened => opened?,
            };
            let found = stat_of(&opened)?;
            if !same_mount(&found, &level.stat) {
                continue;
            }
            if file_type(&found) == FileType::Directory {
                levels.push(Level::enter(reopened(&opened, ".")?, found)?);
                if let Some(far) = levels.len().checked_sub(MAX_OPEN + 1) {
                    levels[far].entries = None;
                }
            } else {
                self.change(&opened, &found);
            }
        }
        Ok(())
    }

    /// The last directory has been read: it is changed itself, and the walk goes on in the one above.
    fn leave(&mut self, levels: &mut Vec<Level>) -> Result<(), Errno> {
        let Some(level) = levels.pop() else {
            return Ok(());
        };
        let Some(entries) = level.entries else {
            return Ok(());
        };
        let Some(above) = levels.last_mut() else {
            // The root, whose turn comes at the very end.
            return Ok(());
        };
        self.change(entries.fd()?, &level.stat);
        if above.entries.is_none() {
            let opened = reopened(entries.fd()?, "..")?;
            // Another process has moved the directory; the next attempt finds it where it is now.
            if !same_directory(&stat_of(&opened)?, &above.stat) {
                return Err(Errno::STALE);
            }
            let mut entries = Dir::new(opened)?;
            entries.seek(above.offset)?;
            above.entries = Some(entries);
        }
        Ok(())
    }

    fn change(&mut self, file: impl AsFd, stat: &Statx) {
        self.done.entries += 1;
        if let Err(errno) = self.try_change(file.as_fd(), stat) {
            self.done.refused += 1;
            self.done.first_refusal.get_or_insert(errno);
        }
    }

    fn try_change(&self, file: impl AsFd, stat: &Statx) -> Result<(), Errno> {
        let is_changed = stat.stx_gid != self.ownership.group;
        if is_changed {
            let group = Some(Gid::from_raw(self.ownership.group));
            chownat(&file, c"", None, group, AtFlags::EMPTY_PATH)?;
        }
        let kind = file_type(stat);
        if kind == FileType::Symlink {
            return Ok(());
        }
        let mode = u32::from(stat.stx_mode) & 0o7777;
        let wanted = mode | self.wanted_bits(kind);
        // A change of the group takes setuid and setgid away.
        if mode != wanted || (is_changed && mode & 0o6000 != 0) {
            // By its number, because a name could have become a symlink.
            let path = format!("/proc/thread-self/fd/{}", file.as_fd().as_raw_fd());
            chmod(path, Mode::from_raw_mode(wanted))?;
        }
        Ok(())
    }
}

/// Gives one entry itself an owner, not what it leads to.
pub(super) fn set_owner(directory: impl AsFd, name: &Path, owner: u32) -> Result<(), Errno> {
    let owner = Some(rustix::fs::Uid::from_raw(owner));
    chownat(directory, name, owner, None, AtFlags::SYMLINK_NOFOLLOW)
}
