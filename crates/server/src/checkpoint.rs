//! `/checkpoint/{namespace}/{pod}/{container}`: the state of a running container, written to a file of the node.
//!
//! Owns the file's name and the texts; the runtime writes it. Error texts are upstream's.

use std::num::ParseIntError;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::StatusCode;
use rubelet_model::pod::{full_name, is_named, uid_of};
use rubelet_model::{MAX_PERIOD_SECONDS, Timestamp};
use rubelet_ports::{Clock, PodView, RuntimeWriter};
use rubelet_wire::cri::v1;

use crate::logs::{LogTarget, has_container};
use crate::response::{Answer, json, text};
use crate::rfc3339;

const DIRECTORY: &str = "checkpoints";

pub(crate) struct Checkpoints {
    directory: PathBuf,
    runtime: Arc<dyn RuntimeWriter>,
    clock: Arc<dyn Clock>,
}

impl Checkpoints {
    pub(crate) fn new(root_dir: &Path, runtime: Arc<dyn RuntimeWriter>, clock: Arc<dyn Clock>) -> Self {
        let root_dir = std::path::absolute(root_dir).unwrap_or_else(|_| root_dir.to_owned());
        Self {
            directory: root_dir.join(DIRECTORY),
            runtime,
            clock,
        }
    }

    pub(crate) async fn answer(&self, target: LogTarget<'_>, query: &str, pods: &dyn PodView) -> Answer {
        match self.write(target, query, pods).await {
            Ok(location) => json(format!("{{\"items\":[\"{}\"]}}", location.display())),
            Err((status, message)) => text(status, message),
        }
    }

    async fn write(
        &self,
        target: LogTarget<'_>,
        query: &str,
        pods: &dyn PodView,
    ) -> Result<PathBuf, (StatusCode, String)> {
        let LogTarget {
            namespace,
            pod: pod_name,
            container,
        } = target;
        let not_found = |message: &str| (StatusCode::NOT_FOUND, message.to_owned());
        let failed = |why: &str| {
            let message = format!("checkpointing of {namespace}/{pod_name}/{container} failed ({why})");
            (StatusCode::INTERNAL_SERVER_ERROR, message)
        };
        let all = pods.pods().await;
        let all = all.map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
        let pod = all
            .iter()
            .find(|pod| is_named(pod, namespace, pod_name))
            .ok_or_else(|| not_found("pod does not exist"))?;
        if !has_container(pod, container) {
            return Err(not_found(&format!("container {container} does not exist")));
        }
        let timeout = timeout(query).map_err(|_| not_found("cannot parse value of timeout parameter"))?;
        if timeout < 0 {
            return Err(failed("CheckpointContainer requires the timeout value to be > 0"));
        }
        let uid = uid_of(pod);
        let observed = pods.runtime_pod(&uid).await;
        let observed = observed.map_err(|error| failed(&error.to_string()))?;
        let id = observed
            .iter()
            .flat_map(|observed| &observed.containers)
            .find(|observed| observed.name == container && observed.state.is_running())
            .map(|observed| observed.id.as_str().to_owned())
            .ok_or_else(|| failed(&format!("container {container} not found")))?;
        let location = self.location(&full_name(pod_name, namespace), container);
        let request = v1::CheckpointContainerRequest {
            container_id: id,
            location: location.display().to_string(),
            timeout: timeout.min(MAX_PERIOD_SECONDS),
        };
        self.runtime
            .checkpoint_container(request)
            .await
            .map_err(|error| failed(&error.to_string()))?;
        Ok(location)
    }

    fn location(&self, pod: &str, container: &str) -> PathBuf {
        let now = self.clock.now().unix_nanos() / 1_000_000_000;
        let now = rfc3339::format(Timestamp::from_unix_seconds(now));
        self.directory
            .join(format!("checkpoint-{pod}-{container}-{now}.tar"))
    }
}

/// In seconds; `None` without a value in the query.
fn timeout(query: &str) -> Result<i64, ParseIntError> {
    let asked = form_urlencoded::parse(query.as_bytes()).filter(|(name, _)| name == "timeout");
    asked.last().map_or(Ok(0), |(_, value)| value.parse())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_timeout_upsets_it(query in "(timeout=[-+0-9a-z.%]{0,22}&?){0,3}|\\PC{0,40}") {
            if !query.contains("timeout") {
                prop_assert_eq!(timeout(&query), Ok(0));
            }
        }

        #[test]
        fn the_last_timeout_counts(first in "[a-z0-9]{0,5}", last: i64) {
            prop_assert_eq!(timeout(&format!("timeout={first}&timeout={last}")), Ok(last));
        }
    }
}
