//! The file source on a real folder.

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use rubelet_agent::settings::FileSource;
use rubelet_agent::sources::{Source, SourceSettings};
use rubelet_host::HostFiles;
use rubelet_ports::{DirectoryEntry, FileError, FileErrorKind, FileKind, FileReader, WatchStream};

use crate::sources_scene::{Lines, Scene, eventually, manifest};

const INTERVAL: Duration = Duration::from_hours(1);

fn settings(path: &Path) -> SourceSettings {
    SourceSettings {
        node_name: "node".to_owned(),
        file: Some(FileSource {
            path: path.to_owned(),
            check_interval: INTERVAL,
        }),
        http: None,
        gates: Arc::default(),
    }
}

fn start(path: &Path) -> Scene {
    Scene::start(&settings(path), Arc::new(HostFiles::new()))
}

#[tokio::test]
async fn pods_come_change_and_go_with_their_files() {
    let (lines, _guard) = Lines::capture();
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::write(at(".hidden.yaml"), manifest("hidden", "i")).unwrap();
    fs::write(at("backup.yaml~"), manifest("backup", "i")).unwrap();
    let mut scene = start(dir.path());
    assert_eq!(scene.started, [Source::File]);
    assert!(scene.next().await.is_empty(), "also an empty folder is told of");
    fs::write(at("b.yaml"), manifest("web", "i")).unwrap();
    assert_eq!(scene.next().await, ["web-node i"]);
    fs::write(at("a.json"), r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"db"},"spec":{"containers":[{"name":"c","image":"j"}]}}"#).unwrap();
    assert_eq!(scene.next().await, ["db-node j", "web-node i"]);
    fs::write(at(".new"), manifest("web", "k")).unwrap();
    fs::rename(at(".new"), at("b.yaml")).unwrap();
    assert_eq!(scene.next().await, ["db-node j", "web-node k"]);
    fs::rename(at("b.yaml"), at("0.yaml")).unwrap();
    scene.until(&["web-node k", "db-node j"]).await;
    fs::remove_file(at("a.json")).unwrap();
    assert_eq!(scene.next().await, ["web-node k"]);
    symlink(at(".hidden.yaml"), at("link")).unwrap();
    scene.until(&["web-node k", "hidden-node i"]).await;
    assert_eq!(lines.with("an editor's copy").len(), 1);
}

#[tokio::test]
async fn a_pod_keeps_its_identity_and_a_set_that_is_the_same_is_not_sent() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.yaml");
    fs::write(&path, manifest("web", "i")).unwrap();
    // Slashes in the setting are not part of a pod's identity.
    let mut scene = start(Path::new(&format!("{}//", dir.path().display())));
    let first = scene.sets.recv().await.unwrap();
    let mut other = start(dir.path());
    let second = other.sets.recv().await.unwrap();
    assert_eq!(first.pods[0].metadata.uid, second.pods[0].metadata.uid);
    assert!(
        first.pods[0]
            .metadata
            .uid
            .as_ref()
            .is_some_and(|uid| !uid.is_empty())
    );
    fs::write(&path, format!("# a comment\n{}", manifest("web", "i"))).unwrap();
    fs::write(dir.path().join("b.yaml"), manifest("db", "i")).unwrap();
    assert_eq!(scene.next().await, ["web-node i", "db-node i"], "no set between");
}

#[tokio::test]
async fn bad_files_are_told_of_once_each_and_the_rest_goes_on() {
    let (lines, _guard) = Lines::capture();
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let noise: Vec<u8> = (0..4096_u32).map(|number| (number * 7 % 256) as u8).collect();
    let bad: [(&str, Vec<u8>, &str); 8] = [
        ("empty", Vec::new(), "cannot be read"),
        ("noise", noise, "cannot be read"),
        ("huge", vec![b'#'; 10 << 20], "larger than"),
        ("half", b"apiVersion: v1\nkind: Pod\nmetadata: {na".to_vec(), "cannot be read"),
        ("kind", b"apiVersion: v1\nkind: Service\nmetadata: {name: a}".to_vec(), "Service"),
        ("type", b"apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: 7}".to_vec(), "spec.containers"),
        ("rules", b"apiVersion: v1\nkind: Pod\nmetadata: {name: A_}\nspec: {}".to_vec(), "spec.containers"),
        (
            "reference",
            b"apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {serviceAccountName: x, containers: [{name: c, image: i}]}"
                .to_vec(),
            "serviceaccounts",
        ),
    ];
    for (name, content, _) in &bad {
        fs::write(at(name), content).unwrap();
    }
    fs::create_dir(at("folder")).unwrap();
    fs::write(at("folder/pod.yaml"), manifest("deeper", "i")).unwrap();
    let _socket = UnixListener::bind(at("socket")).unwrap();
    symlink("nowhere", at("dangling")).unwrap();
    fs::write(at("good.yaml"), manifest("web", "i")).unwrap();
    let mut scene = start(dir.path());
    assert_eq!(scene.next().await, ["web-node i"]);
    eventually("a line for each", || {
        lines.with("the manifest cannot be used").len() == bad.len() + 2
    })
    .await;
    for (name, _, words) in &bad {
        let about = lines.with(&format!("{} ", at(name).display()));
        assert!(about.len() == 1 && about[0].contains(words), "{name}: {about:?}");
        assert!(about[0].contains("no pod runs from it"), "{about:?}");
    }
    assert!(lines.with("dangling").is_empty(), "a link to nothing is no file");
    fs::write(at("good2.yaml"), manifest("db", "i")).unwrap();
    assert_eq!(scene.next().await, ["web-node i", "db-node i"]);
    fs::write(at("half"), manifest("mended", "i")).unwrap();
    scene.until(&["web-node i", "db-node i", "mended-node i"]).await;
    assert_eq!(lines.with("good again").len(), 1);
    assert_eq!(
        lines.with("the manifest cannot be used").len(),
        bad.len() + 2,
        "not twice"
    );
}

#[tokio::test]
async fn a_file_that_goes_bad_keeps_its_last_good_pod() {
    let (lines, _guard) = Lines::capture();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.yaml");
    fs::write(&path, manifest("web", "i")).unwrap();
    let mut scene = start(dir.path());
    assert_eq!(scene.next().await, ["web-node i"]);
    fs::write(&path, "apiVersion: v1\nkind: [").unwrap();
    eventually("a line", || {
        lines.with("last good version keeps running").len() == 1
    })
    .await;
    fs::write(dir.path().join("b.yaml"), manifest("db", "i")).unwrap();
    scene.until(&["web-node i", "db-node i"]).await;
    fs::remove_file(&path).unwrap();
    scene.until(&["db-node i"]).await;
}

#[tokio::test]
async fn a_file_written_piece_by_piece_counts_when_it_is_closed() {
    let (lines, _guard) = Lines::capture();
    let dir = tempfile::tempdir().unwrap();
    let mut scene = start(dir.path());
    assert!(scene.next().await.is_empty());
    let mut file = fs::File::create(dir.path().join("a.yaml")).unwrap();
    for piece in manifest("web", "image-with-a-name").as_bytes().chunks(7) {
        file.write_all(piece).unwrap();
        tokio::task::yield_now().await;
    }
    drop(file);
    assert_eq!(
        scene.next().await,
        ["web-node image-with-a-name"],
        "never half of it"
    );
    assert!(lines.with("the manifest cannot be used").is_empty());
}

#[tokio::test]
async fn the_first_set_waits_for_who_is_writing() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("b.yaml"), manifest("db", "i")).unwrap();
    let mut file = fs::File::create(dir.path().join("a.yaml")).unwrap();
    let mut scene = start(dir.path());
    // Another source that started later shows that the first has had the time to look.
    let other = tempfile::tempdir().unwrap();
    start(other.path()).next().await;
    assert!(scene.sets.is_empty());
    file.write_all(manifest("web", "i").as_bytes()).unwrap();
    drop(file);
    assert_eq!(scene.next().await, ["web-node i", "db-node i"]);
}

#[tokio::test]
async fn many_renames_at_once_are_few_sets() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: String| dir.path().join(name);
    for number in 0..200 {
        fs::write(
            at(format!("a{number:03}.yaml")),
            manifest(&format!("p{number}"), "i"),
        )
        .unwrap();
    }
    let mut scene = start(dir.path());
    assert_eq!(scene.next().await.len(), 200);
    let renamer = {
        let dir = dir.path().to_owned();
        std::thread::spawn(move || {
            for number in 0..200 {
                let name = |letter: char| dir.join(format!("{letter}{number:03}.yaml"));
                fs::rename(name('a'), name('b')).unwrap();
            }
        })
    };
    let expected: Vec<PathBuf> = (0..200).map(|number| at(format!("b{number:03}.yaml"))).collect();
    let mut other = None;
    while other.is_none() {
        let set = tokio::time::timeout(crate::sources_scene::LIMIT, scene.sets.recv())
            .await
            .unwrap()
            .unwrap();
        scene.received += 1;
        let all_new = set.pods.len() == 200 && expected.iter().all(|path| path.exists());
        other = all_new.then_some(set);
    }
    renamer.join().unwrap();
    assert!(scene.received <= 40, "{} sets for 200 renames", scene.received);
}

#[tokio::test]
async fn a_folder_may_vanish_and_come_back() {
    let (lines, _guard) = Lines::capture();
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("manifests");
    let mut scene = start(&folder);
    assert!(scene.next().await.is_empty(), "a missing folder wants no pods");
    assert_eq!(lines.with("does not exist").len(), 1);
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("a.yaml"), manifest("web", "i")).unwrap();
    assert_eq!(
        scene.next_after_jumps(Duration::from_secs(1)).await,
        ["web-node i"]
    );
    fs::write(folder.join("b.yaml"), manifest("db", "i")).unwrap();
    scene.until(&["web-node i", "db-node i"]).await;

    fs::rename(&folder, dir.path().join("aside")).unwrap();
    scene.until(&[]).await;
    fs::rename(dir.path().join("aside"), &folder).unwrap();
    assert_eq!(
        scene.next_after_jumps(Duration::from_secs(1)).await,
        ["web-node i", "db-node i"]
    );

    fs::remove_dir_all(&folder).unwrap();
    scene.until(&[]).await;
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("c.yaml"), manifest("new", "i")).unwrap();
    assert_eq!(
        scene.next_after_jumps(Duration::from_secs(1)).await,
        ["new-node i"]
    );
}

#[tokio::test]
async fn one_file_may_be_the_source() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pod.yaml");
    let mut scene = start(&path);
    assert!(scene.next().await.is_empty());
    fs::write(&path, manifest("web", "i")).unwrap();
    assert_eq!(
        scene.next_after_jumps(Duration::from_secs(1)).await,
        ["web-node i"]
    );
    fs::write(dir.path().join("other.yaml"), manifest("other", "i")).unwrap();
    fs::write(dir.path().join("new"), manifest("web", "j")).unwrap();
    fs::rename(dir.path().join("new"), &path).unwrap();
    assert_eq!(scene.next().await, ["web-node j"]);
    fs::remove_file(&path).unwrap();
    assert!(scene.next().await.is_empty());
    fs::write(&path, manifest("web", "k")).unwrap();
    assert_eq!(
        scene.next().await,
        ["web-node k"],
        "its folder was watched all the time"
    );
}

#[tokio::test]
async fn an_editor_that_moves_the_file_aside_does_not_stop_the_pod() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("a.yaml"), manifest("web", "i")).unwrap();
    let mut scene = start(dir.path());
    assert_eq!(scene.next().await, ["web-node i"]);
    fs::rename(at("a.yaml"), at("a.yaml~")).unwrap();
    // A set with another pod shows that the folder was looked at in this state.
    fs::write(at("b.yaml"), manifest("db", "i")).unwrap();
    assert_eq!(scene.next().await, ["web-node i", "db-node i"]);
    fs::write(at("a.yaml"), manifest("web", "i")).unwrap();
    fs::remove_file(at("a.yaml~")).unwrap();
    fs::remove_file(at("b.yaml")).unwrap();
    assert_eq!(scene.next().await, ["web-node i"]);
    fs::rename(at("a.yaml"), at("a.yaml~")).unwrap();
    assert!(scene.next().await.is_empty(), "after a second it is a removal");
}

#[tokio::test]
async fn a_file_that_is_removed_and_written_again_begins_anew() {
    let dir = tempfile::tempdir().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let (path, away) = (dir.path().join("a.yaml"), elsewhere.path().join("a.yaml"));
    let content = manifest("web", "i");
    fs::write(&path, &content).unwrap();
    fs::write(dir.path().join("b.yaml"), manifest("db", "i")).unwrap();
    let mut scene = start(dir.path());
    let both = ["web-node i", "db-node i"];
    assert_eq!(scene.next().await, both);
    let ways: [&dyn Fn(); 2] = [
        &|| {
            fs::remove_file(&path).unwrap();
            fs::write(&path, &content).unwrap();
        },
        &|| {
            fs::rename(&path, &away).unwrap();
            fs::rename(&away, &path).unwrap();
        },
    ];
    for way in ways {
        way();
        assert_eq!(scene.next().await, ["db-node i"], "its pod ends");
        assert_eq!(scene.next().await, both, "and begins again");
    }
    // What is there again may not be finished yet.
    fs::remove_file(&path).unwrap();
    let mut file = fs::File::create(&path).unwrap();
    assert_eq!(scene.next().await, ["db-node i"]);
    file.write_all(content.as_bytes()).unwrap();
    drop(file);
    assert_eq!(scene.next().await, both);
}

#[tokio::test]
async fn a_folder_that_is_made_anew_has_new_pods() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("manifests");
    let make = || {
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("a.yaml"), manifest("web", "i")).unwrap();
    };
    make();
    let mut scene = start(&folder);
    assert_eq!(scene.next().await, ["web-node i"]);
    fs::remove_dir_all(&folder).unwrap();
    make();
    assert!(scene.next().await.is_empty());
    assert_eq!(scene.next().await, ["web-node i"]);
}

#[tokio::test]
async fn one_file_as_the_source_may_begin_anew_too() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pod.yaml");
    fs::write(&path, manifest("web", "i")).unwrap();
    let mut scene = start(&path);
    assert_eq!(scene.next().await, ["web-node i"]);
    fs::remove_file(&path).unwrap();
    fs::write(&path, manifest("web", "i")).unwrap();
    assert!(scene.next().await.is_empty());
    assert_eq!(scene.next().await, ["web-node i"]);
}

#[tokio::test]
async fn a_file_that_is_replaced_by_an_equal_one_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let content = manifest("web", "i");
    fs::write(at("a.yaml"), &content).unwrap();
    let mut scene = start(dir.path());
    assert_eq!(scene.next().await, ["web-node i"]);
    let ways: [&dyn Fn(); 3] = [
        &|| {
            fs::write(at(".a.yaml.swp"), &content).unwrap();
            fs::rename(at(".a.yaml.swp"), at("a.yaml")).unwrap();
        },
        &|| {
            fs::rename(at("a.yaml"), at("a.yaml~")).unwrap();
            fs::write(at("a.yaml"), &content).unwrap();
            fs::remove_file(at("a.yaml~")).unwrap();
        },
        &|| fs::write(at("a.yaml"), &content).unwrap(),
    ];
    for (number, way) in ways.into_iter().enumerate() {
        way();
        // The next set is another one's, and nothing came between.
        fs::write(at("b.yaml"), manifest("db", &format!("i{number}"))).unwrap();
        assert_eq!(
            scene.next().await,
            ["web-node i".to_owned(), format!("db-node i{number}")]
        );
    }
}

#[tokio::test]
async fn a_path_that_leads_elsewhere_is_followed_at_the_next_interval() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for (folder, name) in [("one", "web"), ("two", "db")] {
        fs::create_dir(at(folder)).unwrap();
        fs::write(at(folder).join("a.yaml"), manifest(name, "i")).unwrap();
    }
    symlink("one", at("current")).unwrap();
    let mut scene = start(&at("current"));
    assert_eq!(scene.next().await, ["web-node i"]);
    symlink("two", at("next")).unwrap();
    fs::rename(at("next"), at("current")).unwrap();
    scene.clock.jump(INTERVAL);
    assert_eq!(scene.next().await, ["db-node i"]);
    fs::write(at("two/b.yaml"), manifest("new", "i")).unwrap();
    assert_eq!(
        scene.next().await,
        ["db-node i", "new-node i"],
        "and is watched there"
    );
}

/// Files whose watch does not work, and that can fail to be listed.
struct Deaf {
    files: HostFiles,
    fails: std::sync::atomic::AtomicBool,
}

/// Files that remember which of them were read.
#[derive(Default)]
struct Remembering {
    files: HostFiles,
    read: std::sync::Mutex<Vec<String>>,
}

impl Remembering {
    fn take(&self) -> Vec<String> {
        let mut read = std::mem::take(&mut *self.read.lock().unwrap());
        read.sort();
        read.dedup();
        read
    }
}

#[async_trait]
impl FileReader for Remembering {
    async fn read(&self, path: &Path, limit_bytes: u64) -> Result<Vec<u8>, FileError> {
        let name = path.file_name().unwrap().to_str().unwrap();
        self.read.lock().unwrap().push(name.to_owned());
        self.files.read(path, limit_bytes).await
    }

    async fn read_within(
        &self,
        directory: &Path,
        path: &Path,
        limit_bytes: u64,
    ) -> Result<Vec<u8>, FileError> {
        self.files.read_within(directory, path, limit_bytes).await
    }

    async fn read_end(&self, path: &Path, limit_bytes: u64) -> Result<Vec<u8>, FileError> {
        self.files.read_end(path, limit_bytes).await
    }

    async fn list(&self, directory: &Path) -> Result<Vec<DirectoryEntry>, FileError> {
        self.files.list(directory).await
    }

    async fn kind(&self, path: &Path) -> Result<FileKind, FileError> {
        self.files.kind(path).await
    }

    fn watch(&self, path: &Path) -> WatchStream {
        self.files.watch(path)
    }
}

#[tokio::test]
async fn a_change_of_one_manifest_reads_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for name in ["a", "b", "c"] {
        fs::write(at(&format!("{name}.yaml")), manifest(name, "i")).unwrap();
    }
    let files = Arc::new(Remembering::default());
    let mut scene = Scene::start(&settings(dir.path()), Arc::clone(&files) as Arc<dyn FileReader>);
    scene.until(&["a-node i", "b-node i", "c-node i"]).await;
    assert_eq!(files.take(), ["a.yaml", "b.yaml", "c.yaml"]);
    fs::write(at("b.yaml"), manifest("b", "j")).unwrap();
    scene.until(&["a-node i", "b-node j", "c-node i"]).await;
    assert_eq!(files.take(), ["b.yaml"]);
    fs::remove_file(at("c.yaml")).unwrap();
    scene.until(&["a-node i", "b-node j"]).await;
    assert!(files.take().is_empty(), "the list shows what is gone");
    // What a link leads to changes without a hint: any hint is a reason to read it.
    let elsewhere = tempfile::tempdir().unwrap();
    let target = elsewhere.path().join("d");
    fs::write(&target, manifest("d", "i")).unwrap();
    symlink(&target, at("d.yaml")).unwrap();
    scene.until(&["a-node i", "b-node j", "d-node i"]).await;
    files.take();
    fs::write(&target, manifest("d", "j")).unwrap();
    fs::write(at("a.yaml"), manifest("a", "j")).unwrap();
    scene.until(&["a-node j", "b-node j", "d-node j"]).await;
    assert!(!files.take().contains(&"b.yaml".to_owned()));
}

#[async_trait]
impl FileReader for Deaf {
    async fn read(&self, path: &Path, limit_bytes: u64) -> Result<Vec<u8>, FileError> {
        self.files.read(path, limit_bytes).await
    }

    async fn read_within(
        &self,
        directory: &Path,
        path: &Path,
        limit_bytes: u64,
    ) -> Result<Vec<u8>, FileError> {
        self.files.read_within(directory, path, limit_bytes).await
    }

    async fn read_end(&self, path: &Path, limit_bytes: u64) -> Result<Vec<u8>, FileError> {
        self.files.read_end(path, limit_bytes).await
    }

    async fn list(&self, directory: &Path) -> Result<Vec<DirectoryEntry>, FileError> {
        if self.fails.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(no_answer(directory));
        }
        self.files.list(directory).await
    }

    async fn kind(&self, path: &Path) -> Result<FileKind, FileError> {
        self.files.kind(path).await
    }

    fn watch(&self, path: &Path) -> WatchStream {
        futures_util::stream::iter([Err(no_answer(path))]).boxed()
    }
}

fn no_answer(path: &Path) -> FileError {
    FileError {
        path: path.to_owned(),
        kind: FileErrorKind::TimedOut,
        message: "no answer".to_owned(),
    }
}

#[tokio::test]
async fn without_a_watch_the_interval_finds_everything() {
    let (lines, _guard) = Lines::capture();
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.yaml"), manifest("web", "i")).unwrap();
    let files = Arc::new(Deaf {
        files: HostFiles::new(),
        fails: false.into(),
    });
    let mut scene = Scene::start(&settings(dir.path()), Arc::clone(&files) as Arc<dyn FileReader>);
    assert_eq!(scene.next().await, ["web-node i"]);
    assert_eq!(lines.with("cannot watch").len(), 1);
    fs::write(dir.path().join("b.yaml"), manifest("db", "i")).unwrap();
    assert_eq!(
        scene.next_after_jumps(INTERVAL).await,
        ["web-node i", "db-node i"]
    );

    files.fails.store(true, std::sync::atomic::Ordering::Relaxed);
    fs::remove_file(dir.path().join("a.yaml")).unwrap();
    scene.clock.jump(INTERVAL);
    eventually("a line", || !lines.with("its pods stay as they are").is_empty()).await;
    assert!(scene.sets.is_empty(), "what cannot be read wants what it wanted");
    files.fails.store(false, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(scene.next_after_jumps(INTERVAL).await, ["db-node i"]);
}

#[tokio::test]
async fn a_folder_that_cannot_be_read_at_first_says_nothing() {
    let (lines, _guard) = Lines::capture();
    let dir = tempfile::tempdir().unwrap();
    let files = Arc::new(Deaf {
        files: HostFiles::new(),
        fails: true.into(),
    });
    let mut scene = Scene::start(&settings(dir.path()), Arc::clone(&files) as Arc<dyn FileReader>);
    eventually("a line", || !lines.with("its pods stay as they are").is_empty()).await;
    assert!(scene.sets.is_empty(), "not ready is not empty");
    files.fails.store(false, std::sync::atomic::Ordering::Relaxed);
    assert!(scene.next_after_jumps(INTERVAL).await.is_empty());
}

#[tokio::test]
async fn the_source_ends_when_nobody_listens() {
    let dir = tempfile::tempdir().unwrap();
    let mut scene = start(dir.path());
    scene.next().await;
    drop(scene.sets);
    let task = scene.tasks.remove(0);
    tokio::time::timeout(crate::sources_scene::LIMIT, task)
        .await
        .unwrap()
        .unwrap();
}
