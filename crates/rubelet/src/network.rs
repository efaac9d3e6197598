//! What the node keeps in the machine's network for others.

use std::sync::Arc;

use rubelet_agent::AgentPorts;
use rubelet_config::settings::Settings;
use rubelet_host::iptables::Iptables;
use rubelet_node::packet_filter::HelperChains;
use rubelet_ports::packet_filter::IpFamily;

/// Keeps the helper chains of the packet filter, if the settings say so.
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
