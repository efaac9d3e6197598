//! Ranges of user ids for pods with users of their own.
//!
//! Owns the way between the table in memory and the record in each pod's directory. The record is the truth: it is written
//! before a range is used and removed before the range is free, so that no crash gives one range to two pods.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rubelet_lifecycle::configuration::labels;
use rubelet_lifecycle::user_namespaces::{RECORD_NAME, Record, UserNamespaces};
use rubelet_model::observation::PodUid;
use rubelet_ports::{FileError, FileKind, RuntimeError};
use rubelet_wire::cri::v1;
use thiserror::Error;
use tokio::sync::OnceCell;

use crate::settings::AgentPorts;

const PODS_DIRECTORY: &str = "pods";
const RECORD_MODE: u32 = 0o600;
const RECORD_LIMIT_BYTES: u64 = 4096;
/// What a record that makes no sense is called from then on.
const BAD_RECORD_NAME: &str = "userns.bad";

#[derive(Debug, Error)]
pub(crate) enum UserIdError {
    #[error("could not find an empty slot to allocate a user namespace")]
    AllInUse,
    #[error("user namespace: {0}")]
    File(#[from] FileError),
    #[error(
        "user namespace: the record of pod {uid} is broken, and the runtime does not answer what its sandbox has: {error}"
    )]
    Runtime { uid: PodUid, error: RuntimeError },
}

pub(crate) struct UserIds {
    pods: PathBuf,
    /// Without any pod.
    empty: UserNamespaces,
    /// Made from the records when it is first needed.
    table: OnceCell<Mutex<UserNamespaces>>,
}

impl UserIds {
    pub(crate) fn new(root: &Path, empty: UserNamespaces) -> Self {
        Self {
            pods: root.join(PODS_DIRECTORY),
            empty,
            table: OnceCell::new(),
        }
    }

    fn record_path(&self, uid: &PodUid) -> PathBuf {
        self.pods.join(uid.as_str()).join(RECORD_NAME)
    }

    /// The pod's range. The pod's directory has to exist.
    pub(crate) async fn of_pod(&self, ports: &AgentPorts, uid: &PodUid) -> Result<Record, UserIdError> {
        let table = self.table(ports).await?;
        let (known, record) = with(table, |table| {
            let known = table.of_pod(uid).is_some();
            (known, table.allocate(uid, ports.randomness.number()))
        });
        let record = record.ok_or(UserIdError::AllInUse)?;
        if known {
            return Ok(record);
        }
        let (path, text) = (self.record_path(uid), record.text());
        let written = ports.file_writer.write(&path, text.as_bytes(), RECORD_MODE);
        if let Err(error) = written.await {
            // Whether it is there is not known. The next try writes it anew, and nothing of the pod was made yet.
            let _ = ports.file_writer.remove_file(&path).await;
            with(table, |table| table.release(uid));
            return Err(error.into());
        }
        Ok(record)
    }

    /// Nothing of the pod runs any more.
    pub(crate) async fn release(&self, ports: &AgentPorts, uid: &PodUid) -> Result<(), FileError> {
        ports.file_writer.remove_file(&self.record_path(uid)).await?;
        if let Some(table) = self.table.get() {
            with(table, |table| table.release(uid));
        }
        Ok(())
    }

    /// Frees the ranges of unknown pods whose records went with their directories.
    pub(crate) async fn sweep(&self, ports: &AgentPorts, is_known: impl Fn(&PodUid) -> bool) {
        let Some(table) = self.table.get() else { return };
        let unknown: Vec<PodUid> = with(table, |table| {
            table.pods().filter(|uid| !is_known(uid)).cloned().collect()
        });
        for uid in unknown {
            let record = ports.file_reader.kind(&self.record_path(&uid)).await;
            if record.is_err_and(|error| error.is_not_found()) {
                with(table, |table| table.release(&uid));
            }
        }
    }

    async fn table(&self, ports: &AgentPorts) -> Result<&Mutex<UserNamespaces>, UserIdError> {
        let load = || async { self.load(ports).await.map(Mutex::new) };
        self.table.get_or_try_init(load).await
    }

    /// What was given to pods before this agent began.
    async fn load(&self, ports: &AgentPorts) -> Result<UserNamespaces, UserIdError> {
        let mut table = self.empty.clone();
        let entries = match ports.file_reader.list(&self.pods).await {
            Ok(entries) => entries,
            Err(error) if error.is_not_found() => return Ok(table),
            Err(error) => return Err(error.into()),
        };
        let mut bad = Vec::new();
        for entry in entries.iter().filter(|entry| entry.kind == FileKind::Directory) {
            let uid = PodUid::from(entry.name.as_str());
            let path = self.record_path(&uid);
            let content = match ports.file_reader.read(&path, RECORD_LIMIT_BYTES).await {
                Ok(content) => content,
                Err(error) if error.is_not_found() => continue,
                Err(error) => return Err(error.into()),
            };
            let adopted = Record::read(&content).and_then(|record| table.adopt(&uid, &record));
            if let Err(error) = adopted {
                tracing::warn!(pod = %uid, %error, "A pod's record of its user ids is set aside");
                bad.push((uid, content));
            }
        }
        for (uid, content) in bad {
            self.repair(ports, &mut table, &uid, &content).await?;
        }
        Ok(table)
    }

    /// A record that makes no sense is kept under another name. What its pod has in fact, the runtime knows; until it answers,
    /// no range is given to another pod.
    async fn repair(
        &self,
        ports: &AgentPorts,
        table: &mut UserNamespaces,
        uid: &PodUid,
        content: &[u8],
    ) -> Result<(), UserIdError> {
        let path = self.record_path(uid);
        let aside = path.with_file_name(BAD_RECORD_NAME);
        ports.file_writer.write(&aside, content, RECORD_MODE).await?;
        let found = of_runtime(ports, uid).await;
        let found = found.map_err(|error| UserIdError::Runtime {
            uid: uid.clone(),
            error,
        })?;
        match found {
            Some(record) if table.adopt(uid, &record).is_ok() => {
                let text = record.text();
                ports
                    .file_writer
                    .write(&path, text.as_bytes(), RECORD_MODE)
                    .await?;
            }
            Some(_) | None => ports.file_writer.remove_file(&path).await?,
        }
        Ok(())
    }
}

fn with<T>(table: &Mutex<UserNamespaces>, change: impl FnOnce(&mut UserNamespaces) -> T) -> T {
    // A panic elsewhere leaves the table whole: every change is a single step.
    change(&mut table.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The range of the pod's newest sandbox; `None` when it has no sandbox, or one without a range.
async fn of_runtime(ports: &AgentPorts, uid: &PodUid) -> Result<Option<Record>, RuntimeError> {
    let filter = v1::PodSandboxFilter {
        label_selector: BTreeMap::from([(labels::POD_UID.to_owned(), uid.to_string())]),
        ..v1::PodSandboxFilter::default()
    };
    let reader = &ports.runtime_reader;
    let sandboxes = reader.list_pod_sandboxes(Some(filter)).await?;
    let Some(newest) = sandboxes.into_iter().max_by_key(|sandbox| sandbox.created_at) else {
        return Ok(None);
    };
    let answer = match reader.pod_sandbox_status(&newest.id, false).await {
        Err(error) if error.is_not_found() => return Ok(None),
        answer => answer?,
    };
    let namespaces = answer.status.and_then(|status| status.linux?.namespaces);
    let options = namespaces.and_then(|namespaces| namespaces.options?.userns_options);
    Ok(options.as_ref().and_then(Record::of_runtime))
}
