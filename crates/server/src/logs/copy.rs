//! Copying a log to a client, once or for as long as its container runs.
//!
//! Owns the loop of one request. It ends when everything asked for was sent, when the container has ended and its file is read
//! to the end, when the client goes, or when the server stops.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use rubelet_ports::{FileReader, PodView, WatchStream};
use tokio::sync::mpsc;

use super::file::LogFile;
use super::locate::status_of;
use super::options::LogOptions;
use super::transcript::{Progress, Transcript};
use crate::stopping::Stopping;

/// How often a silent container is looked at: its end changes no file.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// What is needed to go on at the end of the file.
pub(super) struct Followed {
    pub(super) pods: Arc<dyn PodView>,
    pub(super) pod_uid: String,
    pub(super) container: String,
    /// With the runtime's name before it.
    pub(super) container_id: String,
    pub(super) files: Arc<dyn FileReader>,
    pub(super) stopping: Stopping,
}

impl Followed {
    /// Whether more may come. An agent that does not answer says nothing about the container.
    async fn runs(&self) -> bool {
        let Ok(pods) = self.pods.pods().await else {
            return true;
        };
        pods.iter()
            .filter(|pod| pod.metadata.uid.as_deref() == Some(&self.pod_uid))
            .filter_map(|pod| status_of(pod, &self.container))
            .any(|status| {
                status.container_id.as_deref() == Some(&self.container_id)
                    && status.state.as_ref().is_some_and(|state| state.running.is_some())
            })
    }
}

pub(super) struct Copying {
    file: LogFile,
    tail_lines: Option<u64>,
    transcript: Transcript,
    followed: Option<Followed>,
    sender: mpsc::Sender<Bytes>,
}

/// Why copying is over.
enum Ended {
    Complete,
    /// The client has gone, or the server stops.
    Abandoned,
    /// In upstream's words, for the client to read.
    Failed(String),
}

impl Copying {
    pub(super) fn new(
        file: LogFile,
        options: &LogOptions,
        followed: Option<Followed>,
        sender: mpsc::Sender<Bytes>,
    ) -> Self {
        Self {
            file,
            tail_lines: options.tail_lines,
            transcript: Transcript::new(options),
            followed,
            sender,
        }
    }

    pub(super) async fn run(mut self) {
        let Err(ended) = self.copy().await else { return };
        if let Ended::Failed(message) = ended {
            tracing::info!(message, "A log could not be read to its end");
            // The status is sent already: the text is all that is left to say it.
            let _ = self.sender.send(message.into()).await;
        }
    }

    async fn copy(&mut self) -> Result<(), Ended> {
        let mut offset = match self.tail_lines {
            None => 0,
            Some(lines) => self.file.start_of_last(lines).await.map_err(|error| {
                let path = self.file.path();
                Ended::Failed(format!(
                    "failed to tail {lines} lines of log file {path:?}: {error}"
                ))
            })?,
        };
        let mut hints: Option<WatchStream> = None;
        let mut ran = true;
        loop {
            if self.copy_to_the_end(&mut offset).await? == Progress::Done {
                return Ok(());
            }
            let Some(followed) = &self.followed else {
                return self.finish().await;
            };
            if !ran {
                // What was written before its end has been read since.
                return self.finish().await;
            }
            if let Some(successor) = self.file.successor().await {
                // Something may have been written between the look at the old file and the one at the new.
                if self.copy_to_the_end(&mut offset).await? == Progress::Done {
                    return Ok(());
                }
                self.file = successor;
                self.transcript.begin_file();
                offset = 0;
                continue;
            }
            ran = followed.runs().await;
            if ran {
                self.wait(&mut hints).await?;
            }
        }
    }

    async fn copy_to_the_end(&mut self, offset: &mut u64) -> Result<Progress, Ended> {
        loop {
            let piece = self.file.read_at(*offset).await.map_err(|error| {
                let path = self.file.path();
                Ended::Failed(format!("failed to read log file {path:?}: {error}"))
            })?;
            if piece.is_empty() {
                return Ok(Progress::More);
            }
            *offset += piece.len() as u64;
            let mut out = Vec::with_capacity(piece.len());
            let taken = self.transcript.take(&piece, &mut out);
            self.send(out).await?;
            if taken.map_err(Ended::Failed)? == Progress::Done {
                return Ok(Progress::Done);
            }
        }
    }

    async fn finish(&mut self) -> Result<(), Ended> {
        let mut out = Vec::new();
        let finished = self.transcript.finish(&mut out);
        self.send(out).await?;
        finished.map_err(Ended::Failed)
    }

    async fn send(&self, out: Vec<u8>) -> Result<(), Ended> {
        if out.is_empty() {
            return Ok(());
        }
        self.sender.send(out.into()).await.map_err(|_| Ended::Abandoned)
    }

    /// Until the file may have changed, or it is time to look at the container.
    async fn wait(&mut self, hints: &mut Option<WatchStream>) -> Result<(), Ended> {
        let Some(followed) = &mut self.followed else {
            return Err(Ended::Complete);
        };
        if hints.is_none()
            && let Some(directory) = self.file.path().parent()
        {
            // The first hint comes when the watch stands: the file is then read once more, so that nothing is missed.
            *hints = Some(followed.files.watch(directory));
        }
        let hint = async {
            match hints {
                Some(hints) => hints.next().await,
                None => std::future::pending().await,
            }
        };
        let is_watched = tokio::select! {
            biased;
            () = self.sender.closed() => return Err(Ended::Abandoned),
            () = followed.stopping.begun() => return Err(Ended::Abandoned),
            // Cancel-safe: the file is read again in any case.
            hint = hint => matches!(hint, Some(Ok(_))),
            () = tokio::time::sleep(LOOK_INTERVAL) => true,
        };
        if !is_watched {
            // Without a watch the interval alone is left: it must not turn without a pause.
            tokio::time::sleep(LOOK_INTERVAL).await;
            *hints = None;
        }
        Ok(())
    }
}
