//! Parts of volumes: made, bound, kept, replaced, refused.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use rubelet_ports::VolumeErrorKind;

use super::{Node, mode_of, mounts_below, sub_path};

fn inode(path: &Path) -> (u64, u64) {
    let metadata = fs::metadata(path).unwrap();
    (metadata.dev(), metadata.ino())
}

#[tokio::test]
async fn missing_directories_get_the_mode_of_the_volume() {
    let node = Node::new("subpath-missing");
    let volume = node.path("volume");
    fs::create_dir(&volume).unwrap();
    fs::set_permissions(&volume, Permissions::from_mode(0o2775)).unwrap();
    let target = node.path("pods/u/volume-subpaths/v/main/0");
    fs::remove_dir_all(node.path("pods/u")).unwrap();
    node.does(sub_path(&volume, "a/b", &target)).await;
    assert_eq!(mode_of(&volume.join("a")), 0o2775);
    assert_eq!(mode_of(&volume.join("a/b")), 0o2775);
    assert_eq!(inode(&target), inode(&volume.join("a/b")));
    assert_eq!(mode_of(target.parent().unwrap()), 0o750);
    node.does(sub_path(&volume, "a/b", &target)).await;
    assert_eq!(mounts_below(&target).len(), 1, "what is bound already stays");
}

#[tokio::test]
async fn files_links_and_roots_that_are_links() {
    let node = Node::new("subpath-kinds");
    let volume = node.path("volume");
    fs::create_dir_all(volume.join("dir")).unwrap();
    fs::write(volume.join("dir/file"), "text").unwrap();
    symlink("dir/file", volume.join("link")).unwrap();
    symlink(volume.join("dir"), volume.join("absolute")).unwrap();
    symlink(&volume, node.path("root-link")).unwrap();
    let target = node.path("pods/u/t/0");
    let check = async |root: &str, relative: &str, expected: &str| {
        let root = node.path(root);
        node.does(sub_path(&root, relative, &target)).await;
        assert_eq!(inode(&target), inode(&volume.join(expected)), "{relative}");
        assert_eq!(
            mounts_below(&target).len(),
            1,
            "the one before is gone: {relative}"
        );
    };
    check("volume", "dir/file", "dir/file").await;
    check("volume", "link", "dir/file").await;
    check("volume", "absolute", "dir").await;
    check("root-link", "dir", "dir").await;
    check("root-link", "absolute/file", "dir/file").await;
    check("volume", "./", "").await;
    fs::write(target.join("dir/file"), "written through").unwrap();
    assert_eq!(
        fs::read_to_string(volume.join("dir/file")).unwrap(),
        "written through"
    );
}

#[tokio::test]
async fn a_bind_of_what_was_there_before_is_replaced() {
    let node = Node::new("subpath-stale");
    let volume = node.path("volume");
    fs::create_dir_all(volume.join("part")).unwrap();
    let target = node.path("pods/u/t/0");
    node.does(sub_path(&volume, "part", &target)).await;
    // The container is still in the old one.
    let _open = fs::File::open(&target).unwrap();
    fs::rename(volume.join("part"), volume.join("old")).unwrap();
    fs::create_dir(volume.join("part")).unwrap();
    node.does(sub_path(&volume, "part", &target)).await;
    assert_eq!(inode(&target), inode(&volume.join("part")));
    assert_eq!(mounts_below(&target).len(), 1);
    // As after a kill between making the target and mounting it, with another kind of source since.
    rustix::mount::unmount(&target, rustix::mount::UnmountFlags::empty()).unwrap();
    fs::write(volume.join("file"), "").unwrap();
    node.does(sub_path(&volume, "file", &target)).await;
    assert_eq!(inode(&target), inode(&volume.join("file")));
}

#[tokio::test]
async fn nothing_outside_is_bound_or_made() {
    let node = Node::new("subpath-escape");
    let volume = node.path("volume");
    let outside = node.path("outside");
    fs::create_dir(&volume).unwrap();
    fs::create_dir(&outside).unwrap();
    symlink(&outside, volume.join("absolute")).unwrap();
    symlink("../outside", volume.join("relative")).unwrap();
    symlink("/proc/self/root", volume.join("magic")).unwrap();
    symlink("missing", volume.join("dangling")).unwrap();
    symlink(outside.join("missing"), volume.join("dangling-outside")).unwrap();
    fs::write(volume.join("file"), "").unwrap();
    let target = node.scope.dir().join("pods/u/t/0");
    let check = async |relative: &str, expected: VolumeErrorKind| {
        let (kind, message) = node.fails(sub_path(&volume, relative, &target)).await;
        assert_eq!(kind, expected, "{relative}: {message}");
        assert!(!target.exists());
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0, "{relative}");
    };
    use VolumeErrorKind as Kind;
    check("..", Kind::Escape).await;
    check("a/../../outside", Kind::Escape).await;
    check("/etc", Kind::Escape).await;
    check("absolute", Kind::Escape).await;
    check("absolute/new", Kind::Escape).await;
    check("relative", Kind::Escape).await;
    check("relative/new/deep", Kind::Escape).await;
    check("magic", Kind::Escape).await;
    check("magic/etc", Kind::Escape).await;
    check("dangling", Kind::WrongKind).await;
    check("dangling/new", Kind::WrongKind).await;
    check("dangling-outside", Kind::WrongKind).await;
    check("file/new", Kind::WrongKind).await;
    let missing = node.scope.dir().join("missing");
    let (kind, _) = node.fails(sub_path(&missing, "a", &target)).await;
    assert_eq!(kind, Kind::NotFound, "a volume's root is never made");
}
