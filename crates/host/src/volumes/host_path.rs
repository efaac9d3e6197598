//! The check of a hostPath volume's type, and the creation that two of the types ask for.
//!
//! Owns the words of a failed check. The path is the node's own and may lie anywhere, also on a mount that is dead.

use std::fs::{self, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rubelet_ports::VolumeErrorKind;
use rubelet_ports::volume_host::HostPathKind;
use rustix::io::Errno;

use super::failure::{Failure, errno_of, failed, kind_of, words};

const DIRECTORY_MODE: u32 = 0o755;
const FILE_MODE: u32 = 0o644;

/// What a path leads to, in the words of the API's types.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Present {
    Directory,
    File,
    Socket,
    CharDevice,
    BlockDevice,
    /// A pipe: no type of a hostPath means it.
    Unknown,
}

impl Present {
    fn of(kind: fs::FileType) -> Self {
        if kind.is_dir() {
            Self::Directory
        } else if kind.is_file() {
            Self::File
        } else if kind.is_socket() {
            Self::Socket
        } else if kind.is_char_device() {
            Self::CharDevice
        } else if kind.is_block_device() {
            Self::BlockDevice
        } else {
            Self::Unknown
        }
    }

    fn word(self) -> Option<&'static str> {
        match self {
            Self::Directory => Some("Directory"),
            Self::File => Some("File"),
            Self::Socket => Some("Socket"),
            Self::CharDevice => Some("CharDevice"),
            Self::BlockDevice => Some("BlockDevice"),
            Self::Unknown => None,
        }
    }
}

pub(super) fn check(path: &Path, kind: HostPathKind) -> Result<(), Failure> {
    let looked = fs::metadata(path).map(|metadata| Present::of(metadata.file_type()));
    let wanted = match kind {
        HostPathKind::DirectoryOrCreate if looked.is_err() => return make_directory(path),
        HostPathKind::FileOrCreate if looked.is_err() => return make_file(path),
        HostPathKind::DirectoryOrCreate | HostPathKind::Directory => Present::Directory,
        HostPathKind::FileOrCreate | HostPathKind::File => Present::File,
        HostPathKind::Socket => Present::Socket,
        HostPathKind::CharDevice => Present::CharDevice,
        HostPathKind::BlockDevice => Present::BlockDevice,
    };
    match looked {
        Ok(present) if present == wanted => Ok(()),
        Ok(present) => Err(mismatch(path, kind, present)),
        Err(error) => Err(undetermined(path, kind, &error)),
    }
}

fn mismatch(path: &Path, kind: HostPathKind, present: Present) -> Failure {
    let unknown = "only recognise file, directory, socket, block device and character device";
    let message = kind.mismatch(path, present.word().ok_or(unknown));
    Failure::new(VolumeErrorKind::WrongKind, message)
}

fn undetermined(path: &Path, kind: HostPathKind, error: &io::Error) -> Failure {
    let errno = errno_of(error);
    let reason = match errno {
        Errno::NOENT => format!("path {path:?} does not exist"),
        errno => format!("stat {}: {}", path.display(), words(errno)),
    };
    Failure::new(kind_of(errno), kind.mismatch(path, Err(&reason)))
}

fn make_directory(path: &Path) -> Result<(), Failure> {
    let missing: Vec<&Path> = path
        .ancestors()
        .take_while(|parent| {
            let looked = fs::metadata(parent);
            looked.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        })
        .collect();
    let failed = |path: &Path, error: &io::Error| failed("mkdir", path)(errno_of(error));
    if missing.is_empty() {
        // Something in the way, like a file above it: the attempt tells what.
        let made = fs::DirBuilder::new().mode(DIRECTORY_MODE).create(path);
        return made.map_err(|error| failed(path, &error));
    }
    for directory in missing.into_iter().rev() {
        let made = fs::DirBuilder::new().mode(DIRECTORY_MODE).create(directory);
        match made {
            Ok(()) => {
                let exact = Permissions::from_mode(DIRECTORY_MODE);
                fs::set_permissions(directory, exact).map_err(|error| failed(directory, &error))?;
            }
            // Somebody else was faster.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed(directory, &error)),
        }
    }
    Ok(())
}

fn make_file(path: &Path) -> Result<(), Failure> {
    let failed = |error: &io::Error| failed("open", path)(errno_of(error));
    let made = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(FILE_MODE)
        .open(path);
    match made {
        Ok(file) => {
            let exact = Permissions::from_mode(FILE_MODE);
            file.set_permissions(exact).map_err(|error| failed(&error))
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.exists() => Ok(()),
        Err(error) => Err(failed(&error)),
    }
}
