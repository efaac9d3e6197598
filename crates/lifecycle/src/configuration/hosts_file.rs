//! The content of a pod's `/etc/hosts`.
//!
//! Owns the text and the rule when a container gets it. It writes no file.

use std::fmt::Write;

use k8s_openapi::api::core::v1::{Container, HostAlias, Pod};
use rubelet_model::pod::uses_host_network;

use super::hostname::Hostname;

pub const PATH: &str = "/etc/hosts";
const HEADER: &str = "# Kubernetes-managed hosts file.\n";
const HOST_NETWORK_HEADER: &str = "# Kubernetes-managed hosts file (host network).\n";
const ALIASES_HEADER: &str = "\n# Entries added by HostAliases.\n";
const LOCAL_ENTRIES: &str = "127.0.0.1\tlocalhost\n\
    ::1\tlocalhost ip6-localhost ip6-loopback\n\
    fe00::0\tip6-localnet\n\
    fe00::0\tip6-mcastprefix\n\
    fe00::1\tip6-allnodes\n\
    fe00::2\tip6-allrouters\n";

/// Whether the container gets the file: not over a mount of its own, and not before the pod has an address.
pub fn is_mounted(pod: &Pod, container: &Container, pod_ips: &[String]) -> bool {
    let mut mounts = container.volume_mounts.iter().flatten();
    (uses_host_network(pod) || !pod_ips.is_empty()) && !mounts.any(|mount| mount.mount_path == PATH)
}

/// The file of a pod with a network of its own.
pub fn content(pod_ips: &[String], hostname: &Hostname, aliases: &[HostAlias]) -> String {
    let mut text = format!("{HEADER}{LOCAL_ENTRIES}");
    let name = &hostname.name;
    for address in pod_ips {
        // Writing to a string cannot fail.
        let _ = match &hostname.domain {
            Some(domain) => writeln!(text, "{address}\t{name}.{domain}\t{name}"),
            None => writeln!(text, "{address}\t{name}"),
        };
    }
    text.push_str(&alias_entries(aliases));
    text
}

/// The file of a pod on the host's network: the node's own file and the pod's aliases.
pub fn host_network_content(node_file: &[u8], aliases: &[HostAlias]) -> Vec<u8> {
    let mut bytes = HOST_NETWORK_HEADER.as_bytes().to_vec();
    bytes.extend_from_slice(node_file);
    bytes.extend_from_slice(alias_entries(aliases).as_bytes());
    bytes
}

fn alias_entries(aliases: &[HostAlias]) -> String {
    if aliases.is_empty() {
        return String::new();
    }
    let entry = |alias: &HostAlias| {
        let names = alias.hostnames.as_deref().unwrap_or_default();
        format!("{}\t{}\n", alias.ip, names.join("\t"))
    };
    let entries: String = aliases.iter().map(entry).collect();
    format!("{ALIASES_HEADER}{entries}")
}
