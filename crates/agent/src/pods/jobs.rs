//! Starts jobs and takes their results.
//!
//! Owns the number of the next job and the channels on which jobs answer. A job's inputs and its results pass through here and
//! nowhere else.

use std::sync::Arc;

use rubelet_lifecycle::pod_state::{Job, Outcome, Retry};
use rubelet_model::observation::PodUid;
use tokio::sync::{mpsc, watch};

use super::AgentContext;
use super::worker::{RunningJob, Worker};
use crate::job::{JobOrder, MemoryLeft, PodJob, PodMemory, Progress, Report};
use crate::observer::same_facts;
use crate::supervisor::{Panicked, Supervisor};

/// The end of a job.
pub(crate) struct JobDone {
    pub(super) uid: PodUid,
    number: u64,
    result: Result<Report, Panicked>,
}

/// What follows from the end of a job.
pub(super) struct JobResult {
    pub(super) outcome: Outcome,
    /// The runtime has shown something newer than the job's last look.
    pub(super) is_behind: bool,
    /// A container was started again.
    pub(super) has_restarted: bool,
}

pub(super) struct Jobs {
    context: Arc<AgentContext>,
    supervisor: Supervisor,
    next: u64,
    progress: mpsc::Sender<Progress>,
    done: mpsc::Sender<JobDone>,
}

impl Jobs {
    pub(super) fn new(
        context: &Arc<AgentContext>,
        supervisor: Supervisor,
    ) -> (Self, mpsc::Receiver<Progress>, mpsc::Receiver<JobDone>) {
        // Every job can leave a few messages without waiting.
        let (progress, progress_receiver) = mpsc::channel(256);
        let (done, done_receiver) = mpsc::channel(256);
        let jobs = Self {
            context: Arc::clone(context),
            supervisor,
            next: 0,
            progress,
            done,
        };
        (jobs, progress_receiver, done_receiver)
    }

    pub(super) fn start(&mut self, uid: &PodUid, worker: &mut Worker, job: Job) {
        let number = self.next;
        self.next += 1;
        let clock = &self.context.ports.clock;
        let (moment, now) = (clock.moment(), clock.now());
        let metrics = &self.context.ports.metrics.jobs;
        let (cancel, cancelled) = watch::channel(false);
        let memory_left = MemoryLeft::default();
        let (newest, definition) = watch::channel(Arc::clone(worker.pod()));
        let pod = Arc::clone(worker.pod());
        let reason = worker.start.job_begins(job, &pod, now, metrics);
        worker.job = Some(RunningJob {
            number,
            cancel,
            observed: None,
            began: moment,
            memory_left: Arc::clone(&memory_left),
            newest,
            operation: reason,
        });
        let memory = worker.memory.take();
        let order = JobOrder {
            uid: uid.clone(),
            pod,
            reason,
            qos_class: worker.qos_class(),
            memory: memory.unwrap_or_else(|| PodMemory::new(&self.context.settings, moment)),
            memory_left,
            newest: definition,
            waits: worker.waits.clone(),
            recorder: worker.recorder.clone(),
            cancel: cancelled,
            progress: self.progress.clone(),
            eviction: worker.eviction.clone(),
            allocation: worker.allocation_number(),
            startup: Arc::clone(&worker.start.times),
        };
        let pod_job = PodJob::new(Arc::clone(&self.context), order);
        let (done, uid) = (self.done.clone(), uid.clone());
        self.supervisor
            .spawn_job("pod job", pod_job.run(job), move |result| async move {
                // The receiver is gone only when the agent ends.
                let _ = done.send(JobDone { uid, number, result }).await;
            });
    }

    /// The observer may look at the pod again. Sent before the next job of the pod begins.
    pub(super) fn set_idle(&self, uid: &PodUid) {
        if let Some(sent) = self.context.observer.idle(uid) {
            self.supervisor.spawn("end of a pod job", sent);
        }
    }

    /// Takes the result of the worker's job. `None` when the worker has another job by now.
    pub(super) fn finish(&self, done: JobDone, worker: &mut Worker) -> Option<JobResult> {
        let job = worker.job.take_if(|job| job.number == done.number)?;
        let clock = &self.context.ports.clock;
        let (moment, now) = (clock.moment(), clock.now());
        let durations = &self.context.ports.metrics.jobs.durations;
        let took = moment.since(job.began).as_secs_f64();
        durations.with_label_values(&[job.operation]).observe(took);
        worker.resting_since = now;
        let memory = job.left();
        let panic = match done.result {
            Ok(report) => {
                worker.memory = memory;
                return Some(JobResult {
                    outcome: report.outcome,
                    is_behind: match (&job.observed, &report.seen) {
                        (Some(observed), Some(seen)) => !same_facts(observed, seen),
                        (observed, None) => observed.is_some(),
                        (None, Some(_)) => false,
                    },
                    has_restarted: report.restarted,
                });
            }
            Err(panic) => panic,
        };
        tracing::error!(pod = %done.uid, error = %panic, "A defect in rubelet: this pod is tried again later");
        worker.recorder.note(now, panic.to_string());
        worker.waits.failed(panic.to_string());
        let memory = memory.unwrap_or_else(|| PodMemory::new(&self.context.settings, moment));
        let status = worker.statuses.computed().map(|status| (**status).clone());
        worker.memory = Some(memory.after_panic(moment, status));
        Some(JobResult {
            outcome: Outcome::Failed(Retry::Later),
            is_behind: false,
            has_restarted: false,
        })
    }
}
