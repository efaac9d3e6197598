//! Who is let in, why not, and who has to make room, in upstream's words.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use proptest::prelude::*;
use rubelet_model::Pressure;
use rubelet_model::observation::PodUid;
use rubelet_resources::Rules;
use rubelet_resources::admission::capabilities::missing_for_update;
use rubelet_resources::admission::{
    Allocatable, FeatureTerms, Judgement, KernelVersion, Ledger, NodeIdentity, NodeTerms, NodeView, Refusal,
    RuntimeFeatures, SysctlAllowlist,
};
use rubelet_resources::amounts::Amounts;
use serde_json::{Value, json};

pub(crate) fn amounts(list: &[(&str, &str)]) -> Amounts {
    let entry = |(name, text): &(&str, &str)| ((*name).to_owned(), text.parse().expect("a quantity"));
    list.iter().map(entry).collect()
}

pub(crate) fn terms() -> NodeTerms {
    let labels = [
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/hostname", "node"),
        ("rank", "7"),
    ];
    NodeTerms {
        identity: NodeIdentity {
            name: "node".to_owned(),
            labels: labels
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
        },
        allocatable: Allocatable::of(&amounts(&[
            ("cpu", "1"),
            ("memory", "1Gi"),
            ("ephemeral-storage", "10Gi"),
            ("pods", "3"),
            ("hugepages-2Mi", "4Mi"),
        ])),
        sysctls: SysctlAllowlist::new(Some(KernelVersion(5, 10)), &["kernel.msg*".to_owned()])
            .expect("a good pattern"),
        app_armor_problem: Some("AppArmor is not enabled on the host".to_owned()),
        features: FeatureTerms {
            restart_all_containers: true,
            declared: true,
            ..FeatureTerms::default()
        },
        rules: Rules::default(),
    }
}

/// A pod of the API with these requests of its one container.
pub(crate) fn pod(name: &str, requests: &[(&str, &str)]) -> Value {
    let requests: BTreeMap<&str, &str> = requests.iter().copied().collect();
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "annotations": {}},
        "spec": {"containers": [{"name": "main", "resources": {"requests": requests}}]},
        "status": {"phase": "Pending"},
    })
}

pub(crate) fn of_file(mut pod: Value) -> Value {
    pod["metadata"]["annotations"]["kubernetes.io/config.source"] = json!("file");
    pod
}

pub(crate) fn with(mut pod: Value, path: &str, value: Value) -> Value {
    *pod.pointer_mut(path).expect("the path") = value;
    pod
}

pub(crate) fn spec(mut pod: Value, field: &str, value: Value) -> Value {
    pod["spec"][field] = value;
    pod
}

pub(crate) fn read(pod: &Value) -> Pod {
    serde_json::from_value(pod.clone()).expect("a pod")
}

fn judge(terms: &NodeTerms, others: &[Value], newcomer: &Value) -> Judgement {
    judge_on(terms, &NodeView::default(), others, newcomer)
}

/// What becomes of the last pod when the others are in already, whether they fit or not.
pub(crate) fn judge_on(terms: &NodeTerms, view: &NodeView, others: &[Value], newcomer: &Value) -> Judgement {
    let mut ledger = Ledger::default();
    for (index, other) in others.iter().enumerate() {
        let holding = terms.holding(&read(other)).expect("good quantities");
        ledger.reserve(PodUid::from(format!("{index}")), holding);
    }
    let uid = PodUid::from("new");
    terms.judge(&uid, &read(newcomer), &ledger, RuntimeFeatures::default(), view)
}

pub(crate) fn refusal(judgement: Judgement) -> Option<Refusal> {
    match judgement {
        Judgement::Refused(refusal) | Judgement::Mislabelled(refusal) => Some(refusal),
        Judgement::Fits(_) | Judgement::Waits(_) | Judgement::Preempts { .. } => None,
    }
}

/// What another kubelet had of devices may still stand on the Node; the node itself has none until their plugin registers.
#[test]
fn devices_without_their_plugin_are_not_there() {
    let node = json!({"metadata": {"name": "node"}, "status": {"allocatable": {"example.com/gpu": "4", "example.com/dongle": "4"}}});
    let node = serde_json::from_value(node).expect("a Node");
    let view = NodeView::of(Some(&node), Pressure::default(), false);
    let mut terms = terms();
    terms.allocatable = Allocatable::of(&amounts(&[("cpu", "1"), ("pods", "3"), ("example.com/gpu", "0")]));
    let judged = |name: &str| {
        let refusal = refusal(judge_on(&terms, &view, &[], &pod("new", &[(name, "1")])));
        refusal.map(|refusal| refusal.reason)
    };
    assert_eq!(judged("example.com/gpu").as_deref(), Some("OutOfexample.com/gpu"));
    assert_eq!(judged("example.com/dongle"), None, "an administrator's");
    assert!(terms.lacks_devices("example.com/gpu"));
    assert!(!terms.lacks_devices("example.com/dongle") && !terms.lacks_devices("cpu"));
}

/// `reason: message`, or nothing for a pod that is let in.
fn check(others: &[Value], newcomer: &Value, expected: &str) {
    let refusal = refusal(judge(&terms(), others, newcomer));
    let text = refusal.map(|refusal| format!("{}: {}", refusal.reason, refusal.message));
    assert_eq!(text.unwrap_or_default(), expected, "{newcomer}");
}

#[test]
fn resources_fit_or_are_named() {
    let cpu = |text| pod("other", &[("cpu", text)]);
    check(&[cpu("600m")], &pod("p", &[("cpu", "400m")]), "");
    check(
        &[cpu("600m")],
        &pod("p", &[("cpu", "401m")]),
        "OutOfcpu: Node didn't have enough resource: cpu, requested: 401, used: 600, capacity: 1000",
    );
    check(
        &[],
        &pod("p", &[("memory", "2Gi"), ("cpu", "1")]),
        "OutOfmemory: Node didn't have enough resource: memory, requested: 2147483648, used: 0, capacity: 1073741824",
    );
    check(
        &[pod("other", &[("ephemeral-storage", "9Gi")])],
        &pod("p", &[("ephemeral-storage", "2Gi")]),
        "OutOfephemeral-storage: Node didn't have enough resource: ephemeral-storage, requested: 2147483648, \
         used: 9663676416, capacity: 10737418240",
    );
    check(
        &[],
        &pod("p", &[("hugepages-2Mi", "6Mi"), ("cpu", "1m")]),
        "OutOfhugepages-2Mi: Node didn't have enough resource: hugepages-2Mi, requested: 6291456, used: 0, \
         capacity: 4194304",
    );
    // Nobody here knows the device: it is somebody else's matter.
    check(&[], &pod("p", &[("example.com/device", "5")]), "");
    // Without requests a pod fits in everywhere but into the number of pods, also beside an overfull node.
    check(&[cpu("5")], &pod("p", &[]), "");
    check(
        &[pod("a", &[]), pod("b", &[]), pod("c", &[])],
        &pod("p", &[("cpu", "9")]),
        "OutOfpods: Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3",
    );
}

#[test]
fn host_ports_are_held_by_one() {
    let port = |name: &str, port: Value| {
        with(
            pod(name, &[]),
            "/spec/containers/0",
            json!({"name": "main", "ports": [port]}),
        )
    };
    let taken =
        "NodePorts: Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports";
    let held = port("other", json!({"containerPort": 80, "hostPort": 80}));
    check(
        std::slice::from_ref(&held),
        &port("p", json!({"containerPort": 1, "hostPort": 80})),
        taken,
    );
    check(
        std::slice::from_ref(&held),
        &port(
            "p",
            json!({"containerPort": 1, "hostPort": 80, "hostIP": "10.0.0.1"}),
        ),
        taken,
    );
    check(
        std::slice::from_ref(&held),
        &port(
            "p",
            json!({"containerPort": 80, "hostPort": 80, "protocol": "UDP"}),
        ),
        "",
    );
    check(&[held], &port("p", json!({"containerPort": 80})), "");
    let one = port(
        "other",
        json!({"containerPort": 80, "hostPort": 80, "hostIP": "10.0.0.1"}),
    );
    check(
        std::slice::from_ref(&one),
        &port(
            "p",
            json!({"containerPort": 80, "hostPort": 80, "hostIP": "10.0.0.2"}),
        ),
        "",
    );
    check(
        &[one],
        &port("p", json!({"containerPort": 80, "hostPort": 80})),
        taken,
    );
    // An init container that ends holds nothing; a sidecar does.
    let init = |restart: Value| {
        let ports = json!([{"containerPort": 80, "hostPort": 80}]);
        spec(
            pod("other", &[]),
            "initContainers",
            json!([{"name": "i", "ports": ports, "restartPolicy": restart}]),
        )
    };
    let wants = port("p", json!({"containerPort": 80, "hostPort": 80}));
    check(&[init(json!(null))], &wants, "");
    check(&[init(json!("Always"))], &wants, taken);
}

#[test]
fn sysctls_are_safe_or_allowed() {
    let set = |name: &str| {
        spec(
            pod("p", &[]),
            "securityContext",
            json!({"sysctls": [{"name": name, "value": "1"}]}),
        )
    };
    let forbidden = |text: &str| format!("SysctlForbidden: forbidden sysctl: {text}");
    check(&[], &set("net.ipv4.tcp_rmem"), "");
    check(&[], &set("net/ipv4/tcp_rmem"), "");
    check(&[], &set("kernel.msgmax"), "");
    check(
        &[],
        &set("net.core.somaxconn"),
        &forbidden("\"net.core.somaxconn\" not allowlisted"),
    );
    check(
        &[],
        &set("vm.swappiness"),
        &forbidden("\"vm.swappiness\" not allowlisted"),
    );
    check(
        &[],
        &spec(set("net.ipv4.tcp_rmem"), "hostNetwork", json!(true)),
        &forbidden("\"net.ipv4.tcp_rmem\" not allowed with host Net enabled"),
    );
    check(
        &[],
        &spec(set("kernel.msgmax"), "hostIPC", json!(true)),
        &forbidden("\"kernel.msgmax\" not allowed with host IPC enabled"),
    );
    let list = |patterns: &[&str]| {
        let patterns: Vec<String> = patterns.iter().map(|text| (*text).to_owned()).collect();
        SysctlAllowlist::new(Some(KernelVersion(4, 5)), &patterns)
    };
    assert!(list(&["net.*", "fs.mqueue.*", "user.max_user_namespaces", "net/core/*"]).is_ok());
    for bad in [
        "kernel.*",
        "*",
        "vm.swappiness",
        "net.*.x",
        "net..x",
        "Net.x",
        "",
        "-net.x",
        "net.x*y",
    ] {
        assert!(list(&[bad]).is_err(), "{bad}");
    }
    let user = list(&["user.*"]).expect("a good pattern");
    let wants = set("user.max_user_namespaces");
    assert!(user.check(&read(&wants)).is_some(), "the host's user namespace");
    assert_eq!(user.check(&read(&spec(wants, "hostUsers", json!(false)))), None);
    // 4.15 brought each pod its own value.
    assert!(user.check(&read(&set("net.ipv4.tcp_rmem"))).is_some());
    assert_eq!(KernelVersion::parse("6.1.0-28-amd64"), Some(KernelVersion(6, 1)));
    assert_eq!(KernelVersion::parse("unknown"), None);
}

#[test]
fn the_node_has_to_be_the_right_one() {
    let affinity =
        "NodeAffinity: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector";
    check(
        &[],
        &spec(
            pod("p", &[]),
            "nodeSelector",
            json!({"kubernetes.io/os": "linux"}),
        ),
        "",
    );
    check(
        &[],
        &spec(pod("p", &[]), "nodeSelector", json!({"disk": "ssd"})),
        affinity,
    );
    let required = |terms: Value| {
        let selector = json!({"nodeSelectorTerms": terms});
        let required = json!({"requiredDuringSchedulingIgnoredDuringExecution": selector});
        spec(pod("p", &[]), "affinity", json!({"nodeAffinity": required}))
    };
    let label = |key: &str, operator: &str, values: Value| json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
    check(&[], &required(json!([label("rank", "Gt", json!(["6"]))])), "");
    check(
        &[],
        &required(json!([label("rank", "Gt", json!(["7"]))])),
        affinity,
    );
    check(
        &[],
        &required(json!([
            label("rank", "Lt", json!(["x"])),
            label("none", "DoesNotExist", json!([]))
        ])),
        "",
    );
    check(
        &[],
        &required(json!([label("rank", "NotIn", json!(["7", "8"]))])),
        affinity,
    );
    check(&[], &required(json!([{}])), affinity);
    let field = json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node"]}]});
    check(&[], &required(json!([field])), "");
    check(
        &[],
        &spec(pod("p", &[]), "nodeName", json!("elsewhere")),
        "NodeName: Predicate NodeName failed: node(s) didn't match the requested node name",
    );
    check(
        &[],
        &spec(pod("p", &[]), "os", json!({"name": "windows"})),
        "PodOSNotSupported: Failed to admit pod as the OS field doesn't match node OS",
    );
    check(
        &[],
        &with(
            pod("p", &[]),
            "/metadata",
            json!({"name": "p", "labels": {"kubernetes.io/os": "windows"}}),
        ),
        "PodOSSelectorNodeLabelDoesNotMatch: Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
    );
}

#[test]
fn the_node_has_to_be_able() {
    let context = |context: Value| spec(pod("p", &[]), "securityContext", context);
    let armor = "AppArmor: Cannot enforce AppArmor: AppArmor is not enabled on the host";
    check(
        &[],
        &context(json!({"appArmorProfile": {"type": "RuntimeDefault"}})),
        armor,
    );
    check(
        &[],
        &context(json!({"appArmorProfile": {"type": "Unconfined"}})),
        "",
    );
    let annotated = |value: &str| {
        let key = "container.apparmor.security.beta.kubernetes.io/main";
        with(pod("p", &[]), "/metadata/annotations", json!({key: value}))
    };
    check(&[], &annotated("localhost/x"), armor);
    check(&[], &annotated("unconfined"), "");
    check(
        &[],
        &context(json!({"supplementalGroupsPolicy": "Strict"})),
        "SupplementalGroupsPolicyNotSupported: SupplementalGroupsPolicy=Strict is not supported in this node",
    );
    check(&[], &context(json!({"supplementalGroupsPolicy": "Merge"})), "");
    let rules = json!([{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [1]}}]);
    let restarts = with(
        pod("p", &[]),
        "/spec/containers/0",
        json!({"name": "main", "restartPolicyRules": rules}),
    );
    check(&[], &restarts, "");
    let mut without = terms();
    without.features.restart_all_containers = false;
    without.rules.pod_level_resources = false;
    let missing = refusal(judge(&without, &[], &restarts)).expect("refused");
    assert_eq!(missing.reason, "PodFeatureUnsupported");
    assert_eq!(
        missing.message,
        "Pod requires node features that are not available: RestartAllContainersOnContainerExits"
    );
    let whole = spec(pod("p", &[]), "resources", json!({"limits": {"cpu": "1"}}));
    let gate = refusal(judge(&without, &[], &whole)).expect("refused");
    assert_eq!(gate.reason, "PodLevelResourcesNotSupported");
    assert_eq!(gate.message, "PodLevelResources feature gate is disabled");
    check(&[], &whole, "");
}

fn victims(others: &[Value], newcomer: &Value) -> Vec<String> {
    match judge(&terms(), others, newcomer) {
        Judgement::Preempts { victims, .. } => victims.iter().map(ToString::to_string).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn critical_pods_take_the_place_of_others() {
    let guaranteed = |cpu: &str| {
        let list = json!({"cpu": cpu, "memory": "1Mi"});
        with(
            pod("g", &[]),
            "/spec/containers/0/resources",
            json!({"requests": list, "limits": list}),
        )
    };
    let burstable = |cpu: &str| pod("b", &[("cpu", cpu)]);
    let wants = of_file(pod("p", &[("cpu", "500m")]));
    // Nobody Guaranteed ends when a Burstable one is enough, and the nearest one is taken.
    assert_eq!(victims(&[guaranteed("500m"), burstable("500m")], &wants), ["1"]);
    assert_eq!(victims(&[burstable("300m"), burstable("600m")], &wants), ["1"]);
    // Of two that are both enough, the smaller.
    assert_eq!(victims(&[burstable("550m"), burstable("450m")], &wants), ["0"]);
    let others = [burstable("200m"), burstable("300m"), guaranteed("500m")];
    assert_eq!(
        victims(&others, &of_file(pod("p", &[("cpu", "1")]))),
        ["1", "0", "2"]
    );
    // A port in somebody's hand is nothing that the end of others would help with.
    let port = json!([{"containerPort": 1, "hostPort": 1}]);
    let mut held = burstable("900m");
    held["spec"]["containers"][0]["ports"] = port.clone();
    let mut both = wants.clone();
    both["spec"]["containers"][0]["ports"] = port;
    check(
        &[held],
        &both,
        "NodePorts: Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports",
    );
}

#[test]
fn static_pods_do_not_end_each_other_without_a_priority() {
    let other = of_file(pod("other", &[("cpu", "800m")]));
    let wants = of_file(pod("p", &[("cpu", "500m")]));
    check(
        std::slice::from_ref(&other),
        &wants,
        "UnexpectedAdmissionError: Unexpected error while attempting to recover from admission failure: preemption: \
         error finding a set of pods to preempt: no set of running pods found to reclaim resources: [(res: cpu, q: 300), ]",
    );
    let told = refusal(judge(&terms(), std::slice::from_ref(&other), &wants)).expect("refused");
    assert!(told.is_for_now);
    assert_eq!(
        told.detail.as_deref(),
        Some("Node didn't have enough resource: cpu, requested: 500, used: 800, capacity: 1000")
    );
    let ranked = |pod: Value, priority: i32| spec(pod, "priority", json!(priority));
    let others = [ranked(other.clone(), 1)];
    assert_eq!(victims(&others, &ranked(wants.clone(), 2)), ["0"]);
    assert!(refusal(judge(&terms(), &others, &ranked(wants.clone(), 1))).is_some());
    // An edited static pod follows itself: it is not in its own way, and counts once.
    let edited = of_file(pod("other", &[("cpu", "900m")]));
    check(std::slice::from_ref(&other), &edited, "");
    let mut ledger = Ledger::default();
    for (uid, version) in [("old", &other), ("new", &edited)] {
        ledger.reserve(PodUid::from(uid), terms().holding(&read(version)).expect("good"));
    }
    let total = ledger.total();
    assert_eq!((total.pods, total.need.milli_cpu), (1, 900));
    assert!(ledger.release(&PodUid::from("new")) && !ledger.release(&PodUid::from("new")));
    assert_eq!(ledger.total().need.milli_cpu, 800);
}

#[test]
fn resizes_need_features_that_are_not_declared() {
    let amounts = |cpu: &str| json!({"requests": {"cpu": cpu}});
    let volume = |medium: &str, limit: &str| json!([{"name": "v", "emptyDir": {"medium": medium, "sizeLimit": limit}}]);
    let init = |cpu: &str| json!([{"name": "i", "resources": amounts(cpu)}]);
    let check = |field: &str, old: Value, new: Value, expected: &[&str]| {
        let (old, new) = (spec(pod("p", &[]), field, old), spec(pod("p", &[]), field, new));
        assert_eq!(
            missing_for_update(&read(&old), &read(&new), FeatureTerms::default()),
            expected,
            "{old} {new}"
        );
    };
    let whole = "InPlacePodLevelResourcesVerticalScaling";
    let in_memory = "InPlacePodVerticalScalingMemoryBackedVolumes";
    check("resources", amounts("1"), amounts("1"), &[]);
    check("resources", amounts("1"), amounts("2"), &[whole]);
    // Every node of this version resizes init containers.
    check("initContainers", init("1"), init("2"), &[]);
    check(
        "volumes",
        volume("Memory", "1Mi"),
        volume("Memory", "2Mi"),
        &[in_memory],
    );
    check("volumes", volume("", "1Mi"), volume("", "2Mi"), &[]);
    let (old, new) = (
        spec(pod("p", &[]), "resources", amounts("1")),
        spec(pod("p", &[]), "resources", amounts("2")),
    );
    let can = FeatureTerms {
        pod_level_resize: true,
        ..FeatureTerms::default()
    };
    assert_eq!(missing_for_update(&read(&old), &read(&new), can), [""; 0]);
}

/// What becomes of the newcomer beside pods of which some terminate.
fn check_terminating(others: &[(Value, bool)], newcomer: &Value, expected: &str) {
    let terms = terms();
    let mut ledger = Ledger::default();
    for (index, (other, is_terminating)) in others.iter().enumerate() {
        let uid = PodUid::from(format!("{index}"));
        ledger.reserve(uid.clone(), terms.holding(&read(other)).expect("good quantities"));
        if *is_terminating {
            ledger.set_terminating(&uid);
        }
    }
    let (uid, pod, view) = (PodUid::from("new"), read(newcomer), NodeView::default());
    let judgement = terms.judge(&uid, &pod, &ledger, RuntimeFeatures::default(), &view);
    let text = match judgement {
        Judgement::Fits(_) => "fits".to_owned(),
        Judgement::Waits(_) => "waits".to_owned(),
        Judgement::Preempts { victims, .. } => format!("preempts {victims:?}"),
        Judgement::Refused(refusal) | Judgement::Mislabelled(refusal) => refusal.reason,
    };
    assert_eq!(text, expected, "{newcomer} beside {others:?}");
}

#[test]
fn a_pod_waits_for_what_terminating_pods_hold() {
    let cpu = |milli: i64| pod("p", &[("cpu", &format!("{milli}m"))]);
    let (stays, ends) = (false, true);
    check_terminating(&[(cpu(700), ends)], &cpu(300), "fits");
    check_terminating(&[(cpu(700), ends)], &cpu(500), "waits");
    check_terminating(&[(cpu(700), stays)], &cpu(500), "OutOfcpu");
    // What only stays is enough to refuse it.
    check_terminating(&[(cpu(700), stays), (cpu(300), ends)], &cpu(500), "OutOfcpu");
    check_terminating(&[(cpu(500), stays), (cpu(300), ends)], &cpu(500), "waits");
    check_terminating(&[(cpu(700), ends)], &cpu(1100), "OutOfcpu");
    // The number of pods, and ports of the host.
    let full = [(cpu(0), stays), (cpu(0), stays), (cpu(0), ends)];
    check_terminating(&full, &cpu(0), "waits");
    let mut listens = cpu(100);
    listens["spec"]["containers"][0]["ports"] = json!([{"containerPort": 1, "hostPort": 1}]);
    check_terminating(&[(listens.clone(), stays)], &listens, "NodePorts");
    check_terminating(&[(listens.clone(), ends)], &listens, "waits");
    // A critical pod preempts only what terminating pods do not free anyway.
    let critical = |milli: i64| of_file(cpu(milli));
    let others = [(cpu(600), ends), (cpu(400), stays)];
    check_terminating(&others, &critical(600), "waits");
    check_terminating(&others, &critical(700), "preempts [PodUid(\"1\")]");
}

proptest! {
    /// Whatever comes and goes: nobody is let in beyond what the node has, and everybody who ends gives back all.
    #[test]
    fn admissions_never_exceed_the_node(
        steps in prop::collection::vec((0..12_usize, 0..1200_i64, 0..4_i64, any::<bool>(), any::<bool>()), 1..60),
    ) {
        let terms = terms();
        let mut ledger = Ledger::default();
        for (name, milli, memory, is_static, ends) in steps {
            let uid = PodUid::from(format!("{name}"));
            if ends {
                ledger.release(&uid);
                continue;
            }
            let (cpu, memory) = (format!("{milli}m"), format!("{memory}00Mi"));
            let value = pod(&format!("p{name}"), &[("cpu", cpu.as_str()), ("memory", memory.as_str())]);
            let value = if is_static { of_file(value) } else { value };
            let view = NodeView::default();
            match terms.judge(&uid, &read(&value), &ledger, RuntimeFeatures::default(), &view) {
                Judgement::Fits(holding) | Judgement::Waits(holding) => ledger.reserve(uid, holding),
                Judgement::Preempts { holding, victims, .. } => {
                    for victim in victims {
                        prop_assert!(ledger.release(&victim));
                    }
                    ledger.reserve(uid, holding);
                }
                Judgement::Refused(_) | Judgement::Mislabelled(_) => {}
            }
            let total = ledger.total();
            prop_assert!(total.pods <= terms.allocatable.pods);
            prop_assert!(total.need.milli_cpu <= terms.allocatable.resources.milli_cpu);
            prop_assert!(total.need.memory_bytes <= terms.allocatable.resources.memory_bytes);
        }
        let all: Vec<PodUid> = ledger.holdings().map(|(uid, _)| uid.clone()).collect();
        for uid in all {
            ledger.release(&uid);
        }
        prop_assert_eq!(ledger.total().need.milli_cpu, 0);
    }
}
