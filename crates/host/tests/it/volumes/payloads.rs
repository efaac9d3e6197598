//! The files of a volume: layout, switching, and that readers see one version at a time.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use rubelet_ports::VolumeErrorKind;
use rubelet_ports::volume_host::{Ownership, OwnershipPolicy, PayloadFile, VolumeAction};

use super::{LONG, Node, file, group, group_of, mode_of};

fn write(target: &Path, files: Vec<PayloadFile>) -> VolumeAction {
    VolumeAction::WritePayload {
        target: target.to_owned(),
        files,
        ownership: None,
    }
}

/// Names in a directory, sorted, without the version's own.
fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.starts_with("..2"))
        .collect();
    names.sort();
    names
}

fn versions(directory: &Path) -> usize {
    let entries = fs::read_dir(directory).unwrap();
    entries
        .filter(|entry| {
            let name = entry.as_ref().unwrap().file_name();
            name.to_str().unwrap().starts_with("..2")
        })
        .count()
}

#[tokio::test]
async fn files_are_written_switched_and_removed() {
    let node = Node::new("volume-payload");
    let volume = node.path("pods/u/v");
    fs::create_dir(&volume).unwrap();
    node.does(write(&volume, vec![file("a", "1"), file("b/c/d", "2")]))
        .await;
    assert_eq!(names(&volume), ["..data", "a", "b"]);
    assert_eq!(fs::read_link(volume.join("a")).unwrap(), Path::new("..data/a"));
    assert_eq!(fs::read_link(volume.join("b")).unwrap(), Path::new("..data/b"));
    let first = fs::read_link(volume.join("..data")).unwrap();
    assert_eq!(fs::read_to_string(volume.join("b/c/d")).unwrap(), "2");
    assert_eq!(mode_of(&volume.join(&first)), 0o755);
    assert_eq!(mode_of(&volume.join(&first).join("b/c")), 0o755);

    node.does(write(&volume, vec![file("a", "1"), file("b/c/d", "2")]))
        .await;
    assert_eq!(
        fs::read_link(volume.join("..data")).unwrap(),
        first,
        "nothing is written again"
    );
    fs::remove_file(volume.join("a")).unwrap();
    node.does(write(&volume, vec![file("a", "1"), file("b/c/d", "2")]))
        .await;
    assert!(volume.join("a").exists(), "but links that are missing are made");
    assert_eq!(fs::read_link(volume.join("..data")).unwrap(), first);

    node.does(write(&volume, vec![file("a", "1!"), file("e", "")]))
        .await;
    assert_eq!(names(&volume), ["..data", "a", "e"]);
    assert_eq!(fs::read_to_string(volume.join("a")).unwrap(), "1!");
    assert_eq!(versions(&volume), 1, "the old version is removed");
    node.does(write(&volume, Vec::new())).await;
    assert_eq!(names(&volume), ["..data"]);
    let refused = node.fails(write(&volume, vec![file("..data", "")])).await;
    assert_eq!(refused.0, VolumeErrorKind::Other);
    let missing = node.scope.dir().join("pods/u/missing");
    assert_eq!(
        node.fails(write(&missing, Vec::new())).await.0,
        VolumeErrorKind::NotFound
    );
}

#[tokio::test]
async fn modes_owners_and_groups_are_there_before_the_switch() {
    let node = Node::new("volume-payload-modes");
    let volume = node.path("pods/u/v");
    fs::create_dir(&volume).unwrap();
    let mut files = vec![file("open", "x"), file("secret", "y")];
    files[0].mode = 0o4777;
    files[1].mode = 0o400;
    files[1].owner = Some(4712);
    let action = VolumeAction::WritePayload {
        target: volume.clone(),
        files: files.clone(),
        ownership: None,
    };
    node.does(action).await;
    let data = volume.join("..data/");
    assert_eq!(mode_of(&data.join("open")), 0o4777);
    assert_eq!(mode_of(&data.join("secret")), 0o400);
    assert_eq!(fs::metadata(volume.join("secret")).unwrap().uid(), 4712);
    assert_eq!(fs::symlink_metadata(volume.join("secret")).unwrap().uid(), 4712);
    assert_eq!(fs::metadata(volume.join("open")).unwrap().uid(), 0);

    files[1].content = b"z".to_vec();
    let action = VolumeAction::WritePayload {
        target: volume.clone(),
        files,
        ownership: Some(Ownership {
            group: 7,
            policy: OwnershipPolicy::Always,
            read_only: true,
        }),
    };
    node.does(action).await;
    assert_eq!(
        (group_of(&data.join("secret")), mode_of(&data.join("secret"))),
        (7, 0o440)
    );
    assert_eq!((group_of(&volume), mode_of(&volume)), (7, 0o2755));
    assert_eq!(group(7).group, group_of(&data));
}

#[tokio::test]
async fn what_an_interrupted_write_left_is_removed() {
    let node = Node::new("volume-payload-leftovers");
    let volume = node.path("pods/u/v");
    fs::create_dir(&volume).unwrap();
    node.does(write(&volume, vec![file("a", "1")])).await;
    fs::create_dir_all(volume.join("..2020_01_01_00_00_00.1/deep")).unwrap();
    symlink("..2020_01_01_00_00_00.1", volume.join("..data_tmp")).unwrap();
    symlink("..data/gone", volume.join("gone")).unwrap();
    // Of others: the mount point of a volume inside of this one, a link that is not of the layout.
    fs::create_dir(volume.join("nested")).unwrap();
    symlink("/somewhere", volume.join("foreign")).unwrap();
    for content in ["1", "2"] {
        node.does(write(&volume, vec![file("a", content), file("nested/x", "")]))
            .await;
        assert_eq!(names(&volume), ["..data", "a", "foreign", "nested"]);
        assert_eq!(versions(&volume), 1);
    }
    assert!(
        volume.join("nested").symlink_metadata().unwrap().is_dir(),
        "what is there stays"
    );
    // A version that lost its content, as after a power loss, is written again.
    fs::write(volume.join("..data/a"), "").unwrap();
    node.does(write(&volume, vec![file("a", "2"), file("nested/x", "")]))
        .await;
    assert_eq!(fs::read_to_string(volume.join("a")).unwrap(), "2");
    fs::remove_file(volume.join("..data")).unwrap();
    symlink("/etc", volume.join("..data")).unwrap();
    node.does(write(&volume, vec![file("a", "2")])).await;
    assert_eq!(fs::read_to_string(volume.join("a")).unwrap(), "2");
    assert!(Path::new("/etc/hostname").parent().unwrap().exists());
}

type Payload = BTreeMap<&'static str, u8>;

fn payloads() -> impl Strategy<Value = Vec<Payload>> {
    let names = prop::sample::select(vec!["a", "b", "d/x", "d/y", "e/f/g", "long-name"]);
    prop::collection::vec(prop::collection::btree_map(names, 0_u8..3, 0..5), 1..12)
}

/// Each file says which version it is of: `<number of the write> <names of the version>`.
fn files_of(number: usize, payload: &Payload) -> Vec<PayloadFile> {
    let names: Vec<&str> = payload.keys().copied().collect();
    let content = format!("{number} {}", names.join(","));
    payload.keys().map(|name| file(name, &content)).collect()
}

/// Reads all that one version has, through the directory that `..data` led to. Nothing when it was removed meanwhile.
fn read_version(volume: &Path) -> Option<Vec<(PathBuf, String)>> {
    let data = fs::File::open(volume.join("..data")).ok()?;
    use std::os::fd::AsRawFd;
    let root = PathBuf::from(format!("/proc/self/fd/{}", data.as_raw_fd()));
    let mut todo = vec![PathBuf::new()];
    let mut found = Vec::new();
    while let Some(directory) = todo.pop() {
        for entry in fs::read_dir(root.join(&directory)).ok()? {
            let entry = entry.ok()?;
            let path = directory.join(entry.file_name());
            if entry.file_type().ok()?.is_dir() {
                todo.push(path);
            } else {
                let content = fs::read_to_string(root.join(&path)).ok()?;
                found.push((path, content));
            }
        }
    }
    // Still the one that is shown: so nothing of it was removed while it was read.
    let shown = fs::read_link(volume.join("..data")).ok()?;
    let same = fs::metadata(volume.join(shown)).ok()?.ino() == data.metadata().ok()?.ino();
    found.sort();
    same.then_some(found)
}

#[test]
fn readers_see_one_complete_version() {
    let node = Node::new("volume-payload-readers");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let volume = node.path("pods/u/v");
    let seen = Arc::new(AtomicUsize::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    fs::create_dir(&volume).unwrap();
    let reader = {
        let (volume, seen, stop) = (volume.clone(), Arc::clone(&seen), Arc::clone(&stop));
        std::thread::spawn(move || {
            let mut last = 0;
            while !stop.load(Ordering::Relaxed) {
                let Some(files) = read_version(&volume) else {
                    continue;
                };
                let Some((_, content)) = files.first() else {
                    continue;
                };
                let (number, names) = content.split_once(' ').unwrap();
                let names: Vec<&str> = names.split(',').collect();
                let found: Vec<&str> = files.iter().map(|(path, _)| path.to_str().unwrap()).collect();
                assert_eq!(found, names, "one version is complete");
                assert!(files.iter().all(|(_, other)| other == content), "and not mixed");
                let number: usize = number.parse().unwrap();
                assert!(number >= last, "and never goes back");
                last = number;
                seen.fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    let cases = std::env::var("PROPTEST_CASES").map_or(40, |cases| cases.parse().unwrap());
    let mut number = 0;
    let mut runner = TestRunner::new(Config {
        cases: u32::min(cases, 4000),
        failure_persistence: None,
        ..Config::default()
    });
    let number = &mut number;
    let cell = std::cell::RefCell::new(number);
    let result = runner.run(&payloads(), |payloads| {
        for payload in &payloads {
            let mut number = cell.borrow_mut();
            **number += 1;
            let files = files_of(**number, payload);
            runtime.block_on(node.does(write(&volume, files.clone())));
            let visible = names(&volume);
            let mut expected: Vec<String> = payload
                .keys()
                .map(|name| name.split('/').next().unwrap().to_owned())
                .chain(["..data".to_owned()])
                .collect();
            expected.sort();
            expected.dedup();
            prop_assert_eq!(visible, expected);
            prop_assert_eq!(versions(&volume), 1);
            for file in files {
                prop_assert_eq!(fs::read(volume.join(&file.path)).unwrap(), file.content);
            }
        }
        Ok(())
    });
    // The last version may be empty, and the reader late.
    let last = files_of(usize::MAX, &Payload::from([("a", 0)]));
    runtime.block_on(node.does(write(&volume, last)));
    let end = Instant::now() + LONG;
    while seen.load(Ordering::Relaxed) <= 10 && !reader.is_finished() && Instant::now() < end {
        std::thread::yield_now();
    }
    stop.store(true, Ordering::Relaxed);
    reader.join().unwrap();
    result.unwrap();
    assert!(seen.load(Ordering::Relaxed) > 10, "the reader has read");
}
