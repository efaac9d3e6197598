use rubelet_lifecycle::termination::{
    StopCause, can_leave_sandboxes, grace_seconds, runtime_grace_seconds, stop_orphan, stop_pod,
};
use rubelet_model::observation::{ContainerState, SandboxState};
use serde_json::{Value, json};

use crate::sample::{container, exited, in_sandbox, observed, pod, running, sandbox, unknown};

#[test]
fn the_runtime_gets_what_is_left() {
    let check = |grace, hook, turn, expected| assert_eq!(runtime_grace_seconds(grace, hook, turn), expected);
    check(30, 0, 0, 30);
    check(30, 10, 5, 15);
    check(30, 29, 0, 2);
    check(0, 0, 0, 2);
    check(i64::MIN, 1, 1, 2);
}

#[test]
fn the_grace_period_comes_from_the_nearest_source() {
    let check = |deletion: Option<i64>, of_pod: Option<i64>, cause, requested, expected| {
        let mut pod = pod(json!({"terminationGracePeriodSeconds": of_pod, "containers": [
            {"name": "a", "livenessProbe": {"terminationGracePeriodSeconds": 5}, "startupProbe": {}}]}));
        pod.metadata.deletion_grace_period_seconds = deletion;
        let container = container("a0", "a", running());
        assert_eq!(grace_seconds(&pod, &container, cause, requested), expected);
    };
    check(None, Some(30), StopCause::Other, None, 30);
    check(None, Some(30), StopCause::LivenessProbe, None, 5);
    check(None, Some(30), StopCause::StartupProbe, None, 30);
    check(Some(9), Some(30), StopCause::LivenessProbe, None, 9);
    check(Some(9), Some(30), StopCause::LivenessProbe, Some(0), 0);
    check(None, None, StopCause::LivenessProbe, None, 2);
}

fn order(spec: Value, running_names: &[&str]) -> Vec<(String, Vec<String>)> {
    let containers = running_names
        .iter()
        .map(|name| container(name, name, running()))
        .collect();
    let stop = stop_pod(&pod(spec), &in_sandbox(containers), None);
    stop.containers
        .into_iter()
        .map(|stop| (stop.name, stop.waits_for))
        .collect()
}

#[test]
fn sidecars_stop_last_and_in_reverse() {
    let spec = || {
        json!({"initContainers": [
            {"name": "s", "restartPolicy": "Always"}, {"name": "i"},
            {"name": "t", "restartPolicy": "Always"}, {"name": "u", "restartPolicy": "Always"}],
            "containers": [{"name": "a"}, {"name": "b"}]})
    };
    let check = |running: &[&str], expected: &[(&str, &[&str])]| {
        let found = order(spec(), running);
        let found: Vec<(&str, Vec<&str>)> = found
            .iter()
            .map(|(name, waits)| (name.as_str(), waits.iter().map(String::as_str).collect()))
            .collect();
        let expected: Vec<(&str, Vec<&str>)> = expected
            .iter()
            .map(|(name, waits)| (*name, waits.to_vec()))
            .collect();
        assert_eq!(found, expected);
    };
    check(
        &["a", "b", "s", "t", "u"],
        &[
            ("a", &[]),
            ("b", &[]),
            ("s", &["a", "b", "t"]),
            ("t", &["a", "b", "u"]),
            ("u", &["a", "b"]),
        ],
    );
    check(&["b", "s", "u"], &[("b", &[]), ("s", &["b", "u"]), ("u", &["b"])]);
    check(&["i", "s"], &[("i", &[]), ("s", &[])]);
}

#[test]
fn hooks_run_only_with_time_to_run() {
    let pod =
        pod(json!({"containers": [{"name": "a", "lifecycle": {"preStop": {"sleep": {"seconds": 1}}}}]}));
    let seen = in_sandbox(vec![container("a0", "a", running())]);
    let check = |requested, expected| {
        assert_eq!(
            stop_pod(&pod, &seen, Some(requested)).containers[0]
                .pre_stop
                .is_some(),
            expected
        );
    };
    check(1, true);
    check(0, false);
}

#[test]
fn an_orphan_is_stopped_with_what_was_recorded() {
    let mut a = container("a0", "a", running());
    a.recorded.termination_grace_period_seconds = Some(30);
    a.recorded.pre_stop_handler = Some(r#"{"sleep":{"seconds":1}}"#.to_owned());
    let seen = in_sandbox(vec![a, container("b0", "b", exited(0))]);
    let stop = stop_orphan(&seen, Some(1));
    assert_eq!(stop.containers.len(), 1);
    assert_eq!(
        (
            stop.containers[0].grace_seconds,
            stop.containers[0].pre_stop.is_some()
        ),
        (1, true)
    );
    assert_eq!(stop_orphan(&seen, None).containers[0].grace_seconds, 30);
    assert_eq!(stop.sandboxes.len(), 1);
}

#[test]
fn a_sandbox_is_left_only_when_nothing_can_run() {
    let check = |state: SandboxState, containers: &[ContainerState], expected: bool| {
        let containers = containers.iter().map(|state| container("a0", "a", state.clone()));
        let seen = observed(vec![sandbox("s0", 0, state)], containers.collect());
        assert_eq!(can_leave_sandboxes(&seen), expected, "{seen:?}");
    };
    check(SandboxState::NotReady, &[], true);
    check(
        SandboxState::NotReady,
        &[exited(1), ContainerState::Created],
        true,
    );
    check(SandboxState::Unreadable, &[exited(0)], true);
    check(SandboxState::Unreadable, &[exited(0), running()], false);
    check(SandboxState::NotReady, &[unknown()], false);
    check(SandboxState::Ready, &[exited(0)], false);
}
