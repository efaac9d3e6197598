//! Users of the pod's own (`hostUsers: false`): its range of ids, from before the sandbox until nothing of it runs.

use std::sync::Arc;

use rubelet_lifecycle::configuration::namespaces::has_own_users;
use rubelet_lifecycle::pod_state::Retry;

use super::{PodJob, Stop};
use crate::runtime_health;

impl PodJob {
    fn wants_own_users(&self) -> bool {
        self.pod.spec.as_ref().is_some_and(has_own_users)
    }

    /// Makes sure that the pod has its range, if it wants one. The pod's directory exists.
    pub(super) async fn ensure_own_users(&mut self) -> Result<(), Stop> {
        if !self.wants_own_users() || self.work.own_users.is_some() {
            return Ok(());
        }
        let handler = self.runtime_handler().await?;
        if let Some(problem) = runtime_health::user_namespace_problem(&self.shared.health, &handler) {
            return Err(self.without_sandbox(&problem));
        }
        let shared = Arc::clone(&self.shared);
        // Not dropped halfway by a cancellation: the record has to be on disk when the range is believed to be the pod's.
        let range = shared.user_ids.of_pod(&shared.ports, &self.uid);
        match self.waits.named("user ids for the pod", range).await {
            Ok(record) => {
                self.work.own_users = Some(record.namespace());
                Ok(())
            }
            Err(error) => Err(self.without_sandbox(&format!("create user namespace: {error}"))),
        }
    }

    /// Lets go of the range; another pod may have it.
    pub(super) async fn release_own_users(&mut self) -> Result<(), Stop> {
        if !self.wants_own_users() {
            return Ok(());
        }
        self.work.own_users = None;
        let shared = Arc::clone(&self.shared);
        let released = shared.user_ids.release(&shared.ports, &self.uid);
        match self
            .waits
            .named("the pod's user ids to be released", released)
            .await
        {
            Ok(()) => Ok(()),
            Err(error) => Err(self.fail(error.to_string(), Retry::Later)),
        }
    }
}
