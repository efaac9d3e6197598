//! Why a step failed; the caller adds which step of which volume it was.
//!
//! Owns the mapping of the kernel's error numbers to the port's kinds, and the messages.

use std::io;
use std::path::Path;

use rubelet_ports::{FileError, FileErrorKind, VolumeErrorKind};
use rustix::io::Errno;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) kind: VolumeErrorKind,
    pub(super) message: String,
}

impl Failure {
    pub(super) fn new(kind: VolumeErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
        }
    }

    /// For a batch whose caller has gone.
    pub(super) fn too_late() -> Self {
        Self::new(
            VolumeErrorKind::TimedOut,
            "the deadline passed before the step was done",
        )
    }
}

/// An error of the kernel, with what was tried: `mount tmpfs at /a: permission denied`.
pub(super) fn failed<'a>(attempt: &'a str, path: &'a Path) -> impl Fn(Errno) -> Failure + 'a {
    move |errno| {
        let message = format!("{attempt} {}: {}", path.display(), errno_text(errno));
        Failure::new(kind_of(errno), message)
    }
}

pub(super) fn kind_of(errno: Errno) -> VolumeErrorKind {
    match errno {
        Errno::NOENT => VolumeErrorKind::NotFound,
        Errno::ACCESS | Errno::PERM | Errno::ROFS => VolumeErrorKind::PermissionDenied,
        Errno::NOSPC | Errno::DQUOT | Errno::NOMEM => VolumeErrorKind::NoSpace,
        Errno::NOTDIR | Errno::ISDIR | Errno::LOOP => VolumeErrorKind::WrongKind,
        Errno::XDEV => VolumeErrorKind::Escape,
        Errno::BUSY => VolumeErrorKind::Busy,
        Errno::TIMEDOUT => VolumeErrorKind::TimedOut,
        Errno::NODEV | Errno::NOSYS | Errno::OPNOTSUPP => VolumeErrorKind::Unsupported,
        errno if is_corrupted(errno) => VolumeErrorKind::Corrupted,
        _ => VolumeErrorKind::Other,
    }
}

/// What a filesystem answers whose server has gone.
pub(super) fn is_corrupted(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::STALE | Errno::NOTCONN | Errno::IO | Errno::HOSTDOWN | Errno::AGAIN | Errno::SHUTDOWN
    )
}

/// The error as programs of Kubernetes write it: in lower case and without its number.
pub(super) fn errno_text(errno: Errno) -> String {
    let text = io::Error::from(errno).to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut characters = text.chars();
    characters.next().map_or_else(String::new, |first| {
        first.to_lowercase().chain(characters).collect()
    })
}

pub(super) fn errno_of(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

impl From<FileError> for Failure {
    fn from(error: FileError) -> Self {
        let kind = match error.kind {
            FileErrorKind::NotFound => VolumeErrorKind::NotFound,
            FileErrorKind::PermissionDenied => VolumeErrorKind::PermissionDenied,
            FileErrorKind::NoSpace => VolumeErrorKind::NoSpace,
            FileErrorKind::WrongKind => VolumeErrorKind::WrongKind,
            FileErrorKind::Mounted => VolumeErrorKind::Mounted,
            FileErrorKind::TimedOut => VolumeErrorKind::TimedOut,
            FileErrorKind::TooLarge | FileErrorKind::Other => VolumeErrorKind::Other,
        };
        Self::new(kind, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_worded_and_sorted() {
        let check = |errno, kind, text: &str| {
            let failure = failed("open", Path::new("/a"))(errno);
            assert_eq!(failure, Failure::new(kind, format!("open /a: {text}")));
        };
        check(
            Errno::NOENT,
            VolumeErrorKind::NotFound,
            "no such file or directory",
        );
        check(Errno::NOTDIR, VolumeErrorKind::WrongKind, "not a directory");
        check(
            Errno::ROFS,
            VolumeErrorKind::PermissionDenied,
            "read-only file system",
        );
        check(Errno::BUSY, VolumeErrorKind::Busy, "device or resource busy");
        check(
            Errno::NOTCONN,
            VolumeErrorKind::Corrupted,
            "transport endpoint is not connected",
        );
    }
}
