//! Watching folders and files: no change is missed, half files give no hint, and the end is reported.

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use futures_util::{FutureExt as _, StreamExt as _};
use rubelet_host::HostFiles;
use rubelet_ports::{FileError, FileErrorKind, FileReader, WatchHint, WatchStream};

const LIMIT: Duration = Duration::from_secs(20);

async fn next(stream: &mut WatchStream) -> Option<Result<WatchHint, FileError>> {
    tokio::time::timeout(LIMIT, stream.next()).await.unwrap()
}

async fn hint(stream: &mut WatchStream) {
    next(stream).await.unwrap().unwrap();
}

async fn started(path: &Path) -> WatchStream {
    let mut stream = HostFiles::new().watch(path);
    hint(&mut stream).await;
    stream
}

/// Hints that came together with the one before.
fn swallow(stream: &mut WatchStream) {
    while let Some(Some(item)) = stream.next().now_or_never() {
        item.unwrap();
    }
}

#[tokio::test]
async fn every_kind_of_change_in_a_folder_gives_a_hint() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let mut stream = started(dir.path()).await;
    assert!(stream.next().now_or_never().is_none(), "nothing has happened");
    let steps: [(&str, &dyn Fn()); 7] = [
        ("write", &|| fs::write(at("a"), "1").unwrap()),
        ("rename", &|| fs::rename(at("a"), at("b")).unwrap()),
        ("link", &|| symlink("b", at("c")).unwrap()),
        ("hard link", &|| fs::hard_link(at("b"), at("d")).unwrap()),
        ("folder", &|| fs::create_dir(at("e")).unwrap()),
        ("mode", &|| {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
            fs::set_permissions(at("b"), mode).unwrap();
        }),
        ("removal", &|| fs::remove_file(at("b")).unwrap()),
    ];
    for (name, step) in steps {
        swallow(&mut stream);
        step();
        let got = tokio::time::timeout(LIMIT, stream.next()).await;
        got.unwrap_or_else(|_| panic!("no hint after: {name}"))
            .unwrap()
            .unwrap();
    }
}

#[tokio::test]
async fn a_file_gives_its_hint_when_it_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    let mut stream = started(dir.path()).await;
    let mut file = fs::File::create(dir.path().join("a")).unwrap();
    // A later event proves that the earlier one was read and held back.
    fs::write(dir.path().join("b"), "").unwrap();
    hint(&mut stream).await;
    swallow(&mut stream);
    file.write_all(b"half").unwrap();
    file.flush().unwrap();
    assert!(stream.next().now_or_never().is_none());
    drop(file);
    hint(&mut stream).await;
}

#[tokio::test]
async fn of_a_file_only_its_own_changes_count() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pod.yaml");
    fs::write(&path, "1").unwrap();
    let mut stream = started(&path).await;
    fs::write(dir.path().join("other"), "1").unwrap();
    fs::write(dir.path().join("pod.yaml.new"), "2").unwrap();
    fs::rename(dir.path().join("pod.yaml.new"), &path).unwrap();
    hint(&mut stream).await;
    swallow(&mut stream);
    fs::write(dir.path().join("other"), "2").unwrap();
    assert!(stream.next().now_or_never().is_none());
    fs::remove_file(&path).unwrap();
    hint(&mut stream).await;
    fs::write(&path, "3").unwrap();
    hint(&mut stream).await;
}

#[tokio::test]
async fn a_missing_path_and_a_vanishing_folder_end_the_stream() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("folder");
    let mut stream = HostFiles::new().watch(&folder);
    let error = next(&mut stream).await.unwrap().unwrap_err();
    assert_eq!(
        (error.kind, error.path),
        (FileErrorKind::NotFound, folder.clone())
    );
    assert!(next(&mut stream).await.is_none());

    let ends: [(&str, &dyn Fn()); 2] = [
        ("removed", &|| fs::remove_dir(&folder).unwrap()),
        ("moved", &|| {
            fs::rename(&folder, dir.path().join("elsewhere")).unwrap();
        }),
    ];
    for (word, end) in ends {
        fs::create_dir(&folder).unwrap();
        let mut stream = started(&folder).await;
        end();
        let error = loop {
            match next(&mut stream).await {
                Some(Ok(_)) => {}
                Some(Err(error)) => break error,
                None => panic!("the end comes with an error"),
            }
        };
        assert_eq!(error.kind, FileErrorKind::NotFound);
        assert!(error.message.contains(word), "{error}");
        assert!(next(&mut stream).await.is_none());
    }
}

/// What was taken away, as the hints up to now say: `name`, or `name>new name`.
fn removals(stream: &mut WatchStream) -> Vec<String> {
    let mut all = Vec::new();
    while let Some(Some(item)) = stream.next().now_or_never() {
        all.extend(item.unwrap().removed);
    }
    all.into_iter()
        .map(|removal| match removal.renamed_to {
            Some(new_name) => format!("{}>{new_name}", removal.name),
            None => removal.name,
        })
        .collect()
}

/// Its name, what happens, and the hints of it.
type Step<'a> = (&'a str, &'a dyn Fn(), &'a [&'a str]);

#[tokio::test]
async fn hints_say_what_was_taken_away_also_when_it_is_there_again() {
    let dir = tempfile::tempdir().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("a"), "1").unwrap();
    let away = elsewhere.path().join("a");
    let steps: [Step<'_>; 6] = [
        ("written", &|| fs::write(at("a"), "2").unwrap(), &[]),
        (
            "replaced",
            &|| {
                fs::write(at(".new"), "2").unwrap();
                fs::rename(at(".new"), at("a")).unwrap();
            },
            &[".new>a"],
        ),
        (
            "deleted and written",
            &|| {
                fs::remove_file(at("a")).unwrap();
                fs::write(at("a"), "2").unwrap();
            },
            &["a"],
        ),
        (
            "kept as a backup",
            &|| {
                fs::rename(at("a"), at("a~")).unwrap();
                fs::write(at("a"), "2").unwrap();
                fs::remove_file(at("a~")).unwrap();
            },
            &["a>a~", "a~"],
        ),
        ("moved", &|| fs::rename(at("a"), at("b")).unwrap(), &["a>b"]),
        ("removed", &|| fs::remove_file(at("b")).unwrap(), &["b"]),
    ];
    let mut stream = started(dir.path()).await;
    for (name, step, expected) in steps {
        step();
        // At once: everything that has happened is there without a wait.
        assert_eq!(removals(&mut stream), expected, "{name}");
    }

    fs::write(at("a"), "1").unwrap();
    let mut stream = started(&at("a")).await;
    fs::rename(at("a"), &away).unwrap();
    fs::rename(&away, at("a")).unwrap();
    let hint = next(&mut stream).await.unwrap().unwrap();
    let removed: Vec<_> = hint
        .removed
        .into_iter()
        .map(|removal| (removal.name, removal.renamed_to))
        .collect();
    assert_eq!(removed, [("a".to_owned(), None)], "moved away and back");
}
