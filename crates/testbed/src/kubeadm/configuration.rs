//! kubeadm's configuration file.

use std::net::IpAddr;

use anyhow::Result;
use serde_json::json;

use super::images::{REPOSITORY, kubernetes_version};

/// What one cluster's configuration says beyond what all have in common.
pub(super) struct Configuration<'a> {
    pub(super) node_name: &'a str,
    pub(super) address: IpAddr,
    pub(super) runtime: &'a str,
    pub(super) cgroup_root: &'a str,
}

impl Configuration<'_> {
    /// The documents of the file: every JSON document is a YAML document.
    pub(super) fn text(&self) -> Result<String> {
        let init = json!({
            "apiVersion": "kubeadm.k8s.io/v1beta4",
            "kind": "InitConfiguration",
            "localAPIEndpoint": { "advertiseAddress": self.address },
            "nodeRegistration": {
                "name": self.node_name,
                "criSocket": self.runtime,
                "imagePullPolicy": "Never",
                // The one node runs everything.
                "taints": [],
            },
        });
        let cluster = json!({
            "apiVersion": "kubeadm.k8s.io/v1beta4",
            "kind": "ClusterConfiguration",
            "kubernetesVersion": kubernetes_version()?,
            "imageRepository": REPOSITORY,
            // Nothing of this cluster survives the machine.
            "etcd": { "local": {
                "dataDir": "/var/lib/etcd",
                "extraArgs": [{ "name": "unsafe-no-fsync", "value": "true" }],
            } },
        });
        let kubelet = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": self.cgroup_root,
            "failCgroupV1": false,
            "failSwapOn": false,
            "oomScoreAdj": 0,
            // A disk that is nearly full is no reason for these pods to go.
            "evictionHard": { "memory.available": "1Mi" },
            "imageGCHighThresholdPercent": 100,
        });
        let proxy = json!({
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "iptables",
            // The kernel has one table of connections, which is not this network namespace's to size.
            "conntrack": { "maxPerCore": 0, "min": 0 },
            // Pods of one bridge answer each other directly, past the packet filter, unless requests come from the node's address.
            "iptables": { "masqueradeAll": true },
        });
        Ok([init, cluster, kubelet, proxy]
            .map(|document| format!("{document}\n"))
            .join("---\n"))
    }
}
