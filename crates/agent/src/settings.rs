//! What the agent is made from: the edges it acts through and the settings it acts by.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rubelet_config::FeatureGates;
use rubelet_lifecycle::backoff::BackoffLimits;
use rubelet_lifecycle::configuration::NodeConfiguration;
use rubelet_lifecycle::garbage::GarbageLimits;
use rubelet_lifecycle::resize::ResizeTerms;
use rubelet_lifecycle::status::StatusGates;
use rubelet_lifecycle::user_namespaces::UserNamespaces;
use rubelet_ports::api::PodReader;
use rubelet_ports::{
    Clock, Dialer, EventRecorder, FileReader, FileWriter, HttpFetcher, ImageProvider, MemoryKills,
    NodeEventRecorder, PodCgroups, PodObjects, PodReporter, PodVolumes, Prober, Randomness, RuntimeReader,
    RuntimeWriter, Spawner,
};
use rubelet_resources::admission::NodeTerms;

use crate::metrics::AgentMetrics;
use crate::node_now::NodeNow;

/// The edges, each behind its port.
#[derive(Clone)]
pub struct AgentPorts {
    pub clock: Arc<dyn Clock>,
    pub spawner: Arc<dyn Spawner>,
    pub randomness: Arc<dyn Randomness>,
    pub runtime_reader: Arc<dyn RuntimeReader>,
    pub runtime_writer: Arc<dyn RuntimeWriter>,
    pub images: Arc<dyn ImageProvider>,
    pub volumes: Arc<dyn PodVolumes>,
    pub file_reader: Arc<dyn FileReader>,
    pub file_writer: Arc<dyn FileWriter>,
    pub http: Arc<dyn HttpFetcher>,
    /// For hooks.
    pub dialer: Arc<dyn Dialer>,
    pub probes: Arc<dyn Prober>,
    pub events: Arc<dyn EventRecorder>,
    /// For what concerns the node as a whole.
    pub node_events: Arc<dyn NodeEventRecorder>,
    pub cgroups: Arc<dyn PodCgroups>,
    /// Why a container was killed, when its runtime does not know.
    pub memory_kills: Arc<dyn MemoryKills>,
    pub api: ApiPorts,
    /// How the node is while pods come; `NodeNow::standalone()` on a node without an API server.
    pub node: NodeNow,
    /// What is counted.
    pub metrics: Arc<AgentMetrics>,
}

/// The edges to the API server.
#[derive(Clone)]
pub struct ApiPorts {
    /// The pods that the API server has for this node, unless the node has no API server. They are followed once it knows the node
    /// (`AgentPorts::node`).
    pub pods: Option<Arc<dyn PodReader>>,
    /// What pods refer to; nothing on a node without an API server.
    pub objects: Option<Arc<dyn PodObjects>>,
    /// Gets every status; `NoReporter` on a node without an API server.
    pub reporter: Arc<dyn PodReporter>,
}

/// Where a source of static pods over HTTP is.
#[derive(Clone)]
pub struct HttpSource {
    pub url: String,
    /// Values may be secret.
    pub headers: Vec<(String, String)>,
    pub check_interval: Duration,
}

/// Where a source of static pods in files is.
#[derive(Clone, Debug)]
pub struct FileSource {
    /// A file or a folder.
    pub path: PathBuf,
    pub check_interval: Duration,
}

/// All other settings of the agent.
#[derive(Clone)]
pub struct AgentSettings {
    pub node_name: String,
    /// `--root-dir`
    pub root_dir: PathBuf,
    /// Where links to container logs are: `/var/log/containers`.
    pub container_logs_dir: PathBuf,
    pub file_source: Option<FileSource>,
    pub http_source: Option<HttpSource>,
    /// `syncFrequency`
    pub sync_frequency: Duration,
    pub node: NodeConfiguration,
    /// Ids for pods with user namespaces; none is in use yet.
    pub user_namespaces: UserNamespaces,
    pub status_gates: StatusGates,
    /// What pods are judged by before they may run.
    pub admission: NodeTerms,
    /// Which changes of a pod's resources can never be carried out here.
    pub resize: ResizeTerms,
    pub crash_backoff: BackoffLimits,
    /// Of dead containers, as upstream's deprecated flags have them.
    pub garbage: GarbageLimits,
    /// Decide how manifests are read.
    pub gates: Arc<FeatureGates>,
    /// Starts against the runtime that may be under way at the same time.
    pub starts_in_flight: usize,
    /// Stops of pods, likewise.
    pub stops_in_flight: usize,
    /// The runtime's name, such as `containerd`: the scheme of container ids.
    pub runtime_name: String,
}
