//! Removing trees: everything below, nothing beside, nothing mounted.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use rubelet_host::HostFiles;
use rubelet_ports::{FileErrorKind, FileWriter};
use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, unmount};

/// Undone also when a test fails.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

fn mount_tmpfs(on: &Path) -> Mounted {
    mount("tmpfs", on, "tmpfs", MountFlags::empty(), None).unwrap();
    Mounted(on.to_owned())
}

#[tokio::test]
async fn everything_below_goes_and_links_are_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let files = HostFiles::new();
    let outside = dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("kept"), "").unwrap();
    let tree = dir.path().join("tree");
    fs::create_dir_all(tree.join("a/b/c")).unwrap();
    for number in 0..500 {
        fs::write(tree.join(format!("a/b/{number}")), "x").unwrap();
    }
    symlink(&outside, tree.join("a/link")).unwrap();
    fs::write(tree.join(".removed-0"), "a name that the removal might want").unwrap();
    files.remove_tree(&tree).await.unwrap();
    assert!(!tree.exists());
    assert!(outside.join("kept").exists());

    files.remove_tree(&tree).await.unwrap();
    files.remove_tree(&tree.join("below/nothing")).await.unwrap();
    symlink(&outside, &tree).unwrap();
    files.remove_tree(&tree).await.unwrap();
    assert!(outside.join("kept").exists(), "only the link itself goes");
    fs::write(&tree, "").unwrap();
    files.remove_tree(&tree).await.unwrap();
    assert!(!tree.exists(), "a file is a tree of one");
}

#[tokio::test]
async fn a_tree_may_be_deeper_than_the_walk_holds_open() {
    let dir = tempfile::tempdir().unwrap();
    let files = HostFiles::new();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    let mut inner = openat(CWD, &tree, OFlags::DIRECTORY | OFlags::RDONLY, Mode::empty()).unwrap();
    for _ in 0..200 {
        mkdirat(&inner, "deeper", Mode::from_raw_mode(0o755)).unwrap();
        inner = openat(
            &inner,
            "deeper",
            OFlags::DIRECTORY | OFlags::RDONLY,
            Mode::empty(),
        )
        .unwrap();
    }
    drop(inner);
    files.remove_tree(&tree).await.unwrap();
    assert!(!tree.exists());
}

#[tokio::test]
async fn a_mount_keeps_the_whole_tree() {
    let dir = tempfile::tempdir().unwrap();
    let files = HostFiles::new();
    let tree = dir.path().join("the tree");
    fs::create_dir_all(tree.join("z/volume")).unwrap();
    fs::write(tree.join("a"), "").unwrap();
    fs::write(tree.join("z/hosts"), "").unwrap();
    let link = dir.path().join("other way");
    symlink(dir.path(), &link).unwrap();
    let refused = async |path: &Path| {
        let error = files.remove_tree(path).await.unwrap_err();
        assert_eq!(error.kind, FileErrorKind::Mounted, "{error}");
        assert!(tree.join("a").exists(), "nothing is removed");
    };

    let mounted = mount_tmpfs(&tree.join("z/volume"));
    fs::write(tree.join("z/volume/data"), "").unwrap();
    refused(&tree).await;
    refused(&tree.join("z/volume")).await;
    refused(&link.join("the tree")).await;
    assert!(tree.join("z/volume/data").exists());
    drop(mounted);

    let data = dir.path().join("data");
    fs::write(&data, "").unwrap();
    mount_bind(&data, tree.join("z/hosts")).unwrap();
    let mounted = Mounted(tree.join("z/hosts"));
    refused(&tree).await;
    drop(mounted);

    files.remove_tree(&tree).await.unwrap();
    assert!(!tree.exists() && data.exists());
}

#[tokio::test]
async fn a_mount_keeps_a_tree_that_is_too_large_to_look_through() {
    let dir = tempfile::tempdir().unwrap();
    let files = HostFiles::new();
    let tree = dir.path().join("tree");
    fs::create_dir_all(tree.join("z/volume")).unwrap();
    for number in 0..600 {
        fs::write(tree.join(format!("z/{number}")), "").unwrap();
    }
    let mounted = mount_tmpfs(&tree.join("z/volume"));
    let error = files.remove_tree(&tree).await.unwrap_err();
    assert_eq!(error.kind, FileErrorKind::Mounted, "{error}");
    let left = fs::read_dir(tree.join("z")).unwrap().count();
    assert_eq!(left, 601, "nothing is removed");
    drop(mounted);
    files.remove_tree(&tree).await.unwrap();
    assert!(!tree.exists());
}
