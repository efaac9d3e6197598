//! A pod's DNS: which servers, search domains and options it gets.
//!
//! Owns the policies, the merge with `dnsConfig` and the limits. Warnings are data; the caller records them as events.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Pod, PodDNSConfig, PodSpec};
use rubelet_model::pod::namespace_of;
use rubelet_wire::cri::v1::DnsConfig;

use super::node::NodeConfiguration;
use super::resolv_conf::ResolvConf;

pub const MAX_NAMESERVERS: usize = 3;
pub const MAX_SEARCHES: usize = 32;
pub const MAX_SEARCH_LINE_LENGTH: usize = 2048;
/// A longer domain makes some resolvers abort.
pub const MAX_SEARCH_LENGTH: usize = 253;
const CLUSTER_OPTIONS: &str = "ndots:5";

/// What the pod's events warn of about its DNS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DnsWarning {
    /// The policy asks for the cluster's DNS, and the node knows none.
    MissingClusterDns,
    Nameservers {
        applied: Vec<String>,
    },
    Searches {
        applied: Vec<String>,
    },
}

impl DnsWarning {
    /// The event's reason.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::MissingClusterDns => "MissingClusterDNS",
            Self::Nameservers { .. } | Self::Searches { .. } => "DNSConfigForming",
        }
    }

    pub fn message(&self) -> String {
        match self {
            Self::MissingClusterDns => {
                "no cluster DNS is configured on this node: policy ClusterFirst is treated as Default"
                    .to_owned()
            }
            Self::Nameservers { applied } => {
                format!(
                    "more than {MAX_NAMESERVERS} nameservers, only these are used: {}",
                    applied.join(" ")
                )
            }
            Self::Searches { applied } => {
                format!(
                    "too many or too long search domains, only these are used: {}",
                    applied.join(" ")
                )
            }
        }
    }
}

/// The settings, and the warnings about them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Dns {
    pub config: DnsConfig,
    pub warnings: Vec<DnsWarning>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Basis {
    Cluster,
    Host,
    Nothing,
}

/// An unknown policy counts as ClusterFirst.
fn basis(spec: &PodSpec) -> Basis {
    match spec.dns_policy.as_deref() {
        Some("None") => Basis::Nothing,
        Some("Default") => Basis::Host,
        Some("ClusterFirst") if spec.host_network == Some(true) => Basis::Host,
        Some(_) | None => Basis::Cluster,
    }
}

/// The DNS of a pod on this node. `resolver` is what is in the node's file, if it has one.
pub fn pod_dns(pod: &Pod, node: &NodeConfiguration, resolver: Option<&ResolvConf>) -> Dns {
    let default_spec = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&default_spec);
    let mut warnings = Vec::new();
    let mut config = match basis(spec) {
        Basis::Nothing => DnsConfig::default(),
        Basis::Cluster if node.cluster_dns.is_empty() => {
            warnings.push(DnsWarning::MissingClusterDns);
            host_dns(node, resolver)
        }
        Basis::Cluster => cluster_dns(pod, node, resolver),
        Basis::Host => host_dns(node, resolver),
    };
    if let Some(wanted) = &spec.dns_config {
        merge(&mut config, wanted);
    }
    if config.servers.len() > MAX_NAMESERVERS {
        config.servers.truncate(MAX_NAMESERVERS);
        let applied = config.servers.clone();
        warnings.push(DnsWarning::Nameservers { applied });
    }
    if cut_searches(&mut config.searches) {
        let applied = config.searches.clone();
        warnings.push(DnsWarning::Searches { applied });
    }
    Dns { config, warnings }
}

fn host_dns(node: &NodeConfiguration, resolver: Option<&ResolvConf>) -> DnsConfig {
    if let Some(file) = resolver {
        return DnsConfig {
            servers: file.servers.clone(),
            searches: file.searches.clone(),
            options: file.options.clone(),
        };
    }
    // Without a resolver file lookups must not leave the machine; runtimes would fall back to the node's own file.
    let loopback = |address: &IpAddr| if address.is_ipv6() { "::1" } else { "127.0.0.1" }.to_owned();
    let mut servers: Vec<String> = node.node_ips.iter().map(loopback).collect();
    if servers.is_empty() {
        servers.push("127.0.0.1".to_owned());
    }
    DnsConfig {
        servers,
        searches: vec![".".to_owned()],
        options: Vec::new(),
    }
}

fn cluster_dns(pod: &Pod, node: &NodeConfiguration, resolver: Option<&ResolvConf>) -> DnsConfig {
    let host = resolver.map(|file| file.searches.clone());
    let mut searches = host.unwrap_or_default();
    let domain = &node.cluster_domain;
    if !domain.is_empty() {
        let namespace = namespace_of(pod);
        let cluster = [
            format!("{namespace}.svc.{domain}"),
            format!("svc.{domain}"),
            domain.clone(),
        ];
        searches = without_duplicates(cluster.into_iter().chain(searches));
    }
    DnsConfig {
        servers: node.cluster_dns.iter().map(IpAddr::to_string).collect(),
        searches,
        options: vec![CLUSTER_OPTIONS.to_owned()],
    }
}

fn without_duplicates(texts: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut kept: Vec<String> = Vec::new();
    for text in texts {
        if !kept.contains(&text) {
            kept.push(text);
        }
    }
    kept
}

fn merge(config: &mut DnsConfig, wanted: &PodDNSConfig) {
    let more = |list: &Option<Vec<String>>| list.clone().unwrap_or_default();
    let servers = std::mem::take(&mut config.servers).into_iter();
    config.servers = without_duplicates(servers.chain(more(&wanted.nameservers)));
    let searches = std::mem::take(&mut config.searches).into_iter();
    config.searches = without_duplicates(searches.chain(more(&wanted.searches)));

    let own = std::mem::take(&mut config.options);
    let own = own.iter().map(|option| match option.split_once(':') {
        Some((name, value)) => (name.to_owned(), value.to_owned()),
        None => (option.clone(), String::new()),
    });
    let wanted = wanted.options.iter().flatten().map(|option| {
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        (text(&option.name), text(&option.value))
    });
    let mut options: Vec<(String, String)> = Vec::new();
    for (name, value) in own.chain(wanted) {
        match options.iter_mut().find(|(other, _)| *other == name) {
            Some((_, other)) => *other = value,
            None => options.push((name, value)),
        }
    }
    config.options = options
        .into_iter()
        .map(|(name, value)| {
            if value.is_empty() {
                name
            } else {
                format!("{name}:{value}")
            }
        })
        .collect();
}

/// Leaves out what resolvers cannot take; true when something was left out.
fn cut_searches(searches: &mut Vec<String>) -> bool {
    let before = searches.len();
    searches.truncate(MAX_SEARCHES);
    searches.retain(|search| search.len() <= MAX_SEARCH_LENGTH);
    while searches.join(" ").len() > MAX_SEARCH_LINE_LENGTH {
        searches.pop();
    }
    searches.len() != before
}
