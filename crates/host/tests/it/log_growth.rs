//! Waiting for log files, of many containers at once.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use rubelet_host::HostLogFiles;
use rubelet_ports::{FileIdentity, Growth, LogFileReader};

const DEADLINE: Duration = Duration::from_secs(30);

fn growth(path: &Path, size_bytes: u64) -> Growth {
    Growth {
        path: path.to_owned(),
        identity: None,
        size_bytes,
        pace: Duration::from_millis(1),
    }
}

async fn told(wait: impl Future<Output = ()>, what: &str) {
    let told = tokio::time::timeout(DEADLINE, wait).await;
    assert!(told.is_ok(), "nobody told: {what}");
}

#[tokio::test]
async fn growth_is_told_when_it_is_enough() {
    let directory = tempfile::tempdir().unwrap();
    let files = HostLogFiles::new();
    let mut logs: Vec<(File, _)> = (0..200)
        .map(|number| {
            let path = directory.path().join(format!("{number}.log"));
            let file = File::create(&path).unwrap();
            (file, files.growth(growth(&path, 1000)))
        })
        .collect();
    // A little, several times: all are looked at and none is reported.
    for _ in 0..5 {
        for (file, wait) in &mut logs {
            file.write_all(&[b'x'; 100]).unwrap();
            assert!(wait.now_or_never().is_none());
        }
        tokio::task::yield_now().await;
    }
    for (number, (mut file, wait)) in logs.into_iter().enumerate() {
        file.write_all(&[b'x'; 500]).unwrap();
        told(wait, &format!("{number} has grown")).await;
    }
    let path = directory.path().join("0.log");
    told(files.growth(growth(&path, 1000)), "it was large enough before").await;
    told(
        files.growth(growth(&directory.path().join("none"), 1)),
        "it is missing",
    )
    .await;
}

#[tokio::test]
async fn another_file_and_none_are_told_too() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("0.log");
    let files = HostLogFiles::new();
    let file = File::create(&path).unwrap();
    let found = file.metadata().unwrap();
    let of_this_file = Growth {
        identity: Some(FileIdentity {
            device: found.dev(),
            inode: found.ino(),
        }),
        ..growth(&path, 1000)
    };
    // Two wait for one file, and one gives up.
    let mut first = files.growth(of_this_file.clone());
    let mut second = files.growth(growth(&path, 1000));
    assert!((&mut second).now_or_never().is_none());
    drop(second);
    assert!((&mut first).now_or_never().is_none());
    let away = directory.path().join("0.log.20260101-000000");
    fs::rename(&path, &away).unwrap();
    told(first, "it was renamed").await;
    File::create(&path).unwrap();
    told(files.growth(of_this_file), "it is another one").await;
    let waiting = files.growth(growth(&path, 1000));
    fs::remove_file(&path).unwrap();
    told(waiting, "it was removed").await;
}

#[tokio::test]
async fn whoever_writes_is_noticed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("0.log");
    let files = HostLogFiles::new();
    let first = File::create(&path).unwrap();
    let second = OpenOptions::new().append(true).open(&path).unwrap();
    assert!(files.is_written(&path).await.unwrap());
    drop(first);
    assert!(files.is_written(&path).await.unwrap());
    drop(second);
    let end = Instant::now() + DEADLINE;
    // A process that another test starts just now has the file open for a moment too.
    while files.is_written(&path).await.unwrap() {
        assert!(Instant::now() < end, "nobody writes");
        tokio::task::yield_now().await;
    }
    let _reader = File::open(&path).unwrap();
    assert!(!files.is_written(&path).await.unwrap());
    assert!(files.is_written(&directory.path().join("none")).await.is_err());
}
