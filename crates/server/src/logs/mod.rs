//! `/containerLogs/{namespace}/{pod}/{container}`.
//!
//! Owns how a request becomes the bytes of a log file: the options, the file, and copying it. Memory is bounded
//! for every content of the file. Files that were rotated away before the request are not looked at, as upstream does not; those that
//! are rotated away while a client follows are read to their end.

mod copy;
mod file;
mod locate;
mod open;
mod options;
mod transcript;

use std::path::PathBuf;
use std::sync::Arc;

use http::StatusCode;
use rubelet_config::{Gate, Settings};
use rubelet_model::pod::{is_named, uid_text};
use rubelet_ports::{Clock, LogFileReader, PodView};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::response::{Answer, stream, text, too_many};
use crate::stopping::Stopping;
use copy::{Copying, Followed};
use file::LogFile;
pub(crate) use locate::has_container;
use locate::{locate, log_file_of};
use options::{LogOptions, OptionsProblem};

/// What a client gets of a log that arrives in these pieces.
#[cfg(feature = "fuzz")]
pub(crate) fn transcript_of(pieces: &[&[u8]], timestamps: bool) -> Result<Vec<u8>, String> {
    let options = LogOptions {
        timestamps,
        ..LogOptions::default()
    };
    let mut transcript = transcript::Transcript::new(&options);
    let mut out = Vec::new();
    for piece in pieces {
        transcript.take(piece, &mut out)?;
    }
    transcript.finish(&mut out).map(|()| out)
}

/// Reads of log files at a time; a hung disk holds no more threads than this.
const READS_AT_A_TIME: usize = 8;
/// Pieces of a log that wait to be sent.
const PIECES_UNDER_WAY: usize = 2;
/// Logs that are followed at a time: each keeps its place among the port's connections for hours, and others need some, too.
const FOLLOWERS: usize = 512;

/// The container in the request's path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogTarget<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) pod: &'a str,
    pub(crate) container: &'a str,
}

impl<'a> LogTarget<'a> {
    /// From `namespace/pod/container`.
    pub(crate) fn parse(rest: &'a str) -> Option<Self> {
        let mut segments = rest.split('/');
        let target = Self {
            namespace: segments.next().filter(|segment| !segment.is_empty())?,
            pod: segments.next()?,
            container: segments.next()?,
        };
        segments.next().is_none().then_some(target)
    }
}

/// Reads the logs of the node's containers.
pub(crate) struct ContainerLogs {
    logs_dir: PathBuf,
    log_files: Arc<dyn LogFileReader>,
    clock: Arc<dyn Clock>,
    /// Whether a request may name one stream.
    split_streams: bool,
    reads: Arc<Semaphore>,
    followers: Arc<Semaphore>,
}

impl ContainerLogs {
    pub(crate) fn new(settings: &Settings, log_files: Arc<dyn LogFileReader>, clock: Arc<dyn Clock>) -> Self {
        Self {
            logs_dir: PathBuf::from(&settings.configuration().pod_logs_dir),
            log_files,
            clock,
            split_streams: settings.gates().enabled(Gate::PodLogsQuerySplitStreams),
            reads: Arc::new(Semaphore::new(READS_AT_A_TIME)),
            followers: Arc::new(Semaphore::new(FOLLOWERS)),
        }
    }

    pub(crate) async fn answer(
        &self,
        target: LogTarget<'_>,
        query: &str,
        pods: &Arc<dyn PodView>,
        stopping: &Stopping,
    ) -> Answer {
        match self.start(target, query, pods, stopping).await {
            Ok(answer) => answer,
            Err((StatusCode::TOO_MANY_REQUESTS, message)) => too_many(message),
            Err((status, message)) => text(status, message),
        }
    }

    async fn start(
        &self,
        target: LogTarget<'_>,
        query: &str,
        pods: &Arc<dyn PodView>,
        stopping: &Stopping,
    ) -> Result<Answer, (StatusCode, String)> {
        let LogTarget {
            namespace,
            pod: pod_name,
            container,
        } = target;
        let bad_request = |message: String| (StatusCode::BAD_REQUEST, message);
        let not_found = |message: String| (StatusCode::NOT_FOUND, message);
        let options = LogOptions::parse(query, self.clock.now()).map_err(refusal)?;
        let all = pods
            .pods()
            .await
            .map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
        let pod = all
            .iter()
            .find(|pod| is_named(pod, namespace, pod_name))
            .ok_or_else(|| not_found(format!("pod {pod_name:?} does not exist")))?;
        if !has_container(pod, container) {
            return Err(not_found(format!(
                "container {container:?} not found in pod {pod_name:?}"
            )));
        }
        if let (Some(wanted), false) = (options.single_stream, self.split_streams) {
            return Err(bad_request(format!(
                "unable to return the given log stream: {:?}. \
                 Please enable PodLogsQuerySplitStreams feature gate in kubelet",
                wanted.name()
            )));
        }
        let located = locate(pod, container, options.previous).map_err(bad_request)?;
        let unavailable = || bad_request(format!("unable to retrieve container logs for {}", located.id));
        let path = log_file_of(&self.logs_dir, pod, container, &located, pods.as_ref())
            .await
            .ok_or_else(unavailable)?;
        let followed = if options.follow {
            Some(Followed {
                pods: Arc::clone(pods),
                pod_uid: uid_text(pod).to_owned(),
                container: container.to_owned(),
                container_id: located.id.clone(),
                log_files: Arc::clone(&self.log_files),
                stopping: stopping.clone(),
                _place: self.place_of_follower()?,
            })
        } else {
            None
        };
        let file = LogFile::open(path, located.id, Arc::clone(&self.reads))
            .await
            .map_err(bad_request)?;
        let (sender, receiver) = mpsc::channel(PIECES_UNDER_WAY);
        tokio::spawn(Copying::new(file, &options, followed, sender).run());
        Ok(stream(receiver))
    }

    fn place_of_follower(&self) -> Result<OwnedSemaphorePermit, (StatusCode, String)> {
        let place = Arc::clone(&self.followers).try_acquire_owned();
        place.map_err(|_| {
            let message =
                format!("{FOLLOWERS} logs are followed on this node, and no more at a time; try again later");
            (StatusCode::TOO_MANY_REQUESTS, message)
        })
    }
}

fn refusal(problem: OptionsProblem) -> (StatusCode, String) {
    let (status, message) = match problem {
        OptionsProblem::Undecodable => (StatusCode::BAD_REQUEST, "Unable to decode query."),
        OptionsProblem::Invalid => (StatusCode::UNPROCESSABLE_ENTITY, "Invalid request."),
    };
    (status, format!("{{\"message\": \"{message}\"}}"))
}
