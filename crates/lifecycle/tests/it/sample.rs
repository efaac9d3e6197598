//! Pods and observations for the tests of this crate.

use k8s_openapi::api::core::v1::Pod;
use rubelet_lifecycle::hash::name_and_image_hash;
use rubelet_lifecycle::plan::{Action, KillContainer, Plan};
use rubelet_lifecycle::resize::ContainerUpdate;
use rubelet_model::Timestamp;
use rubelet_model::observation::{
    ContainerExit, ContainerObservation, ContainerState, PodObservation, PodUid, SandboxObservation,
    SandboxState,
};
use rubelet_resources::amounts::Amounts;
use rubelet_resources::{CgroupVersion, NodeFacts};
use serde_json::{Value, json};

pub(crate) fn at(seconds: i64) -> Timestamp {
    Timestamp::from_unix_seconds(seconds)
}

/// A pod with this specification; containers without an image get one.
pub(crate) fn pod(mut spec: Value) -> Pod {
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        for container in spec[list].as_array_mut().into_iter().flatten() {
            if container["image"].is_null() {
                container["image"] = json!("image");
            }
        }
    }
    if spec["containers"].is_null() {
        spec["containers"] = json!([]);
    }
    serde_json::from_value(json!({
        "metadata": {"name": "pod", "namespace": "ns", "uid": "uid"},
        "spec": spec,
    }))
    .expect("a pod")
}

pub(crate) fn running() -> ContainerState {
    ContainerState::Running { started_at: at(1) }
}

pub(crate) fn unknown() -> ContainerState {
    ContainerState::Unknown { started_at: at(1) }
}

pub(crate) fn exited(exit_code: i32) -> ContainerState {
    exited_at(exit_code, 10)
}

pub(crate) fn exited_at(exit_code: i32, second: i64) -> ContainerState {
    ContainerState::Exited(ContainerExit {
        exit_code,
        reason: String::new(),
        message: String::new(),
        started_at: at(1),
        finished_at: at(second),
    })
}

/// A container in sandbox `s0`, made from the image that [`pod`] gives.
pub(crate) fn container(id: &str, name: &str, state: ContainerState) -> ContainerObservation {
    let mut container = ContainerObservation::new(id, name, "s0", state, at(1));
    container.hash = name_and_image_hash(name, "image");
    container
}

pub(crate) fn sandbox(id: &str, attempt: u32, state: SandboxState) -> SandboxObservation {
    let mut sandbox = SandboxObservation::new(id, attempt, state, at(0));
    sandbox.primary_ip = Some("10.0.0.1".to_owned());
    sandbox
}

pub(crate) fn observed(
    sandboxes: Vec<SandboxObservation>,
    containers: Vec<ContainerObservation>,
) -> PodObservation {
    let identity = (PodUid::from("uid"), "ns".to_owned(), "pod".to_owned());
    PodObservation::new(identity, sandboxes, containers, at(100))
}

/// A good sandbox `s0` with these containers.
pub(crate) fn in_sandbox(containers: Vec<ContainerObservation>) -> PodObservation {
    observed(vec![sandbox("s0", 0, SandboxState::Ready)], containers)
}

/// A node with cgroup v2, swap and 16 GiB of memory.
pub(crate) fn node_facts() -> NodeFacts {
    NodeFacts {
        cgroup: CgroupVersion::V2,
        page_size_bytes: 4096,
        huge_page_sizes: Vec::new(),
        memory_capacity_bytes: 1 << 34,
        swap_capacity_bytes: 1 << 30,
        has_swap_controller: true,
        allocatable: Amounts::default(),
    }
}

/// One line per action.
pub(crate) fn lines(plan: &Plan) -> Vec<String> {
    plan.actions.iter().flat_map(lines_of).collect()
}

fn lines_of(action: &Action) -> Vec<String> {
    let line = match action {
        Action::KillContainers(kills) => {
            let line = |kill: &KillContainer| {
                format!(
                    "kill {} {:?} {}s",
                    kill.stop.id, kill.reason, kill.stop.grace_seconds
                )
            };
            return kills.iter().map(line).collect();
        }
        Action::KillPod { reason, stop } => {
            let ids: Vec<&str> = stop.containers.iter().map(|stop| stop.id.as_str()).collect();
            format!("kill pod {reason:?} {ids:?}")
        }
        Action::RemoveContainer { id, reason, .. } => format!("remove {id} {reason:?}"),
        Action::CreateSandbox(change) => format!("sandbox {} {:?}", change.attempt, change.reason),
        Action::Keep { id, .. } => format!("keep {id}"),
        Action::StartContainer(start) => format!("start {:?} {} {:?}", start.kind, start.name, start.reason),
        Action::Resize(resize) => {
            let ids = |updates: &[ContainerUpdate]| {
                let ids: Vec<&str> = updates.iter().map(|update| update.id.as_str()).collect();
                ids.join(", ")
            };
            let pod = if resize.pod { "pod " } else { "" };
            format!(
                "resize {pod}memory [{}] cpu [{}]",
                ids(&resize.memory),
                ids(&resize.cpu)
            )
        }
        Action::Wait(wait) => format!("wait {} {:?}", wait.name, wait.reason),
        other => format!("{other:?}"),
    };
    vec![line]
}
