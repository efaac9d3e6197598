//! Resources that change while a pod runs, as the kernel has them.
//!
//! A manifest that sets its pod's UID keeps it when its resources change, so that the same pod is resized.

use std::fs;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use rubelet_testbed::cgroup_tree::CgroupTree;
use rubelet_testbed::containerd::Flavour;
use rubelet_testbed::in_scope;
use rubelet_testbed::node::manifest::{UNTIL_TERM, pod, shell, with};
use rubelet_testbed::node::{Bed, DEADLINE, Kubelet, Options, PodFacts};
use rubelet_testbed::wait::wait_until;
use serde_json::{Value, json};

const NAME: &str = "resized";
const MI: u64 = 1 << 20;

/// Two containers; the second is restarted for other memory. `script` is what the first one does.
fn manifest(script: &str, first: (&str, &str), second: &str) -> Value {
    let resources = |cpu: &str, memory: &str| {
        let all = json!({ "cpu": cpu, "memory": memory });
        json!({ "requests": all, "limits": all })
    };
    let policy = json!([{ "resourceName": "memory", "restartPolicy": "RestartContainer" }]);
    let second = with(
        shell("second", UNTIL_TERM),
        "resources",
        resources("100m", second),
    );
    pod(NAME)
        .metadata("uid", json!("uid-resized"))
        .container(with(
            shell("first", script),
            "resources",
            resources(first.0, first.1),
        ))
        .container(with(second, "resizePolicy", policy))
        .json()
}

/// Shares, quota in microseconds and memory limit in bytes.
type Values = (u64, u64, u64);

fn values(tree: &CgroupTree, path: &str) -> Result<Values> {
    let number =
        |hierarchy: &str, file: &str| -> Result<u64> { Ok(tree.read(hierarchy, path, file)?.parse()?) };
    Ok((
        number("cpu", "cpu.shares")?,
        number("cpu", "cpu.cfs_quota_us")?,
        number("memory", "memory.limit_in_bytes")?,
    ))
}

/// Waits until the kernel has these values for the pod and its first container.
async fn has(bed: &Bed<'_>, whole: Values, first: Values) -> Result<Pod> {
    let tree = CgroupTree::at(bed.scope.cgroup_root());
    let path = "/kubepods/poduid-resized";
    wait_until("the kernel has the new values", DEADLINE, async || {
        let now = bed.node.pod(NAME)?;
        let container = format!("{path}/{}", now.running_id("first")?);
        let found = (values(&tree, path)?, values(&tree, &container)?);
        ensure!(
            found == (whole, first),
            "the pod and its first container have {found:?}"
        );
        Ok(())
    })
    .await?;
    bed.node
        .wait_for_pod(NAME, "the resize is over", |pod| {
            for type_ in ["PodResizePending", "PodResizeInProgress"] {
                let (status, reason, message) = pod.condition(type_);
                ensure!(status.is_empty(), "{type_}: {status} {reason} {message}");
            }
            pod.check_ready()?;
            Ok(pod.clone())
        })
        .await
}

fn shown(pod: &Pod, name: &str) -> Result<Value> {
    Ok(json!(pod.container(name)?.resources))
}

async fn resized(bed: &mut Bed<'_>) -> Result<()> {
    let first = |cpu: &str, memory: &str| manifest(UNTIL_TERM, (cpu, memory), "32Mi");
    bed.node.write(NAME, &first("200m", "64Mi"))?;
    let began = bed.node.wait_until_ready(NAME).await?;
    has(bed, (307, 30_000, 96 * MI), (204, 20_000, 64 * MI)).await?;
    let ids =
        |pod: &Pod| -> Result<(String, String)> { Ok((pod.running_id("first")?, pod.running_id("second")?)) };
    let before = ids(&began)?;

    bed.node.write(NAME, &first("500m", "128Mi"))?;
    let grown = has(bed, (614, 60_000, 160 * MI), (512, 50_000, 128 * MI)).await?;
    ensure!(ids(&grown)? == before, "nothing was restarted");
    let all = json!({ "cpu": "500m", "memory": "128Mi" });
    ensure!(
        shown(&grown, "first")? == json!({ "requests": all, "limits": all }),
        "{:?}",
        grown.container("first")?
    );

    // Over a kill at any time it goes on, and nothing is done twice.
    bed.node.write(NAME, &first("100m", "32Mi"))?;
    bed.node.kill_nine()?;
    bed.node.start_again()?;
    let shrunk = has(bed, (204, 20_000, 64 * MI), (102, 10_000, 32 * MI)).await?;
    ensure!(ids(&shrunk)? == before, "nothing was restarted");

    // The other container's policy asks for a restart.
    bed.node
        .write(NAME, &manifest(UNTIL_TERM, ("100m", "32Mi"), "48Mi"))?;
    let restarted = has(bed, (204, 20_000, 80 * MI), (102, 10_000, 32 * MI)).await?;
    let after = ids(&restarted)?;
    ensure!(after.0 == before.0, "the first one goes on");
    ensure!(after.1 != before.1, "the second one was restarted");
    ensure!(restarted.container("second")?.restart_count == 1, "{restarted:?}");

    for name in ["allocated_pods_state", "actuated_pods_state"] {
        let file = bed.node.root_dir().join(name);
        wait_until("the record is written", DEADLINE, async || {
            let text = fs::read_to_string(&file)?;
            ensure!(text.contains("48Mi"), "{name}: {text}");
            Ok(())
        })
        .await?;
    }
    Ok(())
}

/// Memory that is in use cannot be taken away, and is not tried.
async fn refused(bed: &Bed<'_>) -> Result<()> {
    let script = format!("dd if=/dev/zero of=/dev/shm/held bs=1M count=24; {UNTIL_TERM}");
    let name = "held";
    let held = |memory: &str| {
        let all = json!({ "memory": memory });
        let resources = json!({ "requests": all, "limits": all });
        pod(name)
            .metadata("uid", json!("uid-held"))
            .container(with(shell("main", &script), "resources", resources))
            .json()
    };
    bed.node.write(name, &held("64Mi"))?;
    bed.node.wait_until_ready(name).await?;
    let tree = CgroupTree::at(bed.scope.cgroup_root());
    let path = "/kubepods/burstable/poduid-held";
    wait_until("the memory is in use", DEADLINE, async || {
        let used: u64 = tree.read("memory", path, "memory.usage_in_bytes")?.parse()?;
        ensure!(used >= 24 * MI, "{used} bytes");
        Ok(())
    })
    .await?;
    bed.node.write(name, &held("16Mi"))?;
    bed.node
        .wait_for_pod(name, "the decrease is refused", |pod| {
            let (status, reason, message) = pod.condition("PodResizeInProgress");
            ensure!((status, reason) == ("True", "Error"), "{status} {reason}");
            ensure!(
                message.starts_with("cannot decrease memory limits: "),
                "{message}"
            );
            Ok(())
        })
        .await?;
    let limit = tree.read("memory", path, "memory.limit_in_bytes")?;
    ensure!(limit == (64 * MI).to_string(), "{limit}");
    Ok(())
}

#[test]
fn a_running_pod_gets_other_limits() {
    in_scope("resizes", async |scope| {
        let kubelet = Kubelet::chosen_or(env!("CARGO_BIN_EXE_rubelet"));
        let mut bed = Bed::start(scope, Flavour::Debian, Options::new(kubelet)).await?;
        resized(&mut bed).await?;
        refused(&bed).await
    });
}
