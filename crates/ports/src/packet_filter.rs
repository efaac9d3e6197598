//! Chains and rules of the kernel's packet filter, with iptables' names.
//!
//! Owns the shape of the edge and its errors. Every call has a deadline of the implementation's, and waits for other programs that
//! change the filter at the same time. What is already as wanted is no error.

use std::fmt;

use async_trait::async_trait;
use thiserror::Error;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum IpFamily {
    V4,
    V6,
}

impl fmt::Display for IpFamily {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FilterTable {
    Mangle,
    Nat,
    Filter,
}

impl FilterTable {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Mangle => "mangle",
            Self::Nat => "nat",
            Self::Filter => "filter",
        }
    }
}

/// One chain of one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FilterChain {
    pub family: IpFamily,
    pub table: FilterTable,
    pub name: &'static str,
}

impl fmt::Display for FilterChain {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {} {}", self.family, self.table.as_str(), self.name)
    }
}

/// Where a rule goes in its chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RulePosition {
    First,
    Last,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketFilterErrorKind {
    /// The program is not installed.
    NotInstalled,
    /// Another program holds the filter's lock, or the kernel is short of a resource: worth another try.
    Busy,
    TimedOut,
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{chain}: {message}")]
pub struct PacketFilterError {
    pub chain: FilterChain,
    pub kind: PacketFilterErrorKind,
    pub message: String,
}

/// Calls that change nothing.
#[async_trait]
pub trait PacketFilterReader: Send + Sync {
    async fn has_chain(&self, chain: FilterChain) -> Result<bool, PacketFilterError>;

    async fn has_rule(&self, chain: FilterChain, rule: &[&str]) -> Result<bool, PacketFilterError>;
}

/// Calls that change something.
#[async_trait]
pub trait PacketFilterWriter: Send + Sync {
    /// Makes the chain; one that exists is left as it is.
    async fn create_chain(&self, chain: FilterChain) -> Result<(), PacketFilterError>;

    async fn add_rule(
        &self,
        chain: FilterChain,
        position: RulePosition,
        rule: &[&str],
    ) -> Result<(), PacketFilterError>;
}
