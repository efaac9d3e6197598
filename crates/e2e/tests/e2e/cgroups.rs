//! The tree of cgroups that rubelet makes is upstream's, value by value, on the same node; and what a killed rubelet has left
//! there goes with its next start.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use rubelet_testbed::cgroup_tree::CgroupTree;
use rubelet_testbed::containerd::Flavour;
use rubelet_testbed::in_scope;
use rubelet_testbed::node::manifest::{pause, pod, shell, with};
use rubelet_testbed::node::{Bed, DEADLINE, Kubelet, Options};
use rubelet_testbed::wait::wait_until;
use serde_json::{Value, json};

/// Name, tier, and what makes the pod what it is.
fn manifests(id: &str) -> Vec<(&'static str, &'static str, Value)> {
    let list = |cpu: &str, memory: &str| json!({ "cpu": cpu, "memory": memory });
    let both = |requests: &Value, limits: &Value| json!({ "requests": requests, "limits": limits });
    let own = |name: &str| pod(name).metadata("uid", json!(format!("{name}-{id}")));
    let sidecar = with(pause("sidecar"), "restartPolicy", json!("Always"));
    vec![
        (
            "guaranteed",
            "",
            own("guaranteed")
                .container(with(
                    pause("main"),
                    "resources",
                    both(&list("150m", "40Mi"), &list("150m", "40Mi")),
                ))
                .json(),
        ),
        (
            "burstable",
            "/burstable",
            own("burstable")
                .init(with(
                    shell("first", "true"),
                    "resources",
                    both(&list("700m", "8Mi"), &list("800m", "90Mi")),
                ))
                .init(with(
                    sidecar,
                    "resources",
                    both(&list("10m", "8Mi"), &list("20m", "16Mi")),
                ))
                .container(with(
                    pause("a"),
                    "resources",
                    both(&list("125m", "16Mi"), &list("333m", "48Mi")),
                ))
                .container(with(
                    pause("b"),
                    "resources",
                    json!({ "limits": list("1", "20Mi") }),
                ))
                .json(),
        ),
        (
            "unbounded",
            "/burstable",
            own("unbounded")
                .container(with(
                    pause("a"),
                    "resources",
                    json!({ "requests": list("1m", "1Mi") }),
                ))
                .container(pause("b"))
                .json(),
        ),
        (
            "pod-level",
            "/burstable",
            own("pod-level")
                .container(pause("a"))
                .container(with(
                    pause("b"),
                    "resources",
                    json!({ "limits": list("50m", "16Mi") }),
                ))
                .spec("resources", both(&list("200m", "32Mi"), &list("400m", "64Mi")))
                .json(),
        ),
        (
            "besteffort",
            "/besteffort",
            own("besteffort").container(pause("main")).json(),
        ),
    ]
}

type Values = BTreeMap<String, BTreeMap<String, String>>;

/// Everything that the kernel was told about the tree, containers by their names.
async fn values(bed: &Bed<'_>, tree: &CgroupTree, id: &str) -> Result<Values> {
    let mut found = Values::new();
    for path in ["/kubepods", "/kubepods/burstable", "/kubepods/besteffort"] {
        found.insert(path.to_owned(), tree.values(path)?);
    }
    for (name, tier, _) in manifests(id) {
        let uid = format!("{name}-{id}");
        let path = format!("/kubepods{tier}/pod{uid}");
        found.insert(name.to_owned(), tree.values(&path)?);
        for container in bed
            .view
            .containers_of(&uid)
            .await?
            .into_iter()
            .filter(|one| one.running)
        {
            let mut own = tree.values(&format!("{path}/{}", container.id))?;
            let pid = bed.view.pid(&container.id).await?;
            let score = fs::read_to_string(format!("/proc/{pid}/oom_score_adj"))?;
            own.insert("oom_score_adj".to_owned(), score.trim().to_owned());
            found.insert(format!("{name}/{}", container.name), own);
        }
    }
    Ok(found)
}

/// Starts the pods and gives the values once the tiers count all of them.
async fn run(bed: &Bed<'_>, tree: &CgroupTree, id: &str) -> Result<Values> {
    for (name, _, manifest) in manifests(id) {
        bed.node.write(name, &manifest)?;
    }
    for (name, ..) in manifests(id) {
        bed.node.wait_until_ready(name).await?;
    }
    // A limit stands in for a missing request, and the sidecar runs beside: (125 + 1000 + 10) + 1 + 200 thousandths.
    wait_until("the burstable tier counts its pods", DEADLINE, async || {
        let shares = tree.read("cpu", "/kubepods/burstable", "cpu.shares")?;
        ensure!(shares == (1336 * 1024 / 1000).to_string(), "it has {shares}");
        Ok(())
    })
    .await?;
    values(bed, tree, id).await
}

async fn remove(bed: &Bed<'_>, tree: &CgroupTree, id: &str) -> Result<()> {
    for (name, ..) in manifests(id) {
        bed.node.remove(name)?;
    }
    for (name, tier, _) in manifests(id) {
        bed.node.wait_until_gone(name).await?;
        let path = format!("/kubepods{tier}/pod{name}-{id}");
        wait_until(&format!("{path} is gone"), DEADLINE, async || {
            tree.check_gone(&path)
        })
        .await?;
    }
    Ok(())
}

/// A pod that nobody knows any more, with a process in it, and a pod that lives: the next start removes one and keeps the other.
async fn check_orphan(bed: &mut Bed<'_>, tree: &CgroupTree) -> Result<()> {
    let before = bed.view.identities().await?;
    bed.node.kill_nine()?;
    let orphan = "/kubepods/burstable/podorphan-1-2";
    tree.make_below(&format!("{orphan}/child"))?;
    for part in ["", "/child"] {
        for file in ["cpuset.cpus", "cpuset.mems"] {
            let value = tree.read("cpuset", "/kubepods", file)?;
            let directory = format!("/sys/fs/cgroup/cpuset{}{orphan}{part}", bed.scope.cgroup_root());
            fs::write(format!("{directory}/{file}"), value).context("fill the orphan's cpuset")?;
        }
    }
    let mut command = Command::new("sleep");
    command.arg("600");
    let mut process = bed.scope.spawn("orphan", command)?;
    tree.enter(&format!("{orphan}/child"), process.pid())?;
    bed.node.start_again()?;
    wait_until("the orphan is gone", DEADLINE, async || tree.check_gone(orphan)).await?;
    process.wait(DEADLINE)?;
    let after = bed.view.identities().await?;
    ensure!(before == after, "containers changed: {before:?} became {after:?}");
    Ok(())
}

#[test]
fn the_tree_is_upstreams_and_orphans_go() {
    in_scope("cgroups", async |scope| {
        let tree = CgroupTree::at(scope.cgroup_root());
        let options = Options::new(Kubelet::Upstream)
            .with(
                "systemReserved",
                json!({ "cpu": "100m", "memory": "64Mi", "pid": "1000" }),
            )
            .with("kubeReserved", json!({ "cpu": "50m", "memory": "32Mi" }))
            .with("enforceNodeAllocatable", json!(["pods"]));
        let mut bed = Bed::start(scope, Flavour::Debian, options).await?;
        let upstream = run(&bed, &tree, "u").await?;
        remove(&bed, &tree, "u").await?;
        bed.node.terminate()?;
        for path in ["/kubepods/burstable", "/kubepods/besteffort", "/kubepods"] {
            for directory in tree.directories(path) {
                fs::remove_dir(&directory).with_context(|| format!("remove {}", directory.display()))?;
            }
        }
        bed.node.switch_to(Kubelet::chosen()?)?;
        let ours = run(&bed, &tree, "r").await?;
        ensure!(
            upstream.len() == ours.len(),
            "{:?} and {:?}",
            upstream.keys(),
            ours.keys()
        );
        for (place, values) in &upstream {
            ensure!(
                ours.get(place) == Some(values),
                "{place}: upstream has {values:?}, rubelet {:?}",
                ours.get(place)
            );
        }
        check_orphan(&mut bed, &tree).await?;
        remove(&bed, &tree, "r").await
    });
}
