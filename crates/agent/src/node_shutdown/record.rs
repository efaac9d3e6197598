//! When the last shutdown began and ended, as a file and as metrics.
//!
//! Owns the file, which is upstream's: one that is foreign to both is set aside. Times are those of the wall clock, since another
//! boot reads them.

use std::path::PathBuf;
use std::sync::Arc;

use k8s_openapi::jiff;
use prometheus::{Gauge, Registry};
use rubelet_model::Timestamp;
use rubelet_ports::{FileReader, FileWriter, Meters};
use serde::{Deserialize, Serialize};

use super::{ShutdownPorts, ShutdownSettings};

const FILE: &str = "graceful_node_shutdown_state";
/// What a file that makes no sense is called from then on.
const BAD_FILE: &str = "graceful_node_shutdown_state.bad";
const FILE_MODE: u32 = 0o644;
const LIMIT_BYTES: u64 = 4096;
/// Upstream's time that never was.
const NEVER: &str = "0001-01-01T00:00:00Z";

/// The times of the last shutdown.
#[derive(Clone, Debug)]
pub struct ShutdownMetrics {
    began: Gauge,
    ended: Gauge,
}

impl ShutdownMetrics {
    /// Makes the metrics and registers them.
    ///
    /// # Errors
    /// When the registry has metrics of these names already.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let meters = Meters::new(registry);
        Ok(Self {
            began: meters.fine_gauge(
                "kubelet_graceful_shutdown_start_time_seconds",
                "[ALPHA] When the last graceful shutdown of the node began, in seconds since 1970.",
            )?,
            ended: meters.fine_gauge(
                "kubelet_graceful_shutdown_end_time_seconds",
                "[ALPHA] When the last graceful shutdown of the node ended, in seconds since 1970.",
            )?,
        })
    }
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    #[serde(default = "never")]
    start_time: jiff::Timestamp,
    #[serde(default = "never")]
    end_time: jiff::Timestamp,
}

fn never() -> jiff::Timestamp {
    NEVER.parse().unwrap_or(jiff::Timestamp::MIN)
}

fn time(at: Timestamp) -> jiff::Timestamp {
    jiff::Timestamp::from_nanosecond(at.unix_nanos().into()).unwrap_or_else(|_| never())
}

/// What the metric shows: zero for a time that never was.
fn shown(at: jiff::Timestamp) -> f64 {
    if at == never() {
        return 0.0;
    }
    #[expect(
        clippy::cast_precision_loss,
        reason = "a double has whole seconds of all times"
    )]
    let seconds = at.as_second() as f64;
    seconds
}

pub(super) struct ShutdownRecord {
    file_reader: Arc<dyn FileReader>,
    file_writer: Arc<dyn FileWriter>,
    directory: PathBuf,
    /// Without them nothing is kept.
    metrics: Option<ShutdownMetrics>,
    began: jiff::Timestamp,
}

impl ShutdownRecord {
    pub(super) fn new(ports: &ShutdownPorts, settings: &ShutdownSettings) -> Self {
        Self {
            file_reader: Arc::clone(&ports.file_reader),
            file_writer: Arc::clone(&ports.file_writer),
            directory: settings.root_dir.clone(),
            metrics: settings.metrics.clone(),
            began: never(),
        }
    }

    /// Shows the shutdown before the last start of the machine.
    pub(super) async fn load(&self) {
        let Some(metrics) = &self.metrics else { return };
        let path = self.directory.join(FILE);
        let content = match self.file_reader.read(&path, LIMIT_BYTES).await {
            Ok(content) => content,
            Err(error) if error.is_not_found() => return,
            Err(error) => {
                tracing::warn!(%error, "The times of the last shutdown cannot be read");
                return;
            }
        };
        match serde_json::from_slice::<Document>(&content) {
            Ok(document) => {
                metrics.began.set(shown(document.start_time));
                metrics.ended.set(shown(document.end_time));
            }
            Err(problem) => {
                tracing::warn!(path = %path.display(), %problem, "The times of the last shutdown make no sense and are set aside");
                self.set_aside(&content).await;
            }
        }
    }

    async fn set_aside(&self, content: &[u8]) {
        let aside = self.directory.join(BAD_FILE);
        let written = self.file_writer.write(&aside, content, FILE_MODE).await;
        let moved = match written {
            Ok(()) => self.file_writer.remove_file(&self.directory.join(FILE)).await,
            Err(error) => Err(error),
        };
        if let Err(error) = moved {
            tracing::warn!(%error, "The times of the last shutdown cannot be set aside");
        }
    }

    pub(super) async fn begin(&mut self, now: Timestamp) {
        let Some(metrics) = &self.metrics else { return };
        self.began = time(now);
        metrics.began.set(shown(self.began));
        metrics.ended.set(0.0);
        self.write(never()).await;
    }

    pub(super) async fn end(&self, now: Timestamp) {
        let Some(metrics) = &self.metrics else { return };
        metrics.ended.set(shown(time(now)));
        self.write(time(now)).await;
    }

    async fn write(&self, end_time: jiff::Timestamp) {
        let document = Document {
            start_time: self.began,
            end_time,
        };
        // Times always become JSON.
        let text = serde_json::to_vec(&document).unwrap_or_default();
        let path = self.directory.join(FILE);
        if let Err(error) = self.file_writer.write(&path, &text, FILE_MODE).await {
            tracing::warn!(%error, "The times of the shutdown cannot be kept");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_upstreams() {
        let check = |text: &str, began: f64, ended: f64, ours: &str| {
            let document: Document = serde_json::from_str(text).unwrap();
            assert_eq!(
                (shown(document.start_time), shown(document.end_time)),
                (began, ended)
            );
            assert_eq!(serde_json::to_string(&document).unwrap(), ours);
        };
        let ended = r#"{"startTime":"2026-01-02T03:04:05.678901234Z","endTime":"2026-01-02T03:04:35.5Z"}"#;
        check(ended, 1_767_323_045.0, 1_767_323_075.0, ended);
        let begun = r#"{"startTime":"2026-01-02T03:04:05Z","endTime":"0001-01-01T00:00:00Z"}"#;
        check(begun, 1_767_323_045.0, 0.0, begun);
        // Upstream writes the machine's own offset.
        let far = r#"{"startTime":"2026-01-02T05:04:05+02:00","endTime":"0001-01-01T00:00:00Z"}"#;
        check(far, 1_767_323_045.0, 0.0, begun);
        check("{}", 0.0, 0.0, &begun.replace("2026-01-02T03:04:05Z", NEVER));
        assert!(serde_json::from_str::<Document>("").is_err());
    }
}
