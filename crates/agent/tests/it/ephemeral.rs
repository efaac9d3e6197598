//! Ephemeral containers: they come into a running pod, run once, and change nothing else of it.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerStatus, EphemeralContainer};
use serde_json::json;

use crate::bed::{Bed, IMAGE, SOON};
use crate::cluster::{ApiPod, holds};

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Somebody puts a container into the pod, as `kubectl debug` does.
fn debug(bed: &Bed, name: &str, args: &[&str]) {
    let container = json!({
        "name": name, "image": IMAGE, "args": args, "imagePullPolicy": "IfNotPresent", "targetContainerName": "main",
    });
    let container: EphemeralContainer = serde_json::from_value(container).expect("a container");
    bed.api().change("uid-web", |pod| {
        let spec = pod.spec.get_or_insert_default();
        spec.ephemeral_containers.get_or_insert_default().push(container);
        *pod.metadata.generation.get_or_insert_default() += 1;
    });
}

fn ephemeral(bed: &Bed, name: &str) -> Option<ContainerStatus> {
    let statuses = bed.api_status("uid-web").ephemeral_container_statuses;
    statuses.into_iter().flatten().find(|status| status.name == name)
}

fn exit_code(bed: &Bed, name: &str) -> Option<i32> {
    Some(ephemeral(bed, name)?.state?.terminated?.exit_code)
}

#[test]
fn an_ephemeral_container_runs_once_beside_the_others() {
    let mut bed = Bed::in_cluster();
    bed.create_and_wait(&ApiPod::new("web", &[]));
    let main = bed.api_container("uid-web").container_id;
    debug(&bed, "brief", &["runs=500:3"]);
    bed.wait("it ended", SOON, |bed| exit_code(bed, "brief") == Some(3));
    debug(&bed, "stays", &[]);
    bed.wait("the next one runs", SOON, |bed| {
        ephemeral(bed, "stays").is_some_and(|one| one.state.is_some_and(|state| state.running.is_some()))
    });
    bed.pass(seconds(60));
    // Neither does it run again, nor does it touch the pod.
    assert_eq!(bed.line.sent_about("StartContainer", "web/brief").len(), 1);
    assert_eq!(exit_code(&bed, "brief"), Some(3));
    assert_eq!(bed.api_container("uid-web").container_id, main);
    assert!(holds(&bed.api_status("uid-web"), "Ready"), "{}", bed.trace());
    // A new life of the agent leaves it as it is.
    bed.kill();
    bed.start();
    bed.pass(seconds(30));
    assert_eq!(bed.line.sent_about("StartContainer", "web/brief").len(), 1);
    assert!(bed.line.sent_about("StopContainer", "web/stays").is_empty());
    bed.api().delete("uid-web", None);
    bed.wait_gone("uid-web", SOON);
    assert_eq!(bed.line.sent_about("StopContainer", "web/stays").len(), 1);
}

#[test]
fn an_ephemeral_container_does_not_keep_its_pod_alive() {
    let mut bed = Bed::in_cluster();
    let once = ApiPod::new("web", &["runs=5000:0"]).spec("restartPolicy", json!("Never"));
    bed.create_and_wait(&once);
    debug(&bed, "stays", &[]);
    bed.wait("the pod has succeeded", seconds(20), |bed| {
        bed.api_phase("uid-web") == "Succeeded"
    });
    assert_eq!(bed.line.sent_about("StopContainer", "web/stays").len(), 1);
}
