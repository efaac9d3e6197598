//! What the agent says of containers: only what has happened, and never less than before.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod};

use super::truth::{Instance, State};
use super::{Checker, rules};

impl Checker {
    /// Holds for everything that is ever published of a pod.
    pub(super) fn check_said(&mut self, pod: &Pod) {
        let mut problem = None;
        for status in rules::statuses(pod) {
            let found = self.check_said_of(status).and_then(|()| {
                let uid = rules::uid(pod);
                self.check_restarts_said(uid, status)
            });
            problem = problem.or(found.err());
        }
        // Before its first look rubelet shows the API server's status as it knows it, which other clients may have changed.
        let (uid, truth) = (rules::uid(pod), &self.truth);
        let is_same = |object: &Arc<Pod>| rules::readiness(object) == rules::readiness(pod);
        let mut shown = truth
            .pods
            .get(uid)
            .into_iter()
            .flat_map(|pod| pod.shown.iter().flatten());
        let is_as_told = truth.api.get(uid).is_some_and(is_same) || shown.any(is_same);
        if !is_as_told {
            problem = problem.or(check_ready(pod).err());
        }
        if let Some(problem) = problem {
            self.violate(format!("it is said of {}: {problem}", rules::uid(pod)));
        }
    }

    /// By its id in the form of the API.
    fn instance_of(&self, id: Option<&String>) -> Option<&Instance> {
        self.truth.instances.get(id?.strip_prefix("containerd://")?)
    }

    /// What is said to run has run, and what is said to have ended did so with this code. Instances that the runtime has lost
    /// are judged by nobody.
    fn check_said_of(&self, status: &ContainerStatus) -> Result<(), String> {
        let name = &status.name;
        let state = status.state.clone().unwrap_or_default();
        let seen = self.instance_of(status.container_id.as_ref());
        if let Some(seen) = seen.filter(|seen| state.running.is_some() && !seen.ran) {
            return Err(format!("{name} runs as {}, which never ran", seen.id));
        }
        let last = status.last_state.clone().unwrap_or_default();
        let is_wrong = |end: &ContainerStateTerminated| {
            let state = self.instance_of(end.container_id.as_ref()).map(|seen| seen.state);
            match state {
                Some(State::Ended { code, .. }) => code != end.exit_code,
                Some(State::Created | State::Running { .. }) => true,
                None => false,
            }
        };
        match [state.terminated, last.terminated]
            .into_iter()
            .flatten()
            .find(is_wrong)
        {
            Some(end) => Err(format!("{name} ended with {}, which it did not", end.exit_code)),
            None => Ok(()),
        }
    }

    /// The count of restarts does not fall. After a loss it is put together from what is left.
    fn check_restarts_said(&mut self, uid: &str, status: &ContainerStatus) -> Result<(), String> {
        let instance = self.instance_of(status.container_id.as_ref());
        let incarnation = instance.map(|instance| instance.incarnation);
        let mut instances = self.truth.instances.values();
        let is_left = instances.any(|one| one.uid == uid && one.name == status.name && !one.is_removed);
        let truth = self.truth.pod(uid);
        // A pod that was added again begins once nothing of the one before is left.
        let begins = truth.incarnation > 0 && !is_left;
        let before = truth.restarts_said.get(&status.name).copied().unwrap_or(0);
        // While a pod of before ends, it is spoken of in its successor's name.
        if incarnation == Some(truth.incarnation) {
            let said = status.restart_count;
            truth.restarts_said.insert(status.name.clone(), said);
        }
        if status.restart_count < before && !truth.had_loss && !begins {
            return Err(format!(
                "{} has {} restarts, where {before} were said before",
                status.name, status.restart_count
            ));
        }
        Ok(())
    }
}

/// A pod that is said to be ready has no container that is said not to be.
fn check_ready(pod: &Pod) -> Result<(), String> {
    let mut statuses = rules::statuses(pod);
    let unready = statuses.find(|status| !status.ready && rules::stays(pod, &status.name));
    match unready {
        Some(status) if rules::condition(pod, "Ready") == Some("True") => {
            Err(format!("it is ready, {} is not", status.name))
        }
        Some(_) | None => Ok(()),
    }
}
