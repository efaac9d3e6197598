//! The node's own logs behind the port.
//!
//! Owns how a path is resolved: by the kernel, restricted to the directory. Pods that mount `/var/log` can make links there, so that
//! no link is trusted; those with an absolute target inside the directory, as the links of container logs have, are resolved here,
//! one at a time and below the directory again.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Component, Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use futures_util::stream::{BoxStream, unfold};
use rubelet_model::Timestamp;
use rubelet_ports::{
    DirectoryEntry, FileContent, FileError, FileErrorKind, FileKind, NodeLog, NodeLogFile, NodeLogReader,
};
use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, openat, openat2, readlinkat};
use rustix::io::Errno;
use tokio::io::AsyncReadExt as _;
use tokio::process::{Child, Command};

use crate::blocking::{BlockingPool, PoolLimits};
use crate::file_calls::{failed, refused};
use crate::files::on_pool;
use crate::races::despite_races;

const CALL_DEADLINE: Duration = Duration::from_secs(30);
/// As many links as the kernel follows.
const MAX_LINKS: usize = 40;
const PIECE_BYTES: usize = 64 * 1024;
/// What the list of units may take and hold.
const UNITS_DEADLINE: Duration = Duration::from_secs(10);
const UNITS_LIMIT_BYTES: u64 = 4 << 20;

#[derive(Clone)]
pub struct HostNodeLogs {
    directory: PathBuf,
    journal: PathBuf,
    pool: BlockingPool,
}

impl HostNodeLogs {
    /// The directory as links name it, and the program that reads the journal.
    #[must_use]
    pub fn new(directory: impl Into<PathBuf>, journal: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
            journal: journal.into(),
            pool: BlockingPool::new(PoolLimits::default()),
        }
    }

    fn command(&self, arguments: &[String]) -> Command {
        let mut command = Command::new(&self.journal);
        command
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }
}

#[async_trait]
impl NodeLogReader for HostNodeLogs {
    async fn open(&self, path: &str) -> Result<NodeLog, FileError> {
        let (pool, path) = (self.pool.clone(), PathBuf::from(path));
        let call = move |directory: PathBuf| open(&pool, &directory, &path);
        on_pool(&self.pool, &self.directory, CALL_DEADLINE, call).await
    }

    async fn journal_units(&self) -> Option<String> {
        let mut command = self.command(&["--field".to_owned(), "_SYSTEMD_UNIT".to_owned()]);
        let mut child = command.stderr(Stdio::null()).spawn().ok()?;
        let output = child.stdout.take()?;
        let read = async {
            let mut names = Vec::new();
            output
                .take(UNITS_LIMIT_BYTES)
                .read_to_end(&mut names)
                .await
                .ok()?;
            child.wait().await.ok()?.success().then_some(names)
        };
        let names = tokio::time::timeout(UNITS_DEADLINE, read).await.ok()??;
        Some(String::from_utf8_lossy(&names).into_owned())
    }

    fn journal(&self, arguments: Vec<String>) -> BoxStream<'static, Result<Vec<u8>, FileError>> {
        let child = self
            .command(&arguments)
            .spawn()
            .map_err(failed(&self.journal, "run the program"));
        match child {
            Ok(child) => unfold(child, next_piece).boxed(),
            Err(error) => futures_util::stream::iter([Err(error)]).boxed(),
        }
    }
}

/// The next bytes of either output, until both are closed. The exit code is ignored, as upstream does.
async fn next_piece(mut child: Child) -> Option<(Result<Vec<u8>, FileError>, Child)> {
    let mut output = vec![0; PIECE_BYTES];
    let mut complaint = vec![0; PIECE_BYTES];
    loop {
        let from_output = async {
            match &mut child.stdout {
                Some(stdout) => stdout.read(&mut output).await.unwrap_or(0),
                None => std::future::pending().await,
            }
        };
        let from_complaint = async {
            match &mut child.stderr {
                Some(stderr) => stderr.read(&mut complaint).await.unwrap_or(0),
                None => std::future::pending().await,
            }
        };
        // Cancel-safe: a read that was not chosen has taken nothing.
        let (length, is_output) = tokio::select! {
            biased;
            length = from_output => (length, true),
            length = from_complaint => (length, false),
        };
        if length > 0 {
            let mut piece = if is_output { output } else { complaint };
            piece.truncate(length);
            return Some((Ok(piece), child));
        }
        if is_output {
            child.stdout = None;
        } else {
            child.stderr = None;
        }
        if child.stdout.is_none() && child.stderr.is_none() {
            let _ = child.wait().await;
            return None;
        }
    }
}

fn open(pool: &BlockingPool, directory: &Path, path: &Path) -> Result<NodeLog, FileError> {
    let shown = directory.join(path);
    let attempt = |errno: Errno| match errno {
        Errno::XDEV => refused(
            &shown,
            FileErrorKind::PermissionDenied,
            "it leads out of the directory of logs",
        ),
        errno => failed(&shown, "open the file")(errno.into()),
    };
    let root = openat(
        CWD,
        directory,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .map_err(attempt)?;
    let opened = open_below(&root, directory, path).map_err(attempt)?;
    let found = fstat(&opened).map_err(attempt)?;
    match FileType::from_raw_mode(found.st_mode) {
        FileType::Directory => Ok(NodeLog::Directory(
            entries(opened.as_fd().try_clone_to_owned()).map_err(attempt)?,
        )),
        FileType::RegularFile => Ok(NodeLog::File(NodeLogFile {
            size_bytes: u64::try_from(found.st_size).unwrap_or_default(),
            modified: modified(&found),
            content: Arc::new(OpenFile {
                file: Arc::new(File::from(opened)),
                path: shown,
                pool: pool.clone(),
            }),
        })),
        _ => Err(refused(
            &shown,
            FileErrorKind::PermissionDenied,
            "not a regular file",
        )),
    }
}

fn modified(found: &Stat) -> Timestamp {
    Timestamp::from_unix_seconds(found.st_mtime)
}

fn entries(directory: std::io::Result<OwnedFd>) -> Result<Vec<DirectoryEntry>, Errno> {
    let directory = directory.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    let mut entries = Vec::new();
    for entry in Dir::new(directory)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().to_str() else {
            continue;
        };
        if matches!(name, "." | "..") {
            continue;
        }
        entries.push(DirectoryEntry {
            name: name.to_owned(),
            kind: match entry.file_type() {
                FileType::RegularFile => FileKind::File,
                FileType::Directory => FileKind::Directory,
                FileType::Symlink => FileKind::Symlink,
                _ => FileKind::Other,
            },
        });
    }
    entries.sort();
    Ok(entries)
}

/// Nothing outside of `root` is opened here, whatever changes while it runs: every call is bound to it by the kernel.
fn open_below(root: &OwnedFd, directory: &Path, path: &Path) -> Result<OwnedFd, Errno> {
    let mut path = normal(path).ok_or(Errno::XDEV)?;
    for _ in 0..MAX_LINKS {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        match beneath(root, &path, flags) {
            Err(Errno::XDEV) => path = resolve_absolute_link(root, directory, &path)?,
            opened => return opened,
        }
    }
    Err(Errno::LOOP)
}

fn beneath(root: &OwnedFd, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let path = if path.as_os_str().is_empty() {
        Path::new(".")
    } else {
        path
    };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    despite_races(|| openat2(root, path, flags, Mode::empty(), resolve))
}

/// A relative path without `.` and `..`; nothing for one that begins at the root or climbs.
fn normal(path: &Path) -> Option<PathBuf> {
    let mut kept = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => kept.push(name),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(kept)
}

/// The path with its first absolute link replaced, if that leads into the directory.
fn resolve_absolute_link(root: &OwnedFd, directory: &Path, path: &Path) -> Result<PathBuf, Errno> {
    let components: Vec<&Path> = path
        .components()
        .map(|part| Path::new(part.as_os_str()))
        .collect();
    for (index, name) in components.iter().enumerate() {
        let parent: PathBuf = components[..index].iter().collect();
        let folder = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent = beneath(root, &parent, folder)?;
        let Ok(target) = readlinkat(&parent, *name, Vec::new()) else {
            continue;
        };
        let target = PathBuf::from(OsStr::from_bytes(target.as_bytes()));
        if target.is_absolute() {
            let inside = target.strip_prefix(directory).map_err(|_| Errno::XDEV)?;
            let inside = normal(inside).ok_or(Errno::XDEV)?;
            // Part by part: an empty rest would leave a slash at the end.
            let rest = components[index + 1..].iter();
            return Ok(rest.fold(inside, |path, part| path.join(part)));
        }
    }
    // A relative link that climbs too far.
    Err(Errno::XDEV)
}

struct OpenFile {
    file: Arc<File>,
    path: PathBuf,
    pool: BlockingPool,
}

#[async_trait]
impl FileContent for OpenFile {
    async fn read_at(&self, offset: u64, limit_bytes: usize) -> Result<Vec<u8>, FileError> {
        let file = Arc::clone(&self.file);
        let call = move |path: PathBuf| {
            let mut piece = vec![0; limit_bytes];
            let length = file
                .read_at(&mut piece, offset)
                .map_err(failed(&path, "read the file"))?;
            piece.truncate(length);
            Ok(piece)
        };
        on_pool(&self.pool, &self.path, CALL_DEADLINE, call).await
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn read(directory: &Path, path: &str) -> Result<String, FileErrorKind> {
        let root = openat(CWD, directory, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let opened = open_below(&root, directory, Path::new(path));
        match opened {
            Ok(file) => Ok(std::io::read_to_string(File::from(file)).unwrap_or_default()),
            Err(Errno::XDEV) => Err(FileErrorKind::PermissionDenied),
            Err(Errno::NOENT) => Err(FileErrorKind::NotFound),
            Err(_) => Err(FileErrorKind::Other),
        }
    }

    #[test]
    fn no_path_and_no_link_leads_out() {
        let base = tempfile::tempdir().unwrap();
        let base = base.path().canonicalize().unwrap();
        let log = base.join("log");
        fs::create_dir_all(log.join("pods/web")).unwrap();
        fs::create_dir_all(log.join("containers")).unwrap();
        fs::write(base.join("secret"), "secret").unwrap();
        fs::write(log.join("pods/web/0.log"), "line").unwrap();
        let link = |target: PathBuf, at: &str| symlink(target, log.join(at)).unwrap();
        link(log.join("pods/web/0.log"), "containers/web.log");
        link("../pods/web/0.log".into(), "containers/relative.log");
        link(log.join("pods"), "folder");
        link(base.join("secret"), "absolute");
        link("../secret".into(), "relative");
        link("/".into(), "everything");
        link(log.join("../secret"), "climbing");
        link(log.join("loop"), "loop");
        link("/proc/self/root".into(), "magic");
        let denied = Err(FileErrorKind::PermissionDenied);
        let check = |path: &str, expected: Result<&str, FileErrorKind>| {
            assert_eq!(read(&log, path), expected.map(str::to_owned), "{path}");
        };
        check("pods/web/0.log", Ok("line"));
        check("./pods//web/0.log", Ok("line"));
        check("containers/web.log", Ok("line"));
        check("containers/relative.log", Ok("line"));
        check("folder/web/0.log", Ok("line"));
        check("none", Err(FileErrorKind::NotFound));
        for path in [
            "absolute",
            "relative",
            "climbing",
            "everything/etc/passwd",
            "magic/etc/passwd",
            "../secret",
            "pods/../../secret",
            "/etc/passwd",
        ] {
            check(path, denied);
        }
        check("loop", Err(FileErrorKind::Other));
    }
}
