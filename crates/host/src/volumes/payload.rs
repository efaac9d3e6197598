//! Writing the files of a volume so that readers see one version or the next, never a mixture.
//!
//! Owns the layout: `..<time>` has the files, `..data` is a link to it that a rename switches over, and each visible name is
//! a link through `..data`. What an interrupted write has left is removed by the next one. Nothing is synced to the disk:
//! after a power loss the containers are gone, and before others start the files are compared and written again where they
//! differ.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CString, OsStr, OsString};
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use rubelet_ports::VolumeErrorKind;
use rubelet_ports::volume_host::{Ownership, PayloadFile};
use rustix::fs::{
    AtFlags, CWD, Dir, Mode, OFlags, Uid, fchmod, fchown, mkdirat, openat, readlinkat, renameat, symlinkat,
    unlinkat,
};
use rustix::io::Errno;

use super::failure::{Failure, errno_of, failed};
use super::ownership::{self, Walked, set_owner};
use crate::tree_removal::remove_below;

const DATA: &str = "..data";
const NEW_DATA: &str = "..data_tmp";
const DIRECTORY_MODE: u32 = 0o755;
const MAX_NAME_BYTES: usize = 255;
const MAX_PATH_BYTES: usize = 4096;

/// Brings a volume to exactly these files.
pub(super) fn write(
    target: &Path,
    files: &[PayloadFile],
    ownership: Option<Ownership>,
    end: Instant,
) -> Result<Walked, Failure> {
    for file in files {
        check_path(&file.path)?;
    }
    let directory = openat(CWD, target, directory_flags(), Mode::empty()).map_err(failed("open", target))?;
    let volume = Volume {
        target,
        directory,
        files,
    };
    let mut walked = Walked::default();
    let current = volume.current();
    let current = match current.filter(|version| volume.is_held_by(version)) {
        Some(version) => version,
        None => {
            let version;
            (version, walked) = volume.switch_to_new(ownership, end)?;
            version
        }
    };
    volume.make_links()?;
    volume.remove_stale(&current)?;
    Ok(walked)
}

fn directory_flags() -> OFlags {
    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC
}

/// Names that begin with two dots are the layout's own.
fn check_path(path: &Path) -> Result<(), Failure> {
    let refused = |reason: &str| {
        let message = format!("invalid path: {reason}: {}", path.display());
        Err(Failure::new(VolumeErrorKind::Other, message))
    };
    if path.as_os_str().len() > MAX_PATH_BYTES {
        return refused("must be less than or equal to 4096 characters");
    }
    if first_name(path).is_some_and(|name| name.as_bytes().starts_with(b"..")) {
        return refused("must not start with '..'");
    }
    let mut is_empty = true;
    for component in path.components() {
        match component {
            Component::Normal(name) if name.len() > MAX_NAME_BYTES => {
                return refused("filenames must be less than or equal to 255 characters");
            }
            Component::Normal(_) => is_empty = false,
            Component::RootDir | Component::Prefix(_) => return refused("must be relative path"),
            Component::ParentDir => return refused("must not contain '..'"),
            Component::CurDir => {}
        }
    }
    if is_empty {
        return refused("must not be empty");
    }
    Ok(())
}

fn first_name(path: &Path) -> Option<&OsStr> {
    path.components().find_map(|component| match component {
        Component::Normal(name) => Some(name),
        _ => None,
    })
}

struct Volume<'a> {
    target: &'a Path,
    directory: OwnedFd,
    files: &'a [PayloadFile],
}

impl Volume<'_> {
    fn failed(&self, attempt: &'static str) -> impl Fn(Errno) -> Failure {
        failed(attempt, self.target)
    }

    /// The name of the directory with the version that readers see.
    fn current(&self) -> Option<OsString> {
        let link = readlinkat(&self.directory, DATA, Vec::new()).ok()?;
        let name = OsString::from_vec(link.into_bytes());
        // Anything but a name in the volume is not of this layout.
        let is_version = name.as_bytes().starts_with(b"..") && !name.as_bytes().contains(&b'/');
        (is_version && name.len() > 2).then_some(name)
    }

    /// Whether a version has these files with this content and no others. What cannot be read is not held.
    fn is_held_by(&self, version: &OsStr) -> bool {
        let root = self.target.join(version);
        let mut expected: BTreeMap<PathBuf, &[u8]> = self
            .files
            .iter()
            .map(|file| (file.path.components().collect(), &*file.content))
            .collect();
        let mut directories = vec![PathBuf::new()];
        while let Some(directory) = directories.pop() {
            let Ok(entries) = fs::read_dir(root.join(&directory)) else {
                return false;
            };
            for entry in entries {
                let Ok(entry) = entry else { return false };
                let Ok(kind) = entry.file_type() else {
                    return false;
                };
                let path = directory.join(entry.file_name());
                if kind.is_dir() {
                    directories.push(path);
                } else {
                    let content = expected.remove(&path);
                    if !kind.is_file() || !content.is_some_and(|content| has_content(&entry.path(), content))
                    {
                        return false;
                    }
                }
            }
        }
        expected.is_empty()
    }

    fn switch_to_new(
        &self,
        ownership: Option<Ownership>,
        end: Instant,
    ) -> Result<(OsString, Walked), Failure> {
        let version = self.make_version()?;
        let filled = self.fill(&version).and_then(|()| {
            // New entries are made outside of the version too, so that the group is for the whole volume.
            let walked = ownership.map(|ownership| ownership::set(self.target, ownership, end));
            let walked = walked.transpose()?.unwrap_or_default();
            self.switch(&version)?;
            Ok(walked)
        });
        match filled {
            Ok(walked) => Ok((version, walked)),
            Err(failure) => {
                // What stays is removed by the next write.
                let _ = self.remove(&version);
                Err(failure)
            }
        }
    }

    fn make_version(&self) -> Result<OsString, Failure> {
        let failed = self.failed("make a version in");
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut number = now.subsec_nanos();
        loop {
            let name = format!("..{}.{number}", date_and_time(now.as_secs()));
            match mkdirat(&self.directory, &*name, Mode::from_raw_mode(0o700)) {
                Ok(()) => return Ok(name.into()),
                Err(Errno::EXIST) => number = number.wrapping_add(1),
                Err(errno) => return Err(failed(errno)),
            }
        }
    }

    fn fill(&self, version: &OsStr) -> Result<(), Failure> {
        let root = openat(&self.directory, version, directory_flags(), Mode::empty());
        let root = root.map_err(self.failed("open a version in"))?;
        fchmod(&root, Mode::from_raw_mode(DIRECTORY_MODE)).map_err(self.failed("chmod a version in"))?;
        let mut made = BTreeSet::new();
        for file in self.files {
            let path: PathBuf = file.path.components().collect();
            for directory in parents_of(&path) {
                if made.insert(directory.to_owned()) {
                    make_directory(&root, directory)
                        .map_err(failed("mkdir", &self.target.join(directory)))?;
                }
            }
            create_file(&root, &path, file).map_err(failed("write", &self.target.join(&path)))?;
        }
        Ok(())
    }

    fn switch(&self, version: &OsStr) -> Result<(), Failure> {
        let failed = self.failed("switch to the new version in");
        // Of a write that was interrupted.
        match unlinkat(&self.directory, NEW_DATA, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(failed(errno)),
        }
        symlinkat(version, &self.directory, NEW_DATA).map_err(&failed)?;
        renameat(&self.directory, NEW_DATA, &self.directory, DATA).map_err(failed)
    }

    /// The visible names. What has such a name already, like the mount point of another volume, stays.
    fn make_links(&self) -> Result<(), Failure> {
        let mut linked = BTreeSet::new();
        for file in self.files {
            let Some(name) = first_name(&file.path).filter(|name| linked.insert(*name)) else {
                continue;
            };
            let failed = self.failed("link a file in");
            match symlinkat(Path::new(DATA).join(name), &self.directory, name) {
                Err(Errno::EXIST) => continue,
                made => made.map_err(&failed)?,
            }
            if let Some(owner) = file.owner {
                set_owner(&self.directory, Path::new(name), owner).map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Removes the links of names that are gone, and every version but the current one.
    fn remove_stale(&self, current: &OsStr) -> Result<(), Failure> {
        let failed = self.failed("remove old files in");
        let wanted: BTreeSet<&OsStr> = self
            .files
            .iter()
            .filter_map(|file| first_name(&file.path))
            .collect();
        let entries = openat(&self.directory, ".", directory_flags(), Mode::empty()).and_then(Dir::new);
        let mut stale = Vec::new();
        for entry in entries.map_err(&failed)? {
            let entry = entry.map_err(&failed)?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            let is_own = name.as_bytes().starts_with(b"..") && name.len() > 2;
            let is_kept = name == DATA || name == current || wanted.contains(name);
            if !is_kept && (is_own || self.is_our_link(name)) {
                stale.push(name.to_owned());
            }
        }
        for name in stale {
            self.remove(&name).map_err(&failed)?;
        }
        Ok(())
    }

    fn is_our_link(&self, name: &OsStr) -> bool {
        let link = readlinkat(&self.directory, name, Vec::new());
        link.is_ok_and(|link| OsStr::from_bytes(link.to_bytes()) == Path::new(DATA).join(name))
    }

    fn remove(&self, name: &OsStr) -> Result<(), Errno> {
        let name = CString::new(name.as_bytes()).map_err(|_| Errno::INVAL)?;
        remove_below(&self.directory, &name)
    }
}

fn has_content(path: &Path, content: &[u8]) -> bool {
    let length = fs::metadata(path).map(|metadata| metadata.len());
    length.is_ok_and(|length| length == content.len() as u64)
        && fs::read(path).is_ok_and(|present| present == content)
}

/// The directories above a relative path, from the top.
fn parents_of(path: &Path) -> Vec<&Path> {
    let mut parents: Vec<&Path> = path
        .ancestors()
        .skip(1)
        .filter(|parent| !parent.as_os_str().is_empty())
        .collect();
    parents.reverse();
    parents
}

fn make_directory(root: &OwnedFd, path: &Path) -> Result<(), Errno> {
    mkdirat(root, path, Mode::from_raw_mode(DIRECTORY_MODE))?;
    let made = openat(root, path, directory_flags(), Mode::empty())?;
    fchmod(made, Mode::from_raw_mode(DIRECTORY_MODE))
}

/// The mode comes last: a change of the owner takes bits of it away.
fn create_file(root: &OwnedFd, path: &Path, file: &PayloadFile) -> Result<(), Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let created = openat(root, path, flags, Mode::from_raw_mode(0o600))?;
    let mut created = File::from(created);
    created
        .write_all(&file.content)
        .map_err(|error| errno_of(&error))?;
    if let Some(owner) = file.owner {
        fchown(&created, Some(Uid::from_raw(owner)), None)?;
    }
    fchmod(&created, Mode::from_raw_mode(file.mode & 0o7777))
}

/// UTC as `2026_11_16_05_58_29`.
fn date_and_time(unix_seconds: u64) -> String {
    let (days, second) = (unix_seconds / 86_400, unix_seconds % 86_400);
    // Years of this count begin in March, so that the day that some years lack or have is the last.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, next_year) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    let year = era * 400 + year_of_era + next_year;
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}_{month:02}_{day:02}_{hour:02}_{minute:02}_{second:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_dates() {
        let check = |seconds: u64, expected: &str| assert_eq!(date_and_time(seconds), expected);
        check(0, "1970_01_01_00_00_00");
        check(951_782_399, "2000_02_28_23_59_59");
        check(951_782_400, "2000_02_29_00_00_00");
        check(951_868_800, "2000_03_01_00_00_00");
        check(1_454_338_800, "2016_02_01_15_00_00");
        check(4_107_542_399, "2100_02_28_23_59_59");
        check(4_107_542_400, "2100_03_01_00_00_00");
    }

    #[test]
    fn names_of_the_layout_are_refused() {
        let check = |path: &str, reason: Option<&str>| {
            let message = check_path(Path::new(path)).err().map(|failure| failure.message);
            match (message, reason) {
                (None, None) => {}
                (Some(message), Some(reason)) => assert!(message.contains(reason), "{message}"),
                other => panic!("{path}: {other:?}"),
            }
        };
        check("a", None);
        check("a/b/.c", None);
        check("a/..b", None);
        check("", Some("empty"));
        check(".", Some("empty"));
        check("/a", Some("relative"));
        check("a/../b", Some("must not contain"));
        check("..", Some("must not contain"));
        check("..data", Some("must not start"));
        check("..data/x", Some("must not start"));
        check(&"x".repeat(256), Some("255"));
        check(&"x/".repeat(2049), Some("4096"));
    }
}
