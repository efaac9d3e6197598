//! Copying a log to a client, once or for as long as its container runs.
//!
//! Owns the loop of one request. It ends when everything asked for was sent, when the container has ended and its file is read
//! to the end, when the client goes, or when the server stops. A follower reads each file of a log that is rotated to its
//! end, and then the one that was written after it, however many there are by then:
//!
//! ```text
//!            end of file         rotated away           no writer is left, read to the end
//!  copying ───────────► newest ───────────────► rotated ──────────────────────────────────────► copying the next
//!      ▲ grown │                                  │ the runtime has not let go of it
//!      └───────┘                                  └──► copying
//! ```

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rubelet_model::pod::uid_text;
use rubelet_ports::{Growth, LogFileReader, PodView};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::Instant;

use super::file::{LogFile, Place};
use super::locate::status_of;
use super::options::LogOptions;
use super::transcript::{Progress, Transcript};
use crate::stopping::Stopping;

/// How often the agent is asked whether a container still runs: its end changes no file, and the answer holds all pods.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// A log that grows all the time is read no more often than this.
const GROWTH_PACE: Duration = Duration::from_millis(10);
/// The runtime lets go of a file a moment after it has made the next one; the pause between looks, and how many there are.
const LETTING_GO_PAUSE: Duration = Duration::from_millis(20);
const LETTING_GO_LOOKS: u32 = 250;

/// What is needed to go on at the end of the file.
pub(super) struct Followed {
    pub(super) pods: Arc<dyn PodView>,
    pub(super) pod_uid: String,
    pub(super) container: String,
    /// With the runtime's name before it.
    pub(super) container_id: String,
    pub(super) log_files: Arc<dyn LogFileReader>,
    pub(super) stopping: Stopping,
    /// Its permit among the requests that follow a log.
    pub(super) _place: OwnedSemaphorePermit,
}

impl Followed {
    /// Whether the runtime may still write to a file that was rotated away.
    async fn is_written(&self, path: &Path) -> bool {
        self.log_files.is_written(path).await.unwrap_or(false)
    }

    /// Whether more may come. Without the agent's answer the container counts as running.
    async fn runs(&self) -> bool {
        let Ok(pods) = self.pods.pods().await else {
            return true;
        };
        pods.iter()
            .filter(|pod| uid_text(pod) == self.pod_uid)
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
    /// When the agent was last asked whether the container runs.
    asked_at: Option<Instant>,
    /// When the file was last read to its end.
    read_at: Instant,
    sender: mpsc::Sender<Bytes>,
}

/// Why copying is over.
enum Ended {
    Complete,
    /// The client has gone, or the server stops.
    Abandoned,
    /// Upstream's text, for the client to read.
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
            asked_at: None,
            read_at: Instant::now(),
            sender,
        }
    }

    pub(super) async fn run(mut self) {
        let Err(ended) = self.copy().await else { return };
        if let Ended::Failed(message) = ended {
            tracing::info!(message, "A log could not be read to its end");
            // The HTTP status is sent already: only the text can carry the error.
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
        let mut ran = true;
        let mut letting_go_looks = 0;
        loop {
            if self.copy_to_the_end(&mut offset).await? == Progress::Done {
                return Ok(());
            }
            let Some(followed) = &self.followed else {
                return self.finish().await;
            };
            match self.file.place().await.map_err(|error| self.unreadable(&error))? {
                // The runtime may still write a container's last lines when the container has ended.
                Place::Newest if !ran && letting_go_looks < LETTING_GO_LOOKS => {
                    let is_written = followed.is_written(self.file.path()).await;
                    letting_go_looks = if is_written {
                        letting_go_looks + 1
                    } else {
                        LETTING_GO_LOOKS
                    };
                    if is_written {
                        self.pause(LETTING_GO_PAUSE).await?;
                    }
                }
                Place::Newest if !ran => return self.finish().await,
                Place::Newest => {
                    // What was written before its end is read once more.
                    ran = self.runs().await;
                    if ran {
                        self.wait_for_growth(offset).await?;
                    }
                }
                Place::RotatedTo(path)
                    if letting_go_looks < LETTING_GO_LOOKS && followed.is_written(&path).await =>
                {
                    letting_go_looks += 1;
                    self.pause(LETTING_GO_PAUSE).await?;
                }
                Place::RotatedTo(_) | Place::Gone => {
                    // Something may have been written between the last reading and the look.
                    if self.copy_to_the_end(&mut offset).await? == Progress::Done {
                        return Ok(());
                    }
                    if self.begin_successor().await? {
                        (offset, letting_go_looks) = (0, 0);
                    } else if ran {
                        ran = self.runs().await;
                        self.pause(LETTING_GO_PAUSE).await?;
                    } else {
                        return self.finish().await;
                    }
                }
            }
        }
    }

    /// Whether more may come, by the agent's last answer.
    async fn runs(&mut self) -> bool {
        if !self.until_question().is_zero() {
            // A container that had ended by then does not run again.
            return true;
        }
        let Some(followed) = &self.followed else {
            return false;
        };
        let runs = followed.runs().await;
        self.asked_at = Some(Instant::now());
        runs
    }

    fn until_question(&self) -> Duration {
        self.asked_at
            .map_or(Duration::ZERO, |at| LOOK_INTERVAL.saturating_sub(at.elapsed()))
    }

    /// Goes on with the file that was written next, if there is one.
    async fn begin_successor(&mut self) -> Result<bool, Ended> {
        let successor = self.file.successor().await;
        let Some(successor) = successor.map_err(|error| self.unreadable(&error))? else {
            return Ok(false);
        };
        // Runtimes write whole lines; half a line is all that is left of a file that was cut off.
        self.finish().await?;
        self.transcript.begin_file();
        self.file = successor;
        Ok(true)
    }

    fn unreadable(&self, error: &std::io::Error) -> Ended {
        let path = self.file.path();
        Ended::Failed(format!("failed to read log file {path:?}: {error}"))
    }

    async fn copy_to_the_end(&mut self, offset: &mut u64) -> Result<Progress, Ended> {
        loop {
            let piece = self.file.read_at(*offset).await;
            let piece = piece.map_err(|error| self.unreadable(&error))?;
            if piece.is_empty() {
                self.read_at = Instant::now();
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
    async fn wait_for_growth(&mut self, offset: u64) -> Result<(), Ended> {
        let Some(followed) = &self.followed else {
            return Err(Ended::Complete);
        };
        let growth = Growth {
            path: self.file.path().to_owned(),
            identity: Some(self.file.identity()),
            size_bytes: offset.saturating_add(1),
            pace: GROWTH_PACE,
        };
        let (log_files, next_read) = (Arc::clone(&followed.log_files), self.read_at + GROWTH_PACE);
        let grown = async move {
            // A wait that begins when there is more already ends at once: the pace between waits is kept here.
            tokio::time::sleep_until(next_read).await;
            log_files.growth(growth).await;
        };
        self.wait(grown, self.until_question()).await
    }

    async fn pause(&mut self, duration: Duration) -> Result<(), Ended> {
        self.wait(std::future::pending(), duration).await
    }

    async fn wait(&mut self, news: impl Future<Output = ()>, limit: Duration) -> Result<(), Ended> {
        let Some(followed) = &mut self.followed else {
            return Err(Ended::Complete);
        };
        tokio::select! {
            biased;
            () = self.sender.closed() => Err(Ended::Abandoned),
            () = followed.stopping.begun() => Err(Ended::Abandoned),
            // Cancel-safe: the file is read again in any case.
            () = news => Ok(()),
            () = tokio::time::sleep(limit) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use async_trait::async_trait;
    use futures_util::FutureExt;
    use futures_util::future::BoxFuture;
    use k8s_openapi::api::core::v1::Pod;
    use rubelet_model::explanation::PodExplanation;
    use rubelet_model::observation::{PodObservation, PodUid};
    use rubelet_ports::{FileError, NoAnswer, RuntimeError};
    use rubelet_testbed::Scope;
    use serde_json::{Value, json};
    use tokio::sync::{Semaphore, watch};

    use super::*;

    /// A container that runs, and whose log has grown whenever a caller waits for that, for the first thousand times.
    #[derive(Default)]
    struct Busy {
        asked: AtomicUsize,
        waited: AtomicUsize,
    }

    #[async_trait]
    impl PodView for Busy {
        async fn pods(&self) -> Result<Vec<Arc<Pod>>, NoAnswer> {
            self.asked.fetch_add(1, Ordering::SeqCst);
            let pod = json!({
                "metadata": { "uid": "u" },
                "status": { "containerStatuses": [{
                    "name": "main", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                    "containerID": "c", "state": { "running": {} },
                }] },
            });
            Ok(vec![Arc::new(serde_json::from_value(pod).unwrap())])
        }

        async fn runtime_pods(&self) -> Result<Vec<Arc<PodObservation>>, RuntimeError> {
            Ok(Vec::new())
        }

        async fn runtime_pod(&self, _: &PodUid) -> Result<Option<Arc<PodObservation>>, RuntimeError> {
            Ok(None)
        }

        async fn explanations(&self) -> Result<Vec<PodExplanation>, NoAnswer> {
            Ok(Vec::new())
        }

        async fn flight_record(&self, _: &str) -> Result<Option<Value>, NoAnswer> {
            Ok(None)
        }

        async fn events(&self) -> Result<Vec<Value>, NoAnswer> {
            Ok(Vec::new())
        }

        fn sync_loop_health(&self) -> Result<(), String> {
            Ok(())
        }
    }

    #[async_trait]
    impl LogFileReader for Busy {
        async fn size(&self, _: &Path) -> Result<u64, FileError> {
            Ok(0)
        }

        async fn is_written(&self, _: &Path) -> Result<bool, FileError> {
            Ok(true)
        }

        fn growth(&self, _: Growth) -> BoxFuture<'static, ()> {
            if self.waited.fetch_add(1, Ordering::SeqCst) < 1000 {
                std::future::ready(()).boxed()
            } else {
                std::future::pending().boxed()
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_busy_log_is_read_at_its_pace_and_the_agent_is_asked_now_and_then() {
        let scope = Scope::new("busy-log").unwrap();
        let path = scope.path("logs/pod/main/0.log");
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, "").unwrap();
        let calls = Arc::new(Semaphore::new(1));
        let file = LogFile::open(path, "c".to_owned(), calls).await.unwrap();
        let busy = Arc::new(Busy::default());
        let (_stop, stopping) = watch::channel(false);
        let followed = Followed {
            pods: Arc::clone(&busy) as Arc<dyn PodView>,
            pod_uid: "u".to_owned(),
            container: "main".to_owned(),
            container_id: "c".to_owned(),
            log_files: Arc::clone(&busy) as Arc<dyn LogFileReader>,
            stopping: Stopping::new(stopping),
            _place: Arc::new(Semaphore::new(1)).acquire_owned().await.unwrap(),
        };
        let options = LogOptions {
            follow: true,
            ..LogOptions::default()
        };
        let (sender, _receiver) = mpsc::channel(1);
        let copying = tokio::spawn(Copying::new(file, &options, Some(followed), sender).run());
        tokio::time::sleep(5 * LOOK_INTERVAL).await;
        copying.abort();
        let (asked, waited) = (
            busy.asked.load(Ordering::SeqCst),
            busy.waited.load(Ordering::SeqCst),
        );
        assert!((4..=6).contains(&asked), "{asked}");
        assert!((100..=501).contains(&waited), "{waited}");
    }
}
