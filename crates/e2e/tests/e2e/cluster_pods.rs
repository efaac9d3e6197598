//! Pods that the API server binds to the node: they come, change, end and go, and everybody can see it.
//!
//! One cluster serves all of them. `RUBELET_TEST_KUBELET=upstream` checks the tests themselves.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use futures_util::StreamExt;
use k8s_openapi::api::authentication::v1::TokenReview;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use rubelet_testkit::cluster::{Cluster, DEADLINE, NAMESPACE};
use rubelet_testkit::control_plane::Options;
use rubelet_testkit::images::SERVER;
use rubelet_testkit::in_scope;
use rubelet_testkit::node::manifest::{UNTIL_TERM, pause, pod, shell, with};
use rubelet_testkit::node::{Kubelet, PodFacts};
use rubelet_testkit::wait::wait_until;
use serde_json::json;

/// More than this many at a time make two cores slower, not faster.
const AT_A_TIME: usize = 5;
/// Names the scenarios to run, divided by commas; all of them without it.
const CHOICE: &str = "RUBELET_TEST_SCENARIOS";

type Run = for<'c> fn(&'c Cluster<'_>) -> Pin<Box<dyn Future<Output = Result<()>> + 'c>>;

macro_rules! scenarios {
    ($($name:ident),+ $(,)?) => {
        &[$((stringify!($name), |cluster| Box::pin($name(cluster)))),+]
    };
}

const SCENARIOS: &[(&str, Run)] = scenarios![
    the_node_is_registered,
    a_pod_runs_and_is_deleted,
    a_pod_is_deleted_by_force,
    a_pod_that_ends_keeps_its_phase,
    a_graceful_end_is_waited_for,
    labels_reach_a_running_pod,
    variables_come_from_objects,
    files_follow_their_objects,
    a_missing_object_is_told_and_waited_for,
    failures_tell_no_secret,
    an_ephemeral_container_joins_a_pod,
    a_new_image_restarts_its_container,
    a_resize_is_answered,
    a_token_is_in_every_pod,
    services_are_in_the_environment,
    commands_run_in_a_container,
    a_static_pod_has_a_mirror,
    two_pods_of_one_name_in_a_row,
];

#[test]
fn pods_of_the_api_server_behave() {
    in_scope("cluster_pods", async |scope| {
        let cluster =
            Cluster::start(scope, Options::default(), Kubelet::chosen()?, |options| options).await?;
        let chosen = std::env::var(CHOICE).unwrap_or_default();
        let chosen: Vec<&str> = chosen.split(',').filter(|name| !name.is_empty()).collect();
        let wanted = SCENARIOS
            .iter()
            .filter(|(name, _)| chosen.is_empty() || chosen.contains(name));
        let failures: Vec<String> = futures_util::stream::iter(wanted)
            .map(async |(name, run)| {
                let start = Instant::now();
                let outcome = run(&cluster).await;
                let word = if outcome.is_ok() { "passed" } else { "failed" };
                eprintln!("{name} {word}: {:.1} s", start.elapsed().as_secs_f64());
                outcome.err().map(|error| format!("{name}: {error:#}"))
            })
            .buffer_unordered(AT_A_TIME)
            .filter_map(async |failure| failure)
            .collect()
            .await;
        if !failures.is_empty() {
            bail!(
                "{} scenarios failed:\n\n{}\n\n{}",
                failures.len(),
                failures.join("\n\n"),
                cluster.bed.node.log_tail()
            );
        }
        Ok(())
    });
}

async fn the_node_is_registered(cluster: &Cluster<'_>) -> Result<()> {
    let node = cluster.node().await?;
    let labels = node.metadata.labels.clone().unwrap_or_default();
    ensure!(
        labels.get("kubernetes.io/hostname").map(String::as_str) == Some(cluster.node_name()),
        "{labels:?}"
    );
    for (label, value) in [("kubernetes.io/os", "linux"), ("kubernetes.io/arch", "amd64")] {
        ensure!(labels.get(label).map(String::as_str) == Some(value), "{labels:?}");
    }
    let status = node.status.context("a status")?;
    let conditions: Vec<(String, String)> = status
        .conditions
        .unwrap_or_default()
        .into_iter()
        .map(|condition| (condition.type_, condition.status))
        .collect();
    for (kind, value) in [
        ("MemoryPressure", "False"),
        ("DiskPressure", "False"),
        ("PIDPressure", "False"),
        ("Ready", "True"),
    ] {
        ensure!(
            conditions.contains(&(kind.to_owned(), value.to_owned())),
            "no {kind}={value} in {conditions:?}"
        );
    }
    let capacity = status.capacity.unwrap_or_default();
    for resource in ["cpu", "memory", "pods", "ephemeral-storage"] {
        ensure!(capacity.contains_key(resource), "no {resource} in {capacity:?}");
    }
    let info = status.node_info.context("nodeInfo")?;
    ensure!(
        info.container_runtime_version.starts_with("containerd://2"),
        "{info:?}"
    );
    ensure!(info.kubelet_version.starts_with("v1.37"), "{info:?}");
    let leases: Api<Lease> = Api::namespaced(cluster.client(), "kube-node-lease");
    cluster
        .eventually("the lease is there", async || {
            let lease = leases.get(cluster.node_name()).await?;
            let spec = lease.spec.context("a spec")?;
            ensure!(spec.lease_duration_seconds == Some(40), "{spec:?}");
            ensure!(
                spec.holder_identity.as_deref() == Some(cluster.node_name()),
                "{spec:?}"
            );
            let owners = lease.metadata.owner_references.unwrap_or_default();
            ensure!(owners.iter().any(|owner| owner.kind == "Node"), "{owners:?}");
            Ok(())
        })
        .await
}

async fn a_pod_runs_and_is_deleted(cluster: &Cluster<'_>) -> Result<()> {
    let name = "plain";
    let script = format!("echo hello from the pod; {UNTIL_TERM}");
    cluster
        .create_pod(pod(name).container(shell("main", &script)).json())
        .await?;
    let ready = cluster.wait_until_ready(name).await?;
    let status = ready.status.clone().context("a status")?;
    ensure!(status.host_ip.is_some(), "no hostIP");
    ensure!(status.pod_ip.is_some(), "no podIP");
    ensure!(
        status.qos_class.as_deref() == Some("BestEffort"),
        "{:?}",
        status.qos_class
    );
    ensure!(status.start_time.is_some(), "no startTime");
    let logs = cluster.kubectl(&["logs", name]).await?;
    ensure!(logs == "hello from the pod\n", "{logs:?}");
    cluster
        .eventually("the events are there", async || {
            let reasons = cluster.event_reasons(name).await?;
            for reason in ["Pulled", "Created", "Started"] {
                ensure!(
                    reasons.iter().any(|found| found == reason),
                    "no {reason} in {reasons:?}"
                );
            }
            Ok(())
        })
        .await?;
    let started = cluster.events(name).await?;
    let started = started
        .iter()
        .find(|event| event.reason.as_deref() == Some("Started"))
        .context("Started")?;
    ensure!(
        started.involved_object.field_path.as_deref() == Some("spec.containers{main}"),
        "{:?}",
        started.involved_object
    );
    ensure!(
        started
            .source
            .as_ref()
            .and_then(|source| source.component.as_deref())
            == Some("kubelet"),
        "{:?}",
        started.source
    );
    cluster.delete_pod(name, None).await?;
    cluster.wait_until_gone(name, ready.uid()).await
}

async fn a_pod_is_deleted_by_force(cluster: &Cluster<'_>) -> Result<()> {
    let name = "forced";
    cluster
        .create_pod(pod(name).container(pause("main")).json())
        .await?;
    let ready = cluster.wait_until_ready(name).await?;
    cluster.delete_pod(name, Some(0)).await?;
    cluster.wait_until_gone(name, ready.uid()).await
}

async fn a_pod_that_ends_keeps_its_phase(cluster: &Cluster<'_>) -> Result<()> {
    for (name, script, phase) in [
        ("succeeds", "exit 0", "Succeeded"),
        ("fails", "echo why > /dev/termination-log; exit 3", "Failed"),
    ] {
        cluster
            .create_pod(
                pod(name)
                    .container(shell("main", script))
                    .spec("restartPolicy", json!("Never"))
                    .json(),
            )
            .await?;
        let ended = cluster
            .wait_for_pod(name, "has ended", |pod| {
                ensure!(pod.phase() == phase, "{}", pod.phase());
                Ok(pod.clone())
            })
            .await?;
        let terminated = ended.terminated("main")?;
        if name == "fails" {
            ensure!(terminated.exit_code == 3, "{terminated:?}");
            ensure!(terminated.message.as_deref() == Some("why\n"), "{terminated:?}");
        }
        cluster.delete_pod(name, None).await?;
        cluster.wait_until_gone(name, ended.uid()).await?;
    }
    Ok(())
}

async fn a_graceful_end_is_waited_for(cluster: &Cluster<'_>) -> Result<()> {
    let name = "graceful";
    let script = "trap 'echo bye; exit 5' TERM; while :; do sleep 0.1; done";
    cluster
        .create_pod(
            pod(name)
                .container(shell("main", script))
                .spec("restartPolicy", json!("Never"))
                .metadata("finalizers", json!(["rubelet.test/hold"]))
                .json(),
        )
        .await?;
    let ready = cluster.wait_until_ready(name).await?;
    cluster.delete_pod(name, Some(30)).await?;
    // The finalizer keeps the object, so that its last status can be read.
    cluster
        .wait_for_pod(name, "has ended", |pod| {
            ensure!(pod.phase() == "Failed", "{}", pod.phase());
            ensure!(
                pod.terminated("main")?.exit_code == 5,
                "{:?}",
                pod.terminated("main")?
            );
            Ok(())
        })
        .await?;
    cluster
        .patch_pod(name, json!({ "metadata": { "finalizers": null } }))
        .await?;
    cluster.wait_until_gone(name, ready.uid()).await
}

async fn labels_reach_a_running_pod(cluster: &Cluster<'_>) -> Result<()> {
    let name = "labelled";
    let volume = json!([{ "name": "info", "downwardAPI": { "items": [
        { "path": "labels", "fieldRef": { "fieldPath": "metadata.labels" } } ] } }]);
    let mounts = json!([{ "name": "info", "mountPath": "/info" }]);
    cluster
        .create_pod(
            pod(name)
                .container(with(shell("main", UNTIL_TERM), "volumeMounts", mounts))
                .spec("volumes", volume)
                .metadata("labels", json!({ "step": "one" }))
                .json(),
        )
        .await?;
    let ready = cluster.wait_until_ready(name).await?;
    cluster
        .patch_pod(name, json!({ "metadata": { "labels": { "step": "two" } } }))
        .await?;
    cluster
        .eventually("the new label is in the file", async || {
            let text = cluster
                .kubectl(&["exec", name, "--", "cat", "/info/labels"])
                .await?;
            ensure!(text.contains("step=\"two\""), "{text}");
            Ok(())
        })
        .await?;
    cluster.delete_pod(name, Some(0)).await?;
    cluster.wait_until_gone(name, ready.uid()).await
}

async fn variables_come_from_objects(cluster: &Cluster<'_>) -> Result<()> {
    let name = "variables";
    cluster
        .create::<ConfigMap>(
            json!({ "metadata": { "name": "settings" }, "data": { "COLOUR": "blue", "SIZE": "7" } }),
        )
        .await?;
    cluster
        .create::<Secret>(
            json!({ "metadata": { "name": "keys" }, "stringData": { "password": "open sesame" } }),
        )
        .await?;
    let mut main = shell("main", "env | sort; exit 0");
    main["envFrom"] = json!([{ "prefix": "P_", "configMapRef": { "name": "settings" } },
        { "configMapRef": { "name": "nowhere", "optional": true } }]);
    main["env"] = json!([
        { "name": "PASSWORD", "valueFrom": { "secretKeyRef": { "name": "keys", "key": "password" } } },
        { "name": "BOTH", "value": "$(P_COLOUR)-$(PASSWORD)" },
        { "name": "MISSING", "valueFrom": { "configMapKeyRef": { "name": "settings", "key": "none", "optional": true } } },
    ]);
    cluster
        .create_pod(
            pod(name)
                .container(main)
                .spec("restartPolicy", json!("Never"))
                .json(),
        )
        .await?;
    let ended = cluster
        .wait_for_pod(name, "has ended", |pod| {
            ensure!(pod.phase() == "Succeeded", "{}", pod.phase());
            Ok(pod.clone())
        })
        .await?;
    let text = cluster.kubectl(&["logs", name]).await?;
    for line in [
        "P_COLOUR=blue",
        "P_SIZE=7",
        "PASSWORD=open sesame",
        "BOTH=blue-open sesame",
    ] {
        ensure!(text.lines().any(|found| found == line), "no {line} in {text}");
    }
    ensure!(!text.contains("MISSING"), "{text}");
    nobody_tells(cluster, name, "open sesame").await?;
    cluster.delete_pod(name, None).await?;
    cluster.wait_until_gone(name, ended.uid()).await
}

/// Neither the kubelet's log nor the pod's status and events have the secret.
async fn nobody_tells(cluster: &Cluster<'_>, name: &str, secret: &str) -> Result<()> {
    ensure!(
        !cluster.bed.node.log()?.contains(secret),
        "the kubelet's log has the secret"
    );
    let status = serde_json::to_string(&cluster.pod(name).await?.status)?;
    ensure!(!status.contains(secret), "the status has the secret: {status}");
    let events = cluster.events(name).await?;
    ensure!(!events.is_empty(), "nothing was told of {name}");
    let told = serde_json::to_string(&events)?;
    ensure!(!told.contains(secret), "an event has the secret: {told}");
    Ok(())
}

/// What goes wrong with a secret in the environment is told without it: a command that is not there, and a hook that fails.
async fn failures_tell_no_secret(cluster: &Cluster<'_>) -> Result<()> {
    let secret = "speak friend";
    cluster
        .create::<Secret>(json!({ "metadata": { "name": "gate" }, "stringData": { "word": secret } }))
        .await?;
    let word =
        json!([{ "name": "WORD", "valueFrom": { "secretKeyRef": { "name": "gate", "key": "word" } } }]);
    let mut missing = with(pause("main"), "env", word.clone());
    missing["command"] = json!(["/no/such/command"]);
    let mut hooked = with(shell("main", UNTIL_TERM), "env", word);
    hooked["lifecycle"] =
        json!({ "postStart": { "exec": { "command": ["sh", "-c", "test \"$WORD\" = other"] } } });
    for (name, container, reason) in [
        ("no-command", missing, "Failed"),
        ("bad-hook", hooked, "FailedPostStartHook"),
    ] {
        let made = cluster.create_pod(pod(name).container(container).json()).await?;
        cluster
            .eventually("the failure is told", async || {
                let reasons = cluster.event_reasons(name).await?;
                ensure!(reasons.iter().any(|found| found == reason), "{reasons:?}");
                Ok(())
            })
            .await?;
        cluster
            .wait_for_pod(name, "says what is wrong", |pod| {
                let main = pod.container("main")?;
                let is_told = main.state.as_ref().is_some_and(|state| state.running.is_none());
                ensure!(is_told, "it runs");
                Ok(())
            })
            .await?;
        nobody_tells(cluster, name, secret).await?;
        cluster.delete_pod(name, Some(0)).await?;
        cluster.wait_until_gone(name, made.uid()).await?;
    }
    Ok(())
}

async fn an_ephemeral_container_joins_a_pod(cluster: &Cluster<'_>) -> Result<()> {
    let name = "debugged";
    cluster
        .create_pod(pod(name).container(shell("main", UNTIL_TERM)).json())
        .await?;
    let ready = cluster.wait_until_ready(name).await?;
    let mut debugger = shell("debugger", "echo I see $(hostname); ps; exit 6");
    debugger["targetContainerName"] = json!("main");
    let patch = json!({ "spec": { "ephemeralContainers": [debugger] } });
    cluster
        .pods()
        .patch_ephemeral_containers(name, &PatchParams::default(), &Patch::Strategic(patch))
        .await?;
    let after = cluster
        .wait_for_pod(name, "its debugger has ended", |pod| {
            ensure!(pod.terminated("debugger")?.exit_code == 6, "another end");
            Ok(pod.clone())
        })
        .await?;
    let statuses = after.status.as_ref().context("a status")?;
    let ephemeral = statuses
        .ephemeral_container_statuses
        .as_deref()
        .unwrap_or_default();
    ensure!(
        ephemeral.len() == 1 && ephemeral[0].restart_count == 0,
        "{ephemeral:?}"
    );
    // It sees the processes of its target, and changes nothing of the pod.
    let logs = cluster.kubectl(&["logs", name, "--container=debugger"]).await?;
    ensure!(
        logs.contains(&format!("I see {name}")) && logs.contains("trap"),
        "{logs}"
    );
    after.check_ready()?;
    ensure!(
        after.running_id("main")? == ready.running_id("main")?,
        "the container was made anew"
    );
    cluster.delete_pod(name, Some(0)).await?;
    cluster.wait_until_gone(name, ready.uid()).await
}

async fn a_new_image_restarts_its_container(cluster: &Cluster<'_>) -> Result<()> {
    let name = "renewed";
    let manifest = pod(name)
        .container(shell("main", UNTIL_TERM))
        .container(pause("other"));
    cluster.create_pod(manifest.json()).await?;
    let before = cluster.wait_until_ready(name).await?;
    let patch = json!({ "spec": { "containers": [{ "name": "other", "image": SERVER }] } });
    cluster
        .pods()
        .patch(name, &PatchParams::default(), &Patch::Strategic(patch))
        .await?;
    // Without arguments the new image's program ends soon; that it was started is enough.
    let after = cluster
        .wait_for_pod(name, "has the new image", |pod| {
            let other = pod.container("other")?;
            ensure!(other.restart_count >= 1, "{} restarts", other.restart_count);
            ensure!(other.image == SERVER, "{}", other.image);
            Ok(pod.clone())
        })
        .await?;
    ensure!(
        after.running_id("main")? == before.running_id("main")?,
        "the other container was made anew"
    );
    let events = cluster.events(name).await?;
    let told = events.iter().any(|event| {
        let message = event.message.as_deref().unwrap_or_default();
        event.reason.as_deref() == Some("Killing") && message.contains("definition changed")
    });
    ensure!(told, "{:?}", cluster.event_reasons(name).await?);
    cluster.delete_pod(name, Some(0)).await?;
    cluster.wait_until_gone(name, before.uid()).await
}

/// More than the node has is never possible, and the pod goes on with what it was let in with.
async fn a_resize_is_answered(cluster: &Cluster<'_>) -> Result<()> {
    let name = "resized";
    let resources = json!({ "requests": { "cpu": "10m" } });
    cluster
        .create_pod(
            pod(name)
                .container(with(shell("main", UNTIL_TERM), "resources", resources))
                .json(),
        )
        .await?;
    let ready = cluster.wait_until_ready(name).await?;
    let patch = json!({ "spec": { "containers": [{ "name": "main", "resources": { "requests": { "cpu": "20m" } } }] } });
    cluster
        .pods()
        .patch_subresource("resize", name, &PatchParams::default(), &Patch::Strategic(patch))
        .await?;
    let after = cluster
        .wait_for_pod(name, "the refusal is told", |pod| {
            let (status, reason, message) = pod.condition("PodResizePending");
            ensure!((status, reason) == ("True", "Infeasible"), "{status} {reason}");
            ensure!(message.contains("not supported yet"), "{message}");
            Ok(pod.clone())
        })
        .await?;
    after.check_ready()?;
    ensure!(
        after.running_id("main")? == ready.running_id("main")?,
        "the container was made anew"
    );
    cluster.delete_pod(name, Some(0)).await?;
    cluster.wait_until_gone(name, ready.uid()).await
}

async fn files_follow_their_objects(cluster: &Cluster<'_>) -> Result<()> {
    let name = "files";
    cluster
        .create::<ConfigMap>(
            json!({ "metadata": { "name": "page" }, "data": { "index": "one", "other": "x" } }),
        )
        .await?;
    cluster
        .create::<Secret>(json!({ "metadata": { "name": "seal" }, "stringData": { "key": "first" } }))
        .await?;
    let volumes = json!([
        { "name": "page", "configMap": { "name": "page", "items": [{ "key": "index", "path": "a/index", "mode": 0o440 }] } },
        { "name": "seal", "secret": { "secretName": "seal" } },
        { "name": "all", "projected": { "sources": [
            { "configMap": { "name": "page" } }, { "secret": { "name": "seal" } },
            { "secret": { "name": "nowhere", "optional": true } },
            { "downwardAPI": { "items": [{ "path": "name", "fieldRef": { "fieldPath": "metadata.name" } }] } } ] } },
    ]);
    let mounts = json!([{ "name": "page", "mountPath": "/page" }, { "name": "seal", "mountPath": "/seal" },
        { "name": "all", "mountPath": "/all" }]);
    cluster
        .create_pod(
            pod(name)
                .container(with(shell("main", UNTIL_TERM), "volumeMounts", mounts))
                .spec("volumes", volumes)
                .json(),
        )
        .await?;
    let ready = cluster.wait_until_ready(name).await?;
    let shown = "cat /page/a/index; echo; stat -L -c %a /page/a/index; cat /seal/key; echo; ls /all; cat /all/name; echo; \
        stat -f -c %T /seal";
    let text = cluster.kubectl(&["exec", name, "--", "sh", "-c", shown]).await?;
    ensure!(
        text == "one\n440\nfirst\nindex\nkey\nname\nother\nfiles\ntmpfs\n",
        "{text}"
    );
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client(), NAMESPACE);
    let patch = Patch::Merge(json!({ "data": { "index": "two", "other": null, "new": "y" } }));
    maps.patch("page", &PatchParams::default(), &patch).await?;
    tell_the_delay(cluster, &ready, "configmap/page/a/index", "two").await?;
    let secrets: Api<Secret> = Api::namespaced(cluster.client(), NAMESPACE);
    let patch = Patch::Merge(json!({ "stringData": { "key": "second" } }));
    secrets.patch("seal", &PatchParams::default(), &patch).await?;
    tell_the_delay(cluster, &ready, "secret/seal/key", "second").await?;
    cluster
        .eventually("the files have changed", async || {
            let shown = "cat /page/a/index /seal/key; echo; ls /all";
            let text = cluster.kubectl(&["exec", name, "--", "sh", "-c", shown]).await?;
            ensure!(text == "twosecond\nindex\nkey\nname\nnew\n", "{text}");
            Ok(())
        })
        .await?;
    cluster.delete_pod(name, Some(0)).await?;
    cluster.wait_until_gone(name, ready.uid()).await
}

/// Prints how long a change takes from the API server's answer to the file on the node.
async fn tell_the_delay(cluster: &Cluster<'_>, pod: &Pod, path: &str, content: &str) -> Result<()> {
    let pods = cluster.bed.node.root_dir().join("pods");
    let file = pods
        .join(pod.uid())
        .join("volumes")
        .join(format!("kubernetes.io~{path}"));
    let start = Instant::now();
    has_content(&file, content)
        .await
        .with_context(|| file.display().to_string())?;
    eprintln!("{path} changed after {:.3} s", start.elapsed().as_secs_f64());
    Ok(())
}

/// Looks closely: the time until then is what is told.
async fn has_content(file: &Path, content: &str) -> Result<()> {
    wait_until("the file has changed", DEADLINE, async || {
        let found = std::fs::read_to_string(file)?;
        ensure!(found == content, "{found}");
        Ok(())
    })
    .await
}

async fn a_missing_object_is_told_and_waited_for(cluster: &Cluster<'_>) -> Result<()> {
    let name = "waits";
    let volumes = json!([{ "name": "late", "configMap": { "name": "late" } }]);
    let mounts = json!([{ "name": "late", "mountPath": "/late" }]);
    let made = cluster
        .create_pod(
            pod(name)
                .container(with(pause("main"), "volumeMounts", mounts))
                .spec("volumes", volumes)
                .json(),
        )
        .await?;
    cluster
        .eventually("the failure is told", async || {
            let events = cluster.events(name).await?;
            let told = events.iter().any(|event| {
                event.reason.as_deref() == Some("FailedMount")
                    && event
                        .message
                        .as_deref()
                        .unwrap_or_default()
                        .contains("configmap \"late\" not found")
            });
            ensure!(told, "{:?}", cluster.event_reasons(name).await?);
            Ok(())
        })
        .await?;
    cluster
        .create::<ConfigMap>(json!({ "metadata": { "name": "late" }, "data": { "a": "b" } }))
        .await?;
    cluster.wait_until_ready(name).await?;
    cluster.delete_pod(name, Some(0)).await?;
    cluster.wait_until_gone(name, made.uid()).await
}

async fn a_token_is_in_every_pod(cluster: &Cluster<'_>) -> Result<()> {
    let name = "tokened";
    cluster
        .create_pod(pod(name).container(shell("main", UNTIL_TERM)).json())
        .await?;
    let ready = cluster.wait_until_ready(name).await?;
    let dir = "/var/run/secrets/kubernetes.io/serviceaccount";
    let text = cluster
        .kubectl(&[
            "exec",
            name,
            "--",
            "sh",
            "-c",
            &format!("cd {dir}; ls; cat namespace; echo; cat token"),
        ])
        .await?;
    let mut lines = text.lines();
    let found: Vec<&str> = lines.by_ref().take(4).collect();
    ensure!(found == ["ca.crt", "namespace", "token", NAMESPACE], "{found:?}");
    let token = lines.next().context("a token")?;
    let review: TokenReview =
        serde_json::from_value(json!({ "spec": { "token": token } })).context("a token review")?;
    let reviews: Api<TokenReview> = Api::all(cluster.client());
    let review = reviews.create(&PostParams::default(), &review).await?;
    let user = review.status.and_then(|status| status.user).unwrap_or_default();
    ensure!(
        user.username.as_deref() == Some("system:serviceaccount:default:default"),
        "{:?}",
        user.username
    );
    let bound = user.extra.unwrap_or_default();
    ensure!(
        bound.get("authentication.kubernetes.io/pod-uid") == Some(&vec![ready.uid().to_owned()]),
        "{bound:?}"
    );
    nobody_tells(cluster, name, token).await?;
    cluster.delete_pod(name, Some(0)).await?;
    cluster.wait_until_gone(name, ready.uid()).await
}

async fn services_are_in_the_environment(cluster: &Cluster<'_>) -> Result<()> {
    let name = "linked";
    cluster
        .create::<Service>(
            json!({ "metadata": { "name": "till-1" }, "spec": { "ports": [{ "name": "pay", "port": 80 }] } }),
        )
        .await?;
    // The kubelet's own view of services may be a moment behind.
    cluster
        .eventually("a pod sees the service", async || {
            let made = cluster
                .create_pod(
                    pod(name)
                        .container(shell("main", "env | sort; exit 0"))
                        .spec("restartPolicy", json!("Never"))
                        .json(),
                )
                .await?;
            cluster
                .wait_for_pod(name, "has ended", |pod| {
                    ensure!(pod.phase() == "Succeeded", "{}", pod.phase());
                    Ok(())
                })
                .await?;
            let text = cluster.kubectl(&["logs", name]).await?;
            cluster.delete_pod(name, None).await?;
            cluster.wait_until_gone(name, made.uid()).await?;
            ensure!(text.contains("KUBERNETES_SERVICE_HOST="), "{text}");
            ensure!(text.contains("TILL_1_SERVICE_PORT_PAY=80"), "{text}");
            ensure!(text.contains("TILL_1_PORT_80_TCP_PROTO=tcp"), "{text}");
            Ok(())
        })
        .await
}

async fn commands_run_in_a_container(cluster: &Cluster<'_>) -> Result<()> {
    let name = "entered";
    cluster
        .create_pod(pod(name).container(shell("main", UNTIL_TERM)).json())
        .await?;
    let ready = cluster.wait_until_ready(name).await?;
    let said = cluster
        .kubectl(&["exec", name, "--", "sh", "-c", "echo out; echo err >&2"])
        .await?;
    ensure!(said == "out\n", "{said:?}");
    let failed = cluster
        .control_plane
        .kubectl(&["exec", name, "--", "sh", "-c", "exit 7"])
        .await?;
    ensure!(failed.status.code() == Some(7), "{failed:?}");
    cluster.delete_pod(name, Some(0)).await?;
    cluster.wait_until_gone(name, ready.uid()).await
}

/// Another mirror than this one shows the same container.
async fn the_mirror_is_back(cluster: &Cluster<'_>, name: &str, old: &Pod) -> Result<Pod> {
    let again = cluster
        .wait_for_pod(name, "is back", |pod| {
            ensure!(pod.uid() != old.uid(), "it is the old one");
            pod.check_ready()?;
            Ok(pod.clone())
        })
        .await?;
    ensure!(
        again.container("main")?.container_id == old.container("main")?.container_id,
        "the container was made anew"
    );
    Ok(again)
}

async fn a_static_pod_has_a_mirror(cluster: &Cluster<'_>) -> Result<()> {
    let name = "static";
    let manifest = pod(name)
        .metadata("labels", json!({"app": name}))
        .container(pause("main"))
        .json();
    cluster.bed.node.write(name, &manifest)?;
    let full = cluster.bed.node.pod_name(name);
    let mirror = cluster.wait_until_ready(&full).await?;
    let annotations = mirror.metadata.annotations.clone().unwrap_or_default();
    ensure!(
        annotations.contains_key("kubernetes.io/config.mirror"),
        "{annotations:?}"
    );
    let owners = mirror.metadata.owner_references.clone().unwrap_or_default();
    ensure!(owners.iter().any(|owner| owner.kind == "Node"), "{owners:?}");
    cluster.delete_pod(&full, Some(0)).await?;
    let mut last = the_mirror_is_back(cluster, &full, &mirror).await?;
    cluster.delete_pod(&full, None).await?;
    last = the_mirror_is_back(cluster, &full, &last).await?;
    // Whoever changes what the manifest says gets it back.
    let changes: [&[&str]; 2] = [
        &["label", "pod", full.as_str(), "app=other", "--overwrite"],
        &[
            "set",
            "image",
            "pod",
            full.as_str(),
            "main=registry.invalid/other:1",
        ],
    ];
    for change in changes {
        cluster.kubectl(change).await?;
        last = the_mirror_is_back(cluster, &full, &last).await?;
        ensure!(
            last.metadata.labels == mirror.metadata.labels,
            "{:?}",
            last.metadata.labels
        );
        let images = |pod: &Pod| {
            let spec = pod.spec.clone().unwrap_or_default();
            let images = spec.containers.into_iter().map(|container| container.image);
            images.collect::<Vec<_>>()
        };
        ensure!(images(&last) == images(&mirror), "{:?}", images(&last));
    }
    // Removed and written again at once: the pod ends, and another one of the same identity begins.
    cluster.bed.node.remove(name)?;
    cluster.bed.node.write(name, &manifest)?;
    let anew = cluster
        .wait_for_pod(&full, "has begun anew", |pod| {
            let main = pod.container("main")?;
            ensure!(main.restart_count == 1, "{} restarts", main.restart_count);
            pod.check_ready()?;
            Ok(pod.clone())
        })
        .await?;
    cluster.bed.node.remove(name)?;
    cluster.wait_until_gone(&full, anew.uid()).await
}

async fn two_pods_of_one_name_in_a_row(cluster: &Cluster<'_>) -> Result<()> {
    let name = "again";
    let mut uids = Vec::new();
    for _ in 0..2 {
        cluster
            .create_pod(pod(name).container(pause("main")).json())
            .await?;
        let ready: Pod = cluster.wait_until_ready(name).await?;
        cluster.delete_pod(name, Some(0)).await?;
        uids.push(ready.uid().to_owned());
    }
    ensure!(uids[0] != uids[1]);
    for uid in &uids {
        cluster.wait_until_gone(name, uid).await?;
    }
    Ok(())
}
