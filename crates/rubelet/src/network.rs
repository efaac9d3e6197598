//! The helper chains that the node maintains in the packet filter, and the node's addresses.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use rubelet_agent::AgentPorts;
use rubelet_config::settings::Settings;
use rubelet_host::iptables::Iptables;
use rubelet_host::node_facts::HostNetwork;
use rubelet_node::packet_filter::HelperChains;
use rubelet_node::{AddressSettings, HostIpsPorts, NodeHostIps};
use rubelet_ports::packet_filter::IpFamily;
use tokio::sync::watch;

use crate::edges::Edges;

/// The node's addresses as pods see them: those of its Node object, or of the machine while there is none.
pub(crate) fn host_ips(
    edges: &Edges,
    settings: AddressSettings,
    node_name: &str,
    object: Option<watch::Receiver<Option<Arc<Node>>>>,
) -> NodeHostIps {
    let ports = HostIpsPorts {
        clock: edges.clock.clone(),
        spawner: edges.spawner.clone(),
        addresses: Arc::new(HostNetwork::default()),
        object: object.unwrap_or_else(|| watch::channel(None).1),
    };
    NodeHostIps::start(ports, settings, node_name.to_owned())
}

/// Maintains the helper chains of the packet filter, if the settings ask for it.
pub(crate) fn keep_helper_chains(settings: &Settings, ports: &AgentPorts) {
    if !settings.configuration().make_iptables_util_chains.unwrap_or(true) {
        return;
    }
    let iptables = Arc::new(Iptables::default());
    let chains = HelperChains {
        clock: Arc::clone(&ports.clock),
        reader: iptables.clone(),
        writer: iptables,
    };
    for family in [IpFamily::V4, IpFamily::V6] {
        let name = format!("{family} helper chains");
        ports.spawner.spawn(&name, Box::pin(chains.clone().keep(family)));
    }
}
