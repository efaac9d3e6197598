//! Addresses of the pod and of its node.
//!
//! Owns their order and number: at most one of each family, the node's preferred family first.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{HostIP, PodIP, PodStatus};
use rubelet_model::address::parse_ip;

fn canonical(text: &str) -> Option<IpAddr> {
    parse_ip(text).map(|ip| ip.to_canonical())
}

/// The first address of each family, the preferred family first, in their canonical form.
pub fn ordered_pod_ips(seen: &[String], prefers_ipv6: bool) -> Vec<String> {
    let first_of = |ipv6: bool| {
        seen.iter()
            .filter_map(|text| canonical(text))
            .find(|ip| ip.is_ipv6() == ipv6)
    };
    [prefers_ipv6, !prefers_ipv6]
        .into_iter()
        .filter_map(first_of)
        .map(|ip| ip.to_string())
        .collect()
}

pub(super) fn set_pod_ips(status: &mut PodStatus, ips: Vec<String>) {
    status.pod_ip = ips.first().cloned();
    status.pod_ips = (!ips.is_empty()).then(|| ips.into_iter().map(|ip| PodIP { ip }).collect());
}

/// Node addresses, and for pods on the node's network the pod's own: once set they stay, a second family may be added.
pub(super) fn set_host_ips(status: &mut PodStatus, host_ips: &[IpAddr], on_host_network: bool) {
    let Some(primary) = host_ips.first() else { return };
    let secondary = match host_ips {
        [_, second] => Some(second),
        _ => None,
    };
    status.host_ip = Some(primary.to_string());
    let shown = std::iter::once(primary).chain(secondary);
    status.host_ips = Some(shown.map(|ip| HostIP { ip: ip.to_string() }).collect());
    if !on_host_network {
        return;
    }
    if status.pod_ip.is_none() {
        set_pod_ips(status, vec![primary.to_string()]);
    }
    if let (Some(secondary), Some([only])) = (secondary, status.pod_ips.as_deref())
        && canonical(&only.ip).is_none_or(|ip| ip.is_ipv6() != secondary.is_ipv6())
    {
        let added = PodIP {
            ip: secondary.to_string(),
        };
        status.pod_ips.get_or_insert_default().push(added);
    }
}
