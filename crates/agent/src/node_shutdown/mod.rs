//! The graceful shutdown of the node: the machine waits until the pods have ended.
//!
//! Owns whether the node shuts down, the lock that the machine waits for, and the order of the steps. Which pods end when is decided by
//! `rubelet_lifecycle::node_shutdown`; a pod ends as on every other request. The service that shuts the machine down is a
//! port (decision 0051).
//!
//! ```text
//! service ─► announcements ── Attached, Begins, Cancelled ─► NodeShutdown ── shutting_down ─► Node object, admission
//!                 ▲                                              │
//!                 └── a lost connection is made again            └─► end_pods: group after group, statuses delivered ─► lock released
//! ```
//!
//! From its announcement on, a shutdown can be cancelled at any time: then no further group begins. Pods that end already go on
//! ending. A lost connection does not stop a shutdown, and the lock stays until a new one is there.

mod announcements;
mod end_pods;
mod record;

use std::path::PathBuf;
use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt as _, pending};
use k8s_openapi::api::core::v1::Node;
use rubelet_lifecycle::node_shutdown::ShutdownPeriods;
use rubelet_ports::{
    Clock, EventType, FileReader, FileWriter, NodeEvent, NodeEventRecorder, PodReporter, ShutdownLock,
    ShutdownService, Spawner,
};
use tokio::sync::{mpsc, watch};

use crate::AgentHandle;
use announcements::{Announcement, Announcements};
use end_pods::EndPods;
pub use record::ShutdownMetrics;
use record::ShutdownRecord;

const EVENT_REASON: &str = "Shutdown";
const BEGINS_EVENT: &str = "Shutdown manager detected shutdown event";
const CANCELLED_EVENT: &str = "Shutdown manager detected shutdown cancellation";
const ANNOUNCEMENT_BUFFER: usize = 8;

/// The edges, each behind its port.
#[derive(Clone)]
pub struct ShutdownPorts {
    pub clock: Arc<dyn Clock>,
    pub spawner: Arc<dyn Spawner>,
    pub service: Arc<dyn ShutdownService>,
    pub events: Arc<dyn NodeEventRecorder>,
    /// Its statuses are delivered before the machine goes on.
    pub reporter: Arc<dyn PodReporter>,
    /// The Node as the API server has it; nothing without an API server.
    pub node: watch::Receiver<Option<Arc<Node>>>,
    pub file_reader: Arc<dyn FileReader>,
    pub file_writer: Arc<dyn FileWriter>,
}

#[derive(Clone, Debug)]
pub struct ShutdownSettings {
    pub periods: ShutdownPeriods,
    /// `--root-dir`, where the times of the last shutdown are kept.
    pub root_dir: PathBuf,
    /// With the gate `GracefulNodeShutdownBasedOnPodPriority` the times of the last shutdown are kept and shown.
    pub metrics: Option<ShutdownMetrics>,
}

/// Dropping it ends the watch and releases the lock.
#[derive(Debug)]
pub struct ShutdownHandle {
    _stop: watch::Sender<()>,
}

/// Follows the machine's shutdowns and ends the pods of `agent` at each. `shutting_down` says whether one is under way.
#[must_use]
pub fn start(
    ports: ShutdownPorts,
    settings: ShutdownSettings,
    agent: AgentHandle,
    shutting_down: watch::Sender<bool>,
) -> ShutdownHandle {
    let (stop, stopped) = watch::channel(());
    let (sender, announced) = mpsc::channel(ANNOUNCEMENT_BUFFER);
    let announcements = Announcements::new(&ports, settings.periods.total(), sender);
    let spawner = Arc::clone(&ports.spawner);
    spawner.spawn("announcements of shutdowns", announcements.run().boxed());
    let record = ShutdownRecord::new(&ports, &settings);
    let node_shutdown = NodeShutdown {
        end_pods: Arc::new(EndPods::new(&ports, settings.periods, agent)),
        record,
        ports,
        shutting_down,
        lock: None,
        work: None,
    };
    spawner.spawn("node shutdown", node_shutdown.run(announced, stopped).boxed());
    ShutdownHandle { _stop: stop }
}

struct NodeShutdown {
    ports: ShutdownPorts,
    end_pods: Arc<EndPods>,
    record: ShutdownRecord,
    shutting_down: watch::Sender<bool>,
    lock: Option<ShutdownLock>,
    /// The end of the pods, while it is under way.
    work: Option<BoxFuture<'static, ()>>,
}

impl NodeShutdown {
    async fn run(mut self, mut announced: mpsc::Receiver<Announcement>, mut stopped: watch::Receiver<()>) {
        self.record.load().await;
        loop {
            // Every arm is cancel-safe: channels keep what was not taken, and the work goes on where it was.
            tokio::select! {
                biased;
                _ = stopped.changed() => return,
                announcement = announced.recv() => match announcement {
                    Some(announcement) => self.take_in(announcement).await,
                    None => return,
                },
                () = under_way(&mut self.work) => self.finish().await,
            }
        }
    }

    async fn take_in(&mut self, announcement: Announcement) {
        let is_known = *self.shutting_down.borrow();
        match announcement {
            Announcement::Attached {
                lock,
                is_shutting_down,
            } => {
                if lock.is_some() {
                    self.lock = lock;
                }
                match is_shutting_down {
                    Some(true) if !is_known => self.begin().await,
                    Some(false) if is_known => self.cancel().await,
                    // The pods have ended already: nothing is left to wait for.
                    Some(true) | None if is_known && self.work.is_none() => self.lock = None,
                    Some(_) | None => {}
                }
            }
            Announcement::Begins if is_known => {
                tracing::info!("The machine's shutdown is announced again; it goes on as it is");
            }
            Announcement::Begins => self.begin().await,
            Announcement::Cancelled { lock } => {
                if lock.is_some() {
                    self.lock = lock;
                }
                self.cancel().await;
            }
        }
    }

    async fn begin(&mut self) {
        tracing::info!("The machine shuts down; the pods end first");
        self.record_event(BEGINS_EVENT);
        self.shutting_down.send_replace(true);
        self.record.begin(self.ports.clock.now()).await;
        self.work = Some(Arc::clone(&self.end_pods).run().boxed());
    }

    /// All pods have ended, or had their time.
    async fn finish(&mut self) {
        self.work = None;
        self.record.end(self.ports.clock.now()).await;
        self.lock = None;
        tracing::info!("The pods have ended; the machine may shut down");
    }

    async fn cancel(&mut self) {
        tracing::info!("The machine's shutdown is cancelled");
        self.record_event(CANCELLED_EVENT);
        self.shutting_down.send_replace(false);
        if self.work.take().is_some() {
            self.record.end(self.ports.clock.now()).await;
        }
    }

    fn record_event(&self, message: &str) {
        self.ports.events.record_node(NodeEvent {
            event_type: EventType::Normal,
            reason: EVENT_REASON.into(),
            message: message.to_owned(),
            // As upstream: it names the node only.
            node_uid: None,
        });
    }
}

async fn under_way(work: &mut Option<BoxFuture<'static, ()>>) {
    match work {
        Some(work) => work.await,
        None => pending().await,
    }
}
