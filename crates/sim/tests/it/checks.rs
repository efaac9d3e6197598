//! The checks themselves: small histories, told by hand, and what is wrong in them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use rubelet_ports::ProbeKind;
use rubelet_ports::api::Change;
use rubelet_sim::checks::Checker;
use rubelet_sim::history::{Ask, Cause, Fact, HookKind};
use rubelet_sim::node;
use serde_json::{Value, json};

const UID: &str = "00000001-sim";
const SANDBOX: &str = "s1";

/// What happens to one static pod, a second after the other.
struct Story {
    checker: Checker,
    at: Duration,
    path: PathBuf,
    content: Arc<Vec<u8>>,
}

impl Story {
    /// The pod is told of, and has its sandbox.
    fn of(spec: &Value) -> Self {
        Self::on_node(spec, false)
    }

    fn on_node(spec: &Value, has_api: bool) -> Self {
        let metadata = json!({"name": "pod1", "uid": UID});
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec});
        let mut story = Self {
            checker: Checker::new(false, has_api, Duration::from_secs(2)),
            at: Duration::ZERO,
            path: node::manifest_path("pod1"),
            content: Arc::new(pod.to_string().into_bytes()),
        };
        story.checker.disk_changed(&story.path, Some(&story.content));
        story.rubelet_starts();
        story.happens(Fact::SandboxReady {
            id: SANDBOX.to_owned(),
            uid: UID.to_owned(),
            attempt: 0,
            is_late: false,
        });
        story.happens(Fact::CgroupMade { uid: UID.to_owned() });
        story
    }

    fn happens(&mut self, fact: Fact) {
        self.at += Duration::from_secs(1);
        self.checker.observe(vec![(self.at, fact)]);
    }

    fn asks(&mut self, ask: Ask) {
        self.happens(Fact::Asked(ask));
    }

    fn rubelet_starts(&mut self) {
        self.happens(Fact::RubeletStarted);
        let (path, content) = (self.path.clone(), Arc::clone(&self.content));
        let names = vec!["pod1.json".to_owned()];
        self.happens(Fact::Listed { names });
        self.happens(Fact::ManifestRead { path, content });
    }

    fn is_removed(&mut self) {
        self.checker.disk_changed(&self.path, None);
        self.happens(Fact::Listed { names: Vec::new() });
    }

    /// An instance is made and started.
    fn runs(&mut self, id: &str, name: &str, attempt: u32) {
        self.asks(Ask::Create {
            sandbox: SANDBOX.to_owned(),
            name: name.to_owned(),
            attempt,
        });
        self.happens(Fact::Created {
            id: id.to_owned(),
            sandbox: SANDBOX.to_owned(),
            uid: UID.to_owned(),
            name: name.to_owned(),
            attempt,
            image: "app:1".to_owned(),
            is_late: false,
        });
        self.asks(Ask::Start { id: id.to_owned() });
        self.happens(Fact::Started {
            id: id.to_owned(),
            is_late: false,
        });
    }

    fn stops(&mut self, id: &str, grace_seconds: i64) {
        let id = id.to_owned();
        self.asks(Ask::Stop { id, grace_seconds });
    }

    fn ends(&mut self, id: &str, code: i32) {
        let (id, cause) = (id.to_owned(), Cause::Own);
        self.happens(Fact::Ended { id, code, cause });
    }

    fn fails(&mut self, id: &str, kind: ProbeKind) {
        let (id, is_good) = (id.to_owned(), false);
        self.happens(Fact::Probed { id, kind, is_good });
    }

    fn says(&mut self, status: Value) {
        let mut pod: Value = serde_json::from_slice(&self.content).unwrap();
        pod["metadata"]["name"] = json!("pod1-sim");
        pod["status"] = status;
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let pods = vec![Arc::new(pod)];
        self.happens(Fact::Published { pods });
    }

    /// The words are in the first violation; without words there must be none.
    fn check(&self, expected: &str) {
        let found = self.checker.violations().first().map_or("", String::as_str);
        let is_right = match expected {
            "" => found.is_empty(),
            words => found.contains(words),
        };
        assert!(is_right, "{expected:?} is expected, found {found:?}");
    }
}

fn container(name: &str, more: Value) -> Value {
    let mut container = json!({"name": name, "image": "app:1"});
    if let (Value::Object(all), Value::Object(more)) = (&mut container, more) {
        all.extend(more);
    }
    container
}

fn spec(containers: &[Value]) -> Value {
    json!({"restartPolicy": "OnFailure", "containers": containers})
}

#[test]
fn only_what_a_static_pod_replaces_ends_before_all_sources_have_delivered() {
    let story = |name: &str, is_listed: bool| {
        let mut story = Story::on_node(&spec(&[container("main", json!({}))]), true);
        story.runs("c1", "main", 0);
        let mut pod: Value = serde_json::from_slice(&story.content).unwrap();
        pod["metadata"] = json!({"name": name, "uid": "00000002-sim"});
        let content = Arc::new(pod.to_string().into_bytes());
        story.checker.disk_changed(&story.path, Some(&content));
        story.content = content;
        if is_listed {
            story.rubelet_starts();
        } else {
            story.happens(Fact::RubeletStarted);
        }
        story.stops("c1", 30);
        story
    };
    story("pod1", true).check("");
    story("pod1", false).check("before all sources delivered");
    story("pod2", true).check("before all sources delivered");
}

#[test]
fn a_container_that_ended_well_follows_only_a_stop_for_its_probes() {
    let probe = json!({"exec": {"command": ["probe"]}, "failureThreshold": 2});
    let hook = json!({"postStart": {"exec": {"command": ["postStart", "exit", "1"]}}});
    let spec = spec(&[container(
        "main",
        json!({"livenessProbe": probe, "lifecycle": hook}),
    )]);
    let story = |fails: u32, crashes: bool| {
        let mut story = Story::of(&spec);
        story.runs("c1", "main", 0);
        for _ in 0..fails {
            story.fails("c1", ProbeKind::Liveness);
        }
        story.happens(Fact::HookEnded {
            id: "c1".to_owned(),
            kind: HookKind::PostStart,
            is_good: false,
        });
        story.stops("c1", 30);
        story.ends("c1", 0);
        if crashes {
            story.rubelet_starts();
        }
        story.runs("c2", "main", 1);
        story
    };
    story(2, false).check("");
    story(1, false).check("runs again as c2");
    story(2, true).check("runs again as c2");
}

#[test]
fn a_hook_that_hangs_excuses_a_pod_only_while_it_runs() {
    let hook = json!({"postStart": {"exec": {"command": ["postStart", "hang"]}}});
    let spec = spec(&[
        container("main", json!({"lifecycle": hook})),
        container("other", json!({})),
    ]);
    let mut story = Story::of(&spec);
    story.runs("c1", "main", 0);
    let (id, kind) = ("c1".to_owned(), HookKind::PostStart);
    story.asks(Ask::Hook { id, kind });
    let waiting = json!({"waiting": {"reason": "ContainerCreating"}});
    let status = |name: &str, state: &Value, id: &str| {
        json!({"name": name, "image": "app:1", "imageID": "", "ready": !id.is_empty(), "restartCount": 0,
               "state": state, "containerID": id})
    };
    let nothing = [status("main", &waiting, ""), status("other", &waiting, "")];
    story.says(json!({"phase": "Pending", "containerStatuses": nothing}));
    assert_eq!(story.checker.check_one(UID), Ok(()));
    // Its sandbox is not excused.
    story.happens(Fact::SandboxStopped {
        id: SANDBOX.to_owned(),
    });
    let dead = story.checker.check_one(UID).unwrap_err();
    assert!(dead.contains("dead sandbox"), "{dead}");
    story.happens(Fact::SandboxReady {
        id: SANDBOX.to_owned(),
        uid: UID.to_owned(),
        attempt: 0,
        is_late: false,
    });
    // The next life has no hook to wait for.
    story.rubelet_starts();
    let running = json!({"running": {}});
    let statuses = [
        status("main", &running, "containerd://c1"),
        status("other", &waiting, ""),
    ];
    story.says(json!({"phase": "Pending", "containerStatuses": statuses}));
    story.check("");
    let open = story.checker.check_one(UID).unwrap_err();
    assert!(open.contains("other was never created"), "{open}");
}

/// Two containers; the first may ask for a restart of both.
fn resetting() -> Value {
    let rules = json!([{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}]);
    let hook = json!({"preStop": {"exec": {"command": ["preStop", "exit", "0"]}}});
    spec(&[
        container(
            "main",
            json!({"restartPolicy": "Never", "restartPolicyRules": rules}),
        ),
        container("other", json!({"lifecycle": hook})),
    ])
}

#[test]
fn a_restart_of_all_containers_takes_hooks_away_only_while_it_lasts() {
    let mut story = Story::of(&resetting());
    story.runs("c1", "main", 0);
    story.runs("c2", "other", 0);
    story.ends("c1", 42);
    story.stops("c2", 2);
    story.ends("c2", 0);
    for id in ["c2", "c1"] {
        story.happens(Fact::Removed { id: id.to_owned() });
    }
    story.runs("c3", "main", 1);
    story.runs("c4", "other", 1);
    story.check("");
    story.is_removed();
    story.stops("c4", 28);
    story.check("c4 other of 00000001-sim is stopped without its preStop hook");
}

#[test]
fn after_a_restart_of_all_containers_an_end_is_for_good_again() {
    let mut story = Story::of(&resetting());
    story.runs("c1", "main", 0);
    story.ends("c1", 42);
    story.happens(Fact::Removed { id: "c1".to_owned() });
    story.runs("c2", "main", 1);
    story.ends("c2", 1);
    story.check("");
    story.runs("c3", "main", 2);
    story.check("runs again as c3");
}

#[test]
fn a_sandbox_goes_after_the_grace_of_its_containers() {
    for (waits, expected) in [(0, "before its grace is over"), (30, "")] {
        let mut story = Story::of(&spec(&[container("main", json!({}))]));
        story.runs("c1", "main", 0);
        story.is_removed();
        story.stops("c1", 29);
        story.at += Duration::from_secs(waits);
        story.asks(Ask::StopSandbox {
            id: SANDBOX.to_owned(),
        });
        story.check(expected);
    }
}

#[test]
fn nobody_overtakes_an_init_container() {
    let mut spec = spec(&[container("main", json!({}))]);
    spec["initContainers"] = json!([container("init", json!({}))]);
    for (code, expected) in [
        (Some(0), ""),
        (Some(1), "before init has done"),
        (None, "before init"),
    ] {
        let mut story = Story::of(&spec);
        story.runs("c1", "init", 0);
        if let Some(code) = code {
            story.ends("c1", code);
        }
        story.runs("c2", "main", 0);
        story.check(expected);
    }
}

#[test]
fn what_is_said_of_containers_is_so() {
    let check = |said: &[Value], ready: &str, expected: &str| {
        let mut story = Story::of(&spec(&[container("main", json!({}))]));
        story.runs("c1", "main", 0);
        story.ends("c1", 1);
        for said in said {
            let mut status = json!({"name": "main", "image": "app:1", "imageID": "", "ready": false});
            status["containerID"] = json!("containerd://c1");
            status["state"] = said["state"].clone();
            status["restartCount"] = said["restarts"].clone();
            let conditions = json!([{"type": "Ready", "status": ready}]);
            story.says(json!({"phase": "Running", "containerStatuses": [status], "conditions": conditions}));
        }
        story.check(expected);
    };
    let ended = |code: i32| {
        let end = json!({"exitCode": code, "containerID": "containerd://c1"});
        json!({"restarts": 1, "state": {"terminated": end}})
    };
    let runs = |restarts: i32| json!({"restarts": restarts, "state": {"running": {}}});
    check(&[ended(1)], "False", "");
    check(&[ended(0)], "False", "main ended with 0, which it did not");
    check(&[runs(1)], "True", "it is ready, main is not");
    // It may be said to run for as long as nobody has looked.
    check(&[runs(0), runs(1)], "False", "");
    check(
        &[runs(1), runs(0)],
        "False",
        "main has 0 restarts, where 1 were said before",
    );
}

const API_UID: &str = "00000001-api";

/// A pod of the API server with a sidecar, a hook and one regular container; its main container is not ready.
fn api_pod(status: &Value) -> Pod {
    let main = container("main", json!({}));
    let hook = json!({"preStop": {"exec": {"command": ["ok"]}}});
    let side = container("side", json!({"restartPolicy": "Always", "lifecycle": hook}));
    let mut spec = spec(&[main]);
    spec["initContainers"] = json!([side]);
    let metadata = json!({"name": "api1", "namespace": "default", "uid": API_UID});
    let pod =
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status});
    serde_json::from_value(pod).unwrap()
}

fn unready_main(ready: &str) -> Value {
    let status = json!({"name": "main", "image": "app:1", "imageID": "", "ready": false, "restartCount": 0});
    json!({"phase": "Running", "containerStatuses": [status], "conditions": [{"type": "Ready", "status": ready}]})
}

impl Story {
    fn api_delivers(&mut self, pod: &Pod) {
        let pod = Arc::new(pod.clone());
        self.happens(Fact::ApiApplied {
            pod: Arc::clone(&pod),
        });
        let change = Change::Applied(pod);
        self.happens(Fact::ApiTold { change });
    }
}

#[test]
fn a_status_of_another_client_may_be_repeated_and_not_made() {
    let check = |at_api: &str, shown: &str, expected: &str| {
        let mut story = Story::on_node(&spec(&[container("main", json!({}))]), true);
        story.api_delivers(&api_pod(&unready_main(at_api)));
        let pods = vec![Arc::new(api_pod(&unready_main(shown)))];
        story.happens(Fact::Published { pods });
        story.check(expected);
    };
    check("True", "True", "");
    check("True", "False", "");
    check("False", "True", "it is ready, main is not");
}

#[test]
fn only_a_pod_that_cannot_be_decoded_ends_without_order_and_hooks() {
    let check = |is_decoded: bool, expected: &[&str]| {
        let mut story = Story::on_node(&spec(&[container("main", json!({}))]), true);
        let mut pod = api_pod(&unready_main("False"));
        story.api_delivers(&pod);
        story.happens(Fact::SandboxReady {
            id: "s2".to_owned(),
            uid: API_UID.to_owned(),
            attempt: 0,
            is_late: false,
        });
        let uid = API_UID.to_owned();
        story.happens(Fact::CgroupMade { uid });
        for (id, name) in [("c2", "side"), ("c1", "main")] {
            story.happens(Fact::Created {
                id: id.to_owned(),
                sandbox: "s2".to_owned(),
                uid: API_UID.to_owned(),
                name: name.to_owned(),
                attempt: 0,
                image: "app:1".to_owned(),
                is_late: false,
            });
            let id = id.to_owned();
            story.happens(Fact::Started { id, is_late: false });
        }
        let pods = vec![Arc::new(pod.clone())];
        story.happens(Fact::Published { pods });
        // Rubelet has seen by then that all run.
        story.at += Duration::from_secs(60);
        pod.metadata.deletion_grace_period_seconds = Some(30);
        pod.metadata.deletion_timestamp =
            Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap());
        let mut delivered = pod.clone();
        if !is_decoded {
            delivered.spec = None;
        }
        story.happens(Fact::ApiApplied { pod: Arc::new(pod) });
        let change = Change::Applied(Arc::new(delivered));
        story.happens(Fact::ApiTold { change });
        story.stops("c2", 30);
        let found = story.checker.violations();
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(
                found.contains(expected),
                "{expected:?} is expected, found {found:?}"
            );
        }
    };
    check(false, &[]);
    check(
        true,
        &[
            "side of 00000001-api is stopped without its preStop hook",
            "the sidecar c2 side is stopped while c1 main runs",
        ],
    );
}

#[test]
fn a_sandbox_goes_without_a_reason_only_when_its_status_failed_again_and_again() {
    let check = |failures: usize, expected: &str| {
        let mut story = Story::of(&spec(&[container("main", json!({}))]));
        for _ in 0..failures {
            let subject = SANDBOX.to_owned();
            story.happens(Fact::CallFailed { subject });
        }
        story.asks(Ask::StopSandbox {
            id: SANDBOX.to_owned(),
        });
        story.check(expected);
    };
    check(4, "");
    check(3, "StopPodSandbox s1 of 00000001-sim without any reason");
}

#[test]
fn room_of_a_pod_that_was_put_back_is_taken_only_after_its_time_to_end() {
    let check = |passed: u64, expected: &str| {
        let big = container("main", json!({"resources": {"requests": {"cpu": "3"}}}));
        let mut first = spec(&[big]);
        first["terminationGracePeriodSeconds"] = json!(2);
        let mut story = Story::on_node(&first, true);
        let change = Change::All(Vec::new());
        story.happens(Fact::ApiTold { change });
        story.runs("c1", "main", 0);
        story.is_removed();
        let path = story.path.clone();
        let content = Arc::clone(&story.content);
        story.checker.disk_changed(&path, Some(&content));
        let names = vec!["pod1.json".to_owned()];
        story.happens(Fact::Listed { names });
        story.happens(Fact::ManifestRead { path, content });
        story.at += Duration::from_secs(passed);
        let mut other = api_pod(&unready_main("False"));
        let container = &mut other.spec.as_mut().unwrap().containers[0];
        container.resources = Some(serde_json::from_value(json!({"requests": {"cpu": "2"}})).unwrap());
        story.api_delivers(&other);
        story.asks(Ask::RunSandbox {
            uid: API_UID.to_owned(),
            attempt: 0,
        });
        story.check(expected);
    };
    check(120, "");
    check(1, "is started and needs 2000m where 3000m of 4000m are taken");
}

#[test]
fn room_of_a_pod_that_a_list_left_out_may_be_taken() {
    let check = |is_left_out: bool, expected: &str| {
        let big = container("main", json!({"resources": {"requests": {"cpu": "3"}}}));
        let mut story = Story::on_node(&spec(&[big]), true);
        story.runs("c1", "main", 0);
        story.rubelet_starts();
        if is_left_out {
            let uid = UID.to_owned();
            story.happens(Fact::LeftOut { uid });
        }
        let change = Change::All(Vec::new());
        story.happens(Fact::ApiTold { change });
        story.at += Duration::from_secs(60);
        let mut other = api_pod(&unready_main("False"));
        let container = &mut other.spec.as_mut().unwrap().containers[0];
        container.resources = Some(serde_json::from_value(json!({"requests": {"cpu": "2"}})).unwrap());
        let message = "Pod was rejected: Node didn't have enough resource: cpu";
        let status = json!({"phase": "Failed", "reason": "OutOfcpu", "message": message});
        let refused = Pod {
            status: Some(serde_json::from_value(status).unwrap()),
            ..other.clone()
        };
        story.api_delivers(&other);
        let pods = vec![Arc::new(refused)];
        story.happens(Fact::Published { pods });
        story.asks(Ask::RunSandbox {
            uid: API_UID.to_owned(),
            attempt: 0,
        });
        story.check(expected);
    };
    check(true, "");
    check(false, "is started and needs 2000m where 3000m of 4000m are taken");
}

#[test]
fn a_container_that_came_late_and_was_never_started_replaces_nobody() {
    let is_missed = |is_late: bool| {
        let mut story = Story::of(&spec(&[container("main", json!({}))]));
        story.runs("c1", "main", 1);
        story.happens(Fact::Created {
            id: "c2".to_owned(),
            sandbox: SANDBOX.to_owned(),
            uid: UID.to_owned(),
            name: "main".to_owned(),
            attempt: 0,
            image: "app:1".to_owned(),
            is_late,
        });
        let running = json!({"phase": "Running", "containerStatuses": [{"name": "main", "image": "app:1", "imageID": "",
            "containerID": "containerd://c1", "ready": true, "started": true, "restartCount": 1,
            "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}]});
        story.says(running);
        let found = story.checker.unsettled(None).join("\n");
        println!("{found}");
        found.contains("c2 was never started")
    };
    assert!(!is_missed(true));
    assert!(is_missed(false));
}

#[test]
fn a_pod_that_never_restarts_may_end_with_its_unreadable_sandbox() {
    let is_missed = |failures: usize| {
        let mut spec = spec(&[container("main", json!({}))]);
        spec["restartPolicy"] = json!("Never");
        let mut story = Story::of(&spec);
        story.happens(Fact::Created {
            id: "c1".to_owned(),
            sandbox: SANDBOX.to_owned(),
            uid: UID.to_owned(),
            name: "main".to_owned(),
            attempt: 0,
            image: "app:1".to_owned(),
            is_late: false,
        });
        for _ in 0..failures {
            let subject = SANDBOX.to_owned();
            story.happens(Fact::CallFailed { subject });
        }
        story.says(json!({"phase": "Failed"}));
        let found = story.checker.unsettled(None);
        !found.is_empty()
    };
    assert!(!is_missed(4));
    assert!(is_missed(3));
}
