//! Where pods come from: files, a URL, the API server; each delivers whole sets, and the merger finds what changed.
//!
//! Owns reading, its timing and the log lines about manifests that cannot run. It must not know what becomes of a pod: the sync
//! loop merges the sets and acts. A source that cannot read delivers nothing, so that no pod is removed because a disk or a server
//! fails.
//!
//! ```text
//! folder ──► file source ─┐  SourceSet   ┌──────────┐  add update delete
//! URL    ──► http source ─┼─────────────►│  Merger  │─► remove reconcile
//! API    ──► API source ──┘  (bounded)   └──────────┘
//! ```

mod api;
mod file;
mod file_watch;
mod http;
mod manifests;
mod merger;
mod stretch;

use std::path::PathBuf;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::{Node, Pod};
use rubelet_config::FeatureGates;
use rubelet_model::explanation::ManifestExplanation;
use rubelet_ports::api::PodReader;
use rubelet_ports::{Clock, FileReader, HttpFetcher, PodReporter};
use tokio::sync::{mpsc, watch};

use crate::settings::{AgentPorts, AgentSettings, FileSource, HttpSource};
pub use api::Mirrors;

pub(crate) use stretch::Stretch;

pub use merger::{Duplicate, Merged, Merger, PodChange};
pub use rubelet_model::pod::{SEEN_ANNOTATION, SOURCE_ANNOTATION, Source};

/// Sets that may wait for the receiver. A source that finds no room waits and then sends what is newest.
const SETS_IN_FLIGHT: usize = 4;

/// Upstream's bound on a manifest and on a response: ten mebibytes are too much already.
const MAX_MANIFEST_BYTES: u64 = (10 << 20) - 1;

/// All pods that a source wants now.
#[derive(Clone, Debug)]
pub struct SourceSet {
    pub source: Source,
    pub pods: Vec<Arc<Pod>>,
    /// False while something could not be read that may hold a pod: what is missing is not known to be unwanted then.
    pub is_complete: bool,
    /// Files that were never good since the source began. An earlier life may have a pod of one.
    pub never_good: Vec<PathBuf>,
    /// Files that cannot be used now, and why.
    pub unusable: Vec<ManifestExplanation>,
    /// Pods that the source has and that cannot be decoded; they have no `spec`.
    pub unreadable: Vec<Arc<Pod>>,
}

/// The sources' settings.
#[derive(Clone)]
pub struct SourceSettings {
    pub node_name: String,
    pub file: Option<FileSource>,
    pub http: Option<HttpSource>,
    /// Decide how manifests are read.
    pub gates: Arc<FeatureGates>,
}

impl From<&AgentSettings> for SourceSettings {
    fn from(settings: &AgentSettings) -> Self {
        Self {
            node_name: settings.node_name.clone(),
            file: settings.file_source.clone(),
            http: settings.http_source.clone(),
            gates: Arc::clone(&settings.gates),
        }
    }
}

/// The edges that the sources read through.
#[derive(Clone)]
pub struct SourcePorts {
    pub clock: Arc<dyn Clock>,
    pub files: Arc<dyn FileReader>,
    pub http: Arc<dyn HttpFetcher>,
    pub api: Option<Arc<dyn PodReader>>,
    /// The Node object: before there is one, no pod can be bound to it.
    pub node: watch::Receiver<Option<Arc<Node>>>,
    /// Hears of everything that the API server says of this node's pods.
    pub reporter: Arc<dyn PodReporter>,
}

impl From<&AgentPorts> for SourcePorts {
    fn from(ports: &AgentPorts) -> Self {
        Self {
            clock: Arc::clone(&ports.clock),
            files: Arc::clone(&ports.file_reader),
            http: Arc::clone(&ports.http),
            api: ports.api.pods.clone(),
            node: ports.node.object.clone(),
            reporter: Arc::clone(&ports.api.reporter),
        }
    }
}

/// What running sources give.
pub struct Sources {
    pub sets: mpsc::Receiver<SourceSet>,
    /// Whom to wait for.
    pub started: Vec<Source>,
    /// The mirror pods that the API server has.
    pub mirrors: watch::Receiver<Arc<Mirrors>>,
}

/// Starts the configured sources, each as one task that ends when the receiver is dropped. Every one of them delivers its
/// first set even when it is empty.
pub fn start(
    settings: &SourceSettings,
    ports: &SourcePorts,
    mut spawn: impl FnMut(&'static str, BoxFuture<'static, ()>),
) -> Sources {
    let (output, sets) = mpsc::channel(SETS_IN_FLIGHT);
    let (mirror_output, mirrors) = watch::channel(Arc::default());
    let mut started = Vec::new();
    if let Some(file) = &settings.file {
        let source = file::FileActor::new(file, settings, ports, output.clone());
        spawn("file source", Box::pin(source.run()));
        started.push(Source::File);
    }
    if let Some(http) = &settings.http {
        let source = http::HttpActor::new(http, settings, ports, output.clone());
        spawn("http source", Box::pin(source.run()));
        started.push(Source::Http);
    }
    if let Some(reader) = &ports.api {
        let source = api::ApiActor::new(reader, settings, ports, output, mirror_output);
        spawn("api source", Box::pin(source.run()));
        started.push(Source::Api);
    }
    Sources {
        sets,
        started,
        mirrors,
    }
}
