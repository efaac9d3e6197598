//! `kill -9` of the kubelet while pods with volumes come, change and go: what should have stayed has the same container with the
//! same time of start, judged by containerd alone; of what is gone no mount and no cgroup is left, judged by the kernel.
//!
//! `RUBELET_KILLS` says how often; `RUBELET_KILLS_SEED` repeats a run's choices.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use rubelet_ports::RuntimeWriter;
use rubelet_testbed::cgroup_tree::CgroupTree;
use rubelet_testbed::containerd::Flavour;
use rubelet_testbed::in_scope;
use rubelet_testbed::node::manifest::{UNTIL_TERM, pause, pod, shell, with};
use rubelet_testbed::node::{Bed, Kubelet, Options, PodFacts};
use rubelet_testbed::wait::wait_until;
use serde_json::{Value, json};

use crate::bad_days_volumes::mounts_below;

const KILLS: u64 = 50;
/// Pods that nobody touches.
const STABLE: [&str; 4] = ["stable-a", "stable-b", "stable-c", "stable-d"];
/// Pods that come, change and go.
const CHURNED: u64 = 6;
/// A kubelet lives at most this long before it is killed: from before its first call to long after its last.
const LIFE: Duration = Duration::from_millis(1500);
const QUIET_DEADLINE: Duration = Duration::from_secs(240);

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        // The constants of Knuth's generator; the high bits are the good ones.
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// What the test wants at the moment: the version of each churned pod that is there.
#[derive(Default)]
struct Wanted {
    versions: BTreeMap<String, u64>,
    next: u64,
}

impl Wanted {
    /// Adds, edits or removes one pod.
    fn change(&mut self, bed: &Bed<'_>, random: &mut Random) -> Result<()> {
        let name = format!("churn-{}", random.below(CHURNED));
        if self.versions.contains_key(&name) && random.below(2) == 0 {
            self.versions.remove(&name);
            return bed.node.remove(&name);
        }
        self.next += 1;
        self.versions.insert(name.clone(), self.next);
        bed.node
            .write(&name, &churned(bed, &name, self.next, random.below(3)))
    }

    fn uid(bed: &Bed<'_>, name: &str, version: u64) -> String {
        format!("{name}-{version}-{}", bed.scope.id())
    }

    /// UIDs of the churned pods that should be there.
    fn uids(&self, bed: &Bed<'_>) -> Vec<String> {
        self.versions
            .iter()
            .map(|(name, version)| Self::uid(bed, name, *version))
            .collect()
    }
}

fn churned(bed: &Bed<'_>, name: &str, version: u64, shape: u64) -> Value {
    let manifest = pod(name).metadata("uid", json!(Wanted::uid(bed, name, version)));
    let main = with(
        pause("main"),
        "volumeMounts",
        json!([
            { "name": "disk", "mountPath": "/disk" },
            { "name": "disk", "mountPath": "/part", "subPath": "part" },
            { "name": "memory", "mountPath": "/memory" },
            { "name": "info", "mountPath": "/info" },
        ]),
    );
    let manifest = match shape {
        0 => manifest.container(main),
        1 => manifest.init(shell("init", "true")).container(main),
        _ => manifest.container(main).container(shell("other", UNTIL_TERM)),
    };
    let items = json!([{ "path": "name", "fieldRef": { "fieldPath": "metadata.name" } }]);
    let volumes = json!([
        { "name": "disk", "emptyDir": {} },
        { "name": "memory", "emptyDir": { "medium": "Memory", "sizeLimit": "1Mi" } },
        { "name": "info", "downwardAPI": { "items": items } },
    ]);
    manifest
        .spec("volumes", volumes)
        .spec("terminationGracePeriodSeconds", json!(1))
        .json()
}

fn stable(name: &str) -> Value {
    let sidecar = with(shell("sidecar", UNTIL_TERM), "restartPolicy", json!("Always"));
    match name {
        "stable-a" => pod(name).container(pause("main")),
        "stable-b" => pod(name)
            .init(shell("init", "true"))
            .init(sidecar)
            .container(pause("main")),
        "stable-c" => pod(name).container(pause("main")).container(pause("other")),
        _ => pod(name)
            .container(pause("main"))
            .spec("hostNetwork", json!(true)),
    }
    .json()
}

/// Containers that should have stayed: id → pod, container and time of start. A pod's containers count from the moment they
/// were seen running until the test touches the pod.
#[derive(Default)]
struct Settled(BTreeMap<String, (String, i64)>);

impl Settled {
    /// Fails if one of them does not run any more or has started again; takes in those that are new.
    async fn look(&mut self, bed: &Bed<'_>, uids: &[String]) -> Result<()> {
        let mut seen = BTreeMap::new();
        for container in bed.view.containers().await? {
            // An init container's end is no loss.
            if !container.running || container.name == "init" || !uids.contains(&container.uid) {
                continue;
            }
            // It may end between two questions, if its pod is about to go.
            let Ok(status) = bed.view.status(&container.id).await else {
                continue;
            };
            let what = format!("{}/{} of {}", container.pod, container.name, container.uid);
            seen.insert(container.id, (container.uid, what, status.started_at));
        }
        for (id, (what, started_at)) in &self.0 {
            let found = seen
                .get(id)
                .with_context(|| format!("{what} is lost: container {id}"))?;
            ensure!(
                found.2 == *started_at,
                "{what} started again under the same id {id}"
            );
        }
        for (id, (_, what, started_at)) in seen {
            self.0.insert(id, (what, started_at));
        }
        Ok(())
    }

    /// Forgets a pod that the test is about to touch.
    fn forget_all_but(&mut self, uids: &[String]) {
        self.0
            .retain(|_, (what, _)| uids.iter().any(|uid| what.ends_with(uid.as_str())));
    }
}

/// Lets the kubelet live for a moment of the run's choice: the moment is what is tested, there is no state to wait for.
async fn live_for(bed: &mut Bed<'_>, random: &mut Random) -> Result<()> {
    tokio::time::sleep(Duration::from_millis(random.below(LIFE.as_millis() as u64))).await;
    bed.node.kill_nine()
}

#[test]
fn killed_kubelets_neither_restart_nor_lose_nor_leak_containers() {
    in_scope("kill_nine", async |scope| {
        let kills = number("RUBELET_KILLS").unwrap_or(KILLS);
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        let seed = number("RUBELET_KILLS_SEED").unwrap_or(now);
        eprintln!("kill_nine: {kills} kills, RUBELET_KILLS_SEED={seed}");
        let mut bed = Bed::start(scope, Flavour::V2, Options::new(Kubelet::chosen()?)).await?;
        let outcome = churn(&mut bed, kills, seed).await;
        outcome.map_err(|error| error.context(format!("seed {seed}\n{}", bed.node.log_tail())))
    });
}

async fn churn(bed: &mut Bed<'_>, kills: u64, seed: u64) -> Result<()> {
    let mut random = Random(seed);
    let mut stable_uids = Vec::new();
    for name in STABLE {
        bed.node.write(name, &stable(name))?;
    }
    for name in STABLE {
        let pod = bed.node.wait_until_ready(name).await?;
        stable_uids.push(pod.metadata.uid.unwrap_or_default());
    }
    let mut wanted = Wanted::default();
    let mut settled = Settled::default();
    settled.look(bed, &stable_uids).await?;
    ensure!(settled.0.len() == 6, "{:?}", settled.0);
    bed.node.kill_nine()?;
    for kill in 0..kills {
        // Changes come while the kubelet is down, while it starts and while it works.
        for _ in 0..random.below(3) {
            wanted.change(bed, &mut random)?;
        }
        let uids = [stable_uids.clone(), wanted.uids(bed)].concat();
        settled.forget_all_but(&uids);
        bed.node.launch()?;
        live_for(bed, &mut random).await?;
        settled
            .look(bed, &uids)
            .await
            .with_context(|| format!("after kill {}", kill + 1))?;
    }
    bed.node.launch()?;
    let uids = [stable_uids, wanted.uids(bed)].concat();
    wait_until("exactly the wanted pods run", QUIET_DEADLINE, async || {
        running(bed, &uids).await
    })
    .await?;
    if containerd_is_stuck(bed, &uids).await? {
        eprintln!(
            "kill_nine: containerd holds a task of a start that was cut off; only its own restart ends that"
        );
        bed.containerd.restart()?;
    }
    wait_until("nothing else is left", QUIET_DEADLINE, async || {
        nothing_else(bed, &uids).await
    })
    .await?;
    running(bed, &uids).await?;
    settled.look(bed, &uids).await.context("at the end")?;
    eprintln!(
        "kill_nine: {} containers stayed, {} pods had come and gone",
        settled.0.len(),
        wanted.next
    );
    Ok(())
}

/// Exactly the wanted pods are there, each once, and the kubelet says so.
async fn running(bed: &Bed<'_>, uids: &[String]) -> Result<()> {
    // Fails if one runs twice.
    bed.view.running().await?;
    let sandboxes = bed.view.sandboxes().await?;
    let mut ready: Vec<String> = sandboxes
        .into_iter()
        .filter(|sandbox| sandbox.ready)
        .map(|sandbox| sandbox.uid)
        .collect();
    ready.sort();
    let mut expected = uids.to_vec();
    expected.sort();
    ensure!(
        ready == expected,
        "sandboxes of {ready:?} instead of {expected:?}"
    );
    let pods = bed.node.pods()?;
    for uid in uids {
        let pod = pods.iter().find(|pod| pod.uid() == uid);
        pod.with_context(|| format!("the kubelet has no {uid}"))?
            .check_ready()
            .with_context(|| uid.clone())?;
    }
    ensure!(pods.len() == uids.len(), "the kubelet has more pods");
    Ok(())
}

/// A client that goes away in the middle of a start can leave a task that containerd itself will not let go: the container has
/// exited and cannot be removed. No kubelet can help that.
async fn containerd_is_stuck(bed: &Bed<'_>, uids: &[String]) -> Result<bool> {
    for container in bed.view.containers().await? {
        if container.running || uids.contains(&container.uid) {
            continue;
        }
        if let Err(error) = bed.view.client().remove_container(&container.id).await
            && error.to_string().contains("cannot delete running task")
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Nothing of other pods is left in the runtime, on disk or in the kernel; and what the others need is there.
async fn nothing_else(bed: &Bed<'_>, uids: &[String]) -> Result<()> {
    for sandbox in bed.view.sandboxes().await? {
        ensure!(uids.contains(&sandbox.uid), "a leaked sandbox: {sandbox:?}");
    }
    for container in bed.view.containers().await? {
        ensure!(uids.contains(&container.uid), "a leaked container: {container:?}");
    }
    for place in [bed.node.root_dir().join("pods"), bed.node.pod_logs()] {
        let left: Vec<String> = std::fs::read_dir(place)?
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .filter(|name| !uids.iter().any(|uid| name.ends_with(uid.as_str())))
            .collect();
        ensure!(left.is_empty(), "leaked directories {left:?}");
    }
    let pods = bed.node.root_dir().join("pods");
    let mut mounts: BTreeMap<String, usize> = BTreeMap::new();
    for target in mounts_below(&pods)? {
        let uid = Path::new(&target).strip_prefix(&pods)?.iter().next();
        let uid = uid.context("the folder of pods is a mount")?;
        *mounts.entry(uid.to_string_lossy().into_owned()).or_default() += 1;
    }
    // Two in memory and one bind; only the pods that are churned have volumes.
    let churned = uids.iter().filter(|uid| uid.starts_with("churn-"));
    let expected: BTreeMap<String, usize> = churned.map(|uid| (uid.clone(), 3)).collect();
    ensure!(mounts == expected, "mounts {mounts:?} instead of {expected:?}");
    let cgroups = CgroupTree::at(bed.scope.cgroup_root()).pods();
    let expected: BTreeSet<String> = uids.iter().cloned().collect();
    ensure!(
        cgroups == expected,
        "cgroups of {cgroups:?} instead of {expected:?}"
    );
    Ok(())
}
