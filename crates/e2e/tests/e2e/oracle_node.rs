//! Generated nodes: the status that is derived, the events that are told, and the patch between two Nodes, alike.
#![expect(
    clippy::unwrap_used,
    reason = "what the generator and the oracle say has this shape"
)]

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::core::v1::Node;
use rubelet_model::{HandlerAbilities, Pressure, RuntimeAbilities, RuntimeContact, RuntimeReport, Timestamp};
use rubelet_node::status::{
    RuntimeFacts, StatusFacts, derive, largest_images, lasting_difference, parse_node_ips, runtime_version,
    status_patch,
};
use rubelet_node::{
    AddressSettings, DeclaredFeatureGates, MachineFacts, NodeSettings, RegistrationSettings,
    ReportingSettings,
};
use rubelet_ports::HostAddresses;
use rubelet_resources::allocatable::{Capacity, PodCount, allocatable};
use rubelet_resources::node_cgroup::Reservation;
use rubelet_testbed::oracle::Oracle;
use rubelet_wire::cri::v1;
use serde_json::{Value, json};

use crate::oracle_ours::{Differences, Seeded, seeds};

const CASES: u64 = 2_000;
/// Resolves without asking anybody, and to no address that a node may have.
const NODE: &str = "localhost";

fn address(seeded: &mut Seeded) -> &'static str {
    seeded.one_of::<&str>(&["10.0.0.1", "10.0.0.2", "2001:db8::1"])
}

fn flip(seeded: &mut Seeded) -> bool {
    seeded.below(2) == 0
}

/// A Node that somebody has left behind.
fn node(seeded: &mut Seeded) -> Value {
    let types = [
        "Ready",
        "PIDPressure",
        "Foreign",
        "MemoryPressure",
        "DiskPressure",
    ];
    let first = seeded.below(types.len());
    let count = seeded.below(types.len() + 1);
    let conditions: Vec<Value> = (0..count)
        .map(|number| {
            let at = format!("2026-01-01T00:00:{:02}Z", seeded.below(60));
            json!({
                "type": types[(first + number) % types.len()],
                "status": seeded.one_of(&["True", "False", "Unknown"]),
                "reason": "Before", "message": "before", "lastHeartbeatTime": at, "lastTransitionTime": at,
            })
        })
        .collect();
    let addresses: Vec<Value> = (0..seeded.below(3))
        .map(|_| json!({"type": seeded.one_of(&["InternalIP", "ExternalIP"]), "address": address(seeded)}))
        .collect();
    let mut resources = serde_json::Map::new();
    for (name, quantity) in [
        ("cpu", "1"),
        ("example.com/gpu", "3"),
        ("hugepages-64Ki", "0"),
        ("odd", "2"),
    ] {
        if flip(seeded) {
            resources.insert(name.to_owned(), json!(quantity));
        }
    }
    let mut kept = resources.clone();
    if flip(seeded) {
        kept.insert("example.com/gone".to_owned(), json!("1"));
    }
    let mut annotations = json!({});
    if flip(seeded) {
        annotations["alpha.kubernetes.io/provided-node-ip"] = json!("192.0.2.1");
    }
    if flip(seeded) {
        annotations["theirs"] = json!("x");
    }
    json!({
        "metadata": {
            "name": NODE, "annotations": annotations,
            "labels": {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", "theirs": seeded.one_of(&["a", "b"])},
        },
        "spec": {},
        "status": {
            "conditions": conditions, "addresses": addresses, "capacity": resources, "allocatable": kept,
            "images": (0..seeded.below(3)).map(|size| json!({"names": ["old"], "sizeBytes": size + 1})).collect::<Vec<_>>(),
            "volumesInUse": (0..seeded.below(2)).map(|_| "old").collect::<Vec<_>>(),
        },
    })
}

fn question(seed: u64) -> Value {
    let seeded = &mut Seeded::new(seed);
    let node_ips = *seeded.one_of(&[
        "",
        "",
        "10.0.0.1",
        "10.0.0.9",
        "0.0.0.0",
        "::",
        "2001:db8::1",
        "10.0.0.1,2001:db8::1",
        "2001:db8::1,10.0.0.2",
    ]);
    let prefers_v6 = node_ips == "::";
    let images: Vec<Value> = (0..seeded.below(8))
        .map(|number| {
            let names = |count: usize, text: &str| -> Vec<String> {
                (0..count).map(|name| format!("i{number}{text}{name}")).collect()
            };
            json!({
                "id": format!("i{number}"), "size": seeded.below(4),
                "tags": names(seeded.below(5), ":"), "digests": names(seeded.below(4), "@"),
            })
        })
        .collect();
    let handlers = ["", "crun", "runc"].into_iter().take(seeded.below(4));
    let handlers: Vec<Value> = handlers
        .map(|name| json!({"name": name, "mounts": flip(seeded), "users": flip(seeded)}))
        .collect();
    let pages: Vec<Value> = [(2048, 3_u64), (1_048_576, 1)]
        .into_iter()
        .take(seeded.below(3))
        .map(|(size, most)| json!({"sizeKiB": size, "count": seeded.next() % (most + 1)}))
        .collect();
    let problems = ["container runtime is down", "x", "x"];
    let runtime_problems = &problems[..seeded.below(3)];
    json!({
        "node": node(seeded), "nowSeconds": 1_800_000_000,
        "nodeIPs": node_ips.split(',').filter(|text| !text.is_empty()).collect::<Vec<_>>(),
        "hostname": seeded.one_of(&["host", "host", "192.0.2.9"]), "external": flip(seeded),
        "own": ["10.0.0.1", "10.0.0.2", "2001:db8::1"], "route": if prefers_v6 { "2001:db8::1" } else { "10.0.0.1" },
        "machine": {
            "cores": 1 + seeded.below(64), "memory": (1_u64 << 32) + seeded.next() % (1 << 30), "swap": seeded.below(2) * 4096,
            "pages": pages, "storage": {"ephemeral-storage": (1_000_000 + seeded.below(1_000_000)).to_string()},
            "reserved": {"cpu": "500m", "memory": "1Gi", "ephemeral-storage": "1000"},
            "maxPods": 110, "podsPerCore": seeded.below(4), "bootID": "boot",
        },
        "runtimeName": "containerd",
        "runtimeVersion": seeded.one_of(&["v2.4.0", "2.4.0-rc.1+x", "1.7.24~ds1", "1.7", "main", "01.2.3", "1.2.3-", "v1.7.0-04", "1.07", "1.2.3.", "1.2..3", "1.2.3.4", " 1.2.3-a+b ", "1.2.3-a..b"]),
        "port": 10250, "maxImages": seeded.one_of(&[-1, 0, 3, 50]), "images": images, "handlers": handlers,
        "groupsPolicy": flip(seeded), "memory": flip(seeded), "disk": flip(seeded), "pid": flip(seeded),
        "runtimeProblems": runtime_problems, "networkProblem": seeded.one_of(&["", "net", "x"]),
        "countsStorage": flip(seeded), "volumesInUse": (0..seeded.below(2)).map(|_| "v").collect::<Vec<_>>(),
    })
}

fn our_settings(question: &Value) -> NodeSettings {
    let machine = &question["machine"];
    let texts: BTreeMap<String, String> = serde_json::from_value(machine["reserved"].clone()).unwrap();
    let number = |value: &Value| value.as_i64().unwrap();
    let pages = machine["pages"].as_array().unwrap();
    let storage: i64 = machine["storage"]["ephemeral-storage"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();
    let capacity = Capacity {
        processors: number(&machine["cores"]),
        memory_bytes: number(&machine["memory"]),
        ephemeral_storage_bytes: Some(storage),
        huge_pages: pages
            .iter()
            .map(|one| (number(&one["sizeKiB"]) * 1024, number(&one["count"])))
            .collect(),
    };
    let capacity = capacity.amounts(PodCount {
        max: number(&machine["maxPods"]),
        per_core: number(&machine["podsPerCore"]),
    });
    let reservation = Reservation::read(&texts, &BTreeMap::new()).unwrap();
    let node_ips: Vec<String> = serde_json::from_value(question["nodeIPs"].clone()).unwrap();
    NodeSettings {
        node_name: NODE.to_owned(),
        kubelet_version: String::new(),
        server_port: 10250,
        registration: RegistrationSettings::default(),
        addresses: AddressSettings {
            node_ips: parse_node_ips(&node_ips.join(",")).unwrap().0,
            hostname: question["hostname"].as_str().unwrap().to_owned(),
            external_cloud_provider: question["external"] == true,
        },
        machine: MachineFacts {
            machine_id: "machine".to_owned(),
            system_uuid: "system".to_owned(),
            boot_id: "boot".to_owned(),
            kernel_version: "kernel".to_owned(),
            os_image: "os".to_owned(),
            architecture: "amd64".to_owned(),
            swap_bytes: machine["swap"].as_u64().unwrap(),
            is_in_user_namespace: Some(false),
            allocatable: allocatable(&capacity, &reservation, &BTreeMap::new()).unwrap(),
            capacity,
        },
        reporting: ReportingSettings::default(),
        declared: DeclaredFeatureGates::default(),
        counts_ephemeral_storage: question["countsStorage"] == true,
        is_cgroup_v1: false,
    }
}

fn our_facts(question: &Value) -> StatusFacts {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let texts = |value: &Value| -> Vec<String> { serde_json::from_value(value.clone()).unwrap() };
    let addresses =
        |list: Vec<String>| -> Vec<IpAddr> { list.iter().map(|one| one.parse().unwrap()).collect() };
    let images = question["images"]
        .as_array()
        .unwrap()
        .iter()
        .map(|image| v1::Image {
            id: text(&image["id"]),
            repo_tags: texts(&image["tags"]),
            repo_digests: texts(&image["digests"]),
            size: image["size"].as_u64().unwrap(),
            ..v1::Image::default()
        });
    let handlers = question["handlers"].as_array().unwrap().iter().map(|handler| {
        let abilities = HandlerAbilities {
            recursive_read_only_mounts: handler["mounts"] == true,
            user_namespaces: handler["users"] == true,
        };
        (text(&handler["name"]), abilities)
    });
    // Upstream has a list of these; ours has silence and one problem.
    let mut problems = texts(&question["runtimeProblems"]).into_iter();
    let is_silent = problems.next().is_some();
    let network = text(&question["networkProblem"]);
    let (contact, runtime_problem) = match is_silent {
        true => (
            RuntimeContact::Silent {
                already: Duration::ZERO,
            },
            None,
        ),
        false => (RuntimeContact::Answers, None),
    };
    StatusFacts {
        addresses: Some(HostAddresses {
            own: addresses(texts(&question["own"])),
            of_name: addresses(vec!["127.0.0.1".to_owned()]),
            is_name_unknown: false,
            default_route: addresses(vec![text(&question["route"])]),
        }),
        runtime: RuntimeFacts {
            report: RuntimeReport {
                contact,
                runtime_problem,
                network_problem: Some(network).filter(|problem| !problem.is_empty()),
                abilities: Some(RuntimeAbilities {
                    handlers: handlers.collect(),
                    supplemental_groups_policy: Some(question["groupsPolicy"] == true),
                    ..RuntimeAbilities::default()
                }),
                ..RuntimeReport::default()
            },
            silent_for: Duration::from_secs(60),
            unlisted_for: Duration::ZERO,
        },
        runtime_version: Some(runtime_version(
            "containerd",
            question["runtimeVersion"].as_str().unwrap(),
        )),
        images: Some(largest_images(
            images.collect(),
            usize::try_from(question["maxImages"].as_i64().unwrap()).ok(),
        )),
        pressure: Some(Pressure {
            memory: question["memory"] == true,
            disk: question["disk"] == true,
            pid: question["pid"] == true,
        }),
        volumes_in_use: Some(texts(&question["volumesInUse"])),
        is_shutting_down: false,
    }
}

/// What both sides write, without what is empty.
fn comparable(node: &Value) -> Value {
    fn dense(value: &Value) -> Value {
        let is_something = |value: &Value| *value != json!({}) && *value != json!([]) && !value.is_null();
        match value {
            Value::Object(fields) => {
                let fields = fields.iter().map(|(key, value)| (key.clone(), dense(value)));
                Value::Object(fields.filter(|(_, value)| is_something(value)).collect())
            }
            Value::Array(items) => Value::Array(items.iter().map(dense).collect()),
            other => other.clone(),
        }
    }
    let mut node = json!({"annotations": node["metadata"]["annotations"], "status": node["status"]});
    // Each says its own.
    node["status"]["nodeInfo"]["kubeletVersion"] = Value::Null;
    dense(&node)
}

#[test]
fn statuses_of_nodes_are_derived_alike() -> Result<()> {
    let mut oracle = Oracle::start()?;
    let mut differences = Differences::default();
    let questions: Vec<Value> = seeds(CASES).map(question).collect();
    let mut asked = questions.clone();
    for question in &mut asked {
        let problems = question["runtimeProblems"].as_array_mut().unwrap();
        problems.truncate(1);
    }
    let answers = oracle.ask_all("node.status", asked)?;
    for ((seed, question), answer) in seeds(CASES).zip(&questions).zip(answers) {
        let answer = answer?;
        let before: Node = serde_json::from_value(question["node"].clone())?;
        let now = Timestamp::from_unix_seconds(1_800_000_000);
        let derived = derive(&before, &our_settings(question), &our_facts(question), now);
        let reasons: Vec<&str> = derived.events.iter().map(|event| event.reason).collect();
        let ours = json!({"node": comparable(&serde_json::to_value(&derived.node)?), "events": reasons});
        let upstream = json!({"node": comparable(&answer["node"]), "events": answer["events"]});
        differences.compare(seed, question, &upstream, &ours);
    }
    differences.assert_none();
    Ok(())
}

#[test]
fn patches_between_nodes_are_alike() -> Result<()> {
    let mut oracle = Oracle::start()?;
    let mut differences = Differences::default();
    let pair = |seed: u64| {
        let seeded = &mut Seeded::new(seed);
        let old = node(seeded);
        let mut new = node(seeded);
        // Often only a little differs.
        if flip(seeded) {
            let changed = *seeded.one_of(&["conditions", "addresses", "capacity", "images"]);
            let status = new["status"][changed].clone();
            new = old.clone();
            new["status"][changed] = status;
        }
        json!({"old": old, "new": new})
    };
    let questions: Vec<Value> = seeds(CASES).map(pair).collect();
    let answers = oracle.ask_all("node.patch", questions.clone())?;
    for ((seed, question), answer) in seeds(CASES).zip(&questions).zip(answers) {
        let answer = answer?;
        let old: Node = serde_json::from_value(question["old"].clone())?;
        let new: Node = serde_json::from_value(question["new"].clone())?;
        let mut same_metadata = new.clone();
        same_metadata.metadata.clone_from(&old.metadata);
        // Ours looks at metadata as well, which upstream does apart.
        let changed = lasting_difference(&old, &same_metadata)? != json!({});
        let ours = json!({"patch": status_patch(&old, &new)?, "changed": changed});
        differences.compare(seed, question, &answer, &ours);
    }
    differences.assert_none();
    Ok(())
}
