//! Log files of containers behind the port.
//!
//! Owns the steps of a compression and their order on the disk; growth is watched beside.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, BufReader, BufWriter, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::future::BoxFuture;
use rubelet_ports::{FileError, FileErrorKind, Growth, LogFileReader, LogFileWriter};
use rustix::fs::{CWD, OFlags, RenameFlags, renameat_with};
use rustix::io::Errno;

use crate::blocking::{BlockingPool, PoolLimits};
use crate::file_calls::{failed, refused};
use crate::files::on_pool;
use crate::lease::ReadLease;
use crate::log_growth::LogGrowth;

const CALL_DEADLINE: Duration = Duration::from_secs(30);
/// A large file on a slow disk takes its time.
const COMPRESSION_DEADLINE: Duration = Duration::from_mins(30);
const COPY_BYTES: usize = 128 * 1024;

/// A pool of its own: a compression must not keep a pod's files waiting.
#[derive(Clone)]
pub struct HostLogFiles {
    pool: BlockingPool,
    growth: LogGrowth,
}

impl HostLogFiles {
    #[must_use]
    pub fn new() -> Self {
        Self {
            pool: BlockingPool::new(PoolLimits::default()),
            growth: LogGrowth::default(),
        }
    }
}

impl Default for HostLogFiles {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl LogFileReader for HostLogFiles {
    async fn size(&self, path: &Path) -> Result<u64, FileError> {
        let call = |path: PathBuf| {
            let found = fs::metadata(&path).map_err(failed(&path, "look at the file"))?;
            Ok(found.len())
        };
        on_pool(&self.pool, path, CALL_DEADLINE, call).await
    }

    async fn is_written(&self, path: &Path) -> Result<bool, FileError> {
        let call = |path: PathBuf| {
            let file = open_regular(&path, OFlags::NONBLOCK)?;
            Ok(ReadLease::take(&file).is_none())
        };
        on_pool(&self.pool, path, CALL_DEADLINE, call).await
    }

    fn growth(&self, growth: Growth) -> BoxFuture<'static, ()> {
        Box::pin(self.growth.wait(growth))
    }
}

#[async_trait]
impl LogFileWriter for HostLogFiles {
    async fn rename_to_free(&self, from: &Path, to: &Path) -> Result<bool, FileError> {
        let to = to.to_owned();
        let call = move |from: PathBuf| rename_to_free(&from, &to);
        on_pool(&self.pool, from, CALL_DEADLINE, call).await
    }

    async fn compress(&self, path: &Path) -> Result<bool, FileError> {
        on_pool(&self.pool, path, COMPRESSION_DEADLINE, |path| compress(&path)).await
    }
}

fn rename_to_free(from: &Path, to: &Path) -> Result<bool, FileError> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Ok(()) => Ok(true),
        Err(Errno::EXIST) => Ok(false),
        // A filesystem without that kind of rename: check first that the name is free.
        Err(Errno::INVAL | Errno::NOSYS) => {
            if fs::symlink_metadata(to).is_ok() {
                return Ok(false);
            }
            fs::rename(from, to)
                .map(|()| true)
                .map_err(failed(from, "rename the file"))
        }
        Err(errno) => Err(failed(from, "rename the file")(errno.into())),
    }
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

fn open_regular(path: &Path, flags: OFlags) -> Result<File, FileError> {
    let attempt = failed(path, "open the file");
    let flags = i32::try_from(flags.bits()).unwrap_or_default();
    let mut options = OpenOptions::new();
    let file = options
        .read(true)
        .custom_flags(flags)
        .open(path)
        .map_err(&attempt)?;
    if !file.metadata().map_err(&attempt)?.is_file() {
        return Err(refused(path, FileErrorKind::WrongKind, "not a regular file"));
    }
    Ok(file)
}

/// Whether no process has written since `length` was read: the lease keeps writers out, and an earlier write shows in the length.
fn is_at_rest(source: &File, length: u64) -> io::Result<bool> {
    let Some(_lease) = ReadLease::take(source) else {
        return Ok(false);
    };
    Ok(source.metadata()?.len() == length)
}

fn compress(path: &Path) -> Result<bool, FileError> {
    compress_with(path, write_compressed)
}

fn compress_with(
    path: &Path,
    write_compressed: impl Fn(&File, &Path, u32) -> io::Result<u64>,
) -> Result<bool, FileError> {
    let attempt = failed(path, "compress the file");
    let source = open_regular(path, OFlags::NONBLOCK | OFlags::NOFOLLOW)?;
    let found = source.metadata().map_err(&attempt)?;
    if !is_at_rest(&source, found.len()).map_err(&attempt)? {
        return Ok(false);
    }
    let temporary = beside(path, ".tmp");
    let written = write_compressed(&source, &temporary, found.mode()).and_then(|length| {
        if !is_at_rest(&source, length)? {
            return fs::remove_file(&temporary).map(|()| false);
        }
        // The container's logs may have been removed meanwhile, or this file to make room for others.
        let is_wanted =
            fs::symlink_metadata(path).is_ok_and(|now| (now.dev(), now.ino()) == (found.dev(), found.ino()));
        if !is_wanted {
            return fs::remove_file(&temporary).map(|()| true);
        }
        fs::rename(&temporary, beside(path, ".gz"))?;
        match fs::remove_file(path) {
            // Another process saw both files and removed the original.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
            removed => removed.map(|()| true),
        }
    });
    written.map_err(|error| {
        let _ = fs::remove_file(&temporary);
        attempt(error)
    })
}

/// How much it took from the source. On the disk when it returns: the original is removed next.
fn write_compressed(source: &File, temporary: &Path, mode: u32) -> io::Result<u64> {
    match fs::remove_file(temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let target = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(temporary)?;
    target.set_permissions(Permissions::from_mode(mode & 0o7777))?;
    let mut encoder = GzEncoder::new(
        BufWriter::with_capacity(COPY_BYTES, target),
        Compression::default(),
    );
    let length = io::copy(&mut BufReader::with_capacity(COPY_BYTES, source), &mut encoder)?;
    let mut target = encoder.finish()?;
    target.flush()?;
    target.get_ref().sync_all()?;
    Ok(length)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use flate2::read::GzDecoder;

    use super::*;

    fn unpacked(path: &Path) -> String {
        let mut text = String::new();
        GzDecoder::new(File::open(path).unwrap())
            .read_to_string(&mut text)
            .unwrap();
        text
    }

    /// A process that another test starts just now has the file open for a moment too, here and below.
    fn compress_in_the_end(path: &Path) {
        while !compress(path).unwrap() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_compressed_file_takes_the_place_of_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("0.log.20260101-000000");
        fs::write(&log, "text\n").unwrap();
        fs::set_permissions(&log, Permissions::from_mode(0o640)).unwrap();
        // Left by a process that was killed.
        fs::write(beside(&log, ".tmp"), "half").unwrap();
        compress_in_the_end(&log);
        let names: Vec<_> = fs::read_dir(directory.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        assert_eq!(names, ["0.log.20260101-000000.gz"]);
        let packed = beside(&log, ".gz");
        assert_eq!(unpacked(&packed), "text\n");
        assert_eq!(fs::metadata(packed).unwrap().mode() & 0o777, 0o640);
    }

    #[test]
    fn a_file_that_is_written_stays_as_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("0.log.20260101-000000");
        fs::write(&log, "text\n").unwrap();
        let append = || OpenOptions::new().append(true).open(&log).unwrap();
        let check = |compressed: Result<bool, FileError>, text: &str| {
            assert!(!compressed.unwrap());
            assert_eq!(fs::read_to_string(&log).unwrap(), text);
            assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        };
        // The runtime has not let go of it.
        let held = append();
        check(compress(&log), "text\n");
        drop(held);
        // A process wrote after the copy, and still has the file open, or not.
        let kept = std::cell::RefCell::new(Vec::new());
        for stays_open in [true, false] {
            let copied = std::cell::Cell::new(false);
            let copy_and_write = || {
                compress_with(&log, |source, temporary, mode| {
                    let length = write_compressed(source, temporary, mode)?;
                    copied.set(true);
                    let mut late = append();
                    late.write_all(b"late\n")?;
                    if stays_open {
                        kept.borrow_mut().push(late);
                    }
                    Ok(length)
                })
            };
            let mut compressed = copy_and_write();
            while !copied.get() {
                std::thread::yield_now();
                compressed = copy_and_write();
            }
            kept.borrow_mut().clear();
            check(
                compressed,
                if stays_open {
                    "text\nlate\n"
                } else {
                    "text\nlate\nlate\n"
                },
            );
        }
        compress_in_the_end(&log);
        assert_eq!(unpacked(&beside(&log, ".gz")), "text\nlate\nlate\n");
    }

    #[test]
    fn links_and_pipes_are_not_compressed() {
        let directory = tempfile::tempdir().unwrap();
        let link = directory.path().join("link");
        std::os::unix::fs::symlink("/etc/passwd", &link).unwrap();
        assert!(compress(&link).is_err());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        assert!(
            compress(&directory.path().join("none"))
                .unwrap_err()
                .is_not_found()
        );
    }

    #[test]
    fn a_name_that_is_taken_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let (a, b) = (directory.path().join("a"), directory.path().join("b"));
        fs::write(&a, "a").unwrap();
        fs::write(&b, "b").unwrap();
        assert!(!rename_to_free(&a, &b).unwrap());
        assert_eq!(fs::read_to_string(&b).unwrap(), "b");
        fs::remove_file(&b).unwrap();
        assert!(rename_to_free(&a, &b).unwrap());
        assert_eq!(fs::read_to_string(&b).unwrap(), "a");
        assert!(rename_to_free(&a, &b).unwrap_err().is_not_found());
    }
}
