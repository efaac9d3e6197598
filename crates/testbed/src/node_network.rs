//! A network of its own for a node: a namespace that one pair of links connects to the machine, so that every node of a test has
//! every port and the whole world of pod addresses to itself, as on a machine of its own.
//!
//! The namespace is held by a mount below the scope's directory and the machine's link has the scope's id in its name: the
//! scope's teardown finds both, also after the test was killed. Who listens and who calls there is not known here.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::cni::free_prefix;
use crate::namespaces::Namespaces;
use crate::scope::Scope;

/// The node's own link, called as on most machines.
const INSIDE: &str = "eth0";

/// A network namespace with an address that the machine reaches.
#[derive(Clone, Debug)]
pub struct NodeNetwork {
    namespace: PathBuf,
    address: Ipv4Addr,
    gateway: Ipv4Addr,
}

impl NodeNetwork {
    /// Makes the namespace and connects it. The label tells the networks of one scope apart.
    pub fn create(scope: &Scope, label: &str) -> Result<Self> {
        let prefix = free_prefix(scope, 1)?;
        let host_address = |last: u8| -> Result<Ipv4Addr> { Ok(format!("{prefix}.{last}").parse()?) };
        let network = Self {
            namespace: scope.path(&format!("networks/{label}")),
            gateway: host_address(1)?,
            address: host_address(2)?,
        };
        File::create_new(&network.namespace).context("a node has one network")?;
        run(Command::new("unshare")
            .arg(format!("--net={}", network.namespace.display()))
            .arg("true"))?;
        let outside = free_link(scope)?;
        let path = network.path()?;
        ip(&[
            "link", "add", &outside, "type", "veth", "peer", "name", INSIDE, "netns", path,
        ])?;
        ip(&[
            "address",
            "add",
            &format!("{}/24", network.gateway),
            "dev",
            &outside,
        ])?;
        ip(&["link", "set", &outside, "up"])?;
        let here = format!("{}/24", network.address);
        for arguments in [
            &["link", "set", "lo", "up"][..],
            &["address", "add", &here, "dev", INSIDE],
            &["link", "set", INSIDE, "up"],
            &["route", "add", "default", "via", &network.gateway.to_string()],
        ] {
            run(&mut network.enter(Command::new("ip").args(arguments)))?;
        }
        Ok(network)
    }

    /// The node's address.
    pub fn address(&self) -> IpAddr {
        self.address.into()
    }

    /// The machine's address, as the node sees it.
    pub fn gateway(&self) -> IpAddr {
        self.gateway.into()
    }

    /// Lets the node pass packets on between its pods and others.
    pub fn forward_packets(&self) -> Result<()> {
        let set = "echo 1 > /proc/sys/net/ipv4/ip_forward";
        run(&mut self.enter(Command::new("sh").args(["-c", set])))
    }

    /// The namespace, to start programs in.
    pub fn namespaces(&self) -> Namespaces {
        Namespaces::default().with_network(&self.namespace)
    }

    /// A command that runs a program with its arguments inside; its process id is the program's.
    pub fn enter(&self, command: &Command) -> Command {
        self.namespaces().enter(command)
    }

    fn path(&self) -> Result<&str> {
        self.namespace.to_str().context("a path that is no text")
    }
}

/// A name for the machine's end, of fifteen characters at most.
fn free_link(scope: &Scope) -> Result<String> {
    (0..10)
        .map(|number| format!("rn{number}-{}", scope.id()))
        .find(|name| !Path::new("/sys/class/net").join(name).exists())
        .context("ten networks in one scope are enough")
}

fn ip(arguments: &[&str]) -> Result<()> {
    run(Command::new("ip").args(arguments))
}

fn run(command: &mut Command) -> Result<()> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("run {command:?}"))?;
    ensure!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}
