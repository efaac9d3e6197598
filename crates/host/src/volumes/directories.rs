//! Directories and marker files with exact modes.
//!
//! Owns making them whatever the umask. Everything here lies below the pods' directory, which only root can write.

use std::fs::{self, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rubelet_ports::VolumeErrorKind;
use rustix::io::Errno;

use super::failure::{Failure, errno_of, failed};
use super::mount_table::{is_mount_point, look};
use super::mounting::present_at;

const PARENT_MODE: u32 = 0o750;
const READY_FILE: &str = "ready";
const READY_MODE: u32 = 0o644;

/// Makes a directory and what is missing above it. One that exists gets the mode, unless something is mounted there.
pub(super) fn make_directory(path: &Path, mode: u32) -> Result<(), Failure> {
    match look(path) {
        Ok(found) if !found.is_directory() => {
            let message = format!("{} is there and is no directory", path.display());
            return Err(Failure::new(VolumeErrorKind::WrongKind, message));
        }
        Ok(found) => {
            if found.mode() == mode || is_mount_point(path, &found)? {
                return Ok(());
            }
        }
        Err(Errno::NOENT) => {
            make_parents(path, PARENT_MODE)?;
            create(path, mode)?;
        }
        Err(errno) => return Err(failed("look at", path)(errno)),
    }
    set_mode(path, mode)
}

/// Makes the directories above a path that are missing.
pub(super) fn make_parents(path: &Path, mode: u32) -> Result<(), Failure> {
    let missing: Vec<&Path> = path
        .ancestors()
        .skip(1)
        .take_while(|parent| {
            !parent.as_os_str().is_empty() && look(parent).is_err_and(|errno| errno == Errno::NOENT)
        })
        .collect();
    for parent in missing.into_iter().rev() {
        create(parent, mode)?;
        set_mode(parent, mode)?;
    }
    Ok(())
}

fn create(path: &Path, mode: u32) -> Result<(), Failure> {
    match fs::DirBuilder::new().mode(mode).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(failed("mkdir", path)(errno_of(&error)))
        }
        _ => Ok(()),
    }
}

fn set_mode(path: &Path, mode: u32) -> Result<(), Failure> {
    fs::set_permissions(path, Permissions::from_mode(mode))
        .map_err(|error| failed("chmod", path)(errno_of(&error)))
}

/// A volume counts as set up once its marker is there.
pub(super) fn mark_ready(marker: &Path) -> Result<(), Failure> {
    make_directory(marker, PARENT_MODE)?;
    let file = marker.join(READY_FILE);
    make_file(&file, READY_MODE)?;
    set_mode(&file, READY_MODE)
}

/// Makes an empty file; one that exists stays as it is.
pub(super) fn make_file(path: &Path, mode: u32) -> Result<(), Failure> {
    let made = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path);
    match made {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(failed("open", path)(errno_of(&error)))
        }
        _ => Ok(()),
    }
}

/// Whether a volume was set up before and is still there.
pub(super) fn is_ready(marker: &Path, directory: &Path, is_mounted: bool) -> Result<bool, Failure> {
    if look(&marker.join(READY_FILE)).is_err() {
        return Ok(false);
    }
    match look(directory) {
        Err(Errno::NOENT) => return Ok(false),
        Err(errno) => return Err(failed("look at", directory)(errno)),
        Ok(found) if !found.is_directory() => return Ok(false),
        Ok(_) if !is_mounted => return Ok(true),
        Ok(_) => {}
    }
    let present = present_at(directory)?;
    Ok(present.is_some_and(|mount| mount.filesystem == "tmpfs"))
}

/// Removes a directory unless something is in it.
pub(super) fn remove_empty(path: &Path) -> Result<(), Failure> {
    match rustix::fs::rmdir(path) {
        Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
        Err(Errno::BUSY) => {
            let message = format!("{} is a mount point and stays", path.display());
            Err(Failure::new(VolumeErrorKind::Mounted, message))
        }
        Err(errno) => Err(failed("rmdir", path)(errno)),
    }
}
