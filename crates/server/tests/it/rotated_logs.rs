//! Following a log that is rotated by the real rotation: every line comes once, however late the client reads.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use rubelet_host::{HostClock, HostFiles, HostLogFiles, TokioSpawner};
use rubelet_logs::{LoggedContainers, RotationHandle, RotationPorts, RotationSettings, RunningContainer};
use rubelet_ports::RuntimeError;
use rubelet_testbed::wait::wait_until;
use rubelet_testbed::{Scope, in_scope};
use serde_json::json;

use crate::client::{Connection, DEADLINE};
use crate::fixture::{Running, Setup};
use crate::logs::{PATH, ended, pod, running_container};

/// A container that writes numbered lines, as a runtime does: it opens the new file before it lets go of the old one.
struct Writer {
    log: PathBuf,
    file: Mutex<File>,
    lines: AtomicU64,
    rotations: AtomicU64,
}

impl Writer {
    fn new(log: &Path) -> Result<Arc<Self>> {
        Ok(Arc::new(Self {
            log: log.to_owned(),
            file: Mutex::new(open(log)?),
            lines: AtomicU64::new(0),
            rotations: AtomicU64::new(0),
        }))
    }

    /// Writes one file full, and waits for the next.
    async fn fill(&self, size_bytes: u64) -> Result<()> {
        let before = self.rotations.load(Ordering::SeqCst);
        while self.file.lock().unwrap().metadata()?.len() < size_bytes
            && self.rotations.load(Ordering::SeqCst) == before
        {
            self.write(100)?;
        }
        wait_until("a rotation", DEADLINE, async || {
            ensure!(self.rotations.load(Ordering::SeqCst) > before, "not yet");
            Ok(())
        })
        .await
    }

    fn write(&self, lines: u64) -> Result<()> {
        let text: String = (0..lines)
            .map(|_| {
                let number = self.lines.fetch_add(1, Ordering::SeqCst);
                // Every seventh line comes in two halves.
                let tag = if number.is_multiple_of(7) { "P" } else { "F" };
                let rest = if number.is_multiple_of(7) {
                    "2026-01-01T00:00:00Z stdout F  and the rest\n"
                } else {
                    ""
                };
                format!("2026-01-01T00:00:00Z stdout {tag} line {number}\n{rest}")
            })
            .collect();
        Ok(self.file.lock().unwrap().write_all(text.as_bytes())?)
    }

    /// The runtime lets go of the log of a container that has ended.
    fn close(&self) -> Result<()> {
        *self.file.lock().unwrap() = File::open("/dev/null")?;
        Ok(())
    }

    fn expected(&self) -> String {
        (0..self.lines.load(Ordering::SeqCst))
            .map(|number| match number % 7 {
                0 => format!("line {number} and the rest\n"),
                _ => format!("line {number}\n"),
            })
            .collect()
    }
}

fn open(path: &Path) -> Result<File> {
    Ok(OpenOptions::new().create(true).append(true).open(path)?)
}

#[async_trait]
impl LoggedContainers for Writer {
    async fn running(&self) -> Result<Vec<RunningContainer>, RuntimeError> {
        Ok(vec![RunningContainer {
            id: "c".to_owned(),
            log_path: Some(self.log.clone()),
        }])
    }

    async fn log_path(&self, _: &str) -> Result<Option<PathBuf>, RuntimeError> {
        Ok(Some(self.log.clone()))
    }

    async fn reopen(&self, _: &str) -> Result<(), RuntimeError> {
        let anew = open(&self.log).unwrap();
        // What the runtime had in hand still goes to the old file, after the new one is there.
        self.write(3).unwrap();
        *self.file.lock().unwrap() = anew;
        self.rotations.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

fn rotate(scope: &Scope, writer: &Arc<Writer>, max_size_bytes: u64) -> RotationHandle {
    let (files, logs) = (Arc::new(HostFiles::new()), Arc::new(HostLogFiles::new()));
    let ports = RotationPorts {
        clock: Arc::new(HostClock::new()),
        spawner: Arc::new(TokioSpawner::new(tokio::runtime::Handle::current())),
        containers: writer.clone(),
        file_reader: files.clone(),
        file_writer: files,
        log_reader: logs.clone(),
        log_writer: logs,
    };
    let settings = RotationSettings {
        max_size_bytes,
        max_files: 200,
        max_workers: 1,
        monitor_interval: Duration::from_secs(3),
        links_dir: scope.path("links"),
    };
    rubelet_logs::start(ports, settings)
}

async fn follow(running: &Running) -> Result<Connection> {
    let mut tls = running.tls().await?;
    tls.begin("GET", &format!("{PATH}?follow=true")).await?;
    assert_eq!(tls.head().await?.status, 200);
    Ok(tls)
}

async fn read_to_the_end(tls: &mut Connection) -> Result<String> {
    let mut text = Vec::new();
    while let Some(chunk) = tls.chunk().await? {
        text.extend_from_slice(&chunk);
    }
    String::from_utf8(text).context("no text")
}

/// Tells where two texts part, because they are too long to print.
fn check_same(found: &str, expected: &str) {
    let differing = found.lines().zip(expected.lines()).position(|(a, b)| a != b);
    assert!(
        found == expected,
        "{} lines of {}, the first that is wrong: {:?}",
        found.lines().count(),
        expected.lines().count(),
        differing.map(|line| (found.lines().nth(line), expected.lines().nth(line)))
    );
}

#[test]
fn a_follower_gets_every_line_once_while_the_log_is_rotated() {
    in_scope("logs-rotated", async |scope| {
        const SIZE_BYTES: u64 = 32 * 1024;
        let running = Setup::new(scope)?.start().await?;
        let writer = Writer::new(&running_container(&running, 0)?)?;
        let rotation = rotate(scope, &writer, SIZE_BYTES);
        let mut tls = follow(&running).await?;
        let reader = tokio::spawn(async move { read_to_the_end(&mut tls).await });
        for _ in 0..40 {
            writer.fill(SIZE_BYTES).await?;
        }
        writer.write(10)?;
        drop(rotation);
        writer.close()?;
        running.pods.set(pod(&ended("containerd://new"), &json!({}), 0))?;
        check_same(&reader.await??, &writer.expected());
        Ok(())
    });
}

#[test]
fn a_follower_that_reads_late_gets_what_is_compressed_by_then() {
    in_scope("logs-rotated-late", async |scope| {
        // More than the connection holds between two ends that do not read.
        const SIZE_BYTES: u64 = 1024 * 1024;
        let running = Setup::new(scope)?.start().await?;
        let log = running_container(&running, 0)?;
        let writer = Writer::new(&log)?;
        writer.write(100)?;
        let mut tls = follow(&running).await?;
        let first = tls.body_until("line 99\n").await?;
        let rotation = rotate(scope, &writer, SIZE_BYTES);
        for _ in 0..16 {
            writer.fill(SIZE_BYTES).await?;
        }
        wait_until("most are compressed", 6 * DEADLINE, async || {
            let files = fs::read_dir(log.parent().unwrap())?;
            let names = files.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
            let packed = names.filter(|name| name.ends_with(".gz")).count();
            ensure!(packed >= 15, "{packed}");
            Ok(())
        })
        .await?;
        drop(rotation);
        writer.close()?;
        running.pods.set(pod(&ended("containerd://new"), &json!({}), 0))?;
        let rest = read_to_the_end(&mut tls).await?;
        check_same(&(first + &rest), &writer.expected());
        Ok(())
    });
}

#[test]
fn a_log_that_was_removed_is_followed_anew() {
    in_scope("logs-removed", async |scope| {
        let running = Setup::new(scope)?.start().await?;
        let log = running_container(&running, 0)?;
        fs::write(&log, "2026-01-01T00:00:00Z stdout F one\n")?;
        let mut tls = follow(&running).await?;
        tls.body_until("one\n").await?;
        fs::remove_file(&log)?;
        fs::write(&log, "2026-01-01T00:00:00Z stdout F two\n")?;
        assert_eq!(tls.body_until("two\n").await?, "two\n");
        Ok(())
    });
}
