//! Bringing a pod's volumes to what they should be.
//!
//! Owns which volumes need work now, and what is told of failures.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use rubelet_model::volume_step::VolumeStep;
use rubelet_ports::{PodEvent, VolumeBatch, VolumeFailure};
use rubelet_storage::{VolumeSetUp, plan_set_up};

use crate::backoff::Backoff;
use crate::record::Record;
use crate::{Inner, STEPS_DEADLINE, uid_of};

/// Upstream's reason for a volume that cannot be had.
const FAILED_MOUNT: &str = "FailedMount";

/// Volumes that need work, by the batch they go into.
#[derive(Default)]
struct Work {
    /// Volumes whose steps touch nothing but the pod's own directory.
    own: Vec<VolumeStep>,
    /// Each by itself: the path is the node's, and may hang.
    elsewhere: Vec<VolumeBatch>,
    /// Steps by volume, to be remembered when they went well.
    steps: BTreeMap<String, Vec<VolumeStep>>,
}

impl Work {
    fn batches(self, key: &Path) -> (Vec<VolumeBatch>, BTreeMap<String, Vec<VolumeStep>>) {
        let mut batches = self.elsewhere;
        if !self.own.is_empty() {
            batches.push(VolumeBatch {
                key: key.to_owned(),
                steps: self.own,
                deadline: STEPS_DEADLINE,
            });
        }
        (batches, self.steps)
    }
}

impl Inner {
    pub(crate) async fn set_up(&self, pod: &Pod) -> Result<(), VolumeFailure> {
        let uid = uid_of(pod);
        let layout = self.layout(&uid);
        let mut record = self.lock(&uid).await;
        let plan = plan_set_up(pod, &self.node, &layout);
        let now = self.ports.clock.moment();
        let mut work = Work::default();
        let mut failed: BTreeMap<String, String> = BTreeMap::new();
        record
            .failures
            .retain(|name, _| plan.volumes.iter().any(|one| one.volume == *name));
        for VolumeSetUp {
            volume,
            host_path,
            plan,
        } in plan.volumes
        {
            let is_waiting = record
                .failures
                .get(&volume)
                .is_some_and(|backoff| !backoff.remaining(now).is_zero());
            match plan {
                Ok(steps) if record.standing.get(&volume) == Some(&steps) => {
                    record.failures.remove(&volume);
                }
                Ok(_) | Err(_) if is_waiting => {}
                Err(error) => {
                    failed.insert(volume, error.to_string());
                }
                Ok(steps) => {
                    work.steps.insert(volume, steps.clone());
                    match host_path {
                        _ if steps.is_empty() => {}
                        None => work.own.extend(steps),
                        Some(path) => work.elsewhere.push(VolumeBatch {
                            key: path,
                            steps,
                            deadline: STEPS_DEADLINE,
                        }),
                    }
                }
            }
        }
        let (batches, steps) = work.batches(layout.directory());
        if !batches.is_empty() {
            for error in self.execute(batches).await {
                tracing::debug!(
                    pod = %uid, volume = error.volume, step = error.step, path = %error.path.display(), kind = ?error.kind,
                    %error, "A volume cannot be set up"
                );
                failed.entry(error.volume).or_insert(error.message);
            }
        }
        for (volume, steps) in steps {
            if !failed.contains_key(&volume) {
                record.failures.remove(&volume);
                record.standing.insert(volume, steps);
            }
        }
        self.note_failures(pod, &mut record, failed);
        self.outcome(&record)
    }

    fn note_failures(&self, pod: &Pod, record: &mut Record, failed: BTreeMap<String, String>) {
        let now = self.ports.clock.moment();
        for (volume, problem) in failed {
            let message = format!("MountVolume.SetUp failed for volume {volume:?} : {problem}");
            self.ports
                .events
                .record(pod, PodEvent::warning(FAILED_MOUNT, message.clone()));
            // What stood before may be half changed.
            record.standing.remove(&volume);
            let backoff = Backoff::after(record.failures.get(&volume), now, message);
            record.failures.insert(volume, backoff);
        }
    }

    fn outcome(&self, record: &Record) -> Result<(), VolumeFailure> {
        let now = self.ports.clock.moment();
        let first: Option<Duration> = record.failures.values().map(|one| one.remaining(now)).min();
        let Some(first) = first else {
            return Ok(());
        };
        let messages: Vec<&str> = record.failures.values().map(|one| one.message.as_str()).collect();
        Err(VolumeFailure {
            message: messages.join("; "),
            retry_at: Some(self.ports.clock.now().plus(first)),
        })
    }
}
