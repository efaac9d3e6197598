//! Our answers to the oracle's questions about statuses, in the oracle's terms. Also used by the end-to-end comparison.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodCondition, PodStatus};
use k8s_openapi::serde::de::DeserializeOwned;
use rubelet_lifecycle::status::conditions::{
    all_containers_restarting, containers_ready, pod_initialized, pod_ready, ready_to_start_containers,
};
use rubelet_lifecycle::status::{
    NodeFacts, Phase, PhaseFacts, PodResources, Probes, RuntimeFacts, Settling, StartFailure, StatusBase,
    StatusGates, StatusInputs, generate_status, is_static_pod, pod_phase, published_status, settle,
};
use rubelet_model::Timestamp;
use rubelet_model::observation::{
    ContainerExit, ContainerObservation, ContainerState, NetworkMode, PodObservation, SandboxObservation,
    SandboxState,
};
use serde_json::{Value, json};

const NOW: Timestamp = Timestamp::from_unix_seconds(1_800_000_000);

fn read<T: DeserializeOwned>(value: &Value) -> T {
    match serde_json::from_value(value.clone()) {
        Ok(read) => read,
        Err(error) => panic!("{error}: {value}"),
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn seconds(value: &Value) -> Timestamp {
    Timestamp::from_unix_seconds(value.as_i64().unwrap_or_default())
}

fn container(seen: &Value) -> ContainerObservation {
    let started_at = seconds(&seen["startedAt"]);
    let state = match seen["state"].as_str() {
        Some("running") => ContainerState::Running { started_at },
        Some("created") => ContainerState::Created,
        Some("exited") => ContainerState::Exited(ContainerExit {
            exit_code: seen["exitCode"]
                .as_i64()
                .and_then(|code| i32::try_from(code).ok())
                .unwrap_or_default(),
            reason: text(&seen["reason"]),
            message: text(&seen["message"]),
            started_at,
            finished_at: seconds(&seen["finishedAt"]),
        }),
        _ => ContainerState::Unknown { started_at },
    };
    let created_at = seconds(&seen["createdAt"]);
    let mut observed = ContainerObservation::new(
        text(&seen["id"]),
        text(&seen["name"]),
        text(&seen["sandbox"]),
        state,
        created_at,
    );
    observed.image = text(&seen["image"]);
    observed.image_ref = text(&seen["imageRef"]);
    observed.restart_count = seen["restartCount"]
        .as_u64()
        .and_then(|n| u32::try_from(n).ok())
        .unwrap_or_default();
    observed
}

/// The lists keep the question's order, as the oracle does.
pub(crate) fn observation(seen: &Value) -> PodObservation {
    let mut observed = PodObservation::empty("u", "n", "p", NOW);
    for one in seen["sandboxes"].as_array().into_iter().flatten() {
        let state = if one["ready"] == true {
            SandboxState::Ready
        } else {
            SandboxState::NotReady
        };
        let mut sandbox = SandboxObservation::new(text(&one["id"]), 0, state, NOW);
        sandbox.network_mode = if one["host"] == true {
            NetworkMode::Node
        } else {
            NetworkMode::Pod
        };
        sandbox.ips = vec![text(&one["ip"])];
        sandbox.primary_ip = Some(text(&one["ip"]));
        observed.sandboxes.push(sandbox);
    }
    observed.containers = seen["containers"]
        .as_array()
        .into_iter()
        .flatten()
        .map(container)
        .collect();
    observed
}

fn conditions(input: &Value) -> Value {
    let pod: Pod = read(&input["pod"]);
    let old: PodStatus = read(&input["old"]);
    let all: Option<Vec<ContainerStatus>> = read(&input["statuses"]);
    let known: Vec<PodCondition> = read(&input["conditions"]);
    let phase = Phase::parse(input["phase"].as_str().unwrap_or_default());
    let seen = observation(&input["observation"]);
    let gates = StatusGates::default();
    json!({
        "containersReady": containers_ready(&pod, all.as_deref(), phase),
        "ready": pod_ready(&pod, &known, all.as_deref(), phase),
        "initialized": pod_initialized(&pod, &old, all.as_deref(), phase, gates),
        "readyToStart": ready_to_start_containers(&pod, &seen),
        "allRestarting": all_containers_restarting(&pod, &seen, &old, phase),
    })
}

fn phase(input: &Value) -> Value {
    let pod: Pod = read(&input["pod"]);
    let statuses: Vec<ContainerStatus> = read(&input["statuses"]);
    let facts = PhaseFacts {
        terminal: input["terminal"] == true,
        static_pod: is_static_pod(&pod),
        initialized: input["initialized"] == true,
    };
    pod_phase(
        &pod.spec.unwrap_or_default(),
        &statuses,
        facts,
        StatusGates::default(),
    )
    .as_str()
    .into()
}

/// Container statuses before probes: `started` is compared only where it is carried over, so it is left out, as is `ready`.
fn containers(input: &Value) -> Value {
    let pod: Pod = read(&input["pod"]);
    let is_init = input["init"] == true;
    let previous: Option<Vec<ContainerStatus>> = read(&input["previous"]);
    let restarting = json!({"type": "AllContainersRestarting", "status": "True"});
    let mut old = PodStatus::default();
    if input["restarting"] == true {
        old.conditions = Some(vec![read(&restarting)]);
    }
    if is_init {
        old.init_container_statuses = previous;
    } else {
        old.container_statuses = previous;
    }
    let failures = input["failures"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, reason)| {
            let failure = StartFailure {
                reason: text(reason),
                message: format!("because of {name}"),
            };
            (name.clone(), failure)
        });
    let seen = observation(&input["observation"]);
    let inputs = StatusInputs {
        pod: &pod,
        observation: &seen,
        previous: Some(&old),
        mirror: None,
        terminal: false,
        eviction: None,
        start_failures: &failures.collect(),
        probes: &Probes::default(),
        resize_conditions: &[],
        qos_class: "Burstable",
        pod_resources: &PodResources::default(),
        actuated: None,
        allocated_resources_status: &BTreeMap::new(),
        image_volume_references: &BTreeMap::new(),
        runtime: RuntimeFacts {
            name: "containerd",
            recursive_read_only: false,
        },
        node: NodeFacts {
            host_ips: &[],
            prefers_ipv6: false,
        },
        gates: StatusGates::default(),
        now: NOW,
    };
    let status = generate_status(&inputs).status;
    let list = if is_init {
        status.init_container_statuses
    } else {
        status.container_statuses
    };
    json!(list.unwrap_or_default())
}

fn merged(input: &Value) -> Value {
    let (pod, old, new): (Pod, PodStatus, PodStatus) =
        (read(&input["pod"]), read(&input["old"]), read(&input["new"]));
    json!(published_status(
        &pod,
        &old,
        &new,
        input["mayRun"] == true,
        StatusGates::default(),
        NOW
    ))
}

fn settled(input: &Value) -> Value {
    let pod: Pod = read(&input["pod"]);
    let step = |base: StatusBase, new: &Value| {
        let settling = Settling {
            pod: &pod,
            base,
            force: pod.metadata.deletion_timestamp.is_some(),
            gates: StatusGates::default(),
            now: NOW,
        };
        settle(&settling, read(new))
    };
    let first = step(StatusBase::of(&pod, None, None), &input["old"]);
    let second = step(StatusBase::of(&pod, Some(&first.status), None), &input["new"]);
    json!({"status": second.status, "changed": second.changed})
}

/// Our answer, comparable.
pub(crate) fn our_answer(op: &str, input: &Value) -> Value {
    comparable(
        op,
        match op {
            "status.conditions" => conditions(input),
            "status.containers" => containers(input),
            "status.merge" => merged(input),
            "status.phase" => phase(input),
            "status.settle" => settled(input),
            _ => panic!("no operation {op}"),
        },
    )
}

/// Without what says nothing: nulls, zero values and empty lists, and times of the asking, which differ between two machines.
pub(crate) fn comparable(op: &str, answer: Value) -> Value {
    match answer {
        Value::Object(fields) => {
            let kept = fields.into_iter().filter(|(name, _)| {
                let probed = op == "status.containers" && (name == "started" || name == "ready");
                !probed && name != "startTime"
            });
            let kept = kept.map(|(name, value)| {
                let is_now = name == "lastTransitionTime"
                    && value
                        .as_str()
                        .is_some_and(|time| !time.starts_with("2026-01-01T"));
                let value = if is_now {
                    "now".into()
                } else {
                    comparable(op, value)
                };
                (name, value)
            });
            Value::Object(kept.filter(|(_, value)| !says_nothing(value)).collect())
        }
        Value::Array(list) => Value::Array(list.into_iter().map(|value| comparable(op, value)).collect()),
        other => other,
    }
}

fn says_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(_) => false,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}
