//! Bad days of files: a full disk, a folder that goes and comes back, many renames at once, a manifest with a thousand
//! containers.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rubelet_testbed::containerd::{Containerd, Flavour};
use rubelet_testbed::node::manifest::{pause, pod};
use rubelet_testbed::node::{Bed, DEADLINE, Kubelet, Node, Options, PodFacts, RuntimeView};
use rubelet_testbed::wait::wait_until;
use rubelet_testbed::{Scope, images, in_scope};
use rustix::mount::{MountFlags, mount};
use serde_json::json;

const RENAMED: usize = 200;
const RENAME_DEADLINE: Duration = Duration::from_secs(300);
const MANY: usize = 1000;

/// A bed whose root directory is a small file system of its own.
async fn small_disk(scope: &Scope) -> Result<Bed<'_>> {
    let containerd = Containerd::start(scope, Flavour::V2)?;
    containerd.import(&images::busybox()?)?;
    let mut node = Node::create(scope, &containerd.endpoint(), Options::new(Kubelet::chosen()?))?;
    mount(
        "tmpfs",
        node.root_dir(),
        "tmpfs",
        MountFlags::empty(),
        Some(c"size=4m"),
    )
    .context("mount a small file system")?;
    node.start_again()?;
    let view = RuntimeView::connect(&containerd.socket()).await?;
    Ok(Bed {
        scope,
        containerd,
        node,
        view,
    })
}

fn fill(path: &Path) -> Result<()> {
    let mut file = fs::File::create(path)?;
    // Down to the last byte that the file system gives.
    for size in [1 << 16, 1 << 12, 1 << 6, 1] {
        let block = vec![b'x'; size];
        while file.write_all(&block).is_ok() {}
    }
    Ok(())
}

#[test]
fn a_full_disk_keeps_pods_running_and_new_ones_waiting() {
    in_scope("bad_days_full_disk", async |scope| {
        let mut bed = small_disk(scope).await?;
        let outcome = full_disk(&mut bed).await;
        outcome.map_err(|error| error.context(bed.node.log_tail()))
    });
}

async fn full_disk(bed: &mut Bed<'_>) -> Result<()> {
    for name in ["stays", "goes"] {
        bed.node.write(name, &pod(name).container(pause("main")).json())?;
    }
    let stays = bed.node.wait_until_ready("stays").await?;
    let goes = bed.node.wait_until_ready("goes").await?;
    let before = bed.view.identities().await?;
    let filler = bed.node.root_dir().join("filler");
    fill(&filler)?;

    bed.node
        .write("comes", &pod("comes").container(pause("main")).json())?;
    bed.node
        .wait_for_log(&["comes", "o space left on device"])
        .await?;
    bed.node.remove("goes")?;
    wait_until("the removed pod has stopped", DEADLINE, async || {
        let running = bed.view.containers_of(goes.uid()).await?;
        ensure!(running.iter().all(|container| !container.running), "{running:?}");
        Ok(())
    })
    .await?;
    ensure!(
        bed.node.pod("comes")?.phase() == "Pending",
        "{:?}",
        bed.node.pod("comes")?.status
    );
    let kept = stays.running_id("main")?;
    ensure!(
        bed.view.identities().await?.get(&kept) == before.get(&kept),
        "the running pod was touched"
    );
    if bed.node.kubelet().is_rubelet() {
        // Not even a restart on the full disk hurts what runs.
        bed.node.kill_nine()?;
        bed.node.start_again()?;
        bed.node.wait_until_ready("stays").await?;
        ensure!(
            bed.view.identities().await?.get(&kept) == before.get(&kept),
            "the running pod was touched"
        );
    }
    fs::remove_file(&filler)?;
    bed.node.wait_until_ready("comes").await?;
    bed.node.wait_until_ready("stays").await?;
    ensure!(
        bed.view.identities().await?.get(&kept) == before.get(&kept),
        "the running pod was touched"
    );
    Ok(())
}

#[test]
fn a_manifest_folder_disappears_and_comes_back() {
    in_scope("bad_days_folder", async |scope| {
        let kubelet = Kubelet::chosen()?;
        // Upstream looks for a folder that went only when it looks anyway.
        let frequency = if kubelet.is_rubelet() { "1h" } else { "1s" };
        let options = Options::new(kubelet).with("fileCheckFrequency", json!(frequency));
        let bed = Bed::start(scope, Flavour::V2, options).await?;
        let outcome = folder(&bed).await;
        outcome.map_err(|error| error.context(bed.node.log_tail()))
    });
}

async fn folder(bed: &Bed<'_>) -> Result<()> {
    let names = ["one", "two", "three"];
    for name in names {
        bed.node.write(name, &pod(name).container(pause("main")).json())?;
    }
    for name in names {
        bed.node.wait_until_ready(name).await?;
    }
    let away = bed.node.dir().join("manifests.away");
    fs::rename(bed.node.manifests(), &away)?;
    // No folder is no pods, as upstream has it.
    wait_until("the pods have stopped", DEADLINE, async || {
        let running = bed.view.running().await?;
        ensure!(running.is_empty(), "{running:?}");
        Ok(())
    })
    .await?;
    fs::rename(&away, bed.node.manifests())?;
    // What is said of them may be of before they stopped.
    wait_until("the pods run again", DEADLINE, async || {
        let running = bed.view.running().await?;
        ensure!(running.len() == names.len(), "{running:?}");
        Ok(())
    })
    .await?;
    for name in names {
        bed.node.wait_until_ready(name).await?;
    }
    // And what happens in the folder is seen again.
    bed.node.remove("two")?;
    bed.node
        .write("four", &pod("four").container(pause("main")).json())?;
    bed.node.wait_until_gone("two").await?;
    bed.node.wait_until_ready("four").await.map(|_| ())
}

#[test]
fn two_hundred_manifests_are_renamed_at_once() {
    in_scope("bad_days_renames", async |scope| {
        let bed = Bed::start(scope, Flavour::V2, Options::new(Kubelet::chosen()?)).await?;
        let outcome = renames(&bed).await;
        outcome.map_err(|error| error.context(bed.node.log_tail()))
    });
}

/// The running pods by name; a name that runs twice is an error.
async fn running_uids(bed: &Bed<'_>) -> Result<BTreeMap<String, String>> {
    let mut uids = BTreeMap::new();
    for container in bed.view.containers().await? {
        if container.running
            && let Some(other) = uids.insert(container.pod.clone(), container.uid.clone())
        {
            anyhow::bail!("{} runs as {other} and as {}", container.pod, container.uid);
        }
    }
    Ok(uids)
}

async fn renames(bed: &Bed<'_>) -> Result<()> {
    // In the host's network, so that the time is the kubelet's and not the network plug-in's.
    for number in 0..RENAMED {
        let name = format!("pod-{number:03}");
        let manifest = pod(&name)
            .container(pause("main"))
            .spec("hostNetwork", json!(true));
        bed.node.write(&name, &manifest.json())?;
    }
    let all_run = async |old: &BTreeMap<String, String>| {
        wait_until("every name has one new pod", RENAME_DEADLINE, async || {
            let uids = running_uids(bed).await?;
            let stale = uids
                .iter()
                .filter(|(name, uid)| old.get(*name) == Some(uid))
                .count();
            ensure!(
                uids.len() == RENAMED && stale == 0,
                "{} run, {stale} of them are old",
                uids.len()
            );
            Ok(uids)
        })
        .await
    };
    let old = all_run(&BTreeMap::new()).await?;
    let folder = bed.node.manifests();
    for number in 0..RENAMED {
        fs::rename(
            folder.join(format!("pod-{number:03}.json")),
            folder.join(format!("new-{number:03}.json")),
        )?;
    }
    let new = all_run(&old).await?;
    bed.node
        .wait_for_pods("the kubelet says so too", DEADLINE, |pods| {
            let ready: BTreeSet<&str> = pods
                .iter()
                .filter(|pod| pod.check_ready().is_ok())
                .map(PodFacts::uid)
                .collect();
            let wanted: BTreeSet<&str> = new.values().map(String::as_str).collect();
            ensure!(ready == wanted, "{} of {} are ready", ready.len(), wanted.len());
            Ok(())
        })
        .await?;
    // Nothing old came back meanwhile.
    ensure!(running_uids(bed).await? == new, "pods changed again");
    let ready = bed
        .view
        .sandboxes()
        .await?
        .iter()
        .filter(|sandbox| sandbox.ready)
        .count();
    ensure!(ready == RENAMED, "{ready} sandboxes");
    Ok(())
}

/// Accepted, as upstream does. With an image that is not there: a thousand processes would tell nothing more.
#[test]
fn a_thousand_containers_are_accepted() {
    in_scope("bad_days_thousand", async |scope| {
        let bed = Bed::start(scope, Flavour::V2, Options::new(Kubelet::chosen()?)).await?;
        let mut manifest = pod("many");
        for number in 0..MANY {
            manifest = manifest.container(json!({
                "name": format!("c{number}"), "image": "rubelet.test/nothing:1", "imagePullPolicy": "Never",
            }));
        }
        bed.node.write("many", &manifest.json())?;
        bed.node
            .write("beside", &pod("beside").container(pause("main")).json())?;
        let outcome = async {
            bed.node.wait_until_ready("beside").await?;
            bed.node
                .wait_for_pod("many", "says of each container why it waits", |pod| {
                    let last = pod.waiting(&format!("c{}", MANY - 1))?;
                    ensure!(last.0 == "ErrImageNeverPull", "{last:?}");
                    let statuses = pod
                        .status
                        .as_ref()
                        .and_then(|status| status.container_statuses.as_ref());
                    ensure!(statuses.map(Vec::len) == Some(MANY));
                    Ok(())
                })
                .await?;
            bed.node.remove("many")?;
            bed.node.wait_until_gone("many").await
        };
        outcome.await.map_err(|error| error.context(bed.node.log_tail()))
    });
}
