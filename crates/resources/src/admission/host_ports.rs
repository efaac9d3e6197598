//! Ports of the host that pods occupy.
//!
//! Owns which ports count and when two of them conflict.

use std::borrow::Cow;

use k8s_openapi::api::core::v1::{Container, Pod};

const ANY_ADDRESS: &str = "0.0.0.0";
const TCP: &str = "TCP";

/// A port of the host, on one address or on all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    pub address: String,
    pub protocol: String,
    pub port: i32,
}

impl HostPort {
    fn new(address: Option<&str>, protocol: Option<&str>, port: i32) -> Self {
        let or = |text: Option<&str>, default: &'static str| {
            let text = text.filter(|text| !text.is_empty());
            text.map_or(Cow::Borrowed(default), |text| Cow::Owned(text.to_owned()))
        };
        Self {
            address: or(address, ANY_ADDRESS).into_owned(),
            protocol: or(protocol, TCP).into_owned(),
            port,
        }
    }

    /// Only the IPv4 form of "all addresses" stands for all of them, as upstream.
    pub fn conflicts_with(&self, other: &Self) -> bool {
        let same_address =
            self.address == other.address || self.address == ANY_ADDRESS || other.address == ANY_ADDRESS;
        same_address && self.port == other.port && self.protocol == other.protocol
    }
}

/// The ports that a pod holds as long as it runs: those of its containers and sidecars.
pub fn host_ports(pod: &Pod) -> Vec<HostPort> {
    let Some(spec) = &pod.spec else {
        return Vec::new();
    };
    let is_sidecar = |container: &&Container| container.restart_policy.as_deref() == Some("Always");
    let sidecars = spec.init_containers.iter().flatten().filter(is_sidecar);
    sidecars
        .chain(&spec.containers)
        .flat_map(|container| container.ports.iter().flatten())
        .filter_map(|port| {
            let number = port.host_port.filter(|number| *number > 0)?;
            Some(HostPort::new(
                port.host_ip.as_deref(),
                port.protocol.as_deref(),
                number,
            ))
        })
        .collect()
}
