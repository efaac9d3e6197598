//! The Node's fields about the machine, the runtime and its images.
//!
//! Owns `nodeInfo`, `images`, `runtimeHandlers`, `features` and `declaredFeatures`. What is not known leaves the field as it is.

use k8s_openapi::api::core::v1::{
    ContainerImage, NodeFeatures, NodeRuntimeHandler, NodeRuntimeHandlerFeatures, NodeStatus, NodeSwapStatus,
    NodeSystemInfo,
};
use rubelet_config::Gate;
use rubelet_model::RuntimeAbilities;
use rubelet_wire::cri::v1;

use crate::settings::{DeclaredFeatureGates, NodeSettings};

const MAX_NAMES_PER_IMAGE: usize = 5;
pub(super) const OPERATING_SYSTEM: &str = "linux";

/// The largest images first.
#[must_use]
pub fn largest_images(mut all: Vec<v1::Image>, limit: Option<usize>) -> Vec<ContainerImage> {
    all.sort_by(|left, right| (right.size, &right.id).cmp(&(left.size, &left.id)));
    all.truncate(limit.unwrap_or(usize::MAX));
    all.into_iter()
        .map(|image| {
            let names = image.repo_digests.into_iter().chain(image.repo_tags);
            let size_bytes = i64::try_from(image.size).unwrap_or(i64::MAX);
            ContainerImage {
                names: filled(names.take(MAX_NAMES_PER_IMAGE).collect()),
                // The API server leaves a zero out, too.
                size_bytes: Some(size_bytes).filter(|bytes| *bytes != 0),
            }
        })
        .collect()
}

/// `containerd://2.1.0`, from the name and version that the runtime gives.
#[must_use]
pub fn runtime_version(name: &str, version: &str) -> String {
    let text = version.trim_start();
    let text = text.strip_prefix('v').unwrap_or(text);
    let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.');
    let (numbers, extra) = text.split_at(end.unwrap_or(text.len()));
    // A dot that no digit follows belongs to what comes after the numbers.
    let whole = numbers
        .split("..")
        .next()
        .unwrap_or_default()
        .trim_end_matches('.');
    let extra_begins = whole.len() == numbers.len();
    let parts: Vec<&str> = whole.split('.').collect();
    let known = if extra_begins && is_semantic(&parts, extra) {
        Some(format!("{whole}{}", extra.trim_end()))
    } else {
        generic(&parts)
    };
    format!("{name}://{}", known.as_deref().unwrap_or("Unknown"))
}

fn has_leading_zero(number: &str) -> bool {
    number.len() > 1 && number.starts_with('0')
}

/// `1.2.3`, `1.2.3-rc.1+build`
fn is_semantic(parts: &[&str], extra: &str) -> bool {
    let is_identifier = |part: &str| {
        let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        !part.is_empty() && part.bytes().all(is_letter)
    };
    let are_numbers = parts
        .iter()
        .all(|part| part.parse::<u64>().is_ok() && !has_leading_zero(part));
    let extra = extra.trim_end();
    let (pre_release, build) = extra
        .split_once('+')
        .map_or((extra, None), |(pre, build)| (pre, Some(build)));
    let pre_release = match pre_release.strip_prefix('-') {
        Some(parts) => parts
            .split('.')
            .all(|part| is_identifier(part) && !(part.parse::<u64>().is_ok() && has_leading_zero(part))),
        None => pre_release.is_empty(),
    };
    let build = build.is_none_or(|parts| parts.split('.').all(is_identifier));
    parts.len() == 3 && are_numbers && pre_release && build
}

/// The numbers alone, of which there must be two at least.
fn generic(parts: &[&str]) -> Option<String> {
    let numbers: Option<Vec<u64>> = parts.iter().map(|part| part.parse().ok()).collect();
    let numbers: Vec<String> = numbers?.iter().map(ToString::to_string).collect();
    let is_version = numbers.len() > 1 && !parts.first().is_some_and(|first| has_leading_zero(first));
    is_version.then(|| numbers.join("."))
}

pub(super) fn set_node_info(status: &mut NodeStatus, settings: &NodeSettings, runtime_version: Option<&str>) {
    let machine = &settings.machine;
    let before = status.node_info.take().unwrap_or_default();
    let runtime_version = match runtime_version {
        Some(known) => known.to_owned(),
        None => before.container_runtime_version,
    };
    let swap_bytes = i64::try_from(machine.swap_bytes).unwrap_or(i64::MAX);
    status.node_info = Some(NodeSystemInfo {
        architecture: machine.architecture.clone(),
        boot_id: machine.boot_id.clone(),
        container_runtime_version: runtime_version,
        kernel_version: machine.kernel_version.clone(),
        kube_proxy_version: String::new(),
        kubelet_version: settings.kubelet_version.clone(),
        machine_id: machine.machine_id.clone(),
        operating_system: OPERATING_SYSTEM.to_owned(),
        os_image: machine.os_image.clone(),
        running_in_user_namespace: machine.is_in_user_namespace,
        swap: (swap_bytes != 0).then_some(NodeSwapStatus {
            capacity: Some(swap_bytes),
        }),
        system_uuid: machine.system_uuid.clone(),
    });
}

pub(super) fn set_abilities(
    status: &mut NodeStatus,
    abilities: &RuntimeAbilities,
    gates: DeclaredFeatureGates,
) {
    let handlers = abilities
        .handlers
        .iter()
        .map(|(name, features)| NodeRuntimeHandler {
            name: Some(name.clone()),
            features: Some(NodeRuntimeHandlerFeatures {
                recursive_read_only_mounts: Some(features.recursive_read_only_mounts),
                user_namespaces: Some(features.user_namespaces),
            }),
        });
    status.runtime_handlers = filled(handlers.collect());
    if let Some(supported) = abilities.supplemental_groups_policy {
        status.features = Some(NodeFeatures {
            supplemental_groups_policy: Some(supported),
        });
    }
    status.declared_features = filled(declared_features(abilities, gates));
}

/// The features that pods may need of a node, by gate. What rubelet does not support is not declared, whatever its gate.
fn declared_features(abilities: &RuntimeAbilities, gates: DeclaredFeatureGates) -> Vec<String> {
    let features = [
        (Gate::ExtendWebSocketsToKubelet, gates.extend_websockets),
        (
            Gate::InPlacePodLevelResourcesVerticalScaling,
            gates.pod_level_resize,
        ),
        (
            Gate::InPlacePodVerticalScalingInitContainers,
            gates.init_container_resize,
        ),
        (
            Gate::RestartAllContainersOnContainerExits,
            gates.restart_all_containers,
        ),
        (
            Gate::UserNamespacesHostNetworkSupport,
            gates.user_namespaces_host_network && abilities.user_namespaces_host_network,
        ),
        (
            Gate::VolumeBindMountOptions,
            gates.volume_bind_mount_options && abilities.mount_options,
        ),
    ];
    let declared = features.into_iter().filter(|(_, is_honoured)| *is_honoured);
    declared.map(|(gate, _)| gate.to_string()).collect()
}

/// An empty list is none: for the API server they are the same.
pub(super) fn filled<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_images_come_first_with_few_names() {
        let image = |id: &str, size: u64, tags: usize| v1::Image {
            id: id.to_owned(),
            size,
            repo_digests: vec![format!("{id}@sha256:0")],
            repo_tags: (0..tags).map(|number| format!("{id}:{number}")).collect(),
            ..v1::Image::default()
        };
        let all = vec![
            image("a", 1, 1),
            image("b", 5, 9),
            image("c", 1, 0),
            image("d", 3, 0),
        ];
        let text = |limit| {
            let list = largest_images(all.clone(), limit);
            let list = list.iter().map(|image| {
                let names = image.names.as_ref().unwrap();
                format!("{}*{} {}", names[0], names.len(), image.size_bytes.unwrap())
            });
            list.collect::<Vec<_>>()
        };
        assert_eq!(
            text(Some(3)),
            ["b@sha256:0*5 5", "d@sha256:0*1 3", "c@sha256:0*1 1"]
        );
        assert_eq!(text(None).len(), 4);
        assert_eq!(text(Some(0)), [""; 0]);
    }

    #[test]
    fn versions_are_numbers() {
        for (version, expected) in [
            ("v2.4.0", "2.4.0"),
            ("1.7.13-k3s1", "1.7.13-k3s1"),
            ("1.2.3+x.y", "1.2.3+x.y"),
            ("1.7.24~ds1", "1.7.24"),
            ("1.7", "1.7"),
            ("1.07", "1.7"),
            ("01.2.3", "Unknown"),
            ("1.2.3-", "1.2.3"),
            ("1.2.3-04", "1.2.3"),
            ("1.2.3.", "1.2.3"),
            ("1.2.3.4", "1.2.3.4"),
            ("2", "Unknown"),
            ("", "Unknown"),
            ("main", "Unknown"),
            ("1..2", "Unknown"),
            ("1.2..3", "1.2"),
        ] {
            assert_eq!(
                runtime_version("containerd", version),
                format!("containerd://{expected}")
            );
        }
    }

    #[test]
    fn only_what_works_is_declared() {
        let all = DeclaredFeatureGates {
            restart_all_containers: true,
            user_namespaces_host_network: true,
            volume_bind_mount_options: true,
            extend_websockets: true,
            pod_level_resize: true,
            init_container_resize: true,
        };
        let able = RuntimeAbilities {
            mount_options: true,
            ..RuntimeAbilities::default()
        };
        assert_eq!(
            declared_features(&able, all),
            [
                "ExtendWebSocketsToKubelet",
                "InPlacePodLevelResourcesVerticalScaling",
                "InPlacePodVerticalScalingInitContainers",
                "RestartAllContainersOnContainerExits",
                "VolumeBindMountOptions"
            ]
        );
        assert_eq!(declared_features(&able, DeclaredFeatureGates::default()), [""; 0]);
    }
}
