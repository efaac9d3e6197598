//! What a container sees of its configuration.

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::scenarios;
use super::{printed, value};
use rubelet_testbed::containerd::Flavour;
use rubelet_testbed::node::manifest::{pause, pod, shell, with};
use rubelet_testbed::node::{Bed, PodFacts, Scenario};

pub(super) const ALL: &[Scenario] = scenarios![
    environment_and_downward_values,
    variables_from_files,
    command_arguments_and_working_directory,
    terminal_and_standard_input,
    resources_reach_the_runtime,
    labels_and_annotations_are_those_of_upstream,
];

async fn environment_and_downward_values(bed: &Bed<'_>) -> Result<()> {
    let name = "environment";
    let field =
        |name: &str, path: &str| json!({ "name": name, "valueFrom": { "fieldRef": { "fieldPath": path } } });
    let resource = |name: &str, what: &str| json!({ "name": name, "valueFrom": { "resourceFieldRef": { "resource": what } } });
    let env = json!([
        { "name": "BASE", "value": "base" },
        { "name": "DERIVED", "value": "$(BASE)/x $$(BASE) $(NOTHING)" },
        { "name": "PATH", "value": "/bin:/extra" },
        field("POD_NAME", "metadata.name"),
        field("POD_NAMESPACE", "metadata.namespace"),
        field("POD_UID", "metadata.uid"),
        field("POD_IP", "status.podIP"),
        field("HOST_IP", "status.hostIP"),
        field("NODE_NAME", "spec.nodeName"),
        field("LABEL", "metadata.labels['colour']"),
        resource("CPU", "limits.cpu"),
        resource("MEMORY", "limits.memory"),
    ]);
    let container = with(shell("main", "env"), "env", env);
    let container = with(
        container,
        "resources",
        json!({ "limits": { "cpu": "1500m", "memory": "64Mi" } }),
    );
    let manifest = pod(name)
        .container(container)
        .metadata("labels", json!({ "colour": "blue" }))
        .metadata("uid", json!(format!("env-{}", bed.scope.id())));
    let lines = printed(bed, name, manifest).await?;
    for (variable, expected) in [
        ("BASE", "base"),
        ("DERIVED", "base/x $(BASE) $(NOTHING)"),
        ("PATH", "/bin:/extra"),
        ("POD_NAME", &bed.node.pod_name(name)),
        ("POD_NAMESPACE", "default"),
        ("POD_UID", &format!("env-{}", bed.scope.id())),
        ("NODE_NAME", bed.node.name()),
        ("LABEL", "blue"),
        // Rounded up, in whole cores.
        ("CPU", "2"),
        ("MEMORY", "67108864"),
    ] {
        let found = value(&lines, variable)?;
        ensure!(
            found == expected,
            "{variable} is {found:?} instead of {expected:?}"
        );
    }
    let host: std::net::IpAddr = value(&lines, "HOST_IP")?.parse()?;
    ensure!(!host.is_loopback(), "the host's address is {host}");
    let address = value(&lines, "POD_IP")?;
    let network = bed.containerd.network().gateway();
    ensure!(
        address.starts_with(network.trim_end_matches('1')),
        "the address is {address:?}"
    );
    Ok(())
}

/// An init container writes them into a volume, which may lead nowhere outside.
async fn variables_from_files(bed: &Bed<'_>) -> Result<()> {
    let from = |path: &str, key: &str, optional: bool| json!({ "fileKeyRef": { "volumeName": "v", "path": path, "key": key, "optional": optional } });
    let volume = json!([{ "name": "v", "emptyDir": {} }]);
    let mount = json!([{ "name": "v", "mountPath": "/v" }]);
    let writes = |script: &str| with(shell("first", script), "volumeMounts", mount.clone());
    let name = "env-file";
    let env = json!([
        { "name": "ONE", "valueFrom": from("env", "ONE", false) },
        { "name": "TWO", "valueFrom": from("env", "TWO", false) },
        { "name": "NONE", "valueFrom": from("env", "NONE", true) },
    ]);
    let script = "printf \"# comment\\nONE='1 x'\\nTWO='a\\nb'\\n\" >/v/env";
    let manifest = pod(name)
        .init(writes(script))
        .container(with(shell("main", "env; echo none=${NONE-unset}"), "env", env))
        .spec("volumes", volume.clone());
    let lines = printed(bed, name, manifest).await?;
    ensure!(value(&lines, "ONE")? == "1 x", "{lines:?}");
    let two = lines.iter().position(|line| line == "TWO=a").context("no TWO")?;
    ensure!(lines.get(two + 1).map(String::as_str) == Some("b"), "{lines:?}");
    ensure!(value(&lines, "none")? == "unset", "{lines:?}");

    let name = "env-file-escape";
    let env = json!([{ "name": "ONE", "valueFrom": from("env", "ONE", true) }]);
    let manifest = pod(name)
        .init(writes("ln -s /etc/passwd /v/env"))
        .container(with(shell("main", "true"), "env", env))
        .spec("volumes", volume);
    bed.node.write(name, &manifest.json())?;
    bed.node
        .wait_for_pod(name, "is refused", |pod| {
            let (reason, message) = pod.waiting("main")?;
            ensure!(reason == "CreateContainerConfigError", "{reason}: {message}");
            ensure!(message.contains("couldn't parse env file"), "{message}");
            Ok(())
        })
        .await?;
    bed.node.remove(name)
}

async fn command_arguments_and_working_directory(bed: &Bed<'_>) -> Result<()> {
    let name = "command";
    let container = json!({
        "name": "main",
        "image": rubelet_testbed::images::BUSYBOX,
        "imagePullPolicy": "Never",
        "env": [{ "name": "WORD", "value": "expanded" }],
        "command": ["sh", "-c", "echo dir=$(pwd); echo first=$0; echo second=$1"],
        "args": ["$(WORD)", "$$(WORD)"],
        "workingDir": "/tmp",
    });
    // The shell's own $(pwd) is no variable of the container, so that it stays.
    let lines = printed(bed, name, pod(name).container(container)).await?;
    ensure!(
        lines == ["dir=/tmp", "first=expanded", "second=$(WORD)"],
        "{lines:?}"
    );
    Ok(())
}

async fn terminal_and_standard_input(bed: &Bed<'_>) -> Result<()> {
    let name = "terminal";
    let script = "test -t 1 && echo terminal=yes || echo terminal=no";
    let container = with(shell("main", script), "tty", json!(true));
    let lines = printed(
        bed,
        name,
        pod(name).container(with(container, "stdin", json!(true))),
    )
    .await?;
    // A terminal ends its lines with a carriage return.
    ensure!(value(&lines, "terminal")?.trim_end() == "yes", "{lines:?}");
    Ok(())
}

async fn resources_reach_the_runtime(bed: &Bed<'_>) -> Result<()> {
    let name = "resources";
    let resources = json!({ "requests": { "cpu": "250m", "memory": "32Mi" }, "limits": { "cpu": "500m", "memory": "64Mi" } });
    let manifest = pod(name).container(with(pause("main"), "resources", resources));
    bed.node.write(name, &manifest.json())?;
    let pod = bed.node.wait_until_ready(name).await?;
    let status = pod.status.as_ref().context("no status")?;
    ensure!(status.qos_class.as_deref() == Some("Burstable"), "{status:?}");
    // containerd 1.6 does not tell a container's resources.
    if bed.containerd.flavour() != Flavour::Debian {
        let told = bed.view.status(&pod.running_id("main")?).await?;
        let linux = told
            .resources
            .and_then(|resources| resources.linux)
            .context("no resources")?;
        let found = (
            linux.cpu_shares,
            linux.cpu_quota,
            linux.cpu_period,
            linux.memory_limit_in_bytes,
        );
        ensure!(found == (256, 50_000, 100_000, 64 << 20), "{linux:?}");
    }
    // What the kernel has, whichever runtime it was.
    let pid = bed.view.pid(&pod.running_id("main")?).await?;
    let score: i32 = std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj"))?
        .trim()
        .parse()?;
    ensure!(
        (2..=999).contains(&score),
        "the score of a burstable pod is {score}"
    );
    bed.node.remove(name)
}

/// What crictl, log agents and upstream's kubelet look for.
async fn labels_and_annotations_are_those_of_upstream(bed: &Bed<'_>) -> Result<()> {
    let name = "labels";
    let container = with(
        pause("main"),
        "ports",
        json!([{ "containerPort": 80, "name": "web" }]),
    );
    let manifest = pod(name)
        .container(container)
        .metadata("labels", json!({ "app": "x" }));
    bed.node.write(name, &manifest.json())?;
    let pod = bed.node.wait_until_ready(name).await?;
    let told = bed.view.status(&pod.running_id("main")?).await?;
    let labels = [
        ("io.kubernetes.container.name", "main"),
        ("io.kubernetes.pod.name", &bed.node.pod_name(name)),
        ("io.kubernetes.pod.namespace", "default"),
        ("io.kubernetes.pod.uid", pod.uid()),
    ];
    for (label, expected) in labels {
        ensure!(
            told.labels.get(label).map(String::as_str) == Some(expected),
            "{label} in {:?}",
            told.labels
        );
    }
    let annotations = [
        ("io.kubernetes.container.restartCount", "0"),
        (
            "io.kubernetes.container.terminationMessagePath",
            "/dev/termination-log",
        ),
        ("io.kubernetes.container.terminationMessagePolicy", "File"),
        ("io.kubernetes.pod.terminationGracePeriod", "2"),
    ];
    for (annotation, expected) in annotations {
        let found = told.annotations.get(annotation).map(String::as_str);
        ensure!(found == Some(expected), "{annotation} in {:?}", told.annotations);
    }
    ensure!(
        told.annotations.contains_key("io.kubernetes.container.hash"),
        "{:?}",
        told.annotations
    );
    bed.node.remove(name)
}
