//! Pods' cgroups on version 2 with both drivers, as parts of a virtual node's day: a boot of its own would cost half a minute.
//! Their values, what a killed kubelet leaves there, processes that nobody knows of, and a container that eats its memory.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use rubelet_testbed::http;
use rubelet_testbed::node::manifest::{pause, pod, shell, with};
use rubelet_testbed::node::{PodFacts, RuntimeView};
use rubelet_testbed::virtual_node::VirtualNode;
use rubelet_testbed::wait::wait_until;
use serde_json::{Value, json};

const DEADLINE: Duration = Duration::from_secs(480);
const PIDS_LIMIT: i64 = 256;
const MI: i64 = 1 << 20;
/// The machine sets these aside when it boots.
pub(crate) const HUGE_PAGES: &str = "hugepages=4";
/// Where the kubelet tells everybody about its pods.
pub(crate) const READ_ONLY_PORT: u16 = 10255;

/// What a node's configuration says about its cgroups.
pub(crate) fn configure(configuration: &mut Value, driver: &str) {
    let own = json!({
        "cgroupDriver": driver,
        "cgroupsPerQOS": true,
        "failSwapOn": false,
        "memorySwap": { "swapBehavior": "LimitedSwap" },
        "memoryReservationPolicy": "TieredReservation",
        "memoryThrottlingFactor": 0.5,
        "podPidsLimit": PIDS_LIMIT,
        "readOnlyPort": READ_ONLY_PORT,
        "systemReserved": { "memory": "128Mi", "pid": "1000" },
    });
    for (field, value) in own.as_object().into_iter().flatten() {
        configuration[field] = value.clone();
    }
}

/// Two pods with resources: the number is part of name and uid. The first has huge pages too.
pub(crate) fn manifest(number: usize) -> Option<Value> {
    let list = |cpu: &str, memory: &str| json!({ "cpu": cpu, "memory": memory });
    let huge = json!({ "cpu": "100m", "memory": "32Mi", "hugepages-2Mi": "4Mi" });
    let resources = match number {
        0 => json!({ "requests": huge, "limits": huge }),
        1 => json!({ "requests": list("50m", "16Mi"), "limits": list("123m", "64Mi") }),
        _ => return None,
    };
    let name = format!("pod-{number}");
    let manifest = pod(&name)
        .metadata("uid", json!(format!("{number}-{number}")))
        .container(with(pause("main"), "resources", resources));
    let mut manifest = manifest.json();
    if number == 0 {
        manifest["spec"]["volumes"] = json!([{ "name": "huge", "emptyDir": { "medium": "HugePages" } }]);
        manifest["spec"]["containers"][0]["volumeMounts"] = json!([{ "name": "huge", "mountPath": "/huge" }]);
    }
    Some(manifest)
}

/// Cgroups by what they are.
fn places(driver: &str, containers: [&str; 2]) -> BTreeMap<&'static str, String> {
    let [guaranteed, burstable] = containers;
    let list = if driver == "systemd" {
        let tier = "/kubepods.slice/kubepods-burstable.slice";
        let pods = [
            "/kubepods.slice/kubepods-pod0_0.slice".to_owned(),
            format!("{tier}/kubepods-burstable-pod1_1.slice"),
        ];
        [
            ("kubepods", "/kubepods.slice".to_owned()),
            ("tier", tier.to_owned()),
            ("guaranteed", pods[0].clone()),
            ("burstable", pods[1].clone()),
            (
                "guaranteed container",
                format!("{}/cri-containerd-{guaranteed}.scope", pods[0]),
            ),
            (
                "burstable container",
                format!("{}/cri-containerd-{burstable}.scope", pods[1]),
            ),
        ]
    } else {
        [
            ("kubepods", "/kubepods".to_owned()),
            ("tier", "/kubepods/burstable".to_owned()),
            ("guaranteed", "/kubepods/pod0-0".to_owned()),
            ("burstable", "/kubepods/burstable/pod1-1".to_owned()),
            ("guaranteed container", format!("/kubepods/pod0-0/{guaranteed}")),
            (
                "burstable container",
                format!("/kubepods/burstable/pod1-1/{burstable}"),
            ),
        ]
    };
    list.into()
}

fn expected(driver: &str) -> Vec<(&'static str, &'static str, String)> {
    let bytes = |count: i64| (count * MI).to_string();
    // systemd knows only whole percents of a processor.
    let quota = if driver == "systemd" {
        "13000 100000"
    } else {
        "12300 100000"
    };
    vec![
        ("kubepods", "memory.min", bytes(48)),
        ("kubepods", "memory.low", bytes(16)),
        ("tier", "memory.low", bytes(16)),
        ("tier", "cpu.weight", "2".to_owned()),
        ("guaranteed", "memory.max", bytes(32)),
        ("guaranteed", "memory.min", bytes(32)),
        ("guaranteed", "cpu.weight", "4".to_owned()),
        ("guaranteed", "cpu.max", "10000 100000".to_owned()),
        ("guaranteed", "pids.max", PIDS_LIMIT.to_string()),
        ("guaranteed", "hugetlb.2MB.max", bytes(4)),
        ("burstable", "hugetlb.2MB.max", bytes(0)),
        ("burstable", "memory.max", bytes(64)),
        ("burstable", "memory.low", bytes(16)),
        ("burstable", "cpu.weight", "2".to_owned()),
        ("burstable", "cpu.max", quota.to_owned()),
        ("burstable", "pids.max", PIDS_LIMIT.to_string()),
        ("guaranteed container", "memory.min", bytes(32)),
        ("guaranteed container", "memory.swap.max", "0".to_owned()),
        ("guaranteed container", "memory.oom.group", "1".to_owned()),
        ("burstable container", "memory.low", bytes(16)),
        ("burstable container", "memory.high", bytes(40)),
        // A static pod is critical, and those do not swap.
        ("burstable container", "memory.swap.max", "0".to_owned()),
    ]
}

/// That the two pods have what they asked for.
pub(crate) async fn check(node: &VirtualNode, view: &RuntimeView, driver: &str) -> Result<()> {
    let running = view.running().await?;
    let id = |number: usize| {
        let key = (format!("pod-{number}-virtual-node"), "main".to_owned());
        running.get(&key).cloned().context("a pod does not run")
    };
    let (first, second) = (id(0)?, id(1)?);
    let places = places(driver, [&first, &second]);
    let expected = expected(driver);
    let script: String = expected
        .iter()
        .map(|(place, file, _)| format!("cat /sys/fs/cgroup{}/{file}\n", places[place]))
        .collect();
    let check = async || {
        let output = node.run(&script)?;
        let found: Vec<&str> = output.stdout.lines().collect();
        let wanted: Vec<&str> = expected.iter().map(|(_, _, value)| value.as_str()).collect();
        let wrong: Vec<String> = expected
            .iter()
            .zip(&found)
            .filter(|((_, _, value), found)| value != *found)
            .map(|((place, file, value), found)| format!("{place} {file} is {found}, not {value}"))
            .collect();
        ensure!(found == wanted, "{driver}: {wrong:?} {}", output.stderr);
        Ok(())
    };
    // The tier follows its pods a moment later.
    wait_until("the pods' cgroups are as they should be", DEADLINE, check).await?;
    let mounted = node.succeed("grep '~empty-dir/huge hugetlbfs ' /proc/mounts")?;
    ensure!(mounted.contains("pagesize=2M"), "{mounted}");
    let limit: i64 = node
        .succeed(&format!("cat /sys/fs/cgroup{}/memory.max", places["kubepods"]))?
        .trim()
        .parse()
        .context("all pods together have no limit")?;
    let total = node.succeed("awk '/MemTotal/ {print $2 * 1024}' /proc/meminfo")?;
    let total: i64 = total.trim().parse()?;
    ensure!(
        limit == total - 128 * MI,
        "all pods together have {limit} of {total}"
    );
    if driver == "systemd" {
        let unit = "kubepods-burstable-pod1_1.slice";
        let known = node.succeed(&format!("systemctl show --property=MemoryMax --value {unit}"))?;
        ensure!(known.trim() == (64 * MI).to_string(), "systemd says {known}");
    }
    Ok(())
}

/// That no pod has a cgroup any more, nor a slice that only systemd knows of.
pub(crate) async fn check_gone(node: &VirtualNode) -> Result<()> {
    wait_until("no pod has a cgroup", DEADLINE, async || {
        let found = node.succeed(
            "find /sys/fs/cgroup/kubepods* -type d -name '*pod[0-9a-f]*' 2>/dev/null || true\n\
             systemctl list-units --all --plain --no-legend 'kubepods-pod*' 'kubepods-*-pod*'",
        )?;
        let found: Vec<&str> = found
            .lines()
            .filter(|line| !line.ends_with("kubepods.slice"))
            .collect();
        ensure!(found.is_empty(), "{found:?}");
        Ok(())
    })
    .await
}

/// Kills the kubelet where systemd owns the tree, and leaves two pods there that nobody knows any more: a slice of systemd's with
/// a process in it, and a directory that systemd has never heard of.
pub(crate) fn leave_orphans(node: &VirtualNode) -> Result<()> {
    node.succeed(
        "set -e\n\
         systemd-run --quiet --collect --unit=orphan --slice=kubepods-burstable-pod0_f.slice sleep 86400\n\
         mkdir /sys/fs/cgroup/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod0_e.slice\n\
         systemctl kill --signal=KILL kubelet.service",
    )
    .map(|_| ())
}

pub(crate) async fn check_orphans_gone(node: &VirtualNode) -> Result<()> {
    wait_until("the orphans are gone", DEADLINE, async || {
        let found = node.succeed(
            "find /sys/fs/cgroup/kubepods.slice -name '*pod0_[ef]*'\n\
             systemctl list-units --all --plain --no-legend orphan.service '*pod0_[ef].slice'",
        )?;
        ensure!(found.is_empty(), "{found}");
        Ok(())
    })
    .await
}

/// Puts a process below the second pod's cgroup that neither the runtime nor the kubelet knows of.
pub(crate) fn leave_process(node: &VirtualNode, driver: &str) -> Result<()> {
    let place = format!("/sys/fs/cgroup{}/leftover", places(driver, ["", ""])["burstable"]);
    // It is systemd's child, so that its end is seen, but not where systemd would look for it.
    let entered = node.succeed(&format!(
        "set -e\n\
         systemd-run --quiet --collect --unit=leftover sleep 86400\n\
         mkdir {place}\n\
         systemctl show --property=MainPID --value leftover.service >{place}/cgroup.procs\n\
         wc --lines <{place}/cgroup.procs"
    ))?;
    ensure!(entered.trim() == "1", "{entered} processes are in {place}");
    Ok(())
}

/// That the process was killed with its pod.
pub(crate) async fn check_process_gone(node: &VirtualNode) -> Result<()> {
    wait_until("the process has ended", DEADLINE, async || {
        let found = node.succeed("systemctl list-units --all --plain --no-legend leftover.service")?;
        ensure!(found.is_empty(), "{found}");
        Ok(())
    })
    .await
}

pub(crate) const EATER: &str = "eater";

/// A pod with a container that wants more memory than it may have once it is told to, and one beside it that does not. Told too
/// early the runtime would not see why it ends: it begins to watch a container's memory after it has started it.
pub(crate) fn eater() -> Value {
    let limits = json!({ "limits": { "memory": "24Mi" } });
    let script = "until [ -e /eat ]; do sleep 0.1; done; exec tail /dev/zero";
    let eater = with(shell("eater", script), "resources", limits.clone());
    pod(EATER)
        .container(eater)
        .container(with(pause("sibling"), "resources", limits))
        .spec("restartPolicy", json!("Never"))
        .json()
}

/// That the eater is told as killed for its memory, and that its neighbour and everything that ran before go on.
pub(crate) async fn check_eater(
    node: &VirtualNode,
    view: &RuntimeView,
    before: &BTreeMap<String, i64>,
) -> Result<()> {
    let [eater, sibling] = wait_until("the eater and its neighbour run", DEADLINE, async || {
        let pod = pod_as_told(node, EATER)?;
        Ok([pod.running_id("eater")?, pod.running_id("sibling")?])
    })
    .await?;
    view.exec(&eater, &["touch", "/eat"]).await?;
    wait_until(
        "the eater is told as killed for its memory",
        DEADLINE,
        async || {
            let pod = pod_as_told(node, EATER)?;
            let ended = pod.terminated("eater")?;
            let reason = ended.reason.as_deref().unwrap_or_default();
            ensure!(reason == "OOMKilled" && ended.exit_code == 137, "{ended:?}");
            ensure!(
                pod.running_id("sibling")? == sibling,
                "its neighbour was restarted"
            );
            pod.check_phase("Running")
        },
    )
    .await?;
    let after = view.identities().await?;
    ensure!(after.contains_key(&sibling), "its neighbour died too");
    for (id, start) in before {
        ensure!(
            after.get(id) == Some(start),
            "{id} died too: {before:?} became {after:?}"
        );
    }
    Ok(())
}

/// What the kubelet says of a pod.
pub(crate) fn pod_as_told(node: &VirtualNode, name: &str) -> Result<Pod> {
    let port = node
        .host_port(READ_ONLY_PORT)
        .context("the port is not forwarded")?;
    let answer = http::get(&format!("127.0.0.1:{port}"), "/pods")?;
    ensure!(answer.status == 200, "/pods answered {}", answer.status);
    let mut list: Value = serde_json::from_slice(&answer.body).context("/pods is no JSON")?;
    let pods: Vec<Pod> = serde_json::from_value(list["items"].take()).context("/pods holds no pods")?;
    let name = format!("{name}-virtual-node");
    let found = pods
        .into_iter()
        .find(|pod| pod.metadata.name.as_ref() == Some(&name));
    found.context("the kubelet does not know it")
}
