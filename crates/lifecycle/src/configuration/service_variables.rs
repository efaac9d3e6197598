//! Environment variables with the addresses of Services (`REDIS_SERVICE_HOST`).
//!
//! Owns which Services count and the names of their variables. The container's own variables win over these; `environment` applies
//! that order.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Service, ServicePort};

/// The namespace and name of the API server's Service, whose variables every pod gets.
const API_SERVER_SERVICE: (&str, &str) = ("default", "kubernetes");

/// The variables of the services that a pod of the namespace sees: all of its own namespace when it wants links, and always the API
/// server's. Of two services that lead to the same variable the one whose name sorts last is taken.
#[must_use]
pub fn service_variables(
    services: &[Arc<Service>],
    namespace: &str,
    has_service_links: bool,
) -> BTreeMap<String, String> {
    let mut seen: BTreeMap<&str, &Service> = BTreeMap::new();
    for service in services {
        let own_namespace = service.metadata.namespace.as_deref().unwrap_or_default();
        let name = service.metadata.name.as_deref().unwrap_or_default();
        let is_api_servers = (own_namespace, name) == API_SERVER_SERVICE;
        if is_api_servers {
            // A service of the same name in the pod's own namespace wins.
            seen.entry(name).or_insert(service);
        } else if own_namespace == namespace && has_service_links && cluster_ip(service).is_some() {
            seen.insert(name, service);
        }
    }
    let mut variables = BTreeMap::new();
    for (name, service) in seen {
        add(name, service, &mut variables);
    }
    variables
}

/// A service without an address of its own (headless, or `ExternalName`) has no variables.
fn cluster_ip(service: &Service) -> Option<&str> {
    let address = service.spec.as_ref()?.cluster_ip.as_deref()?;
    (!address.is_empty() && address != "None").then_some(address)
}

fn add(name: &str, service: &Service, variables: &mut BTreeMap<String, String>) {
    let ports = service.spec.as_ref().and_then(|spec| spec.ports.as_deref());
    let (Some(address), Some(ports)) = (cluster_ip(service), ports) else {
        return;
    };
    let Some(first) = ports.first() else {
        return;
    };
    let prefix = variable_name(name);
    variables.insert(format!("{prefix}_SERVICE_HOST"), address.to_owned());
    variables.insert(format!("{prefix}_SERVICE_PORT"), first.port.to_string());
    for port in ports {
        if let Some(port_name) = port.name.as_deref().filter(|name| !name.is_empty()) {
            let name = format!("{prefix}_SERVICE_PORT_{}", variable_name(port_name));
            variables.insert(name, port.port.to_string());
        }
    }
    variables.insert(format!("{prefix}_PORT"), url(first, address));
    for port in ports {
        let protocol = protocol(port);
        let own = format!("{prefix}_PORT_{}_{}", port.port, protocol.to_uppercase());
        variables.insert(format!("{own}_PROTO"), protocol.to_lowercase());
        variables.insert(format!("{own}_PORT"), port.port.to_string());
        variables.insert(format!("{own}_ADDR"), address.to_owned());
        variables.insert(own, url(port, address));
    }
}

fn protocol(port: &ServicePort) -> &str {
    let named = port.protocol.as_deref().filter(|name| !name.is_empty());
    named.unwrap_or("TCP")
}

fn url(port: &ServicePort, address: &str) -> String {
    let scheme = protocol(port).to_lowercase();
    let number = port.port;
    if address.contains(':') {
        format!("{scheme}://[{address}]:{number}")
    } else {
        format!("{scheme}://{address}:{number}")
    }
}

fn variable_name(name: &str) -> String {
    name.replace('-', "_").to_uppercase()
}
