//! A pod's hostname and domain.
//!
//! Owns the rules of `hostname`, `subdomain`, `hostnameOverride` and `setHostnameAsFQDN`.

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use rubelet_model::names::{is_dns_label, is_dns_subdomain};
use rubelet_model::pod::{name_of, namespace_of};

use super::node::ConfigurationError;

const MAX_HOSTNAME_LENGTH: usize = 63;
/// The kernel's field holds this many characters.
const MAX_FQDN_LENGTH: usize = 64;

/// The name inside the pod, and the domain after it when there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hostname {
    pub name: String,
    pub domain: Option<String>,
}

/// What the pod is called, as its `/etc/hosts` has it.
pub fn pod_hostname(pod: &Pod, cluster_domain: &str) -> Result<Hostname, ConfigurationError> {
    let spec = pod.spec.as_ref().ok_or(ConfigurationError::NoSpec)?;
    let bad = |field: &'static str, value: &str| ConfigurationError::BadHostname {
        field,
        value: value.to_owned(),
    };
    if let Some(name) = &spec.hostname_override {
        if !is_dns_subdomain(name) {
            return Err(bad("hostnameOverride", name));
        }
        return Ok(Hostname {
            name: truncated(name, "hostnameOverride")?,
            domain: None,
        });
    }
    let name = match set(&spec.hostname) {
        Some(name) if !is_dns_label(name) => return Err(bad("hostname", name)),
        Some(name) => name,
        None => name_of(pod),
    };
    let domain = match set(&spec.subdomain) {
        Some(subdomain) if !is_dns_label(subdomain) => return Err(bad("subdomain", subdomain)),
        Some(subdomain) => {
            let namespace = namespace_of(pod);
            Some(format!("{subdomain}.{namespace}.svc.{cluster_domain}"))
        }
        None => None,
    };
    Ok(Hostname {
        name: truncated(name, "metadata.name")?,
        domain,
    })
}

fn set(text: &Option<String>) -> Option<&str> {
    text.as_deref().filter(|text| !text.is_empty())
}

fn truncated(name: &str, field: &'static str) -> Result<String, ConfigurationError> {
    if name.len() <= MAX_HOSTNAME_LENGTH {
        return Ok(name.to_owned());
    }
    let short = &name[..name.floor_char_boundary(MAX_HOSTNAME_LENGTH)];
    let short = short.trim_end_matches(['-', '.']);
    if short.is_empty() {
        return Err(ConfigurationError::BadHostname {
            field,
            value: name.to_owned(),
        });
    }
    Ok(short.to_owned())
}

/// The hostname that the runtime sets in the pod's UTS namespace; empty on the host's network.
pub fn kernel_hostname(spec: &PodSpec, hostname: &Hostname) -> Result<String, ConfigurationError> {
    if spec.host_network == Some(true) {
        return Ok(String::new());
    }
    let Some(domain) = hostname
        .domain
        .as_ref()
        .filter(|_| spec.set_hostname_as_fqdn == Some(true))
    else {
        return Ok(hostname.name.clone());
    };
    let fqdn = format!("{}.{domain}", hostname.name);
    if fqdn.len() > MAX_FQDN_LENGTH {
        return Err(ConfigurationError::FqdnTooLong {
            fqdn,
            limit: MAX_FQDN_LENGTH,
        });
    }
    Ok(fqdn)
}
