//! Mounts below a volume: who sees them, and who may write to them.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde_json::{Value, json};

use super::scenarios;
use rubelet_testbed::containerd::Flavour;
use rubelet_testbed::node::manifest::{UNTIL_TERM, pod, shell, with};
use rubelet_testbed::node::{Bed, PodFacts, Scenario};
use rubelet_testbed::peer;

pub(super) const ALL: &[Scenario] = scenarios![mounts_pass_as_asked_for, mounts_below_are_read_only_too];

/// A directory of the node whose mounts others can see, with a file system below.
fn shared_dir(bed: &Bed<'_>, name: &str) -> Result<PathBuf> {
    let dir = bed.scope.path(&format!("host-{name}"));
    fs::create_dir_all(dir.join("sub")).with_context(|| format!("create {}", dir.display()))?;
    peer::share(&dir)?;
    Ok(dir)
}

fn mount_memory(dir: &std::path::Path) -> Result<()> {
    mount("tmpfs", dir, "tmpfs", MountFlags::empty(), None).context("mount a file system in memory")
}

fn mounting(container: Value, mount: &Value) -> Value {
    with(container, "volumeMounts", json!([mount]))
}

/// What is mounted after the start: by the node, then by a container.
async fn mounts_pass_as_asked_for(bed: &Bed<'_>) -> Result<()> {
    let name = "propagation";
    let dir = shared_dir(bed, name)?;
    let container = |name: &str, propagation: &str| {
        let mount = json!({ "name": "host", "mountPath": "/host", "mountPropagation": propagation });
        mounting(shell(name, UNTIL_TERM), &mount)
    };
    let out = with(
        container("out", "Bidirectional"),
        "securityContext",
        json!({ "privileged": true }),
    );
    let manifest = pod(name)
        .container(container("none", "None"))
        .container(container("in", "HostToContainer"))
        .container(out)
        .spec(
            "volumes",
            json!([{ "name": "host", "hostPath": { "path": dir } }]),
        );
    bed.node.write(name, &manifest.json())?;
    let pod = bed.node.wait_until_ready(name).await?;
    let sees = async |container: &str, path: &str| -> Result<bool> {
        let script = format!("test -e /host/{path} && echo yes || echo no");
        let id = pod.running_id(container)?;
        Ok(bed.view.exec(&id, &["sh", "-c", &script]).await? == "yes")
    };
    mount_memory(&dir.join("sub"))?;
    fs::write(dir.join("sub/of-the-node"), "")?;
    for (container, expected) in [("none", false), ("in", true), ("out", true)] {
        let found = sees(container, "sub/of-the-node").await?;
        ensure!(found == expected, "{container} sees the node's mount: {found}");
    }
    let out = pod.running_id("out")?;
    let script = "mkdir /host/own && mount -t tmpfs tmpfs /host/own && touch /host/own/of-the-pod";
    bed.view.exec(&out, &["sh", "-c", script]).await?;
    ensure!(
        dir.join("own/of-the-pod").exists(),
        "the node does not see the pod's mount"
    );
    for (container, expected) in [("none", false), ("in", true)] {
        let found = sees(container, "own/of-the-pod").await?;
        ensure!(found == expected, "{container} sees the pod's mount: {found}");
    }
    bed.view.exec(&out, &["umount", "/host/own"]).await?;
    unmount(dir.join("sub"), UnmountFlags::DETACH).context("unmount")?;
    bed.node.remove(name)
}

/// Runtimes that cannot do it do not get to try.
async fn mounts_below_are_read_only_too(bed: &Bed<'_>) -> Result<()> {
    let name = "recursive-read-only";
    let dir = shared_dir(bed, name)?;
    mount_memory(&dir.join("sub"))?;
    let mount = |mode: &str| json!({ "name": "host", "mountPath": "/host", "readOnly": true, "recursiveReadOnly": mode });
    let manifest = pod(name)
        .container(mounting(shell("main", UNTIL_TERM), &mount("Enabled")))
        .container(mounting(shell("above", UNTIL_TERM), &mount("Disabled")))
        .spec(
            "volumes",
            json!([{ "name": "host", "hostPath": { "path": dir } }]),
        );
    bed.node.write(name, &manifest.json())?;
    if bed.containerd.flavour() == Flavour::Debian {
        bed.node
            .wait_for_pod(name, "is refused", |pod| {
                let (reason, message) = pod.waiting("main")?;
                let words = "requested recursive read-only mode, but it is not supported by the runtime";
                ensure!(
                    reason == "CreateContainerConfigError" && message.contains(words),
                    "{reason}: {message}"
                );
                Ok(())
            })
            .await?;
        return bed.node.remove(name);
    }
    let pod = bed.node.wait_until_ready(name).await?;
    let touch = |file: &str| format!("touch {file} 2>&1 || true");
    let (main, above) = (pod.running_id("main")?, pod.running_id("above")?);
    for (id, file, is_kept) in [
        (&main, "/host/a", true),
        (&main, "/host/sub/b", true),
        (&above, "/host/c", true),
        (&above, "/host/sub/d", false),
    ] {
        let said = bed.view.exec(id, &["sh", "-c", &touch(file)]).await?;
        ensure!(
            said.contains("Read-only file system") == is_kept,
            "{file}: {said:?}"
        );
    }
    let mounts = pod.container("main")?.volume_mounts.clone().unwrap_or_default();
    let mode = mounts.first().and_then(|mount| mount.recursive_read_only.clone());
    ensure!(mode.as_deref() == Some("Enabled"), "{mounts:?}");
    bed.node.remove(name)
}
