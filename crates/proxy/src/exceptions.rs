//! `NO_PROXY`: what is reached without a proxy.
//!
//! Owns Go's rules. A host name matches itself and all names below it; with a leading dot or `*.` only those below. An address
//! or a network matches addresses only. A port limits an entry to that port. `*` is everything.

use std::net::{IpAddr, Ipv6Addr};

pub(crate) struct Exceptions(Vec<Exception>);

enum Exception {
    Everything,
    Network { first: IpAddr, prefix_bits: u32 },
    Address { ip: IpAddr, port: Option<String> },
    Domain(Domain),
}

struct Domain {
    /// With a leading dot.
    suffix: String,
    /// Whether the name without the dot matches too.
    matches_itself: bool,
    port: Option<String>,
}

impl Exceptions {
    pub(crate) fn parse(no_proxy: &str) -> Self {
        let entries = no_proxy.split(',').map(|entry| entry.trim().to_lowercase());
        Self(entries.filter_map(|entry| Exception::parse(&entry)).collect())
    }

    /// Whether this host, without brackets, is reached without a proxy. This machine always is.
    pub(crate) fn contain(&self, host: &str, port: u16) -> bool {
        let ip = host.parse::<IpAddr>().ok().map(|ip| ip.to_canonical());
        if host == "localhost" || ip.is_some_and(|ip| ip.is_loopback()) {
            return true;
        }
        let (host, port) = (host.to_lowercase(), port.to_string());
        self.0.iter().any(|exception| exception.matches(&host, &port, ip))
    }
}

impl Exception {
    fn parse(entry: &str) -> Option<Self> {
        if entry == "*" {
            return Some(Self::Everything);
        }
        if let Some(network) = network(entry) {
            return Some(network);
        }
        let (host, port) = host_and_port(entry);
        let port = Some(port.to_owned()).filter(|port| !port.is_empty());
        if let Ok(ip) = host.parse::<IpAddr>() {
            let ip = ip.to_canonical();
            return Some(Self::Address { ip, port });
        }
        let host = host
            .strip_prefix('*')
            .filter(|rest| rest.starts_with('.'))
            .unwrap_or(host);
        match host.strip_prefix('.') {
            _ if host.is_empty() => None,
            Some(_) => Some(Self::Domain(Domain {
                suffix: host.to_owned(),
                matches_itself: false,
                port,
            })),
            None => Some(Self::Domain(Domain {
                suffix: format!(".{host}"),
                matches_itself: true,
                port,
            })),
        }
    }

    fn matches(&self, host: &str, port: &str, ip: Option<IpAddr>) -> bool {
        let is_port = |wanted: &Option<String>| wanted.as_deref().is_none_or(|wanted| wanted == port);
        match self {
            Self::Everything => true,
            Self::Network { first, prefix_bits } => {
                ip.is_some_and(|ip| shares_prefix(*first, ip, *prefix_bits))
            }
            Self::Address { ip: own, port } => ip == Some(*own) && is_port(port),
            Self::Domain(domain) => {
                let is_name = host.ends_with(&domain.suffix)
                    || (domain.matches_itself && Some(host) == domain.suffix.strip_prefix('.'));
                ip.is_none() && is_name && is_port(&domain.port)
            }
        }
    }
}

/// `address/bits`. IPv4 that is written as IPv6 is IPv4.
fn network(entry: &str) -> Option<Exception> {
    let (address, bits) = entry.split_once('/')?;
    let address: IpAddr = address.parse().ok()?;
    if bits.is_empty() || !bits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let bits: u32 = bits.parse().ok()?;
    match address {
        IpAddr::V4(_) if bits <= 32 => Some(Exception::Network {
            first: address,
            prefix_bits: bits,
        }),
        IpAddr::V6(v6) if bits <= 128 => {
            let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
            let first = IpAddr::V6(Ipv6Addr::from(u128::from(v6) & mask)).to_canonical();
            let prefix_bits = if first.is_ipv4() { bits - 96 } else { bits };
            Some(Exception::Network { first, prefix_bits })
        }
        IpAddr::V4(_) | IpAddr::V6(_) => None,
    }
}

fn shares_prefix(first: IpAddr, ip: IpAddr, prefix_bits: u32) -> bool {
    let (difference, width) = match (first, ip) {
        (IpAddr::V4(first), IpAddr::V4(ip)) => (u128::from(u32::from(first) ^ u32::from(ip)), 32),
        (IpAddr::V6(first), IpAddr::V6(ip)) => (u128::from(first) ^ u128::from(ip), 128),
        _ => return false,
    };
    difference.checked_shr(width - prefix_bits).unwrap_or(0) == 0
}

/// The entry's two parts; what is not of the form `host:port` or `[host]:port` is all host.
fn host_and_port(entry: &str) -> (&str, &str) {
    if let Some(rest) = entry.strip_prefix('[') {
        return match rest.split_once("]:") {
            Some((host, port)) if !port.contains([':', '[', ']']) => (host, port),
            _ => (entry, ""),
        };
    }
    match entry.split_once(':') {
        Some((host, port)) if !port.contains(':') && !entry.contains(['[', ']']) => (host, port),
        _ => (entry, ""),
    }
}

#[cfg(test)]
mod tests {
    use http::Uri;
    use serde_json::Value;

    use super::*;

    /// Every line is a question with the answer of Go's own package.
    #[test]
    fn hosts_are_excepted_as_go_does_it() {
        let mut asked = 0;
        for line in include_str!("../../../testbed/goldens/no_proxy.jsonl").lines() {
            let line: Value = serde_json::from_str(line).unwrap();
            let no_proxy = line["input"]["noProxy"].as_str().unwrap();
            let exceptions = Exceptions::parse(no_proxy);
            let urls = line["input"]["urls"].as_array().unwrap().iter();
            let direct: Vec<&Value> = urls
                .filter(|url| {
                    let uri: Uri = url.as_str().unwrap().parse().unwrap();
                    let host = crate::without_brackets(uri.host().unwrap());
                    exceptions.contain(host, uri.port_u16().unwrap())
                })
                .collect();
            let expected: Vec<&Value> = line["output"]["direct"].as_array().unwrap().iter().collect();
            assert_eq!(direct, expected, "NO_PROXY={no_proxy:?}");
            asked += 1;
        }
        assert!(asked > 30, "only {asked} questions are in the golden");
    }
}
