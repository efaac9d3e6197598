//! Users, rights and namespaces.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::scenarios;
use super::{printed, value};
use rubelet_testbed::node::manifest::{Manifest, UNTIL_TERM, pod, shell, with};
use rubelet_testbed::node::{Bed, PodFacts, Scenario};

pub(super) const ALL: &[Scenario] = scenarios![
    user_and_groups,
    root_is_refused_where_it_must_not_be,
    read_only_root,
    capabilities_are_dropped_and_added,
    privileged_has_all_capabilities,
    shared_process_namespace,
    host_process_and_ipc_namespaces,
];

fn one(name: &str, script: &str, context: Value) -> Manifest {
    pod(name).container(with(shell("main", script), "securityContext", context))
}

async fn user_and_groups(bed: &Bed<'_>) -> Result<()> {
    let context = json!({ "runAsUser": 1000, "runAsGroup": 3000 });
    let manifest = one(
        "user",
        "echo user=$(id -u); echo group=$(id -g); echo groups=$(id -G)",
        context,
    )
    .spec("securityContext", json!({ "supplementalGroups": [4000] }));
    let lines = printed(bed, "user", manifest).await?;
    ensure!(
        value(&lines, "user")? == "1000" && value(&lines, "group")? == "3000",
        "{lines:?}"
    );
    ensure!(
        value(&lines, "groups")?.split(' ').any(|group| group == "4000"),
        "{lines:?}"
    );
    Ok(())
}

async fn root_is_refused_where_it_must_not_be(bed: &Bed<'_>) -> Result<()> {
    let name = "non-root";
    bed.node
        .write(name, &one(name, "true", json!({ "runAsNonRoot": true })).json())?;
    bed.node
        .wait_for_pod(name, "is refused", |pod| {
            let (reason, message) = pod.waiting("main")?;
            ensure!(reason == "CreateContainerConfigError", "{reason}: {message}");
            let words = "container has runAsNonRoot and image will run as root (pod: \"";
            ensure!(message.contains(words), "{message}");
            Ok(())
        })
        .await?;
    bed.node.remove(name)
}

async fn read_only_root(bed: &Bed<'_>) -> Result<()> {
    let script = "touch /file 2>/dev/null && echo root=writable || echo root=read-only";
    let lines = printed(
        bed,
        "read-only",
        one("read-only", script, json!({ "readOnlyRootFilesystem": true })),
    )
    .await?;
    ensure!(value(&lines, "root")? == "read-only", "{lines:?}");
    Ok(())
}

async fn effective_capabilities(bed: &Bed<'_>, name: &str, context: Value) -> Result<u64> {
    let script = "echo capabilities=$(grep CapEff /proc/self/status | cut -f 2)";
    let lines = printed(bed, name, one(name, script, context)).await?;
    Ok(u64::from_str_radix(value(&lines, "capabilities")?, 16)?)
}

async fn capabilities_are_dropped_and_added(bed: &Bed<'_>) -> Result<()> {
    let context = json!({ "capabilities": { "drop": ["ALL"], "add": ["NET_BIND_SERVICE", "CHOWN"] } });
    let found = effective_capabilities(bed, "capabilities", context).await?;
    // The kernel's numbers: CHOWN is 0, NET_BIND_SERVICE is 10.
    ensure!(found == 1 | 1 << 10, "{found:x}");
    Ok(())
}

async fn privileged_has_all_capabilities(bed: &Bed<'_>) -> Result<()> {
    let plain = effective_capabilities(bed, "plain-rights", json!({})).await?;
    let privileged = effective_capabilities(bed, "privileged", json!({ "privileged": true })).await?;
    // SYS_ADMIN is 21.
    ensure!(
        plain & (1 << 21) == 0 && privileged & (1 << 21) != 0,
        "{plain:x} {privileged:x}"
    );
    Ok(())
}

async fn shared_process_namespace(bed: &Bed<'_>) -> Result<()> {
    let name = "shared-processes";
    let manifest = pod(name)
        .container(shell("one", UNTIL_TERM))
        .container(shell("two", UNTIL_TERM))
        .spec("shareProcessNamespace", json!(true));
    bed.node.write(name, &manifest.json())?;
    let pod = bed.node.wait_until_ready(name).await?;
    let link = ["readlink", "/proc/self/ns/pid"];
    let one = bed.view.exec(&pod.running_id("one")?, &link).await?;
    let two = bed.view.exec(&pod.running_id("two")?, &link).await?;
    ensure!(one == two, "{one} and {two}");
    let first = bed
        .view
        .exec(&pod.running_id("one")?, &["cat", "/proc/1/comm"])
        .await?;
    ensure!(first == "pause", "process 1 is {first:?}");
    let here = std::fs::read_link("/proc/self/ns/pid")?;
    ensure!(here.to_str() != Some(&one), "that is the host's");
    bed.node.remove(name)
}

async fn host_process_and_ipc_namespaces(bed: &Bed<'_>) -> Result<()> {
    let name = "host-namespaces";
    let manifest = pod(name)
        .container(shell("main", UNTIL_TERM))
        .spec("hostPID", json!(true))
        .spec("hostIPC", json!(true));
    bed.node.write(name, &manifest.json())?;
    let pod = bed.node.wait_until_ready(name).await?;
    for namespace in ["pid", "ipc"] {
        let path = format!("/proc/self/ns/{namespace}");
        let inside = bed
            .view
            .exec(&pod.running_id("main")?, &["readlink", &path])
            .await?;
        let here = std::fs::read_link(&path).context("read the own namespace")?;
        ensure!(
            here.to_str() == Some(&inside),
            "{namespace}: {inside} instead of {here:?}"
        );
    }
    bed.node.remove(name)
}
