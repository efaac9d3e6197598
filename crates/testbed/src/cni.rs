//! A pod network per containerd: a bridge with the scope's id in its name, and a subnet that no other scope and no route of
//! this machine uses.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::scope::Scope;

/// Where Debian puts the plugins.
pub(crate) const PLUGIN_DIR: &str = "/usr/lib/cni";
/// Subnets begin at `10.<second>.<third>.0` with the second number in this range.
const SECOND_NUMBERS: std::ops::Range<u32> = 160..192;
/// A pod network has the addresses of this many /24 subnets, which are one /22: as many as its bridge has ports.
const POD_SUBNETS: u32 = 4;

/// The network that the pods of one containerd are in.
#[derive(Clone, Debug)]
pub struct PodNetwork {
    bridge: String,
    prefix: String,
    conf_dir: PathBuf,
}

impl PodNetwork {
    /// Takes a subnet and writes the network's configuration below `dir`.
    pub(crate) fn create(scope: &Scope, dir: &Path, number: usize) -> Result<Self> {
        // Fifteen characters at most; the scope's teardown finds the link by the id in its name.
        let suffix = if number == 0 {
            String::new()
        } else {
            number.to_string()
        };
        let bridge = format!("rb-{}{suffix}", scope.id());
        let prefix = free_prefix(scope, POD_SUBNETS)?;
        let conf_dir = dir.join("net.d");
        fs::create_dir_all(&conf_dir).with_context(|| format!("create {}", conf_dir.display()))?;
        let conf = json!({
            "cniVersion": "1.0.0",
            "name": bridge,
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": bridge,
                    "isGateway": true,
                    // Masquerading would need packet filter rules, and there is nowhere to go from here.
                    "ipMasq": false,
                    "hairpinMode": true,
                    "ipam": {
                        "type": "host-local",
                        "dataDir": dir.join("ipam"),
                        "ranges": [[{ "subnet": subnet(&prefix) }]],
                        "routes": [{ "dst": "0.0.0.0/0" }],
                    },
                },
                { "type": "portmap", "capabilities": { "portMappings": true } },
            ],
        });
        let network = Self {
            bridge,
            prefix,
            conf_dir,
        };
        network.write(&conf)?;
        Ok(network)
    }

    fn file(&self) -> PathBuf {
        self.conf_dir.join("10-pods.conflist")
    }

    fn write(&self, conf: &Value) -> Result<()> {
        let file = self.file();
        fs::write(&file, serde_json::to_vec_pretty(conf)?)
            .with_context(|| format!("write {}", file.display()))
    }

    /// Lets a plugin limit the bandwidth of pods that ask for it. A containerd that runs has to be started again.
    pub fn limit_bandwidth(&self) -> Result<()> {
        let mut conf: Value =
            serde_json::from_slice(&fs::read(self.file())?).context("the network's configuration")?;
        let plugins = conf["plugins"].as_array_mut().context("a list of plugins")?;
        plugins.push(json!({ "type": "bandwidth", "capabilities": { "bandwidth": true } }));
        self.write(&conf)
    }

    /// The bridge's name, which is the network's name too.
    pub fn bridge(&self) -> &str {
        &self.bridge
    }

    /// The pods' subnet.
    pub fn subnet(&self) -> String {
        subnet(&self.prefix)
    }

    /// The host's address in the network.
    pub fn gateway(&self) -> String {
        format!("{}.1", self.prefix)
    }

    /// Where the configuration lies; a test may take it away to make the network unready.
    pub fn conf_dir(&self) -> &Path {
        &self.conf_dir
    }
}

fn subnet(prefix: &str) -> String {
    format!("{prefix}.0/22")
}

/// The first three numbers of a subnet that is this scope's as long as it lives, with the addresses of `count` /24 subnets: one of 1, 2, 4
/// and so on.
pub(crate) fn free_prefix(scope: &Scope, count: u32) -> Result<String> {
    let routes = fs::read_to_string("/proc/net/route").context("read the routes")?;
    for first in candidates(scope.id(), count) {
        if is_free(scope, &routes, first..first + count)? {
            let (second, third) = place(first);
            return Ok(format!("10.{second}.{third}"));
        }
    }
    bail!(
        "no free subnet in 10.{}.0.0 to 10.{}.255.0",
        SECOND_NUMBERS.start,
        SECOND_NUMBERS.end - 1
    )
}

/// The first of `count` /24 subnets that are one larger subnet, in the order in which a scope tries them.
fn candidates(scope_id: &str, count: u32) -> impl Iterator<Item = u32> {
    let span = SECOND_NUMBERS.len() as u32 * 256 / count;
    // Different scopes start at different places, so that they rarely meet.
    let bytes = scope_id.bytes();
    let start = bytes.fold(0u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into())) % span;
    (0..span).map(move |step| (start + step) % span * count)
}

/// The second and third number of a /24 subnet.
fn place(number: u32) -> (u32, u32) {
    (SECOND_NUMBERS.start + number / 256, number % 256)
}

/// Claims these /24 subnets unless another scope has one of them or the machine has a route to one. What it has claimed until then
/// stays this scope's.
fn is_free(scope: &Scope, routes: &str, numbers: std::ops::Range<u32>) -> Result<bool> {
    for number in numbers {
        let (second, third) = place(number);
        let network = (10 << 24) | (second << 16) | (third << 8);
        if is_routed(routes, network) || !scope.claim(&format!("subnet-{second}.{third}"))? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether a route other than the default one meets the /24 network; `routes` is the content of `/proc/net/route`.
fn is_routed(routes: &str, network: u32) -> bool {
    // The kernel prints addresses as the number that their network byte order is on this machine.
    let number = |text: &str| u32::from_str_radix(text, 16).ok().map(u32::from_be);
    routes.lines().skip(1).any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let destination = fields.get(1).and_then(|text| number(text));
        let mask = fields.get(7).and_then(|text| number(text));
        let (Some(destination), Some(mask)) = (destination, mask) else {
            return false;
        };
        let common = mask & 0xffff_ff00;
        mask != 0 && destination & common == network & common
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const ROUTES: &str = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
        eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
        eth0\t0003A00A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n\
        eth1\t0000A10A\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n\
        eth2\t0107A20A\t00000000\t0005\t0\t0\t0\tFFFFFFFF\t0\t0\t0\n";

    #[test]
    fn subnets_in_use_are_seen() {
        let check = |second: u32, third: u32, expected: bool| {
            let network = (10 << 24) | (second << 16) | (third << 8);
            assert_eq!(is_routed(ROUTES, network), expected, "10.{second}.{third}.0/24");
        };
        check(160, 3, true);
        check(160, 4, false);
        check(161, 200, true);
        check(162, 7, true);
        check(162, 8, false);
    }
    #[test]
    fn every_subnet_of_a_size_is_tried_once() {
        for (id, count) in [
            ("a", 1),
            ("a", POD_SUBNETS),
            ("b", POD_SUBNETS),
            ("bc", POD_SUBNETS),
        ] {
            let tried: BTreeSet<u32> = candidates(id, count).collect();
            assert_eq!(tried.len(), candidates(id, count).count(), "{id} {count}");
            assert_eq!(tried.len() as u32 * count, 32 * 256, "{id} {count}");
            assert!(tried.iter().all(|first| first % count == 0), "{id} {count}");
        }
        assert_ne!(candidates("a", 4).next(), candidates("b", 4).next());
    }

    #[test]
    fn networks_share_no_addresses() {
        let scope = Scope::new("networks_share_no_addresses").unwrap();
        let mut taken = BTreeSet::new();
        for count in [1, POD_SUBNETS, 1, POD_SUBNETS, 1] {
            let prefix = free_prefix(&scope, count).unwrap();
            let (network, third) = prefix.rsplit_once('.').unwrap();
            let third: u32 = third.parse().unwrap();
            for number in third..third + count {
                assert!(
                    taken.insert((network.to_owned(), number)),
                    "{prefix} is taken twice"
                );
            }
        }
    }
}
