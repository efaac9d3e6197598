//! What containerd 2 knows and containerd 1 does not. The node of these scenarios has the gate `ContainerStopSignals` on
//! and `seccompDefault`.

use std::fs;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::confinement::status_line;
use super::scenarios;
use super::{printed, value, wait_until_stopped};
use rubelet_testbed::node::manifest::{pod, shell, with};
use rubelet_testbed::node::{Bed, DEADLINE, PodFacts, Scenario};
use rubelet_testbed::wait::wait_until;

pub(super) const ALL: &[Scenario] = scenarios![
    groups_of_the_image_are_left_out,
    container_is_stopped_by_the_signal_it_asks_for,
    system_calls_are_filtered_by_default,
    proc_is_whole_for_users_of_its_own,
];

async fn groups_of_the_image_are_left_out(bed: &Bed<'_>) -> Result<()> {
    let name = "strict-groups";
    let context =
        json!({ "runAsUser": 1000, "supplementalGroups": [5001], "supplementalGroupsPolicy": "Strict" });
    let manifest = pod(name)
        .container(shell("main", "echo groups=$(id -G)"))
        .spec("securityContext", context);
    let lines = printed(bed, name, manifest).await?;
    let mut groups: Vec<&str> = value(&lines, "groups")?.split(' ').collect();
    groups.sort_unstable();
    ensure!(groups == ["1000", "5001"], "{groups:?}");
    Ok(())
}

async fn container_is_stopped_by_the_signal_it_asks_for(bed: &Bed<'_>) -> Result<()> {
    let name = "stop-signal";
    let heard = bed.scope.path("stop-signal");
    fs::create_dir_all(&heard)?;
    let script = "trap 'echo usr1 >/out/heard; exit 0' USR1; trap 'echo term >/out/heard; exit 0' TERM; \
                  touch /out/listens; while :; do sleep 0.1; done";
    let mut container = with(
        shell("main", script),
        "lifecycle",
        json!({ "stopSignal": "SIGUSR1" }),
    );
    container["volumeMounts"] = json!([{ "name": "out", "mountPath": "/out" }]);
    let manifest = pod(name)
        .container(container)
        .spec("os", json!({ "name": "linux" }))
        .spec(
            "volumes",
            json!([{ "name": "out", "hostPath": { "path": &heard } }]),
        );
    bed.node.write(name, &manifest.json())?;
    let found = bed.node.wait_until_ready(name).await?;
    let status = found.container("main")?;
    ensure!(status.stop_signal.as_deref() == Some("SIGUSR1"), "{status:?}");
    wait_until("the container listens", DEADLINE, async || {
        fs::metadata(heard.join("listens")).context("not yet")
    })
    .await?;
    bed.node.remove(name)?;
    wait_until_stopped(bed, found.uid()).await?;
    let heard = fs::read_to_string(heard.join("heard"))?;
    ensure!(heard == "usr1\n", "{heard}");
    Ok(())
}

/// Two is a filter, zero is none.
async fn system_calls_are_filtered_by_default(bed: &Bed<'_>) -> Result<()> {
    let unconfined = json!({ "seccompProfile": { "type": "Unconfined" } });
    for (name, context, expected) in [
        ("seccomp-by-default", json!({}), "2"),
        ("seccomp-unconfined", unconfined, "0"),
        ("seccomp-privileged", json!({ "privileged": true }), "0"),
    ] {
        let found = status_line(bed, name, "Seccomp", context).await?;
        ensure!(found == expected, "{name}: {found}");
    }
    Ok(())
}

/// Nothing is mounted over parts of it.
async fn proc_is_whole_for_users_of_its_own(bed: &Bed<'_>) -> Result<()> {
    for (name, kind, is_whole) in [
        ("proc-unmasked", "Unmasked", true),
        ("proc-default", "Default", false),
    ] {
        let script = "echo covers=$(grep -c ' /proc/' /proc/self/mountinfo)";
        let container = with(
            shell("main", script),
            "securityContext",
            json!({ "procMount": kind }),
        );
        let manifest = pod(name).container(container).spec("hostUsers", json!(false));
        let lines = printed(bed, name, manifest).await?;
        ensure!((value(&lines, "covers")? == "0") == is_whole, "{kind}: {lines:?}");
    }
    Ok(())
}
