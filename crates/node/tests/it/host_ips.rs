//! The host addresses that pods get: of the Node, or of the machine.

use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use rubelet_ports::HostIps as _;
use serde_json::json;
use tokio::sync::watch;

use crate::bed::Bed;

fn node(addresses: &serde_json::Value) -> Option<Arc<Node>> {
    let node = json!({"metadata": {"name": "n1"}, "status": {"addresses": addresses}});
    Some(Arc::new(serde_json::from_value(node).unwrap()))
}

#[tokio::test(start_paused = true)]
async fn the_node_has_the_last_word_and_the_machine_the_first() {
    let bed = Bed::new();
    bed.edges.set_addresses(&[]);
    let object = watch::Sender::new(None);
    let host_ips = bed.host_ips(object.subscribe());
    let is = |texts: &[&str]| {
        let expected: Vec<IpAddr> = texts.iter().map(|text| text.parse().unwrap()).collect();
        assert_eq!(host_ips.host_ips(), expected);
    };
    bed.at(1).await;
    is(&[]);
    bed.edges.set_addresses(&["10.0.0.1"]);
    bed.at(20).await;
    is(&["10.0.0.1"]);
    bed.edges.set_addresses(&["10.0.0.3"]);
    bed.at(120).await;
    is(&["10.0.0.3"]);
    object.send_replace(node(&json!([
        {"type": "ExternalIP", "address": "192.0.2.1"},
        {"type": "InternalIP", "address": "fd00::1"},
    ])));
    is(&["fd00::1", "192.0.2.1"]);
    // A provider that has set none yet.
    object.send_replace(node(&json!([{"type": "Hostname", "address": "n1"}])));
    is(&[]);
    object.send_replace(None);
    is(&["10.0.0.3"]);
}
