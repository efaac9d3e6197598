//! A pod network per containerd: a bridge with the scope's id in its name, and a subnet that no other scope and no route of
//! this machine uses.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::scope::Scope;

/// Where Debian puts the plugins.
pub(crate) const PLUGIN_DIR: &str = "/usr/lib/cni";
/// Subnets are `10.<second>.<third>.0/24` with the second number in this range.
const SECOND_NUMBERS: std::ops::Range<u32> = 160..192;

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
        let prefix = free_prefix(scope)?;
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
                        "ranges": [[{ "subnet": format!("{prefix}.0/24") }]],
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
        format!("{}.0/24", self.prefix)
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

/// The first three numbers of a subnet that is this scope's as long as it lives.
pub(crate) fn free_prefix(scope: &Scope) -> Result<String> {
    let routes = fs::read_to_string("/proc/net/route").context("read the routes")?;
    let span = SECOND_NUMBERS.len() as u32 * 256;
    // Different scopes start at different places, so that they rarely meet.
    let start = scope
        .id()
        .bytes()
        .fold(0u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()))
        % span;
    for step in 0..span {
        let number = (start + step) % span;
        let (second, third) = (SECOND_NUMBERS.start + number / 256, number % 256);
        let network = (10 << 24) | (second << 16) | (third << 8);
        if !is_routed(&routes, network) && scope.claim(&format!("subnet-{second}.{third}"))? {
            return Ok(format!("10.{second}.{third}"));
        }
    }
    bail!(
        "no free subnet in 10.{}.0.0 to 10.{}.255.0",
        SECOND_NUMBERS.start,
        SECOND_NUMBERS.end - 1
    )
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
}
