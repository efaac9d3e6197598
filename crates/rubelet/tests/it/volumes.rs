//! Volumes over the end of the program: those of running pods are kept, those of removed pods go.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use rubelet_testbed::containerd::Flavour;
use rubelet_testbed::in_scope;
use rubelet_testbed::node::manifest::{UNTIL_TERM, pod, shell, with};
use rubelet_testbed::node::{Bed, DEADLINE, Kubelet, Options, PodFacts};
use rubelet_testbed::wait::wait_until;
use serde_json::{Value, json};

fn manifest(name: &str, note: &str) -> Value {
    let items = json!([{ "path": "note", "fieldRef": { "fieldPath": "metadata.annotations['note']" } }]);
    let script = format!("echo of the container > /memory/word; {UNTIL_TERM}");
    let container = with(
        shell("main", &script),
        "volumeMounts",
        json!([
            { "name": "disk", "mountPath": "/disk", "subPath": "inner" },
            { "name": "memory", "mountPath": "/memory" },
            { "name": "info", "mountPath": "/info" },
        ]),
    );
    pod(name)
        .container(container)
        .metadata("uid", json!(format!("uid-{name}")))
        .metadata("annotations", json!({ "note": note }))
        .spec(
            "volumes",
            json!([
                { "name": "disk", "emptyDir": {} },
                { "name": "memory", "emptyDir": { "medium": "Memory" } },
                { "name": "info", "downwardAPI": { "items": items } },
            ]),
        )
        .json()
}

fn mounts_below(path: &Path) -> Result<Vec<String>> {
    let table = fs::read_to_string("/proc/self/mountinfo").context("read the mount table")?;
    let points = table.lines().filter_map(|line| line.split(' ').nth(4));
    Ok(points
        .filter(|point| Path::new(point).starts_with(path))
        .map(str::to_owned)
        .collect())
}

async fn killed_and_started_again(bed: &mut Bed<'_>) -> Result<()> {
    let pods = bed.node.root_dir().join("pods");
    for name in ["kept", "orphan"] {
        bed.node.write(name, &manifest(name, "before"))?;
    }
    let kept = bed.node.wait_until_ready("kept").await?;
    bed.node.wait_until_ready("orphan").await?;
    let volumes = pods.join("uid-kept/volumes");
    let word = volumes.join("kubernetes.io~empty-dir/memory/word");
    let read = async || {
        let text = fs::read_to_string(&word)?;
        ensure!(!text.is_empty(), "it is being written");
        Ok(text)
    };
    let written = wait_until("the container has written", DEADLINE, read).await?;
    let mounts = mounts_below(&pods.join("uid-kept"))?;
    ensure!(mounts.len() == 3, "two in memory and a bind: {mounts:?}");
    bed.node.kill_nine()?;
    // What happens meanwhile is seen by the next one.
    bed.node.write("kept", &manifest("kept", "after"))?;
    bed.node.remove("orphan")?;
    bed.node.start_again()?;
    let note = volumes.join("kubernetes.io~downward-api/info/note");
    wait_until("the file follows the pod", DEADLINE, async || {
        let text = fs::read_to_string(&note)?;
        ensure!(text == "after", "it says {text:?}");
        Ok(())
    })
    .await?;
    let again = bed.node.wait_until_ready("kept").await?;
    ensure!(
        again.running_id("main")? == kept.running_id("main")?,
        "its container was replaced"
    );
    ensure!(fs::read_to_string(&word)? == written, "the volume was emptied");
    let after = mounts_below(&pods.join("uid-kept"))?;
    ensure!(after == mounts, "{after:?} instead of {mounts:?}");
    bed.node.remove("kept")?;
    wait_until("nothing is left", DEADLINE, async || {
        let mounts = mounts_below(&pods)?;
        ensure!(mounts.is_empty(), "{mounts:?}");
        let left: Vec<_> = fs::read_dir(&pods)?.flatten().map(|entry| entry.path()).collect();
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    })
    .await
}

#[test]
fn volumes_outlive_a_kill_and_orphans_go() {
    in_scope("volumes", async |scope| {
        let kubelet = Kubelet::chosen_or(env!("CARGO_BIN_EXE_rubelet"));
        let mut bed = Bed::start(scope, Flavour::Debian, Options::new(kubelet)).await?;
        killed_and_started_again(&mut bed)
            .await
            .context(bed.node.log_tail())
    });
}

fn run(program: &str, arguments: &[&str]) -> Result<()> {
    let status = Command::new(program).args(arguments).status();
    let status = status.with_context(|| format!("run {program}"))?;
    ensure!(status.success(), "{program} {arguments:?}: {status}");
    Ok(())
}

/// A volume of a plugin that rubelet does not have keeps it from starting, unless its own configuration allows that.
#[test]
fn volumes_of_unknown_plugins_keep_it_from_starting() {
    in_scope("unknown_volumes", async |scope| {
        let kubelet = Kubelet::chosen_or(env!("CARGO_BIN_EXE_rubelet"));
        let own = scope.path("rubelet.yaml");
        let head = "apiVersion: rubelet.dev/v1alpha1\nkind: RubeletConfiguration\n";
        fs::write(&own, head)?;
        let mut options = Options::new(kubelet);
        options
            .arguments
            .push(format!("--rubelet-config={}", own.display()));
        let mut bed = Bed::start(scope, Flavour::Debian, options).await?;
        bed.node.terminate()?;
        let volume = bed
            .node
            .root_dir()
            .join("pods/uid-db/volumes/kubernetes.io~csi/pvc-1/mount");
        fs::create_dir_all(&volume)?;
        let path = volume.to_str().context("a path of text")?;
        run("mount", &["-t", "tmpfs", "tmpfs", path])?;
        bed.node.launch()?;
        let status = bed.node.wait_for_exit()?;
        assert_eq!(status.code(), Some(1));
        bed.node
            .wait_for_log(&[
                "uid-db",
                "volume pvc-1 of kubernetes.io/csi",
                "allowUnknownVolumes",
            ])
            .await?;
        fs::write(&own, format!("{head}allowUnknownVolumes: true\n"))?;
        bed.node.start_again()?;
        bed.node
            .write("web", &pod("web").container(shell("main", UNTIL_TERM)).json())?;
        bed.node.wait_until_ready("web").await?;
        run("umount", &[path])
    });
}
