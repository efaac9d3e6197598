//! Setting up a pod's volumes and keeping them up to date.
//!
//! Owns which volumes need work now, and the events of failures. A volume that was set up once stays usable when a later update
//! fails: it keeps its old files, an event reports the failure, and containers may start.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use rubelet_model::pod::uid_of;
use rubelet_model::volume_step::VolumeStep;
use rubelet_ports::{Moment, PodEvent, VolumeBatch, VolumeFailure};
use rubelet_storage::{ObjectAnswers, StorageNode, VolumeSetUp, plan_set_up};

use crate::backoff::Backoff;
use crate::metrics::Operation;
use crate::record::{Fingerprint, Locked, Record, Standing};
use crate::{Inner, STEPS_DEADLINE};

/// Upstream's reason for a volume that cannot be set up.
const FAILED_MOUNT: &str = "FailedMount";

/// Volumes that need work, by the batch they go into.
#[derive(Default)]
struct Work {
    /// Volumes whose steps touch nothing but the pod's own directory.
    own: Vec<VolumeStep>,
    /// Volumes whose steps touch paths of the node. Each has a batch of its own, because the path may hang.
    elsewhere: Vec<VolumeBatch>,
    /// The fingerprint of each volume's steps, recorded when they succeed.
    attempts: BTreeMap<String, Fingerprint>,
    /// Why volumes cannot be set up.
    failed: BTreeMap<String, String>,
}

impl Work {
    /// The work that is needed now to bring the pod to these volumes.
    fn needed(record: &mut Record, volumes: Vec<VolumeSetUp>, now: Moment) -> Self {
        let mut work = Self::default();
        record.keep_failures_of(&volumes);
        for VolumeSetUp {
            volume,
            host_path,
            plan,
        } in volumes
        {
            match plan {
                Ok(steps) => {
                    let attempt = Fingerprint::of(&steps);
                    if !record.is_settled(&volume, attempt, now) {
                        work.attempts.insert(volume, attempt);
                        work.add(host_path, steps);
                    }
                }
                Err(error) => {
                    let message = message(&volume, &error.to_string());
                    if !record.is_waiting_for_plan(&volume, message, now) {
                        work.failed.insert(volume, error.to_string());
                    }
                }
            }
        }
        work
    }

    fn add(&mut self, host_path: Option<PathBuf>, steps: Vec<VolumeStep>) {
        match host_path {
            _ if steps.is_empty() => {}
            None => self.own.extend(steps),
            Some(path) => self.elsewhere.push(VolumeBatch {
                key: path,
                steps,
                deadline: STEPS_DEADLINE,
            }),
        }
    }

    fn batches(&mut self, key: &Path) -> Vec<VolumeBatch> {
        let mut batches = std::mem::take(&mut self.elsewhere);
        if !self.own.is_empty() {
            batches.push(VolumeBatch {
                key: key.to_owned(),
                steps: std::mem::take(&mut self.own),
                deadline: STEPS_DEADLINE,
            });
        }
        batches
    }
}

fn message(volume: &str, problem: &str) -> String {
    format!("MountVolume.SetUp failed for volume {volume:?} : {problem}")
}

impl Inner {
    pub(crate) async fn set_up(
        &self,
        pod: &Arc<Pod>,
        mut record: Locked,
        answers: ObjectAnswers,
    ) -> Result<(), VolumeFailure> {
        let uid = uid_of(pod);
        let layout = self.layout(&uid);
        let node = StorageNode {
            host_ips: self.ports.host_ips.host_ips(),
            ..self.node.clone()
        };
        let plan = plan_set_up(pod, &node, &layout, &answers);
        drop(answers);
        let used = plan.volumes.iter().map(|one| one.volume.as_str());
        record.counted.wants(pod, used);
        let began = self.ports.clock.moment();
        let mut work = Work::needed(&mut record, plan.volumes, began);
        let batches = work.batches(layout.directory());
        if !batches.is_empty() {
            for error in self.execute(batches).await {
                tracing::debug!(
                    pod = %uid, volume = error.volume, step = error.step, path = %error.path.display(), kind = ?error.kind,
                    %error, "A volume cannot be set up"
                );
                work.failed.entry(error.volume).or_insert(error.message);
            }
        }
        let Work { attempts, failed, .. } = work;
        let (metrics, took) = (&self.ports.metrics, self.ports.clock.moment().since(began));
        for volume in attempts.keys() {
            let is_done = !failed.contains_key(volume);
            let plugin = record.counted.plugin(volume);
            metrics.worked(plugin, Operation::Mount, is_done, took);
        }
        for (volume, attempt) in &attempts {
            if !failed.contains_key(volume) {
                record.failures.remove(volume);
                record.standing.insert(volume.clone(), Standing::As(*attempt));
            }
        }
        self.note_failures(pod, &mut record, failed, &attempts);
        record.show(metrics);
        self.outcome(&record)
    }

    fn note_failures(
        &self,
        pod: &Pod,
        record: &mut Record,
        failed: BTreeMap<String, String>,
        attempts: &BTreeMap<String, Fingerprint>,
    ) {
        let now = self.ports.clock.moment();
        for (volume, problem) in failed {
            let message = message(&volume, &problem);
            let attempt = attempts.get(&volume).copied();
            let before = record.failures.get(&volume);
            let is_news = before.is_none_or(|before| before.message != message);
            let standing = record.standing.get_mut(&volume);
            if standing.is_some() && is_news {
                tracing::warn!(
                    pod = %uid_of(pod), volume, problem, "Files of a volume are not brought up to date"
                );
            }
            if let (Some(standing), Some(_)) = (standing, attempt) {
                *standing = Standing::Behind;
            }
            self.ports
                .events
                .record(pod, PodEvent::warning(FAILED_MOUNT, message.clone()));
            let backoff = Backoff::after(before, now, message).of_attempt(attempt);
            record.failures.insert(volume, backoff);
        }
    }

    /// Fails while a volume was never set up: containers have to wait for it.
    fn outcome(&self, record: &Record) -> Result<(), VolumeFailure> {
        let now = self.ports.clock.moment();
        let missing = || {
            let failures = record.failures.iter();
            failures.filter(|(volume, _)| !record.standing.contains_key(*volume))
        };
        let first: Option<Duration> = missing().map(|(_, one)| one.remaining(now)).min();
        let Some(first) = first else {
            return Ok(());
        };
        let messages: Vec<&str> = missing().map(|(_, one)| one.message.as_str()).collect();
        Err(VolumeFailure {
            message: messages.join("; "),
            retry_at: Some(self.ports.clock.now().plus(first)),
        })
    }
}
