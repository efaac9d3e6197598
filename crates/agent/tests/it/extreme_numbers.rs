//! Every number that an API server lets into a pod, in every field of seconds, ports, modes and ids.
//!
//! The agent takes such pods through their whole life on simulated edges; what it then asks of the runtime goes once more
//! through the real client, because its transport has limits of its own.

use std::cell::Cell;
use std::panic;
use std::sync::Once;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use rubelet_cri::{CriClient, CriMetrics, CriOptions};
use rubelet_fakes::cri::{FakeCri, Reaction};
use rubelet_model::MAX_PERIOD_SECONDS;
use rubelet_ports::RuntimeWriter;
use rubelet_wire::cri::v1;
use serde_json::{Value, json};

use crate::bed::Bed;
use crate::cluster::ApiPod;
use crate::line::Fault;

const UID: &str = "uid-web";

/// Fields of 64 bits, by their place in the pod's spec.
const LONG_FIELDS: [&str; 15] = [
    "/terminationGracePeriodSeconds",
    "/activeDeadlineSeconds",
    "/tolerations/0/tolerationSeconds",
    "/securityContext/runAsUser",
    "/securityContext/runAsGroup",
    "/securityContext/fsGroup",
    "/securityContext/supplementalGroups/0",
    "/containers/0/securityContext/runAsUser",
    "/containers/0/securityContext/runAsGroup",
    "/containers/0/startupProbe/terminationGracePeriodSeconds",
    "/containers/0/livenessProbe/terminationGracePeriodSeconds",
    "/containers/0/lifecycle/preStop/sleep/seconds",
    "/containers/1/lifecycle/postStart/sleep/seconds",
    "/volumes/0/downwardAPI/defaultUser",
    "/volumes/0/downwardAPI/items/0/user",
];

/// Fields of 32 bits.
const SHORT_FIELDS: [&str; 26] = [
    "/priority",
    "/containers/0/ports/0/containerPort",
    "/containers/0/ports/0/hostPort",
    "/containers/0/startupProbe/initialDelaySeconds",
    "/containers/0/startupProbe/timeoutSeconds",
    "/containers/0/startupProbe/periodSeconds",
    "/containers/0/startupProbe/successThreshold",
    "/containers/0/startupProbe/failureThreshold",
    "/containers/0/startupProbe/tcpSocket/port",
    "/containers/0/livenessProbe/initialDelaySeconds",
    "/containers/0/livenessProbe/timeoutSeconds",
    "/containers/0/livenessProbe/periodSeconds",
    "/containers/0/livenessProbe/successThreshold",
    "/containers/0/livenessProbe/failureThreshold",
    "/containers/0/livenessProbe/httpGet/port",
    "/containers/0/readinessProbe/initialDelaySeconds",
    "/containers/0/readinessProbe/timeoutSeconds",
    "/containers/0/readinessProbe/periodSeconds",
    "/containers/0/readinessProbe/successThreshold",
    "/containers/0/readinessProbe/failureThreshold",
    "/containers/0/readinessProbe/grpc/port",
    "/containers/1/lifecycle/preStop/httpGet/port",
    "/volumes/0/downwardAPI/defaultMode",
    "/volumes/0/downwardAPI/items/0/mode",
    "/volumes/1/emptyDir/mode",
    "/containers/1/restartPolicyRules/0/exitCodes/values/0",
];

/// A pod with a usual number in each of the fields.
fn usual_spec() -> Value {
    let probe = |handler: Value| {
        let mut probe = json!({
            "initialDelaySeconds": 0, "timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3,
        });
        for (key, value) in handler.as_object().unwrap() {
            probe[key] = value.clone();
        }
        probe
    };
    let mut spec = ApiPod::new("web", &[]).spec;
    spec["activeDeadlineSeconds"] = json!(3600);
    spec["priority"] = json!(0);
    spec["tolerations"] =
        json!([{"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}]);
    spec["securityContext"] =
        json!({"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000, "supplementalGroups": [1000]});
    // Volumes of ConfigMaps, Secrets and tokens are not simulated; the plans of volumes have such a test of their own.
    spec["volumes"] = json!([
        {"name": "downward", "downwardAPI": {"defaultMode": 420, "defaultUser": 0, "items": [
            {"path": "a", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}, "mode": 420, "user": 0}]}},
        {"name": "empty", "emptyDir": {"mode": 511}},
    ]);
    let mut main = spec["containers"][0].clone();
    main["securityContext"] = json!({"runAsUser": 1000, "runAsGroup": 1000});
    main["ports"] = json!([{"containerPort": 80, "hostPort": 0, "protocol": "TCP"}]);
    main["startupProbe"] = probe(json!({"tcpSocket": {"port": 80}, "terminationGracePeriodSeconds": 5}));
    main["livenessProbe"] = probe(
        json!({"httpGet": {"path": "/", "port": 80, "scheme": "HTTP"}, "terminationGracePeriodSeconds": 5}),
    );
    main["readinessProbe"] = probe(json!({"grpc": {"port": 80, "service": ""}}));
    main["lifecycle"] = json!({"preStop": {"sleep": {"seconds": 1}}});
    main["volumeMounts"] =
        json!(["downward", "empty"].map(|name| json!({"name": name, "mountPath": format!("/{name}")})));
    let mut side = spec["containers"][0].clone();
    side["name"] = json!("side");
    side["lifecycle"] = json!({
        "postStart": {"sleep": {"seconds": 1}}, "preStop": {"httpGet": {"path": "/", "port": 80, "scheme": "HTTP"}},
    });
    side["restartPolicy"] = json!("Always");
    side["restartPolicyRules"] =
        json!([{"action": "Restart", "exitCodes": {"operator": "In", "values": [3]}}]);
    spec["containers"] = json!([main, side]);
    spec
}

/// All numbers, the edges more often than the rest.
fn long() -> impl Strategy<Value = i64> {
    prop_oneof![
        3 => prop::sample::select(vec![i64::MIN, i64::MIN + 1, -1, 0, 1, MAX_PERIOD_SECONDS, MAX_PERIOD_SECONDS + 1, i64::MAX - 1, i64::MAX]),
        // Beyond what tonic can write into a header.
        1 => 359_999_996_400..=i64::MAX,
        1 => any::<i64>(),
    ]
}

fn short() -> impl Strategy<Value = i32> {
    prop_oneof![
        3 => prop::sample::select(vec![i32::MIN, -1, 0, 1, 0o777, 0o1777, 65_535, 65_536, i32::MAX]),
        1 => any::<i32>(),
    ]
}

/// A field and its number. 64 bits of seconds, where time and grace are made of them, get half of the cases.
fn change() -> impl Strategy<Value = (&'static str, i64)> {
    prop_oneof![
        (prop::sample::select(&LONG_FIELDS[..]), long()),
        (
            prop::sample::select(&SHORT_FIELDS[..]),
            short().prop_map(i64::from)
        ),
    ]
}

thread_local! {
    /// Panics of this thread, on which the whole agent of a test runs, those that were contained included.
    static PANICS: Cell<u32> = const { Cell::new(0) };
}

fn count_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            PANICS.set(PANICS.get() + 1);
            before(info);
        }));
    });
    PANICS.set(0);
}

/// The real client, and a runtime that says yes to everything.
struct RealClient {
    reactor: tokio::runtime::Runtime,
    client: CriClient,
    _runtime: FakeCri,
}

impl RealClient {
    fn new() -> Self {
        let reactor = tokio::runtime::Runtime::new().unwrap();
        let (runtime, client) = reactor.block_on(async {
            let runtime = FakeCri::start().await.unwrap();
            let sandbox = v1::RunPodSandboxResponse {
                pod_sandbox_id: "s".to_owned(),
            };
            let container = v1::CreateContainerResponse {
                container_id: "c".to_owned(),
            };
            runtime
                .on("RunPodSandbox", Reaction::answer(&sandbox))
                .on("CreateContainer", Reaction::answer(&container))
                .on("StopContainer", Reaction::answer(&v1::StopContainerResponse {}));
            let metrics = CriMetrics::register(&prometheus::Registry::new()).unwrap();
            let client = CriClient::lazy(&CriOptions::new(runtime.endpoint()), &metrics).unwrap();
            (runtime, client)
        });
        Self {
            reactor,
            client,
            _runtime: runtime,
        }
    }

    /// Sends again what the agent sent.
    fn repeat(&self, bed: &Bed) {
        let calls = async {
            for config in bed.line.sandbox_configs("web") {
                self.client.run_pod_sandbox(config, "").await.unwrap();
            }
            for name in ["web/main", "web/side"] {
                for config in bed.line.created(name) {
                    let sandbox = v1::PodSandboxConfig::default();
                    self.client.create_container("s", config, sandbox).await.unwrap();
                }
            }
            for stop in bed.line.sent("StopContainer", Duration::ZERO) {
                self.client.stop_container("c", stop.grace_seconds).await.unwrap();
            }
        };
        self.reactor.block_on(calls);
    }
}

/// Takes one pod through its life: it starts, a container crashes, it is deleted, the node looks for garbage.
fn live(
    real: &RealClient,
    changes: &[(&str, i64)],
    deletion_grace: Option<i64>,
) -> Result<Bed, TestCaseError> {
    count_panics();
    let mut spec = usual_spec();
    for (place, number) in changes {
        *spec.pointer_mut(place).unwrap() = json!(number);
    }
    let mut bed = Bed::in_cluster();
    let mut pod = ApiPod::new("web", &[]);
    pod.spec = spec;
    bed.create(&pod);
    bed.pass(Duration::from_secs(20));
    bed.runtime.crash_container(0, 1);
    bed.pass(Duration::from_secs(20));
    bed.api().delete(UID, deletion_grace);
    bed.pass(Duration::from_secs(90));
    prop_assert_eq!(
        PANICS.get(),
        0,
        "{:?} {:?}: a panic\n{}",
        changes,
        deletion_grace,
        bed.trace()
    );
    for stop in bed.line.sent("StopContainer", Duration::ZERO) {
        let grace = stop.grace_seconds;
        prop_assert!(
            (0..=MAX_PERIOD_SECONDS).contains(&grace),
            "{changes:?}: {grace} s of grace"
        );
    }
    real.repeat(&bed);
    Ok(bed)
}

#[test]
fn no_number_upsets_the_agent_or_the_client() {
    let real = RealClient::new();
    let mut runner = TestRunner::new(Config {
        cases: 48,
        failure_persistence: None,
        ..Config::default()
    });
    let cases = (prop::collection::vec(change(), 1..4), prop::option::of(long()));
    runner
        .run(&cases, |(changes, deletion_grace)| {
            live(&real, &changes, deletion_grace).map(drop)
        })
        .unwrap();
}

/// Without any change the pod runs, so that the numbers above are looked at.
#[test]
fn the_usual_pod_runs_and_ends() {
    let real = RealClient::new();
    let bed = live(&real, &[], None).unwrap();
    for name in ["web/main", "web/side"] {
        assert!(
            !bed.line.sent_about("StopContainer", name).is_empty(),
            "{name}\n{}",
            bed.trace()
        );
    }
    for field in LONG_FIELDS.iter().chain(&SHORT_FIELDS) {
        assert!(usual_spec().pointer(field).is_some(), "{field}");
    }
}

/// The number of the report that this test comes from.
#[test]
fn a_pod_with_the_longest_grace_period_can_be_deleted() {
    let real = RealClient::new();
    let mut bed = Bed::in_cluster();
    let pod = ApiPod::new("web", &["term=10:0"]).spec("terminationGracePeriodSeconds", json!(i64::MAX));
    bed.create_and_wait(&pod);
    bed.api().delete(UID, None);
    bed.wait_gone(UID, Duration::from_secs(30));
    let stops = bed.line.sent("StopContainer", Duration::ZERO);
    assert_eq!(stops.len(), 1);
    assert_eq!(stops[0].grace_seconds, MAX_PERIOD_SECONDS);
    real.repeat(&bed);
}

/// A search for garbage that panics is one that found nothing.
#[test]
fn a_panic_while_garbage_is_collected_does_not_end_the_process() {
    let mut bed = Bed::in_cluster();
    bed.create_and_wait(&ApiPod::new("web", &[]));
    bed.line.fault("ListContainers", "garbage", Fault::Panic, 2);
    let searches = |bed: &Bed| bed.line.sent_about("ListContainers", "garbage").len();
    let before = searches(&bed);
    bed.wait("the node is searched again", Duration::from_secs(600), |bed| {
        searches(bed) > before + 2
    });
    // Writing down where a task panicked takes long, and is no stall of its own.
    bed.executor.take_panics();
    assert!(!bed.trace().contains("FATAL"), "{}", bed.trace());
    assert!(super::cluster::holds(&bed.api_status(UID), "Ready"));
}
