//! One table per part of the plan.

use k8s_openapi::api::core::v1::Pod;
use rubelet_lifecycle::allocation::ResourceNumbers;
use rubelet_lifecycle::backoff::{BackoffKey, CrashBackoff};
use rubelet_lifecycle::plan::{Action, KillContainer, Plan, PlanInput, plan_containers};
use rubelet_lifecycle::resize::{ContainerChange, ResizeNeeds};
use rubelet_lifecycle::restart::RestartGates;
use rubelet_model::observation::{
    ContainerId, ContainerProbes, ContainerState, NetworkMode, PodObservation, ProbeResult, ProbeResults,
    SandboxState,
};
use serde_json::{Value, json};

use crate::sample::{
    at, container, exited, exited_at, in_sandbox, lines, observed, pod, running, sandbox, unknown,
};

/// The inputs that most tests leave alone.
#[derive(Default)]
struct Around {
    probes: ProbeResults,
    backoff: CrashBackoff,
    gates: RestartGates,
    restarting_all: bool,
    resize: ResizeNeeds,
}

impl Around {
    fn plan(&self, pod: &Pod, observation: &PodObservation) -> Plan {
        plan_containers(&PlanInput {
            pod,
            observation,
            probes: &self.probes,
            backoff: &self.backoff,
            gates: self.gates,
            restarting_all: self.restarting_all,
            resize: &self.resize,
            now: at(100),
        })
    }

    fn check(&self, spec: Value, observation: &PodObservation, expected: &[&str]) {
        let pod = pod(spec);
        assert_eq!(lines(&self.plan(&pod, observation)), expected, "{observation:#?}");
    }
}

fn check(spec: Value, observation: &PodObservation, expected: &[&str]) {
    Around::default().check(spec, observation, expected);
}

fn probed(id: &str, probes: ContainerProbes) -> Around {
    Around {
        probes: [(ContainerId::from(id), probes)].into_iter().collect(),
        ..Around::default()
    }
}

fn two() -> Value {
    json!({"containers": [{"name": "a"}, {"name": "b"}], "terminationGracePeriodSeconds": 30})
}

fn with_policy(mut spec: Value, policy: &str) -> Value {
    spec["restartPolicy"] = json!(policy);
    spec
}

#[test]
fn a_bad_sandbox_is_replaced() {
    check(
        two(),
        &observed(vec![], vec![]),
        &[
            "sandbox 0 NoSandbox",
            "start Regular a NeverStarted",
            "start Regular b NeverStarted",
        ],
    );
    check(
        two(),
        &in_sandbox(vec![
            container("a0", "a", running()),
            container("b0", "b", running()),
        ]),
        &["keep a0", "keep b0"],
    );

    let ready = |id: &str, attempt| sandbox(id, attempt, SandboxState::Ready);
    let dead = |id: &str, attempt| sandbox(id, attempt, SandboxState::NotReady);
    let starts = ["start Regular a NeverStarted", "start Regular b NeverStarted"];
    let expect = |sandboxes, first: &str, second: &str| {
        check(
            two(),
            &observed(sandboxes, vec![]),
            &[first, second, starts[0], starts[1]],
        );
    };
    expect(
        vec![dead("s0", 3)],
        "kill pod SandboxChanged []",
        "sandbox 4 NotReady",
    );
    expect(
        vec![ready("s0", 0), ready("s1", 1)],
        "kill pod SandboxChanged []",
        "sandbox 2 SeveralReady",
    );
    expect(
        vec![ready("s0", 0), dead("s1", 1)],
        "kill pod SandboxChanged []",
        "sandbox 2 NotReady",
    );
    let mut no_address = ready("s0", 0);
    no_address.primary_ip = Some(String::new());
    expect(
        vec![no_address.clone()],
        "kill pod SandboxChanged []",
        "sandbox 1 NoAddress",
    );
    let mut on_node = ready("s0", 0);
    on_node.network_mode = NetworkMode::Node;
    expect(
        vec![on_node.clone()],
        "kill pod SandboxChanged []",
        "sandbox 1 NetworkModeChanged",
    );

    // A runtime that says nothing about the network is believed, and the node's network needs no address.
    let mut silent = ready("s0", 0);
    silent.primary_ip = None;
    check(two(), &observed(vec![silent], vec![]), &starts);
    on_node.primary_ip = Some(String::new());
    let mut spec = two();
    spec["hostNetwork"] = json!(true);
    check(spec, &observed(vec![on_node], vec![]), &starts);
}

#[test]
fn a_new_sandbox_and_the_containers_of_the_old() {
    let dead = |containers| observed(vec![sandbox("s0", 0, SandboxState::NotReady)], containers);
    let seen = dead(vec![
        container("a0", "a", exited(0)),
        container("b0", "b", running()),
    ]);
    check(
        two(),
        &seen,
        &[
            r#"kill pod SandboxChanged ["b0"]"#,
            "sandbox 1 NotReady",
            "start Regular a Exited { exit_code: 0 }",
            "start Regular b Killed",
        ],
    );
    check(
        with_policy(two(), "OnFailure"),
        &seen,
        &[
            r#"kill pod SandboxChanged ["b0"]"#,
            "sandbox 1 NotReady",
            "start Regular b Killed",
        ],
    );
    check(
        with_policy(two(), "Never"),
        &seen,
        &[r#"kill pod NothingToRestart ["b0"]"#],
    );
    check(
        with_policy(two(), "Never"),
        &dead(vec![]),
        &[
            "kill pod SandboxChanged []",
            "sandbox 1 NotReady",
            "start Regular a NeverStarted",
            "start Regular b NeverStarted",
        ],
    );
    // A container may ask for its restart where its pod does not.
    let mut asking = with_policy(two(), "Never");
    asking["containers"][0]["restartPolicy"] = json!("Never");
    asking["containers"][0]["restartPolicyRules"] =
        json!([{"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}]);
    let ended = |code| {
        dead(vec![
            container("a0", "a", exited(code)),
            container("b0", "b", exited(1)),
        ])
    };
    check(
        asking.clone(),
        &ended(42),
        &[
            "kill pod SandboxChanged []",
            "sandbox 1 NotReady",
            "start Regular a Exited { exit_code: 42 }",
        ],
    );
    check(asking, &ended(41), &["kill pod NothingToRestart []"]);
    let done = dead(vec![
        container("a0", "a", exited(0)),
        container("b0", "b", exited(0)),
    ]);
    check(
        with_policy(two(), "OnFailure"),
        &done,
        &["kill pod NothingToRestart []"],
    );

    let mut spec = two();
    spec["initContainers"] = json!([{"name": "i"}]);
    check(
        spec,
        &dead(vec![
            container("i0", "i", exited(0)),
            container("a0", "a", exited(0)),
        ]),
        &[
            "kill pod SandboxChanged []",
            "remove i0 SandboxChanged",
            "sandbox 1 NotReady",
            "start Init i NeverStarted",
        ],
    );
}

#[test]
fn regular_containers() {
    let a = |state: ContainerState| {
        in_sandbox(vec![container("a0", "a", state), container("b0", "b", running())])
    };
    let expect = |policy: &str, state: ContainerState, expected: &[&str]| {
        let mut all = expected.to_vec();
        let place = all
            .iter()
            .position(|line| line.starts_with("start"))
            .unwrap_or(all.len());
        all.insert(place, "keep b0");
        check(with_policy(two(), policy), &a(state), &all);
    };
    expect("Always", exited(0), &["start Regular a Exited { exit_code: 0 }"]);
    expect("OnFailure", exited(0), &[]);
    expect(
        "OnFailure",
        exited(1),
        &["start Regular a Exited { exit_code: 1 }"],
    );
    expect("Never", exited(1), &[]);
    expect("Never", ContainerState::Created, &["start Regular a OnlyCreated"]);
    expect(
        "Never",
        unknown(),
        &["kill a0 UnknownState 30s", "start Regular a Killed"],
    );

    let mut changed = container("a0", "a", running());
    changed.hash += 1;
    let seen = in_sandbox(vec![changed, container("b0", "b", running())]);
    check(
        with_policy(two(), "Never"),
        &seen,
        &[
            "kill a0 DefinitionChanged 30s",
            "keep b0",
            "start Regular a Killed",
        ],
    );
    let ended = in_sandbox(vec![
        container("a0", "a", exited(0)),
        container("b0", "b", exited(1)),
    ]);
    check(
        with_policy(two(), "Never"),
        &ended,
        &["kill pod AllContainersEnded []"],
    );
}

#[test]
fn probes_and_resizes_of_regular_containers() {
    let seen = in_sandbox(vec![
        container("a0", "a", running()),
        container("b0", "b", running()),
    ]);
    let failed = Some(ProbeResult::Failure);
    let liveness = probed(
        "a0",
        ContainerProbes {
            liveness: failed,
            ..Default::default()
        },
    );
    liveness.check(
        two(),
        &seen,
        &[
            "kill a0 LivenessProbe { restarts: true } 30s",
            "keep b0",
            "start Regular a Killed",
        ],
    );
    liveness.check(
        with_policy(two(), "Never"),
        &seen,
        &["kill a0 LivenessProbe { restarts: false } 30s", "keep b0"],
    );
    let mut spec = two();
    spec["containers"][0]["startupProbe"] = json!({"terminationGracePeriodSeconds": 7});
    probed(
        "a0",
        ContainerProbes {
            startup: failed,
            ..Default::default()
        },
    )
    .check(
        spec,
        &seen,
        &[
            "kill a0 StartupProbe { restarts: true } 7s",
            "keep b0",
            "start Regular a Killed",
        ],
    );
    probed(
        "old",
        ContainerProbes {
            liveness: failed,
            ..Default::default()
        },
    )
    .check(two(), &seen, &["keep a0", "keep b0"]);
    let resized = Around {
        resize: needs(&["b"], &[("b", 1, 2)]),
        ..Around::default()
    };
    resized.check(
        two(),
        &seen,
        &[
            "kill b0 ResizeNeedsRestart 30s",
            "keep a0",
            "resize pod memory [] cpu []",
            "start Regular b Killed",
        ],
    );
}

/// Containers that have to be restarted, and the CPU requests that others have and are to have.
fn needs(restarts: &[&str], cpu: &[(&str, i64, i64)]) -> ResizeNeeds {
    let millis = |cpu_request_millis| ResourceNumbers {
        cpu_request_millis,
        ..ResourceNumbers::default()
    };
    let change = |(name, current, desired): &(&str, i64, i64)| {
        let (current, desired) = (millis(*current), millis(*desired));
        ((*name).to_owned(), ContainerChange { current, desired })
    };
    ResizeNeeds {
        differing: cpu.iter().map(change).collect(),
        restarts: restarts.iter().map(|name| (*name).to_owned()).collect(),
        pod: false,
    }
}

#[test]
fn what_runs_is_resized_before_anything_starts() {
    let resized = |needs: ResizeNeeds| Around {
        resize: needs,
        ..Around::default()
    };
    let both = || {
        in_sandbox(vec![
            container("a0", "a", running()),
            container("b0", "b", running()),
        ])
    };
    // What shrinks comes first.
    resized(needs(&[], &[("a", 1, 2), ("b", 3, 2)])).check(
        two(),
        &both(),
        &["keep a0", "keep b0", "resize memory [] cpu [b0, a0]"],
    );
    resized(needs(&[], &[("c", 1, 2)])).check(two(), &both(), &["keep a0", "keep b0"]);
    // A container that starts needs room in its pod's cgroup first.
    let ended = in_sandbox(vec![
        container("a0", "a", running()),
        container("b0", "b", exited(1)),
    ]);
    resized(needs(&[], &[("b", 1, 2)])).check(
        two(),
        &ended,
        &[
            "keep a0",
            "resize pod memory [] cpu []",
            "start Regular b Exited { exit_code: 1 }",
        ],
    );
    // A new sandbox is made under a cgroup with the new values.
    let gone = observed(
        vec![sandbox("s0", 0, SandboxState::NotReady)],
        vec![container("a0", "a", exited(1))],
    );
    let plan = resized(needs(&[], &[("a", 1, 2)])).plan(&pod(two()), &gone);
    assert!(
        !lines(&plan).iter().any(|line| line.starts_with("resize")),
        "{plan:?}"
    );
}

#[test]
fn restart_rules() {
    let rules = |action: &str, operator: &str, codes: &[i32]| {
        json!({"restartPolicy": "Never", "containers": [
            {"name": "a", "restartPolicy": "Never", "restartPolicyRules": [
                {"action": action, "exitCodes": {"operator": operator, "values": codes}}]},
            {"name": "b"}]})
    };
    let seen = in_sandbox(vec![
        container("a0", "a", exited(42)),
        container("b0", "b", running()),
    ]);
    let restarts = ["keep b0", "start Regular a Exited { exit_code: 42 }"];
    check(rules("Restart", "In", &[1, 42]), &seen, &restarts);
    check(rules("Restart", "In", &[1]), &seen, &["keep b0"]);
    check(rules("Restart", "NotIn", &[1]), &seen, &restarts);
    check(rules("Restart", "NotIn", &[42]), &seen, &["keep b0"]);
    check(rules("RestartAllContainers", "In", &[42]), &seen, &restarts);
    let no_restart_all = RestartGates {
        restart_all_containers: false,
        ..RestartGates::default()
    };
    Around {
        gates: no_restart_all,
        ..Around::default()
    }
    .check(rules("RestartAllContainers", "In", &[42]), &seen, &["keep b0"]);
    let no_rules = RestartGates {
        container_restart_rules: false,
        restart_all_containers: false,
    };
    Around {
        gates: no_rules,
        ..Around::default()
    }
    .check(rules("Restart", "In", &[42]), &seen, &["keep b0"]);
    // A container's policy comes before the pod's.
    let own = json!({"restartPolicy": "Never", "containers": [{"name": "a", "restartPolicy": "OnFailure"}, {"name": "b"}]});
    check(own, &seen, &restarts);
}

fn init_spec() -> Value {
    json!({"initContainers": [{"name": "i"}, {"name": "j"}], "containers": [{"name": "a"}]})
}

#[test]
fn init_containers() {
    let seen = |containers| in_sandbox(containers);
    check(init_spec(), &seen(vec![]), &["start Init i NeverStarted"]);
    check(
        init_spec(),
        &seen(vec![container("i0", "i", running())]),
        &["keep i0", "wait i InitContainerRunning"],
    );
    check(
        init_spec(),
        &seen(vec![container("i0", "i", exited(0))]),
        &["start Init j NeverStarted"],
    );
    check(
        init_spec(),
        &seen(vec![container("i0", "i", ContainerState::Created)]),
        &["start Init i OnlyCreated"],
    );
    // The first one may be gone by now.
    check(
        init_spec(),
        &seen(vec![container("j0", "j", exited(0))]),
        &["start Regular a NeverStarted"],
    );
    check(
        init_spec(),
        &seen(vec![container("j0", "j", exited(3))]),
        &["start Init j Exited { exit_code: 3 }"],
    );
    check(
        with_policy(init_spec(), "Never"),
        &seen(vec![container("j0", "j", exited(3))]),
        &[r#"kill pod InitContainerFailed { container: "j" } []"#],
    );
    check(
        init_spec(),
        &seen(vec![container("j0", "j", unknown())]),
        &["kill j0 UnknownState 2s", "start Init j Killed"],
    );
    check(
        with_policy(init_spec(), "Never"),
        &seen(vec![container("j0", "j", unknown())]),
        &[r#"kill pod InitContainerFailed { container: "j" } []"#],
    );
    // A regular container in this sandbox proves that all were done.
    check(
        init_spec(),
        &seen(vec![
            container("i0", "i", exited(5)),
            container("a0", "a", running()),
        ]),
        &["keep a0"],
    );
    // One that never ran may have been left in the making by what was before a restart of all.
    check(
        init_spec(),
        &seen(vec![
            container("i1", "i", running()),
            container("a0", "a", ContainerState::Created),
        ]),
        &["keep i1", "wait i InitContainerRunning"],
    );
    check(
        init_spec(),
        &seen(vec![
            container("j1", "j", exited(3)),
            container("a0", "a", ContainerState::Created),
        ]),
        &["start Init j Exited { exit_code: 3 }"],
    );
    check(
        init_spec(),
        &seen(vec![
            container("j1", "j", exited(0)),
            container("a0", "a", ContainerState::Created),
        ]),
        &["start Regular a OnlyCreated"],
    );
    // A regular container of an earlier sandbox proves nothing.
    let mut old = container("a0", "a", exited(1));
    old.sandbox_id = "gone".into();
    check(init_spec(), &seen(vec![old]), &["start Init i NeverStarted"]);
}

#[test]
fn out_of_memory_is_a_failure() {
    let mut killed = container("j0", "j", exited(0));
    if let ContainerState::Exited(exit) = &mut killed.state {
        exit.reason = "OOMKilled".to_owned();
    }
    check(
        init_spec(),
        &in_sandbox(vec![killed]),
        &["start Init j Exited { exit_code: 0 }"],
    );
}

#[test]
fn old_init_containers_are_pruned() {
    let instance = |id: &str, count, code| {
        let mut container = container(id, "i", exited(code));
        container.restart_count = count;
        container
    };
    check(
        init_spec(),
        &in_sandbox(vec![
            instance("i0", 0, 1),
            instance("i2", 2, 0),
            instance("i1", 1, 1),
        ]),
        &[
            "remove i1 OldInitContainer",
            "remove i0 OldInitContainer",
            "start Init j NeverStarted",
        ],
    );
}

fn sidecar_spec() -> Value {
    json!({"initContainers": [
        {"name": "s", "restartPolicy": "Always", "startupProbe": {}, "livenessProbe": {}},
        {"name": "i"},
        {"name": "t", "restartPolicy": "Always"}],
        "containers": [{"name": "a"}]})
}

#[test]
fn sidecars() {
    let success = Some(ProbeResult::Success);
    let started = || {
        probed(
            "s0",
            ContainerProbes {
                startup: success,
                ..Default::default()
            },
        )
    };
    let only_s = in_sandbox(vec![container("s0", "s", running())]);
    check(sidecar_spec(), &only_s, &["keep s0", "wait s StartupProbe"]);
    started().check(sidecar_spec(), &only_s, &["keep s0", "start Init i NeverStarted"]);
    probed(
        "s0",
        ContainerProbes {
            startup: Some(ProbeResult::Failure),
            ..Default::default()
        },
    )
    .check(
        sidecar_spec(),
        &only_s,
        &[
            "kill s0 StartupProbe { restarts: true } 2s",
            "start Sidecar s Killed",
        ],
    );
    // Both the restart and the next container start, in the order of the pod.
    let mut changed = container("s0", "s", running());
    changed.hash += 1;
    started().check(
        sidecar_spec(),
        &in_sandbox(vec![changed]),
        &[
            "kill s0 DefinitionChanged 2s",
            "start Sidecar s Killed",
            "start Init i NeverStarted",
        ],
    );
    // After the start a dead sidecar is restarted beside the others.
    check(
        sidecar_spec(),
        &in_sandbox(vec![
            container("s0", "s", exited(0)),
            container("t0", "t", running()),
            container("a0", "a", running()),
        ]),
        &["keep t0", "keep a0", "start Sidecar s Exited { exit_code: 0 }"],
    );
    let alive = in_sandbox(vec![
        container("s0", "s", running()),
        container("t0", "t", running()),
        container("a0", "a", running()),
    ]);
    probed(
        "s0",
        ContainerProbes {
            startup: success,
            liveness: Some(ProbeResult::Failure),
            ..Default::default()
        },
    )
    .check(
        sidecar_spec(),
        &alive,
        &[
            "kill s0 LivenessProbe { restarts: true } 2s",
            "keep t0",
            "keep a0",
            "start Sidecar s Killed",
        ],
    );
    // Sidecars do not keep a pod alive.
    check(
        with_policy(sidecar_spec(), "Never"),
        &in_sandbox(vec![
            container("s0", "s", running()),
            container("t0", "t", exited(1)),
            container("a0", "a", exited(0)),
        ]),
        &[r#"kill pod AllContainersEnded ["s0"]"#],
    );
}

#[test]
fn ephemeral_containers_start_once() {
    let mut spec = init_spec();
    spec["ephemeralContainers"] = json!([{"name": "e"}, {"name": "f"}]);
    check(
        spec,
        &in_sandbox(vec![
            container("e0", "e", exited(1)),
            container("i0", "i", running()),
        ]),
        &[
            "keep i0",
            "start Ephemeral f NeverStarted",
            "wait i InitContainerRunning",
        ],
    );
}

#[test]
fn crash_loops_wait() {
    let backing_off = |spec: &Value, list: &str| {
        let pod = pod(spec.clone());
        let spec = pod.spec.as_ref().expect("a specification");
        let container = match list {
            "init" => &spec.init_containers.as_ref().expect("init containers")[0],
            _ => &spec.containers[0],
        };
        let mut backoff = CrashBackoff::default();
        backoff.step(BackoffKey::new(&pod, container), at(80), at(80));
        Around {
            backoff,
            ..Around::default()
        }
    };
    let seen = in_sandbox(vec![
        container("a0", "a", exited_at(1, 95)),
        container("b0", "b", exited_at(1, 95)),
    ]);
    let around = backing_off(&two(), "regular");
    around.check(
        two(),
        &seen,
        &[
            "wait a CrashLoopBackOff { until: @105.000000000s, message: \"back-off 10s restarting failed container=a pod=pod_ns(uid)\" }",
            "start Regular b Exited { exit_code: 1 }",
        ],
    );
    assert_eq!(around.plan(&pod(two()), &seen).look_again_at(), Some(at(105)));
    let seen = in_sandbox(vec![
        container("a0", "a", exited_at(1, 90)),
        container("b0", "b", running()),
    ]);
    around.check(
        two(),
        &seen,
        &["keep b0", "start Regular a Exited { exit_code: 1 }"],
    );
    // The step that the backoff takes comes with the start.
    let plan = around.plan(&pod(two()), &seen);
    let start = plan.starts().next().expect("a start");
    assert_eq!(start.backoff.as_ref().map(|(_, exit)| *exit), Some(at(90)));

    // Nothing passes an init container that waits.
    let spec = json!({"initContainers": [{"name": "i"}], "ephemeralContainers": [{"name": "e"}], "containers": [{"name": "a"}]});
    let seen = in_sandbox(vec![container("i0", "i", exited_at(1, 95))]);
    backing_off(&spec, "init").check(
        spec.clone(),
        &seen,
        &[
            "start Ephemeral e NeverStarted",
            "wait i CrashLoopBackOff { until: @105.000000000s, message: \"back-off 10s restarting failed container=i pod=pod_ns(uid)\" }",
        ],
    );
}

#[test]
fn restart_of_all_containers() {
    let rule = json!([{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}]);
    let spec = json!({"restartPolicy": "Never",
        "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}],
        "containers": [{"name": "a", "restartPolicy": "Never", "restartPolicyRules": rule}, {"name": "b"}]});
    let around = Around {
        restarting_all: true,
        ..Around::default()
    };
    let seen = in_sandbox(vec![
        container("i0", "i", exited(0)),
        container("s0", "s", running()),
        container("a0", "a", exited(42)),
        container("b0", "b", running()),
    ]);
    around.check(
        spec.clone(),
        &seen,
        &[
            "kill b0 RestartAllContainers 0s",
            "kill s0 RestartAllContainers 0s",
            "remove b0 RestartAllContainers",
            "remove i0 RestartAllContainers",
            "remove s0 RestartAllContainers",
            "remove a0 RestartAllContainers",
        ],
    );
    around.check(
        spec,
        &observed(
            vec![sandbox("s0", 0, SandboxState::NotReady)],
            vec![container("a0", "a", exited(42))],
        ),
        &["kill pod SandboxChanged []", "sandbox 1 NotReady"],
    );
}

#[test]
fn strays_are_killed() {
    let mut newer = container("a1", "a", running());
    newer.restart_count = 1;
    let mut elsewhere = container("s0", "s", running());
    elsewhere.sandbox_id = "gone".into();
    check(
        json!({"initContainers": [{"name": "s", "restartPolicy": "Always"}], "containers": [{"name": "a"}]}),
        &in_sandbox(vec![elsewhere]),
        &["kill s0 OutsideSandbox 2s", "start Sidecar s NeverStarted"],
    );
    let mut gone = container("z0", "z", running());
    gone.recorded.termination_grace_period_seconds = Some(9);
    check(
        json!({"containers": [{"name": "a"}]}),
        &in_sandbox(vec![container("a0", "a", running()), newer, gone]),
        &["kill a0 Superseded 2s", "kill z0 NotInPod 9s", "keep a1"],
    );
}

#[test]
fn kill_events_read_as_upstreams() {
    let mut changed = container("a0", "a", running());
    changed.hash += 1;
    let plan = Around::default().plan(
        &pod(two()),
        &in_sandbox(vec![changed, container("b0", "b", unknown())]),
    );
    let Some(Action::KillContainers(kills)) = plan.actions.first() else {
        panic!("no kills: {plan:?}");
    };
    let messages: Vec<String> = kills.iter().map(KillContainer::message).collect();
    assert_eq!(
        messages,
        [
            "Container a definition changed, will be restarted",
            "Container is in \"unknown\" state, try killing it before restart"
        ]
    );
}

#[test]
fn nothing_is_planned_for_a_deleted_pod() {
    let mut deleted = pod(two());
    deleted.metadata =
        serde_json::from_value(json!({"uid": "uid", "deletionTimestamp": "2026-01-01T00:00:00Z"}))
            .expect("metadata");
    let seen = in_sandbox(vec![container("a0", "a", running())]);
    assert!(Around::default().plan(&deleted, &seen).actions.is_empty());
}

#[test]
fn a_pod_that_is_stopped_for_a_probe_is_looked_at_first() {
    let failed = |name| {
        let probes = ContainerProbes {
            liveness: Some(ProbeResult::Failure),
            ..ContainerProbes::default()
        };
        let mut spec = with_policy(json!({"containers": [{"name": "a"}]}), name);
        spec["containers"][0]["livenessProbe"] = json!({"tcpSocket": {"port": 80}});
        let seen = observed(
            vec![sandbox("s0", 0, SandboxState::Ready)],
            vec![container("a0", "a", running())],
        );
        probed("a0", probes).plan(&pod(spec), &seen)
    };
    assert_eq!(lines(&failed("Never")), [r#"kill pod AllContainersEnded ["a0"]"#]);
    assert!(failed("Never").kills_for_probes());
    assert!(failed("Always").kills_for_probes());
}
