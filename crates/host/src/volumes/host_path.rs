//! The check of a hostPath volume's type, and the creation that two of the types ask for.
//!
//! Owns the messages of a failed check. The path is the node's own and may lie anywhere, also on a dead mount.

use std::fs::{self, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rubelet_ports::VolumeErrorKind;
use rubelet_ports::volume_host::HostPathKind;
use rustix::fs::{Mode, OFlags, fchmod, mkdirat, open, openat};
use rustix::io::Errno;

use super::failure::{Failure, errno_of, errno_text, failed, kind_of};

const DIRECTORY_MODE: u32 = 0o755;
const FILE_MODE: u32 = 0o644;

/// What a path leads to, by the API's types of hostPath.
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

    fn type_name(self) -> Option<&'static str> {
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
    let message = kind.mismatch(path, present.type_name().ok_or(unknown));
    Failure::new(VolumeErrorKind::WrongKind, message)
}

fn undetermined(path: &Path, kind: HostPathKind, error: &io::Error) -> Failure {
    let errno = errno_of(error);
    let reason = match errno {
        Errno::NOENT => format!("path {path:?} does not exist"),
        errno => format!("stat {}: {}", path.display(), errno_text(errno)),
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
    if missing.is_empty() {
        // An entry on the path is no directory: the attempt fails with the reason.
        let made = fs::DirBuilder::new().mode(DIRECTORY_MODE).create(path);
        return made.map_err(|error| failed("mkdir", path)(errno_of(&error)));
    }
    make_below(&missing).map_err(|(path, errno)| failed("mkdir", path)(errno))
}

/// Makes directories, the outermost last in the list. Each is made in its open parent and gets its mode through its own
/// descriptor: those who may write to the parent could put a link there meanwhile.
fn make_below<'p>(missing: &[&'p Path]) -> Result<(), (&'p Path, Errno)> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Some(outermost) = missing.last() else {
        return Ok(());
    };
    let parent = outermost.parent().filter(|parent| !parent.as_os_str().is_empty());
    let opened = open(parent.unwrap_or(Path::new(".")), flags, Mode::empty());
    let mut parent = opened.map_err(|errno| (*outermost, errno))?;
    let mode = Mode::from_raw_mode(DIRECTORY_MODE);
    for path in missing.iter().rev() {
        let with_path = |errno| (*path, errno);
        let name = path.file_name().ok_or(Errno::INVAL).map_err(with_path)?;
        let is_made = match mkdirat(&parent, name, mode) {
            Ok(()) => true,
            // Another process was faster; what it made may be a link to a directory.
            Err(Errno::EXIST) => false,
            Err(errno) => return Err((path, errno)),
        };
        let flags = if is_made { flags | OFlags::NOFOLLOW } else { flags };
        parent = openat(&parent, name, flags, Mode::empty()).map_err(with_path)?;
        if is_made {
            fchmod(&parent, mode).map_err(with_path)?;
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// Another process puts a link in the place of what was just made, as fast as it can.
    #[test]
    fn a_link_in_the_way_changes_no_mode_elsewhere() {
        let folder = tempfile::tempdir().unwrap();
        let (made, aside) = (folder.path().join("made"), folder.path().join("aside"));
        let private = folder.path().join("private");
        fs::create_dir(&private).unwrap();
        let only_owner = Permissions::from_mode(0o700);
        fs::set_permissions(&private, only_owner).unwrap();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    if fs::rename(&made, &aside).is_ok() {
                        // The maker may have been faster, and made it again.
                        let _ = symlink(&private, &made);
                        // Either a directory, or a link of the last turn.
                        let _ = fs::remove_dir(&aside).or_else(|_| fs::remove_file(&aside));
                    }
                }
            });
            for _ in 0..3000 {
                // A link that comes in between may be the error; what counts is what it leads to.
                let _ = make_directory(&made);
                let _ = fs::remove_file(&made);
            }
            is_over.store(true, Ordering::Relaxed);
        });
        let mode = fs::metadata(&private).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o700);
    }
}
