//! The agent: from desired pods and what the runtime shows to running containers.
//!
//! Owns the actors on a pod's path and their wiring. It must not know any adapter: everything outside comes through ports,
//! so that the same code runs on a node and in simulation.
//!
//! ```text
//! sources ─► Identities ─► Merger ─► sync loop (one standing per pod) ─► PodJob (one at most per pod) ─► runtime, files, images
//!                                     ▲      ▲                                │
//! runtime ─► Observer ────────────────┘      └──────── outcome, status ◄──────┘
//! ```

pub mod event_log;
pub mod garbage;
mod handle;
mod identity;
mod job;
mod metrics;
pub mod node_now;
pub mod node_shutdown;
mod observer;
mod pods;
pub mod recorder;
mod resolver_check;
mod resource_records;
mod runtime_health;
pub mod settings;
pub mod sources;
mod startup;
mod supervisor;
mod user_ids;
mod waits;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use futures_util::stream::{self, StreamExt as _};
use tokio::sync::{Semaphore, mpsc};

pub use event_log::EventLog;
pub use handle::AgentHandle;
pub use metrics::AgentMetrics;
pub use node_now::NodeNow;
pub use runtime_health::RuntimeHealth;
pub use settings::{AgentPorts, AgentSettings, ApiPorts};

use identity::Identities;
use job::AgentContext;
use observer::{LastList, Observer};
use pods::Inputs;
pub use pods::{EndPod, EndPodError, EndReason};
use resource_records::ResourceRecords;
use sources::{Merger, SourcePorts, SourceSettings, Sources};
use supervisor::Supervisor;
use user_ids::UserIds;

/// Sightings that wait to be read.
const SIGHTING_BUFFER: usize = 1024;
/// Questions that wait to be read.
const QUERY_BUFFER: usize = 64;

/// Starts the agent's tasks. The receiver gets a sentence when the agent cannot go on.
#[must_use]
pub fn start(ports: AgentPorts, settings: AgentSettings) -> (AgentHandle, mpsc::Receiver<String>) {
    let (supervisor, fatal) = Supervisor::new(Arc::clone(&ports.spawner));
    let (health_sender, health) = runtime_health::channel();
    let last_list = LastList::default();
    supervisor.spawn(
        "runtime health",
        runtime_health::watch_runtime(ports.clone(), health_sender, Arc::clone(&last_list)),
    );
    let (sighting_sender, sightings) = mpsc::channel(SIGHTING_BUFFER);
    let (observer, observer_handle) = Observer::new(ports.clone(), sighting_sender, last_list);
    supervisor.spawn("observer", observer.run());
    let Sources {
        sets,
        started,
        mirrors,
    } = {
        let supervisor = supervisor.clone();
        sources::start(
            &SourceSettings::from(&settings),
            &SourcePorts::from(&ports),
            move |name, future| supervisor.spawn(name, future),
        )
    };
    let sets = Identities::start(&supervisor, &ports, &settings.root_dir, sets, mirrors.clone());
    let (query_sender, queries) = mpsc::channel(QUERY_BUFFER);
    let heartbeat = Arc::new(AtomicU64::new(0));
    let handle = AgentHandle {
        clock: Arc::clone(&ports.clock),
        queries: query_sender,
        observer: observer_handle.clone(),
        heartbeat: Arc::clone(&heartbeat),
        sync_frequency: settings.sync_frequency,
        health: health.clone(),
        events: Arc::new(Vec::new),
        mirrors: mirrors.clone(),
    };
    let (resources, keep) = ResourceRecords::new(&ports, &settings.root_dir);
    supervisor.spawn("record of resources", keep);
    let shared = Arc::new(AgentContext {
        resources,
        user_ids: UserIds::new(&settings.root_dir, settings.user_namespaces.clone()),
        starts: Arc::new(Semaphore::new(settings.starts_in_flight.max(1))),
        stops: Semaphore::new(settings.stops_in_flight.max(1)),
        started_at: ports.clock.now(),
        observer: observer_handle,
        health,
        mirrors,
        ports,
        settings,
    });
    let inputs = Inputs {
        sources: sets,
        runtime: sightings,
        probes: shared.ports.probes.changes(),
        objects: match &shared.ports.api.objects {
            Some(objects) => objects.changes(),
            None => stream::pending().boxed(),
        },
        queries,
    };
    supervisor.spawn(
        "look at the resolver file",
        resolver_check::check_resolver_file(Arc::clone(&shared)),
    );
    let merger = Merger::new(started);
    let pods = pods::run(shared, supervisor.clone(), merger, heartbeat, inputs);
    supervisor.spawn("sync loop", pods);
    (handle, fatal)
}
