//! The sync loop: one record per pod, and what each event makes of it.
//!
//! One task owns all of it and never waits for a call. A source, the runtime, a job or a timer sends an event; the event takes the
//! pod from one standing to the next (`rubelet_lifecycle::standing`); the effects go to the components. Work is started by events; the
//! housekeeping tick is only a safety net.
//!
//! ```text
//!  sources ─┐                                          ┌─► Admission      ledger, time to end, node refresh
//!  runtime ─┤             event            effects     ├─► Jobs           one job at most per pod
//!  jobs ────┼─► SyncLoop ─────► PodWorkers ──────────► ├─► Names          static pods of one name, one after the other
//!  probes ──┤                       │                  ├─► Timers         the next look at a pod
//!  timers ──┤                       ▼                  ├─► Resizes        resizes that wait, and their conditions
//!           │                                          ├─► KillRequests   who waits for the end of a pod
//!  handle ──┘       Records: desired, runtime,         ├─► Garbage        schedule, fates
//!                   standing, worker per pod           └─► reporter, event recorder, metrics (ports)
//! ```
//!
//! `SyncLoop` only routes. `PodWorkers` takes an event through a pod's standing and hands out the effects. `Records` is the one table
//! of pods; each component owns its own state in its own file.

mod active_pods;
mod admission;
mod census;
mod explain;
mod explain_unadmitted;
mod garbage;
mod jobs;
mod kill_requests;
mod node_waits;
mod pod_workers;
mod probes;
mod query;
mod records;
mod resizes;
mod start_times;
mod startup;
mod static_names;
mod statuses;
mod sync_loop;
mod timers;
mod unreadable_manifests;
mod worker;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::stream::{BoxStream, StreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use rubelet_model::observation::PodUid;
use rubelet_ports::{Clock, Moment};
use rubelet_resources::{PodDemand, qos_class};
use tokio::sync::mpsc;

use crate::job::AgentContext;
use crate::job::Progress;
use crate::observer::Sighting;
use crate::sources::{Merger, SourceSet};
use crate::supervisor::Supervisor;
use jobs::JobDone;
pub use kill_requests::{EndPod, EndPodError, EndReason};
pub(crate) use query::Query;
use sync_loop::SyncLoop;

/// Safety net for everything that should have come by an event.
const HOUSEKEEPING_INTERVAL: Duration = Duration::from_secs(2);

/// What the sync loop listens to.
pub(crate) struct Inputs {
    pub(crate) sources: mpsc::Receiver<SourceSet>,
    pub(crate) runtime: mpsc::Receiver<Sighting>,
    /// Pods whose probes have a new result.
    pub(crate) probes: BoxStream<'static, PodUid>,
    /// Pods that refer to an object that changed.
    pub(crate) objects: BoxStream<'static, PodUid>,
    pub(crate) queries: mpsc::Receiver<Query>,
}

/// What jobs and node refreshes send back.
struct Answers {
    progress: mpsc::Receiver<Progress>,
    done: mpsc::Receiver<JobDone>,
    refreshed: mpsc::Receiver<admission::Refreshed>,
}

/// When the loop last turned, in nanoseconds of the clock's moments; read by the health check.
pub(crate) type Heartbeat = Arc<AtomicU64>;

/// Runs the sync loop until the other ends of its inputs are gone.
pub(crate) async fn run(
    context: Arc<AgentContext>,
    supervisor: Supervisor,
    merger: Merger,
    heartbeat: Heartbeat,
    mut inputs: Inputs,
) {
    context.resources.load(context.ports.file_reader.as_ref()).await;
    let (mut pods, mut answers) = SyncLoop::new(&context, supervisor, merger);
    let clock = Arc::clone(&context.ports.clock);
    let mut housekeeping = clock.sleep(HOUSEKEEPING_INTERVAL);
    let mut sources_open = true;
    let mut health = context.health.clone();
    let mut node = context.ports.node.object.clone();
    let mut shutting_down = context.ports.node.shutting_down.clone();
    loop {
        let beat = clock.moment().since(Moment::default()).as_nanos();
        heartbeat.store(u64::try_from(beat).unwrap_or(u64::MAX), Ordering::Relaxed);
        let wake = pods.settle();
        // Every arm is cancel-safe: channels keep what was not taken, timers are made anew or kept.
        tokio::select! {
            biased;
            // Before the ends of jobs: what a job saw itself is no reason for another one.
            event = inputs.runtime.recv() => match event {
                Some(event) => pods.runtime_event(event),
                None => return,
            },
            Some(progress) = answers.progress.recv() => pods.job_progressed(progress),
            Some(done) = answers.done.recv() => pods.job_done(done),
            Some(refreshed) = answers.refreshed.recv() => pods.node_refreshed(&refreshed),
            Ok(()) = node.changed() => pods.node_changed(),
            Ok(()) = shutting_down.changed() => pods.shutdown_changed(),
            Some(uid) = inputs.probes.next() => pods.probe_changed(&uid),
            Some(uid) = inputs.objects.next() => pods.objects_changed(&uid),
            set = inputs.sources.recv(), if sources_open => match set {
                Some(set) => pods.source_delivered(set),
                None => sources_open = false,
            },
            query = inputs.queries.recv() => match query {
                Some(query) => pods.answer(query),
                None => return,
            },
            Ok(()) = health.changed() => {
                let health = health.borrow_and_update().clone();
                pods.health_changed(&health);
            }
            () = wait_until(clock.as_ref(), wake) => pods.timer_fired(),
            () = &mut housekeeping => {
                pods.keep_house();
                housekeeping = clock.sleep(HOUSEKEEPING_INTERVAL);
            }
        }
    }
}

async fn wait_until(clock: &dyn Clock, at: Option<Moment>) {
    match at {
        Some(at) => clock.sleep(at.since(clock.moment())).await,
        None => std::future::pending().await,
    }
}

fn qos_class_of(pod: &Pod, context: &AgentContext) -> &'static str {
    // Quantities were checked when the manifest was read.
    PodDemand::read(pod).map_or("BestEffort", |demand| {
        qos_class(&demand, &context.settings.node.rules).as_str()
    })
}
