//! The room on the node: nobody is let in beyond it, and nobody is kept out who fits.

use k8s_openapi::api::core::v1::Pod;

use super::{Checker, rules};
use crate::node;

impl Checker {
    /// At the instant when a pod begins: with everybody who lives it must fit. What lived when the agent started keeps its
    /// place, whatever it takes, and what is on its way out is not waited for by others.
    pub(super) fn check_room(&mut self, uid: &str) {
        let truth = &self.truth;
        if truth.lived_at_start.contains(uid) {
            return;
        }
        let Some(pod) = truth.version(uid).cloned() else {
            return;
        };
        let others = truth.wanted_uids().into_iter().filter(|other| {
            let is_ending = truth.pods.get(other).is_some_and(|pod| pod.is_ending);
            let lives = truth.running(other).next().is_some() || truth.ready_sandboxes(other) > 0;
            other != uid && lives && !is_ending
        });
        let held: i64 = others
            .filter_map(|other| truth.wanted(&other))
            .filter(|other| rules::pod_name(other) != rules::pod_name(&pod))
            .map(|other| rules::milli_cpu(other))
            .sum();
        let needed = rules::milli_cpu(&pod);
        if needed > 0 && held + needed > node::MILLI_CPU {
            self.violate(format!(
                "{uid} is started and needs {needed}m where {held}m of {}m are taken",
                node::MILLI_CPU
            ));
        }
    }

    /// A refusal that stands when the world is calm has to be one for want of room.
    pub(super) fn check_refused(&self, pod: &Pod) -> Result<(), String> {
        let uid = rules::uid(pod);
        if let Some(instance) = self.truth.running(uid).next() {
            return Err(format!("it is refused, but {} runs", instance.id));
        }
        let published = self.truth.published.iter();
        let held: i64 = published
            .filter(|other| !rules::is_refused(other) && !rules::is_terminal(rules::phase(other)))
            .map(|other| rules::milli_cpu(other))
            .sum();
        let needed = rules::milli_cpu(pod);
        if held + needed <= node::MILLI_CPU {
            return Err(format!(
                "it is refused, but needs {needed}m where only {held}m of {}m are taken",
                node::MILLI_CPU
            ));
        }
        Ok(())
    }
}
