//! What controllers make: Deployments, DaemonSets and Jobs roll out over the node, as with upstream's kubelet.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use rubelet_testkit::cluster::{Cluster, NAMESPACE};
use rubelet_testkit::control_plane::{NODE_LIFECYCLE, Options};
use rubelet_testkit::in_scope;
use rubelet_testkit::node::manifest::{UNTIL_TERM, pause, shell, with};
use rubelet_testkit::node::{Kubelet, PodFacts};
use serde_json::{Value, json};

#[test]
fn controllers_roll_out_their_pods() {
    in_scope("cluster_workloads", async |scope| {
        let mut options = Options::default().with_scheduler();
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
        let (deployment, daemon_set, job) = tokio::join!(
            a_deployment_rolls_over(&cluster),
            a_daemon_set_rolls_over(&cluster),
            a_job_tries_again(&cluster)
        );
        deployment.context("deployment")?;
        daemon_set.context("daemon set")?;
        job.context("job")
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
