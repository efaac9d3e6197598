//! What is allocated to each pod and what its containers have, in memory and on disk.
//!
//! Owns both tables and their files, which are upstream's. The sync loop writes what is allocated, jobs write what they have actuated.
//! A start waits for no file: what is lost of it is made anew from the runtime. A resize waits until its allocation is on disk, and so
//! does a restart for a resize, so that after a crash none is forgotten and none is done twice. Everything else is written a moment
//! later, many changes at once.
//!
//! A pod that is gone leaves the table at once and the file with its next change, as upstream's does.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use rubelet_lifecycle::allocation::Allocation;
use rubelet_lifecycle::allocation::checkpoint::{self, ACTUATED_NAME, ALLOCATED_NAME};
use rubelet_model::observation::PodUid;
use rubelet_ports::{Clock, FileError, FileReader, FileWriter};
use tokio::sync::mpsc;

use crate::settings::AgentPorts;

const MODE: u32 = 0o600;
/// Some thousand pods have less.
const LIMIT_BYTES: u64 = 64 << 20;
/// How long changes are collected before they are written.
const COLLECT: Duration = Duration::from_secs(1);
const RETRY: Duration = Duration::from_secs(5);

/// The record of one pod, and its part of the file's text.
struct Known {
    allocation: Arc<Allocation>,
    entry: String,
}

impl Known {
    fn new(uid: &PodUid, allocation: Allocation) -> Self {
        Self {
            entry: checkpoint::entry(uid, &allocation),
            allocation: Arc::new(allocation),
        }
    }
}

#[derive(Default)]
struct Table {
    pods: BTreeMap<PodUid, Known>,
    /// Grows with every change that has to be written.
    version: u64,
}

/// One table and its file.
pub(crate) struct Book {
    path: PathBuf,
    /// Held for a few instructions, never across an await.
    table: Mutex<Table>,
    /// The version on disk. Held while the file is written: who waits for it finds its own change written.
    saved: tokio::sync::Mutex<u64>,
    writer: Arc<dyn FileWriter>,
    due: mpsc::Sender<()>,
}

impl Book {
    fn new(path: PathBuf, writer: Arc<dyn FileWriter>, due: mpsc::Sender<()>) -> Self {
        Self {
            path,
            table: Mutex::default(),
            saved: tokio::sync::Mutex::default(),
            writer,
            due,
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // A panic elsewhere leaves the table whole: every change is a single step.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, uid: &PodUid) -> Option<Arc<Allocation>> {
        let table = self.table();
        table.pods.get(uid).map(|known| Arc::clone(&known.allocation))
    }

    pub(crate) fn len(&self) -> usize {
        self.table().pods.len()
    }

    /// Changes the record of a pod. The answer is whether that changes anything.
    pub(crate) fn set(&self, uid: &PodUid, allocation: Allocation) -> bool {
        let mut table = self.table();
        let known = table.pods.get(uid);
        if known.is_some_and(|known| *known.allocation == allocation) {
            return false;
        }
        table.pods.insert(uid.clone(), Known::new(uid, allocation));
        table.version += 1;
        // A signal that is still there says the same.
        let _ = self.due.try_send(());
        true
    }

    /// The pod is gone.
    pub(crate) fn remove(&self, uid: &PodUid) {
        self.table().pods.remove(uid);
    }

    pub(crate) fn retain(&self, is_known: impl Fn(&PodUid) -> bool) {
        self.table().pods.retain(|uid, _| is_known(uid));
    }

    /// Waits until everything that was changed before is on disk.
    pub(crate) async fn saved(&self) -> Result<(), FileError> {
        let wanted = self.table().version;
        let mut saved = self.saved.lock().await;
        if *saved >= wanted {
            return Ok(());
        }
        let (version, text) = {
            let table = self.table();
            let entries = table.pods.values().map(|known| known.entry.as_str());
            (table.version, checkpoint::write(entries))
        };
        self.writer.write(&self.path, text.as_bytes(), MODE).await?;
        *saved = version;
        Ok(())
    }

    /// Reads what an earlier run, or another kubelet, left. A file that cannot be used is kept under another name.
    async fn load(&self, reader: &dyn FileReader) {
        let content = match reader.read(&self.path, LIMIT_BYTES).await {
            Ok(content) => content,
            Err(error) if error.is_not_found() => return,
            Err(error) => {
                tracing::warn!(
                    %error,
                    "The record of pods' resources cannot be read; it is made anew from the pods' statuses and the runtime"
                );
                return;
            }
        };
        match checkpoint::read(&content) {
            Ok(pods) => {
                let known = pods.into_iter().map(|(uid, one)| {
                    let known = Known::new(&uid, one);
                    (uid, known)
                });
                self.table().pods = known.collect();
            }
            Err(problem) => {
                let mut name = self.path.as_os_str().to_owned();
                name.push(".bad");
                let aside = PathBuf::from(name);
                let kept = self.writer.write(&aside, &content, MODE).await;
                tracing::warn!(
                    file = %self.path.display(),
                    problem = %with_source(&problem),
                    kept = %kept.map_or_else(|error| error.to_string(), |()| aside.display().to_string()),
                    "The record of pods' resources cannot be used; it is made anew from the pods' statuses and the runtime"
                );
            }
        }
    }
}

fn with_source(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// The records of all pods.
pub(crate) struct ResourceRecords {
    pub(crate) allocated: Book,
    pub(crate) actuated: Book,
}

impl ResourceRecords {
    /// The future writes changes for as long as the records are in use.
    pub(crate) fn new(
        ports: &AgentPorts,
        root: &Path,
    ) -> (Arc<Self>, impl Future<Output = ()> + Send + 'static + use<>) {
        let (due, signals) = mpsc::channel(1);
        let book = |name: &str| Book::new(root.join(name), Arc::clone(&ports.file_writer), due.clone());
        let records = Arc::new(Self {
            allocated: book(ALLOCATED_NAME),
            actuated: book(ACTUATED_NAME),
        });
        let keep = keep(Arc::downgrade(&records), Arc::clone(&ports.clock), signals);
        (records, keep)
    }

    /// Before the first pod is decided about.
    pub(crate) async fn load(&self, reader: &dyn FileReader) {
        self.allocated.load(reader).await;
        self.actuated.load(reader).await;
    }

    pub(crate) fn forget(&self, uid: &PodUid) {
        self.allocated.remove(uid);
        self.actuated.remove(uid);
    }

    /// Drops the records of pods that are gone.
    pub(crate) fn retain(&self, is_known: impl Fn(&PodUid) -> bool) {
        self.allocated.retain(&is_known);
        self.actuated.retain(&is_known);
    }
}

/// Writes what has changed, until the records are dropped.
async fn keep(records: Weak<ResourceRecords>, clock: Arc<dyn Clock>, mut signals: mpsc::Receiver<()>) {
    let mut is_logged = false;
    while signals.recv().await.is_some() {
        clock.sleep(COLLECT).await;
        loop {
            let Some(records) = records.upgrade() else { return };
            let written = match records.allocated.saved().await {
                Ok(()) => records.actuated.saved().await,
                Err(error) => Err(error),
            };
            drop(records);
            let Err(error) = written else {
                is_logged = false;
                break;
            };
            if !std::mem::replace(&mut is_logged, true) {
                tracing::warn!(%error, "The record of pods' resources cannot be written; it is tried again");
            }
            clock.sleep(RETRY).await;
        }
    }
}
