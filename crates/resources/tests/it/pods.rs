//! How the tests say what a pod asks for.

use k8s_openapi::api::core::v1::Pod;
use rubelet_model::Quantity;
use rubelet_resources::amounts::Amounts;
use rubelet_resources::{CgroupVersion, NodeFacts, PodDemand};
use serde_json::{Value, json};

/// Requests and limits of cpu and memory; `-` is absent.
pub(crate) fn resources(requests: (&str, &str), limits: (&str, &str)) -> Value {
    let list = |(cpu, memory): (&str, &str)| {
        let mut list = json!({});
        for (name, text) in [("cpu", cpu), ("memory", memory)] {
            if text != "-" {
                list[name] = text.into();
            }
        }
        list
    };
    json!({"requests": list(requests), "limits": list(limits)})
}

pub(crate) fn demand(spec: &Value) -> PodDemand {
    PodDemand::read(&pod(spec)).expect("the quantities are good")
}

pub(crate) fn pod(spec: &Value) -> Pod {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec});
    serde_json::from_value(pod).expect("a pod")
}

pub(crate) fn containers(all: &[Value]) -> Value {
    let container =
        |(index, resources): (usize, &Value)| json!({"name": format!("c{index}"), "resources": resources});
    all.iter().enumerate().map(container).collect()
}

pub(crate) fn facts(cgroup: CgroupVersion) -> NodeFacts {
    let allocatable: Quantity = "8Gi".parse().expect("a quantity");
    NodeFacts {
        cgroup,
        page_size_bytes: 4096,
        huge_page_sizes: vec!["2MB".to_owned(), "1GB".to_owned()],
        memory_capacity_bytes: 10 << 30,
        swap_capacity_bytes: 1 << 30,
        has_swap_controller: true,
        allocatable: Amounts::from_iter([("memory".to_owned(), allocatable)]),
    }
}
