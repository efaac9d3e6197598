//! What every plan keeps, for pods and runtimes of all shapes.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;
use proptest::prelude::*;
use rubelet_lifecycle::backoff::CrashBackoff;
use rubelet_lifecycle::hash::name_and_image_hash;
use rubelet_lifecycle::plan::{Action, Plan, PlanInput, plan_containers};
use rubelet_lifecycle::resize::ResizeNeeds;
use rubelet_lifecycle::restart::RestartGates;
use rubelet_model::observation::{
    ContainerObservation, ContainerState, PodObservation, ProbeResults, SandboxObservation, SandboxState,
};
use serde_json::{Value, json};

use crate::sample::{at, exited, observed, pod, running, sandbox, unknown};

fn plan(pod: &Pod, observation: &PodObservation) -> Plan {
    plan_containers(&PlanInput {
        pod,
        observation,
        probes: &ProbeResults::default(),
        backoff: &CrashBackoff::default(),
        gates: RestartGates::default(),
        restarting_all: false,
        resize: &ResizeNeeds::default(),
        now: at(1000),
    })
}

fn any_spec() -> impl Strategy<Value = Value> {
    let policy = prop_oneof![Just("Always"), Just("OnFailure"), Just("Never")];
    (
        policy,
        prop::collection::vec(any::<bool>(), 0..3),
        1..3usize,
        0..2usize,
    )
        .prop_map(|(policy, sidecars, regular, ephemeral)| {
            let init: Vec<Value> = sidecars
                .iter()
                .enumerate()
                .map(|(index, sidecar)| {
                    let mut container = json!({"name": format!("i{index}")});
                    if *sidecar {
                        container["restartPolicy"] = json!("Always");
                    }
                    container
                })
                .collect();
            let named = |prefix: &str, count: usize| -> Vec<Value> {
                (0..count)
                    .map(|index| json!({"name": format!("{prefix}{index}")}))
                    .collect()
            };
            json!({"restartPolicy": policy, "initContainers": init,
                "containers": named("c", regular), "ephemeralContainers": named("e", ephemeral)})
        })
}

fn any_state() -> impl Strategy<Value = ContainerState> {
    prop_oneof![
        1 => Just(ContainerState::Created),
        3 => Just(running()),
        2 => (0..2i32).prop_map(exited),
        1 => Just(unknown()),
    ]
}

fn any_runtime() -> impl Strategy<Value = (Vec<SandboxObservation>, Vec<ContainerObservation>)> {
    let name = prop_oneof![
        Just("i0"),
        Just("i1"),
        Just("c0"),
        Just("c1"),
        Just("e0"),
        Just("stray")
    ];
    let containers = prop::collection::vec((name, 0..2u32, any_state(), prop::bool::weighted(0.9)), 0..7);
    let sandboxes = prop::collection::vec(prop::bool::weighted(0.8), 0..3);
    (sandboxes, containers).prop_map(|(sandboxes, containers)| {
        let sandboxes = (0u32..)
            .zip(sandboxes)
            .map(|(attempt, ready)| {
                let state = if ready {
                    SandboxState::Ready
                } else {
                    SandboxState::NotReady
                };
                sandbox(&format!("s{attempt}"), attempt, state)
            })
            .collect();
        let containers = (0u32..)
            .zip(containers)
            .map(|(count, (name, attempt, state, same))| {
                let mut container =
                    ContainerObservation::new(format!("x{count}"), name, format!("s{attempt}"), state, at(1));
                container.restart_count = count;
                container.hash = name_and_image_hash(name, "image") + u64::from(!same);
                container
            })
            .collect();
        (sandboxes, containers)
    })
}

/// Does what a plan says, as a runtime that never fails. Started containers run, except init containers, which succeed.
fn execute(plan: &Plan, before: &PodObservation, counter: &mut u32) -> PodObservation {
    let mut sandboxes = before.sandboxes.clone();
    let mut containers = before.containers.clone();
    for action in &plan.actions {
        match action {
            Action::KillPod { stop, .. } => {
                for container in &mut containers {
                    if stop.containers.iter().any(|stop| stop.id == container.id) {
                        container.state = exited(137);
                    }
                }
                for sandbox in &mut sandboxes {
                    sandbox.state = SandboxState::NotReady;
                }
            }
            Action::KillContainers(kills) => {
                for container in &mut containers {
                    if kills.iter().any(|kill| kill.stop.id == container.id) {
                        container.state = exited(137);
                    }
                }
            }
            Action::RemoveContainer { id, .. } => containers.retain(|container| container.id != *id),
            Action::CreateSandbox(change) => {
                sandboxes.push(sandbox(
                    &format!("s{}", change.attempt),
                    change.attempt,
                    SandboxState::Ready,
                ));
            }
            Action::StartContainer(start) => {
                let newest = sandboxes
                    .iter()
                    .max_by_key(|sandbox| sandbox.attempt)
                    .expect("a sandbox");
                *counter += 1;
                let state = if start.kind == rubelet_model::observation::ContainerKind::Init {
                    exited(0)
                } else {
                    running()
                };
                let mut container = ContainerObservation::new(
                    format!("n{counter}"),
                    start.name.as_str(),
                    newest.id.clone(),
                    state,
                    at(2),
                );
                container.restart_count = 1000 + *counter;
                container.hash = name_and_image_hash(&start.name, "image");
                containers.push(container);
            }
            _ => {}
        }
    }
    observed(sandboxes, containers)
}

fn running_per_name(observation: &PodObservation) -> BTreeMap<&str, usize> {
    let mut count = BTreeMap::new();
    for container in observation.running_containers() {
        *count.entry(container.name.as_str()).or_default() += 1;
    }
    count
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn plans_converge_with_one_container_per_name(spec in any_spec(), runtime in any_runtime()) {
        let pod = pod(spec);
        let mut seen = observed(runtime.0, runtime.1);
        let mut counter = 0;
        for round in 0.. {
            let next = plan(&pod, &seen);
            prop_assert_eq!(&next, &plan(&pod, &seen));
            let kills_pod = next.actions.iter().any(|action| matches!(action, Action::KillPod { .. }));
            let creates = next.actions.iter().any(|action| matches!(action, Action::CreateSandbox(_)));
            // A name is started at most once, and nothing is started in a sandbox that was just stopped.
            let names: Vec<&str> = next.starts().map(|start| start.name.as_str()).collect();
            let unique: BTreeSet<&str> = names.iter().copied().collect();
            prop_assert_eq!(names.len(), unique.len());
            prop_assert!(!kills_pod || creates || names.is_empty());
            let after = execute(&next, &seen, &mut counter);
            for (name, count) in running_per_name(&after) {
                prop_assert!(count <= 1, "{count} of {name} run after {next:#?}");
            }
            // A pod that is over is stopped again and again, which changes nothing.
            if after == seen {
                prop_assert!(next.is_quiet() || kills_pod, "work without effect: {next:#?}");
                break;
            }
            prop_assert!(round < 12, "no end: {next:#?}");
            seen = after;
        }
    }

    #[test]
    fn a_deleted_pod_starts_nothing(spec in any_spec(), runtime in any_runtime()) {
        let mut pod = pod(spec);
        pod.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).expect("a time");
        prop_assert!(plan(&pod, &observed(runtime.0, runtime.1)).actions.is_empty());
    }
}
