//! What a container runtime puts outside its own directory: shim sockets, cached results of network plugins, packet filter
//! rules. Finds and removes what belongs to one scope; what belongs to anybody else is never touched.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};

use crate::teardown::{entries, name_of};

/// Where containerd 1 has its shims listen, whatever its configuration says.
const SHIM_SOCKET_DIR: &str = "/run/containerd/s";
/// Where the plugin library keeps results until a pod's network is taken down.
const PLUGIN_RESULT_DIR: &str = "/var/lib/cni/results";

/// Removes everything; processes of the scope must be gone.
pub(crate) fn remove(dir: &Path, id: &str) -> Result<()> {
    for path in shim_sockets(dir).into_iter().chain(plugin_results(dir)) {
        let _ = fs::remove_file(path);
    }
    remove_packet_filter_rules(id)
}

/// One line for each thing that is there.
pub(crate) fn list(dir: &Path, id: &str) -> Vec<String> {
    let files = shim_sockets(dir)
        .into_iter()
        .chain(plugin_results(dir))
        .map(|path| format!("file {}", path.display()));
    files
        .chain(
            packet_filter_rules(id)
                .into_iter()
                .map(|rule| format!("packet filter rule {rule}")),
        )
        .collect()
}

/// The sockets of the shims of every containerd of the scope. The name is a hash over containerd's own socket, its namespace
/// and the id of the sandbox, of which containerd has directories before a shim exists.
fn shim_sockets(dir: &Path) -> Vec<PathBuf> {
    let mut sockets = Vec::new();
    for containerd in entries(dir)
        .into_iter()
        .filter(|path| path.join("c.sock").exists())
    {
        let mut owners = BTreeSet::new();
        for namespace in entries(containerd.join("state/io.containerd.runtime.v2.task")) {
            owners.extend(
                entries(&namespace)
                    .iter()
                    .map(|bundle| (name_of(&namespace), name_of(bundle))),
            );
        }
        for sandbox in entries(containerd.join("root/io.containerd.grpc.v1.cri/sandboxes")) {
            owners.insert(("k8s.io".to_owned(), name_of(&sandbox)));
        }
        for (namespace, sandbox) in owners {
            let key = containerd.join("c.sock").join(namespace).join(sandbox);
            let hash = Sha256::digest(key.display().to_string());
            let name: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
            sockets.push(Path::new(SHIM_SOCKET_DIR).join(name));
        }
    }
    sockets.retain(|path| path.exists());
    sockets
}

/// Cached results that name a network namespace below the scope's directory.
fn plugin_results(dir: &Path) -> Vec<PathBuf> {
    let needle = format!("{}/", dir.display());
    let mut results = entries(Path::new(PLUGIN_RESULT_DIR));
    results
        .retain(|path| fs::read(path).is_ok_and(|bytes| String::from_utf8_lossy(&bytes).contains(&needle)));
    results
}

/// Rules for host ports, in the form of `iptables-save`: the comment of each has the network's name, which has the id.
fn packet_filter_rules(id: &str) -> Vec<String> {
    let saved = Command::new("iptables-save")
        .args(["-t", "nat"])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    // A machine without the program cannot have got rules from here.
    let saved = saved
        .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
        .unwrap_or_default();
    rules_of(&saved, id)
}

fn rules_of(saved: &str, id: &str) -> Vec<String> {
    let network = format!("rb-{id}");
    saved
        .lines()
        .filter(|line| line.starts_with("-A ") && line.contains(&network))
        .map(str::to_owned)
        .collect()
}

fn remove_packet_filter_rules(id: &str) -> Result<()> {
    let rules = packet_filter_rules(id);
    if rules.is_empty() {
        return Ok(());
    }
    let mut restore = Command::new("iptables-restore")
        .args(["--noflush", "--wait", "10"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("run iptables-restore")?;
    restore
        .stdin
        .take()
        .context("no pipe to iptables-restore")?
        .write_all(removal_script(&rules).as_bytes())?;
    let output = restore.wait_with_output()?;
    ensure!(
        output.status.success(),
        "iptables-restore: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}

/// Deletes the rules and, emptied first, the chains of single pods that they lead to.
fn removal_script(rules: &[String]) -> String {
    let chains: BTreeSet<&str> = rules
        .iter()
        .filter_map(|rule| {
            rule.split_once(" -j ")
                .and_then(|(_, target)| target.split(' ').next())
        })
        .filter(|target| target.starts_with("CNI-DN-"))
        .collect();
    let deletions = rules
        .iter()
        .map(|rule| format!("{}\n", rule.replacen("-A ", "-D ", 1)));
    let emptied = chains.iter().map(|chain| format!("-F {chain}\n"));
    let removed = chains.iter().map(|chain| format!("-X {chain}\n"));
    format!(
        "*nat\n{}COMMIT\n",
        deletions.chain(emptied).chain(removed).collect::<String>()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_rules_of_the_scope_are_removed() {
        let saved = "*nat\n:CNI-DN-1 - [0:0]\n-A PREROUTING -j CNI-HOSTPORT-DNAT\n\
            -A CNI-HOSTPORT-DNAT -p tcp -m comment --comment \"dnat name: \\\"rb-aaaa\\\" id: \\\"x\\\"\" -j CNI-DN-1\n\
            -A CNI-HOSTPORT-DNAT -p tcp -m comment --comment \"dnat name: \\\"rb-bbbb\\\" id: \\\"y\\\"\" -j CNI-DN-2\n\
            -A CNI-DN-1 -p tcp -j DNAT --to-destination 10.1.1.1:80\nCOMMIT\n";
        let rules = rules_of(saved, "aaaa");
        assert_eq!(rules.len(), 1);
        assert_eq!(
            removal_script(&rules),
            "*nat\n-D CNI-HOSTPORT-DNAT -p tcp -m comment --comment \"dnat name: \\\"rb-aaaa\\\" id: \\\"x\\\"\" -j CNI-DN-1\n\
             -F CNI-DN-1\n-X CNI-DN-1\nCOMMIT\n"
        );
        assert!(rules_of(saved, "cccc").is_empty());
    }
}
