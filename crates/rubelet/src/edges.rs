//! The real adapters that all actors share: clock, tasks, files, the runtime, and the recorders of events.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use rubelet_agent::EventLog;
use rubelet_apiserver::ApiServer;
use rubelet_cri::CriClient;
use rubelet_host::{HostClock, HostFiles, HostLogFiles, HostNodeLogs, HostRandomness, TokioSpawner};
use rubelet_ports::{EventRecorder, EventType, NodeEvent, NodeEventRecorder};
use rubelet_reporting::events::{ApiEvents, EventPorts, NodeTee, Tee};
use tokio::sync::mpsc;

use crate::metrics::{self, Registries};

/// Where the node's own logs are.
const NODE_LOGS_DIR: &str = "/var/log";
const JOURNAL_PROGRAM: &str = "journalctl";
/// How long the last event of a failed start may take.
const DELIVERY_LIMIT: Duration = Duration::from_secs(2);
const DELIVERY_INTERVAL: Duration = Duration::from_millis(20);

#[derive(Clone)]
pub(crate) struct Edges {
    pub(crate) clock: Arc<HostClock>,
    pub(crate) spawner: Arc<TokioSpawner>,
    /// For tasks without which rubelet would go on in a wrong state: a panic of one ends the process.
    pub(crate) vital: Arc<TokioSpawner>,
    pub(crate) randomness: Arc<HostRandomness>,
    pub(crate) files: Arc<HostFiles>,
    pub(crate) log_files: Arc<HostLogFiles>,
    pub(crate) node_logs: Arc<HostNodeLogs>,
    pub(crate) cri: Arc<CriClient>,
    /// The API server, on a node of a cluster.
    pub(crate) api: Option<Arc<ApiServer>>,
    /// The last events, kept in memory.
    pub(crate) event_log: Arc<EventLog>,
    pub(crate) events: Arc<dyn EventRecorder>,
    pub(crate) node_events: Arc<dyn NodeEventRecorder>,
    /// The recorder that sends events to the API server.
    sent_events: Option<Arc<ApiEvents>>,
    /// Where all crates register their metrics.
    pub(crate) registries: Registries,
}

impl Edges {
    /// The receiver gets the reason when rubelet cannot go on.
    pub(crate) fn new(
        node_name: &str,
        cri: &CriClient,
        api: Option<ApiServer>,
        registries: Registries,
    ) -> Result<(Self, mpsc::Receiver<String>)> {
        let clock = Arc::new(HostClock::new());
        let spawner = Arc::new(TokioSpawner::new(tokio::runtime::Handle::current()));
        let (defects, defect) = mpsc::channel(1);
        let vital = Arc::new(spawner.vital(defects));
        let randomness = Arc::new(HostRandomness);
        let event_log = Arc::new(EventLog::new(clock.clone(), node_name.to_owned()));
        let api = api.map(Arc::new);
        let mut sent_events = None;
        let (events, node_events): (Arc<dyn EventRecorder>, Arc<dyn NodeEventRecorder>) = match &api {
            None => (event_log.clone(), Arc::new(NodeEventLog)),
            Some(api) => {
                let ports = EventPorts {
                    clock: clock.clone(),
                    spawner: vital.clone(),
                    randomness: randomness.clone(),
                    writer: api.clone(),
                };
                let sent = Arc::new(ApiEvents::start(ports, node_name));
                metrics::show_events(&registries.node, &sent)?;
                sent_events = Some(Arc::clone(&sent));
                (
                    Arc::new(Tee(vec![event_log.clone(), sent.clone()])),
                    Arc::new(NodeTee(vec![Arc::new(NodeEventLog), sent])),
                )
            }
        };
        let edges = Self {
            clock,
            spawner,
            vital,
            randomness,
            files: Arc::new(HostFiles::new()),
            log_files: Arc::new(HostLogFiles::new()),
            node_logs: Arc::new(HostNodeLogs::new(NODE_LOGS_DIR, JOURNAL_PROGRAM)),
            cri: Arc::new(cri.clone()),
            api,
            event_log,
            events,
            node_events,
            sent_events,
            registries,
        };
        Ok((edges, defect))
    }

    /// Sends an event why the node does not start, and waits a moment for its delivery: the process ends next.
    pub(crate) async fn report_setup_failure(&self, error: &anyhow::Error) {
        let delivered = || {
            let figures = self.sent_events.as_ref().map(|sent| sent.figures());
            figures.map(|figures| figures.sent + figures.failed + figures.dropped + figures.filtered)
        };
        let before = delivered();
        self.node_events.record_node(NodeEvent {
            event_type: EventType::Warning,
            reason: "KubeletSetupFailed".into(),
            message: format!("{error:#}"),
            node_uid: None,
        });
        let sent = async {
            while before.is_some() && delivered() == before {
                tokio::time::sleep(DELIVERY_INTERVAL).await;
            }
        };
        // The process does not wait longer for an API server that does not answer.
        let _ = tokio::time::timeout(DELIVERY_LIMIT, sent).await;
    }
}

/// Events of the node in rubelet's own log.
struct NodeEventLog;

impl NodeEventRecorder for NodeEventLog {
    fn record_node(&self, event: NodeEvent) {
        let (reason, note) = (event.reason.as_ref(), event.message.as_str());
        match event.event_type {
            EventType::Normal => tracing::info!(reason, note, "node event"),
            EventType::Warning => tracing::warn!(reason, note, "node event"),
        }
    }
}
