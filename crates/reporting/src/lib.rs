//! Reporting to the API server: statuses of pods, mirrors of static pods, events.
//!
//! Owns the order of the writes for one pod, parallel writes for different pods, retries, and the API server's view of this node's pods as
//! far as writes need it. It must not know the agent: its ports are [`PodReporter`], [`rubelet_ports::EventRecorder`] and
//! [`rubelet_ports::NodeEventRecorder`]. A report never waits; of each pod only the newest state is kept until it is delivered.
//!
//! A pod's own status is patched without reading it first: the base is the newest that the watch or an answer showed, and the
//! pod's UID is a precondition. A wrong base cannot do harm, since lists that others write to are merged by key.

mod api_pods;
mod backoff;
mod entry;
pub mod events;
mod figures;
mod job;
mod mirror;
mod outage;
mod queue;
mod table;
mod writer;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::{Node, Pod};
use rubelet_lifecycle::status::StatusGates;
use rubelet_model::observation::PodUid;
use rubelet_ports::api::{Change, PodWriter};
use rubelet_ports::{Clock, PodReport, PodReporter, Randomness, Spawner};
use tokio::sync::{Notify, watch};

pub use figures::{DELAY_BOUNDS_MILLIS, ReportingFigures};

use figures::Counters;
use table::Table;

/// The ports that reporting uses.
#[derive(Clone)]
pub struct ReportingPorts {
    pub clock: Arc<dyn Clock>,
    pub spawner: Arc<dyn Spawner>,
    pub randomness: Arc<dyn Randomness>,
    pub pods: Arc<dyn PodWriter>,
}

pub(crate) struct Shared {
    ports: ReportingPorts,
    gates: StatusGates,
    /// Held for a few instructions, never across an await.
    table: Mutex<Table>,
    wake: Notify,
    counters: Counters,
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, Table> {
        // A panic can only be a defect of our own; every change leaves the table usable, and the next look mends the rest.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Table)) {
        change(&mut self.table());
        self.wake.notify_one();
    }
}

/// Handles are cheap to copy.
#[derive(Clone)]
pub struct Reporter {
    shared: Arc<Shared>,
}

impl Reporter {
    /// Starts the one task that writes. `node` is the Node that owns the mirror pods; there are none as long as it is unknown.
    #[must_use]
    pub fn start(
        ports: ReportingPorts,
        gates: StatusGates,
        node: watch::Receiver<Option<Arc<Node>>>,
    ) -> Self {
        let spawner = Arc::clone(&ports.spawner);
        let shared = Arc::new(Shared {
            ports,
            gates,
            table: Mutex::default(),
            wake: Notify::new(),
            counters: Counters::default(),
        });
        spawner.spawn("reports of pods", Box::pin(Arc::clone(&shared).run(node)));
        Self { shared }
    }

    #[must_use]
    pub fn figures(&self) -> ReportingFigures {
        self.shared.counters.figures()
    }

    /// How many pods are remembered.
    #[must_use]
    pub fn known_pods(&self) -> usize {
        self.shared.table().len()
    }
}

impl PodReporter for Reporter {
    fn report(&self, report: PodReport) {
        let now = self.shared.ports.clock.moment();
        self.shared.change(|table| table.report(report, now));
    }

    fn forget(&self, uid: &PodUid) {
        self.shared.change(|table| table.forget(uid));
    }

    fn api_pods(&self, change: &Change<Pod>) {
        let now = self.shared.ports.clock.moment();
        self.shared.change(|table| table.api_change(change, now));
    }

    fn undelivered(&self) -> usize {
        self.shared.table().undelivered()
    }

    fn sources_are_ready(&self) {
        self.shared.change(Table::sources_are_ready);
    }
}
