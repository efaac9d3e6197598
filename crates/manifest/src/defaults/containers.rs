//! Defaults of one container: image policy, termination message, ports, environment, probes, hooks.

use k8s_openapi::api::core::v1::{
    Container, ContainerPort, EnvVar, EphemeralContainer, HTTPGetAction, Lifecycle, Probe,
};

use super::{round_requirements, volumes};
use crate::fields::fill;
use crate::image::default_pull_policy;

const TERMINATION_MESSAGE_PATH: &str = "/dev/termination-log";

struct Parts<'a> {
    image: &'a Option<String>,
    image_pull_policy: &'a mut Option<String>,
    termination_message_path: &'a mut Option<String>,
    termination_message_policy: &'a mut Option<String>,
    ports: &'a mut Option<Vec<ContainerPort>>,
    env: &'a mut Option<Vec<EnvVar>>,
    probes: [&'a mut Option<Probe>; 3],
    lifecycle: &'a mut Option<Lifecycle>,
}

pub(super) fn default_container(container: &mut Container) {
    default_parts(Parts {
        image: &container.image,
        image_pull_policy: &mut container.image_pull_policy,
        termination_message_path: &mut container.termination_message_path,
        termination_message_policy: &mut container.termination_message_policy,
        ports: &mut container.ports,
        env: &mut container.env,
        probes: [
            &mut container.liveness_probe,
            &mut container.readiness_probe,
            &mut container.startup_probe,
        ],
        lifecycle: &mut container.lifecycle,
    });
    round_requirements(&mut container.resources);
}

pub(super) fn default_ephemeral(container: &mut EphemeralContainer) {
    default_parts(Parts {
        image: &container.image,
        image_pull_policy: &mut container.image_pull_policy,
        termination_message_path: &mut container.termination_message_path,
        termination_message_policy: &mut container.termination_message_policy,
        ports: &mut container.ports,
        env: &mut container.env,
        probes: [
            &mut container.liveness_probe,
            &mut container.readiness_probe,
            &mut container.startup_probe,
        ],
        lifecycle: &mut container.lifecycle,
    });
    round_requirements(&mut container.resources);
}

fn default_parts(parts: Parts<'_>) {
    let policy = default_pull_policy(parts.image.as_deref().unwrap_or_default());
    fill(parts.image_pull_policy, policy);
    fill(parts.termination_message_path, TERMINATION_MESSAGE_PATH);
    fill(parts.termination_message_policy, "File");
    for port in parts.ports.iter_mut().flatten() {
        fill(&mut port.protocol, "TCP");
    }
    for source in parts
        .env
        .iter_mut()
        .flatten()
        .filter_map(|variable| variable.value_from.as_mut())
    {
        volumes::default_field_ref(&mut source.field_ref);
        volumes::default_resource_ref(&mut source.resource_field_ref);
        if let Some(key) = &mut source.file_key_ref {
            key.optional.get_or_insert(false);
        }
    }
    for probe in parts.probes.into_iter().flatten() {
        default_probe(probe);
    }
    for action in hooks(parts.lifecycle).flatten() {
        default_http_get(action);
    }
}

fn default_probe(probe: &mut Probe) {
    let fill = |field: &mut Option<i32>, value: i32| {
        if field.unwrap_or_default() == 0 {
            *field = Some(value);
        }
    };
    fill(&mut probe.timeout_seconds, 1);
    fill(&mut probe.period_seconds, 10);
    fill(&mut probe.success_threshold, 1);
    fill(&mut probe.failure_threshold, 3);
    if let Some(action) = &mut probe.http_get {
        default_http_get(action);
    }
    if let Some(action) = &mut probe.grpc {
        action.service.get_or_insert_default();
    }
}

fn default_http_get(action: &mut HTTPGetAction) {
    fill(&mut action.path, "/");
    fill(&mut action.scheme, "HTTP");
}

fn hooks(lifecycle: &mut Option<Lifecycle>) -> impl Iterator<Item = Option<&mut HTTPGetAction>> {
    let hooks = lifecycle
        .as_mut()
        .map(|lifecycle| [&mut lifecycle.post_start, &mut lifecycle.pre_stop]);
    hooks
        .into_iter()
        .flatten()
        .map(|hook| hook.as_mut().and_then(|hook| hook.http_get.as_mut()))
}

/// Every HTTP action of a container's probes and hooks.
pub(super) fn handlers(container: &mut Container) -> impl Iterator<Item = &mut HTTPGetAction> {
    let probes = [
        &mut container.liveness_probe,
        &mut container.readiness_probe,
        &mut container.startup_probe,
    ];
    let of_probes = probes
        .into_iter()
        .map(|probe| probe.as_mut().and_then(|probe| probe.http_get.as_mut()));
    of_probes.chain(hooks(&mut container.lifecycle)).flatten()
}

pub(super) fn ephemeral_handlers(
    container: &mut EphemeralContainer,
) -> impl Iterator<Item = &mut HTTPGetAction> {
    let probes = [
        &mut container.liveness_probe,
        &mut container.readiness_probe,
        &mut container.startup_probe,
    ];
    let of_probes = probes
        .into_iter()
        .map(|probe| probe.as_mut().and_then(|probe| probe.http_get.as_mut()));
    of_probes.chain(hooks(&mut container.lifecycle)).flatten()
}

pub(super) fn default_http_protocol<'a>(actions: impl Iterator<Item = &'a mut HTTPGetAction>) {
    for action in actions {
        action.protocol.get_or_insert_with(|| "HTTP1".to_owned());
    }
}
