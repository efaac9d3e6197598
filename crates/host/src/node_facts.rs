//! Facts of the machine for the Node object beyond [`crate::machine`], and the addresses that the Node may list.
//!
//! What cannot be read counts as not there.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rubelet_ports::{AddressError, AddressReader, HostAddresses};
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::sync::Semaphore;

use crate::kernel::default_route_addresses;

/// A resolver that takes longer is not waited for.
const LOOKUP_LIMIT: Duration = Duration::from_secs(2);
const MACHINE_IDS: [&str; 2] = ["etc/machine-id", "var/lib/dbus/machine-id"];
const OS_RELEASES: [&str; 2] = ["etc/os-release", "usr/lib/os-release"];
/// By the kind of machine: PC, POWER, s390.
const SYSTEM_UUIDS: [&str; 4] = [
    "sys/class/dmi/id/product_uuid",
    "proc/device-tree/system-id",
    "proc/device-tree/vm,uuid",
    "etc/machine-id",
];
const DEVICE_CHECKPOINT: &str = "device-plugins/kubelet_internal_checkpoint";

/// Facts that do not change while the machine runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFacts {
    pub machine_id: String,
    pub system_uuid: String,
    /// `PRETTY_NAME` of os-release; empty where there is none.
    pub os_image: String,
    /// Whether this process is root only in a user namespace.
    pub is_in_user_namespace: bool,
}

impl NodeFacts {
    #[must_use]
    pub fn read() -> Self {
        Self::read_below(Path::new("/"))
    }

    fn read_below(root: &Path) -> Self {
        let first = |paths: &[&str]| {
            let texts = paths
                .iter()
                .filter_map(|path| fs::read_to_string(root.join(path)).ok());
            let mut texts = texts.map(|text| text.trim_matches(['\0', ' ', '\t', '\n', '\r']).to_owned());
            texts.next().unwrap_or_default()
        };
        Self {
            machine_id: first(&MACHINE_IDS),
            system_uuid: first(&SYSTEM_UUIDS),
            os_image: os_image(&first(&OS_RELEASES)),
            is_in_user_namespace: is_mapped(&first(&["proc/self/uid_map"])),
        }
    }
}

fn os_image(os_release: &str) -> String {
    if os_release.is_empty() {
        return String::new();
    }
    let name = os_release
        .lines()
        .find_map(|line| line.strip_prefix("PRETTY_NAME="));
    name.map_or("Linux", |name| name.trim_matches('"')).to_owned()
}

/// Outside of any user namespace all ids are their own.
fn is_mapped(uid_map: &str) -> bool {
    let numbers: Vec<&str> = uid_map.split_whitespace().collect();
    !numbers.is_empty() && numbers != ["0", "0", "4294967295"]
}

/// The extended resources that device plugins have registered with a kubelet of this root directory. Nothing when no kubelet has
/// left a record, or one that cannot be read: then every extended resource on the Node may be a plugin's, or a former machine's.
#[must_use]
pub fn device_plugin_resources(root_dir: &Path) -> Option<BTreeSet<String>> {
    let path = root_dir.join(DEVICE_CHECKPOINT);
    let text = fs::read(&path).ok()?;
    match serde_json::from_slice::<DeviceCheckpoint>(&text) {
        Ok(checkpoint) => Some(checkpoint.data.resources()),
        Err(error) => {
            let path = path.display();
            tracing::warn!(%path, %error, "The record of device plugins cannot be read; no extended resource counts as available");
            None
        }
    }
}

/// Upstream's file, as far as it matters here.
#[derive(Deserialize)]
struct DeviceCheckpoint {
    #[serde(rename = "Data")]
    data: DeviceData,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DeviceData {
    /// Devices of containers; a plugin may be gone that gave them.
    #[serde(default)]
    pod_device_entries: Option<Vec<DeviceEntry>>,
    #[serde(default)]
    registered_devices: Option<BTreeMap<String, IgnoredAny>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DeviceEntry {
    resource_name: String,
}

impl DeviceData {
    fn resources(self) -> BTreeSet<String> {
        let registered = self
            .registered_devices
            .into_iter()
            .flatten()
            .map(|(name, _)| name);
        let in_use = self.pod_device_entries.into_iter().flatten();
        registered
            .chain(in_use.map(|entry| entry.resource_name))
            .collect()
    }
}

/// The network of this machine.
#[derive(Clone, Debug)]
pub struct HostNetwork {
    root: PathBuf,
    /// A lookup that hangs is not joined by others.
    lookups: Arc<Semaphore>,
}

impl Default for HostNetwork {
    fn default() -> Self {
        Self {
            root: PathBuf::from("/"),
            lookups: Arc::new(Semaphore::new(1)),
        }
    }
}

impl HostNetwork {
    /// The addresses of the name; `None` when the resolver does not answer in time.
    async fn lookup(&self, name: &str) -> Option<Vec<IpAddr>> {
        let permit = Arc::clone(&self.lookups).try_acquire_owned().ok()?;
        let name = name.to_owned();
        let lookup = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            match (name.as_str(), 0).to_socket_addrs() {
                Ok(all) => Some(all.map(|address| address.ip()).collect()),
                Err(error) if is_no_such_name(&error) => Some(Vec::new()),
                Err(_) => None,
            }
        });
        let found = tokio::time::timeout(LOOKUP_LIMIT, lookup).await;
        found.ok()?.ok()?
    }
}

/// Whether the resolver's answer is that there is no such name, rather than a temporary failure. Of the C library's error the
/// standard library keeps only the text, which is always English; the texts are those of glibc and musl.
fn is_no_such_name(error: &io::Error) -> bool {
    let text = error.to_string();
    let texts = [
        "Name or service not known",
        "No address associated with hostname",
        "Name does not resolve",
        "Name has no usable address",
    ];
    texts.iter().any(|known| text.contains(known))
}

#[async_trait]
impl AddressReader for HostNetwork {
    async fn addresses(&self, name: Option<&str>) -> Result<HostAddresses, AddressError> {
        let of_name = match name {
            Some(name) => self.lookup(name).await,
            None => Some(Vec::new()),
        };
        // A node with many routes has files of megabytes, which the kernel writes while they are read.
        let root = self.root.clone();
        let read =
            tokio::task::spawn_blocking(move || Ok((own_addresses(&root)?, default_route_addresses())));
        let read = read
            .await
            .unwrap_or_else(|error| Err(AddressError(error.to_string())));
        let (own, default_route) = read?;
        Ok(HostAddresses {
            own,
            is_name_unknown: of_name.is_none(),
            of_name: of_name.unwrap_or_default(),
            default_route,
        })
    }
}

fn own_addresses(root: &Path) -> Result<Vec<IpAddr>, AddressError> {
    let v4 = root.join("proc/net/fib_trie");
    let v4 = fs::read_to_string(&v4).map_err(|error| AddressError(format!("{}: {error}", v4.display())))?;
    // The file is missing where the kernel has no IPv6.
    let v6 = fs::read_to_string(root.join("proc/net/if_inet6")).unwrap_or_default();
    let mut own: Vec<IpAddr> = local_v4(&v4).map(IpAddr::V4).collect();
    own.extend(local_v6(&v6).map(IpAddr::V6));
    own.sort_unstable();
    own.dedup();
    Ok(own)
}

/// The routes of the kind `local` to one address: an address of an interface has one each.
fn local_v4(fib_trie: &str) -> impl Iterator<Item = Ipv4Addr> {
    let mut leaf = None;
    fib_trie.lines().filter_map(move |line| {
        let line = line.trim_start();
        if let Some(address) = line.strip_prefix("|-- ") {
            leaf = address.trim().parse().ok();
        }
        (line == "/32 host LOCAL").then_some(leaf).flatten()
    })
}

/// `20010db8000000000000000000000001 02 40 00 80 eth0`
fn local_v6(if_inet6: &str) -> impl Iterator<Item = Ipv6Addr> {
    if_inet6.lines().filter_map(|line| {
        let digits = line.split_whitespace().next()?;
        let number = u128::from_str_radix(digits, 16).ok()?;
        (digits.len() == 32).then(|| Ipv6Addr::from(number))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn the_first_file_that_exists_tells() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let nothing = NodeFacts {
            machine_id: String::new(),
            system_uuid: String::new(),
            os_image: String::new(),
            is_in_user_namespace: false,
        };
        assert_eq!(NodeFacts::read_below(root), nothing);
        write(root, "var/lib/dbus/machine-id", "dbus\n");
        write(root, "usr/lib/os-release", "NAME=x\n");
        write(root, "proc/device-tree/vm,uuid", "vm\0\n");
        write(root, "proc/self/uid_map", "         0          0 4294967295\n");
        let facts = NodeFacts::read_below(root);
        assert_eq!(
            (
                facts.machine_id.as_str(),
                facts.os_image.as_str(),
                facts.system_uuid.as_str()
            ),
            ("dbus", "Linux", "vm")
        );
        assert!(!facts.is_in_user_namespace);
        write(root, "etc/machine-id", "etc\n");
        write(root, "etc/os-release", "PRETTY_NAME=\"Debian 13\"\nID=debian\n");
        write(root, "sys/class/dmi/id/product_uuid", "dmi\n");
        write(root, "proc/self/uid_map", "0 100000 65536\n");
        let facts = NodeFacts::read_below(root);
        assert_eq!(
            (
                facts.machine_id.as_str(),
                facts.os_image.as_str(),
                facts.system_uuid.as_str()
            ),
            ("etc", "Debian 13", "dmi")
        );
        assert!(facts.is_in_user_namespace);
    }

    #[test]
    fn resources_of_device_plugins_are_on_record() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        assert_eq!(device_plugin_resources(root), None);
        let check = |text: &str, expected: Option<&[&str]>| {
            write(root, DEVICE_CHECKPOINT, text);
            let found = device_plugin_resources(root);
            let found: Option<Vec<&str>> = found.as_ref().map(|all| all.iter().map(String::as_str).collect());
            assert_eq!(found.as_deref(), expected, "{text}");
        };
        check(
            r#"{"Data":{"PodDeviceEntries":[{"PodUID":"u","ContainerName":"c","ResourceName":"example.com/nic","DeviceIDs":{"-1":["n"]},"AllocResp":""}],
               "RegisteredDevices":{"example.com/gpu":["a","b"],"example.com/fpga":[]}},"Checksum":7}"#,
            Some(&["example.com/fpga", "example.com/gpu", "example.com/nic"]),
        );
        check(
            r#"{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":7}"#,
            Some(&[]),
        );
        check("{", None);
        check("{}", None);
    }

    #[test]
    fn own_addresses_are_those_of_interfaces() {
        let trie = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n\
            \x20    +-- 10.1.0.0/16 2 0 2\n        |-- 10.1.0.0\n           /16 link UNICAST\n\
            \x20       |-- 10.1.0.7\n           /32 host LOCAL\n        |-- 10.1.255.255\n           /32 link BROADCAST\n\
            Local:\n        |-- 127.0.0.0\n              /8 host LOCAL\n        |-- 127.0.0.1\n              /32 host LOCAL\n";
        let v4: Vec<String> = local_v4(trie).map(|address| address.to_string()).collect();
        assert_eq!(v4, ["10.1.0.7", "127.0.0.1"]);
        let v6 = "00000000000000000000000000000001 01 80 10 80       lo\nfe80 02\n\
            20010db8000000000000000000000001 02 40 00 80     eth0\n";
        let v6: Vec<String> = local_v6(v6).map(|address| address.to_string()).collect();
        assert_eq!(v6, ["::1", "2001:db8::1"]);
    }

    #[tokio::test]
    async fn this_machine_has_itself() {
        let network = HostNetwork::default();
        let found = network.addresses(Some("localhost")).await.unwrap();
        let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
        assert!(found.own.contains(&local), "{found:?}");
        assert!(found.of_name.iter().any(IpAddr::is_loopback), "{found:?}");
        for address in &found.default_route {
            assert!(found.own.contains(address), "{found:?}");
        }
        let found = network.addresses(None).await.unwrap();
        assert!(found.of_name.is_empty() && !found.is_name_unknown);
        let held = network.lookups.clone().try_acquire_owned().unwrap();
        assert!(
            network.lookup("localhost").await.is_none(),
            "a lookup is under way"
        );
        drop(held);
    }
}
