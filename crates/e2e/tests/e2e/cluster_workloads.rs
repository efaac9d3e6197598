//! What controllers make: Deployments, DaemonSets and Jobs roll out over the node, as with upstream's kubelet. Beside them a pod
//! lives through new service account tokens.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::authentication::v1::{TokenReview, UserInfo};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use rubelet_testbed::cluster::{Cluster, NAMESPACE};
use rubelet_testbed::control_plane::{NODE_LIFECYCLE, Options};
use rubelet_testbed::in_scope;
use rubelet_testbed::node::manifest::{UNTIL_TERM, pause, pod, shell, with};
use rubelet_testbed::node::{Kubelet, PodFacts};
use serde_json::{Value, json};

/// The shortest life that an API server gives a token is ten minutes, of which a kubelet waits for eight. The test bed tells the
/// kubelet of this one instead; renewals are then due after four fifths of it, less at most ten seconds.
const TOKEN_LIFE: Duration = Duration::from_secs(15);

#[test]
fn controllers_roll_out_their_pods() {
    in_scope("cluster_workloads", async |scope| {
        let mut options = Options::default().with_scheduler();
        options.token_life = Some(TOKEN_LIFE);
        for controller in [
            "deployment-controller",
            "replicaset-controller",
            "daemonset-controller",
            "job-controller",
            "garbage-collector-controller",
            // Takes the taint away that keeps pods off a node until it is ready.
            NODE_LIFECYCLE,
        ] {
            options = options.with_controller(controller);
        }
        let cluster = Cluster::start(scope, options, Kubelet::chosen()?, |options| options).await?;
        let (deployment, daemon_set, job, token) = tokio::join!(
            a_deployment_rolls_over(&cluster),
            a_daemon_set_rolls_over(&cluster),
            a_job_tries_again(&cluster),
            a_pod_sees_its_token_renewed(&cluster)
        );
        deployment.context("deployment")?;
        daemon_set.context("daemon set")?;
        job.context("job")?;
        token.context("token")
    });
}

async fn labelled(cluster: &Cluster<'_>, app: &str) -> Result<Vec<Pod>> {
    let selected = ListParams::default().labels(&format!("app={app}"));
    Ok(cluster.pods().list(&selected).await?.items)
}

fn template(app: &str, container: &Value) -> Value {
    json!({
        "metadata": { "labels": { "app": app } },
        "spec": { "containers": [container], "terminationGracePeriodSeconds": 2 },
    })
}

async fn a_deployment_rolls_over(cluster: &Cluster<'_>) -> Result<()> {
    let app = "shop";
    let main = |word: &str| shell("main", &format!("echo {word}; {UNTIL_TERM}"));
    cluster
        .create::<Deployment>(json!({
            "metadata": { "name": app },
            "spec": {
                "replicas": 3,
                "selector": { "matchLabels": { "app": app } },
                "template": template(app, &main("one")),
            },
        }))
        .await?;
    let deployments: Api<Deployment> = Api::namespaced(cluster.client(), NAMESPACE);
    let rolled_out = async |generation: i64| {
        cluster
            .eventually("the deployment is rolled out", async || {
                let status = deployments.get(app).await?.status.unwrap_or_default();
                ensure!(status.observed_generation >= Some(generation), "{status:?}");
                ensure!(status.updated_replicas == Some(3), "{status:?}");
                ensure!(status.available_replicas == Some(3), "{status:?}");
                ensure!(status.replicas == Some(3), "{status:?}");
                Ok(())
            })
            .await
    };
    rolled_out(1).await?;
    let old: Vec<String> = labelled(cluster, app)
        .await?
        .iter()
        .map(|pod| pod.uid().to_owned())
        .collect();
    let patch = json!({ "spec": { "template": { "spec": { "containers": [main("two")] } } } });
    deployments
        .patch(app, &PatchParams::default(), &Patch::Strategic(patch))
        .await?;
    rolled_out(2).await?;
    cluster
        .eventually("the old pods are gone", async || {
            let pods = labelled(cluster, app).await?;
            ensure!(pods.len() == 3, "{} pods", pods.len());
            ensure!(
                pods.iter().all(|pod| !old.contains(&pod.uid().to_owned())),
                "old ones"
            );
            Ok(())
        })
        .await?;
    deployments.delete(app, &DeleteParams::foreground()).await?;
    cluster
        .eventually("all pods are gone", async || {
            let pods = labelled(cluster, app).await?;
            ensure!(pods.is_empty(), "{} pods", pods.len());
            Ok(())
        })
        .await
}

async fn a_daemon_set_rolls_over(cluster: &Cluster<'_>) -> Result<()> {
    let app = "daemon";
    cluster
        .create::<DaemonSet>(json!({
            "metadata": { "name": app },
            "spec": {
                "selector": { "matchLabels": { "app": app } },
                "template": template(app, &pause("main")),
            },
        }))
        .await?;
    let sets: Api<DaemonSet> = Api::namespaced(cluster.client(), NAMESPACE);
    let rolled_out = async |generation: i64| {
        cluster
            .eventually("the daemon set is rolled out", async || {
                let status = sets.get(app).await?.status.unwrap_or_default();
                ensure!(status.observed_generation >= Some(generation), "{status:?}");
                ensure!(status.updated_number_scheduled == Some(1), "{status:?}");
                ensure!(status.number_available == Some(1), "{status:?}");
                Ok(())
            })
            .await
    };
    rolled_out(1).await?;
    let patch = json!({ "spec": { "template": { "metadata": { "annotations": { "step": "two" } } } } });
    sets.patch(app, &PatchParams::default(), &Patch::Strategic(patch))
        .await?;
    rolled_out(2).await?;
    let pods = labelled(cluster, app).await?;
    ensure!(
        pods.iter().any(|pod| pod
            .metadata
            .annotations
            .as_ref()
            .is_some_and(|all| all.contains_key("step"))),
        "no pod of the second step"
    );
    sets.delete(app, &DeleteParams::default()).await?;
    Ok(())
}

async fn a_job_tries_again(cluster: &Cluster<'_>) -> Result<()> {
    let app = "job";
    let dir = cluster.bed.scope.path("job");
    std::fs::create_dir_all(&dir)?;
    // Fails until the third try.
    let script = "echo x >> /h/tries; test $(wc -l < /h/tries) -ge 3";
    let container = with(
        shell("main", script),
        "volumeMounts",
        json!([{ "name": "h", "mountPath": "/h" }]),
    );
    let mut template = template(app, &container);
    template["spec"]["restartPolicy"] = json!("Never");
    template["spec"]["volumes"] = json!([{ "name": "h", "hostPath": { "path": dir, "type": "Directory" } }]);
    cluster
        .create::<Job>(json!({
            "metadata": { "name": app },
            "spec": { "backoffLimit": 4, "template": template },
        }))
        .await?;
    let jobs: Api<Job> = Api::namespaced(cluster.client(), NAMESPACE);
    cluster
        .eventually("the job has succeeded", async || {
            let status = jobs.get(app).await?.status.unwrap_or_default();
            ensure!(status.succeeded == Some(1), "{status:?}");
            ensure!(status.failed == Some(2), "{status:?}");
            Ok(())
        })
        .await?;
    jobs.delete(app, &DeleteParams::background()).await?;
    Ok(())
}

/// Two renewals, so that the second one comes from a token that was renewed itself.
async fn a_pod_sees_its_token_renewed(cluster: &Cluster<'_>) -> Result<()> {
    let name = "tokened";
    let volumes = json!([{ "name": "t", "projected": { "sources": [
        { "serviceAccountToken": { "path": "token", "expirationSeconds": 600 } },
    ] } }]);
    let mounts = json!([{ "name": "t", "mountPath": "/t" }]);
    let manifest = pod(name)
        .container(with(shell("main", UNTIL_TERM), "volumeMounts", mounts))
        .spec("volumes", volumes);
    cluster.create_pod(manifest.json()).await?;
    let ready = cluster.wait_until_ready(name).await?;
    let mut token = cluster.kubectl(&["exec", name, "--", "cat", "/t/token"]).await?;
    for _ in 0..2 {
        let next = cluster
            .eventually("the token is renewed", async || {
                let now = cluster.kubectl(&["exec", name, "--", "cat", "/t/token"]).await?;
                ensure!(now != token, "it is still the same");
                Ok(now)
            })
            .await?;
        let user = user_of(cluster, &next).await?;
        let bound = user.extra.unwrap_or_default();
        ensure!(
            bound.get("authentication.kubernetes.io/pod-uid") == Some(&vec![ready.uid().to_owned()]),
            "{bound:?}"
        );
        token = next;
    }
    let after = cluster.pod(name).await?;
    ensure!(
        after.container("main")?.container_id == ready.container("main")?.container_id,
        "the container was made anew"
    );
    ensure!(
        !cluster.bed.node.log()?.contains(&token),
        "the kubelet's log has the token"
    );
    Ok(())
}

/// Whom the API server takes the holder of a token for.
async fn user_of(cluster: &Cluster<'_>, token: &str) -> Result<UserInfo> {
    let review: TokenReview = serde_json::from_value(json!({ "spec": { "token": token } }))?;
    let reviews: Api<TokenReview> = Api::all(cluster.client());
    let review = reviews.create(&PostParams::default(), &review).await?;
    let status = review.status.unwrap_or_default();
    ensure!(status.authenticated == Some(true), "{:?}", status.error);
    status.user.context("nobody's token")
}
