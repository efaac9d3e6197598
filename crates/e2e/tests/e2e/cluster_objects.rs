//! What reaches pods from other objects of the API server: ConfigMaps, Secrets, Services and tokens, as variables and as files.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::authentication::v1::TokenReview;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use rubelet_testbed::cluster::{Cluster, DEADLINE, NAMESPACE};
use rubelet_testbed::node::PodFacts;
use rubelet_testbed::node::manifest::{UNTIL_TERM, pause, pod, shell, with};
use rubelet_testbed::wait::wait_until;
use serde_json::json;

use crate::cluster_pods::{Scenario, scenarios};

pub(crate) const ALL: &[Scenario] = scenarios![
    variables_come_from_objects,
    failures_tell_no_secret,
    files_follow_their_objects,
    a_missing_object_is_told_and_waited_for,
    a_token_is_in_every_pod,
    services_are_in_the_environment,
];

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
    let ended = cluster
        .run_pod_once(pod(name).container(main), "Succeeded")
        .await?;
    let text = cluster
        .eventually("the log has every variable", async || {
            let text = cluster.kubectl(&["logs", name]).await?;
            for line in [
                "P_COLOUR=blue",
                "P_SIZE=7",
                "PASSWORD=open sesame",
                "BOTH=blue-open sesame",
            ] {
                ensure!(text.lines().any(|found| found == line), "no {line} in {text}");
            }
            Ok(text)
        })
        .await?;
    ensure!(!text.contains("MISSING"), "{text}");
    nobody_tells(cluster, name, "open sesame").await?;
    cluster.remove_pod(&ended, None).await
}

/// Neither the kubelet's log nor the pod's status and events have the secret.
async fn nobody_tells(cluster: &Cluster<'_>, name: &str, secret: &str) -> Result<()> {
    ensure!(
        !cluster.bed.node.log()?.contains(secret),
        "the kubelet's log has the secret"
    );
    let status = serde_json::to_string(&cluster.pod(name).await?.status)?;
    ensure!(!status.contains(secret), "the status has the secret: {status}");
    let events = cluster
        .eventually("something is told of the pod", async || {
            let events = cluster.events(name).await?;
            ensure!(!events.is_empty(), "nothing was told of {name}");
            Ok(events)
        })
        .await?;
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
        cluster.remove_pod(&made, Some(0)).await?;
    }
    Ok(())
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
    let manifest = pod(name)
        .container(with(shell("main", UNTIL_TERM), "volumeMounts", mounts))
        .spec("volumes", volumes);
    let ready = cluster.start_pod(manifest).await?;
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
    cluster.remove_pod(&ready, Some(0)).await
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
    cluster.remove_pod(&made, Some(0)).await
}

async fn a_token_is_in_every_pod(cluster: &Cluster<'_>) -> Result<()> {
    let name = "tokened";
    let manifest = pod(name).container(shell("main", UNTIL_TERM));
    let ready = cluster.start_pod(manifest).await?;
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
    cluster.remove_pod(&ready, Some(0)).await
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
            let manifest = pod(name).container(shell("main", "env | sort; exit 0"));
            let ended = cluster.run_pod_once(manifest, "Succeeded").await?;
            let text = cluster.kubectl(&["logs", name]).await?;
            cluster.remove_pod(&ended, None).await?;
            ensure!(text.contains("KUBERNETES_SERVICE_HOST="), "{text}");
            ensure!(text.contains("TILL_1_SERVICE_PORT_PAY=80"), "{text}");
            ensure!(text.contains("TILL_1_PORT_80_TCP_PROTO=tcp"), "{text}");
            Ok(())
        })
        .await
}
