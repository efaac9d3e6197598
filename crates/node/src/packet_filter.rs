//! The chains that a kubelet keeps in the packet filter (`makeIPTablesUtilChains`).
//!
//! Owns two things that others rely on: `KUBE-IPTABLES-HINT`, by which they see whether this machine uses the old or the new
//! iptables, and `KUBE-FIREWALL` with a rule against packets from elsewhere to `127.0.0.0/8`, a hole that node ports on
//! localhost would open. When another program flushes the filter, the canary chains vanish too, and everything is made anew.
//!
//! No pod needs any of this: an error here is logged, and nothing else stops.

use std::sync::Arc;
use std::time::Duration;

use rubelet_ports::Clock;
use rubelet_ports::packet_filter::{
    FilterChain, FilterTable, IpFamily, PacketFilterError, PacketFilterErrorKind, PacketFilterReader,
    PacketFilterWriter, RulePosition,
};

const HINT: &str = "KUBE-IPTABLES-HINT";
const FIREWALL: &str = "KUBE-FIREWALL";
const CANARY: &str = "KUBE-KUBELET-CANARY";
/// The table that is looked at comes first: it has the fewest rules.
const CANARY_TABLES: [FilterTable; 3] = [FilterTable::Mangle, FilterTable::Nat, FilterTable::Filter];
const CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// A flush takes one table after the other: the rest of it is waited for this long, asked for this often.
const FLUSH_LIMIT: Duration = Duration::from_secs(5);
const FLUSH_POLL: Duration = Duration::from_millis(100);

const JUMP: [&str; 2] = ["-j", FIREWALL];
/// Kube-proxy keeps an identical rule: it must not change on one side alone.
const LOCAL_ONLY: [&str; 16] = [
    "-m",
    "comment",
    "--comment",
    "block incoming localnet connections",
    "--dst",
    "127.0.0.0/8",
    "!",
    "--src",
    "127.0.0.0/8",
    "-m",
    "conntrack",
    "!",
    "--ctstate",
    "RELATED,ESTABLISHED,DNAT",
    "-j",
    "DROP",
];

/// What the chains are kept with.
#[derive(Clone)]
pub struct HelperChains {
    pub clock: Arc<dyn Clock>,
    pub reader: Arc<dyn PacketFilterReader>,
    pub writer: Arc<dyn PacketFilterWriter>,
}

impl HelperChains {
    /// Keeps the chains of both families for as long as the node runs; returns only where the family has no filter.
    pub async fn keep(self, family: IpFamily) {
        if !self.is_present(family).await {
            return;
        }
        match self.make(family).await {
            Ok(()) => tracing::info!(%family, "The helper chains of iptables stand"),
            Err(error) => {
                tracing::warn!(%family, %error, "The helper chains of iptables cannot be made; other programs may miss them");
                return;
            }
        }
        loop {
            self.set_canaries(family).await;
            self.wait_for_flush(family).await;
            tracing::info!(%family, "iptables was flushed; the helper chains are made anew");
            if let Err(error) = self.make(family).await {
                tracing::warn!(%family, %error, "The helper chains of iptables cannot be made anew");
            }
        }
    }

    /// Whether the machine filters packets of this family at all. Many have no iptables, and need none of this then.
    async fn is_present(&self, family: IpFamily) -> bool {
        let chain = FilterChain {
            family,
            table: FilterTable::Nat,
            name: "POSTROUTING",
        };
        match self.reader.has_chain(chain).await {
            Ok(true) => return true,
            Ok(false) => tracing::info!(%family, "The kernel has no iptables; no helper chains are made"),
            Err(error) if error.kind == PacketFilterErrorKind::NotInstalled => {
                tracing::warn!(%family, %error, "iptables is not installed; no helper chains are made");
            }
            Err(error) => {
                tracing::warn!(%family, %error, "iptables cannot be used; no helper chains are made");
            }
        }
        false
    }

    async fn make(&self, family: IpFamily) -> Result<(), PacketFilterError> {
        let chain = |table: FilterTable, name: &'static str| FilterChain { family, table, name };
        self.writer.create_chain(chain(FilterTable::Mangle, HINT)).await?;
        // Localhost of IPv6 is one address, which the kernel guards itself.
        if family == IpFamily::V6 {
            return Ok(());
        }
        let firewall = chain(FilterTable::Filter, FIREWALL);
        self.writer.create_chain(firewall).await?;
        for entry in ["OUTPUT", "INPUT"] {
            let entry = chain(FilterTable::Filter, entry);
            self.ensure_rule(entry, RulePosition::First, &JUMP).await?;
        }
        self.ensure_rule(firewall, RulePosition::Last, &LOCAL_ONLY).await
    }

    async fn ensure_rule(
        &self,
        chain: FilterChain,
        position: RulePosition,
        rule: &[&str],
    ) -> Result<(), PacketFilterError> {
        if self.reader.has_rule(chain, rule).await? {
            return Ok(());
        }
        self.writer.add_rule(chain, position, rule).await
    }

    /// Tries until every canary sits.
    async fn set_canaries(&self, family: IpFamily) {
        'again: loop {
            for table in CANARY_TABLES {
                let canary = canary(family, table);
                if let Err(error) = self.writer.create_chain(canary).await {
                    tracing::warn!(%family, %error, "A canary cannot be set in iptables");
                    self.clock.sleep(CHECK_INTERVAL).await;
                    continue 'again;
                }
            }
            return;
        }
    }

    /// Returns when the canaries are gone.
    async fn wait_for_flush(&self, family: IpFamily) {
        let [first, rest @ ..] = CANARY_TABLES;
        loop {
            self.clock.sleep(CHECK_INTERVAL).await;
            match self.reader.has_chain(canary(family, first)).await {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) if is_passing(&error) => {
                    tracing::warn!(%family, %error, "The canary in iptables cannot be looked at");
                }
                Err(_) => break,
            }
        }
        let begun = self.clock.moment();
        for table in rest {
            while self.may_be_there(canary(family, table)).await {
                if self.clock.moment().since(begun) >= FLUSH_LIMIT {
                    tracing::warn!(%family, "Only some tables of iptables were flushed");
                    return;
                }
                self.clock.sleep(FLUSH_POLL).await;
            }
        }
    }

    async fn may_be_there(&self, chain: FilterChain) -> bool {
        match self.reader.has_chain(chain).await {
            Ok(is_there) => is_there,
            Err(error) => is_passing(&error),
        }
    }
}

fn canary(family: IpFamily, table: FilterTable) -> FilterChain {
    FilterChain {
        family,
        table,
        name: CANARY,
    }
}

/// The chain's state is unknown.
fn is_passing(error: &PacketFilterError) -> bool {
    match error.kind {
        PacketFilterErrorKind::Busy | PacketFilterErrorKind::TimedOut => true,
        PacketFilterErrorKind::NotInstalled | PacketFilterErrorKind::Other => false,
    }
}
