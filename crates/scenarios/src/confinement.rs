//! What a container may do and whom it is: privileges, system calls, groups, kernel parameters, users of its own.

use std::fs;
use std::os::unix::fs::MetadataExt;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use rubelet_ports::RuntimeReader;
use serde_json::{Value, json};

use super::scenarios;
use super::{printed, value, wait_until_removed};
use rubelet_testbed::containerd::Flavour;
use rubelet_testbed::node::manifest::{Manifest, UNTIL_TERM, pod, shell, with};
use rubelet_testbed::node::{Bed, PodFacts, Scenario};

pub(super) const ALL: &[Scenario] = scenarios![
    no_new_privileges,
    system_calls_are_filtered,
    groups_of_the_pod,
    parts_of_proc_are_hidden,
    kernel_parameters_of_the_pod,
    full_name_as_hostname,
    full_name_that_is_too_long,
    users_of_its_own,
];

fn one(name: &str, script: &str, context: Value) -> Manifest {
    pod(name).container(with(shell("main", script), "securityContext", context))
}

/// A line of `/proc/self/status` of a container with this security context.
pub(super) async fn status_line(bed: &Bed<'_>, name: &str, key: &str, context: Value) -> Result<String> {
    let script = format!("echo found=$(grep ^{key}: /proc/self/status | cut -f 2)");
    let lines = printed(bed, name, one(name, &script, context)).await?;
    Ok(value(&lines, "found")?.to_owned())
}

async fn no_new_privileges(bed: &Bed<'_>) -> Result<()> {
    for (name, context, expected) in [
        (
            "privileges-kept",
            json!({ "allowPrivilegeEscalation": false }),
            "1",
        ),
        (
            "privileges-free",
            json!({ "allowPrivilegeEscalation": true }),
            "0",
        ),
        ("privileges-plain", json!({}), "0"),
    ] {
        let found = status_line(bed, name, "NoNewPrivs", context).await?;
        ensure!(found == expected, "{name}: {found}");
    }
    Ok(())
}

async fn system_calls_are_filtered(bed: &Bed<'_>) -> Result<()> {
    // Two is a filter, zero is none.
    for (name, profile, expected) in [
        ("seccomp-default", json!({ "type": "RuntimeDefault" }), "2"),
        ("seccomp-none", json!({ "type": "Unconfined" }), "0"),
    ] {
        let found = status_line(bed, name, "Seccomp", json!({ "seccompProfile": profile })).await?;
        ensure!(found == expected, "{name}: {found}");
    }
    let profiles = bed.node.root_dir().join("seccomp/profiles");
    fs::create_dir_all(&profiles)?;
    let filter = json!({
        "defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [{ "names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO" }],
    });
    fs::write(profiles.join("no-mkdir.json"), serde_json::to_vec(&filter)?)?;
    let context =
        json!({ "seccompProfile": { "type": "Localhost", "localhostProfile": "profiles/no-mkdir.json" } });
    let name = "seccomp-own";
    let script =
        "mkdir /tmp/a 2>/dev/null && echo made=yes || echo made=no; touch /tmp/b && echo touched=yes";
    let lines = printed(bed, name, one(name, script, context)).await?;
    ensure!(
        value(&lines, "made")? == "no" && value(&lines, "touched")? == "yes",
        "{lines:?}"
    );
    Ok(())
}

async fn groups_of_the_pod(bed: &Bed<'_>) -> Result<()> {
    let context =
        json!({ "fsGroup": 5000, "supplementalGroups": [5001], "runAsUser": 1000, "runAsGroup": 3000 });
    let manifest = one("groups", "echo groups=$(id -G)", json!({})).spec("securityContext", context);
    let lines = printed(bed, "groups", manifest).await?;
    let mut groups: Vec<&str> = value(&lines, "groups")?.split(' ').collect();
    groups.sort_unstable();
    // The image says that the user is in group 1100.
    ensure!(groups == ["1100", "3000", "5000", "5001"], "{groups:?}");
    Ok(())
}

async fn parts_of_proc_are_hidden(bed: &Bed<'_>) -> Result<()> {
    let script = "echo keys=$(cat /proc/keys | wc -c); echo 1 2>/dev/null >/proc/sys/kernel/domainname \
                  && echo sys=writable || echo sys=read-only";
    let lines = printed(bed, "hidden-proc", one("hidden-proc", script, json!({}))).await?;
    ensure!(
        value(&lines, "keys")? == "0" && value(&lines, "sys")? == "read-only",
        "{lines:?}"
    );
    Ok(())
}

async fn kernel_parameters_of_the_pod(bed: &Bed<'_>) -> Result<()> {
    let name = "sysctls";
    let sysctls = json!({ "sysctls": [
        { "name": "kernel.shm_rmid_forced", "value": "1" },
        { "name": "net/ipv4/ip_unprivileged_port_start", "value": "81" },
    ] });
    let script = "echo forced=$(cat /proc/sys/kernel/shm_rmid_forced); \
                  echo first=$(cat /proc/sys/net/ipv4/ip_unprivileged_port_start)";
    let manifest = one(name, script, json!({})).spec("securityContext", sysctls);
    let lines = printed(bed, name, manifest).await?;
    ensure!(
        value(&lines, "forced")? == "1" && value(&lines, "first")? == "81",
        "{lines:?}"
    );
    Ok(())
}

async fn full_name_as_hostname(bed: &Bed<'_>) -> Result<()> {
    let name = "full-name";
    let manifest = one(
        name,
        "echo name=$(hostname); grep full-name- /etc/hosts; true",
        json!({}),
    )
    .spec("hostname", json!("web"))
    .spec("subdomain", json!("sub"))
    .spec("setHostnameAsFQDN", json!(true));
    let lines = printed(bed, name, manifest).await?;
    ensure!(
        value(&lines, "name")? == "web.sub.default.svc.cluster.test",
        "{lines:?}"
    );
    Ok(())
}

async fn full_name_that_is_too_long(bed: &Bed<'_>) -> Result<()> {
    let name = "too-long-name";
    let manifest = one(name, UNTIL_TERM, json!({}))
        .spec("hostname", json!("web"))
        .spec("subdomain", json!("s".repeat(60)))
        .spec("setHostnameAsFQDN", json!(true));
    bed.node.write(name, &manifest.json())?;
    bed.node
        .wait_for_log(&[
            "too-long-name",
            "(64 characters is the max, 89 characters requested)",
        ])
        .await?;
    is_pending(bed, name).await
}

/// Nothing of the pod has come to be.
async fn is_pending(bed: &Bed<'_>, name: &str) -> Result<()> {
    bed.node
        .wait_for_pod(name, "is pending", |pod| pod.check_phase("Pending"))
        .await?;
    bed.node.remove(name)
}

/// On a runtime that has user namespaces, root inside is nobody outside; on others the pod says that it cannot be had.
async fn users_of_its_own(bed: &Bed<'_>) -> Result<()> {
    let name = "own-users";
    let main = with(
        shell("main", UNTIL_TERM),
        "volumeMounts",
        json!([
            { "name": "disk", "mountPath": "/disk" },
            { "name": "disk", "mountPath": "/part", "subPath": "part" },
            { "name": "memory", "mountPath": "/memory" },
            { "name": "info", "mountPath": "/info" },
        ]),
    );
    let items = json!([{ "path": "name", "fieldRef": { "fieldPath": "metadata.name" } }]);
    let volumes = json!([
        { "name": "disk", "emptyDir": {} },
        { "name": "memory", "emptyDir": { "medium": "Memory" } },
        { "name": "info", "downwardAPI": { "items": items } },
    ]);
    let manifest = pod(name)
        .container(main)
        .spec("volumes", volumes)
        .spec("hostUsers", json!(false));
    bed.node.write(name, &manifest.json())?;
    let status = bed.view.client().status(false).await?;
    let default = status
        .runtime_handlers
        .iter()
        .find(|handler| handler.name.is_empty());
    let features = default.and_then(|handler| handler.features).unwrap_or_default();
    if !features.user_namespaces {
        ensure!(
            bed.containerd.flavour() == Flavour::Debian,
            "a newer runtime has them"
        );
        bed.node
            .wait_for_log(&[
                name,
                "can't set `spec.hostUsers: false`, runtime does not support user namespaces",
            ])
            .await?;
        return is_pending(bed, name).await;
    }
    let pod = bed.node.wait_until_ready(name).await?;
    let id = pod.running_id("main")?;
    let record = bed.node.root_dir().join("pods").join(pod.uid()).join("userns");
    let recorded: Value = serde_json::from_slice(&fs::read(&record).context("read the record")?)?;
    let first = recorded["uidMappings"][0]["hostId"].as_u64().context("no id")?;
    ensure!(first >= 65536 && first % 65536 == 0, "{recorded}");
    for map in ["/proc/self/uid_map", "/proc/self/gid_map"] {
        let inside = bed.view.exec(&id, &["cat", map]).await?;
        let words: Vec<&str> = inside.split_whitespace().collect();
        ensure!(
            words == ["0", first.to_string().as_str(), "65536"],
            "{map}: {inside}"
        );
    }
    let pid = bed.view.pid(&id).await?;
    let outside = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let uid = outside.lines().find_map(|line| line.strip_prefix("Uid:\t"));
    ensure!(
        uid.is_some_and(|uid| uid.starts_with(&format!("{first}\t"))),
        "outside it is {uid:?}"
    );
    // What the node puts into the container belongs to the container's root.
    let owner = bed.view.exec(&id, &["stat", "-c", "%u", "/etc/hosts"]).await?;
    ensure!(owner.trim() == "0", "/etc/hosts belongs to {owner}");
    owners_of_volumes(bed, &pod, &id).await?;
    bed.node.remove(name)?;
    // The ids are free again.
    wait_until_removed(&record).await
}

/// The node keeps volumes as they are for every pod; the container's root sees them as its own.
async fn owners_of_volumes(bed: &Bed<'_>, pod: &Pod, id: &str) -> Result<()> {
    let files = ["/disk/made", "/part/made", "/memory/made"];
    bed.view.exec(id, &[&["touch"][..], &files].concat()).await?;
    for path in [&files[..], &["/disk", "/part", "/memory", "/info", "/info/name"]].concat() {
        let owner = bed.view.exec(id, &["stat", "-L", "-c", "%u %g", path]).await?;
        ensure!(owner == "0 0", "{path} belongs to {owner} inside");
    }
    let volumes = bed.node.root_dir().join("pods").join(pod.uid()).join("volumes");
    for path in [
        "kubernetes.io~empty-dir/disk/made",
        "kubernetes.io~empty-dir/disk/part/made",
        "kubernetes.io~empty-dir/memory/made",
        "kubernetes.io~downward-api/info/name",
    ] {
        let found = fs::metadata(volumes.join(path)).with_context(|| path.to_owned())?;
        let owner = (found.uid(), found.gid());
        ensure!(owner == (0, 0), "{path} belongs to {owner:?} outside");
    }
    Ok(())
}
