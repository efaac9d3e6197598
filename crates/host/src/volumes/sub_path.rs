//! Bind mounts of subPaths, which never lead out of their volume.
//!
//! Owns the resolution of a subPath from the volume's root. Containers may write the volume at the same time and swap
//! directories for symlinks, so the opened file is bound by its descriptor and not by its name. The kernel resolves the path
//! (`openat2`); where it cannot, each name is opened here.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use rubelet_ports::VolumeErrorKind;
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, fchmod, fstat, mkdirat, openat, openat2, readlinkat,
    unlinkat,
};
use rustix::io::{Errno, dup};
use rustix::mount::{UnmountFlags, mount_bind, unmount};

use super::directories::{make_file, make_parents};
use super::failure::{Failure, errno_of, failed, is_corrupted};
use super::mount_table::{Found, is_mount_point, look, look_at_open, look_in_sync};
use super::mounting::unmount_all;
use crate::races::despite_races;

const TARGET_DIRECTORY_MODE: u32 = 0o750;
const TARGET_FILE_MODE: u32 = 0o640;

/// As many as the kernel follows in one path.
const MAX_LINKS: usize = 40;

/// Set once a kernel (before 5.6) or a filter of system calls has refused `openat2`.
static HAS_NO_OPENAT2: AtomicBool = AtomicBool::new(false);

/// Whether symlinks that stay in the volume are followed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Links {
    Followed,
    Refused,
}

/// Binds what `relative` names below a volume to `target`.
pub(super) fn bind(volume_root: &Path, relative: &Path, target: &Path, end: Instant) -> Result<(), Failure> {
    let resolved =
        fs::canonicalize(volume_root).map_err(|error| failed("resolve", volume_root)(errno_of(&error)))?;
    let root = openat(
        CWD,
        &resolved,
        path_flags() | OFlags::DIRECTORY | OFlags::NOFOLLOW,
        Mode::empty(),
    );
    let root = root.map_err(failed("open", volume_root))?;
    let source = open_or_make(&root, &resolved, relative)?;
    let found = look_at_open(&source).map_err(failed("look at", relative))?;
    // Opening may have hung for long; the caller no longer expects a mount.
    if Instant::now() >= end {
        return Err(Failure::too_late());
    }
    if is_bound(target, &found)? {
        return Ok(());
    }
    prepare_target(target, &found)?;
    let source = format!("/proc/thread-self/fd/{}", source.as_fd().as_raw_fd());
    mount_bind(source, target).map_err(failed("bind a subPath to", target))?;
    if Instant::now() >= end {
        // The clean-up may have looked before it was mounted.
        let _ = unmount(target, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH);
        return Err(Failure::too_late());
    }
    Ok(())
}

fn path_flags() -> OFlags {
    OFlags::PATH | OFlags::CLOEXEC
}

fn open_or_make(root: &OwnedFd, root_path: &Path, relative: &Path) -> Result<OwnedFd, Failure> {
    let names = names_of(relative)?;
    let attempt = |errno| match errno {
        Errno::XDEV => {
            let message = format!("the subPath {} leads out of its volume", relative.display());
            Failure::new(VolumeErrorKind::Escape, message)
        }
        errno => failed("open the subPath", relative)(errno),
    };
    match open_in(root, root_path, relative) {
        Err(Errno::NOENT) => make_missing(root, root_path, &names).map_err(attempt),
        opened => opened.map_err(attempt),
    }
}

/// The names of a path that may not lead up or elsewhere by itself.
fn names_of(relative: &Path) -> Result<Vec<&OsStr>, Failure> {
    relative
        .components()
        .filter(|component| *component != Component::CurDir)
        .map(|component| match component {
            Component::Normal(name) => Ok(name),
            _ => {
                let message = format!("the subPath {} is not below its volume", relative.display());
                Err(Failure::new(VolumeErrorKind::Escape, message))
            }
        })
        .collect()
}

/// Opens something in a volume. A symlink with an absolute path that leads back into the volume is no escape.
fn open_in(root: &OwnedFd, root_path: &Path, relative: &Path) -> Result<OwnedFd, Errno> {
    match open_beneath(root, relative, Links::Followed) {
        Err(Errno::XDEV) => {
            let resolved = fs::canonicalize(root_path.join(relative)).map_err(|error| errno_of(&error))?;
            let relative = resolved.strip_prefix(root_path).map_err(|_| Errno::XDEV)?;
            match open_beneath(root, relative, Links::Refused) {
                // It was resolved a moment ago: another process swaps names.
                Err(Errno::LOOP) => Err(Errno::XDEV),
                opened => opened,
            }
        }
        opened => opened,
    }
}

/// Opens what a path names, or fails with `EXDEV` when it leads out of the root.
fn open_beneath(root: &OwnedFd, relative: &Path, links: Links) -> Result<OwnedFd, Errno> {
    let relative = match relative.as_os_str().is_empty() {
        true => Path::new("."),
        false => relative,
    };
    if !HAS_NO_OPENAT2.load(Ordering::Relaxed) {
        // With a dot after it, what is mounted on demand gets mounted.
        let opened = match ask_kernel(root, &relative.join("."), links) {
            Err(Errno::NOTDIR) => ask_kernel(root, relative, links),
            opened => opened,
        };
        match opened {
            Err(Errno::NOSYS | Errno::PERM) => HAS_NO_OPENAT2.store(true, Ordering::Relaxed),
            opened => return opened,
        }
    }
    walk(root, relative, links)
}

fn ask_kernel(root: &OwnedFd, relative: &Path, links: Links) -> Result<OwnedFd, Errno> {
    let mut resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    resolve.set(ResolveFlags::NO_SYMLINKS, links == Links::Refused);
    despite_races(|| openat2(root, relative, path_flags(), Mode::empty(), resolve))
}

/// As the kernel does it: a stack of open directories, of which none is left upwards but to one that was gone through.
fn walk(root: &OwnedFd, relative: &Path, links: Links) -> Result<OwnedFd, Errno> {
    let mut todo: VecDeque<OsString> = parts_of(relative.as_os_str()).collect();
    let mut path: Vec<OwnedFd> = Vec::new();
    let mut followed = 0;
    while let Some(name) = todo.pop_front() {
        let directory = path.last().unwrap_or(root);
        if name == ".." {
            path.pop().ok_or(Errno::XDEV)?;
            continue;
        }
        let opened = openat(directory, &*name, path_flags() | OFlags::NOFOLLOW, Mode::empty())?;
        let stat = fstat(&opened)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
            path.push(opened);
            continue;
        }
        followed += 1;
        if links == Links::Refused || followed > MAX_LINKS {
            return Err(Errno::LOOP);
        }
        let link = OsString::from_vec(readlinkat(&opened, c"", Vec::new())?.into_bytes());
        if link.as_bytes().starts_with(b"/") {
            return Err(Errno::XDEV);
        }
        for part in parts_of(&link).rev() {
            todo.push_front(part);
        }
    }
    path.pop().map_or_else(|| dup(root), Ok)
}

/// The names in a path; a slash at the end asks for a directory, which a dot does as well.
fn parts_of(path: &OsStr) -> impl DoubleEndedIterator<Item = OsString> {
    path.as_bytes()
        .split(|byte| *byte == b'/')
        .filter(|part| !part.is_empty() && *part != b".")
        .map(|part| OsStr::from_bytes(part).to_owned())
}

/// Makes the directories of a path that are missing, with the mode of the volume's root.
fn make_missing(root: &OwnedFd, root_path: &Path, names: &[&OsStr]) -> Result<OwnedFd, Errno> {
    let mode = Mode::from_raw_mode(fstat(root)?.st_mode & 0o7777);
    let mut present = 0;
    let mut directory = dup(root)?;
    while let Some(names) = names.get(..=present) {
        let path: std::path::PathBuf = names.iter().collect();
        match open_in(root, root_path, &path) {
            Ok(opened) => directory = opened,
            Err(Errno::NOENT) => break,
            Err(errno) => return Err(errno),
        }
        present += 1;
    }
    for name in names.get(present..).unwrap_or_default() {
        let is_made = match mkdirat(&directory, *name, mode) {
            Ok(()) => true,
            // By another container, or a link to nothing: then it cannot be opened.
            Err(Errno::EXIST) => false,
            Err(errno) => return Err(errno),
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        directory = openat(&directory, *name, flags, Mode::empty())?;
        if is_made {
            fchmod(&directory, mode)?;
        }
    }
    Ok(directory)
}

/// Whether the target has what is to be bound already. Anything else that is mounted there is detached.
fn is_bound(target: &Path, source: &Found) -> Result<bool, Failure> {
    match look(target) {
        Err(Errno::NOENT) => return Ok(false),
        Err(errno) if is_corrupted(errno) || errno == Errno::ACCESS => {}
        Err(errno) => return Err(failed("look at", target)(errno)),
        Ok(found) if !is_mount_point(target, &found)? => return Ok(false),
        // The identity is the same; the filesystem still has to answer.
        Ok(found) if found.identity() == source.identity() && look_in_sync(target).is_ok() => {
            return Ok(true);
        }
        Ok(_) => {}
    }
    unmount_all(target, true)?;
    Ok(false)
}

/// Makes an empty file or directory to mount upon.
fn prepare_target(target: &Path, source: &Found) -> Result<(), Failure> {
    match look(target) {
        Err(Errno::NOENT) => make_parents(target, TARGET_DIRECTORY_MODE)?,
        Ok(found) if found.is_directory() == source.is_directory() => return Ok(()),
        Ok(found) => {
            // Of an earlier subPath. It is empty, or it stays.
            let mut flags = AtFlags::empty();
            flags.set(AtFlags::REMOVEDIR, found.is_directory());
            unlinkat(CWD, target, flags).map_err(failed("remove", target))?;
        }
        Err(errno) => return Err(failed("look at", target)(errno)),
    }
    if source.is_directory() {
        super::directories::make_directory(target, TARGET_DIRECTORY_MODE)
    } else {
        make_file(target, TARGET_FILE_MODE)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// What a path names in a volume, with and without the kernel's help.
    #[test]
    fn a_path_never_leaves_its_volume() {
        let scratch = tempfile::tempdir().unwrap();
        let volume = scratch.path().join("volume");
        let outside = scratch.path().join("outside");
        fs::create_dir_all(volume.join("a/b")).unwrap();
        fs::create_dir_all(outside.join("secret")).unwrap();
        fs::write(volume.join("a/file"), "").unwrap();
        let link = |name: &str, to: &str| symlink(to, volume.join(name)).unwrap();
        link("to-b", "a/b");
        link("a/up", "..");
        link("a/up-up", "../..");
        link("round", "a/../to-b/../../a/./b/");
        link("away", "../outside");
        link("absolute", outside.to_str().unwrap());
        link("back", volume.join("a").to_str().unwrap());
        link("loop", "loop");
        link("nowhere", "missing");
        link("proc", "/proc/self/root");
        let root = openat(CWD, &volume, path_flags() | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let check = |path: &str, expected: Result<&str, Errno>| {
            type Open = fn(&OwnedFd, &Path, Links) -> Result<OwnedFd, Errno>;
            for (how, open) in [("kernel", open_beneath as Open), ("names", walk)] {
                let opened = open(&root, Path::new(path), Links::Followed);
                let found = opened.map(|file| look_at_open(&file).unwrap().identity());
                let expected = expected.map(|path| look(&volume.join(path)).unwrap().identity());
                assert_eq!(found, expected, "{how}: {path}");
            }
        };
        check(".", Ok("."));
        check("a", Ok("a"));
        check("a/b", Ok("a/b"));
        check("a/file", Ok("a/file"));
        check("to-b", Ok("a/b"));
        check("a/up", Ok("."));
        check("a/up/a/up/to-b", Ok("a/b"));
        check("round", Ok("a/b"));
        check("a/up-up", Err(Errno::XDEV));
        check("a/up-up/volume", Err(Errno::XDEV));
        check("away", Err(Errno::XDEV));
        check("away/secret", Err(Errno::XDEV));
        check("absolute", Err(Errno::XDEV));
        check("absolute/secret", Err(Errno::XDEV));
        check("back", Err(Errno::XDEV));
        check("proc", Err(Errno::XDEV));
        check("loop", Err(Errno::LOOP));
        check("nowhere", Err(Errno::NOENT));
        check("a/file/x", Err(Errno::NOTDIR));

        let opened = open_in(&root, &volume, Path::new("back/b")).unwrap();
        let identity = look_at_open(&opened).unwrap().identity();
        assert_eq!(identity, look(&volume.join("a/b")).unwrap().identity());
        assert_eq!(
            open_in(&root, &volume, Path::new("absolute/secret")).err(),
            Some(Errno::XDEV)
        );
    }

    /// Also when an assertion fails.
    struct StopAtEnd<'a>(&'a AtomicBool);

    impl Drop for StopAtEnd<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// Where the kernel does not help, swapped names lead nowhere either.
    #[test]
    fn names_that_are_swapped_lead_nowhere() {
        let scratch = tempfile::tempdir().unwrap();
        let volume = scratch.path().join("volume");
        fs::create_dir_all(volume.join("part/inner")).unwrap();
        fs::create_dir_all(scratch.path().join("outside/inner")).unwrap();
        symlink("../outside", volume.join("link")).unwrap();
        let inside: Vec<_> = ["part", "part/inner"]
            .map(|path| look(&volume.join(path)).unwrap().identity())
            .into();
        let root = openat(CWD, &volume, path_flags() | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let stop = AtomicBool::new(false);
        let (mut opened, mut refused) = (0, 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let [one, other] = ["part", "link"].map(|name| volume.join(name));
                while !stop.load(Ordering::Relaxed) {
                    let exchange = rustix::fs::RenameFlags::EXCHANGE;
                    rustix::fs::renameat_with(CWD, &one, CWD, &other, exchange).unwrap();
                }
            });
            let _stop = StopAtEnd(&stop);
            while (opened < 1000 || refused < 100) && opened + refused < 1_000_000 {
                for path in ["part", "part/inner"] {
                    match walk(&root, Path::new(path), Links::Followed) {
                        Ok(file) => {
                            opened += 1;
                            assert!(
                                inside.contains(&look_at_open(&file).unwrap().identity()),
                                "{path}"
                            );
                        }
                        Err(errno) => {
                            refused += 1;
                            assert_eq!(errno, Errno::XDEV, "{path}");
                        }
                    }
                }
            }
        });
        assert!(
            opened >= 1000 && refused >= 100,
            "{opened} opened, {refused} refused"
        );
    }
}
