//! Whole Nodes, as they go over the wire.

use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::api::core::v1::Taint;
use rubelet_model::{HandlerAbilities, RuntimeAbilities, RuntimeContact, RuntimeReport};
use rubelet_resources::amounts::Amounts;
use serde_json::{Value, json};

use super::*;
use crate::settings::{
    AddressSettings, DeclaredFeatureGates, MachineFacts, RegistrationSettings, ReportingSettings,
};

const START: Timestamp = Timestamp::from_unix_seconds(1_767_225_600);
const AT_START: &str = "2026-01-01T00:00:00Z";

fn settings() -> NodeSettings {
    let amounts = |list: Value| Amounts::read(Some(&serde_json::from_value(list).unwrap())).unwrap();
    NodeSettings {
        node_name: "n1".to_owned(),
        kubelet_version: "v1.37.1+rubelet.0.1.0".to_owned(),
        server_port: 10250,
        registration: RegistrationSettings {
            is_wanted: true,
            labels: [("zone", "a"), ("kubernetes.io/hostname", "other")]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
            taints: vec![Taint {
                key: "dedicated".to_owned(),
                effect: "NoExecute".to_owned(),
                ..Taint::default()
            }],
            provider_id: "p://1".to_owned(),
            controller_attach_detach: true,
            ..RegistrationSettings::default()
        },
        addresses: AddressSettings {
            node_ips: vec![],
            hostname: "n1".to_owned(),
            external_cloud_provider: false,
        },
        machine: MachineFacts {
            machine_id: "m".to_owned(),
            system_uuid: "u".to_owned(),
            boot_id: "b".to_owned(),
            kernel_version: "6.1.0".to_owned(),
            os_image: "Debian".to_owned(),
            architecture: "amd64".to_owned(),
            swap_bytes: 1024,
            is_in_user_namespace: Some(false),
            capacity: amounts(
                json!({"cpu": "2", "memory": "4Gi", "pods": "110", "ephemeral-storage": "1000"}),
            ),
            allocatable: amounts(
                json!({"cpu": "1500m", "memory": "3Gi", "pods": "110", "ephemeral-storage": "900"}),
            ),
        },
        reporting: ReportingSettings::default(),
        declared: DeclaredFeatureGates {
            restart_all_containers: true,
            ..DeclaredFeatureGates::default()
        },
        counts_ephemeral_storage: true,
        is_cgroup_v1: false,
    }
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Everything is known and well.
fn facts() -> StatusFacts {
    let handler = HandlerAbilities {
        recursive_read_only_mounts: true,
        user_namespaces: false,
    };
    StatusFacts {
        addresses: Some(HostAddresses {
            own: vec![address("10.0.0.1")],
            of_name: vec![],
            is_name_unknown: false,
            default_route: vec![address("10.0.0.1")],
        }),
        runtime: RuntimeFacts {
            report: RuntimeReport {
                contact: RuntimeContact::Answers,
                runtime_problem: None,
                network_problem: None,
                abilities: Some(RuntimeAbilities {
                    handlers: [(String::new(), handler)].into(),
                    supplemental_groups_policy: Some(true),
                    ..RuntimeAbilities::default()
                }),
                ..RuntimeReport::default()
            },
            silent_for: Duration::ZERO,
            unlisted_for: Duration::ZERO,
        },
        runtime_version: Some("containerd://2.4.0".to_owned()),
        images: Some(vec![ContainerImage {
            names: Some(vec!["a:1".to_owned()]),
            size_bytes: Some(7),
        }]),
        pressure: Some(Pressure::default()),
        volumes_in_use: Some(vec![]),
        is_shutting_down: false,
    }
}

fn json_of(node: &Node) -> Value {
    serde_json::to_value(node).unwrap()
}

fn reasons(derived: &Derivation) -> Vec<&'static str> {
    derived.events.iter().map(|event| event.reason).collect()
}

fn condition(type_: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({
        "type": type_, "status": status, "reason": reason, "message": message,
        "lastHeartbeatTime": AT_START, "lastTransitionTime": AT_START,
    })
}

#[test]
fn a_new_node_says_everything() {
    let derived = initial_node(&settings(), &facts(), START);
    let expected = json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": "n1",
            "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
            "labels": {
                "kubernetes.io/hostname": "other",
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                "beta.kubernetes.io/os": "linux",
                "beta.kubernetes.io/arch": "amd64",
                "zone": "a",
            },
        },
        "spec": {"providerID": "p://1", "taints": [{"key": "dedicated", "effect": "NoExecute"}]},
        "status": {
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "Hostname", "address": "n1"}],
            "capacity": {"cpu": "2", "memory": "4Gi", "pods": "110", "ephemeral-storage": "1k"},
            "allocatable": {"cpu": "1500m", "memory": "3Gi", "pods": "110", "ephemeral-storage": "900"},
            "conditions": [
                condition("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
                condition("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
                condition("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
                condition("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "nodeInfo": {
                "machineID": "m", "systemUUID": "u", "bootID": "b", "kernelVersion": "6.1.0", "osImage": "Debian",
                "containerRuntimeVersion": "containerd://2.4.0", "kubeletVersion": "v1.37.1+rubelet.0.1.0",
                "kubeProxyVersion": "", "operatingSystem": "linux", "architecture": "amd64",
                "swap": {"capacity": 1024}, "runningInUserNamespace": false,
            },
            "images": [{"names": ["a:1"], "sizeBytes": 7}],
            "runtimeHandlers": [{"name": "", "features": {"recursiveReadOnlyMounts": true, "userNamespaces": false}}],
            "features": {"supplementalGroupsPolicy": true},
            "declaredFeatures": ["RestartAllContainersOnContainerExits"],
        },
    });
    assert_eq!(json_of(&derived.node), expected);
    assert_eq!(
        reasons(&derived),
        [
            "NodeHasSufficientMemory",
            "NodeHasNoDiskPressure",
            "NodeHasSufficientPID"
        ]
    );
    assert_eq!(
        derived.events[0].message,
        "Node n1 status is now: NodeHasSufficientMemory"
    );
}

#[test]
fn an_external_provider_taints_a_new_node() {
    let mut settings = settings();
    settings.addresses.external_cloud_provider = true;
    settings.addresses.node_ips = vec![address("10.0.0.1")];
    let node = initial_node(&settings, &facts(), START).node;
    let taints = node.spec.unwrap().taints.unwrap();
    assert_eq!(taints[1].key, "node.cloudprovider.kubernetes.io/uninitialized");
    assert_eq!(
        (taints[1].value.as_deref(), taints[1].effect.as_str()),
        (Some("true"), "NoSchedule")
    );
    assert_eq!(
        node.metadata.annotations.unwrap()["alpha.kubernetes.io/provided-node-ip"],
        "10.0.0.1"
    );
}

/// A process that knows nothing yet changes nothing that others rely on.
#[test]
fn a_restart_flips_nothing() {
    let settings = settings();
    let mut pressed = facts();
    pressed.pressure = Some(Pressure {
        memory: true,
        ..Pressure::default()
    });
    let before = initial_node(&settings, &pressed, START).node;
    let later = START.plus(Duration::from_secs(60));
    let unknown = StatusFacts::default();
    let derived = derive(&before, &settings, &unknown, later);
    assert_eq!(json_of(&derived.node), json_of(&before));
    assert_eq!(reasons(&derived), [""; 0]);
    // The same facts again are heartbeats only.
    let derived = derive(&before, &settings, &pressed, later);
    assert_eq!(lasting_difference(&before, &derived.node).unwrap(), json!({}));
    assert_ne!(json_of(&derived.node), json_of(&before));
    // After the grace silence counts.
    let mut silent = unknown;
    silent.runtime.silent_for = RUNTIME_GRACE;
    let derived = derive(&before, &settings, &silent, later);
    assert_eq!(reasons(&derived), ["NodeNotReady"]);
    let ready = json_of(&derived.node)["status"]["conditions"][3].clone();
    assert_eq!(
        (&ready["status"], &ready["message"]),
        (
            &json!("False"),
            &json!("[container runtime status check may not have completed yet, network state unknown]")
        )
    );
    assert_eq!(ready["lastTransitionTime"], "2026-01-01T00:01:00Z");
}

#[test]
fn missing_capacity_is_told() {
    let mut settings = settings();
    settings.machine.capacity = Amounts::default();
    settings.machine.allocatable = Amounts::default();
    let check = |settings: &NodeSettings, expected: &str| {
        let mut facts = facts();
        facts.runtime.report.network_problem = Some("net".to_owned());
        let node = initial_node(settings, &facts, START).node;
        assert_eq!(json_of(&node)["status"]["conditions"][3]["message"], expected);
    };
    check(
        &settings,
        "[net, missing node capacity for resources: cpu, memory, pods, ephemeral-storage]",
    );
    settings.counts_ephemeral_storage = false;
    check(
        &settings,
        "[net, missing node capacity for resources: cpu, memory, pods]",
    );
}

#[test]
fn a_reboot_is_told_and_foreign_parts_stay() {
    let settings = settings();
    let mut before = initial_node(&settings, &facts(), START).node;
    let status = before.status.as_mut().unwrap();
    status.node_info.as_mut().unwrap().boot_id = "earlier".to_owned();
    status.volumes_in_use = Some(vec!["v".to_owned()]);
    status.volumes_attached = Some(vec![]);
    let labels = before.metadata.labels.as_mut().unwrap();
    labels.remove("kubernetes.io/os");
    labels.insert("theirs".to_owned(), "x".to_owned());
    let derived = derive(&before, &settings, &facts(), START);
    assert_eq!(reasons(&derived), ["Rebooted"]);
    assert_eq!(derived.events[0].message, "Node n1 has been rebooted, boot id: b");
    assert_eq!(derived.events[0].event_type, EventType::Warning);
    let labels = derived.node.metadata.labels.unwrap();
    assert_eq!(
        (labels["kubernetes.io/os"].as_str(), labels["theirs"].as_str()),
        ("linux", "x")
    );
    let status = derived.node.status.unwrap();
    assert_eq!(
        (status.volumes_in_use, status.volumes_attached),
        (None, Some(vec![]))
    );
}

#[test]
fn volumes_that_another_kubelet_reported_stay_while_nothing_is_known_of_them() {
    let settings = settings();
    let mut before = initial_node(&settings, &facts(), START).node;
    let attached = Some(vec!["kubernetes.io/csi/driver^v".to_owned()]);
    before
        .status
        .as_mut()
        .unwrap()
        .volumes_in_use
        .clone_from(&attached);
    let unknown = StatusFacts {
        volumes_in_use: None,
        ..facts()
    };
    let derived = derive(&before, &settings, &unknown, START);
    assert_eq!(derived.node.status.unwrap().volumes_in_use, attached);
}
