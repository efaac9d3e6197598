//! Tearing down a pod's volumes.
//!
//! Owns the loop until the node has nothing left of them: look, take down, look again. It works from the disk and the mount table,
//! and needs no definition of the pod.

use rubelet_model::observation::PodUid;
use rubelet_ports::{Moment, VolumeBatch, VolumeErrorKind, VolumeFailure, VolumeStepError};
use rubelet_storage::{TearDown, plan_tear_down};

use crate::backoff::Backoff;
use crate::metrics::Operation;
use crate::record::Record;
use crate::{Inner, STEPS_DEADLINE};

/// Looks of one try. The last one only makes sure.
const ROUNDS: usize = 2;

impl Inner {
    pub(crate) async fn tear_down(&self, uid: &PodUid) -> Result<(), VolumeFailure> {
        let mut record = self.lock(uid).await;
        let now = self.ports.clock.moment();
        if let Some(failure) = &record.end_failure
            && !failure.remaining(now).is_zero()
        {
            return Err(self.end_failure(failure));
        }
        let taken_down = self.take_down(uid, &mut record).await;
        self.count_end(&mut record, taken_down.is_ok(), now);
        match taken_down {
            Ok(()) => {
                self.with_records(|records| records.forget(uid));
                Ok(())
            }
            Err(message) => {
                let now = self.ports.clock.moment();
                let failure = Backoff::after(record.end_failure.as_ref(), now, message);
                let before = record.end_failure.replace(failure.clone());
                if before.is_none_or(|before| before.message != failure.message) {
                    tracing::warn!(pod = %uid, problem = failure.message, "Volumes of a pod cannot be taken down yet");
                }
                Err(self.end_failure(&failure))
            }
        }
    }

    /// Counts only volumes that this process has set up: the kinds of those from before a restart are not known.
    fn count_end(&self, record: &mut Record, is_done: bool, began: Moment) {
        let (metrics, took) = (&self.ports.metrics, self.ports.clock.moment().since(began));
        for plugin in record.counted.plugins.values() {
            metrics.worked(plugin, Operation::Unmount, is_done, took);
        }
        if is_done {
            metrics.forget(&mut record.counted);
        } else {
            record.show(metrics);
        }
    }

    async fn take_down(&self, uid: &PodUid, record: &mut Record) -> Result<(), String> {
        let mut problems: Vec<String> = Vec::new();
        for _ in 0..ROUNDS {
            let found = self.ports.reader.pod_on_disk(&self.pods, uid).await;
            let found = found.map_err(|error| describe(&error))?;
            let plan = plan_tear_down(&found, &self.pods);
            if plan.is_empty() {
                return Ok(());
            }
            // No volume counts as set up any more, also if only some are taken down.
            record.standing.clear();
            let TearDown { volumes, unknown } = plan;
            let batches = volumes.into_iter().map(|volume| VolumeBatch {
                key: volume.key,
                steps: volume.steps,
                deadline: STEPS_DEADLINE,
            });
            let errors = self.execute(batches.collect()).await;
            problems = errors.iter().map(describe).collect();
            problems.extend(unknown.iter().map(|path| {
                let path = path.display();
                format!(
                    "rubelet has no plugin for the volume at {path}: unmount it and remove the directory, \
                     or let upstream's kubelet take it down"
                )
            }));
            if !problems.is_empty() {
                break;
            }
        }
        if problems.is_empty() {
            problems.push("volumes are there again after they were taken down".to_owned());
        }
        Err(problems.join("; "))
    }

    fn end_failure(&self, failure: &Backoff) -> VolumeFailure {
        let now = self.ports.clock.moment();
        VolumeFailure {
            message: failure.message.clone(),
            retry_at: Some(self.ports.clock.now().plus(failure.remaining(now))),
        }
    }
}

fn describe(error: &VolumeStepError) -> String {
    let VolumeStepError {
        volume,
        step,
        path,
        kind,
        message,
    } = error;
    match kind {
        VolumeErrorKind::TimedOut => {
            let path = path.display();
            format!("volume {volume:?}: {step} {path}: the filesystem does not answer: {message}")
        }
        _ => format!("volume {volume:?}: {step}: {message}"),
    }
}
