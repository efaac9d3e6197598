//! A short lease on a file: while it is held no process begins to write.
//!
//! Owns the two calls that `rustix` does not have. A process that opens the file for writing meanwhile waits until the lease ends,
//! and the kernel notifies this process by a signal; the one chosen here is ignored by default.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// The kernel's number; `libc` does not have it for every target.
const F_SETSIG: i32 = 10;

pub(crate) struct ReadLease<'a> {
    /// `None` when the filesystem has no leases, or another user owns the file.
    held: Option<BorrowedFd<'a>>,
}

impl<'a> ReadLease<'a> {
    /// `None` when a process has the file open for writing.
    pub(crate) fn take(file: &'a File) -> Option<Self> {
        let file = file.as_fd();
        // Without it the signal would be one that ends the process.
        if control(file, F_SETSIG, libc::SIGURG).is_err() {
            return Some(Self { held: None });
        }
        match control(file, libc::F_SETLEASE, libc::F_RDLCK) {
            Ok(()) => Some(Self { held: Some(file) }),
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => None,
            Err(_) => Some(Self { held: None }),
        }
    }
}

impl Drop for ReadLease<'_> {
    fn drop(&mut self) {
        if let Some(file) = self.held {
            // A lease also ends with its descriptor, so that a failure here changes nothing.
            let _ = control(file, libc::F_SETLEASE, libc::F_UNLCK);
        }
    }
}

fn control(file: BorrowedFd<'_>, command: i32, value: i32) -> std::io::Result<()> {
    #[expect(unsafe_code, reason = "rustix has no leases")]
    // SAFETY: the descriptor is open, and both commands take one number and touch no memory of ours.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), command, value) };
    match result {
        -1 => Err(std::io::Error::last_os_error()),
        _ => Ok(()),
    }
}
