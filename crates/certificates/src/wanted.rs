//! What a certificate of the node has to contain. Pure.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::NodeAddress;
use tokio::sync::watch;

use crate::facts::CertificateFacts;

/// Which of the two certificates of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// Shown to the API server.
    Client,
    /// Shown by the node's HTTPS server.
    Serving,
}

impl Purpose {
    pub(crate) fn signer(self) -> &'static str {
        match self {
            Self::Client => "kubernetes.io/kube-apiserver-client-kubelet",
            Self::Serving => "kubernetes.io/kubelet-serving",
        }
    }

    /// Keys are ECDSA, so nothing is enciphered with them.
    pub(crate) fn usages(self) -> [&'static str; 2] {
        match self {
            Self::Client => ["digital signature", "client auth"],
            Self::Serving => ["digital signature", "server auth"],
        }
    }

    /// How its files begin.
    pub(crate) fn file_prefix(self) -> &'static str {
        match self {
            Self::Client => "kubelet-client",
            Self::Serving => "kubelet-server",
        }
    }

    /// The name in log lines.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Client => "client certificate",
            Self::Serving => "serving certificate",
        }
    }
}

/// The contents of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub purpose: Purpose,
    pub common_name: String,
    pub organization: &'static str,
    pub dns_names: BTreeSet<String>,
    pub ip_addresses: BTreeSet<IpAddr>,
}

impl Wanted {
    pub(crate) fn client(node_name: &str) -> Self {
        Self {
            purpose: Purpose::Client,
            common_name: format!("system:node:{node_name}"),
            organization: "system:nodes",
            dns_names: BTreeSet::new(),
            ip_addresses: BTreeSet::new(),
        }
    }

    /// For these addresses; `None` while there are too few to ask for anything.
    pub(crate) fn serving(node_name: &str, addresses: &[NodeAddress], allow_dns_only: bool) -> Option<Self> {
        let mut wanted = Self {
            purpose: Purpose::Serving,
            ..Self::client(node_name)
        };
        for NodeAddress { address, type_ } in addresses {
            match (type_.as_str(), address.parse::<IpAddr>()) {
                (_, Err(_)) if address.is_empty() => {}
                ("Hostname" | "InternalIP" | "ExternalIP", Ok(ip)) => {
                    wanted.ip_addresses.insert(ip);
                }
                ("InternalDNS" | "ExternalDNS", _) | ("Hostname", Err(_)) => {
                    wanted.dns_names.insert(address.clone());
                }
                _ => {}
            }
        }
        let has_dns_names = allow_dns_only && !wanted.dns_names.is_empty();
        (has_dns_names || !wanted.ip_addresses.is_empty()).then_some(wanted)
    }

    /// What a certificate lacks, as a text for the log. A certificate may have more than is wanted.
    pub(crate) fn lacking(&self, facts: &CertificateFacts) -> Option<String> {
        if facts.common_name != self.common_name {
            return Some(format!(
                "it is for {:?} and not for {:?}",
                facts.common_name, self.common_name
            ));
        }
        if !facts.organizations.contains(self.organization) {
            return Some(format!("it is not of organization {}", self.organization));
        }
        let names = self.dns_names.difference(&facts.dns_names).cloned();
        let addresses = self.ip_addresses.difference(&facts.ip_addresses);
        let missing: Vec<String> = names.chain(addresses.map(ToString::to_string)).collect();
        (!missing.is_empty()).then(|| format!("it is not for {}", missing.join(", ")))
    }
}

/// Where the contents come from.
pub(crate) enum WantedSource {
    Fixed(Wanted),
    Addresses {
        node_name: String,
        allow_dns_only: bool,
        addresses: watch::Receiver<Vec<NodeAddress>>,
    },
}

impl WantedSource {
    pub(crate) fn wanted(&mut self) -> Option<Wanted> {
        match self {
            Self::Fixed(wanted) => Some(wanted.clone()),
            Self::Addresses {
                node_name,
                allow_dns_only,
                addresses,
            } => Wanted::serving(node_name, &addresses.borrow_and_update(), *allow_dns_only),
        }
    }

    /// Ends when something else is wanted than `known`. Cancel-safe.
    pub(crate) async fn changed(&mut self, known: Option<&Wanted>) {
        loop {
            let heard = match self {
                Self::Fixed(_) => false,
                Self::Addresses { addresses, .. } => addresses.changed().await.is_ok(),
            };
            if !heard {
                return std::future::pending().await;
            }
            if self.wanted().as_ref() != known {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(addresses: &[(&str, &str)], allow_dns_only: bool, expected: Option<(&[&str], &[&str])>) {
        let addresses: Vec<NodeAddress> = addresses
            .iter()
            .map(|(type_, address)| NodeAddress {
                address: (*address).to_owned(),
                type_: (*type_).to_owned(),
            })
            .collect();
        let found = Wanted::serving("n", &addresses, allow_dns_only);
        let found = found.map(|wanted| {
            assert_eq!(wanted.common_name, "system:node:n");
            let addresses: Vec<String> = wanted.ip_addresses.iter().map(ToString::to_string).collect();
            (wanted.dns_names.into_iter().collect::<Vec<_>>(), addresses)
        });
        let expected = expected.map(|(names, addresses)| {
            let owned = |list: &[&str]| list.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>();
            (owned(names), owned(addresses))
        });
        assert_eq!(found, expected, "{addresses:?}");
    }

    #[test]
    fn a_serving_certificate_is_for_the_addresses_of_the_node() {
        check(&[], false, None);
        check(&[("Hostname", "n")], false, None);
        check(&[("Hostname", "n")], true, Some((&["n"], &[])));
        check(&[("InternalIP", "")], true, None);
        check(&[("InternalIP", "nonsense"), ("Other", "10.0.0.1")], true, None);
        check(
            &[
                ("InternalIP", "10.0.0.2"),
                ("ExternalIP", "10.0.0.1"),
                ("InternalIP", "10.0.0.2"),
                ("InternalIP", "fd00::1"),
                ("Hostname", "n"),
                ("InternalDNS", "n.internal"),
                ("ExternalDNS", "n.example.org"),
            ],
            false,
            Some((
                &["n", "n.example.org", "n.internal"],
                &["10.0.0.1", "10.0.0.2", "fd00::1"],
            )),
        );
        // A node may be named by its address.
        check(&[("Hostname", "10.0.0.1")], false, Some((&[], &["10.0.0.1"])));
    }

    #[test]
    fn a_certificate_may_say_more_than_is_wanted_but_not_less() {
        let facts = |name: &str, organization: &str, dns: &[&str], ips: &[&str]| CertificateFacts {
            not_before: rubelet_model::Timestamp::EPOCH,
            not_after: rubelet_model::Timestamp::EPOCH,
            common_name: name.to_owned(),
            organizations: [organization.to_owned(), "more".to_owned()].into(),
            dns_names: dns.iter().map(|one| (*one).to_owned()).collect(),
            ip_addresses: ips.iter().map(|one| one.parse().unwrap()).collect(),
            public_key: Vec::new(),
        };
        let check = |facts: CertificateFacts, expected: Option<&str>| {
            let wanted = Wanted {
                dns_names: ["n".to_owned()].into(),
                ip_addresses: ["10.0.0.1".parse().unwrap()].into(),
                ..Wanted::client("n")
            };
            assert_eq!(wanted.lacking(&facts).as_deref(), expected);
        };
        let (name, organization) = ("system:node:n", "system:nodes");
        check(
            facts(name, organization, &["n", "m"], &["10.0.0.1", "10.0.0.2"]),
            None,
        );
        check(
            facts(name, organization, &[], &[]),
            Some("it is not for n, 10.0.0.1"),
        );
        check(
            facts(name, "system:masters", &["n"], &["10.0.0.1"]),
            Some("it is not of organization system:nodes"),
        );
        check(
            facts("admin", organization, &["n"], &["10.0.0.1"]),
            Some("it is for \"admin\" and not for \"system:node:n\""),
        );
    }
}
