//! The file calls themselves, blocking.
//!
//! Owns the order of system calls that makes a write durable and a read bounded. Each function may hang in the kernel, so that
//! they run on the blocking pool only.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rubelet_ports::{DirectoryEntry, FileError, FileErrorKind, FileKind};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;

use crate::lease::ReadLease;
use crate::races::despite_races;

/// Numbers temporary files, so that two writes of one file do not meet.
static TEMPORARY: AtomicU64 = AtomicU64::new(0);

/// An error of the kernel as the port's error.
pub(crate) fn failed<'a>(path: &'a Path, attempt: &'a str) -> impl Fn(io::Error) -> FileError + 'a {
    move |error| FileError {
        path: path.to_owned(),
        kind: kind_of(&error),
        message: format!("cannot {attempt}: {error}"),
    }
}

pub(crate) fn refused(path: &Path, kind: FileErrorKind, message: impl Into<String>) -> FileError {
    FileError {
        path: path.to_owned(),
        kind,
        message: message.into(),
    }
}

fn kind_of(error: &io::Error) -> FileErrorKind {
    match Errno::from_io_error(error) {
        Some(Errno::NOENT) => FileErrorKind::NotFound,
        Some(Errno::ACCESS | Errno::PERM | Errno::ROFS) => FileErrorKind::PermissionDenied,
        Some(Errno::NOSPC | Errno::DQUOT) => FileErrorKind::NoSpace,
        Some(Errno::FBIG) => FileErrorKind::TooLarge,
        Some(Errno::ISDIR | Errno::NOTDIR | Errno::LOOP) => FileErrorKind::WrongKind,
        Some(Errno::BUSY) => FileErrorKind::Mounted,
        Some(Errno::TIMEDOUT | Errno::HOSTDOWN) => FileErrorKind::TimedOut,
        _ => FileErrorKind::Other,
    }
}

/// Opens a regular file for reading. A pipe does not keep the caller waiting for a writer.
fn open_file(path: &Path) -> Result<(File, u64), FileError> {
    let flags = i32::try_from((OFlags::NONBLOCK | OFlags::NOCTTY).bits()).unwrap_or_default();
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)
        .map_err(|error| match Errno::from_io_error(&error) {
            // A socket.
            Some(Errno::NXIO) => refused(path, FileErrorKind::WrongKind, "not a regular file"),
            _ => failed(path, "open the file")(error),
        })?;
    let length = regular_length(path, &file)?;
    Ok((file, length))
}

/// The length of an open file, if it is a regular one.
fn regular_length(path: &Path, file: &File) -> Result<u64, FileError> {
    let metadata = file.metadata().map_err(failed(path, "look at the file"))?;
    if metadata.is_dir() {
        return Err(refused(path, FileErrorKind::WrongKind, "a directory, not a file"));
    }
    if !metadata.is_file() {
        return Err(refused(path, FileErrorKind::WrongKind, "not a regular file"));
    }
    Ok(metadata.len())
}

/// The kernel resolves the path as if the directory were the root of everything, so that no link leads out of it.
fn open_within(directory: &Path, path: &Path) -> Result<(File, u64), FileError> {
    let shown = directory.join(path);
    let to_error = |error: Errno| failed(&shown, "open the file")(error.into());
    let root = openat(
        CWD,
        directory,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .map_err(to_error)?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let inside = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let opened = despite_races(|| openat2(&root, path, flags, Mode::empty(), inside));
    let file = File::from(opened.map_err(to_error)?);
    let length = regular_length(&shown, &file)?;
    Ok((file, length))
}

pub(crate) fn read_within(directory: &Path, path: &Path, limit_bytes: u64) -> Result<Vec<u8>, FileError> {
    let (file, length) = open_within(directory, path)?;
    read_open(&directory.join(path), &file, length, limit_bytes)
}

pub(crate) fn read(path: &Path, limit_bytes: u64) -> Result<Vec<u8>, FileError> {
    let (file, length) = open_file(path)?;
    read_open(path, &file, length, limit_bytes)
}

/// Reads a file under a lease, so that no process begins to write it meanwhile; `None` when a process already writes it.
pub(crate) fn read_at_rest(path: &Path, limit_bytes: u64) -> Result<Option<Vec<u8>>, FileError> {
    let (file, _) = open_file(path)?;
    let Some(_lease) = ReadLease::take(&file) else {
        return Ok(None);
    };
    let length = file.metadata().map_err(failed(path, "look at the file"))?.len();
    read_open(path, &file, length, limit_bytes).map(Some)
}

fn read_open(path: &Path, file: &File, length: u64, limit_bytes: u64) -> Result<Vec<u8>, FileError> {
    let too_large = || {
        let message = format!("larger than {limit_bytes} bytes");
        refused(path, FileErrorKind::TooLarge, message)
    };
    if length > limit_bytes {
        return Err(too_large());
    }
    let mut content = Vec::with_capacity(usize::try_from(length).unwrap_or_default());
    // The file may grow meanwhile, and files of the kernel have no length.
    file.take(limit_bytes.saturating_add(1))
        .read_to_end(&mut content)
        .map_err(failed(path, "read the file"))?;
    if content.len() as u64 > limit_bytes {
        return Err(too_large());
    }
    Ok(content)
}

pub(crate) fn read_end(path: &Path, limit_bytes: u64) -> Result<Vec<u8>, FileError> {
    let (file, length) = open_file(path)?;
    read_open_end(path, file, length, limit_bytes)
}

pub(crate) fn read_end_within(directory: &Path, path: &Path, limit_bytes: u64) -> Result<Vec<u8>, FileError> {
    let (file, length) = open_within(directory, path)?;
    read_open_end(&directory.join(path), file, length, limit_bytes)
}

fn read_open_end(path: &Path, mut file: File, length: u64, limit_bytes: u64) -> Result<Vec<u8>, FileError> {
    let start = length.saturating_sub(limit_bytes);
    file.seek(SeekFrom::Start(start))
        .map_err(failed(path, "read the file"))?;
    let mut content = Vec::new();
    file.take(limit_bytes)
        .read_to_end(&mut content)
        .map_err(failed(path, "read the file"))?;
    Ok(content)
}

pub(crate) fn list(directory: &Path) -> Result<Vec<DirectoryEntry>, FileError> {
    let attempt = "list the directory";
    let mut entries = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed(directory, attempt))? {
        let entry = entry.map_err(failed(directory, attempt))?;
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        match entry.file_type() {
            Ok(kind) => entries.push(DirectoryEntry {
                name,
                kind: kind_of_file(kind),
            }),
            // Gone since the directory was read.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(directory, attempt)(error)),
        }
    }
    entries.sort();
    Ok(entries)
}

pub(crate) fn kind(path: &Path) -> Result<FileKind, FileError> {
    let metadata = fs::metadata(path).map_err(failed(path, "look at the path"))?;
    Ok(kind_of_file(metadata.file_type()))
}

fn kind_of_file(kind: fs::FileType) -> FileKind {
    if kind.is_file() {
        FileKind::File
    } else if kind.is_dir() {
        FileKind::Directory
    } else if kind.is_symlink() {
        FileKind::Symlink
    } else {
        debug_assert!(kind.is_socket() || kind.is_fifo() || kind.is_block_device() || kind.is_char_device());
        FileKind::Other
    }
}

/// The directory of a path and a temporary name in it. Programs that read the directory skip names that begin with a dot.
fn temporary_beside(path: &Path) -> Result<(PathBuf, PathBuf), FileError> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(refused(path, FileErrorKind::WrongKind, "not the path of a file"));
    };
    let directory = match directory {
        empty if empty.as_os_str().is_empty() => Path::new("."),
        directory => directory,
    };
    let mut temporary = OsString::from(".");
    temporary.push(name);
    temporary.push(format!(".{}.tmp", TEMPORARY.fetch_add(1, Ordering::Relaxed)));
    Ok((directory.to_owned(), directory.join(temporary)))
}

/// Does it again once when a killed process has left something under the same temporary name.
fn create_anew<T>(temporary: &Path, create: impl Fn() -> io::Result<T>) -> io::Result<T> {
    match create() {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            fs::remove_file(temporary)?;
            create()
        }
        result => result,
    }
}

/// Moves what was made under a temporary name to its place; what cannot be moved is removed.
fn put_in_place(temporary: &Path, path: &Path) -> io::Result<()> {
    let moved = fs::rename(temporary, path);
    if moved.is_err() {
        let _ = fs::remove_file(temporary);
    }
    moved
}

pub(crate) fn write(path: &Path, content: &[u8], mode: u32) -> Result<(), FileError> {
    let (directory, temporary) = temporary_beside(path)?;
    let attempt = failed(path, "write the file");
    let mut file = create_anew(&temporary, || {
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&temporary)
    })
    .map_err(&attempt)?;
    let written = file
        .set_permissions(Permissions::from_mode(mode))
        .and_then(|()| file.write_all(content))
        .and_then(|()| file.sync_all());
    if let Err(error) = written {
        let _ = fs::remove_file(&temporary);
        return Err(attempt(error));
    }
    // Only with the directory's own entry is the file there after a power loss.
    put_in_place(&temporary, path)
        .and_then(|()| File::open(directory)?.sync_all())
        .map_err(&attempt)
}

pub(crate) fn write_in_place(path: &Path, content: &[u8], mode: u32) -> Result<(), FileError> {
    let attempt = failed(path, "write the file");
    let flags =
        i32::try_from((OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY).bits()).unwrap_or_default();
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(flags)
        .open(path)
        .map_err(&attempt)?;
    if !file.metadata().map_err(&attempt)?.is_file() {
        return Err(refused(path, FileErrorKind::WrongKind, "not a regular file"));
    }
    // Cut to length last: a reader never finds the file empty. It is made anew with its container, so that nothing waits for
    // the disk here.
    file.set_permissions(Permissions::from_mode(mode))
        .and_then(|()| file.write_all(content))
        .and_then(|()| file.set_len(content.len() as u64))
        .map_err(attempt)
}

pub(crate) fn create_directory(path: &Path, mode: u32) -> Result<(), FileError> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => return Ok(()),
        Ok(_) => return Err(refused(path, FileErrorKind::WrongKind, "not a directory")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(path, "look at the path")(error)),
    }
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        create_directory(parent, mode)?;
    }
    let attempt = failed(path, "make the directory");
    match fs::DirBuilder::new().mode(mode).create(path) {
        Ok(()) => fs::set_permissions(path, Permissions::from_mode(mode)).map_err(attempt),
        // Another process was faster.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(error) => Err(attempt(error)),
    }
}

pub(crate) fn link(target: &Path, link: &Path) -> Result<(), FileError> {
    if fs::read_link(link).is_ok_and(|present| present == target) {
        return Ok(());
    }
    let (_, temporary) = temporary_beside(link)?;
    let attempt = failed(link, "make the link");
    create_anew(&temporary, || symlink(target, &temporary)).map_err(&attempt)?;
    put_in_place(&temporary, link).map_err(attempt)
}

pub(crate) fn remove_file(path: &Path) -> Result<(), FileError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(path, "remove the file")(error)),
        _ => Ok(()),
    }
}
