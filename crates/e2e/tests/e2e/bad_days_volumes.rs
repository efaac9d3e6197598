//! Bad days of volumes: a mount that does not answer, many pods with many volumes.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rubelet_testbed::cgroup_tree::CgroupTree;
use rubelet_testbed::containerd::{Containerd, Flavour};
use rubelet_testbed::fuse::{Farewell, SilentFuse};
use rubelet_testbed::node::manifest::{Manifest, pause, pod, with};
use rubelet_testbed::node::{Bed, DEADLINE, Kubelet, Node, Options, PodFacts, RuntimeView};
use rubelet_testbed::wait::{wait_for, wait_until};
use rubelet_testbed::{images, in_scope};
use serde_json::{Value, json};

/// `make soak` takes 200.
const PODS: usize = 20;
/// Names the number of pods.
const PODS_CHOICE: &str = "RUBELET_VOLUME_PODS";
const MANY_DEADLINE: Duration = Duration::from_secs(600);

/// A pod with these volumes, all of them mounted.
fn with_volumes(name: &str, volumes: &[Value]) -> Manifest {
    let mounts: Vec<Value> = volumes
        .iter()
        .enumerate()
        .map(|(number, volume)| json!({ "name": volume["name"], "mountPath": format!("/volume-{number}") }))
        .collect();
    pod(name)
        .container(with(pause("main"), "volumeMounts", json!(mounts)))
        .spec("volumes", json!(volumes))
}

fn five_volumes() -> Vec<Value> {
    let about = json!({ "items": [
        { "path": "name", "fieldRef": { "fieldPath": "metadata.name" } },
        { "path": "deep/labels", "fieldRef": { "fieldPath": "metadata.labels" } },
    ] });
    vec![
        json!({ "name": "one", "emptyDir": {} }),
        json!({ "name": "two", "emptyDir": { "sizeLimit": "1Mi" } }),
        json!({ "name": "three", "emptyDir": { "medium": "Memory", "sizeLimit": "1Mi" } }),
        json!({ "name": "four", "downwardAPI": about }),
        json!({ "name": "five", "projected": { "sources": [{ "downwardAPI": about }] } }),
    ]
}

/// Mounts at or below a path, in this process's own view and so in the runtime's.
pub(crate) fn mounts_below(path: &Path) -> Result<Vec<String>> {
    let list = fs::read_to_string("/proc/self/mountinfo").context("read the list of mounts")?;
    Ok(list
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .filter(|target| Path::new(target).starts_with(path))
        .map(str::to_owned)
        .collect())
}

fn check_nothing_left(bed: &Bed<'_>) -> Result<()> {
    let pods = bed.node.root_dir().join("pods");
    let mounts = mounts_below(&pods)?;
    ensure!(mounts.is_empty(), "still mounted: {mounts:?}");
    let directories: Vec<_> = fs::read_dir(pods)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect();
    ensure!(directories.is_empty(), "still there: {directories:?}");
    let cgroups = CgroupTree::at(bed.scope.cgroup_root()).pods();
    ensure!(cgroups.is_empty(), "pods still have cgroups: {cgroups:?}");
    Ok(())
}

#[test]
fn a_dead_mount_harms_its_own_pod_only() {
    in_scope("bad_days_dead_mount", async |scope| {
        let containerd = Containerd::start(scope, Flavour::V2)?;
        containerd.import(&images::busybox()?)?;
        let node = Node::create(scope, &containerd.endpoint(), Options::new(Kubelet::chosen()?))?;
        // Before the kubelet gets its own view of mounts.
        let dead = SilentFuse::mount(&scope.path("dead"), Farewell::None)?;
        let mut bed = Bed {
            scope,
            view: RuntimeView::connect(&containerd.socket()).await?,
            containerd,
            node,
        };
        bed.node.start_again()?;
        let outcome = dead_mount(&mut bed, &dead).await;
        // Nothing that the scope ends may wait for it.
        dead.recover();
        outcome.map_err(|error| error.context(bed.node.log_tail()))
    });
}

async fn dead_mount(bed: &mut Bed<'_>, dead: &SilentFuse) -> Result<()> {
    let pods = bed.node.root_dir().join("pods");
    let on_it = json!({ "name": "dead", "hostPath": { "path": dead.mount_point(), "type": "Directory" } });
    bed.node
        .write("lives", &with_volumes("lives", &five_volumes()).json())?;
    let lives = bed.node.wait_until_ready("lives").await?.running_id("main")?;
    let before = bed.view.identities().await?;

    dead.fall_silent();
    let memory = json!({ "name": "memory", "emptyDir": { "medium": "Memory" } });
    let stuck = with_volumes("stuck", &[memory, on_it.clone()]).metadata("uid", json!("stuck-uid"));
    bed.node.write("stuck", &stuck.json())?;
    dead.wait_for_victim(DEADLINE)?;
    bed.node
        .write("other", &with_volumes("other", &five_volumes()).json())?;
    bed.node.wait_until_ready("other").await?;
    ensure!(
        bed.node.pod("stuck")?.phase() == "Pending",
        "it cannot have started"
    );

    // The process itself stays as long as its call hangs; another takes its place.
    bed.node.abandon()?;
    bed.node.start_again()?;
    bed.node
        .write("new", &with_volumes("new", &five_volumes()).json())?;
    bed.node.wait_until_ready("new").await?;
    bed.node.wait_until_ready("lives").await?;
    ensure!(
        bed.view.identities().await?.get(&lives) == before.get(&lives),
        "the running pod was touched"
    );

    for name in ["stuck", "new"] {
        bed.node.remove(name)?;
        bed.node.wait_until_gone(name).await?;
    }
    wait_until("the stuck pod leaves nothing", DEADLINE, async || {
        ensure!(
            !pods.join("stuck-uid").exists(),
            "its directory is there: {:?}",
            mounts_below(&pods)?
        );
        Ok(())
    })
    .await?;

    dead.recover();
    bed.node.write("stuck", &with_volumes("stuck", &[on_it]).json())?;
    bed.node.wait_until_ready("stuck").await?;
    for name in ["stuck", "other", "lives"] {
        bed.node.remove(name)?;
    }
    wait_for("nothing is left", DEADLINE, || check_nothing_left(bed))
}

#[test]
fn many_pods_with_five_volumes_leave_nothing() {
    in_scope("bad_days_many_volumes", async |scope| {
        let count = std::env::var(PODS_CHOICE).map_or(Ok(PODS), |number| number.parse())?;
        let bed = Bed::start(scope, Flavour::V2, Options::new(Kubelet::chosen()?)).await?;
        let outcome = many_pods(&bed, count).await;
        outcome.map_err(|error| error.context(bed.node.log_tail()))
    });
}

async fn many_pods(bed: &Bed<'_>, count: usize) -> Result<()> {
    let names: Vec<String> = (0..count).map(|number| format!("pod-{number}")).collect();
    for name in &names {
        bed.node
            .write(name, &with_volumes(name, &five_volumes()).json())?;
    }
    bed.node
        .wait_for_pods("all pods are ready", MANY_DEADLINE, |pods| {
            ensure!(pods.len() == count, "{} pods", pods.len());
            pods.iter().try_for_each(PodFacts::check_ready)
        })
        .await?;
    let pods = bed.node.root_dir().join("pods");
    // One in memory and two with files in memory, each.
    let mounts = mounts_below(&pods)?.len();
    ensure!(mounts == 3 * count, "{mounts} mounts of {count} pods");
    for name in &names {
        bed.node.remove(name)?;
    }
    wait_for("nothing is left", MANY_DEADLINE, || check_nothing_left(bed))
}
