//! Plans of volumes: what is set up, mounted and taken down for which pod.
#![allow(
    clippy::expect_used,
    clippy::needless_pass_by_value,
    clippy::unwrap_used,
    reason = "tests fail by panicking, and their tables read best with values"
)]

mod contents;
mod mounts;
mod set_up;
mod tear_down;

use std::path::Path;

use k8s_openapi::api::core::v1::Pod;
use rubelet_model::observation::PodUid;
use rubelet_resources::amounts::{Amounts, CPU, MEMORY};
use rubelet_resources::{CgroupVersion, NodeFacts, Rules};
use rubelet_storage::{PodLayout, StorageGates, StorageNode};
use serde_json::{Value, json};

const PODS: &str = "/var/lib/kubelet/pods";

fn layout() -> PodLayout {
    PodLayout::new(Path::new(PODS), &PodUid::from("u1"))
}

/// A pod with this spec; containers get names and images.
fn pod(spec: Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": {
            "name": "web", "namespace": "default", "uid": "u1",
            "labels": { "app": "web", "tier": "front" }, "annotations": { "note": "a \"b\"" },
        },
        "spec": spec,
    }))
    .unwrap()
}

/// A pod with these volumes, all mounted below `/v` by one container.
fn pod_with(volumes: Value) -> Pod {
    let mounts: Vec<Value> = volumes
        .as_array()
        .unwrap()
        .iter()
        .map(|volume| json!({ "name": volume["name"], "mountPath": format!("/v/{}", volume["name"].as_str().unwrap()) }))
        .collect();
    pod(json!({ "containers": [{ "name": "main", "volumeMounts": mounts }], "volumes": volumes }))
}

fn node() -> StorageNode {
    let mut allocatable = Amounts::default();
    allocatable.set(MEMORY, "8Gi".parse().unwrap());
    allocatable.set(CPU, "4".parse().unwrap());
    StorageNode {
        rules: Rules::default(),
        facts: NodeFacts {
            cgroup: CgroupVersion::V2,
            page_size_bytes: 4096,
            huge_page_sizes: vec!["2MB".to_owned()],
            memory_capacity_bytes: 9 << 30,
            swap_capacity_bytes: 0,
            has_swap_controller: false,
            allocatable,
        },
        host_ips: vec![std::net::IpAddr::from([192, 0, 2, 1])],
        is_selinux_enabled: false,
        gates: StorageGates::default(),
    }
}
