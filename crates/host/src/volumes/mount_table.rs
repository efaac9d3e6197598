//! The kernel's list of mounts, and whether something is mounted at a path.
//!
//! Reading the list asks nothing of the filesystems in it, so that it never hangs on a dead one. A line that cannot be
//! understood is left out.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Statx, StatxAttributes, StatxFlags, statx};
use rustix::io::Errno;

use super::failure::{Failure, errno_of, failed};

/// Of the thread, because in tests it may have its own list.
const MOUNT_TABLE: &str = "/proc/thread-self/mountinfo";

/// A line of the list, as far as it matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MountEntry {
    pub(crate) target: PathBuf,
    /// Whether what is mounted below is seen by others who have it mounted.
    pub(crate) is_shared: bool,
    pub(crate) filesystem: String,
    /// Of the filesystem, separated by commas: `rw,pagesize=2M`.
    pub(crate) options: String,
}

/// All mounts, in the order of mounting.
pub(crate) fn read() -> io::Result<Vec<MountEntry>> {
    fs::read(MOUNT_TABLE).map(|list| parse(&list))
}

pub(crate) fn parse(list: &[u8]) -> Vec<MountEntry> {
    list.split(|byte| *byte == b'\n').filter_map(parse_line).collect()
}

/// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`; there may be any number of fields before
/// the dash.
fn parse_line(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|byte| *byte == b' ');
    let target = unescaped(fields.nth(4)?);
    let mut fields = fields.skip(1);
    let optional: Vec<&[u8]> = fields.by_ref().take_while(|field| *field != b"-").collect();
    let is_shared = optional.iter().any(|field| field.starts_with(b"shared:"));
    let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
    let filesystem = text(fields.next()?);
    // The source may be empty, and then so may everything after it.
    let options = fields.nth(1).map(text).unwrap_or_default();
    Some(MountEntry {
        target,
        is_shared,
        filesystem,
        options,
    })
}

/// The kernel writes blanks, line ends and backslashes as three octal digits.
pub(crate) fn unescaped(field: &[u8]) -> PathBuf {
    if !field.contains(&b'\\') {
        return PathBuf::from(OsStr::from_bytes(field));
    }
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let code = tail.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        let code = code.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) if *first == b'\\' => {
                bytes.push(code);
                rest = tail.get(3..).unwrap_or_default();
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

/// What is at a path, the link itself and not what it leads to.
pub(super) struct Found {
    stat: Statx,
}

impl Found {
    pub(super) fn file_type(&self) -> FileType {
        FileType::from_raw_mode(self.stat.stx_mode.into())
    }

    pub(super) fn is_directory(&self) -> bool {
        self.file_type() == FileType::Directory
    }

    /// Permissions with setuid, setgid and sticky.
    pub(super) fn mode(&self) -> u32 {
        u32::from(self.stat.stx_mode) & 0o7777
    }

    /// The same for two names of one file or directory.
    pub(super) fn identity(&self) -> (u32, u32, u64) {
        (
            self.stat.stx_dev_major,
            self.stat.stx_dev_minor,
            self.stat.stx_ino,
        )
    }
}

/// Looks at a path without asking a server over the network or a FUSE program: what the kernel knows already is enough.
pub(super) fn look(path: &Path) -> Result<Found, Errno> {
    look_with(path, AtFlags::STATX_DONT_SYNC)
}

/// As [`look`], but the filesystem has to answer.
pub(super) fn look_in_sync(path: &Path) -> Result<Found, Errno> {
    look_with(path, AtFlags::STATX_FORCE_SYNC)
}

fn look_with(path: &Path, sync: AtFlags) -> Result<Found, Errno> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | sync;
    let stat = statx(CWD, path, flags, StatxFlags::BASIC_STATS)?;
    Ok(Found { stat })
}

/// Looks at what is open.
pub(super) fn look_at_open(file: impl rustix::fd::AsFd) -> Result<Found, Errno> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = statx(file, c"", flags, StatxFlags::BASIC_STATS)?;
    Ok(Found { stat })
}

/// Whether a mount begins at the path that was looked at.
pub(super) fn is_mount_point(path: &Path, found: &Found) -> Result<bool, Failure> {
    if found
        .stat
        .stx_attributes_mask
        .contains(StatxAttributes::MOUNT_ROOT)
    {
        return Ok(found.stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT));
    }
    // Kernels before 5.8 do not report it.
    mounted_at(path).map(|mount| mount.is_some())
}

/// What is mounted at a path; the uppermost, when there are several.
pub(super) fn mounted_at(path: &Path) -> Result<Option<MountEntry>, Failure> {
    let unreadable = |error: &io::Error| failed("read the list of mounts for", path)(errno_of(error));
    let Some(path) = located(path).map_err(|error| unreadable(&error))? else {
        return Ok(None);
    };
    let mounts = read().map_err(|error| unreadable(&error))?;
    Ok(mounts.into_iter().rev().find(|mount| mount.target == path))
}

/// A path as the list of mounts has it. The last name is not looked at, because what is mounted there may hang.
pub(super) fn located(path: &Path) -> io::Result<Option<PathBuf>> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(Some(path.to_owned()));
    };
    match fs::canonicalize(Path::new(".").join(parent)) {
        Ok(parent) => Ok(Some(parent.join(name))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_every_shape_are_read() {
        let check = |line: &str, expected: Option<(&str, &str, &str)>| {
            let entry = parse_line(line.as_bytes());
            let entry = entry.as_ref().map(|entry| {
                (
                    entry.target.to_str().unwrap(),
                    &*entry.filesystem,
                    &*entry.options,
                )
            });
            assert_eq!(entry, expected, "{line}");
        };
        check(
            "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue",
            Some(("/mnt2", "ext3", "rw,errors=continue")),
        );
        check(
            "22 1 0:21 / /proc rw - proc proc rw",
            Some(("/proc", "proc", "rw")),
        );
        check(
            "22 1 0:21 / /a\\040b\\011 rw shared:1 master:2 unbindable - tmpfs t rw",
            Some(("/a b\t", "tmpfs", "rw")),
        );
        check(
            "22 1 0:21 / /dash rw shared:1 - fuse.- - rw",
            Some(("/dash", "fuse.-", "rw")),
        );
        check("22 1 0:21 / /empty rw - fuse  rw", Some(("/empty", "fuse", "rw")));
        check("22 1 0:21 / /short rw - fuse", Some(("/short", "fuse", "")));
        check("22 1 0:21 / /nothing rw shared:1", None);
        check("22 1", None);
        check("", None);
        let is_shared = |line: &str| parse_line(line.as_bytes()).unwrap().is_shared;
        assert!(is_shared("22 1 0:21 / /a rw master:3 shared:1 - tmpfs t rw"));
        assert!(!is_shared("22 1 0:21 / /a rw master:3 - tmpfs shared:1 rw"));
    }

    #[test]
    fn octal_is_undone() {
        let check = |field: &str, expected: &str| {
            assert_eq!(unescaped(field.as_bytes()), Path::new(expected));
        };
        check("/plain", "/plain");
        check("/a\\040b\\134c\\011", "/a b\\c\t");
        check("/odd\\9", "/odd\\9");
        check("/end\\", "/end\\");
    }

    #[test]
    fn the_list_of_this_machine_is_read_whole() {
        let lines = fs::read_to_string(MOUNT_TABLE).unwrap().lines().count();
        // Others may mount meanwhile.
        assert!(read().unwrap().len().abs_diff(lines) < 100 && lines > 0);
    }
}
