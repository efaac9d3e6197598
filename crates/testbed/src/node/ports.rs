//! Which ports a kubelet listens on, and where its tests reach them.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::Result;
use serde_json::{Value, json};

use crate::node_network::NodeNetwork;
use crate::scope::Scope;

/// Ports of one kubelet, and the host to find them at.
pub(super) struct Ports {
    server: u16,
    pub(super) read_only: u16,
    pub(super) healthz: u16,
    pub(super) host: IpAddr,
}

impl Ports {
    /// Upstream's own where nobody else is, and the scope's elsewhere.
    pub(super) fn choose(scope: &Scope, network: Option<&NodeNetwork>) -> Result<Self> {
        Ok(match network {
            Some(network) => Self {
                server: 10250,
                read_only: 10255,
                healthz: 10248,
                host: network.address(),
            },
            None => Self {
                server: scope.port()?,
                read_only: scope.port()?,
                healthz: scope.port()?,
                host: Ipv4Addr::LOCALHOST.into(),
            },
        })
    }

    pub(super) fn configure(&self, configuration: &mut Value) {
        configuration["port"] = json!(self.server);
        configuration["readOnlyPort"] = json!(self.read_only);
        configuration["healthzPort"] = json!(self.healthz);
        configuration["address"] = json!(self.host);
        configuration["healthzBindAddress"] = json!(self.host);
    }
}
