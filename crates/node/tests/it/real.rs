//! The kernel's own filter, in a network namespace of the test's own.

use std::fs::File;
use std::os::fd::AsFd;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rubelet_host::iptables::Iptables;
use rubelet_node::packet_filter::HelperChains;
use rubelet_ports::packet_filter::{
    FilterChain, FilterTable, IpFamily, PacketFilterErrorKind, PacketFilterReader,
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::short_clock::ShortClock;

const DEADLINE: Duration = Duration::from_secs(30);

/// A program that only holds a network namespace open.
struct Holder(Child);

impl Holder {
    fn start() -> Self {
        Self(
            Command::new("unshare")
                .args(["--net", "sleep", "600"])
                .spawn()
                .expect("unshare"),
        )
    }

    /// Its network, once it has one of its own.
    fn network(&self) -> File {
        let path = format!("/proc/{}/ns/net", self.0.id());
        let own = std::fs::read_link("/proc/thread-self/ns/net").unwrap();
        let end = Instant::now() + DEADLINE;
        while std::fs::read_link(&path).unwrap() == own {
            assert!(Instant::now() < end, "no network namespace");
            std::thread::yield_now();
        }
        File::open(path).unwrap()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Runs a test on a thread whose network is empty and its own; it goes with the thread.
fn in_own_network<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    let thread = std::thread::spawn(|| {
        let holder = Holder::start();
        let network = holder.network();
        move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))
            .expect("enter the network");
        // Programs are started by this thread and by no other, so that they share its network.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(test());
    });
    thread.join().expect("the test's thread");
}

/// What the filter has, without counters and comments of the tool.
fn saved(program: &str) -> Vec<String> {
    let output = Command::new(program).output().expect(program);
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().filter(|line| line.contains("KUBE-"));
    let mut lines: Vec<String> = lines
        .map(|line| line.trim_end_matches(" [0:0]").to_owned())
        .collect();
    lines.sort();
    lines
}

async fn wait_until_saved(program: &str, expected: &[&str]) {
    let end = Instant::now() + DEADLINE;
    while saved(program) != expected {
        assert!(Instant::now() < end, "{:#?}", saved(program));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn run(program: &str, arguments: &[&str]) {
    let status = Command::new(program).args(arguments).status().expect(program);
    assert!(status.success(), "{program} {arguments:?}: {status}");
}

const V4: [&str; 8] = [
    "-A INPUT -j KUBE-FIREWALL",
    "-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment \"block incoming localnet connections\" \
     -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP",
    "-A OUTPUT -j KUBE-FIREWALL",
    ":KUBE-FIREWALL -",
    ":KUBE-IPTABLES-HINT -",
    ":KUBE-KUBELET-CANARY -",
    ":KUBE-KUBELET-CANARY -",
    ":KUBE-KUBELET-CANARY -",
];
const V6: [&str; 4] = [
    ":KUBE-IPTABLES-HINT -",
    ":KUBE-KUBELET-CANARY -",
    ":KUBE-KUBELET-CANARY -",
    ":KUBE-KUBELET-CANARY -",
];

#[test]
fn the_kernel_has_upstreams_chains_also_after_a_flush() {
    in_own_network(|| async {
        let iptables = Arc::new(Iptables::default());
        let chains = HelperChains {
            clock: Arc::new(ShortClock::new()),
            reader: iptables.clone(),
            writer: iptables,
        };
        let local = tokio::task::LocalSet::new();
        local
            .run_until(async {
                tokio::task::spawn_local(chains.clone().keep(IpFamily::V4));
                tokio::task::spawn_local(chains.keep(IpFamily::V6));
                wait_until_saved("iptables-save", &V4).await;
                wait_until_saved("ip6tables-save", &V6).await;
                for table in ["mangle", "nat", "filter"] {
                    run("iptables", &["-w", "5", "-t", table, "-F"]);
                    run("iptables", &["-w", "5", "-t", table, "-X"]);
                }
                wait_until_saved("iptables-save", &V4).await;
            })
            .await;
    });
}

#[test]
fn programs_that_are_missing_or_refuse_are_told_apart() {
    in_own_network(|| async {
        let chain = FilterChain {
            family: IpFamily::V4,
            table: FilterTable::Nat,
            name: "POSTROUTING",
        };
        let kind = async |program: &str| {
            let filter = Iptables::new(program, program);
            filter.has_chain(chain).await.map_err(|error| error.kind)
        };
        assert_eq!(kind("iptables").await, Ok(true));
        assert_eq!(
            kind("no-such-iptables").await,
            Err(PacketFilterErrorKind::NotInstalled)
        );
        assert_eq!(kind("/bin/false").await, Ok(false));
        let rule = ["-j", "NOWHERE"];
        let problem = Iptables::default().has_rule(chain, &rule).await;
        assert!(!matches!(problem, Ok(true)), "{problem:?}");
    });
}
