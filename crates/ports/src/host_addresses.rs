//! The addresses by which others may reach this machine.

use std::net::IpAddr;

use async_trait::async_trait;
use thiserror::Error;

/// The machine's addresses, read once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostAddresses {
    /// The addresses of its own interfaces.
    pub own: Vec<IpAddr>,
    /// What the node's name resolves to, in the resolver's order; empty when it was not asked for or does not resolve.
    pub of_name: Vec<IpAddr>,
    /// The resolver did not answer in time or failed: what the name resolves to is unknown.
    pub is_name_unknown: bool,
    /// The addresses that packets to elsewhere leave with, the IPv4 one first.
    pub default_route: Vec<IpAddr>,
}

/// The node's addresses as pods see them.
pub trait HostIps: Send + Sync {
    /// As they are now: at most one of each family, the primary one first; empty while none is known.
    fn host_ips(&self) -> Vec<IpAddr>;
}

/// Addresses that never change.
impl HostIps for Vec<IpAddr> {
    fn host_ips(&self) -> Vec<IpAddr> {
        self.clone()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("look at the addresses of this machine: {0}")]
pub struct AddressError(pub String);

#[async_trait]
pub trait AddressReader: Send + Sync {
    /// Looks at the interfaces and routes, and resolves the name where one is given. A name that cannot be resolved is no
    /// error.
    async fn addresses(&self, name: Option<&str>) -> Result<HostAddresses, AddressError>;
}
