//! What always holds for derived statuses, and addresses, probes and ends by table.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use proptest::prelude::*;
use rubelet_lifecycle::status::{
    Derived, Eviction, NodeFacts, Phase, PodResources, Probes, Refusal, RuntimeFacts, StartFailures,
    StateView, StatusGates, StatusInputs, derive_status, ended_for_good, find_condition, finished_status,
    ordered_pod_ips, phase_of, published_status, with_readiness,
};
use rubelet_model::Timestamp;
use rubelet_model::observation::PodObservation;
use serde_json::{Value, json};

use crate::status_oracle::observation;

#[derive(Debug)]
struct Case {
    pod: Pod,
    seen: PodObservation,
    previous: Option<PodStatus>,
    terminal: bool,
    eviction: Option<Eviction>,
    now: i64,
}

impl Case {
    fn derive(&self) -> Derived {
        self.derive_with(None, &Probes::default())
    }

    fn derive_with(&self, mirror: Option<&PodStatus>, probes: &Probes) -> Derived {
        derive_status(&StatusInputs {
            pod: &self.pod,
            observation: &self.seen,
            previous: self.previous.as_ref(),
            mirror,
            terminal: self.terminal,
            eviction: self.eviction.as_ref(),
            start_failures: &StartFailures::new(),
            probes,
            resize_conditions: &[],
            qos_class: "BestEffort",
            pod_resources: &PodResources::default(),
            actuated: None,
            allocated_resources_status: &BTreeMap::new(),
            image_volume_references: &BTreeMap::new(),
            runtime: RuntimeFacts {
                name: "containerd",
                recursive_read_only: true,
            },
            node: NodeFacts {
                host_ips: &[],
                prefers_ipv6: false,
            },
            gates: StatusGates::default(),
            now: Timestamp::from_unix_nanos(self.now * 1_000_000_000 + 5),
        })
    }
}

fn pod(policy: &str, init: usize, sidecar: bool) -> Pod {
    let mut inits: Vec<Value> = (0..init)
        .map(|n| json!({"name": format!("i{n}"), "image": "i"}))
        .collect();
    if sidecar {
        inits.push(json!({"name": "side", "image": "i", "restartPolicy": "Always"}));
    }
    let containers = json!([{"name": "b", "image": "i", "volumeMounts": [
        {"name": "v", "mountPath": "/v", "readOnly": true, "recursiveReadOnly": "IfPossible"}]}, {"name": "a", "image": "i"}]);
    serde_json::from_value(
        json!({"metadata": {"name": "p", "namespace": "n", "generation": 2},
        "spec": {"restartPolicy": policy, "initContainers": inits, "containers": containers}}),
    )
    .expect("a pod")
}

fn container(name: &str, state: &str, exit_code: i32, count: u32) -> Value {
    json!({"id": format!("{name}{count}"), "name": name, "sandbox": "s0", "state": state, "exitCode": exit_code,
        "createdAt": 1000 + count, "startedAt": 1001, "finishedAt": 1002, "restartCount": count})
}

fn seen(containers: &[Value]) -> PodObservation {
    observation(
        &json!({"sandboxes": [{"id": "s0", "ready": true, "host": false, "ip": "10.0.0.9"}], "containers": containers}),
    )
}

prop_compose! {
    fn case()(
        policy in prop_oneof![Just("Always"), Just("OnFailure"), Just("Never")],
        init in 0..3_usize, sidecar: bool, terminal: bool, evicted in prop::bool::weighted(0.1), now in 2000..9000_i64,
        states in prop::collection::vec((prop_oneof![Just("running"), Just("exited"), Just("created"), Just("unknown"), Just("none")], 0..3_i32), 6),
    ) -> Case {
        let names = ["a", "b", "side", "i0", "i1"];
        let shown: Vec<Value> = names.iter().zip(&states)
            .filter(|(_, (state, _))| *state != "none")
            .map(|(name, (state, code))| container(name, state, *code, 0))
            .collect();
        let eviction = evicted.then(|| Eviction { reason: "Evicted".into(), message: "low".into(), disruption: Some("low".into()) });
        Case { pod: pod(policy, init, sidecar), seen: seen(&shown), previous: None, terminal, eviction, now }
    }
}

fn holds(status: &PodStatus, type_: &str) -> bool {
    find_condition(status.conditions.as_deref().unwrap_or_default(), type_)
        .is_some_and(|one| one.status == "True")
}

fn any_runs(status: &PodStatus) -> bool {
    status
        .container_statuses
        .iter()
        .flatten()
        .any(|one| one.running().is_some())
}

proptest! {
    #[test]
    fn a_terminal_phase_never_changes(first in case(), mut second in case()) {
        let before = first.derive().status;
        second.pod = first.pod;
        second.previous = Some(before.clone());
        let after = second.derive().status;
        if phase_of(&before).is_some_and(Phase::is_terminal) {
            prop_assert_eq!(&after.phase, &before.phase);
        }
    }

    #[test]
    fn conditions_keep_their_time_unless_their_status_changed(first in case(), mut second in case()) {
        let before = first.derive().status;
        second.pod = first.pod;
        second.previous = Some(before.clone());
        let after = second.derive().status;
        prop_assert_eq!(&after.start_time, &before.start_time);
        for now in after.conditions.iter().flatten() {
            if let Some(old) = find_condition(before.conditions.as_deref().unwrap_or_default(), &now.type_)
                && old.status == now.status
            {
                prop_assert_eq!(&now.last_transition_time, &old.last_transition_time, "{}", now.type_);
            }
        }
    }

    #[test]
    fn deriving_again_says_nothing_new(mut case in case()) {
        let first = case.derive();
        prop_assert!(first.changed);
        prop_assert_eq!(&case.derive(), &first);
        case.previous = Some(first.status);
        let second = case.derive();
        case.previous = Some(second.status.clone());
        case.now += 100;
        let third = case.derive();
        prop_assert_eq!(third.status, second.status);
        prop_assert!(!third.changed);
    }

    #[test]
    fn ready_needs_ready_containers_and_a_living_pod(case in case()) {
        let status = case.derive().status;
        prop_assert!(!holds(&status, "Ready") || holds(&status, "ContainersReady"));
        prop_assert!(!holds(&status, "Ready") || !phase_of(&status).is_some_and(Phase::is_terminal));
    }

    #[test]
    fn an_end_is_not_published_while_containers_may_run(case in case()) {
        let ours = case.derive().status;
        let api = PodStatus { phase: Some("Running".into()), ..PodStatus::default() };
        let may_run = any_runs(&ours);
        let shown = published_status(&case.pod, &api, &ours, may_run, StatusGates::default(), Timestamp::EPOCH);
        if may_run {
            prop_assert!(!phase_of(&shown).is_some_and(Phase::is_terminal));
            prop_assert_eq!(&shown.reason, &None);
            prop_assert!(!holds(&shown, "DisruptionTarget"));
        } else {
            prop_assert_eq!(&shown.phase, &ours.phase);
        }
    }
}

#[test]
fn addresses_are_ordered_by_the_nodes_family() {
    let check = |seen: &[&str], prefers_ipv6: bool, expected: &[&str]| {
        let seen: Vec<String> = seen.iter().map(ToString::to_string).collect();
        assert_eq!(ordered_pod_ips(&seen, prefers_ipv6), expected);
    };
    check(
        &["fd00::1", "10.0.0.1", "10.0.0.2"],
        false,
        &["10.0.0.1", "fd00::1"],
    );
    check(&["10.0.0.1", "fd00:0:0::1"], true, &["fd00::1", "10.0.0.1"]);
    check(&["nonsense", "::ffff:10.0.0.7"], false, &["10.0.0.7"]);
    check(&[], false, &[]);
}

#[test]
fn a_container_that_ended_for_good_stays_so() {
    let ended = [container("a", "exited", 0, 0), container("b", "running", 0, 0)];
    let mut case = Case {
        pod: pod("Never", 0, false),
        seen: seen(&ended),
        previous: None,
        terminal: false,
        eviction: None,
        now: 3000,
    };
    let first = case.derive();
    assert_eq!(first.terminations.len(), 1);
    case.previous = Some(first.status.clone());
    case.seen = seen(&[container("a", "running", 0, 0), container("b", "running", 0, 0)]);
    let second = case.derive();
    assert!(matches!(second.refused.as_slice(), [Refusal::Container { container, .. }] if container == "a"));
    assert_eq!((second.status, second.changed), (first.status, false));
    assert_eq!(second.phase, Some(Phase::Running));
}

#[test]
fn the_end_of_a_container_with_a_successor_is_its_last_state() {
    let ended = [container("a", "exited", 0, 0), container("b", "running", 0, 0)];
    let mut case = Case {
        pod: pod("Never", 0, false),
        seen: seen(&ended),
        previous: None,
        terminal: false,
        eviction: None,
        now: 3000,
    };
    let first = case.derive().status;
    case.seen = seen(&[container("a", "running", 0, 1), container("b", "running", 0, 0)]);
    let is_restarted = |derived: &Derived| {
        let mut statuses = derived.status.container_statuses.iter().flatten();
        let a = statuses.find(|one| one.name == "a").expect("a status");
        derived.refused.is_empty() && a.running().is_some()
    };
    // A mirror pod that shows the end belongs to an earlier pod of the same UID.
    let without = case.derive_with(Some(&first), &Probes::default());
    assert!(is_restarted(&without) && without.ignores_mirror, "{without:#?}");
    case.previous = Some(first);
    let second = case.derive();
    assert!(is_restarted(&second) && !second.ignores_mirror, "{second:#?}");
    let mut statuses = second.status.container_statuses.iter().flatten();
    let a = statuses.find(|one| one.name == "a").expect("a status");
    assert!(a.last_terminated().is_some());
}

#[test]
fn containers_that_ended_for_good_are_known_by_the_status_alone() {
    let ended = [container("a", "exited", 0, 0), container("b", "running", 0, 0)];
    let check = |policy: &str, seen_now: &PodObservation, expected: &[&str]| {
        let case = Case {
            pod: pod(policy, 0, false),
            seen: seen(&ended),
            previous: None,
            terminal: false,
            eviction: None,
            now: 3000,
        };
        let last = case.derive().status;
        let gates = StatusGates::default().restart;
        let found = ended_for_good(&case.pod, Some(&last), seen_now, gates);
        assert_eq!(found.iter().map(String::as_str).collect::<Vec<_>>(), expected);
    };
    let forgotten = seen(&[container("b", "running", 0, 0)]);
    check("Never", &forgotten, &["a"]);
    check("OnFailure", &forgotten, &["a"]);
    check("Always", &forgotten, &[]);
    check("Never", &seen(&ended), &[]);
}

#[test]
fn a_restart_of_all_is_over_with_the_first_container_made_since() {
    let mut pod = pod("Always", 0, false);
    let rules = json!([{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}]);
    let spec = pod.spec.as_mut().expect("a spec");
    spec.containers[0].restart_policy_rules = serde_json::from_value(rules).expect("rules");
    let began = json!({"conditions": [{"type": "AllContainersRestarting", "status": "True",
        "lastTransitionTime": "1970-01-01T00:16:41Z"}]});
    let mut case = Case {
        pod,
        seen: seen(&[container("a", "running", 0, 0), container("b", "running", 0, 0)]),
        previous: serde_json::from_value(began).expect("a status"),
        terminal: false,
        eviction: None,
        now: 3000,
    };
    assert!(holds(&case.derive().status, "AllContainersRestarting"));
    case.seen = seen(&[container("a", "running", 0, 1), container("b", "running", 0, 0)]);
    assert!(!holds(&case.derive().status, "AllContainersRestarting"));
}

#[test]
fn a_container_that_the_mirror_shows_as_started_needs_no_second_start() {
    let case = Case {
        pod: pod("Always", 0, false),
        seen: seen(&[container("a", "running", 0, 1), container("b", "running", 0, 0)]),
        previous: None,
        terminal: false,
        eviction: None,
        now: 3000,
    };
    let probes = Probes {
        startup: ["a".to_owned(), "b".to_owned()].into(),
        ..Probes::default()
    };
    let shown = |name: &str, id: &str| {
        json!({"name": name, "containerID": id, "started": true, "ready": true,
            "image": "i", "imageID": "i", "restartCount": 0})
    };
    // Of one of them the mirror shows an earlier instance.
    let mirror = json!({"containerStatuses": [shown("a", "containerd://a0"), shown("b", "containerd://b0")]});
    let mirror: PodStatus = serde_json::from_value(mirror).expect("a status");
    let status = case.derive_with(Some(&mirror), &probes).status;
    let states: Vec<_> = status
        .container_statuses
        .iter()
        .flatten()
        .map(|one| (one.name.as_str(), one.started, one.ready))
        .collect();
    assert_eq!(states, [("a", Some(false), false), ("b", Some(true), true)]);
}

#[test]
fn what_was_lost_counts_as_failed_at_the_end() {
    let running = [container("a", "running", 0, 0), container("b", "running", 0, 0)];
    let case = Case {
        pod: pod("Always", 0, false),
        seen: seen(&running),
        previous: None,
        terminal: false,
        eviction: None,
        now: 3000,
    };
    let status = case.derive().status;
    let mounts = &status.container_statuses.as_ref().expect("statuses")[1].volume_mounts;
    assert_eq!(
        mounts.as_ref().expect("mounts")[0].recursive_read_only.as_deref(),
        Some("Enabled")
    );
    let unready = with_readiness(&case.pod, &status, "containerd://a0", false).expect("a change");
    assert!(holds(&status, "Ready") && !holds(&unready, "Ready"));
    assert_eq!(with_readiness(&case.pod, &status, "containerd://a0", true), None);
    let finished = finished_status(&case.pod, Some(&status));
    assert_eq!(phase_of(&finished), Some(Phase::Failed));
    for container in finished.container_statuses.iter().flatten() {
        let end = container.terminated().expect("an end");
        assert_eq!(
            (end.exit_code, end.reason.as_deref()),
            (137, Some("ContainerStatusUnknown"))
        );
    }
}
