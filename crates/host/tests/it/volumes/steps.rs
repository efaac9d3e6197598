//! Each step by itself, and how a list of them goes on.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use rubelet_ports::volume_host::{HostPathKind, Ownership, OwnershipPolicy, VolumeAction};
use rubelet_ports::{VolumeErrorKind, VolumeHostReader};

use super::{Node, empty_dir, group, group_of, mode_of, of};

fn make(path: &Path, mode: u32) -> VolumeAction {
    VolumeAction::MakeDirectory {
        path: path.to_owned(),
        mode,
    }
}

fn tmpfs(target: &Path, size_bytes: Option<u64>) -> VolumeAction {
    VolumeAction::MountTmpfs {
        target: target.to_owned(),
        size_bytes,
    }
}

fn unmount(target: &Path, lazy: bool) -> VolumeAction {
    VolumeAction::Unmount {
        target: target.to_owned(),
        lazy,
    }
}

fn remove(path: &Path) -> VolumeAction {
    VolumeAction::RemoveTree {
        path: path.to_owned(),
    }
}

#[tokio::test]
async fn directories_get_exactly_their_mode() {
    let node = Node::new("volume-directories");
    let path = node.path("pods/u/volumes/p/v");
    fs::remove_dir_all(node.pods()).unwrap();
    node.does(make(&path, 0o777)).await;
    assert_eq!(mode_of(&path), 0o777);
    assert_eq!(mode_of(path.parent().unwrap()), 0o750);
    assert_eq!(mode_of(&node.pods()), 0o750);
    node.does(make(&path, 0o1770)).await;
    assert_eq!(mode_of(&path), 0o1770, "one that exists gets the mode");

    node.does(tmpfs(&path, None)).await;
    node.does(make(&path, 0o700)).await;
    assert_eq!(mode_of(&path), 0o1777, "what is mounted stays as it is");

    let file = node.path("pods/u/file");
    fs::write(&file, "").unwrap();
    assert_eq!(node.fails(make(&file, 0o700)).await.0, VolumeErrorKind::WrongKind);
    assert_eq!(
        node.fails(make(&file.join("x"), 0o700)).await.0,
        VolumeErrorKind::WrongKind
    );
}

#[tokio::test]
async fn a_tmpfs_is_mounted_once_with_its_size() {
    let node = Node::new("volume-tmpfs");
    let path = node.path("pods/u/v");
    node.does(make(&path, 0o777)).await;
    for _ in 0..2 {
        node.does(tmpfs(&path, Some(1 << 20))).await;
        let [(filesystem, options)] = &*node.mounts("pods/u/v") else {
            panic!("one mount");
        };
        assert_eq!(filesystem, "tmpfs");
        assert!(options.contains("size=1024k"), "{options}");
        let has_noswap = rustix::system::uname().release().to_str().is_ok_and(|release| {
            let mut numbers = release.split('.').map_while(|part| part.parse::<u32>().ok());
            (numbers.next(), numbers.next()) >= (Some(6), Some(4))
        });
        assert_eq!(options.contains("noswap"), has_noswap, "{options}");
    }
    let elsewhere = node.path("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    rustix::mount::mount_bind(&elsewhere, &path).unwrap();
    let (kind, message) = node.fails(tmpfs(&path, None)).await;
    assert_eq!(kind, VolumeErrorKind::Mounted, "{message}");
    let missing = node.path("pods/u/missing");
    assert_eq!(
        node.fails(tmpfs(&missing, None)).await.0,
        VolumeErrorKind::NotFound
    );
    node.does(unmount(&path, false)).await;
    assert_eq!(node.mounts("pods"), [], "all that lie upon each other go");
}

#[tokio::test]
async fn huge_pages_have_one_size() {
    let node = Node::new("volume-hugepages");
    let path = node.path("pods/u/v");
    node.does(make(&path, 0o777)).await;
    let mount = |page_size_bytes, any_page_size| VolumeAction::MountHugePages {
        target: path.clone(),
        page_size_bytes,
        any_page_size,
    };
    node.does(mount(2 << 20, false)).await;
    node.does(mount(2 << 20, false)).await;
    node.does(mount(1 << 30, true)).await;
    let mounts = node.mounts("pods/u/v");
    assert_eq!(mounts.len(), 1, "{mounts:?}");
    assert!(
        mounts[0].0 == "hugetlbfs" && mounts[0].1.contains("pagesize=2M"),
        "{mounts:?}"
    );
    assert_eq!(
        node.fails(mount(1 << 30, false)).await.0,
        VolumeErrorKind::Mounted
    );
    assert_eq!(node.fails(tmpfs(&path, None)).await.0, VolumeErrorKind::Mounted);
}

#[tokio::test]
async fn host_paths_are_checked_and_made() {
    let node = Node::new("volume-hostpath");
    fs::create_dir(node.path("dir")).unwrap();
    fs::write(node.path("file"), "kept").unwrap();
    symlink(node.path("dir"), node.path("link")).unwrap();
    let _socket = UnixListener::bind(node.path("socket")).unwrap();
    rustix::fs::mkfifoat(
        rustix::fs::CWD,
        node.path("pipe"),
        rustix::fs::Mode::from_raw_mode(0o600),
    )
    .unwrap();
    let check = async |relative: &str, kind: HostPathKind, expected: Option<&str>| {
        let path = match relative {
            absolute if absolute.starts_with('/') => absolute.into(),
            relative => node.path(relative),
        };
        let action = VolumeAction::CheckHostPath {
            path: path.clone(),
            kind,
        };
        match expected {
            None => node.does(action).await,
            Some(words) => {
                let words = words.replace('$', &path.display().to_string());
                assert_eq!(node.fails(action).await.1, words);
            }
        }
    };
    use HostPathKind as Kind;
    check("dir", Kind::Directory, None).await;
    check("link", Kind::Directory, None).await;
    check("file", Kind::File, None).await;
    check("socket", Kind::Socket, None).await;
    check("/dev/null", Kind::CharDevice, None).await;
    check("/dev/loop0", Kind::BlockDevice, None).await;
    let wrong = "hostPath type check failed: $ is not a directory, it's a File";
    check("file", Kind::Directory, Some(wrong)).await;
    check("file", Kind::DirectoryOrCreate, Some(wrong)).await;
    let wrong = "hostPath type check failed: $ is not a socket file, it's a Directory";
    check("dir", Kind::Socket, Some(wrong)).await;
    let wrong = "hostPath type check failed: $ is not a block device, it's a CharDevice";
    check("/dev/null", Kind::BlockDevice, Some(wrong)).await;
    let missing = "hostPath type check failed, $ is not a character device, unable to determine its type: \
        path \"$\" does not exist";
    check("missing", Kind::CharDevice, Some(missing)).await;
    let unknown = "hostPath type check failed, $ is not a file, unable to determine its type: \
        only recognise file, directory, socket, block device and character device";
    check("pipe", Kind::FileOrCreate, Some(unknown)).await;

    check("new/deep", Kind::DirectoryOrCreate, None).await;
    assert_eq!(
        (mode_of(&node.path("new")), mode_of(&node.path("new/deep"))),
        (0o755, 0o755)
    );
    check("new/file", Kind::FileOrCreate, None).await;
    check("new/file", Kind::FileOrCreate, None).await;
    assert_eq!(mode_of(&node.path("new/file")), 0o644);
    check("file", Kind::FileOrCreate, None).await;
    assert_eq!(fs::read_to_string(node.path("file")).unwrap(), "kept");
    fs::remove_dir_all(node.path("new")).unwrap();
    let no_parent = Some("open $: no such file or directory");
    let gone = node.scope.dir().join("gone/file").display().to_string();
    check(&gone, Kind::FileOrCreate, no_parent).await;
    let below_file = node.text("file") + "/x";
    check(
        &below_file,
        Kind::DirectoryOrCreate,
        Some("mkdir $: not a directory"),
    )
    .await;
}

#[tokio::test]
async fn a_volume_that_was_ready_is_left_alone() {
    let node = Node::new("volume-ready");
    let pod = node.path("pods/u");
    let both = || {
        let mut steps = empty_dir(&pod, "disk", false);
        steps.extend(empty_dir(&pod, "memory", true));
        steps
    };
    assert_eq!(node.execute("u", both()).await, []);
    let [disk, memory] =
        ["disk", "memory"].map(|name| pod.join("volumes/kubernetes.io~empty-dir").join(name));
    assert_eq!((mode_of(&disk), mode_of(&memory)), (0o2777, 0o3777));
    let ready = pod.join("plugins/kubernetes.io~empty-dir/disk/ready");
    assert_eq!(mode_of(&ready), 0o644);
    for directory in [&disk, &memory] {
        fs::set_permissions(directory, Permissions::from_mode(0o700)).unwrap();
        fs::write(directory.join("data"), "kept").unwrap();
    }
    assert_eq!(node.execute("u", both()).await, []);
    assert_eq!(
        (mode_of(&disk), mode_of(&memory)),
        (0o700, 0o700),
        "the container's own mode"
    );
    assert!(disk.join("data").exists() && memory.join("data").exists());

    // As after a reboot: the marker is there, the memory is not.
    node.does(unmount(&memory, false)).await;
    assert_eq!(node.execute("u", both()).await, []);
    assert_eq!(node.mounts("pods").len(), 1);
    node.does(remove(&disk)).await;
    assert_eq!(node.execute("u", both()).await, []);
    assert_eq!(mode_of(&disk), 0o2777, "and neither is what somebody removed");
}

#[tokio::test]
async fn a_failure_ends_its_volume_only() {
    let node = Node::new("volume-failure");
    let file = node.path("pods/u/file");
    fs::write(&file, "").unwrap();
    let steps = vec![
        of("bad", make(&file, 0o700)),
        of("bad", make(&node.path("pods/u/after-bad"), 0o700)),
        of("good", make(&node.path("pods/u/good"), 0o700)),
    ];
    let errors = node.execute("u", steps).await;
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert_eq!((&*errors[0].volume, &errors[0].path), ("bad", &file));
    assert!(node.path("pods/u/good").exists() && !node.scope.dir().join("pods/u/after-bad").exists());
    assert_eq!(node.execute("u", Vec::new()).await, []);
}

/// Whether the thread or the caller is first to see that time is up: what is not done is reported.
#[tokio::test]
async fn what_is_not_done_in_time_is_told() {
    let node = Node::new("volume-late");
    for number in 0..200 {
        let steps = vec![
            of("one", make(&node.path(&format!("pods/{number}/one")), 0o700)),
            of("two", make(&node.path(&format!("pods/{number}/two")), 0o700)),
        ];
        let deadline = Duration::from_micros(number % 40);
        let errors = node.execute_within(&number.to_string(), steps, deadline).await;
        let told: Vec<&str> = errors.iter().map(|error| &*error.volume).collect();
        for (name, later) in [("one", Some("two")), ("two", None)] {
            let is_told = told.contains(&name);
            let is_made = node.scope.dir().join(format!("pods/{number}/{name}")).exists();
            assert!(is_told || is_made, "{name} is neither made nor told: {errors:?}");
            assert!(
                !is_told || later.is_none_or(|later| told.contains(&later)),
                "{errors:?}"
            );
        }
        assert!(
            errors.iter().all(|error| error.kind == VolumeErrorKind::TimedOut),
            "{errors:?}"
        );
    }
}

#[tokio::test]
async fn groups_reach_everything_and_nothing_beside() {
    let node = Node::new("volume-groups");
    let root = node.path("pods/u/v");
    let outside = node.path("outside");
    fs::create_dir_all(root.join("a/b")).unwrap();
    fs::create_dir_all(root.join("mounted")).unwrap();
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("file"), "").unwrap();
    rustix::mount::mount_bind(&outside, root.join("mounted")).unwrap();
    symlink(&outside, root.join("link")).unwrap();
    for (name, mode) in [("a/plain", 0o600), ("a/setuid", 0o4755), ("a/b/none", 0o000)] {
        fs::write(root.join(name), "").unwrap();
        fs::set_permissions(root.join(name), Permissions::from_mode(mode)).unwrap();
    }
    let set = |ownership| VolumeAction::SetOwnership {
        path: root.clone(),
        ownership,
    };
    node.does(set(group(7))).await;
    let check = |name: &str, group: u32, mode: u32| {
        let path = root.join(name);
        assert_eq!((group_of(&path), mode_of(&path)), (group, mode), "{name}");
    };
    check("", 7, 0o2775);
    check("a", 7, 0o2775);
    check("a/b", 7, 0o2775);
    check("a/plain", 7, 0o660);
    check("a/setuid", 7, 0o4775);
    check("a/b/none", 7, 0o660);
    check("link", 7, 0o777);
    check("mounted", 0, 0o755);
    assert_eq!(
        (group_of(&outside), group_of(&outside.join("file"))),
        (0, 0),
        "links are not followed"
    );

    let on_mismatch = Ownership {
        policy: OwnershipPolicy::OnRootMismatch,
        ..group(7)
    };
    fs::write(root.join("a/new"), "").unwrap();
    fs::set_permissions(root.join("a/new"), Permissions::from_mode(0o600)).unwrap();
    node.does(set(on_mismatch)).await;
    check("a/new", 7, 0o600);
    fs::set_permissions(&root, Permissions::from_mode(0o775)).unwrap();
    node.does(set(on_mismatch)).await;
    check("a/new", 7, 0o660);

    let read_only = Ownership {
        read_only: true,
        ..group(8)
    };
    fs::set_permissions(root.join("a/new"), Permissions::from_mode(0o004)).unwrap();
    node.does(set(read_only)).await;
    check("a/new", 8, 0o444);
}

#[tokio::test]
async fn a_large_and_deep_tree_is_walked_with_few_open_files() {
    let node = Node::new("volume-tree");
    let root = node.path("pods/u/v");
    fs::create_dir(&root).unwrap();
    let mut deep = root.clone();
    for level in 0..150 {
        deep.push("d");
        fs::create_dir(&deep).unwrap();
        fs::write(deep.join(format!("before-{level}")), "").unwrap();
        fs::write(deep.join(format!("z-{level}")), "").unwrap();
    }
    for number in 0..2000 {
        fs::write(root.join(format!("file-{number}")), "").unwrap();
    }
    node.does(VolumeAction::SetOwnership {
        path: root.clone(),
        ownership: group(7),
    })
    .await;
    let mut todo = vec![root];
    let mut seen = 0;
    while let Some(directory) = todo.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            let metadata = entry.metadata().unwrap();
            assert_eq!(metadata.gid(), 7, "{}", entry.path().display());
            seen += 1;
            if metadata.is_dir() {
                todo.push(entry.path());
            }
        }
    }
    assert_eq!(seen, 2000 + 150 * 3);
}

#[tokio::test]
async fn what_is_in_use_or_mounted_is_not_removed() {
    let node = Node::new("volume-unmount");
    let path = node.path("pods/u/v");
    node.does(make(&path, 0o777)).await;
    node.does(tmpfs(&path, None)).await;
    fs::write(path.join("data"), "").unwrap();
    let (kind, message) = node.fails(remove(&node.path("pods/u"))).await;
    assert_eq!(kind, VolumeErrorKind::Mounted, "{message}");
    let empty = |path: &Path| VolumeAction::RemoveEmptyDirectory {
        path: path.to_owned(),
    };
    assert_eq!(node.fails(empty(&path)).await.0, VolumeErrorKind::Mounted);
    let open = File::open(path.join("data")).unwrap();
    assert_eq!(node.fails(unmount(&path, false)).await.0, VolumeErrorKind::Busy);
    assert!(path.join("data").exists());
    node.does(unmount(&path, true)).await;
    drop(open);
    assert_eq!(node.mounts("pods"), []);
    node.does(unmount(&path, false)).await;
    node.does(unmount(&node.path("pods/u/missing"), false)).await;
    node.does(empty(&node.path("pods/u"))).await;
    assert!(path.exists(), "not empty");
    node.does(empty(&path)).await;
    node.does(empty(&path)).await;
    assert!(!path.exists());
    node.does(remove(&node.path("pods/u"))).await;
    node.does(remove(&node.path("pods/u"))).await;
    assert_eq!(fs::read_dir(node.pods()).unwrap().count(), 0);
}

#[tokio::test]
async fn what_is_left_is_found_by_names_and_mounts() {
    let node = Node::new("volume-inventory");
    assert_eq!(node.on_disk().await, []);
    let pod = node.path("pods/one");
    fs::create_dir_all(node.path("pods/bare/containers")).unwrap();
    assert_eq!(node.execute("one", empty_dir(&pod, "memory", true)).await, []);
    let volume = pod.join("volumes/kubernetes.io~empty-dir/memory");
    let bound = pod.join("volume-subpaths/memory/main/0");
    node.does(super::sub_path(&volume, "part", &bound)).await;
    let found = node.on_disk().await;
    let [one] = found.as_slice() else {
        panic!("{found:?}")
    };
    assert_eq!(one.uid.as_str(), "one");
    assert_eq!(one.markers, ["memory"]);
    assert_eq!(one.volumes.len(), 1);
    assert_eq!(one.volumes[0].path, volume);
    assert_eq!(&*one.volumes[0].plugin, "kubernetes.io~empty-dir");
    assert_eq!(one.sub_paths.len(), 1);
    let sub_path = &one.sub_paths[0];
    assert_eq!(
        (&*sub_path.volume, &*sub_path.container, &*sub_path.index),
        ("memory", "main", "0")
    );
    let mounts: Vec<_> = one
        .mounts
        .iter()
        .map(|mount| (&mount.path, &*mount.filesystem))
        .collect();
    assert_eq!(mounts, [(&volume, "tmpfs"), (&bound, "tmpfs")]);

    // By another name of the same directory.
    let link = node.path("other");
    symlink(node.pods(), &link).unwrap();
    let same = node.volumes.pod_on_disk(&link, &"one".into()).await.unwrap();
    assert_eq!(
        same.mounts[0].path,
        link.join("one/volumes/kubernetes.io~empty-dir/memory")
    );
    let none = node
        .volumes
        .pod_on_disk(&node.pods(), &"none".into())
        .await
        .unwrap();
    assert!(none.volumes.is_empty() && none.mounts.is_empty());
    assert_eq!(node.execute("one", super::clean_up(one, &node.pods())).await, []);
    assert_eq!(node.on_disk().await, []);
}

#[tokio::test]
async fn the_root_directory_is_shared_once() {
    let node = Node::new("volume-share");
    let root = node.scope.dir().join("root");
    let is_shared = || {
        let list = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let root = format!(" {} ", root.display());
        let line = list.lines().find(|line| line.contains(&root)).unwrap().to_owned();
        line.contains(" shared:")
    };
    for _ in 0..2 {
        rubelet_host::volumes::share(&root).unwrap();
        assert!(is_shared());
        assert_eq!(node.mounts("root").len(), 1);
    }
    assert_eq!(mode_of(&root), 0o750);
    let covered = node.path("covered/below");
    fs::create_dir(&covered).unwrap();
    node.does(tmpfs(&covered, None)).await;
    let private = rustix::mount::MountPropagationFlags::PRIVATE;
    // Where the whole machine shares its mounts there is nothing to do.
    rustix::mount::mount_bind(node.scope.dir(), node.scope.dir()).unwrap();
    rustix::mount::mount_change(node.scope.dir(), private).unwrap();
    let below = node.path("covered/below");
    node.does(tmpfs(&below, None)).await;
    let refused = rubelet_host::volumes::share(&node.path("covered")).unwrap_err();
    assert!(refused.to_string().contains("is mounted already"), "{refused}");
}
