//! A pod's bandwidth, from its annotations to the kernel's queues.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use rubelet_testbed::containerd::{Containerd, Flavour};
use rubelet_testbed::in_scope;
use rubelet_testbed::node::manifest::{pause, pod};
use rubelet_testbed::node::{DEADLINE, Kubelet, Node, Options};
use rubelet_testbed::wait::wait_for;
use serde_json::{Value, json};

fn tool(program: &str, arguments: &[&str]) -> Result<Value> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .with_context(|| program.to_owned())?;
    ensure!(output.status.success(), "{program} {arguments:?}: {output:?}");
    serde_json::from_slice(&output.stdout).with_context(|| format!("{program} {arguments:?}"))
}

/// Names of links of the host.
fn links(arguments: &[&str]) -> Result<Vec<String>> {
    let list = tool("ip", &[&["-j", "link", "show"], arguments].concat())?;
    let names = list.as_array().context("a list of links")?.iter();
    Ok(names
        .filter_map(|link| link["ifname"].as_str().map(ToOwned::to_owned))
        .collect())
}

/// What the plugin makes for a pod's egress; nothing else makes links of this kind.
fn redirections() -> Result<Vec<String>> {
    links(&["type", "ifb"])
}

/// The rate in bytes per second that the link's token bucket lets through.
fn rate(link: &str) -> Result<u64> {
    let queues = tool("tc", &["-j", "qdisc", "show", "dev", link])?;
    let queues = queues.as_array().context("a list of queues")?;
    let bucket = queues.iter().find(|queue| queue["kind"] == "tbf");
    let bucket = bucket.with_context(|| format!("no token bucket on {link}: {queues:?}"))?;
    bucket["options"]["rate"].as_u64().context("no rate")
}

#[test]
fn bandwidth_annotations_limit_the_pod() {
    in_scope("bandwidth", async |scope| {
        let before = redirections()?;
        let known = before.clone();
        scope.defer("the links for limited bandwidth", move || {
            for link in redirections().unwrap_or_default() {
                if !known.contains(&link) {
                    // The pod's own end has removed it, unless the test has failed.
                    let _ = Command::new("ip").args(["link", "delete", &link]).status();
                }
            }
        });
        let mut containerd = Containerd::start(scope, Flavour::Debian)?;
        containerd.network().limit_bandwidth()?;
        containerd.restart()?;
        let kubelet = Kubelet::chosen_or(env!("CARGO_BIN_EXE_rubelet"));
        let node = Node::start(scope, &containerd, Options::new(kubelet))?;
        let limits = json!({
            "kubernetes.io/ingress-bandwidth": "8M",
            "kubernetes.io/egress-bandwidth": "16M",
        });
        let limited = pod("limited")
            .container(pause("main"))
            .metadata("annotations", limits);
        node.write("limited", &limited.json())?;
        node.wait_until_ready("limited").await?;
        let ends = links(&["master", containerd.network().bridge()])?;
        let [end] = ends.as_slice() else {
            anyhow::bail!("one end of one pod, not {ends:?}");
        };
        ensure!(rate(end)? == 1_000_000, "into the pod: {} bytes/s", rate(end)?);
        let made: Vec<String> = redirections()?
            .into_iter()
            .filter(|link| !before.contains(link))
            .collect();
        let [out] = made.as_slice() else {
            anyhow::bail!("one way out, not {made:?}");
        };
        ensure!(rate(out)? == 2_000_000, "out of the pod: {} bytes/s", rate(out)?);
        node.remove("limited")?;
        // The plugin is asked to clean up when the pod's sandbox is stopped.
        wait_for("nothing is left of the limits", DEADLINE, || {
            let left = redirections()?;
            ensure!(left == before, "left behind: {left:?}");
            Ok(())
        })
    });
}
