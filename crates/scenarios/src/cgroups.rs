//! Where pods live in the kernel's tree, what they may use there, and what is left of them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::scenarios;
use super::wait_until_stopped;
use rubelet_testbed::cgroup_tree::CgroupTree;
use rubelet_testbed::node::manifest::{pause, pod, shell, with};
use rubelet_testbed::node::{Bed, DEADLINE, POD_PIDS_LIMIT, PodFacts, Scenario};
use rubelet_testbed::wait::wait_until;

pub(super) const ALL: &[Scenario] = scenarios![
    pods_live_in_the_tier_of_their_class,
    pod_level_resources_bound_the_pod,
    leftover_processes_are_killed_with_the_pod,
    fork_bomb_is_bounded_and_goes_with_its_pod,
    memory_eater_is_killed_for_it_and_nobody_else,
];

const MI: u64 = 1 << 20;

fn tree(bed: &Bed<'_>) -> CgroupTree {
    CgroupTree::at(bed.scope.cgroup_root())
}

fn resources(requests: &Value, limits: &Value) -> Value {
    json!({ "requests": requests, "limits": limits })
}

/// Writes a pod, waits until it is ready and gives its cgroup below the scope's.
async fn start(bed: &Bed<'_>, name: &str, tier: &str, manifest: &Value) -> Result<String> {
    bed.node.write(name, manifest)?;
    let pod = bed.node.wait_until_ready(name).await?;
    let path = format!("/kubepods{tier}/pod{}", pod.uid());
    tree(bed).check_there(&path)?;
    for container in bed.view.containers_of(pod.uid()).await? {
        tree(bed).check_there(&format!("{path}/{}", container.id))?;
    }
    Ok(path)
}

async fn end(bed: &Bed<'_>, name: &str, path: &str) -> Result<()> {
    bed.node.remove(name)?;
    bed.node.wait_until_gone(name).await?;
    wait_until(&format!("the cgroup of {name} is gone"), DEADLINE, async || {
        tree(bed).check_gone(path)
    })
    .await
}

#[track_caller]
fn check(tree: &CgroupTree, path: &str, expected: [(&str, &str); 4]) -> Result<()> {
    let values = tree.values(path)?;
    for (file, value) in expected {
        ensure!(
            values.get(file).is_some_and(|found| found == value),
            "{path}: {file} is not {value}: {values:?}"
        );
    }
    let limit = POD_PIDS_LIMIT.to_string();
    ensure!(
        values.get("pids.max") == Some(&limit),
        "{path}: pids.max is not {limit}: {values:?}"
    );
    Ok(())
}

async fn pods_live_in_the_tier_of_their_class(bed: &Bed<'_>) -> Result<()> {
    let tree = tree(bed);
    let all = json!({ "cpu": "200m", "memory": "64Mi" });
    let guaranteed =
        pod("cgroup-guaranteed").container(with(pause("main"), "resources", resources(&all, &all)));
    let burstable = pod("cgroup-burstable")
        .container(with(
            pause("a"),
            "resources",
            resources(&json!({ "cpu": "100m" }), &all),
        ))
        .container(with(
            pause("b"),
            "resources",
            resources(&json!({ "memory": "8Mi" }), &all),
        ));
    let best_effort = pod("cgroup-besteffort").container(pause("main"));
    let first = start(bed, "cgroup-guaranteed", "", &guaranteed.json()).await?;
    let second = start(bed, "cgroup-burstable", "/burstable", &burstable.json()).await?;
    let third = start(bed, "cgroup-besteffort", "/besteffort", &best_effort.json()).await?;
    let bytes = |count: u64| (count * MI).to_string();
    let quota = |us: &'static str| ("cpu.cfs_quota_us", us);
    let memory = bytes(64);
    check(
        &tree,
        &first,
        [
            ("cpu.shares", "204"),
            quota("20000"),
            ("cpu.cfs_period_us", "100000"),
            ("memory.limit_in_bytes", &memory),
        ],
    )?;
    // Container b has no request of its own for processors, so that its limit is one.
    let memory = bytes(128);
    check(
        &tree,
        &second,
        [
            ("cpu.shares", "307"),
            quota("40000"),
            ("cpu.cfs_period_us", "100000"),
            ("memory.limit_in_bytes", &memory),
        ],
    )?;
    let unlimited = tree.read("memory", "/kubepods/besteffort", "memory.limit_in_bytes")?;
    check(
        &tree,
        &third,
        [
            ("cpu.shares", "2"),
            quota("-1"),
            ("cpu.cfs_period_us", "100000"),
            ("memory.limit_in_bytes", &unlimited),
        ],
    )?;
    ensure!(
        tree.read("cpu", "/kubepods/besteffort", "cpu.shares")? == "2",
        "the tier of those without requests"
    );
    wait_until("the burstable tier counts its pods", DEADLINE, async || {
        let shares: u64 = tree.read("cpu", "/kubepods/burstable", "cpu.shares")?.parse()?;
        ensure!(shares >= 307, "it has {shares}");
        Ok(())
    })
    .await?;
    let processors = std::thread::available_parallelism()?.get() * 1024;
    let shares = tree.read("cpu", "/kubepods", "cpu.shares")?;
    ensure!(shares == processors.to_string(), "all pods have {shares} shares");
    end(bed, "cgroup-guaranteed", &first).await?;
    end(bed, "cgroup-burstable", &second).await?;
    end(bed, "cgroup-besteffort", &third).await
}

async fn pod_level_resources_bound_the_pod(bed: &Bed<'_>) -> Result<()> {
    let own = resources(
        &json!({ "cpu": "300m", "memory": "32Mi" }),
        &json!({ "cpu": "500m", "memory": "96Mi" }),
    );
    let manifest = pod("cgroup-pod-level")
        .container(pause("a"))
        .container(pause("b"))
        .spec("resources", own);
    let path = start(bed, "cgroup-pod-level", "/burstable", &manifest.json()).await?;
    let memory = (96 * MI).to_string();
    check(
        &tree(bed),
        &path,
        [
            ("cpu.shares", "307"),
            ("cpu.cfs_quota_us", "50000"),
            ("cpu.cfs_period_us", "100000"),
            ("memory.limit_in_bytes", &memory),
        ],
    )?;
    end(bed, "cgroup-pod-level", &path).await
}

/// Somebody's process that the runtime knows nothing of.
async fn leftover_processes_are_killed_with_the_pod(bed: &Bed<'_>) -> Result<()> {
    let path = start(
        bed,
        "cgroup-leftover",
        "/besteffort",
        &pod("cgroup-leftover").container(pause("main")).json(),
    )
    .await?;
    let mut command = Command::new("sleep");
    command.arg("600");
    let mut process = bed.scope.spawn("leftover", command)?;
    tree(bed).enter(&path, process.pid())?;
    end(bed, "cgroup-leftover", &path).await?;
    let status = process.wait(DEADLINE)?;
    ensure!(!status.success(), "it ended by itself");
    Ok(())
}

async fn fork_bomb_is_bounded_and_goes_with_its_pod(bed: &Bed<'_>) -> Result<()> {
    let tree = tree(bed);
    // The last read needs no further process, so that the container lives on when there are none left.
    let script = "mkfifo /tmp/f; exec 3<>/tmp/f; sh -c 'while :; do sleep 1000 & done'; read x <&3";
    let bomb = pod("cgroup-bomb")
        .container(shell("main", script))
        .spec("terminationGracePeriodSeconds", json!(0));
    let path = start(bed, "cgroup-bomb", "/besteffort", &bomb.json()).await?;
    // A few are missing: the shell that could not fork any more has ended.
    let full = POD_PIDS_LIMIT - 5..=POD_PIDS_LIMIT;
    wait_until("the bomb hits its limit", DEADLINE, async || {
        let count: i64 = tree.read("pids", &path, "pids.current")?.parse()?;
        ensure!(full.contains(&count), "{count} processes run");
        Ok(())
    })
    .await?;
    // The node goes on.
    let beside = pod("cgroup-beside-bomb").container(pause("main")).json();
    let other = start(bed, "cgroup-beside-bomb", "/besteffort", &beside).await?;
    end(bed, "cgroup-bomb", &path).await?;
    end(bed, "cgroup-beside-bomb", &other).await
}

async fn memory_eater_is_killed_for_it_and_nobody_else(bed: &Bed<'_>) -> Result<()> {
    let limits = json!({ "limits": { "memory": "24Mi" } });
    let eater = with(shell("eater", "exec tail /dev/zero"), "resources", limits.clone());
    let sibling = with(pause("sibling"), "resources", limits);
    let manifest = pod("cgroup-eater")
        .container(eater)
        .container(sibling)
        .spec("restartPolicy", json!("Never"));
    bed.node.write("cgroup-eater", &manifest.json())?;
    let (uid, sibling) = bed
        .node
        .wait_for_pod("cgroup-eater", "has lost its eater", |pod| {
            let ended = pod.terminated("eater")?;
            let reason = ended.reason.as_deref().unwrap_or_default();
            ensure!(reason == "OOMKilled" && ended.exit_code == 137, "{ended:?}");
            let sibling = pod.container("sibling")?;
            ensure!(sibling.restart_count == 0, "{sibling:?}");
            Ok((pod.uid().to_owned(), pod.running_id("sibling")?))
        })
        .await?;
    let process = PathBuf::from(format!("/proc/{}", bed.view.pid(&sibling).await?));
    ensure!(process.exists(), "its sibling died too");
    let pod = bed.node.pod("cgroup-eater")?;
    pod.check_phase("Running")?;
    ensure!(Path::new(&process).exists(), "its sibling died too");
    bed.node.remove("cgroup-eater")?;
    wait_until_stopped(bed, &uid).await?;
    let path = format!("/kubepods/burstable/pod{uid}");
    wait_until("its cgroup is gone", DEADLINE, async || {
        tree(bed).check_gone(&path)
    })
    .await
}
