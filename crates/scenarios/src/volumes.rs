//! Volumes that need no API server.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::scenarios;
use super::{last_log_lines, log_lines, printed, until, value, wait_until_removed, wait_until_stopped};
use rubelet_testbed::containerd::Flavour;
use rubelet_testbed::node::manifest::{Manifest, UNTIL_TERM, pause, pod, shell, with};
use rubelet_testbed::node::{Bed, PodFacts, Scenario};

pub(super) const ALL: &[Scenario] = scenarios![
    empty_directory_is_shared_and_kept_over_restarts,
    memory_has_a_size,
    paths_of_the_node_by_type,
    paths_of_the_wrong_type_are_told,
    files_of_the_downward_api,
    files_follow_the_pod,
    sub_paths_and_their_expressions,
    read_only_mounts,
    groups_of_volumes,
    images_as_volumes,
    volumes_leave_nothing,
];

fn mount(volume: &str, path: &str) -> Value {
    json!({ "name": volume, "mountPath": path })
}

fn mounting(container: Value, mounts: Value) -> Value {
    with(container, "volumeMounts", mounts)
}

fn volumes(manifest: Manifest, volumes: Value) -> Manifest {
    manifest.spec("volumes", volumes)
}

fn volume_dir(bed: &Bed<'_>, pod: &Pod, plugin: &str, name: &str) -> PathBuf {
    let pods = bed.node.root_dir().join("pods");
    pods.join(pod.uid()).join("volumes").join(plugin).join(name)
}

/// A directory of the scenario's own on the node.
fn node_dir(bed: &Bed<'_>, name: &str) -> Result<PathBuf> {
    let dir = bed.scope.path(&format!("host-{name}"));
    fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
    Ok(dir)
}

async fn wait_for_line(bed: &Bed<'_>, pod: &Pod, container: &str, attempt: u32, line: &str) -> Result<()> {
    until(&format!("{container} says {line:?}"), async || {
        let lines = log_lines(bed, pod, container, attempt)?;
        ensure!(lines.iter().any(|found| found == line), "{lines:?}");
        Ok(())
    })
    .await
}

async fn empty_directory_is_shared_and_kept_over_restarts(bed: &Bed<'_>) -> Result<()> {
    let name = "empty-dir";
    let reader = format!("until test -s /in/word; do sleep 0.05; done; cat /in/word; {UNTIL_TERM}");
    let writer = format!("test -e /out/word && echo kept; echo hello > /out/word; {UNTIL_TERM}");
    let manifest = volumes(
        pod(name)
            .container(mounting(
                shell("writer", &writer),
                json!([mount("shared", "/out")]),
            ))
            .container(mounting(
                shell("reader", &reader),
                json!([mount("shared", "/in")]),
            )),
        json!([{ "name": "shared", "emptyDir": { "sizeLimit": "1Gi" } }]),
    );
    bed.node.write(name, &manifest.json())?;
    let pod = bed.node.wait_until_ready(name).await?;
    wait_for_line(bed, &pod, "reader", 0, "hello").await?;
    let dir = volume_dir(bed, &pod, "kubernetes.io~empty-dir", "shared");
    let mode = fs::metadata(&dir)?.permissions().mode() & 0o7777;
    ensure!(mode == 0o777, "the mode is {mode:o}");
    let marker = bed.node.root_dir().join("pods").join(pod.uid());
    let marker = marker.join("plugins/kubernetes.io~empty-dir/shared/ready");
    ensure!(marker.exists(), "no {}", marker.display());
    bed.view.kill_container(&pod.running_id("writer")?).await?;
    wait_for_line(bed, &pod, "writer", 1, "kept").await?;
    bed.node.remove(name)
}

async fn memory_has_a_size(bed: &Bed<'_>) -> Result<()> {
    let name = "memory-dir";
    let script = "stat -f -c type=%T /m; stat -f -c 'size=%b %s' /m; stat -f -c 'other=%b %s' /n";
    let limited = with(
        shell("main", script),
        "resources",
        json!({ "limits": { "cpu": "1", "memory": "64Mi" } }),
    );
    let manifest = volumes(
        pod(name).container(mounting(
            limited,
            json!([mount("small", "/m"), mount("large", "/n")]),
        )),
        json!([
            { "name": "small", "emptyDir": { "medium": "Memory", "sizeLimit": "1Mi" } },
            { "name": "large", "emptyDir": { "medium": "Memory", "sizeLimit": "10Gi" } },
        ]),
    );
    let lines = printed(bed, name, manifest).await?;
    ensure!(value(&lines, "type")? == "tmpfs", "{lines:?}");
    let bytes = |key: &str| -> Result<u64> {
        let (blocks, size) = value(&lines, key)?.split_once(' ').context("two numbers")?;
        Ok(blocks.parse::<u64>()? * size.parse::<u64>()?)
    };
    ensure!(bytes("size")? == 1 << 20, "{lines:?}");
    ensure!(
        bytes("other")? == 64 << 20,
        "what the pod may use is the limit: {lines:?}"
    );
    Ok(())
}

async fn paths_of_the_node_by_type(bed: &Bed<'_>) -> Result<()> {
    let name = "host-path";
    let dir = node_dir(bed, name)?;
    fs::write(dir.join("file"), "of the node\n")?;
    let _socket = std::os::unix::net::UnixListener::bind(dir.join("socket")).context("listen")?;
    let path = |file: &str, kind: &str| json!({ "path": dir.join(file), "type": kind });
    let kinds = [
        ("any", path("", "")),
        ("dir", path("", "Directory")),
        ("newdir", path("new/dir", "DirectoryOrCreate")),
        ("file", path("file", "File")),
        ("newfile", path("newfile", "FileOrCreate")),
        ("socket", path("socket", "Socket")),
        ("char", json!({ "path": "/dev/null", "type": "CharDevice" })),
    ];
    let list: Vec<Value> = kinds
        .iter()
        .map(|(name, path)| json!({ "name": name, "hostPath": path }))
        .collect();
    let mounts: Vec<Value> = kinds
        .iter()
        .map(|(name, _)| mount(name, &format!("/h/{name}")))
        .collect();
    let script = "cat /h/file; echo any=$(cat /h/any/file); echo dir=$(ls /h/dir | tr '\\n' ' '); \
        test -S /h/socket && test -c /h/char && echo kinds=right; echo x > /h/newdir/made; echo y > /h/newfile";
    let manifest = volumes(
        pod(name).container(mounting(shell("main", script), json!(mounts))),
        json!(list),
    );
    let lines = printed(bed, name, manifest).await?;
    ensure!(lines[0] == "of the node", "{lines:?}");
    ensure!(value(&lines, "any")? == "of the node", "{lines:?}");
    ensure!(value(&lines, "kinds")? == "right", "{lines:?}");
    ensure!(value(&lines, "dir")? == "file new newfile socket", "{lines:?}");
    ensure!(fs::read_to_string(dir.join("new/dir/made"))? == "x\n");
    ensure!(fs::read_to_string(dir.join("newfile"))? == "y\n");
    let mode = |path: &Path| -> Result<u32> { Ok(fs::metadata(path)?.permissions().mode() & 0o777) };
    ensure!(
        mode(&dir.join("new/dir"))? == 0o755,
        "of a directory that was made"
    );
    ensure!(mode(&dir.join("newfile"))? == 0o644, "of a file that was made");
    Ok(())
}

/// The pod waits, says why, and starts when the path is there.
async fn paths_of_the_wrong_type_are_told(bed: &Bed<'_>) -> Result<()> {
    let name = "wrong-path";
    let path = node_dir(bed, name)?.join("later");
    let manifest = volumes(
        pod(name).container(mounting(pause("main"), json!([mount("host", "/h")]))),
        json!([{ "name": "host", "hostPath": { "path": path, "type": "Directory" } }]),
    );
    bed.node.write(name, &manifest.json())?;
    let path_text = path.display();
    let words = format!(
        "hostPath type check failed, {path_text} is not a directory, unable to determine its type: path \"{path_text}\" does \
         not exist"
    );
    until("the failure is told", async || {
        // Quotes are escaped in the log, once or more often.
        let log = bed.node.log()?.replace('\\', "");
        ensure!(
            log.contains("MountVolume.SetUp failed for volume \"host\""),
            "it is not told"
        );
        ensure!(log.contains(&words), "no {words:?}");
        Ok(())
    })
    .await?;
    // The event may be told before the status that goes with it.
    until("the container waits", async || {
        let (reason, _) = bed.node.pod(name)?.waiting("main")?;
        ensure!(reason == "ContainerCreating", "{reason}");
        Ok(())
    })
    .await?;
    let pod = bed.node.pod(name)?;
    let sandboxes = bed.view.sandboxes().await?;
    ensure!(
        sandboxes.iter().all(|sandbox| sandbox.uid != pod.uid()),
        "a sandbox before the volumes"
    );
    fs::create_dir(&path)?;
    bed.node.wait_until_ready(name).await?;
    bed.node.remove(name)
}

fn downward_items() -> Value {
    json!([
        { "path": "name", "fieldRef": { "fieldPath": "metadata.name" } },
        { "path": "deep/labels", "fieldRef": { "fieldPath": "metadata.labels" } },
        { "path": "note", "fieldRef": { "fieldPath": "metadata.annotations['note']" }, "mode": 0o400 },
        { "path": "memory", "resourceFieldRef": { "containerName": "main", "resource": "limits.memory", "divisor": "1Mi" } },
    ])
}

async fn files_of_the_downward_api(bed: &Bed<'_>) -> Result<()> {
    let name = "downward-files";
    let mut lists = vec![(
        "plain",
        json!({ "downwardAPI": { "items": downward_items(), "defaultMode": 0o640 } }),
    )];
    // Upstream projects nothing without an API server.
    if bed.node.kubelet().is_rubelet() {
        let source = json!({ "downwardAPI": { "items": downward_items() } });
        lists.push((
            "projected",
            json!({ "projected": { "sources": [source], "defaultMode": 0o640 } }),
        ));
    }
    for (kind, mut volume) in lists {
        volume["name"] = json!("info");
        let script = "for f in name deep/labels note memory; do echo $f=$(cat /info/$f | tr '\\n' ' '); done; \
            for f in name note; do echo mode-$f=$(stat -L -c %a /info/$f); done; echo link=$(readlink /info/name); \
            touch /info/x 2>/dev/null && echo writable=yes || echo writable=no; stat -f -c type=%T /info";
        let limited = with(
            shell("main", script),
            "resources",
            json!({ "limits": { "memory": "64Mi" } }),
        );
        let manifest = volumes(
            pod(name).container(mounting(limited, json!([mount("info", "/info")]))),
            json!([volume]),
        )
        .metadata("labels", json!({ "app": "x", "tier": "y" }))
        .metadata("annotations", json!({ "note": "a \"word\"" }));
        let lines = printed(bed, name, manifest)
            .await
            .with_context(|| kind.to_owned())?;
        for (key, expected) in [
            ("name", bed.node.pod_name(name).as_str()),
            ("deep/labels", "app=\"x\" tier=\"y\""),
            ("note", "a \"word\""),
            ("memory", "64"),
            ("mode-name", "640"),
            ("mode-note", "400"),
            ("link", "..data/name"),
            ("writable", "no"),
            ("type", "tmpfs"),
        ] {
            ensure!(value(&lines, key)? == expected, "{kind}: {key} in {lines:?}");
        }
    }
    Ok(())
}

/// The files change with the pod's annotations, while its container goes on.
async fn files_follow_the_pod(bed: &Bed<'_>) -> Result<()> {
    let name = "downward-update";
    let script = "last=; while :; do now=$(cat /info/note); \
        if test \"$now\" != \"$last\"; then echo \"note $now\"; last=$now; fi; sleep 0.05; done";
    let items = json!([{ "path": "note", "fieldRef": { "fieldPath": "metadata.annotations['note']" } }]);
    let manifest = |note: &str| {
        volumes(
            pod(name).container(mounting(shell("main", script), json!([mount("info", "/info")]))),
            json!([{ "name": "info", "downwardAPI": { "items": items } }]),
        )
        .metadata("uid", json!(format!("follow-{}", bed.scope.id())))
        .metadata("annotations", json!({ "note": note }))
        .json()
    };
    bed.node.write(name, &manifest("one"))?;
    let pod = bed.node.wait_until_ready(name).await?;
    wait_for_line(bed, &pod, "main", 0, "note one").await?;
    bed.node.write(name, &manifest("two"))?;
    wait_for_line(bed, &pod, "main", 0, "note two").await?;
    let lines = log_lines(bed, &pod, "main", 0)?;
    ensure!(lines == ["note one", "note two"], "nothing in between: {lines:?}");
    bed.node.remove(name)
}

async fn sub_paths_and_their_expressions(bed: &Bed<'_>) -> Result<()> {
    let name = "sub-path";
    let dir = node_dir(bed, name)?;
    fs::create_dir_all(dir.join("inner/one"))?;
    fs::write(dir.join("inner/one/file"), "inside\n")?;
    std::os::unix::fs::symlink("inner", dir.join("link"))?;
    let script = "cat /one/file; cat /file; echo $POD > /logs/who; cat /whole/$POD/who; ls /linked";
    let container = with(
        shell("main", script),
        "env",
        json!([{ "name": "POD", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } }]),
    );
    let manifest = volumes(
        pod(name).container(mounting(
            container,
            json!([
                { "name": "host", "mountPath": "/one", "subPath": "inner/one" },
                { "name": "host", "mountPath": "/file", "subPath": "inner/one/file" },
                { "name": "logs", "mountPath": "/logs", "subPathExpr": "$(POD)" },
                { "name": "logs", "mountPath": "/whole" },
                { "name": "host", "mountPath": "/linked", "subPath": "link" },
            ]),
        )),
        json!([{ "name": "host", "hostPath": { "path": dir } }, { "name": "logs", "emptyDir": {} }]),
    );
    let lines = printed(bed, name, manifest).await?;
    ensure!(
        lines == ["inside", "inside", bed.node.pod_name(name).as_str(), "one"],
        "{lines:?}"
    );
    // A link out of the volume is refused, and says nothing about the node.
    let escape = "sub-path-escape";
    std::os::unix::fs::symlink("/etc", dir.join("out"))?;
    let manifest = volumes(
        pod(escape).container(mounting(
            pause("main"),
            json!([{ "name": "host", "mountPath": "/m", "subPath": "out" }]),
        )),
        json!([{ "name": "host", "hostPath": { "path": dir } }]),
    );
    bed.node.write(escape, &manifest.json())?;
    let (reason, message) = bed
        .node
        .wait_for_pod(escape, "is refused", |pod| {
            let (reason, message) = pod.waiting("main")?;
            ensure!(reason == "CreateContainerConfigError", "{reason}: {message}");
            Ok((reason, message))
        })
        .await?;
    ensure!(
        message == "failed to prepare subPath for volumeMount \"host\" of container \"main\"",
        "{reason}: {message}"
    );
    bed.node.remove(escape)
}

async fn read_only_mounts(bed: &Bed<'_>) -> Result<()> {
    let name = "read-only";
    let script = "touch /ro/x 2>/dev/null && echo ro=written || echo ro=kept; touch /rw/x && echo rw=written";
    let manifest = volumes(
        pod(name).container(mounting(
            shell("main", script),
            json!([
                { "name": "dir", "mountPath": "/ro", "readOnly": true, "recursiveReadOnly": "IfPossible" },
                { "name": "dir", "mountPath": "/rw" },
            ]),
        )),
        json!([{ "name": "dir", "emptyDir": {} }]),
    );
    bed.node.write(
        name,
        &manifest.clone().spec("restartPolicy", json!("Never")).json(),
    )?;
    let pod = bed
        .node
        .wait_for_pod(name, "has ended", |pod| {
            pod.terminated("main")?;
            Ok(pod.clone())
        })
        .await?;
    let lines = last_log_lines(bed, &pod, "main").await?;
    ensure!(lines == ["ro=kept", "rw=written"], "{lines:?}");
    let mounts = pod.container("main")?.volume_mounts.clone().unwrap_or_default();
    let modes: Vec<_> = mounts
        .iter()
        .map(|one| (one.mount_path.as_str(), one.read_only))
        .collect();
    ensure!(modes == [("/ro", Some(true)), ("/rw", None)], "{mounts:?}");
    bed.node.remove(name)
}

async fn groups_of_volumes(bed: &Bed<'_>) -> Result<()> {
    let name = "fs-group";
    let script = "for d in /disk /memory /info; do echo $d=$(stat -c '%g %a' $d); done; echo f=$(stat -L -c '%g %a' /info/name); \
        touch /disk/x && echo own=$(stat -c %g /disk/x); id -G | grep -qw 2345 && echo group=yes";
    let manifest = volumes(
        pod(name).container(mounting(
            shell("main", script),
            json!([mount("disk", "/disk"), mount("memory", "/memory"), mount("info", "/info")]),
        )),
        json!([
            { "name": "disk", "emptyDir": {} },
            { "name": "memory", "emptyDir": { "medium": "Memory" } },
            { "name": "info", "downwardAPI": {
                "items": [{ "path": "name", "fieldRef": { "fieldPath": "metadata.name" } }], "defaultMode": 0o400 } },
        ]),
    )
    .spec("securityContext", json!({ "fsGroup": 2345, "runAsUser": 1000 }));
    let lines = printed(bed, name, manifest).await?;
    for (key, expected) in [
        ("/disk", "2345 2777"),
        ("/memory", "2345 3777"),
        ("/info", "2345 3777"),
        ("f", "2345 440"),
        ("own", "2345"),
        ("group", "yes"),
    ] {
        ensure!(value(&lines, key)? == expected, "{key} in {lines:?}");
    }
    Ok(())
}

async fn images_as_volumes(bed: &Bed<'_>) -> Result<()> {
    // Older runtimes do not know them, and a mount without a path is an error of theirs.
    if bed.containerd.flavour() == Flavour::Debian {
        return Ok(());
    }
    let name = "image-volume";
    let script = "test -x /image/bin/server && echo whole=yes; ls /part/passwd; touch /image/x 2>/dev/null || echo kept=yes";
    let manifest = volumes(
        pod(name).container(mounting(
            shell("main", script),
            json!([mount("tools", "/image"), { "name": "tools", "mountPath": "/part", "subPath": "etc" }]),
        )),
        json!([{ "name": "tools", "image": { "reference": rubelet_testbed::images::SERVER, "pullPolicy": "Never" } }]),
    );
    let lines = printed(bed, name, manifest).await?;
    ensure!(lines == ["whole=yes", "/part/passwd", "kept=yes"], "{lines:?}");
    Ok(())
}

/// Mounts at or below a path.
fn mounts_below(path: &Path) -> Result<Vec<String>> {
    let table = fs::read_to_string("/proc/self/mountinfo").context("read the mount table")?;
    let points = table.lines().filter_map(|line| line.split(' ').nth(4));
    Ok(points
        .filter(|point| Path::new(point).starts_with(path))
        .map(str::to_owned)
        .collect())
}

async fn volumes_leave_nothing(bed: &Bed<'_>) -> Result<()> {
    let name = "volumes-leave";
    let dir = node_dir(bed, name)?;
    fs::write(dir.join("kept"), "kept")?;
    let script = format!("mkdir -p /disk/a/b && touch /disk/a/b/c; {UNTIL_TERM}");
    let manifest = volumes(
        pod(name).container(mounting(
            shell("main", &script),
            json!([
                mount("disk", "/disk"), mount("memory", "/memory"), mount("info", "/info"),
                { "name": "host", "mountPath": "/host", "subPath": "sub" },
            ]),
        )),
        json!([
            { "name": "disk", "emptyDir": {} },
            { "name": "memory", "emptyDir": { "medium": "Memory" } },
            { "name": "info", "downwardAPI": { "items": [{ "path": "name", "fieldRef": { "fieldPath": "metadata.name" } }] } },
            { "name": "host", "hostPath": { "path": dir } },
        ]),
    );
    bed.node.write(name, &manifest.json())?;
    let pod = bed.node.wait_until_ready(name).await?;
    let pod_dir = bed.node.root_dir().join("pods").join(pod.uid());
    let mounts = mounts_below(&pod_dir)?;
    ensure!(mounts.len() == 3, "two in memory and one bind: {mounts:?}");
    let device = fs::metadata(pod_dir.join("volume-subpaths/host/main/3"))?.ino();
    ensure!(
        device == fs::metadata(dir.join("sub"))?.ino(),
        "the bind is another directory"
    );
    bed.node.remove(name)?;
    wait_until_stopped(bed, pod.uid()).await?;
    until("nothing is mounted", async || {
        let mounts = mounts_below(&pod_dir)?;
        ensure!(mounts.is_empty(), "{mounts:?}");
        Ok(())
    })
    .await?;
    wait_until_removed(&pod_dir).await?;
    ensure!(
        fs::read_to_string(dir.join("kept"))? == "kept",
        "the node's own files stay"
    );
    Ok(())
}
