//! What a pod's own words ask for: restarts, sidecars, images.
//!
//! Written again on purpose instead of using the agent's functions: a check that shares the code under test finds nothing.

use k8s_openapi::api::core::v1::{
    Container, ContainerStatus, EphemeralContainer, ExecAction, Pod, PodCondition,
};
use rubelet_model::MAX_PERIOD_SECONDS;
use rubelet_ports::ProbeKind;

use crate::runtime::{Health, Script};

const RESTART_ALL: &str = "RestartAllContainers";

pub(super) fn init_containers(pod: &Pod) -> &[Container] {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.init_containers.as_deref())
        .unwrap_or_default()
}

pub(super) fn regular_containers(pod: &Pod) -> &[Container] {
    pod.spec
        .as_ref()
        .map(|spec| spec.containers.as_slice())
        .unwrap_or_default()
}

pub(super) fn find<'a>(pod: &'a Pod, name: &str) -> Option<&'a Container> {
    init_containers(pod)
        .iter()
        .chain(regular_containers(pod))
        .find(|container| container.name == name)
}

pub(super) fn ephemeral_containers(pod: &Pod) -> &[EphemeralContainer] {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.ephemeral_containers.as_deref())
        .unwrap_or_default()
}

/// Runs once, beside the others.
pub(super) fn is_ephemeral(pod: &Pod, name: &str) -> bool {
    ephemeral_containers(pod)
        .iter()
        .any(|container| container.name == name)
}

pub(super) fn is_init(pod: &Pod, name: &str) -> bool {
    init_containers(pod)
        .iter()
        .any(|container| container.name == name)
}

/// What the pod requests: its containers and sidecars together, or an init container if that needs more.
pub(super) fn milli_cpu(pod: &Pod) -> i64 {
    let of = |container: &Container| {
        let requests = container.resources.as_ref().and_then(|all| all.requests.as_ref());
        let text = requests
            .and_then(|list| list.get("cpu"))
            .map_or("0", |text| text.0.as_str());
        // Reading a manifest turns whole thousands into units.
        let (number, unit) = text.strip_suffix('m').map_or((text, 1000), |millis| (millis, 1));
        number.parse::<i64>().unwrap_or(0) * unit
    };
    // Only regular containers of generated pods request anything.
    regular_containers(pod).iter().map(of).sum()
}

/// The agent does not let the pod in.
pub(super) fn is_refused(pod: &Pod) -> bool {
    let message = pod.status.as_ref().and_then(|status| status.message.as_deref());
    message.is_some_and(|text| text.starts_with("Pod was rejected: "))
}

/// An init container that stays.
pub(super) fn is_sidecar(pod: &Pod, name: &str) -> bool {
    init_containers(pod)
        .iter()
        .any(|container| container.name == name && container.restart_policy.as_deref() == Some("Always"))
}

/// A container that readiness is about: a regular one or a sidecar.
pub(super) fn stays(pod: &Pod, name: &str) -> bool {
    let mut regular = regular_containers(pod).iter();
    regular.any(|container| container.name == name) || is_sidecar(pod, name)
}

pub(super) fn pod_policy(pod: &Pod) -> &str {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.restart_policy.as_deref())
        .unwrap_or("Always")
}

/// The container's own policy, or else its pod's.
pub(super) fn policy<'a>(pod: &'a Pod, name: &str) -> &'a str {
    let own = find(pod, name).and_then(|container| container.restart_policy.as_deref());
    own.unwrap_or(pod_policy(pod))
}

fn rule(container: &Container, code: i32) -> Option<&str> {
    container.restart_policy.as_ref()?;
    let rules = container.restart_policy_rules.as_ref()?;
    let found = rules.iter().find(|rule| {
        rule.exit_codes.as_ref().is_some_and(|codes| {
            let listed = codes.values.as_deref().unwrap_or_default().contains(&code);
            listed == (codes.operator == "In")
        })
    });
    found.map(|rule| rule.action.as_str())
}

pub(super) fn asks_for_all(pod: &Pod, name: &str, code: i32) -> bool {
    find(pod, name).is_some_and(|container| rule(container, code) == Some(RESTART_ALL))
}

/// Whether a container that ended with this code runs again in the same sandbox.
pub(super) fn restarts(pod: &Pod, name: &str, code: i32) -> bool {
    let Some(container) = find(pod, name) else {
        return false;
    };
    if rule(container, code).is_some() {
        return true;
    }
    let own = container.restart_policy.as_deref();
    match own.unwrap_or(pod_policy(pod)) {
        "Always" if own.is_none() && is_init(pod, name) => code != 0,
        "Always" => true,
        "OnFailure" => code != 0,
        _ => false,
    }
}

/// What the container's process does, by its arguments.
fn script(container: &Container) -> Script {
    Script::parse(container.args.as_deref().unwrap_or_default())
}

/// Whether the container ends and starts again for ever, by its script, its probes or its first hook.
pub(super) fn loops(pod: &Pod, name: &str) -> bool {
    let Some(container) = find(pod, name) else {
        return false;
    };
    let last = script(container).runs.last().copied().flatten();
    last.is_some_and(|exit| restarts(pod, name, exit.code))
        || never_starts(container)
        || fails_for_ever(container, ProbeKind::Liveness)
}

/// Whether nothing comes after the container, because its start never succeeds.
pub(super) fn never_starts(container: &Container) -> bool {
    let is_failure = |words: &[String]| words[1..] == ["exit", "1"];
    fails_for_ever(container, ProbeKind::Startup) || post_start_command(container).is_some_and(is_failure)
}

fn fails_for_ever(container: &Container, kind: ProbeKind) -> bool {
    has_probe(container, kind) && matches!(script(container).health(kind), Health::Bad | Health::Silent)
}

fn has_probe(container: &Container, kind: ProbeKind) -> bool {
    match kind {
        ProbeKind::Startup => container.startup_probe.is_some(),
        ProbeKind::Readiness => container.readiness_probe.is_some(),
        ProbeKind::Liveness => container.liveness_probe.is_some(),
    }
}

/// Whether a probe of this kind, if there is one, passes sooner or later in this attempt.
pub(super) fn passes(container: &Container, kind: ProbeKind, attempt: u32) -> bool {
    !has_probe(container, kind)
        || match script(container).health(kind) {
            Health::Good | Health::WarmsUp(_) => true,
            Health::Bad | Health::Silent => false,
            Health::BadBefore(good) => attempt >= good,
        }
}

fn words(exec: Option<&ExecAction>) -> Option<&[String]> {
    exec?.command.as_deref().filter(|words| !words.is_empty())
}

fn post_start_command(container: &Container) -> Option<&[String]> {
    words(container.lifecycle.as_ref()?.post_start.as_ref()?.exec.as_ref())
}

/// Its pod is stuck with the container's first hook, for as long as the container runs.
pub(super) fn post_start_hangs(pod: &Pod, name: &str) -> bool {
    let command = find(pod, name).and_then(post_start_command);
    command.is_some_and(|words| words[1..] == ["hang"])
}

pub(super) fn has_pre_stop_command(pod: &Pod, name: &str) -> bool {
    let lifecycle = find(pod, name).and_then(|container| container.lifecycle.as_ref());
    let hook = lifecycle.and_then(|lifecycle| lifecycle.pre_stop.as_ref());
    words(hook.and_then(|hook| hook.exec.as_ref())).is_some()
}

/// The condition `Ready` and the statuses that it is about.
pub(super) fn readiness(pod: &Pod) -> Option<(Vec<&PodCondition>, Option<&Vec<ContainerStatus>>)> {
    let status = pod.status.as_ref()?;
    let conditions = status.conditions.iter().flatten();
    let ready = conditions.filter(|one| one.type_ == "Ready").collect();
    Some((ready, status.container_statuses.as_ref()))
}

/// In the bounds of what a runtime can be asked for.
pub(super) fn grace_seconds(pod: &Pod) -> i64 {
    let spec = pod.spec.as_ref();
    let seconds = spec.and_then(|spec| spec.termination_grace_period_seconds);
    seconds.unwrap_or(30).min(MAX_PERIOD_SECONDS)
}

/// The pod claims a volume, and the node has no driver for it.
pub(super) fn needs_driver(pod: &Pod) -> bool {
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_ref());
    let mut volumes = volumes.into_iter().flatten();
    volumes.any(|volume| volume.persistent_volume_claim.is_some())
}

pub(super) fn deadline_seconds(pod: &Pod) -> Option<i64> {
    pod.spec.as_ref()?.active_deadline_seconds
}

pub(super) fn image<'a>(pod: &'a Pod, name: &str) -> Option<&'a str> {
    let mut ephemeral = ephemeral_containers(pod).iter();
    match find(pod, name) {
        Some(container) => container.image.as_deref(),
        None => ephemeral
            .find(|container| container.name == name)?
            .image
            .as_deref(),
    }
}

pub(super) fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

pub(super) fn pod_name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

pub(super) fn phase(pod: &Pod) -> &str {
    pod.status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .unwrap_or_default()
}

pub(super) fn is_terminal(phase: &str) -> bool {
    matches!(phase, "Succeeded" | "Failed")
}

/// The statuses of all containers.
pub(super) fn statuses(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let lists = pod.status.iter().flat_map(|status| {
        [
            &status.init_container_statuses,
            &status.container_statuses,
            &status.ephemeral_container_statuses,
        ]
    });
    lists.flatten().flatten()
}

/// What the pod's status says of a condition.
pub(super) fn condition<'a>(pod: &'a Pod, type_: &str) -> Option<&'a str> {
    let mut conditions = pod.status.as_ref()?.conditions.iter().flatten();
    conditions
        .find(|one| one.type_ == type_)
        .map(|one| one.status.as_str())
}

/// What a status says, in few words.
pub(super) fn summary(pod: &Pod) -> String {
    let Some(status) = &pod.status else {
        return "no status".to_owned();
    };
    let containers = statuses(pod).map(|one| {
        let state = one.state.clone().unwrap_or_default();
        let text = match (state.running, state.terminated, state.waiting) {
            (Some(_), _, _) => "running".to_owned(),
            (None, Some(end), _) => format!("ended {}", end.exit_code),
            (None, None, waiting) => {
                format!(
                    "waiting {}",
                    waiting.and_then(|one| one.reason).unwrap_or_default()
                )
            }
        };
        format!("{} {text}", one.name)
    });
    let reason = status.reason.as_deref().unwrap_or_default();
    format!("{reason} [{}]", containers.collect::<Vec<_>>().join(", "))
}
