//! Whether a pod may be created: every rule of the API, with the path of what breaks it.
//!
//! Owns the order and the pod's own fields; topics are in files of their own. The pod must have its defaults. Nothing is
//! changed here, and a rule that depends on a feature gate asks `Options`.

mod claims;
mod containers;
mod disks;
mod env;
mod metadata;
pub(crate) mod names;
mod network;
mod paths;
mod probes;
mod projected;
pub(crate) mod resources;
mod restart;
mod scheduling;
mod security;
mod volumes;
mod windows;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{self, Container, PodSpec, Volume};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rubelet_config::{FeatureGates, Gate};

use crate::fields::{flag, list, text};
use crate::problem::{FieldError, Findings, Path};
use names::{dns_subdomain, qualified_name};

/// What feature gates decide.
pub(crate) struct Options {
    deletion_cost: bool,
    pod_level_resources: bool,
    sidecar_resize: bool,
    spread_selector_merge: bool,
    restart_rules: bool,
    restart_all: bool,
    relaxed_env: bool,
    user_namespaces_host_network: bool,
    selinux_mount: bool,
    toleration_comparison: bool,
    strict_ip: bool,
}

impl Options {
    fn new(gates: &FeatureGates) -> Self {
        Self {
            deletion_cost: gates.enabled(Gate::PodDeletionCost),
            pod_level_resources: gates.enabled(Gate::PodLevelResources),
            sidecar_resize: gates.enabled(Gate::InPlacePodVerticalScaling),
            spread_selector_merge: gates.enabled(Gate::MatchLabelKeysInPodTopologySpread)
                && gates.enabled(Gate::MatchLabelKeysInPodTopologySpreadSelectorMerge),
            restart_rules: gates.enabled(Gate::ContainerRestartRules),
            restart_all: gates.enabled(Gate::RestartAllContainersOnContainerExits),
            relaxed_env: gates.enabled(Gate::RelaxedEnvironmentVariableValidation),
            user_namespaces_host_network: gates.enabled(Gate::UserNamespacesHostNetworkSupport),
            selinux_mount: gates.enabled(Gate::SELinuxMount),
            toleration_comparison: gates.enabled(Gate::TaintTolerationComparisonOperators),
            strict_ip: gates.enabled(Gate::StrictIPCIDRValidation),
        }
    }
}

/// What the rules for containers need to know of their pod.
pub(crate) struct Pod<'a> {
    spec: &'a PodSpec,
    options: &'a Options,
    volumes: BTreeMap<&'a str, &'a Volume>,
    claims: BTreeSet<&'a str>,
}

/// Everything that is wrong with a new pod.
pub fn validate(pod: &v1::Pod, gates: &FeatureGates) -> Vec<FieldError> {
    let options = Options::new(gates);
    let empty = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&empty);
    let meta = &pod.metadata;
    let mut out = Findings::default();
    let meta_path = Path::root("metadata");
    metadata::object_meta(&mut out, &meta_path, meta);
    metadata::pod_annotations(&mut out, &meta_path.child("annotations"), meta, spec, &options);
    let path = Path::root("spec");
    pod_spec(&mut out, &path, spec, meta, &options);
    create_only(&mut out, &path, spec);
    security::annotations_match(&mut out, &path, meta, spec);
    out.into_errors()
}

/// Rules for pods but not for templates of pods, and for new pods only.
fn create_only(out: &mut Findings, path: &Path, spec: &PodSpec) {
    if text(&spec.service_account_name).is_empty() {
        for (position, volume) in list(&spec.volumes).iter().enumerate() {
            let sources = volume
                .projected
                .as_ref()
                .map(|projected| list(&projected.sources));
            for (number, source) in sources.unwrap_or_default().iter().enumerate() {
                if source.service_account_token.is_some() {
                    let path = path
                        .child("volumes")
                        .index(position)
                        .child("projected")
                        .child("sources");
                    out.forbidden(
                        &path.index(number).child("serviceAccountToken"),
                        "needs serviceAccountName",
                    );
                }
            }
        }
    }
    let grace = spec.termination_grace_period_seconds.unwrap_or_default();
    out.invalid_unless(
        grace >= 0,
        &path.child("terminationGracePeriodSeconds"),
        "must not be negative",
    );
    for (name, all) in [
        ("containers", &spec.containers[..]),
        ("initContainers", list(&spec.init_containers)),
    ] {
        for (position, container) in all.iter().enumerate() {
            containers::image_spaces(out, &path.child(name).index(position), container);
        }
    }
    if !list(&spec.ephemeral_containers).is_empty() {
        out.forbidden(&path.child("ephemeralContainers"), "not in a new pod");
    }
    if !text(&spec.node_name).is_empty() && !list(&spec.scheduling_gates).is_empty() {
        out.forbidden(&path.child("nodeName"), "not while there are schedulingGates");
    }
}

fn pod_spec(out: &mut Findings, path: &Path, spec: &PodSpec, meta: &ObjectMeta, options: &Options) {
    if spec.termination_grace_period_seconds.is_none() {
        out.required(&path.child("terminationGracePeriodSeconds"), "");
    }
    let claims = list(&spec.resource_claims);
    let pod = Pod {
        spec,
        options,
        volumes: volumes::volumes(out, &path.child("volumes"), list(&spec.volumes), meta),
        claims: claims
            .iter()
            .map(|claim| claim.name.as_str())
            .filter(|name| !name.is_empty())
            .collect(),
    };
    resources::pod_claims(out, &path.child("resourceClaims"), claims, meta);
    containers::all(out, path, &pod);
    if options.pod_level_resources {
        resources::pod_resources(out, path, spec, &pod.claims);
    }
    names_and_policies(out, path, spec);
    network::host_network_ports(out, path, spec);
    metadata::labels(out, &path.child("nodeSelector"), &spec.node_selector);
    if let Some(context) = &spec.security_context {
        security::pod_context(out, &path.child("securityContext"), context, spec, options);
    }
    let shares = flag(spec.share_process_namespace) && flag(spec.host_pid);
    out.invalid_unless(!shares, &path.child("shareProcessNamespace"), "not with hostPID");
    if let Some(affinity) = &spec.affinity {
        scheduling::affinity(out, &path.child("affinity"), affinity);
    }
    network::dns(out, &path.child("dnsConfig"), spec, options);
    for (position, gate) in list(&spec.readiness_gates).iter().enumerate() {
        let path = path
            .child("readinessGates")
            .index(position)
            .child("conditionType");
        qualified_name(out, &path, &gate.condition_type);
    }
    scheduling::gates(out, &path.child("schedulingGates"), list(&spec.scheduling_gates));
    let spread = list(&spec.topology_spread_constraints);
    scheduling::topology_spread(out, &path.child("topologySpreadConstraints"), spread, options);
    windows::host_process(out, path, spec);
    security::host_users(out, path, spec, options);
    network::host_names(out, path, spec);
    scheduling::tolerations(out, &path.child("tolerations"), list(&spec.tolerations), options);
    network::host_aliases(out, &path.child("hostAliases"), list(&spec.host_aliases), options);
    if let Some(overhead) = &spec.overhead {
        let limits = v1::ResourceRequirements {
            limits: Some(overhead.clone()),
            ..v1::ResourceRequirements::default()
        };
        resources::container_requirements(out, &path.child("overhead"), &limits, &BTreeSet::new());
    }
    windows::other_system(out, path, spec);
    if let Some(group) = &spec.scheduling_group {
        let path = path.child("schedulingGroup");
        match &group.pod_group_name {
            None => out.invalid(&path.child("podGroupName"), "needs one"),
            Some(name) => dns_subdomain(out, &path.child("podGroupName"), name),
        }
        if !list(&spec.eviction_responders).is_empty() {
            out.forbidden(&path, "not with evictionResponders");
        }
    }
    file_key_volumes(out, path, spec);
}

/// Names and policies of the pod itself.
fn names_and_policies(out: &mut Findings, path: &Path, spec: &PodSpec) {
    let restart = text(&spec.restart_policy);
    out.required_one_of(
        &path.child("restartPolicy"),
        restart,
        &["Always", "OnFailure", "Never"],
    );
    let policies = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
    out.required_one_of(&path.child("dnsPolicy"), text(&spec.dns_policy), &policies);
    for (name, value) in [
        ("serviceAccountName", text(&spec.service_account_name)),
        ("nodeName", text(&spec.node_name)),
        ("priorityClassName", text(&spec.priority_class_name)),
    ] {
        if !value.is_empty() {
            dns_subdomain(out, &path.child(name), value);
        }
    }
    if let Some(name) = &spec.runtime_class_name {
        dns_subdomain(out, &path.child("runtimeClassName"), name);
    }
    let same = text(&spec.service_account) == text(&spec.service_account_name);
    out.invalid_unless(
        same,
        &path.child("deprecatedServiceAccount"),
        "must be serviceAccountName",
    );
    if let Some(policy) = &spec.preemption_policy {
        out.required_one_of(
            &path.child("preemptionPolicy"),
            policy,
            &["PreemptLowerPriority", "Never"],
        );
    }
    let deadline = spec.active_deadline_seconds;
    let fits = deadline.is_none_or(|seconds| (1..=i64::from(i32::MAX)).contains(&seconds));
    out.invalid_unless(
        fits,
        &path.child("activeDeadlineSeconds"),
        "must be between 1 and 2147483647",
    );
}

/// A variable from a file needs the empty directory that holds the file.
fn file_key_volumes(out: &mut Findings, path: &Path, spec: &PodSpec) {
    let volumes: BTreeMap<&str, &Volume> = list(&spec.volumes)
        .iter()
        .map(|volume| (volume.name.as_str(), volume))
        .collect();
    each_container(spec, path, |container, path| {
        for (position, variable) in list(&container.env).iter().enumerate() {
            let source = variable.value_from.as_ref();
            let Some(key) = source.and_then(|source| source.file_key_ref.as_ref()) else {
                continue;
            };
            let path = path
                .child("env")
                .index(position)
                .child("valueFrom")
                .child("fileKeyRef");
            match volumes.get(key.volume_name.as_str()) {
                None => out.not_found(&path.child("volumeName"), "there is no such volume"),
                Some(volume) if volume.empty_dir.is_none() => {
                    out.invalid(&path.child("volumeName"), "must be an empty directory");
                }
                Some(_) => {}
            }
        }
    });
}

/// All containers with their paths, in the order in which they could start.
fn each_container(spec: &PodSpec, path: &Path, mut visit: impl FnMut(&Container, &Path)) {
    for (position, container) in list(&spec.init_containers).iter().enumerate() {
        visit(container, &path.child("initContainers").index(position));
    }
    for (position, container) in spec.containers.iter().enumerate() {
        visit(container, &path.child("containers").index(position));
    }
    for (position, container) in list(&spec.ephemeral_containers).iter().enumerate() {
        let container = containers::as_container(container);
        visit(&container, &path.child("ephemeralContainers").index(position));
    }
}

fn container_names(spec: &PodSpec) -> impl Iterator<Item = &str> {
    let plain = list(&spec.init_containers).iter().chain(&spec.containers);
    let ephemeral = list(&spec.ephemeral_containers)
        .iter()
        .map(|container| container.name.as_str());
    plain.map(|container| container.name.as_str()).chain(ephemeral)
}
