//! The addresses under which the Node is listed.
//!
//! Owns the order in which they are looked for: `--node-ip`, a name that is an address, what the name resolves to, the default
//! route. An external cloud provider overrides them. A resolver that does not answer changes no address. It must not look at the
//! network itself.

use std::net::{IpAddr, Ipv6Addr};

use k8s_openapi::api::core::v1::NodeAddress;
use rubelet_model::address::parse_ip;
use rubelet_ports::HostAddresses;
use thiserror::Error;

use crate::settings::AddressSettings;

const INTERNAL_IP: &str = "InternalIP";
const HOSTNAME: &str = "Hostname";
/// The annotation that passes `--node-ip` to an external cloud provider.
pub(super) const PROVIDED_NODE_IP: &str = "alpha.kubernetes.io/provided-node-ip";

/// Why the Node's addresses stay as they are.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AddressProblem {
    #[error("--node-ip {address} cannot be used: {why}")]
    NodeIp { address: IpAddr, why: &'static str },
    #[error(
        "no address of this node was found: its name {name:?} resolves to none of its own, and there is no default route"
    )]
    NoAddress { name: String },
}

/// `--node-ip` is neither one address nor a pair of both families.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NodeIpError {
    #[error("--node-ip must contain either a single IP or a dual-stack pair of IPs")]
    NoPair,
    #[error("a dual-stack --node-ip cannot include 0.0.0.0 or ::")]
    UnspecifiedPair,
}

/// Reads `--node-ip`. Texts that are no address are returned too: upstream leaves them out.
pub fn parse_node_ips(text: &str) -> Result<(Vec<IpAddr>, Vec<String>), NodeIpError> {
    let mut addresses = Vec::new();
    let mut odd = Vec::new();
    for part in text.split(',').map(str::trim).filter(|_| !text.is_empty()) {
        match parse_ip(part) {
            Some(address) => addresses.push(plain(address)),
            None => odd.push(part.to_owned()),
        }
    }
    match addresses.as_slice() {
        [] | [_] => Ok((addresses, odd)),
        [first, second] if first.is_ipv4() == second.is_ipv4() => Err(NodeIpError::NoPair),
        [first, second] if first.is_unspecified() || second.is_unspecified() => {
            Err(NodeIpError::UnspecifiedPair)
        }
        [_, _] => Ok((addresses, odd)),
        [_, _, ..] => Err(NodeIpError::NoPair),
    }
}

/// An IPv4 address that is written as an IPv6 one is an IPv4 address.
fn plain(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(long) => long.to_ipv4_mapped().map_or(address, IpAddr::V4),
        IpAddr::V4(_) => address,
    }
}

/// Whether the node's name has to be resolved.
pub(crate) fn needs_lookup(settings: &AddressSettings) -> bool {
    let is_told = settings.node_ips.first().is_some_and(|ip| !ip.is_unspecified());
    let waits_for_cloud = settings.external_cloud_provider && settings.node_ips.is_empty();
    !is_told && !waits_for_cloud && parse_ip(&settings.hostname).is_none()
}

/// The value of the annotation for an external cloud provider.
pub(super) fn provided_node_ip(settings: &AddressSettings) -> Option<String> {
    let first = settings.node_ips.first()?;
    let is_wanted = settings.external_cloud_provider && !first.is_unspecified();
    is_wanted.then(|| {
        let all: Vec<String> = settings.node_ips.iter().map(ToString::to_string).collect();
        all.join(",")
    })
}

/// The addresses, or `None` to leave those that a cloud provider has set.
pub(super) fn addresses(
    settings: &AddressSettings,
    node_name: &str,
    host: &HostAddresses,
    existing: &[NodeAddress],
) -> Result<Option<Vec<NodeAddress>>, AddressProblem> {
    let configured = settings
        .node_ips
        .iter()
        .copied()
        .filter(|ip| !ip.is_unspecified());
    let configured: Vec<IpAddr> = configured.collect();
    for address in &configured {
        usable(*address, host).map_err(|why| AddressProblem::NodeIp {
            address: *address,
            why,
        })?;
    }
    let internal = if settings.external_cloud_provider && !existing.is_empty() {
        return Ok(None);
    } else if settings.external_cloud_provider && settings.node_ips.is_empty() {
        Vec::new()
    } else if configured.is_empty() {
        vec![found(settings, node_name, host, existing)?]
    } else {
        configured
    };
    let address = |type_: &str, address: String| NodeAddress {
        type_: type_.to_owned(),
        address,
    };
    let internal = internal
        .into_iter()
        .map(|ip| address(INTERNAL_IP, ip.to_string()));
    let hostname = address(HOSTNAME, settings.hostname.clone());
    Ok(Some(internal.chain([hostname]).collect()))
}

/// The addresses of a Node that is not created yet.
pub(crate) fn machine_addresses(
    settings: &AddressSettings,
    node_name: &str,
    host: &HostAddresses,
) -> Result<Vec<NodeAddress>, AddressProblem> {
    addresses(settings, node_name, host, &[]).map(Option::unwrap_or_default)
}

fn found(
    settings: &AddressSettings,
    node_name: &str,
    host: &HostAddresses,
    existing: &[NodeAddress],
) -> Result<IpAddr, AddressProblem> {
    if let Some(address) = parse_ip(&settings.hostname) {
        return Ok(address);
    }
    // `--node-ip ::` turns the preference round.
    let prefers_v4 = settings.node_ips.first().is_none_or(IpAddr::is_ipv4);
    let preferred = |candidates: &[IpAddr]| {
        let of_family = candidates.iter().find(|ip| ip.is_ipv4() == prefers_v4);
        of_family.or(candidates.first()).copied()
    };
    let named = host.of_name.iter().copied().map(plain);
    let named: Vec<IpAddr> = named.filter(|ip| usable(*ip, host).is_ok()).collect();
    // Upstream falls back to the default route here, so that a resolver that is slow once moves the node to another address.
    let listed = existing.iter().filter(|_| host.is_name_unknown);
    let listed = listed.filter(|address| address.type_ == INTERNAL_IP);
    let mut listed = listed.filter_map(|address| parse_ip(&address.address));
    preferred(&named)
        .or_else(|| listed.find(|ip| usable(*ip, host).is_ok()))
        .or_else(|| preferred(&host.default_route))
        .ok_or_else(|| AddressProblem::NoAddress {
            name: node_name.to_owned(),
        })
}

/// An address of this machine that others may use.
fn usable(address: IpAddr, host: &HostAddresses) -> Result<(), &'static str> {
    if address.is_loopback() {
        return Err("it is a loopback address");
    }
    if address.is_multicast() {
        return Err("it is a multicast address");
    }
    let is_link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => is_unicast_link_local(v6),
    };
    if is_link_local {
        return Err("it is a link-local address");
    }
    if address.is_unspecified() {
        return Err("it is all zeros");
    }
    if !host.own.contains(&address) {
        return Err("no interface of this machine has it");
    }
    Ok(())
}

fn is_unicast_link_local(address: Ipv6Addr) -> bool {
    address.segments()[0] & 0xffc0 == 0xfe80
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ips(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    struct Case {
        node_ip: &'static str,
        hostname: &'static str,
        external: bool,
        existing: &'static [(&'static str, &'static str)],
        own: &'static [&'static str],
        of_name: &'static [&'static str],
        is_name_unknown: bool,
        route: &'static [&'static str],
    }

    const PLAIN: Case = Case {
        node_ip: "",
        hostname: "n1",
        external: false,
        existing: &[],
        own: &["10.0.0.1", "10.0.0.2", "2001:db8::1", "127.0.0.1"],
        of_name: &[],
        is_name_unknown: false,
        route: &["10.0.0.1", "2001:db8::1"],
    };

    fn check(case: &Case, expected: &str) {
        let settings = AddressSettings {
            node_ips: parse_node_ips(case.node_ip).unwrap().0,
            hostname: case.hostname.to_owned(),
            external_cloud_provider: case.external,
        };
        let host = HostAddresses {
            own: ips(case.own),
            of_name: ips(case.of_name),
            is_name_unknown: case.is_name_unknown,
            default_route: ips(case.route),
        };
        let existing: Vec<NodeAddress> = case
            .existing
            .iter()
            .map(|(type_, address)| NodeAddress {
                type_: (*type_).to_owned(),
                address: (*address).to_owned(),
            })
            .collect();
        let text = match addresses(&settings, "n1", &host, &existing) {
            Ok(None) => "as it is".to_owned(),
            Ok(Some(all)) => {
                let all = all.iter().map(|one| format!("{}={}", one.type_, one.address));
                all.collect::<Vec<_>>().join(" ")
            }
            Err(problem) => problem.to_string(),
        };
        assert_eq!(text, expected);
    }

    #[test]
    fn addresses_are_looked_for_in_upstreams_order() {
        check(&PLAIN, "InternalIP=10.0.0.1 Hostname=n1");
        let named = Case {
            of_name: &["127.0.0.1", "10.9.9.9", "2001:db8::1", "10.0.0.2"],
            ..PLAIN
        };
        check(&named, "InternalIP=10.0.0.2 Hostname=n1");
        let only_v6 = Case {
            of_name: &["2001:db8::1"],
            ..PLAIN
        };
        check(&only_v6, "InternalIP=2001:db8::1 Hostname=n1");
        let is_address = Case {
            hostname: "192.0.2.7",
            ..PLAIN
        };
        check(&is_address, "InternalIP=192.0.2.7 Hostname=192.0.2.7");
        let nothing = Case {
            own: &[],
            route: &[],
            ..PLAIN
        };
        check(
            &nothing,
            "no address of this node was found: its name \"n1\" resolves to none of its own, and there is no default route",
        );
    }

    #[test]
    fn a_resolver_that_does_not_answer_changes_no_address() {
        let listed = |existing, is_name_unknown| Case {
            existing,
            is_name_unknown,
            ..PLAIN
        };
        let second: &[_] = &[("Hostname", "n1"), ("InternalIP", "10.0.0.2")];
        check(&listed(second, true), "InternalIP=10.0.0.2 Hostname=n1");
        // It did answer, and the name is gone.
        check(&listed(second, false), "InternalIP=10.0.0.1 Hostname=n1");
        // Nothing to keep: a new node, and an address that the machine has lost.
        check(&listed(&[], true), "InternalIP=10.0.0.1 Hostname=n1");
        let lost: &[_] = &[("InternalIP", "10.0.0.9")];
        check(&listed(lost, true), "InternalIP=10.0.0.1 Hostname=n1");
    }

    #[test]
    fn the_flag_wins_when_it_is_true() {
        let told = |node_ip| Case { node_ip, ..PLAIN };
        check(&told("10.0.0.2"), "InternalIP=10.0.0.2 Hostname=n1");
        check(&told("::ffff:10.0.0.2"), "InternalIP=10.0.0.2 Hostname=n1");
        check(
            &told("2001:db8::1,10.0.0.2"),
            "InternalIP=2001:db8::1 InternalIP=10.0.0.2 Hostname=n1",
        );
        check(&told("0.0.0.0"), "InternalIP=10.0.0.1 Hostname=n1");
        check(&told("::"), "InternalIP=2001:db8::1 Hostname=n1");
        let no = |address: &str, why: &str| format!("--node-ip {address} cannot be used: {why}");
        for (address, why) in [
            ("127.0.0.1", "it is a loopback address"),
            ("224.0.0.1", "it is a multicast address"),
            ("169.254.1.1", "it is a link-local address"),
            ("fe80::1", "it is a link-local address"),
            ("10.0.0.9", "no interface of this machine has it"),
        ] {
            check(&told(address), &no(address, why));
        }
    }

    #[test]
    fn an_external_provider_has_the_last_word() {
        let external = |node_ip, existing| Case {
            node_ip,
            existing,
            external: true,
            ..PLAIN
        };
        let listed: &[_] = &[("ExternalIP", "192.0.2.1")];
        check(&external("", &[]), "Hostname=n1");
        check(&external("", listed), "as it is");
        check(&external("10.0.0.2", &[]), "InternalIP=10.0.0.2 Hostname=n1");
        check(&external("10.0.0.2", listed), "as it is");
        check(&external("0.0.0.0", &[]), "InternalIP=10.0.0.1 Hostname=n1");
        let annotation = |node_ip: &str, external_cloud_provider| {
            provided_node_ip(&AddressSettings {
                node_ips: parse_node_ips(node_ip).unwrap().0,
                hostname: String::new(),
                external_cloud_provider,
            })
        };
        assert_eq!(annotation("10.0.0.2,::1", true).as_deref(), Some("10.0.0.2,::1"));
        assert_eq!(annotation("10.0.0.2", false), None);
        assert_eq!(annotation("0.0.0.0", true), None);
    }

    #[test]
    fn names_are_resolved_only_where_it_matters() {
        let needs = |node_ip: &str, hostname: &str, external_cloud_provider| {
            needs_lookup(&AddressSettings {
                node_ips: parse_node_ips(node_ip).unwrap().0,
                hostname: hostname.to_owned(),
                external_cloud_provider,
            })
        };
        assert!(needs("", "n1", false));
        assert!(needs("0.0.0.0", "n1", true));
        assert!(!needs("", "n1", true));
        assert!(!needs("10.0.0.1", "n1", false));
        assert!(!needs("", "10.0.0.1", false));
    }

    #[test]
    fn the_flag_is_one_address_or_a_pair() {
        let read = |text: &str| parse_node_ips(text).map(|(good, odd)| (good.len(), odd.len()));
        assert_eq!(read(""), Ok((0, 0)));
        assert_eq!(read("10.0.0.1, fe80::1"), Ok((2, 0)));
        assert_eq!(read("10.0.0.1,,x"), Ok((1, 2)));
        assert_eq!(read("10.0.0.1,10.0.0.2"), Err(NodeIpError::NoPair));
        assert_eq!(read("10.0.0.1,::1,::2"), Err(NodeIpError::NoPair));
        assert_eq!(read("0.0.0.0,::1"), Err(NodeIpError::UnspecifiedPair));
    }
}
