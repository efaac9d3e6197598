//! The plan of the whole pod: what comes before, after and instead of its containers' part.

use k8s_openapi::api::core::v1::Pod;
use rubelet_lifecycle::backoff::CrashBackoff;
use rubelet_lifecycle::plan::{
    CgroupCheck, HostFacts, Missing, Plan, PlanInput, PodPlanFacts, PodPlanInput, plan_pod,
};
use rubelet_lifecycle::pod_state::Retry;
use rubelet_lifecycle::resize::ResizeNeeds;
use rubelet_lifecycle::restart::RestartGates;
use rubelet_model::observation::{
    ContainerId, ContainerProbes, PodObservation, ProbeResult, ProbeResults, SandboxState,
};
use serde_json::{Value, json};

use crate::sample::{at, container, exited, in_sandbox, lines, observed, pod, running, sandbox};

const VOLUMES: &str = "SetUpVolumes";
const CGROUP: &str = "CreateDirectoriesAndCgroup { reason: NewSandbox }";
const SANDBOX: &str = "sandbox 0 NoSandbox";
const START: &str = "start Regular a NeverStarted";

/// A pod whose directories and cgroup this run of the agent has made.
fn prepared() -> PodPlanFacts {
    PodPlanFacts {
        host: HostFacts {
            is_prepared: true,
            ..HostFacts::default()
        },
        ..PodPlanFacts::default()
    }
}

fn plan_with(
    pod: &Pod,
    observation: &PodObservation,
    probes: &ProbeResults,
    facts: &PodPlanFacts,
    previous: Option<&Plan>,
) -> Plan {
    plan_pod(&PodPlanInput {
        containers: PlanInput {
            pod,
            observation,
            probes,
            backoff: &CrashBackoff::default(),
            gates: RestartGates::default(),
            restarting_all: false,
            resize: &ResizeNeeds::default(),
            now: at(100),
        },
        facts,
        previous,
    })
}

fn check(spec: Value, observation: &PodObservation, facts: &PodPlanFacts, expected: &[&str]) {
    let plan = plan_with(&pod(spec), observation, &ProbeResults::default(), facts, None);
    assert_eq!(lines(&plan), expected, "{facts:#?}");
}

fn one() -> Value {
    json!({"containers": [{"name": "a"}]})
}

fn with(mut spec: Value, field: &str, value: Value) -> Value {
    spec[field] = value;
    spec
}

fn nothing() -> PodObservation {
    observed(vec![], vec![])
}

fn a_runs() -> PodObservation {
    in_sandbox(vec![container("a0", "a", running())])
}

#[test]
fn what_a_sandbox_needs_comes_before_it() {
    check(one(), &nothing(), &prepared(), &[CGROUP, SANDBOX, START]);
    let volumes = json!([{"name": "v", "emptyDir": {}}]);
    let with_volumes = with(one(), "volumes", volumes);
    check(
        with_volumes,
        &nothing(),
        &prepared(),
        &[VOLUMES, CGROUP, SANDBOX, START],
    );
    let namespaced = with(
        with(one(), "hostUsers", json!(false)),
        "runtimeClassName",
        json!("vm"),
    );
    let handler = r#"FindRuntimeHandler { class: "vm", reason: NewSandbox }"#;
    let ids = "AllocateUserIds { reason: NewSandbox }";
    check(
        namespaced.clone(),
        &nothing(),
        &prepared(),
        &[handler, CGROUP, ids, SANDBOX, START],
    );
    let mut facts = prepared();
    facts.host.has_runtime_handler = true;
    facts.host.has_user_ids = true;
    check(namespaced, &nothing(), &facts, &[CGROUP, SANDBOX, START]);
    // A pod is stopped before anything is made for its next sandbox.
    let dead = observed(vec![sandbox("s0", 0, SandboxState::NotReady)], vec![]);
    let killed = "kill pod SandboxChanged []";
    check(
        one(),
        &dead,
        &prepared(),
        &[killed, CGROUP, "sandbox 1 NotReady", START],
    );
}

#[test]
fn a_start_in_a_sandbox_of_another_run_of_the_agent_prepares_the_host() {
    let ended = in_sandbox(vec![container("a0", "a", exited(1))]);
    let start = "start Regular a Exited { exit_code: 1 }";
    let cgroup = "CreateDirectoriesAndCgroup { reason: AgentRestarted }";
    check(one(), &ended, &PodPlanFacts::default(), &[cgroup, start]);
    check(one(), &ended, &prepared(), &[start]);
    let namespaced = with(one(), "hostUsers", json!(false));
    let ids = "AllocateUserIds { reason: AgentRestarted }";
    check(
        namespaced,
        &ended,
        &PodPlanFacts::default(),
        &[cgroup, ids, start],
    );
}

#[test]
fn a_pod_at_rest_only_refreshes_its_volumes() {
    check(one(), &a_runs(), &prepared(), &["keep a0"]);
    let volumes = json!([{"name": "v", "emptyDir": {}}]);
    let with_volumes = with(one(), "volumes", volumes);
    check(
        with_volumes,
        &a_runs(),
        &prepared(),
        &["keep a0", "RefreshVolumes"],
    );
}

#[test]
fn the_cgroup_of_a_running_pod_is_checked_once() {
    let of = |cgroup| PodPlanFacts {
        host: HostFacts {
            cgroup,
            ..HostFacts::default()
        },
        ..PodPlanFacts::default()
    };
    check(one(), &a_runs(), &of(CgroupCheck::Unchecked), &["CheckCgroup"]);
    check(one(), &a_runs(), &of(CgroupCheck::Present), &["keep a0"]);
    check(
        one(),
        &a_runs(),
        &of(CgroupCheck::Lost),
        &[r#"kill pod CgroupLost ["a0"]"#],
    );
    // Without a regular container that runs there is nothing to lose.
    check(
        one(),
        &nothing(),
        &of(CgroupCheck::Lost),
        &[CGROUP, SANDBOX, START],
    );
    // One that this run of the agent has made is there.
    check(one(), &a_runs(), &prepared(), &["keep a0"]);
}

#[test]
fn the_network_and_missing_providers_block_a_start_and_nothing_else() {
    let down = PodPlanFacts {
        network_problem: Some("no plugin".to_owned()),
        ..prepared()
    };
    let blocked = r#"Block(NetworkNotReady { problem: "no plugin" })"#;
    check(one(), &nothing(), &down, &[blocked]);
    check(one(), &a_runs(), &down, &["keep a0"]);
    let on_host = with(one(), "hostNetwork", json!(true));
    check(on_host, &nothing(), &down, &[CGROUP, SANDBOX, START]);

    let missing = |text: &str, is_claim| Missing {
        text: text.to_owned(),
        is_claim,
    };
    let lacks = |missing| PodPlanFacts {
        missing,
        ..prepared()
    };
    let volumes = with(one(), "volumes", json!([{"name": "v", "emptyDir": {}}]));
    check(
        volumes,
        &nothing(),
        &lacks(vec![missing("x", false)]),
        &[
            r#"ShowMissing { message: "x" }"#,
            VOLUMES,
            r#"Block(ProviderMissing { message: "x" })"#,
        ],
    );
    let both = lacks(vec![missing("x", false), missing("claim", true)]);
    check(
        one(),
        &nothing(),
        &both,
        &[
            r#"ShowMissing { message: "x; claim" }"#,
            r#"Block(ClaimsUnprepared { message: "claim" })"#,
        ],
    );
    check(one(), &a_runs(), &both, &["keep a0"]);
}

#[test]
fn a_block_keeps_the_waits_of_containers() {
    let spec = json!({"containers": [{"name": "a"}, {"name": "b"}]});
    let seen = in_sandbox(vec![container("a0", "a", exited(1))]);
    let pod = pod(spec);
    let key =
        rubelet_lifecycle::backoff::BackoffKey::new(&pod, &pod.spec.as_ref().expect("spec").containers[0]);
    let mut backoff = CrashBackoff::default();
    backoff.step(key, at(10), at(99));
    let facts = PodPlanFacts {
        network_problem: Some("down".to_owned()),
        ..prepared()
    };
    let plan = plan_pod(&PodPlanInput {
        containers: PlanInput {
            pod: &pod,
            observation: &seen,
            probes: &ProbeResults::default(),
            backoff: &backoff,
            gates: RestartGates::default(),
            restarting_all: false,
            resize: &ResizeNeeds::default(),
            now: at(12),
        },
        facts: &facts,
        previous: None,
    });
    assert!(plan.look_again_at().is_some(), "{plan:#?}");
    assert_eq!(plan.starts().count(), 0);
    assert_eq!(plan.actions.len(), 2, "{plan:#?}");
}

#[test]
fn a_kill_for_a_probe_needs_a_fresh_look() {
    let probes = ContainerProbes {
        liveness: Some(ProbeResult::Failure),
        ..ContainerProbes::default()
    };
    let probes: ProbeResults = [(ContainerId::from("a0"), probes)].into_iter().collect();
    let plan = |is_confirmed| {
        let facts = PodPlanFacts {
            is_confirmed,
            ..prepared()
        };
        lines(&plan_with(&pod(one()), &a_runs(), &probes, &facts, None))
    };
    assert_eq!(plan(false), ["LookAgain { reason: ProbeFailed }"]);
    assert_eq!(
        plan(true),
        [
            "kill a0 LivenessProbe { restarts: true } 2s",
            "start Regular a Killed"
        ]
    );
}

#[test]
fn a_plan_without_effect_is_not_repeated_at_once() {
    let ended = in_sandbox(vec![container("a0", "a", exited(1))]);
    let none = ProbeResults::default();
    // What was prepared meanwhile makes no other plan of it.
    let first = plan_with(&pod(one()), &ended, &none, &PodPlanFacts::default(), None);
    assert!(!first.is_repeated());
    let again = plan_with(&pod(one()), &ended, &none, &prepared(), Some(&first));
    assert_eq!(lines(&again), ["Block(NoEffect)"]);
    assert!(again.is_repeated());
}

#[test]
fn a_pod_without_its_sandbox_that_may_not_restart_fails() {
    let never = with(one(), "restartPolicy", json!("Never"));
    let mut created = container("a0", "a", rubelet_model::observation::ContainerState::Created);
    created.sandbox_id = "s0".into();
    let seen = observed(vec![sandbox("s0", 1, SandboxState::NotReady)], vec![created]);
    let none = ProbeResults::default();
    let first = plan_with(&pod(never.clone()), &seen, &none, &prepared(), None);
    assert_eq!(lines(&first), ["kill pod NothingToRestart []"]);
    let again = plan_with(&pod(never), &seen, &none, &prepared(), Some(&first));
    assert!(lines(&again)[0].contains("SandboxLost"), "{again:#?}");
    assert!(again.is_repeated());
}

#[test]
fn containers_that_ended_for_good_do_not_start() {
    let facts = PodPlanFacts {
        ended: ["a".to_owned()].into(),
        ..prepared()
    };
    let two = json!({"containers": [{"name": "a"}, {"name": "b"}]});
    let seen = in_sandbox(vec![container("b0", "b", running())]);
    check(two, &seen, &facts, &["keep b0"]);
}

#[test]
fn what_an_earlier_pod_of_the_uid_left_is_removed_first() {
    let facts = PodPlanFacts {
        is_readded: true,
        ..prepared()
    };
    let sandboxes = vec![
        sandbox("s1", 1, SandboxState::Ready),
        sandbox("s0", 0, SandboxState::NotReady),
    ];
    let seen = observed(sandboxes, vec![container("a0", "a", exited(0))]);
    check(
        one(),
        &seen,
        &facts,
        &[
            "remove a0 EarlierPod",
            r#"RemoveSandbox { id: SandboxId("s1"), on_failure: StopPlan }"#,
            r#"RemoveSandbox { id: SandboxId("s0"), on_failure: Continue }"#,
        ],
    );
}

#[test]
fn blocks_have_upstreams_events() {
    use rubelet_lifecycle::plan::Block;
    let network = Block::NetworkNotReady {
        problem: "x".to_owned(),
    };
    assert_eq!(network.event_reason(), Some("NetworkNotReady"));
    assert_eq!(network.message(), "network is not ready: x");
    assert_eq!(network.retry(), Retry::NetworkNotReady);
    let claims = Block::ClaimsUnprepared {
        message: "x".to_owned(),
    };
    assert_eq!(claims.message(), "Failed to prepare dynamic resources: x");
    assert_eq!(Block::NoEffect.event_reason(), None);
}
