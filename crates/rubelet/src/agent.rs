//! Putting the agent together: its ports, and its settings from the configuration and the machine.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use rubelet_agent::settings::{FileSource, HttpSource};
use rubelet_agent::{AgentMetrics, AgentPorts, AgentSettings, ApiPorts, NodeNow};
use rubelet_config::gates::Gate;
use rubelet_config::settings::Settings;
use rubelet_dial::NetworkDialer;
use rubelet_fetch::UrlFetcher;
use rubelet_host::HostMemoryKills;
use rubelet_host::cgroup::CgroupVersion;
use rubelet_host::kernel::KernelFacts;
use rubelet_host::machine::Machine;
use rubelet_host::subordinate_ids::subordinate_ids;
use rubelet_lifecycle::backoff::BackoffLimits;
use rubelet_lifecycle::configuration::NodeConfiguration;
use rubelet_lifecycle::garbage::GarbageLimits;
use rubelet_lifecycle::resize::ResizeTerms;
use rubelet_lifecycle::restart::RestartGates;
use rubelet_lifecycle::status::StatusGates;
use rubelet_lifecycle::user_namespaces::{DEFAULT_IDS_PER_POD, IdRange, UserNamespaces};
use rubelet_model::GoDuration;
use rubelet_model::Pressure;
use rubelet_node::status::parse_node_ips;
use rubelet_ports::api::NodeReader;
use rubelet_ports::{HostIps, ImageProvider, NoReporter, PodCgroups, PodObjects};
use rubelet_probes::{Probes, ProbesPorts, ProbesSettings};
use rubelet_resources::NodeFacts;
use rubelet_resources::amounts::Amounts;
use rubelet_resources::cgroup_name::CgroupDriver;
use rubelet_resources::huge_pages::page_size_name;

use tokio::sync::watch;

use crate::admission;
use crate::cluster::{Membership, proxies};
use crate::edges::Edges;
use crate::metrics;
use crate::volumes::volumes;

/// How many starts, and as many stops, are under way at the runtime: on two processors it is fastest with about six.
const IN_FLIGHT_PER_PROCESSOR: usize = 3;
const MIN_IN_FLIGHT: usize = 4;
/// Links to all containers' logs, where log agents look for them.
pub(crate) const CONTAINER_LOGS_DIR: &str = "/var/log/containers";
/// Where pods' logs are where the configuration sets no directory.
const DEFAULT_POD_LOGS_DIR: &str = "/var/log/pods";

/// What start-up has found out about the node.
pub(crate) struct NodeFound<'a> {
    pub(crate) name: &'a str,
    pub(crate) machine: &'a Machine,
    pub(crate) cgroup: CgroupVersion,
    pub(crate) cgroup_driver: &'a str,
    pub(crate) runtime_name: &'a str,
}

/// What was started before the agent and is handed to it.
pub(crate) struct Given {
    pub(crate) cgroups: Arc<dyn PodCgroups>,
    pub(crate) pressure: watch::Receiver<Option<Pressure>>,
    pub(crate) shutting_down: watch::Receiver<bool>,
    pub(crate) images: Arc<dyn ImageProvider>,
    /// The node's addresses as pods see them.
    pub(crate) host_ips: Arc<dyn HostIps>,
}

/// The edges of the agent, on a node of a cluster or alone.
pub(crate) fn ports(
    settings: &Settings,
    edges: &Edges,
    agent: &AgentSettings,
    membership: Option<&Membership>,
    given: Given,
) -> Result<AgentPorts> {
    let Edges {
        clock,
        spawner,
        cri,
        events,
        ..
    } = edges.clone();
    let objects = membership.map(|membership| membership.objects.clone() as Arc<dyn PodObjects>);
    let volumes = volumes(settings, agent, edges, objects.clone(), given.host_ips.clone())?;
    let dialer = Arc::new(NetworkDialer::new());
    let probes = Arc::new(Probes::new(
        ProbesSettings {
            change_status_on_restart: agent.status_gates.change_container_status_on_restart,
        },
        ProbesPorts {
            clock: clock.clone(),
            spawner: spawner.clone(),
            randomness: edges.randomness.clone(),
            runtime_writer: cri.clone(),
            dialer: dialer.clone(),
            events: events.clone(),
        },
    ));
    metrics::show_probes(&edges.registries.probes, probes.clone())?;
    let metrics = AgentMetrics::register(&edges.registries.node).context("register metrics of pods")?;
    Ok(AgentPorts {
        clock,
        spawner,
        randomness: edges.randomness.clone(),
        runtime_reader: cri.clone(),
        runtime_writer: cri,
        images: given.images,
        volumes: Arc::new(volumes),
        file_reader: edges.files.clone(),
        file_writer: edges.files.clone(),
        http: Arc::new(UrlFetcher::new(proxies())),
        dialer,
        probes,
        events,
        node_events: edges.node_events.clone(),
        cgroups: given.cgroups,
        memory_kills: Arc::new(HostMemoryKills::new()),
        api: ApiPorts {
            pods: membership.map(|membership| membership.pods.clone()),
            objects,
            reporter: match membership {
                Some(membership) => membership.reporter.clone(),
                None => Arc::new(NoReporter),
            },
        },
        node: NodeNow {
            object: membership.map_or_else(|| watch::channel(None).1, |membership| membership.node.object()),
            pressure: given.pressure,
            shutting_down: given.shutting_down,
            reader: edges.api.clone().map(|api| api as Arc<dyn NodeReader>),
            host_ips: given.host_ips,
        },
        metrics: Arc::new(metrics),
    })
}

/// The agent's settings, which do not change while the process runs.
pub(crate) fn settings(settings: &Settings, found: &NodeFound<'_>) -> Result<AgentSettings> {
    let configuration = settings.configuration();
    let flags = settings.flags();
    let root_dir = std::path::absolute(&flags.root_dir).context("make --root-dir absolute")?;
    let gates = settings.gates().clone();
    let allocatable = admission::node_resources(settings, found, &root_dir)?.allocatable;
    let in_flight = MIN_IN_FLIGHT.max(found.machine.processors * IN_FLIGHT_PER_PROCESSOR);
    Ok(AgentSettings {
        node_name: found.name.to_owned(),
        container_logs_dir: PathBuf::from(CONTAINER_LOGS_DIR),
        file_source: Some(configuration.static_pod_path.as_str())
            .filter(|path| !path.is_empty())
            .map(|path| FileSource {
                path: PathBuf::from(path),
                check_interval: std_duration(configuration.file_check_frequency),
            }),
        http_source: Some(configuration.static_pod_url.as_str())
            .filter(|url| !url.is_empty())
            .map(|url| HttpSource {
                url: url.to_owned(),
                headers: headers(&configuration.static_pod_url_header),
                check_interval: std_duration(configuration.http_check_frequency),
            }),
        sync_frequency: std_duration(configuration.sync_frequency),
        node: node_configuration(settings, found, &root_dir, &allocatable)?,
        admission: admission::terms(settings, found, &allocatable)?,
        user_namespaces: user_namespaces(settings)?,
        resize: resize_terms(settings),
        status_gates: status_gates(settings),
        crash_backoff: BackoffLimits::new(
            gates.enabled(Gate::ReduceDefaultCrashLoopBackOffDecay),
            configuration
                .crash_loop_back_off
                .max_container_restart_period
                .filter(|_| gates.enabled(Gate::KubeletCrashLoopBackOffMax))
                .map(std_duration),
        ),
        garbage: GarbageLimits {
            min_age: std_duration(flags.minimum_container_ttl),
            // Below zero is no limit.
            max_per_container: usize::try_from(flags.maximum_dead_containers_per_container).ok(),
            max_total: usize::try_from(flags.maximum_dead_containers).ok(),
        },
        gates: Arc::new(gates),
        starts_in_flight: in_flight,
        stops_in_flight: in_flight,
        runtime_name: found.runtime_name.to_owned(),
        root_dir,
    })
}

/// Below zero is no time at all.
pub(crate) fn std_duration(duration: GoDuration) -> Duration {
    duration.to_std().unwrap_or_default()
}

fn headers(configured: &BTreeMap<String, Vec<String>>) -> Vec<(String, String)> {
    configured
        .iter()
        .flat_map(|(name, values)| values.iter().map(move |value| (name.clone(), value.clone())))
        .collect()
}

/// The ids that are allocated to pods with user namespaces.
fn user_namespaces(settings: &Settings) -> Result<UserNamespaces> {
    let configuration = settings.configuration();
    let configured = configuration.user_namespaces.as_ref();
    let ids_per_pod = configured
        .and_then(|namespaces| namespaces.ids_per_pod)
        .filter(|ids| *ids != 0)
        .map_or(Ok(DEFAULT_IDS_PER_POD), u32::try_from)
        .context("userNamespaces.idsPerPod")?;
    let range = match subordinate_ids().context("find out the ids of user kubelet")? {
        Some((users, groups)) => IdRange::from_subordinate_ids(&users, &groups)?,
        None => IdRange::whole(ids_per_pod),
    };
    let max_pods = u32::try_from(configuration.max_pods).unwrap_or(0);
    UserNamespaces::new(range, ids_per_pod, max_pods).context("ids for pods with users of their own")
}

fn status_gates(settings: &Settings) -> StatusGates {
    let gates = settings.gates();
    StatusGates {
        restart: RestartGates {
            container_restart_rules: gates.enabled(Gate::ContainerRestartRules),
            restart_all_containers: gates.enabled(Gate::RestartAllContainersOnContainerExits),
        },
        change_container_status_on_restart: gates.enabled(Gate::ChangeContainerStatusOnKubeletRestart),
        container_stop_signals: gates.enabled(Gate::ContainerStopSignals),
        pod_level_resources: gates.enabled(Gate::InPlacePodLevelResourcesVerticalScaling),
    }
}

/// Static policies give containers of Guaranteed pods CPUs and memory of their own, which a resize leaves as they are.
fn resize_terms(settings: &Settings) -> ResizeTerms {
    let configuration = settings.configuration();
    ResizeTerms {
        pod_level: settings
            .gates()
            .enabled(Gate::InPlacePodLevelResourcesVerticalScaling),
        has_static_cpus: configuration.cpu_manager_policy == "static",
        has_static_memory: configuration.memory_manager_policy == "Static",
    }
}

/// Where the logs of all pods are.
pub(crate) fn pod_logs_dir(settings: &Settings) -> &str {
    match settings.configuration().pod_logs_dir.as_str() {
        "" => DEFAULT_POD_LOGS_DIR,
        given => given,
    }
}

fn node_configuration(
    settings: &Settings,
    found: &NodeFound<'_>,
    root_dir: &Path,
    allocatable: &Amounts,
) -> Result<NodeConfiguration> {
    let kernel = KernelFacts::read(found.cgroup);
    let root = root_dir.to_str().context("--root-dir is no text")?;
    let mut node = NodeConfiguration::new(settings, root, node_facts(found, &kernel, allocatable));
    pod_logs_dir(settings).clone_into(&mut node.pod_logs_dir);
    node.cgroup_driver = CgroupDriver::by_name(found.cgroup_driver);
    node.seccomp_default |= settings.flags().seccomp_default;
    node.thermal_throttle_paths = kernel.thermal_throttle_paths;
    node.is_selinux_enabled = kernel.is_selinux_enabled;
    node.node_ips = parse_node_ips(&settings.flags().node_ip)
        .context("read --node-ip")?
        .0;
    Ok(node)
}

fn node_facts(found: &NodeFound<'_>, kernel: &KernelFacts, allocatable: &Amounts) -> NodeFacts {
    let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    NodeFacts {
        cgroup: match found.cgroup {
            CgroupVersion::V1 => rubelet_resources::rules::CgroupVersion::V1,
            CgroupVersion::V2 => rubelet_resources::rules::CgroupVersion::V2,
        },
        page_size_bytes: signed(kernel.page_size_bytes),
        huge_page_sizes: kernel
            .huge_page_sizes_bytes
            .iter()
            .filter_map(|bytes| page_size_name(signed(*bytes)))
            .collect(),
        memory_capacity_bytes: signed(found.machine.memory_bytes),
        swap_capacity_bytes: signed(found.machine.swap_bytes),
        has_swap_controller: kernel.has_swap_controller,
        allocatable: allocatable.clone(),
    }
}
