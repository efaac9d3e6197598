//! Events of the node about processes that the kernel killed because the machine ran out of memory.
//!
//! Owns which kills have an event: those of this boot since rubelet first ran in it, each once, also over a restart. What was reported
//! is in a file, with the boot and the number of the kernel's record.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use rubelet_ports::{
    Clock, EventType, FileReader, FileWriter, NodeEvent, NodeEventRecorder, OomLog, OomNews, SignalError,
};
use rubelet_usage::OomKill;
use serde::{Deserialize, Serialize};

const FILE: &str = "rubelet-system-oom.json";
/// What a file that makes no sense is called from then on.
const BAD_FILE: &str = "rubelet-system-oom.json.bad";
const FILE_MODE: u32 = 0o600;
const LIMIT_BYTES: u64 = 4096;
const VERSION: u32 = 1;
const REASON: &str = "SystemOOM";
/// Until a log that cannot be read is opened again.
const RETRY_INTERVAL: Duration = Duration::from_mins(1);

/// The edges, each behind its port.
#[derive(Clone)]
pub struct SystemOomPorts {
    pub clock: Arc<dyn Clock>,
    pub log: Arc<dyn OomLog>,
    pub events: Arc<dyn NodeEventRecorder>,
    pub file_reader: Arc<dyn FileReader>,
    pub file_writer: Arc<dyn FileWriter>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SystemOomSettings {
    /// `--root-dir`
    pub root_dir: PathBuf,
    /// Numbers of records begin anew with each.
    pub boot_id: String,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    version: u32,
    boot_id: String,
    /// The last record that needs no event any more.
    sequence: u64,
}

/// Follows the kernel's log for as long as the program runs.
pub async fn watch_system_oom(ports: SystemOomPorts, settings: SystemOomSettings) {
    let mut watch = SystemOom {
        ports,
        settings,
        reported: None,
        problem: None,
    };
    watch.reported = watch.load().await;
    loop {
        watch.follow().await;
        watch.ports.clock.sleep(RETRY_INTERVAL).await;
    }
}

struct SystemOom {
    ports: SystemOomPorts,
    settings: SystemOomSettings,
    /// The last record that needs no event any more; nothing before the log was read in this boot.
    reported: Option<u64>,
    problem: Option<SignalError>,
}

impl SystemOom {
    /// Until the log cannot be read any more.
    async fn follow(&mut self) {
        let mut news = self.ports.log.follow();
        while let Some(next) = news.next().await {
            match next {
                Ok(OomNews::Kill(kill)) => self.killed(&kill).await,
                Ok(OomNews::UpToDate { newest }) => {
                    self.problem = None;
                    if self.reported.is_none() {
                        self.keep(newest).await;
                    }
                }
                Err(error) => {
                    if self.problem.as_ref() != Some(&error) {
                        tracing::warn!(%error, "The kernel's log cannot be read: there are no SystemOOM events");
                    }
                    self.problem = Some(error);
                }
            }
        }
    }

    async fn killed(&mut self, kill: &OomKill) {
        // Before the first start in this boot, or reported already.
        if self.reported.is_none_or(|reported| kill.sequence <= reported) {
            return;
        }
        if kill.is_of_machine() {
            let OomKill { process, pid, .. } = kill;
            tracing::warn!(process, pid, "The machine ran out of memory");
            self.ports.events.record_node(NodeEvent {
                event_type: EventType::Warning,
                reason: REASON.into(),
                message: format!("System OOM encountered, victim process: {process}, pid: {pid}"),
                // As upstream: it names the node only.
                node_uid: None,
            });
        }
        self.keep(kill.sequence).await;
    }

    async fn load(&self) -> Option<u64> {
        let path = self.settings.root_dir.join(FILE);
        let content = match self.ports.file_reader.read(&path, LIMIT_BYTES).await {
            Ok(content) => content,
            Err(error) if error.is_not_found() => return None,
            Err(error) => {
                tracing::warn!(%error, "Which kills were reported cannot be read; only new ones are");
                return None;
            }
        };
        match serde_json::from_slice::<Document>(&content) {
            Ok(document) if document.version == VERSION => {
                (document.boot_id == self.settings.boot_id).then_some(document.sequence)
            }
            Ok(Document { version, .. }) => {
                self.set_aside(&content, &format!("its version is {version}"))
                    .await;
                None
            }
            Err(problem) => {
                self.set_aside(&content, &problem.to_string()).await;
                None
            }
        }
    }

    async fn set_aside(&self, content: &[u8], problem: &str) {
        let aside = self.settings.root_dir.join(BAD_FILE);
        tracing::warn!(path = %aside.display(), problem, "Which kills were reported makes no sense and is set aside");
        if let Err(error) = self.ports.file_writer.write(&aside, content, FILE_MODE).await {
            tracing::warn!(%error, "Which kills were reported cannot be set aside");
        }
    }

    async fn keep(&mut self, sequence: u64) {
        self.reported = Some(sequence);
        let document = Document {
            version: VERSION,
            boot_id: self.settings.boot_id.clone(),
            sequence,
        };
        // Numbers and texts always become JSON.
        let text = serde_json::to_vec(&document).unwrap_or_default();
        let path = self.settings.root_dir.join(FILE);
        if let Err(error) = self.ports.file_writer.write(&path, &text, FILE_MODE).await {
            tracing::warn!(%error, "Which kills were reported cannot be kept; they are reported again after a restart");
        }
    }
}
