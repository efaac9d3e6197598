//! Reading and writing single files.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use rubelet_host::HostFiles;
use rubelet_ports::{DirectoryEntry, FileErrorKind, FileKind, FileReader, FileWriter};
use rustix::fs::{CWD, Mode, mkfifoat};

const LIMIT: Duration = Duration::from_secs(30);

fn mode_of(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn names_in(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[tokio::test]
async fn a_read_is_bounded_and_names_what_is_in_its_way() {
    let dir = tempfile::tempdir().unwrap();
    let files = HostFiles::new();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("five"), "12345").unwrap();
    symlink("five", at("link")).unwrap();
    symlink("nowhere", at("dangling")).unwrap();
    mkfifoat(CWD, at("pipe"), Mode::from_raw_mode(0o600)).unwrap();
    let _socket = UnixListener::bind(at("socket")).unwrap();

    assert_eq!(files.read(&at("five"), 5).await.unwrap(), b"12345");
    assert_eq!(files.read(&at("link"), 5).await.unwrap(), b"12345");
    assert_eq!(files.read_end(&at("five"), 2).await.unwrap(), b"45");
    assert_eq!(files.read_end(&at("five"), 9).await.unwrap(), b"12345");
    assert!(
        !files
            .read(Path::new("/proc/self/status"), 1 << 20)
            .await
            .unwrap()
            .is_empty()
    );
    for (name, limit, kind) in [
        ("five", 4, FileErrorKind::TooLarge),
        ("missing", 9, FileErrorKind::NotFound),
        ("dangling", 9, FileErrorKind::NotFound),
        ("five/below", 9, FileErrorKind::WrongKind),
        ("", 9, FileErrorKind::WrongKind),
        ("pipe", 9, FileErrorKind::WrongKind),
        ("socket", 9, FileErrorKind::WrongKind),
    ] {
        let error = files.read(&at(name), limit).await.unwrap_err();
        assert_eq!((error.kind, &error.path), (kind, &at(name)), "{error}");
    }
    let endless = files.read(Path::new("/proc/self/status"), 10).await.unwrap_err();
    assert_eq!(
        endless.kind,
        FileErrorKind::TooLarge,
        "also when the length is not known before"
    );
}

#[tokio::test]
async fn a_directory_is_listed_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let files = HostFiles::new();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("b"), "").unwrap();
    fs::create_dir(at("a")).unwrap();
    symlink("a", at("c")).unwrap();
    let _socket = UnixListener::bind(at("d")).unwrap();
    let no_text = <std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(b"\xff\xfe");
    fs::write(dir.path().join(no_text), "").unwrap();
    let entry = |name: &str, kind| DirectoryEntry {
        name: name.to_owned(),
        kind,
    };
    let expected = [
        entry("a", FileKind::Directory),
        entry("b", FileKind::File),
        entry("c", FileKind::Symlink),
        entry("d", FileKind::Other),
    ];
    assert_eq!(files.list(dir.path()).await.unwrap(), expected);
    assert_eq!(files.kind(&at("c")).await.unwrap(), FileKind::Directory);
    assert_eq!(files.kind(&at("b")).await.unwrap(), FileKind::File);
    assert!(files.kind(&at("x")).await.unwrap_err().is_not_found());
    assert!(files.list(&at("x")).await.unwrap_err().is_not_found());
    assert_eq!(
        files.list(&at("b")).await.unwrap_err().kind,
        FileErrorKind::WrongKind
    );
}

#[tokio::test]
async fn a_write_replaces_and_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let files = HostFiles::new();
    let path = dir.path().join("state");
    files.write(&path, b"old", 0o640).await.unwrap();
    let opened_before = fs::File::open(&path).unwrap();
    files.write(&path, b"new", 0o664).await.unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"new");
    assert_eq!(mode_of(&path), 0o664, "whatever the umask");
    assert_eq!(
        std::io::read_to_string(opened_before).unwrap(),
        "old",
        "not changed in place"
    );
    assert_eq!(names_in(dir.path()), ["state"]);

    let below_missing = files.write(&dir.path().join("no/state"), b"", 0o600).await;
    assert!(below_missing.unwrap_err().is_not_found());
    fs::create_dir(dir.path().join("folder")).unwrap();
    let onto_folder = files.write(&dir.path().join("folder"), b"", 0o600).await;
    assert_eq!(onto_folder.unwrap_err().kind, FileErrorKind::WrongKind);
    assert_eq!(
        names_in(dir.path()),
        ["folder", "state"],
        "no temporary file is left"
    );
}

#[tokio::test]
async fn writes_of_one_file_at_once_end_with_one_whole_content() {
    let dir = tempfile::tempdir().unwrap();
    let files = HostFiles::new();
    let path = dir.path().join("state");
    let contents: Vec<Vec<u8>> = (0..20_u8).map(|number| vec![number; 4096]).collect();
    let writes = contents.iter().map(|content| files.write(&path, content, 0o600));
    for written in futures_util::future::join_all(writes).await {
        written.unwrap();
    }
    assert!(contents.contains(&fs::read(&path).unwrap()));
    assert_eq!(names_in(dir.path()), ["state"]);
}

#[tokio::test]
async fn a_write_in_place_is_seen_by_who_has_the_file_open() {
    let dir = tempfile::tempdir().unwrap();
    let files = HostFiles::new();
    let path = dir.path().join("hosts");
    files
        .write_in_place(&path, b"a long first line", 0o666)
        .await
        .unwrap();
    assert_eq!(mode_of(&path), 0o666);
    let opened_before = fs::File::open(&path).unwrap();
    files.write_in_place(&path, b"short", 0o644).await.unwrap();
    assert_eq!(std::io::read_to_string(opened_before).unwrap(), "short");
    assert_eq!(mode_of(&path), 0o644);

    symlink("hosts", dir.path().join("link")).unwrap();
    let through_link = files.write_in_place(&dir.path().join("link"), b"x", 0o644).await;
    assert_eq!(through_link.unwrap_err().kind, FileErrorKind::WrongKind);
    let full = files.write_in_place(Path::new("/dev/full"), b"x", 0o666).await;
    assert_eq!(full.unwrap_err().kind, FileErrorKind::WrongKind);
}

#[tokio::test]
async fn directories_are_made_with_their_parents_and_left_when_there() {
    let dir = tempfile::tempdir().unwrap();
    let files = HostFiles::new();
    let path = dir.path().join("a/b/c");
    files.create_directory(&path, 0o777).await.unwrap();
    assert_eq!((mode_of(&path), mode_of(&dir.path().join("a"))), (0o777, 0o777));
    files.create_directory(&path, 0o700).await.unwrap();
    assert_eq!(mode_of(&path), 0o777);
    fs::write(dir.path().join("file"), "").unwrap();
    for blocked in ["file", "file/below"] {
        let error = files.create_directory(&dir.path().join(blocked), 0o700).await;
        assert_eq!(error.unwrap_err().kind, FileErrorKind::WrongKind, "{blocked}");
    }
}

#[tokio::test]
async fn links_are_pointed_anew_and_removal_is_calm() {
    let dir = tempfile::tempdir().unwrap();
    let files = HostFiles::new();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("target"), "kept").unwrap();
    files.link(&at("target"), &at("link")).await.unwrap();
    files.link(&at("target"), &at("link")).await.unwrap();
    assert_eq!(fs::read_link(at("link")).unwrap(), at("target"));
    files.link(Path::new("/gone"), &at("link")).await.unwrap();
    assert_eq!(fs::read_link(at("link")).unwrap(), Path::new("/gone"));
    fs::write(at("file"), "").unwrap();
    files.link(&at("target"), &at("file")).await.unwrap();
    assert_eq!(fs::read_to_string(at("file")).unwrap(), "kept");

    files.remove_file(&at("file")).await.unwrap();
    files.remove_file(&at("link")).await.unwrap();
    files.remove_file(&at("link")).await.unwrap();
    assert_eq!(
        names_in(dir.path()),
        ["target"],
        "links go, what they point to stays"
    );
    fs::create_dir(at("folder")).unwrap();
    assert_eq!(
        files.remove_file(&at("folder")).await.unwrap_err().kind,
        FileErrorKind::WrongKind
    );
    assert_eq!(
        files.link(&at("target"), &at("folder")).await.unwrap_err().kind,
        FileErrorKind::WrongKind
    );
    assert_eq!(names_in(dir.path()), ["folder", "target"]);
}

/// A process that another test starts just now has the file open for a moment too.
async fn read_at_rest(files: &HostFiles, path: &Path) -> Vec<u8> {
    let read = async {
        loop {
            if let Some(content) = files.read_at_rest(path, 5).await.unwrap() {
                return content;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LIMIT, read).await.unwrap()
}

#[tokio::test]
async fn a_file_at_rest_is_read_and_one_that_is_written_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let files = HostFiles::new();
    let path = dir.path().join("a");
    fs::write(&path, "12345").unwrap();
    assert_eq!(read_at_rest(&files, &path).await, b"12345");
    // An open reader does not prevent the read.
    let reader = fs::File::open(&path).unwrap();
    assert_eq!(read_at_rest(&files, &path).await, b"12345");
    let writer = fs::OpenOptions::new().append(true).open(&path).unwrap();
    assert_eq!(files.read_at_rest(&path, 5).await.unwrap(), None);
    assert_eq!(files.read(&path, 5).await.unwrap(), b"12345");
    drop((reader, writer));
    assert_eq!(read_at_rest(&files, &path).await, b"12345");
    assert_eq!(
        files.read_at_rest(&path, 4).await.unwrap_err().kind,
        FileErrorKind::TooLarge
    );
    let status = files
        .read_at_rest(Path::new("/proc/self/status"), 1 << 20)
        .await
        .unwrap();
    assert!(status.is_some(), "where there are no leases it is read as it is");
}

/// A writer is never disturbed by the lease, and what is read is always a whole version.
#[tokio::test]
async fn reading_at_rest_and_writing_go_on_side_by_side() {
    let dir = tempfile::tempdir().unwrap();
    let files = HostFiles::new();
    let path = dir.path().join("a");
    fs::write(&path, "").unwrap();
    let writer = {
        let path = path.clone();
        std::thread::spawn(move || {
            for number in 0..100_u32 {
                let mut file = fs::File::create(&path).unwrap();
                let piece = number.to_string();
                // Two writes: a reader between them would see one.
                std::io::Write::write_all(&mut file, format!("{piece} ").as_bytes()).unwrap();
                std::io::Write::write_all(&mut file, piece.as_bytes()).unwrap();
            }
        })
    };
    while !writer.is_finished() {
        if let Some(content) = files.read_at_rest(&path, 100).await.unwrap() {
            let text = String::from_utf8(content).unwrap();
            let halves = text.split_once(' ');
            assert!(
                text.is_empty() || halves.is_some_and(|(first, second)| first == second),
                "{text:?}"
            );
        }
    }
    writer.join().unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "99 99");
}

#[tokio::test]
async fn a_read_within_a_directory_does_not_leave_it() {
    let dir = tempfile::tempdir().unwrap();
    let files = HostFiles::new();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("secret"), "outside").unwrap();
    fs::create_dir_all(at("volume/below")).unwrap();
    fs::write(at("volume/below/file"), "inside").unwrap();
    fs::write(at("volume/secret"), "not that one").unwrap();
    symlink("below/file", at("volume/link")).unwrap();
    symlink("../secret", at("volume/up")).unwrap();
    symlink(at("secret"), at("volume/absolute")).unwrap();
    symlink("/", at("volume/root")).unwrap();
    symlink("/proc/self/cwd", at("volume/magic")).unwrap();
    mkfifoat(CWD, at("volume/pipe"), Mode::from_raw_mode(0o600)).unwrap();
    let read = async |name: &str| {
        let content = files.read_within(&at("volume"), Path::new(name), 100).await;
        content
            .map(|bytes| String::from_utf8(bytes).unwrap())
            .map_err(|error| error.kind)
    };
    assert_eq!(read("below/file").await.as_deref(), Ok("inside"));
    assert_eq!(read("link").await.as_deref(), Ok("inside"));
    // The directory is the root of everything: what is above it is itself.
    assert_eq!(read("up").await.as_deref(), Ok("not that one"));
    assert_eq!(read("../secret").await.as_deref(), Ok("not that one"));
    assert_eq!(read("root/below/file").await.as_deref(), Ok("inside"));
    assert_eq!(read("absolute").await, Err(FileErrorKind::NotFound));
    assert!(read("magic/secret").await.is_err());
    assert_eq!(read("pipe").await, Err(FileErrorKind::WrongKind));
    assert_eq!(read("below").await, Err(FileErrorKind::WrongKind));
    let short = files.read_within(&at("volume"), Path::new("link"), 3).await;
    assert_eq!(short.map_err(|error| error.kind), Err(FileErrorKind::TooLarge));
}
