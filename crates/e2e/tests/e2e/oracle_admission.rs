//! Generated pods on generated nodes: who is let in, with which words not, and who has to make room is upstream's.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Node, Pod};
use rubelet_model::Pressure;
use rubelet_model::observation::PodUid;
use rubelet_resources::Rules;
use rubelet_resources::admission::{
    Allocatable, FeatureTerms, Judgement, KernelVersion, Ledger, NodeIdentity, NodeTerms, NodeView,
    RuntimeFeatures, SysctlAllowlist,
};
use rubelet_resources::amounts::Amounts;
use rubelet_testbed::oracle::Oracle;
use serde_json::{Map, Value, json};

use crate::oracle_ours::{Differences, Seeded, seeds};

const CASES: u64 = 8_000;
const NODE: &str = "node-a";
const PATTERNS: &[&str] = &[
    "net.core.somaxconn",
    "net.*",
    "net.ipv4.*",
    "kernel.shm*",
    "kernel.msg*",
    "kernel.sem",
    "fs.mqueue.*",
    "user.*",
    "kernel.domainname",
    "net/ipv4/conf.all/x",
    "kernel.*",
    "*",
    "vm.swappiness",
    "net.*.x",
    "net..x",
    "Net.x",
    "",
    "-net.x",
    "net.x-",
    "net.x_*",
    "net.-x*",
    "kernel.sem*",
    "net/core/*",
    "net.x/y*",
];
/// Beside memory alone, which lets some in.
const PRESSURES: &[&[&str]] = &[
    &["DiskPressure"],
    &["PIDPressure"],
    &["MemoryPressure", "PIDPressure"],
];
const SYSCTLS: &[&str] = &[
    "net.ipv4.tcp_rmem",
    "net/ipv4/tcp_wmem",
    "kernel.shm_rmid_forced",
    "net.core.somaxconn",
    "kernel.shmmax",
    "kernel.msgmax",
    "kernel.sem",
    "fs.mqueue.msg_max",
    "user.max_user_namespaces",
    "vm.swappiness",
];

fn list(random: &mut Seeded) -> Value {
    let mut list = Map::new();
    let mut maybe = |random: &mut Seeded, odds: usize, name: &str, values: &[&str]| {
        if random.below(odds) == 0 {
            list.insert(name.to_owned(), json!(random.one_of(values)));
        }
    };
    maybe(
        random,
        2,
        "cpu",
        &["0", "1m", "100m", "250m", "900m", "1", "1500m", "0.0001"],
    );
    maybe(
        random,
        2,
        "memory",
        &["0", "1", "64Mi", "256Mi", "1Gi", "1500m", "1e9"],
    );
    maybe(random, 8, "hugepages-2Mi", &["0", "2Mi", "4Mi", "8Mi"]);
    maybe(random, 8, "ephemeral-storage", &["0", "1Gi", "3Gi", "8Gi"]);
    maybe(random, 12, "example.com/known", &["1", "3"]);
    maybe(random, 12, "example.com/unknown", &["1", "3"]);
    Value::Object(list)
}

fn ports(random: &mut Seeded) -> Value {
    let mut ports = Vec::new();
    for _ in 0..random.below(3) {
        let mut port = json!({"containerPort": 80, "hostPort": *random.one_of(&[0, 80, 81])});
        if random.below(3) == 0 {
            port["hostIP"] = json!(*random.one_of(&["0.0.0.0", "10.0.0.1", "10.0.0.2", "::", ""]));
        }
        if random.below(3) == 0 {
            port["protocol"] = json!(*random.one_of(&["TCP", "UDP", "SCTP"]));
        }
        ports.push(port);
    }
    json!(ports)
}

fn container(random: &mut Seeded, name: &str) -> Value {
    let both = list(random);
    let resources = match random.below(4) {
        0 => json!({}),
        1 => json!({"requests": both, "limits": both}),
        _ => json!({"requests": both}),
    };
    let mut container = json!({"name": name, "resources": resources});
    if random.below(5) == 0 {
        container["ports"] = ports(random);
    }
    if random.below(24) == 0 {
        container["restartPolicyRules"] = json!([{"action": "RestartAllContainers"}]);
    }
    container
}

fn pod(random: &mut Seeded, name: &str) -> Value {
    let mut containers = Vec::new();
    for index in 0..=random.below(2) {
        containers.push(container(random, &format!("c{index}")));
    }
    let mut spec = json!({"containers": containers});
    if random.below(4) == 0 {
        let mut init = container(random, "i");
        if random.below(2) == 0 {
            init["restartPolicy"] = json!("Always");
        }
        spec["initContainers"] = json!([init]);
    }
    if random.below(8) == 0 {
        spec["resources"] = json!({"requests": list(random)});
    }
    if random.below(8) == 0 {
        spec["overhead"] = json!({"cpu": "10m", "memory": "1Mi"});
    }
    if random.below(3) == 0 {
        spec["priority"] = json!(*random.one_of(&[0, 1, 5, 1_999_999_999, 2_000_000_000, 2_000_001_000]));
    }
    let mut metadata = json!({"name": name, "namespace": "n", "uid": name});
    if random.below(3) == 0 {
        let source = *random.one_of(&["api", "file", "http"]);
        metadata["annotations"] = json!({"kubernetes.io/config.source": source});
    }
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": "Pending"}})
}

fn requirement(random: &mut Seeded) -> Value {
    let operator = *random.one_of(&["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]);
    let number = *random.one_of(&["1", "7", "-3", "9", "x"]);
    let values = match operator {
        // The API server lets no such pod in; upstream has an answer all the same.
        _ if random.below(16) == 0 => json!(["a", "b"]),
        "Exists" | "DoesNotExist" => json!([]),
        "Gt" | "Lt" => json!([number]),
        _ if random.below(16) == 0 => json!([]),
        _ => json!([*random.one_of(&["ssd", "7", "linux", "not a label!"]), "hdd"]),
    };
    let key = match random.below(20) {
        0 => "a key?",
        _ => *random.one_of(&["disk", "rank", "kubernetes.io/os", "none"]),
    };
    json!({"key": key, "operator": operator, "values": values})
}

fn toleration(random: &mut Seeded) -> Value {
    let mut toleration = json!({});
    let mut maybe = |random: &mut Seeded, field: &str, values: &[&str]| {
        if random.below(3) != 0 {
            toleration[field] = json!(random.one_of(values));
        }
    };
    maybe(
        random,
        "key",
        &["broken", "age", "node.kubernetes.io/memory-pressure", ""],
    );
    maybe(
        random,
        "operator",
        &["Exists", "Exists", "Equal", "", "Lt", "Gt", "odd"],
    );
    maybe(random, "value", &["yes", "10", "5", "-5", "05", ""]);
    maybe(random, "effect", &["NoExecute", "NoSchedule", ""]);
    toleration
}

fn taints(random: &mut Seeded) -> Value {
    let mut taints = Vec::new();
    for _ in 0..random.below(3) {
        let key = *random.one_of(&["broken", "age"]);
        let value = *random.one_of(&["yes", "10", "-1", "", "x"]);
        let effect = *random.one_of(&["NoExecute", "NoExecute", "NoSchedule", "PreferNoSchedule"]);
        taints.push(json!({"key": key, "value": value, "effect": effect}));
    }
    json!(taints)
}

fn labels(random: &mut Seeded) -> Value {
    let mut labels = json!({});
    if random.below(8) == 0 {
        return labels;
    }
    labels["kubernetes.io/os"] = json!(*random.one_of(&["linux", "linux", "linux", "windows"]));
    if random.below(4) != 0 {
        labels["disk"] = json!(*random.one_of(&["ssd", "ssd", "hdd"]));
    }
    if random.below(4) != 0 {
        labels["rank"] = json!(*random.one_of(&["7", "7", "-3", "high"]));
    }
    labels
}

fn affinity(random: &mut Seeded) -> Value {
    let mut terms = Vec::new();
    for _ in 0..=random.below(2) {
        let mut term = json!({});
        if random.below(4) != 0 {
            let expressions: Vec<Value> = (0..=random.below(2)).map(|_| requirement(random)).collect();
            term["matchExpressions"] = json!(expressions);
        }
        if random.below(4) == 0 {
            let operator = *random.one_of(&["In", "NotIn", "NotIn", "Exists"]);
            let value = *random.one_of(&[NODE, "elsewhere"]);
            let key = *random.one_of(&["metadata.name", "metadata.name", "metadata.name", "metadata.uid"]);
            term["matchFields"] = json!([{"key": key, "operator": operator, "values": [value]}]);
        }
        terms.push(term);
    }
    let selector = json!({"nodeSelectorTerms": terms});
    json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": selector}})
}

/// The one that comes: it has more to be refused for.
fn newcomer(random: &mut Seeded) -> Value {
    let mut pod = pod(random, "new");
    let spec = &mut pod["spec"];
    let mut rarely = |random: &mut Seeded, odds: usize, field: &str, value: Value| {
        if random.below(odds) == 0 {
            spec[field] = value;
        }
    };
    rarely(random, 12, "nodeName", json!("elsewhere"));
    rarely(random, 4, "nodeName", json!(NODE));
    rarely(random, 12, "os", json!({"name": "windows"}));
    rarely(random, 12, "nodeSelector", json!({"disk": "ssd"}));
    rarely(random, 16, "nodeSelector", json!({"disk": "tape"}));
    rarely(random, 12, "hostNetwork", json!(true));
    rarely(random, 12, "hostIPC", json!(true));
    rarely(random, 12, "hostUsers", json!(false));
    let wanted = affinity(random);
    rarely(random, 4, "affinity", wanted);
    let tolerations: Vec<Value> = (0..=random.below(2)).map(|_| toleration(random)).collect();
    rarely(random, 2, "tolerations", json!(tolerations));
    let mut context = json!({});
    if random.below(4) == 0 {
        context["sysctls"] = json!([{"name": random.one_of(SYSCTLS), "value": "1"}]);
    }
    if random.below(12) == 0 {
        context["supplementalGroupsPolicy"] = json!(*random.one_of(&["Strict", "Merge"]));
    }
    if random.below(12) == 0 {
        context["appArmorProfile"] = json!({"type": *random.one_of(&["RuntimeDefault", "Unconfined"])});
    }
    pod["spec"]["securityContext"] = context;
    if random.below(12) == 0 {
        pod["metadata"]["labels"] = json!({"kubernetes.io/os": *random.one_of(&["linux", "windows"])});
    }
    if random.below(12) == 0 {
        let class = *random.one_of(&["BestEffort", "Burstable", "Guaranteed"]);
        pod["status"]["qosClass"] = json!(class);
    }
    if random.below(12) == 0 {
        let mapping = json!({
            "containerName": *random.one_of(&["c0", "c1", "i"]),
            "resourceName": *random.one_of(&["example.com/known", "example.com/unknown"]),
            "requestName": "r",
        });
        let claims = json!({"resourceClaimName": "claim", "requestMappings": [mapping]});
        pod["status"]["extendedResourceClaimStatus"] = claims;
    }
    pod
}

fn input(random: &mut Seeded) -> Value {
    let others: Vec<Value> = (0..random.below(5))
        .map(|index| pod(random, &format!("p{index}")))
        .collect();
    // Which of two that are short upstream names is left to chance: only one ever is.
    let (pages, devices) = *random.one_of(&[("4Mi", "1000"), ("64Mi", "1000"), ("1Gi", "2")]);
    let allocatable = json!({
        "cpu": *random.one_of(&["1", "2", "3900m"]),
        "memory": *random.one_of(&["512Mi", "1Gi", "4Gi"]),
        "ephemeral-storage": *random.one_of(&["4Gi", "20Gi"]),
        "pods": *random.one_of(&["3", "5", "110"]),
        "hugepages-2Mi": pages,
        "example.com/known": devices,
    });
    let mut sysctls = vec!["net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem", "kernel.shm_rmid_forced"];
    if random.below(2) == 0 {
        sysctls.push(*random.one_of(&["net.*", "kernel.msg*", "user.*", "fs.mqueue.*", "kernel.sem"]));
    }
    let features: Vec<&str> = match random.below(2) {
        0 => Vec::new(),
        _ => vec!["RestartAllContainersOnContainerExits"],
    };
    let gates = match random.below(6) {
        1 => json!({"TaintTolerationComparisonOperators": true}),
        0 => json!({
            "PodLevelResources": false, "PodLevelResourcesFixKubeletQOSClass": false,
            "PodLevelResourcesFixDefaulting": false, "InPlacePodLevelResourcesVerticalScaling": false,
        }),
        _ => json!({}),
    };
    let conditions: &[&str] = match random.below(8) {
        0 => &["MemoryPressure"],
        1 => random.one_of::<&[&str]>(PRESSURES),
        _ => &[],
    };
    let node = json!({
        "metadata": {"name": NODE, "labels": labels(random)},
        "spec": {"taints": if random.below(3) == 0 { taints(random) } else { json!([]) }},
        "status": {
            "allocatable": allocatable,
            "features": {"supplementalGroupsPolicy": random.below(2) == 0},
        },
    });
    let mut fresh = node.clone();
    if random.below(2) == 0 {
        fresh["metadata"]["labels"] = labels(random);
    }
    let labels = fresh["metadata"]["labels"].as_object_mut();
    if let Some(labels) = labels.filter(|labels| !labels.is_empty()) {
        // Upstream corrects this one where it looks first, and only there.
        labels.insert("kubernetes.io/os".to_owned(), json!("linux"));
    }
    json!({
        "node": node, "fresh": fresh, "conditions": conditions,
        "pod": newcomer(random), "others": others, "sysctls": sysctls, "features": features, "gates": gates,
    })
}

fn view(input: &Value, which: &str) -> Result<NodeView> {
    let node: Node = serde_json::from_value(input[which].clone())?;
    let conditions = strings(&input["conditions"]);
    let has = |name: &str| conditions.iter().any(|condition| condition == name);
    let pressure = Pressure {
        memory: has("MemoryPressure"),
        disk: has("DiskPressure"),
        pid: has("PIDPressure"),
    };
    Ok(NodeView::of(Some(&node), pressure, false))
}

fn strings(value: &Value) -> Vec<String> {
    let texts = value.as_array().into_iter().flatten().filter_map(Value::as_str);
    texts.map(ToOwned::to_owned).collect()
}

fn terms(input: &Value, app_armor_problem: Option<String>) -> Result<NodeTerms> {
    let list = serde_json::from_value(input["node"]["status"]["allocatable"].clone())?;
    let allocatable = Amounts::read(Some(&list)).map_err(|(name, _)| anyhow::anyhow!(name))?;
    // What nobody but the API server knows of comes with the view.
    let own = allocatable.iter().filter(|(name, _)| !name.contains('/'));
    let allocatable: Amounts = own
        .map(|(name, quantity)| (name.to_owned(), quantity.clone()))
        .collect();
    let gate = |name: &str| input["gates"][name].as_bool().unwrap_or(true);
    Ok(NodeTerms {
        identity: NodeIdentity {
            name: NODE.to_owned(),
            labels: BTreeMap::new(),
        },
        allocatable: Allocatable::of(&allocatable),
        sysctls: SysctlAllowlist::new(Some(KernelVersion(4, 15)), &strings(&input["sysctls"]))?,
        app_armor_problem,
        features: FeatureTerms {
            restart_all_containers: !strings(&input["features"]).is_empty(),
            declared: true,
            toleration_comparison: input["gates"]["TaintTolerationComparisonOperators"] == true,
            ..FeatureTerms::default()
        },
        rules: Rules {
            pod_level_resources: gate("PodLevelResources"),
            empty_pod_level_decides_class: !gate("PodLevelResourcesFixKubeletQOSClass"),
            ..Rules::default()
        },
    })
}

fn ours(input: &Value, app_armor_problem: Option<String>) -> Result<Value> {
    let terms = terms(input, app_armor_problem)?;
    let mut ledger = Ledger::default();
    for other in input["others"].as_array().into_iter().flatten() {
        let pod: Pod = serde_json::from_value(other.clone())?;
        let uid = pod.metadata.uid.clone().context("a uid")?;
        ledger.reserve(PodUid::from(uid), terms.holding(&pod)?);
    }
    let pod: Pod = serde_json::from_value(input["pod"].clone())?;
    let runtime = RuntimeFeatures {
        supplemental_groups_policy: input["node"]["status"]["features"]["supplementalGroupsPolicy"] == true,
        ..RuntimeFeatures::default()
    };
    let judge = |view: &NodeView| terms.judge(&PodUid::from("new"), &pod, &ledger, runtime, view);
    let judgement = match judge(&view(input, "node")?) {
        Judgement::Mislabelled(_) => judge(&view(input, "fresh")?),
        certain => certain,
    };
    Ok(match judgement {
        Judgement::Fits(_) | Judgement::Waits(_) => json!({"admit": true, "victims": []}),
        Judgement::Preempts { victims, .. } => {
            let victims: Vec<String> = victims.iter().map(ToString::to_string).collect();
            json!({"admit": true, "victims": victims})
        }
        Judgement::Refused(refusal) | Judgement::Mislabelled(refusal) => {
            json!({"admit": false, "reason": refusal.reason, "message": refusal.message, "victims": []})
        }
    })
}

/// Upstream ends its victims before it finds that the newcomer cannot run for another reason; we do not.
fn without_vain_victims(mut answer: Value) -> Value {
    if answer["admit"] == false {
        answer["victims"] = json!([]);
    }
    answer
}

#[test]
fn judgements_are_alike() -> Result<()> {
    let mut oracle = Oracle::start()?;
    let host = oracle.ask_all("admission.host", vec![json!({})])?.remove(0)?;
    let problem = host["problem"].as_str().filter(|text| !text.is_empty());
    let inputs: Vec<Value> = seeds(CASES).map(|seed| input(&mut Seeded::new(seed))).collect();
    let answers = oracle.ask_all("admission", inputs.clone())?;
    let mut differences = Differences::default();
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for ((seed, input), answer) in seeds(CASES).zip(&inputs).zip(answers) {
        let upstream = without_vain_victims(answer?);
        let kind = match (upstream["reason"].as_str(), upstream["victims"] == json!([])) {
            (Some(reason), _) => reason.to_owned(),
            (None, true) => "admitted".to_owned(),
            (None, false) => "preempts".to_owned(),
        };
        *seen.entry(kind).or_default() += 1;
        differences.compare(
            seed,
            input,
            &upstream,
            &ours(input, problem.map(ToOwned::to_owned))?,
        );
    }
    println!("{seen:?}");
    differences.assert_none();
    // The generator reaches what it is there for.
    for kind in [
        "admitted",
        "preempts",
        "OutOfcpu",
        "NodePorts",
        "NodeAffinity",
        "SysctlForbidden",
        "TaintToleration",
        "Evicted",
        "OutOfexample.com/known",
    ] {
        assert!(
            seen.get(kind).is_some_and(|count| *count >= 20),
            "{kind}: {seen:?}"
        );
    }
    Ok(())
}

#[test]
fn safe_sysctls_and_patterns_are_alike() -> Result<()> {
    let mut oracle = Oracle::start()?;
    let kernels = [
        "3.10",
        "3.16.1",
        "4.4.0",
        "4.5",
        "4.6.7-x",
        "4.14.300",
        "4.15",
        "5.10.0-28-amd64",
        "6.18.44",
    ];
    let questions = kernels.iter().map(|kernel| json!({"kernel": kernel})).collect();
    for (kernel, answer) in kernels.iter().zip(oracle.ask_all("admission.safe", questions)?) {
        let safe = strings(&answer?);
        let list = SysctlAllowlist::new(KernelVersion::parse(kernel), &[])?;
        let upstreams = SysctlAllowlist::new(None, &safe)?;
        assert_eq!(list, upstreams, "{kernel}");
    }
    let questions = PATTERNS
        .iter()
        .map(|pattern| json!({"pattern": pattern}))
        .collect();
    for (pattern, answer) in PATTERNS
        .iter()
        .zip(oracle.ask_all("admission.sysctl", questions)?)
    {
        let ours = SysctlAllowlist::new(None, &[(*pattern).to_owned()]).is_ok();
        assert_eq!(json!(ours), answer?, "{pattern:?}");
    }
    Ok(())
}
