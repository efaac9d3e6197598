//! Whether the node can do what the pod asks for: AppArmor, groups, pod-level resources, declared features.
//!
//! Owns what a pod needs of each. What the kernel, the runtime and the gates offer is an input.

use k8s_openapi::api::core::v1::{AppArmorProfile, Container, Pod, PodSpec};
use rubelet_config::Gate;
use rubelet_model::pod::{APP_ARMOR_ANNOTATION_PREFIX, Phase};

use super::{AdmissionReason, Refusal};
use crate::demand::PodDemand;
use crate::rules::Rules;

const UNCONFINED: &str = "unconfined";

/// The features that the container runtime reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuntimeFeatures {
    pub supplemental_groups_policy: bool,
    pub user_namespaces_host_network: bool,
    pub mount_options: bool,
}

/// The gates that admission goes by; a node declares features by most of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FeatureTerms {
    pub restart_all_containers: bool,
    pub user_namespaces_host_network: bool,
    pub volume_bind_mount_options: bool,
    /// Resources of pods as a whole can be resized: `InPlacePodLevelResourcesVerticalScaling`.
    pub pod_level_resize: bool,
    /// Whether declared features count at all: `NodeDeclaredFeatures`.
    pub declared: bool,
    /// Whether tolerations may compare numbers: `TaintTolerationComparisonOperators`.
    pub toleration_comparison: bool,
}

/// Whether admission depends on the runtime's features.
pub fn asks_runtime(pod: &Pod) -> bool {
    wants_strict_groups(pod) || uses_host_network_in_user_namespace(pod) || uses_mount_options(pod)
}

fn wants_strict_groups(pod: &Pod) -> bool {
    let context = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
    context.and_then(|context| context.supplemental_groups_policy.as_deref()) == Some("Strict")
}

/// `Strict` needs a runtime that can leave out an image's groups.
pub fn groups_refusal(pod: &Pod, runtime: RuntimeFeatures) -> Option<Refusal> {
    (wants_strict_groups(pod) && !runtime.supplemental_groups_policy).then(|| {
        Refusal::for_good(
            AdmissionReason::SupplementalGroupsPolicyNotSupported,
            "SupplementalGroupsPolicy=Strict is not supported in this node",
        )
    })
}

fn containers(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    spec.init_containers.iter().flatten().chain(&spec.containers)
}

fn is_confined(profile: Option<&AppArmorProfile>) -> bool {
    profile.is_some_and(|profile| profile.type_ != "Unconfined")
}

/// Whether anything of the pod is to run under an AppArmor profile.
fn needs_app_armor(pod: &Pod, spec: &PodSpec) -> bool {
    let of_pod = spec.security_context.as_ref();
    let of_ephemeral = spec.ephemeral_containers.iter().flatten().filter_map(|one| {
        let context = one.security_context.as_ref()?;
        context.app_armor_profile.as_ref()
    });
    let of_containers = containers(spec).filter_map(|one| {
        let context = one.security_context.as_ref()?;
        context.app_armor_profile.as_ref()
    });
    let mut annotations = pod.metadata.annotations.iter().flatten();
    is_confined(of_pod.and_then(|context| context.app_armor_profile.as_ref()))
        || of_containers
            .chain(of_ephemeral)
            .any(|profile| is_confined(Some(profile)))
        || annotations.any(|(key, value)| key.starts_with(APP_ARMOR_ANNOTATION_PREFIX) && value != UNCONFINED)
}

/// A profile that cannot be enforced is no profile; `host_problem` is why the host cannot.
pub fn app_armor_refusal(pod: &Pod, host_problem: Option<&str>) -> Option<Refusal> {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let spec = pod.spec.as_ref()?;
    if phase.is_some_and(|phase| phase != Phase::Pending.as_str()) || !needs_app_armor(pod, spec) {
        return None;
    }
    let problem = match host_problem {
        Some(problem) => problem.to_owned(),
        None => nameless_profile(pod, spec)?,
    };
    Some(Refusal::for_good(
        AdmissionReason::AppArmor,
        format!("Cannot enforce AppArmor: {problem}"),
    ))
}

/// A profile on the node needs a name.
fn nameless_profile(pod: &Pod, spec: &PodSpec) -> Option<String> {
    let of_pod = spec
        .security_context
        .as_ref()
        .and_then(|context| context.app_armor_profile.as_ref());
    let annotation = |container: &Container| {
        let annotations = pod.metadata.annotations.as_ref()?;
        annotations.get(&format!("{APP_ARMOR_ANNOTATION_PREFIX}{}", container.name))
    };
    let is_nameless = |container: &Container| {
        let own = container.security_context.as_ref();
        let own = own.and_then(|context| context.app_armor_profile.as_ref());
        let named = |profile: &AppArmorProfile| {
            let name = profile.localhost_profile.as_deref().unwrap_or_default();
            profile.type_ != "Localhost" || !name.trim().is_empty()
        };
        match (own, annotation(container), of_pod) {
            (Some(profile), _, _) => !named(profile),
            (None, Some(text), _) if text.starts_with("localhost/") => {
                text["localhost/".len()..].trim().is_empty()
            }
            (None, Some(text), _) if text == "runtime/default" || text == UNCONFINED => false,
            (None, _, Some(profile)) => !named(profile),
            (None, _, None) => false,
        }
    };
    let found = containers(spec).find(|container| is_nameless(container))?;
    Some(format!(
        "invalid empty AppArmor profile name of container {:?}",
        found.name
    ))
}

/// Resources of the pod as a whole need their gate.
pub fn pod_level_refusal(demand: &PodDemand, rules: &Rules) -> Option<Refusal> {
    let on = Rules {
        pod_level_resources: true,
        ..rules.clone()
    };
    (!rules.pod_level_resources && demand.effective_pod_level(&on).is_some()).then(|| {
        Refusal::for_good(
            AdmissionReason::PodLevelResourcesNotSupported,
            "PodLevelResources feature gate is disabled",
        )
    })
}

fn restarts_all_containers(pod: &Pod) -> bool {
    let rules = pod.spec.iter().flat_map(containers);
    rules
        .flat_map(|container| container.restart_policy_rules.iter().flatten())
        .any(|rule| rule.action == "RestartAllContainers")
}

fn uses_host_network_in_user_namespace(pod: &Pod) -> bool {
    pod.spec
        .as_ref()
        .is_some_and(|spec| spec.host_network == Some(true) && spec.host_users == Some(false))
}

fn uses_mount_options(pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let of_ephemeral = spec
        .ephemeral_containers
        .iter()
        .flatten()
        .flat_map(|one| &one.volume_mounts);
    containers(spec)
        .flat_map(|one| &one.volume_mounts)
        .chain(of_ephemeral)
        .flatten()
        .any(|mount| {
            mount
                .bind_mount_options
                .as_ref()
                .is_some_and(|options| !options.is_empty())
        })
}

/// The features that pods may need, by gate: whether this pod needs it, and whether the node declares it.
fn features(pod: &Pod, terms: FeatureTerms, runtime: RuntimeFeatures) -> [(Gate, bool, bool); 3] {
    [
        (
            Gate::RestartAllContainersOnContainerExits,
            restarts_all_containers(pod),
            terms.restart_all_containers,
        ),
        (
            Gate::UserNamespacesHostNetworkSupport,
            uses_host_network_in_user_namespace(pod),
            terms.user_namespaces_host_network && runtime.user_namespaces_host_network,
        ),
        (
            Gate::VolumeBindMountOptions,
            uses_mount_options(pod),
            terms.volume_bind_mount_options && runtime.mount_options,
        ),
    ]
}

impl FeatureTerms {
    /// The features that pods can be refused for, as far as the node has them: what it declares has to hold these.
    #[must_use]
    pub fn declared_features(self, runtime: RuntimeFeatures) -> Vec<&'static str> {
        let all = features(&Pod::default(), self, runtime);
        let there = all
            .into_iter()
            .filter(|(_, _, is_there)| *is_there && self.declared);
        there.map(|(gate, _, _)| gate.as_str()).collect()
    }
}

/// Features that a change of a pod needs and the node does not declare: all are of resizes in place.
pub fn missing_for_update(old: &Pod, new: &Pod, terms: FeatureTerms) -> Vec<&'static str> {
    let (Some(old), Some(new)) = (&old.spec, &new.spec) else {
        return Vec::new();
    };
    let needs = [
        (
            Gate::InPlacePodLevelResourcesVerticalScaling,
            old.resources != new.resources && !terms.pod_level_resize,
        ),
        (
            Gate::InPlacePodVerticalScalingMemoryBackedVolumes,
            resizes_memory_volume(old, new),
        ),
    ];
    let needs = needs.into_iter().filter(|(_, is_needed)| *is_needed);
    needs.map(|(gate, _)| gate.as_str()).collect()
}

fn resizes_memory_volume(old: &PodSpec, new: &PodSpec) -> bool {
    let (old, new) = (old.volumes.iter(), new.volumes.iter());
    let mut pairs = old.flatten().zip(new.flatten());
    pairs.any(|(old, new)| {
        let limits = old.empty_dir.as_ref().zip(new.empty_dir.as_ref());
        old.name == new.name
            && limits.is_some_and(|(old, new)| {
                new.medium.as_deref() == Some("Memory") && old.size_limit != new.size_limit
            })
    })
}

/// Features that the pod needs and the node does not declare.
pub fn features_refusal(pod: &Pod, terms: FeatureTerms, runtime: RuntimeFeatures) -> Option<Refusal> {
    let needs = features(pod, terms, runtime);
    let missing: Vec<&str> = needs
        .iter()
        .filter(|(_, is_needed, is_there)| *is_needed && !*is_there)
        .map(|(gate, _, _)| gate.as_str())
        .collect();
    (terms.declared && !missing.is_empty()).then(|| {
        Refusal::for_good(
            AdmissionReason::PodFeatureUnsupported,
            format!(
                "Pod requires node features that are not available: {}",
                missing.join(", ")
            ),
        )
    })
}
