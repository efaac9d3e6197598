//! What is planned for a pod whose sandbox the runtime cannot read.

use rubelet_lifecycle::backoff::CrashBackoff;
use rubelet_lifecycle::plan::{PlanInput, plan_containers};
use rubelet_lifecycle::resize::ResizeNeeds;
use rubelet_lifecycle::restart::RestartGates;
use rubelet_lifecycle::status::conditions::ready_to_start_containers;
use rubelet_model::observation::{ContainerObservation, ProbeResults, SandboxState};
use serde_json::{Value, json};

use crate::sample::{at, container, exited, lines, observed, pod, running, sandbox};

fn check(spec: Value, containers: Vec<ContainerObservation>, expected: &[&str]) {
    let pod = pod(spec);
    let mut unreadable = sandbox("s0", 0, SandboxState::Unreadable);
    unreadable.primary_ip = None;
    let observation = observed(vec![unreadable], containers);
    let plan = plan_containers(&PlanInput {
        pod: &pod,
        observation: &observation,
        probes: &ProbeResults::default(),
        backoff: &CrashBackoff::default(),
        gates: RestartGates::default(),
        restarting_all: false,
        resize: &ResizeNeeds::default(),
        now: at(100),
    });
    assert_eq!(lines(&plan), expected, "{observation:#?}");
    let condition = ready_to_start_containers(&pod, &observation);
    assert_eq!(condition.status, "False");
}

fn two(policy: &str) -> Value {
    json!({"containers": [{"name": "a"}, {"name": "b"}], "restartPolicy": policy})
}

#[test]
fn what_runs_is_left_alone() {
    let both = || vec![container("a0", "a", running()), container("b0", "b", running())];
    check(two("Always"), both(), &["keep a0", "keep b0"]);
    let mut on_node = two("Always");
    on_node["hostNetwork"] = json!(true);
    check(on_node, both(), &["keep a0", "keep b0"]);
    let one_ended = vec![container("a0", "a", exited(0)), container("b0", "b", running())];
    check(two("Never"), one_ended, &["keep b0"]);
}

#[test]
fn a_start_needs_a_new_sandbox() {
    check(
        two("Always"),
        vec![container("a0", "a", exited(1)), container("b0", "b", running())],
        &[
            "kill pod SandboxChanged [\"b0\"]",
            "sandbox 1 Unreadable",
            "start Regular a Exited { exit_code: 1 }",
            "start Regular b Killed",
        ],
    );
    check(
        two("Always"),
        vec![],
        &[
            "kill pod SandboxChanged []",
            "sandbox 1 Unreadable",
            "start Regular a NeverStarted",
            "start Regular b NeverStarted",
        ],
    );
}

#[test]
fn what_has_ended_for_good_is_torn_down() {
    check(
        two("Never"),
        vec![container("a0", "a", exited(0)), container("b0", "b", exited(1))],
        &["kill pod AllContainersEnded []"],
    );
}
