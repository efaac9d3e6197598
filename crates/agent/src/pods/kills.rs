//! Pods that were told to end for somebody else's sake, and do not.
//!
//! Owns until when each has to be gone, and upstream's event for one that is not. It ends nobody: the pod's own work goes on.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use rubelet_lifecycle::pod_state::kill_timeout;
use rubelet_model::observation::PodUid;
use rubelet_ports::{Moment, PodEvent};

use super::Pods;

const REASON: &str = "ExceededGracePeriod";
const MESSAGE: &str = "the container runtime has not ended the pod, though its grace period is over";

/// Whose end is waited for, and until when.
#[derive(Default)]
pub(super) struct Kills(BTreeMap<PodUid, Moment>);

impl Kills {
    /// The pod was told to end by its own grace period.
    pub(super) fn begin(&mut self, uid: PodUid, pod: &Pod, now: Moment) {
        let spec = pod.spec.as_ref();
        let grace_seconds = spec.and_then(|spec| spec.termination_grace_period_seconds);
        let timeout = kill_timeout(grace_seconds.unwrap_or_default());
        self.0.insert(uid, now.plus(timeout));
    }

    /// The pod has ended.
    pub(super) fn end(&mut self, uid: &PodUid) {
        self.0.remove(uid);
    }

    /// Those whose time is up, each once.
    fn take_overdue(&mut self, now: Moment) -> Vec<PodUid> {
        let overdue = self.0.extract_if(.., |_, until| *until <= now);
        overdue.map(|(uid, _)| uid).collect()
    }
}

impl Pods {
    pub(super) fn tell_overdue_kills(&mut self) {
        let now = self.shared.ports.clock.moment();
        for uid in self.admission.kills.take_overdue(now) {
            if let Some(entry) = self.pods.get(&uid) {
                let event = PodEvent::warning(REASON, MESSAGE);
                self.shared.ports.events.record(&entry.pod, event);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use k8s_openapi::api::core::v1::PodSpec;

    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::from_start(Duration::from_secs(seconds))
    }

    fn pod(grace_seconds: i64) -> Pod {
        Pod {
            spec: Some(PodSpec {
                termination_grace_period_seconds: Some(grace_seconds),
                ..PodSpec::default()
            }),
            ..Pod::default()
        }
    }

    #[test]
    fn a_pod_is_overdue_once_and_only_until_it_has_ended() {
        let mut kills = Kills::default();
        kills.begin(PodUid::from("short"), &pod(1), at(0));
        kills.begin(PodUid::from("long"), &pod(30), at(0));
        kills.begin(PodUid::from("ended"), &pod(1), at(0));
        kills.end(&PodUid::from("ended"));
        let mut check = |seconds: u64, expected: &[&str]| {
            let overdue = kills.take_overdue(at(seconds));
            let overdue: Vec<&str> = overdue.iter().map(PodUid::as_str).collect();
            assert_eq!(overdue, expected, "after {seconds} s");
        };
        check(9, &[]);
        check(10, &["short"]);
        check(44, &[]);
        check(45, &["long"]);
        check(100, &[]);
    }
}
