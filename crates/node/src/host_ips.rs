//! The node's addresses as pods see them.
//!
//! Owns the choice: the addresses of the Node object, whatever component wrote them, and those of the machine while there is
//! no Node. The machine's are chosen by the same rules as for the Node's own addresses.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, NodeAddress};
use rubelet_model::address::parse_ip;
use rubelet_ports::{AddressReader, Clock, HostIps, LogThrottle, Spawner, within};
use tokio::sync::watch;

use crate::settings::AddressSettings;
use crate::status::{machine_addresses, needs_lookup};

/// What one look at the machine may take.
const LOOK_LIMIT: Duration = Duration::from_secs(5);
/// Between looks while no address is known.
const UNKNOWN_PAUSE: Duration = Duration::from_secs(5);
/// Between looks otherwise: a machine alone may get another address.
const KNOWN_PAUSE: Duration = Duration::from_secs(60);

/// The edges.
#[derive(Clone)]
pub struct HostIpsPorts {
    pub clock: Arc<dyn Clock>,
    pub spawner: Arc<dyn Spawner>,
    pub addresses: Arc<dyn AddressReader>,
    /// The Node as it was seen last; nothing without an API server.
    pub object: watch::Receiver<Option<Arc<Node>>>,
}

/// The answer at any moment.
pub struct NodeHostIps {
    object: watch::Receiver<Option<Arc<Node>>>,
    machine: watch::Receiver<Vec<IpAddr>>,
}

impl NodeHostIps {
    /// The machine is looked at until the program ends.
    #[must_use]
    pub fn start(ports: HostIpsPorts, settings: AddressSettings, node_name: String) -> Self {
        let (sender, machine) = watch::channel(Vec::new());
        let object = ports.object.clone();
        let spawner = Arc::clone(&ports.spawner);
        let looks = watch_machine(ports, settings, node_name, sender);
        spawner.spawn("addresses of the machine", Box::pin(looks));
        Self { object, machine }
    }
}

impl HostIps for NodeHostIps {
    fn host_ips(&self) -> Vec<IpAddr> {
        match self.object.borrow().as_deref() {
            Some(node) => of_node(node),
            None => self.machine.borrow().clone(),
        }
    }
}

async fn watch_machine(
    ports: HostIpsPorts,
    settings: AddressSettings,
    node_name: String,
    known: watch::Sender<Vec<IpAddr>>,
) {
    let clock = ports.clock.as_ref();
    let name = needs_lookup(&settings).then_some(node_name.as_str());
    let mut throttle = LogThrottle::default();
    while !known.is_closed() {
        // A Node object wins, and following it costs nothing.
        if ports.object.borrow().is_none() {
            let looked = within(clock, LOOK_LIMIT, ports.addresses.addresses(name)).await;
            let found = match looked {
                Ok(Ok(host)) => {
                    machine_addresses(&settings, &node_name, &host).map_err(|error| error.to_string())
                }
                Ok(Err(error)) => Err(error.to_string()),
                Err(elapsed) => Err(elapsed.to_string()),
            };
            match found {
                Ok(found) => {
                    throttle.end();
                    known.send_replace(primary_of_each_family(&found));
                }
                Err(problem) if throttle.is_due(&problem, clock.moment()) => {
                    tracing::warn!(problem, "The addresses of this machine are not known anew");
                }
                Err(_) => {}
            }
        }
        let pause = if known.borrow().is_empty() {
            UNKNOWN_PAUSE
        } else {
            KNOWN_PAUSE
        };
        clock.sleep(pause).await;
    }
}

fn of_node(node: &Node) -> Vec<IpAddr> {
    let status = node.status.as_ref();
    let addresses = status.and_then(|status| status.addresses.as_deref());
    primary_of_each_family(addresses.unwrap_or_default())
}

/// The first address, and the first of the other family; internal ones come before external ones.
fn primary_of_each_family(addresses: &[NodeAddress]) -> Vec<IpAddr> {
    let of_type = |wanted: &'static str| {
        let listed = addresses.iter().filter(move |one| one.type_ == wanted);
        listed.filter_map(|one| parse_ip(&one.address).map(|ip| ip.to_canonical()))
    };
    let mut all = of_type("InternalIP").chain(of_type("ExternalIP"));
    let first = all.next();
    let second = all.find(|ip| first.is_some_and(|first| first.is_ipv4() != ip.is_ipv4()));
    first.into_iter().chain(second).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_of_each_family_counts() {
        let check = |listed: &[(&str, &str)], expected: &[&str]| {
            let addresses: Vec<NodeAddress> = listed
                .iter()
                .map(|(type_, address)| NodeAddress {
                    type_: (*type_).to_owned(),
                    address: (*address).to_owned(),
                })
                .collect();
            let found = primary_of_each_family(&addresses);
            let found: Vec<String> = found.iter().map(ToString::to_string).collect();
            assert_eq!(found, expected, "{listed:?}");
        };
        check(&[], &[]);
        check(&[("Hostname", "10.0.0.1"), ("InternalIP", "no address")], &[]);
        check(
            &[
                ("ExternalIP", "192.0.2.1"),
                ("InternalIP", "10.0.0.1"),
                ("InternalIP", "10.0.0.2"),
            ],
            &["10.0.0.1"],
        );
        check(
            &[
                ("InternalIP", "fd00::1"),
                ("ExternalIP", "2001:db8::1"),
                ("ExternalIP", "192.0.2.1"),
            ],
            &["fd00::1", "192.0.2.1"],
        );
        check(&[("InternalIP", "::ffff:10.0.0.1")], &["10.0.0.1"]);
    }
}
