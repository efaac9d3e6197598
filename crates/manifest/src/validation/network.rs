//! Rules for names and addresses of a pod: DNS, host names, host aliases, ports of host-network pods.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{HostAlias, PodDNSConfig, PodSpec};
use rubelet_model::address::parse_ip;

use super::Options;
use super::names::{dns_label, dns_subdomain, is_search_domain};
use crate::fields::{flag, list, text};
use crate::problem::{Findings, Path};

const MAX_NAMESERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
const MAX_SEARCH_BYTES: usize = 2048;
const MAX_HOSTNAME_BYTES: usize = 64;

fn ip(out: &mut Findings, path: &Path, value: &str, options: &Options) {
    if parse_ip(value).is_none() {
        return out.invalid(path, "not an IP address");
    }
    if options.strict_ip {
        let plain = match value.parse() {
            Ok(IpAddr::V4(_)) => true,
            Ok(IpAddr::V6(address)) => address.to_ipv4_mapped().is_none(),
            Err(_) => false,
        };
        out.invalid_unless(plain, path, "not the plain form of an IP address");
    }
}

pub(super) fn dns(out: &mut Findings, path: &Path, spec: &PodSpec, options: &Options) {
    if text(&spec.dns_policy) == "None" {
        let Some(config) = &spec.dns_config else {
            return out.required(path, "dnsPolicy None needs it");
        };
        if list(&config.nameservers).is_empty() {
            return out.required(&path.child("nameservers"), "dnsPolicy None needs one");
        }
    }
    if let Some(config) = &spec.dns_config {
        dns_config(out, path, config, options);
    }
}

fn dns_config(out: &mut Findings, path: &Path, config: &PodDNSConfig, options: &Options) {
    let servers = list(&config.nameservers);
    let servers_path = path.child("nameservers");
    out.invalid_unless(servers.len() <= MAX_NAMESERVERS, &servers_path, "at most 3");
    for (position, server) in servers.iter().enumerate() {
        ip(out, &servers_path.index(position), server, options);
    }
    let searches = list(&config.searches);
    let searches_path = path.child("searches");
    let fits = searches.len() <= MAX_SEARCHES && searches.join(" ").len() <= MAX_SEARCH_BYTES;
    out.invalid_unless(fits, &searches_path, "at most 32, and 2048 bytes together");
    for (position, search) in searches.iter().enumerate() {
        let name = search.strip_suffix('.').unwrap_or(search);
        let fits = search == "." || is_search_domain(name);
        out.invalid_unless(fits, &searches_path.index(position), "not a DNS name");
    }
    for (position, option) in list(&config.options).iter().enumerate() {
        out.required_text(&path.child("options").index(position), text(&option.name));
    }
}

pub(super) fn host_names(out: &mut Findings, path: &Path, spec: &PodSpec) {
    for (name, value) in [
        ("hostname", text(&spec.hostname)),
        ("subdomain", text(&spec.subdomain)),
    ] {
        if !value.is_empty() {
            dns_label(out, &path.child(name), value);
        }
    }
    let Some(name) = &spec.hostname_override else {
        return;
    };
    let path = path.child("hostnameOverride");
    if flag(spec.set_hostname_as_fqdn) {
        out.forbidden(&path, "not with setHostnameAsFQDN");
    }
    if flag(spec.host_network) {
        out.forbidden(&path, "not with hostNetwork");
    }
    if name.len() > MAX_HOSTNAME_BYTES {
        out.too_long(&path, MAX_HOSTNAME_BYTES);
    }
    dns_subdomain(out, &path, name);
}

pub(super) fn host_aliases(out: &mut Findings, path: &Path, aliases: &[HostAlias], options: &Options) {
    for (position, alias) in aliases.iter().enumerate() {
        let path = path.index(position);
        ip(out, &path.child("ip"), &alias.ip, options);
        for (position, name) in list(&alias.hostnames).iter().enumerate() {
            dns_subdomain(out, &path.child("hostnames").index(position), name);
        }
    }
}

pub(super) fn host_network_ports(out: &mut Findings, path: &Path, spec: &PodSpec) {
    if !flag(spec.host_network) {
        return;
    }
    for (position, container) in spec.containers.iter().enumerate() {
        let path = path.child("containers").index(position).child("ports");
        for (position, port) in list(&container.ports).iter().enumerate() {
            let host_port = port.host_port.unwrap_or_default();
            let fits = host_port == 0 || host_port == port.container_port;
            out.invalid_unless(
                fits,
                &path.index(position).child("hostPort"),
                "must be the containerPort",
            );
        }
    }
}
