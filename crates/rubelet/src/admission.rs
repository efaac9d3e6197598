//! What admission checks pods against: the node's allocatable, labels, sysctls and features, from the settings and the machine.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use rubelet_config::gates::Gate;
use rubelet_config::settings::Settings;
use rubelet_host::capacity;
use rubelet_host::node_facts::device_plugin_resources;
use rubelet_model::Quantity;
use rubelet_resources::Rules;
use rubelet_resources::admission::{
    Allocatable, FeatureTerms, KernelVersion, NodeIdentity, NodeTerms, SysctlAllowlist,
};
use rubelet_resources::allocatable::{Capacity, PodCount, allocatable};
use rubelet_resources::amounts::Amounts;
use rubelet_resources::node_cgroup::Reservation;

use crate::agent::NodeFound;

/// The node's capacity and allocatable.
pub(crate) struct NodeResources {
    pub(crate) capacity: Amounts,
    pub(crate) allocatable: Amounts,
}

pub(crate) fn node_resources(
    settings: &Settings,
    found: &NodeFound<'_>,
    root_dir: &Path,
) -> Result<NodeResources> {
    let configuration = settings.configuration();
    let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let counts_storage = configuration.local_storage_capacity_isolation.unwrap_or(true);
    let storage = counts_storage
        .then(|| capacity::filesystem_bytes(root_dir))
        .flatten();
    let capacity = Capacity {
        processors: i64::try_from(found.machine.processors).unwrap_or(i64::MAX),
        memory_bytes: signed(found.machine.memory_bytes),
        ephemeral_storage_bytes: storage.map(signed),
        huge_pages: capacity::huge_pages()
            .into_iter()
            .map(|(size, count)| (signed(size), signed(count)))
            .collect(),
    };
    let count = PodCount {
        max: configuration.max_pods.into(),
        per_core: configuration.pods_per_core.into(),
    };
    let reservation = Reservation::read(&configuration.system_reserved, &configuration.kube_reserved)
        .context("read what is reserved")?;
    let ignores_eviction = settings.flags().experimental_allocatable_ignore_eviction;
    let eviction = configuration.eviction_hard.clone().filter(|_| !ignores_eviction);
    let mut capacity = capacity.amounts(count);
    // As upstream's until a plugin registers: no plugin can do so yet.
    for resource in device_plugin_resources(root_dir).unwrap_or_default() {
        capacity.set(resource, Quantity::default());
    }
    let allocatable = allocatable(&capacity, &reservation, &eviction.unwrap_or_default())
        .context("compute what is left for pods")?;
    Ok(NodeResources {
        capacity,
        allocatable,
    })
}

/// Everything else that admission checks.
pub(crate) fn terms(settings: &Settings, found: &NodeFound<'_>, allocatable: &Amounts) -> Result<NodeTerms> {
    let configuration = settings.configuration();
    let gates = settings.gates();
    let kernel = KernelVersion::parse(&found.machine.kernel_version);
    Ok(NodeTerms {
        identity: NodeIdentity {
            name: found.name.to_owned(),
            labels: labels(settings, found),
        },
        allocatable: Allocatable::of(allocatable),
        sysctls: SysctlAllowlist::new(kernel, &configuration.allowed_unsafe_sysctls)?,
        app_armor_problem: capacity::app_armor_problem().map(ToOwned::to_owned),
        features: FeatureTerms {
            restart_all_containers: gates.enabled(Gate::RestartAllContainersOnContainerExits),
            user_namespaces_host_network: gates.enabled(Gate::UserNamespacesHostNetworkSupport),
            volume_bind_mount_options: gates.enabled(Gate::VolumeBindMountOptions),
            pod_level_resize: gates.enabled(Gate::InPlacePodLevelResourcesVerticalScaling),
            declared: gates.enabled(Gate::NodeDeclaredFeatures),
            toleration_comparison: gates.enabled(Gate::TaintTolerationComparisonOperators),
        },
        rules: Rules::new(configuration, gates),
    })
}

/// The labels that the node gives itself. `--node-labels` win.
fn labels(settings: &Settings, found: &NodeFound<'_>) -> BTreeMap<String, String> {
    let architecture = found.machine.architecture.as_str();
    let own = [
        ("kubernetes.io/hostname", found.name),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", architecture),
        ("beta.kubernetes.io/os", "linux"),
        ("beta.kubernetes.io/arch", architecture),
    ];
    let own = own.map(|(key, value)| (key.to_owned(), value.to_owned()));
    own.into_iter()
        .chain(settings.flags().node_labels.clone())
        .collect()
}
