//! Ports of containers that the node forwards.
//!
//! Owns the mapping to CRI and the dropping of duplicates. Init containers have none, as upstream.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, ContainerPort, PodSpec};
use rubelet_wire::cri::v1::{PortMapping, Protocol};

/// All ports of the pod's regular containers.
pub fn port_mappings(spec: &PodSpec) -> Vec<PortMapping> {
    spec.containers.iter().flat_map(container_ports).collect()
}

/// Within one container a name, or without names the same port, counts once.
fn container_ports(container: &Container) -> Vec<PortMapping> {
    let mut seen = BTreeSet::new();
    let ports = container.ports.iter().flatten();
    ports
        .filter(|port| seen.insert(identity(port)))
        .map(|port| PortMapping {
            protocol: protocol(port.protocol.as_deref()).into(),
            container_port: port.container_port,
            host_port: port.host_port.unwrap_or(0),
            host_ip: port.host_ip.clone().unwrap_or_default(),
        })
        .collect()
}

fn identity(port: &ContainerPort) -> String {
    if let Some(name) = port.name.as_ref().filter(|name| !name.is_empty()) {
        return name.clone();
    }
    let address = port.host_ip.as_deref().unwrap_or_default();
    // Names have no slash, so that no name can look like a port without one.
    format!(
        "{}/{address}/{}/{}",
        port.protocol.as_deref().unwrap_or_default(),
        port.container_port,
        port.host_port.unwrap_or(0)
    )
}

fn protocol(name: Option<&str>) -> Protocol {
    match name {
        Some("UDP") => Protocol::Udp,
        Some("SCTP") => Protocol::Sctp,
        Some(_) | None => Protocol::Tcp,
    }
}
