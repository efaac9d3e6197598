//! A node between simulated edges, on virtual time.

mod api;
mod edges;
mod patch;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use prometheus::Registry;
use rubelet_fakes::{Tasks, TokioClock};
use rubelet_model::{HandlerAbilities, Pressure, RuntimeAbilities, RuntimeContact, RuntimeReport, Timestamp};
use rubelet_node::{
    AddressSettings, Beginnings, DeclaredFeatureGates, HostIpsPorts, MachineFacts, NodeHandle, NodeHostIps,
    NodeInputs, NodeMetrics, NodePorts, NodeSettings, RegistrationSettings, ReportingSettings,
};
use rubelet_ports::{Clock as _, HostAddresses};
use rubelet_resources::amounts::Amounts;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

pub(crate) use api::Api;
pub(crate) use edges::Edges;
use edges::TestRandomness;

/// Nothing that a test waits for takes longer, on virtual time.
const DEADLINE: Duration = Duration::from_hours(2);
/// The wall clock at the start of every test.
const EPOCH: Timestamp = Timestamp::from_unix_seconds(1_000_000);

pub(crate) struct Bed {
    pub(crate) start: Instant,
    pub(crate) api: Api,
    pub(crate) edges: Edges,
    pub(crate) settings: NodeSettings,
    pub(crate) runtime: watch::Sender<RuntimeReport>,
    pub(crate) pressure: watch::Sender<Option<Pressure>>,
    pub(crate) volumes: watch::Sender<Option<Vec<String>>>,
    pub(crate) shutting_down: watch::Sender<bool>,
    metrics: NodeMetrics,
    pub(crate) registry: Registry,
}

impl Bed {
    /// Nothing runs yet, and nothing is known of the runtime.
    pub(crate) fn new() -> Self {
        let start = Instant::now();
        let edges = Edges::new();
        edges.set_addresses(&["10.0.0.1"]);
        let registry = Registry::new();
        let started_at = TokioClock::since(start, EPOCH).now();
        let beginnings = Beginnings {
            booted_at: Some(started_at.minus(Duration::from_secs(60))),
            started_at,
        };
        Self {
            start,
            api: Api::new(start),
            edges,
            settings: settings(),
            runtime: watch::Sender::new(RuntimeReport::default()),
            pressure: watch::Sender::new(Some(Pressure::default())),
            volumes: watch::Sender::new(None),
            shutting_down: watch::Sender::new(false),
            metrics: NodeMetrics::register(&registry, beginnings).unwrap(),
            registry,
        }
    }

    /// The runtime is known to be well before the node starts.
    pub(crate) fn well() -> Self {
        let bed = Self::new();
        bed.runtime.send_replace(good_runtime());
        bed
    }

    /// Starts a node; an earlier one goes on, unless its tasks were ended.
    pub(crate) fn start(&self) -> Running {
        let spawner = Arc::new(Tasks::default());
        let edges = Arc::new(self.edges.clone());
        let api = Arc::new(self.api.clone());
        let ports = NodePorts {
            clock: Arc::new(TokioClock::since(self.start, EPOCH)),
            spawner: spawner.clone(),
            randomness: Arc::new(TestRandomness),
            node_reader: api.clone(),
            node_writer: api.clone(),
            lease_keeper: api,
            images: edges.clone(),
            runtime_reader: edges.clone(),
            runtime_writer: edges.clone(),
            addresses: edges.clone(),
            events: edges,
            metrics: self.metrics.clone(),
        };
        let inputs = NodeInputs {
            runtime: self.runtime.subscribe(),
            pressure: self.pressure.subscribe(),
            volumes_in_use: self.volumes.subscribe(),
            shutting_down: self.shutting_down.subscribe(),
        };
        let handle = rubelet_node::start(ports, self.settings.clone(), inputs);
        Running { handle, spawner }
    }

    /// The node's addresses as pods would get them.
    pub(crate) fn host_ips(&self, object: watch::Receiver<Option<Arc<Node>>>) -> NodeHostIps {
        let ports = HostIpsPorts {
            clock: Arc::new(TokioClock::since(self.start, EPOCH)),
            spawner: Arc::new(Tasks::default()),
            addresses: Arc::new(self.edges.clone()),
            object,
        };
        NodeHostIps::start(ports, self.settings.addresses.clone(), "n1".to_owned())
    }

    /// Lets time pass, counted from the start.
    pub(crate) async fn at(&self, seconds: u64) {
        tokio::time::sleep_until(self.start + Duration::from_secs(seconds)).await;
    }

    /// Waits until the Node is so; the result is when, in milliseconds since the start.
    pub(crate) async fn until(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> u128 {
        let end = Instant::now() + DEADLINE;
        loop {
            let node = self.api.node_value();
            if node.as_ref().is_some_and(&is_so) {
                return self.start.elapsed().as_millis();
            }
            assert!(Instant::now() < end, "{what}: {node:#?}\n{:#?}", self.api.calls());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    pub(crate) async fn until_ready(&self) -> u128 {
        self.until("ready", |node| ready(node) == "True").await
    }
}

/// A node whose tasks end with this value, as if it were killed.
pub(crate) struct Running {
    pub(crate) handle: NodeHandle,
    spawner: Arc<Tasks>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.spawner.end();
    }
}

impl Running {
    pub(crate) fn object(&self) -> Option<Arc<Node>> {
        self.handle.object().borrow().clone()
    }
}

pub(crate) fn good_runtime() -> RuntimeReport {
    RuntimeReport {
        contact: RuntimeContact::Answers,
        runtime_problem: None,
        network_problem: None,
        abilities: Some(RuntimeAbilities {
            handlers: [(String::new(), HandlerAbilities::default())].into(),
            supplemental_groups_policy: Some(true),
            ..RuntimeAbilities::default()
        }),
        ..RuntimeReport::default()
    }
}

pub(crate) fn condition<'a>(node: &'a Value, type_: &str) -> &'a Value {
    let conditions = node["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    conditions
        .find(|condition| condition["type"] == type_)
        .unwrap_or(&Value::Null)
}

pub(crate) fn ready(node: &Value) -> &str {
    condition(node, "Ready")["status"].as_str().unwrap_or_default()
}

pub(crate) fn addresses(own: &[&str]) -> HostAddresses {
    let own: Vec<IpAddr> = own.iter().map(|text| text.parse().unwrap()).collect();
    HostAddresses {
        default_route: own.clone(),
        of_name: vec![],
        is_name_unknown: false,
        own,
    }
}

fn settings() -> NodeSettings {
    let amounts = |list: Value| Amounts::read(Some(&serde_json::from_value(list).unwrap())).unwrap();
    let resources = json!({"cpu": "2", "memory": "4Gi", "pods": "110", "ephemeral-storage": "9Gi"});
    NodeSettings {
        node_name: "n1".to_owned(),
        kubelet_version: "v1.37.1+rubelet.test".to_owned(),
        server_port: 10250,
        registration: RegistrationSettings {
            is_wanted: true,
            controller_attach_detach: true,
            ..RegistrationSettings::default()
        },
        addresses: AddressSettings {
            hostname: "n1".to_owned(),
            ..AddressSettings::default()
        },
        machine: MachineFacts {
            machine_id: "m1".to_owned(),
            boot_id: "b1".to_owned(),
            architecture: "amd64".to_owned(),
            capacity: amounts(resources.clone()),
            allocatable: amounts(resources),
            ..MachineFacts::default()
        },
        reporting: ReportingSettings::default(),
        declared: DeclaredFeatureGates::default(),
        counts_ephemeral_storage: true,
        is_cgroup_v1: false,
    }
}
