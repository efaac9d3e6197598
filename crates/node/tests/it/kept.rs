//! What is asked of the filter, and when.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use rubelet_node::packet_filter::HelperChains;
use rubelet_ports::packet_filter::{
    FilterChain, IpFamily, PacketFilterError, PacketFilterErrorKind, PacketFilterReader, PacketFilterWriter,
    RulePosition,
};

use super::short_clock::ShortClock;

const DEADLINE: Duration = Duration::from_secs(30);

#[derive(Default)]
struct State {
    /// `family table chain`
    chains: BTreeSet<String>,
    rules: Vec<String>,
    problem: Option<PacketFilterErrorKind>,
    calls: usize,
}

/// A filter that is only remembered.
#[derive(Clone, Default)]
struct Remembered(Arc<Mutex<State>>);

impl Remembered {
    fn call(&self, chain: FilterChain) -> Result<std::sync::MutexGuard<'_, State>, PacketFilterError> {
        let mut state = self.0.lock().unwrap();
        state.calls += 1;
        match state.problem {
            None => Ok(state),
            Some(kind) => Err(PacketFilterError {
                chain,
                kind,
                message: "no".to_owned(),
            }),
        }
    }

    fn calls(&self) -> usize {
        self.0.lock().unwrap().calls
    }

    fn set_problem(&self, problem: Option<PacketFilterErrorKind>) {
        self.0.lock().unwrap().problem = problem;
    }

    fn flush(&self) {
        let mut state = self.0.lock().unwrap();
        state.chains.retain(|chain| chain.ends_with("POSTROUTING"));
        state.rules.clear();
    }

    fn text(&self) -> Vec<String> {
        let state = self.0.lock().unwrap();
        state.chains.iter().chain(&state.rules).cloned().collect()
    }

    /// Waits until the filter is so.
    async fn wait(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let wait = async {
            while !is_so(self) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let waited = tokio::time::timeout(DEADLINE, wait).await;
        waited.unwrap_or_else(|_| panic!("{what}: {:?}", self.text()));
    }

    fn chains(&self) -> HelperChains {
        HelperChains {
            clock: Arc::new(ShortClock::new()),
            reader: Arc::new(self.clone()),
            writer: Arc::new(self.clone()),
        }
    }
}

#[async_trait]
impl PacketFilterReader for Remembered {
    async fn has_chain(&self, chain: FilterChain) -> Result<bool, PacketFilterError> {
        Ok(self.call(chain)?.chains.contains(&chain.to_string()))
    }

    async fn has_rule(&self, chain: FilterChain, rule: &[&str]) -> Result<bool, PacketFilterError> {
        let rule = format!("{chain}: {}", rule.join(" "));
        Ok(self.call(chain)?.rules.contains(&rule))
    }
}

#[async_trait]
impl PacketFilterWriter for Remembered {
    async fn create_chain(&self, chain: FilterChain) -> Result<(), PacketFilterError> {
        self.call(chain)?.chains.insert(chain.to_string());
        Ok(())
    }

    async fn add_rule(
        &self,
        chain: FilterChain,
        _: RulePosition,
        rule: &[&str],
    ) -> Result<(), PacketFilterError> {
        self.call(chain)?
            .rules
            .push(format!("{chain}: {}", rule.join(" ")));
        Ok(())
    }
}

fn there(family: IpFamily) -> Remembered {
    let filter = Remembered::default();
    let chain = format!("{family} nat POSTROUTING");
    filter.0.lock().unwrap().chains.insert(chain);
    filter
}

#[tokio::test]
async fn chains_are_made_once_and_again_after_a_flush() {
    let filter = there(IpFamily::V4);
    let task = tokio::spawn(filter.chains().keep(IpFamily::V4));
    let all = [
        "IPv4 filter KUBE-FIREWALL",
        "IPv4 filter KUBE-KUBELET-CANARY",
        "IPv4 mangle KUBE-IPTABLES-HINT",
        "IPv4 mangle KUBE-KUBELET-CANARY",
        "IPv4 nat KUBE-KUBELET-CANARY",
        "IPv4 nat POSTROUTING",
        "IPv4 filter OUTPUT: -j KUBE-FIREWALL",
        "IPv4 filter INPUT: -j KUBE-FIREWALL",
        "IPv4 filter KUBE-FIREWALL: -m comment --comment block incoming localnet connections --dst 127.0.0.0/8 \
         ! --src 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP",
    ];
    filter
        .wait("everything stands", |filter| filter.text() == all)
        .await;
    // Looking changes nothing.
    let calls = filter.calls();
    filter
        .wait("it looks again", |filter| filter.calls() > calls + 3)
        .await;
    assert_eq!(filter.text(), all);
    filter.flush();
    filter
        .wait("everything is made anew", |filter| filter.text() == all)
        .await;
    task.abort();
}

#[tokio::test]
async fn a_busy_filter_is_not_taken_for_a_flushed_one() {
    let filter = there(IpFamily::V6);
    let task = tokio::spawn(filter.chains().keep(IpFamily::V6));
    let all = [
        "IPv6 filter KUBE-KUBELET-CANARY",
        "IPv6 mangle KUBE-IPTABLES-HINT",
        "IPv6 mangle KUBE-KUBELET-CANARY",
        "IPv6 nat KUBE-KUBELET-CANARY",
        "IPv6 nat POSTROUTING",
    ];
    filter
        .wait("everything stands", |filter| filter.text() == all)
        .await;
    filter.set_problem(Some(PacketFilterErrorKind::Busy));
    let calls = filter.calls();
    filter
        .wait("it asks in vain", |filter| filter.calls() > calls + 3)
        .await;
    filter.set_problem(None);
    filter.flush();
    filter
        .wait("a flush is still seen", |filter| filter.text() == all)
        .await;
    task.abort();
}

#[tokio::test]
async fn without_a_filter_nothing_is_tried() {
    let none = Remembered::default();
    none.chains().keep(IpFamily::V4).await;
    assert_eq!((none.calls(), none.text().len()), (1, 0));
    let missing = there(IpFamily::V4);
    missing.set_problem(Some(PacketFilterErrorKind::NotInstalled));
    missing.chains().keep(IpFamily::V4).await;
    assert_eq!(missing.calls(), 1);
}
