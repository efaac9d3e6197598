//! Probes: whether containers have started, are ready, are alive.
//!
//! Owns the running of every pod's probes, one small task each, and their results. It must not know what follows from a
//! result, nor the network or the runtime's client: it meets them through ports. A probe that hangs delays no other probe.
//!
//! ```text
//! agent ── show, end, forget ──► ProbeTable (one lock: course, schedule, tally of each) ◄── next, finish ── task of a probe
//!       ◄── results, changes ──┘                                                                            │
//!                                                                         HTTP, TCP, gRPC, commands ◄───────┘
//! ```

mod attempt;
mod changes;
pub mod course;
mod figures;
pub mod schedule;
mod spec;
mod table;

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt as _;
use futures_util::stream::BoxStream;
use k8s_openapi::api::core::v1::Pod;
use rubelet_model::observation::PodUid;
use rubelet_ports::{
    Clock, Dialer, EventRecorder, PodEvent, ProbeFigures, ProbeFiguresReader, ProbeReading, ProbedPod,
    Prober, Randomness, RuntimeWriter, Spawner,
};
use tokio::sync::Notify;

use crate::attempt::{Attempts, Finding, Pace};
use crate::changes::Changes;
use crate::table::{Begun, Facts, Finished, Key, Present, ProbeTable, Run, Step, has_probes};

/// The edges that probes need.
#[derive(Clone)]
pub struct ProbesPorts {
    pub clock: Arc<dyn Clock>,
    pub spawner: Arc<dyn Spawner>,
    pub randomness: Arc<dyn Randomness>,
    pub runtime_writer: Arc<dyn RuntimeWriter>,
    pub dialer: Arc<dyn Dialer>,
    pub events: Arc<dyn EventRecorder>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProbesSettings {
    /// The gate `ChangeContainerStatusOnKubeletRestart`: containers from before a restart of the agent lose their earlier results.
    pub change_status_on_restart: bool,
}

/// The prober of a node.
#[derive(Clone)]
pub struct Probes {
    shared: Arc<Shared>,
}

struct Shared {
    ports: ProbesPorts,
    attempts: Attempts,
    table: Mutex<ProbeTable>,
    changes: Arc<Changes>,
}

impl Probes {
    #[must_use]
    pub fn new(settings: ProbesSettings, ports: ProbesPorts) -> Self {
        let facts = Facts {
            started_at: ports.clock.now(),
            started: ports.clock.moment(),
            change_status_on_restart: settings.change_status_on_restart,
        };
        let shared = Shared {
            attempts: Attempts::new(
                Arc::clone(&ports.clock),
                Arc::clone(&ports.dialer),
                Arc::clone(&ports.runtime_writer),
            ),
            table: Mutex::new(ProbeTable::new(facts)),
            changes: Arc::default(),
            ports,
        };
        Self {
            shared: Arc::new(shared),
        }
    }
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, ProbeTable> {
        // A panic can only be a defect of our own, in a step that changes one probe; the other probes stay consistent.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn present(&self) -> Present {
        Present {
            now: self.ports.clock.now(),
            moment: self.ports.clock.moment(),
        }
    }

    /// The task of one probe, until its container or pod is gone.
    async fn run_probe(self: Arc<Self>, key: Key, wake: Arc<Notify>) {
        let mut pace = Pace::default();
        loop {
            let now = self.ports.clock.moment();
            let step = self.table().next(&key, now);
            match step {
                Step::Over => return,
                Step::Idle => wake.notified().await,
                Step::At(at) => {
                    let wait = self.ports.clock.sleep(at.since(now));
                    // Both may be dropped: the next turn looks again.
                    tokio::select! {
                        biased;
                        () = wake.notified() => {}
                        () = wait => {}
                    }
                }
                Step::Run(run) => self.probe(&key, &wake, &run, &mut pace).await,
            }
        }
    }

    async fn probe(&self, key: &Key, wake: &Notify, run: &Run, pace: &mut Pace) {
        let began = self.ports.clock.moment();
        let attempt = AssertUnwindSafe(self.attempts.run(&run.spec.action, &run.id, pace)).catch_unwind();
        let mut attempt = std::pin::pin!(attempt);
        let finding = loop {
            // An attempt that is dropped closes its connection and cancels its command; its result is not needed.
            tokio::select! {
                biased;
                finding = &mut attempt => break finding,
                () = wake.notified() => {
                    if !self.table().is_current(key, run) {
                        return;
                    }
                }
            }
        };
        let finding = finding.unwrap_or_else(|_| {
            tracing::error!(pod = %key.uid, container = key.container, "A defect in rubelet: a probe panicked");
            Finding::Error {
                would_be: "unknown",
                message: "a defect in rubelet ended the probe".to_owned(),
            }
        });
        let present = self.present();
        let finished = Finished {
            run,
            finding: &finding,
            took: present.moment.since(began),
        };
        let outcome = self
            .table()
            .finish(key, &finished, present, self.ports.randomness.as_ref());
        let Some(outcome) = outcome else { return };
        if outcome.is_event {
            self.record_event(&outcome.pod, key, finding);
        }
        if outcome.changed {
            tracing::debug!(pod = %key.uid, container = key.container, kind = key.kind.as_str(), "The result of a probe changed");
            self.changes.add(key.uid.clone());
        }
    }

    fn record_event(&self, pod: &Pod, key: &Key, finding: Finding) {
        let kind = key.kind.as_str();
        let event = match finding {
            Finding::Success => return,
            Finding::Warning(text) => {
                PodEvent::warning("ProbeWarning", format!("{kind} probe warning: {text}"))
            }
            Finding::Failure(text) => PodEvent::warning("Unhealthy", format!("{kind} probe failed: {text}")),
            Finding::Error { would_be, message } => PodEvent::warning(
                "Unhealthy",
                format!("{kind} probe errored and resulted in {would_be} state: {message}"),
            ),
        };
        self.ports.events.record(pod, event.of_container(&key.container));
    }
}

impl Prober for Probes {
    fn show(&self, seen: ProbedPod<'_>) -> ProbeReading {
        let shared = &self.shared;
        if !has_probes(seen.pod) {
            // It may have had some.
            shared.table().forget(&seen.observation.uid);
            return ProbeReading::default();
        }
        let present = shared.present();
        let (reading, begun) = shared
            .table()
            .show(seen, present, shared.ports.randomness.as_ref());
        for Begun { key, wake } in begun {
            let name = format!("{} probe of {}", key.kind.as_str(), key.container);
            let task = Arc::clone(shared).run_probe(key, wake);
            shared.ports.spawner.spawn(&name, Box::pin(task));
        }
        reading
    }

    fn read(&self, uid: &PodUid) -> ProbeReading {
        self.shared.table().read(uid)
    }

    fn probe_now(&self, uid: &PodUid, containers: &[String]) {
        if !containers.is_empty() {
            let now = self.shared.ports.clock.moment();
            self.shared.table().probe_now(uid, containers, now);
        }
    }

    fn end(&self, uid: &PodUid) {
        self.shared.table().end(uid);
    }

    fn forget(&self, uid: &PodUid) {
        self.shared.table().forget(uid);
    }

    fn changes(&self) -> BoxStream<'static, PodUid> {
        Arc::clone(&self.shared.changes).stream()
    }
}

impl ProbeFiguresReader for Probes {
    fn figures(&self) -> Vec<ProbeFigures> {
        self.shared.table().figures()
    }
}
