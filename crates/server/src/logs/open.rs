//! Opens the files of a log without trusting their directory.
//!
//! Owns how a path is resolved. A pod that mounts the directory of logs can make links and pipes in it, so that the kernel is asked
//! to stay below it, nothing but a regular file is read, and opening never waits. The one link that leads out is that of Docker,
//! to the file of the very container. Once it is found, the directory of a log is held open: what becomes of its path does not
//! matter any more.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rubelet_ports::FileIdentity;
use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, ResolveFlags, openat, openat2, readlinkat, statat};
use rustix::io::Errno;

/// A log is at `<logs>/<pod>/<container>/<number>.log`.
const LEVELS: usize = 3;
/// As many links as the kernel follows.
const MAX_LINKS: usize = 40;
/// How often a path is resolved again because something was renamed meanwhile.
const MAX_RACES: usize = 128;
const FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// The directory that the files of a log are in.
pub(super) struct LogDirectory(OwnedFd);

impl LogDirectory {
    /// A regular file of this name, and no link to one.
    pub(super) fn open(&self, name: &OsStr) -> io::Result<(File, FileIdentity)> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = File::from(openat(&self.0, name, flags, Mode::empty())?);
        let found = file.metadata()?;
        if !found.is_file() {
            return Err(io::Error::other("it is no regular file"));
        }
        Ok((file, identity_of(&found)))
    }

    /// What has this name now.
    pub(super) fn identity(&self, name: &OsStr) -> io::Result<FileIdentity> {
        let found = statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(FileIdentity {
            device: found.st_dev,
            inode: found.st_ino,
        })
    }

    pub(super) fn names(&self) -> io::Result<Vec<String>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut names = Vec::new();
        for entry in Dir::new(openat(&self.0, ".", flags, Mode::empty())?)? {
            let entry = entry?;
            let name = entry.file_name().to_str();
            names.extend(
                name.ok()
                    .filter(|name| !matches!(*name, "." | ".."))
                    .map(str::to_owned),
            );
        }
        names.sort_unstable();
        Ok(names)
    }
}

pub(super) fn identity_of(found: &fs::Metadata) -> FileIdentity {
    FileIdentity {
        device: found.dev(),
        inode: found.ino(),
    }
}

/// The name that the kernel knows something open by, also after it was renamed.
pub(super) fn name_of(open: &impl AsFd) -> io::Result<PathBuf> {
    fs::read_link(format!("/proc/self/fd/{}", open.as_fd().as_raw_fd()))
}

/// The directory of a container's log, and the log's path without symlinks.
pub(super) fn resolve(log: &Path, container_id: &str) -> io::Result<(LogDirectory, PathBuf)> {
    let root = log.ancestors().nth(LEVELS).ok_or(Errno::INVAL)?;
    let top = openat(CWD, root, FOLDER, Mode::empty())?;
    let real_root = name_of(&top)?;
    let mut path = log.strip_prefix(root).map_err(io::Error::other)?.to_owned();
    for _ in 0..MAX_LINKS {
        let (parent, name) = path.parent().zip(path.file_name()).ok_or(Errno::INVAL)?;
        let inside = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let directory = folder(&top, parent, inside)?;
        let target = match readlinkat(&directory, name, Vec::new()) {
            Ok(target) => PathBuf::from(OsStr::from_bytes(target.as_bytes())),
            Err(Errno::INVAL) => return found(directory, name),
            Err(errno) => return Err(errno.into()),
        };
        path = if target.is_relative() {
            parent.join(target)
        } else if let Ok(inside) = target.strip_prefix(root).or(target.strip_prefix(&real_root)) {
            inside.to_owned()
        } else if let Some((directory, name)) = dockers(&target, container_id) {
            return found(folder(CWD, directory, ResolveFlags::NO_SYMLINKS)?, name);
        } else {
            return Err(leads_out());
        };
    }
    Err(Errno::LOOP.into())
}

fn found(directory: OwnedFd, name: &OsStr) -> io::Result<(LogDirectory, PathBuf)> {
    let path = name_of(&directory)?.join(name);
    Ok((LogDirectory(directory), path))
}

fn folder(top: impl AsFd, path: &Path, resolve: ResolveFlags) -> io::Result<OwnedFd> {
    // The folder itself has no name of its own.
    let path = if path.as_os_str().is_empty() {
        Path::new(".")
    } else {
        path
    };
    match despite_races(|| openat2(&top, path, FOLDER, Mode::empty(), resolve)) {
        Err(Errno::XDEV) => Err(leads_out()),
        opened => Ok(opened?),
    }
}

/// A rename that raced with the resolution makes the kernel ask to try again; a pod that renames in a loop must not keep the
/// thread.
fn despite_races<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    for _ in 1..MAX_RACES {
        match call() {
            Err(Errno::AGAIN | Errno::INTR) => {}
            result => return result,
        }
    }
    call()
}

fn leads_out() -> io::Error {
    io::Error::other("it leads out of the directory of logs")
}

/// The two parts of a path that only the log of this container has: `…/containers/<id>/<id>-json.log`.
fn dockers<'a>(target: &'a Path, container_id: &str) -> Option<(&'a Path, &'a OsStr)> {
    let id = container_id
        .strip_prefix("docker://")
        .filter(|id| !id.is_empty())?;
    let (directory, name) = target.parent().zip(target.file_name())?;
    let is_its_own = directory.ends_with(Path::new("containers").join(id))
        && name == OsStr::new(&format!("{id}-json.log"));
    is_its_own.then_some((directory, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn races_end() {
        let mut calls = 0;
        let result = despite_races(|| {
            calls += 1;
            Err::<(), _>(Errno::AGAIN)
        });
        assert_eq!((result, calls), (Err(Errno::AGAIN), MAX_RACES));
        assert_eq!(despite_races(|| Err::<(), _>(Errno::NOENT)), Err(Errno::NOENT));
    }
}
