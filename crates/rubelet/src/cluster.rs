//! Joining a cluster: the client of the API server, and every actor that works through it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rubelet_agent::{AgentSettings, RuntimeHealth};
use rubelet_apiserver::{ApiServer, ApiServerMetrics, ApiServerOptions, RateLimit, user_agent};
use rubelet_config::settings::Settings;
use rubelet_host::node_facts::HostNetwork;
use rubelet_model::Pressure;
use rubelet_model::runtime_report::{HandlerAbilities, RuntimeAbilities, RuntimeContact, RuntimeReport};
use rubelet_node::{NodeHandle, NodeInputs, NodeMetrics, NodePorts};
use rubelet_objects::{ChangeDetection, Objects, ObjectsPorts, ObjectsSettings};
use rubelet_ports::Clock as _;
use rubelet_ports::api::PodReader;
use rubelet_proxy::ProxyEnvironment;
use rubelet_reporting::{Reporter, ReportingPorts};
use tokio::sync::watch;

use crate::certificates;
use crate::edges::Edges;
use crate::keys::PodKeys;
use crate::metrics::{self, Registries};

/// What a node in a cluster has beyond a standalone one.
pub(crate) struct Membership {
    pub(crate) node: NodeHandle,
    pub(crate) reporter: Arc<Reporter>,
    pub(crate) objects: Arc<Objects>,
    pub(crate) pods: Arc<dyn PodReader>,
}

/// The client, when there is a kubeconfig. Nothing is sent yet.
pub(crate) fn api_server(settings: &Settings, registries: &Registries) -> Result<Option<ApiServer>> {
    let Some(kubeconfig) = &settings.flags().kubeconfig else {
        return Ok(None);
    };
    let configuration = settings.configuration();
    let mut options = ApiServerOptions::new(kubeconfig, user_agent(settings.reported_version()));
    options.calls = RateLimit::from_settings(
        configuration.kube_api_qps.unwrap_or(50),
        configuration.kube_api_burst,
    );
    options.events = RateLimit::from_settings(
        configuration.event_record_qps.unwrap_or(50),
        configuration.event_burst,
    );
    let lease = u64::try_from(configuration.node_lease_duration_seconds).unwrap_or_default();
    let status = configuration
        .node_status_update_frequency
        .to_std()
        .unwrap_or_default();
    options.heartbeat_timeout = status.min(Duration::from_secs(lease));
    options.proxy = proxies();
    options.may_lack_certificate = certificates::may_come_later(settings);
    let metrics = ApiServerMetrics::register(&registries.node);
    options.metrics = Some(metrics.context("register metrics of calls to the API server")?);
    let api = ApiServer::connect(&options).context("use --kubeconfig")?;
    tracing::info!(server = api.server_url(), "This node belongs to a cluster");
    Ok(Some(api))
}

/// As every program has them, in capitals or not.
pub(crate) fn proxies() -> ProxyEnvironment {
    let variable = |name: &str| {
        let values = [name.to_owned(), name.to_lowercase()].map(std::env::var);
        let mut values = values.into_iter().flatten();
        values.find(|value| !value.is_empty()).unwrap_or_default()
    };
    ProxyEnvironment {
        https_proxy: variable("HTTPS_PROXY"),
        http_proxy: variable("HTTP_PROXY"),
        no_proxy: variable("NO_PROXY"),
    }
}

/// Starts what talks to the API server. Pods come only when the agent starts.
pub(crate) fn join(
    settings: &Settings,
    agent: &AgentSettings,
    node: rubelet_node::NodeSettings,
    edges: &Edges,
    inputs: NodeInputs,
) -> Result<Option<Membership>> {
    let Some(api) = &edges.api else { return Ok(None) };
    let ports = NodePorts {
        clock: edges.clock.clone(),
        spawner: edges.spawner.clone(),
        randomness: edges.randomness.clone(),
        node_reader: api.clone(),
        node_writer: api.clone(),
        lease_keeper: api.clone(),
        images: edges.cri.clone(),
        runtime_reader: edges.cri.clone(),
        runtime_writer: edges.cri.clone(),
        addresses: Arc::new(HostNetwork::default()),
        events: edges.node_events.clone(),
        metrics: NodeMetrics::register(&edges.registries.node, metrics::beginnings(edges.clock.now()))
            .context("register metrics of the node's start")?,
    };
    let node = rubelet_node::start(ports, node, inputs);
    let ports = ReportingPorts {
        clock: edges.clock.clone(),
        spawner: edges.vital.clone(),
        randomness: edges.randomness.clone(),
        pods: api.clone(),
    };
    let reporter = Arc::new(Reporter::start(ports, agent.status_gates, node.object()));
    metrics::show_reporting(&edges.registries.node, &reporter)?;
    let objects = Arc::new(Objects::start(
        objects_settings(settings, agent)?,
        ObjectsPorts {
            clock: edges.clock.clone(),
            spawner: edges.spawner.clone(),
            randomness: edges.randomness.clone(),
            reader: api.clone(),
            node: api.clone(),
            tokens: api.clone(),
            files: edges.files.clone(),
            certificates: api.clone(),
            keys: Arc::new(PodKeys),
            events: edges.events.clone(),
        },
    ));
    metrics::show_pod_certificates(&edges.registries.node, &objects)?;
    Ok(Some(Membership {
        node,
        reporter,
        objects,
        pods: api.clone(),
    }))
}

fn objects_settings(settings: &Settings, agent: &AgentSettings) -> Result<ObjectsSettings> {
    let configuration = settings.configuration();
    let detection = match configuration
        .config_map_and_secret_change_detection_strategy
        .as_str()
    {
        "Watch" | "" => ChangeDetection::Watch,
        "Cache" => ChangeDetection::Cache,
        "Get" => ChangeDetection::Get,
        other => {
            bail!("configMapAndSecretChangeDetectionStrategy: {other:?} is none of Get, Cache and Watch")
        }
    };
    Ok(ObjectsSettings {
        node_name: agent.node_name.clone(),
        detection,
        sync_frequency: agent.sync_frequency,
        max_pods: usize::try_from(configuration.max_pods).unwrap_or(0),
        root_dir: agent.root_dir.clone(),
    })
}

/// The watches that the node's status is made from; the agent, which knows the runtime, starts later.
pub(crate) struct Findings {
    pub(crate) runtime: watch::Sender<RuntimeReport>,
    pub(crate) inputs: NodeInputs,
}

impl Findings {
    pub(crate) fn new(
        pressure: watch::Receiver<Option<Pressure>>,
        shutting_down: watch::Receiver<bool>,
    ) -> Self {
        let (runtime, report) = watch::channel(RuntimeReport::default());
        Self {
            runtime,
            inputs: NodeInputs {
                runtime: report,
                pressure,
                // No kind of volume that rubelet supports is attached to nodes. Volumes that another kubelet attached are not known.
                volumes_in_use: watch::channel(None).1,
                shutting_down,
            },
        }
    }
}

/// Passes the agent's findings about the runtime to the node's status, until the agent ends.
pub(crate) async fn pass_on_runtime_health(
    mut health: watch::Receiver<RuntimeHealth>,
    reports: watch::Sender<RuntimeReport>,
) {
    loop {
        let report = runtime_report(&health.borrow_and_update());
        reports.send_if_modified(|known| {
            let is_new = *known != report;
            *known = report;
            is_new
        });
        if health.changed().await.is_err() {
            return;
        }
    }
}

fn runtime_report(health: &RuntimeHealth) -> RuntimeReport {
    let contact = match (health.silent_for, health.features) {
        (None, _) => RuntimeContact::Answers,
        (Some(_), None) => RuntimeContact::Unknown,
        (Some(already), Some(_)) => RuntimeContact::Silent { already },
    };
    // Why a silent runtime does not answer is only logged: the Node's condition shows that it is down.
    let answered = health.silent_for.is_none();
    RuntimeReport {
        contact,
        runtime_problem: health.runtime_problem.clone().filter(|_| answered),
        network_problem: health.network_problem.clone(),
        lists: health.lists,
        abilities: health.features.map(|features| RuntimeAbilities {
            handlers: health
                .handlers
                .iter()
                .map(|(name, handler)| {
                    let abilities = HandlerAbilities {
                        recursive_read_only_mounts: handler.recursive_read_only_mounts,
                        user_namespaces: handler.user_namespaces,
                    };
                    (name.clone(), abilities)
                })
                .collect(),
            supplemental_groups_policy: Some(features.supplemental_groups_policy),
            user_namespaces_host_network: features.user_namespaces_host_network,
            mount_options: features.mount_options,
        }),
    }
}
