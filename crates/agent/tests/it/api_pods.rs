//! Pods from the API server: how they come, what is said of them, and how they go.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use rubelet_ports::PodView as _;
use rubelet_sim::node;
use serde_json::json;

use crate::bed::{Bed, PodText, SOON, known_node};
use crate::cluster::{ApiPod, condition, holds};

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The times at which calls about this left the agent.
fn times(bed: &Bed, method: &str, about: &str) -> Vec<Duration> {
    let sent = bed.line.sent_about(method, about);
    sent.iter().map(|sent| sent.at).collect()
}

#[test]
fn a_pod_comes_and_goes() {
    let mut bed = Bed::in_cluster();
    bed.create_and_wait(&ApiPod::new("web", &[]));
    let status = bed.api_status("uid-web");
    assert_eq!(status.phase.as_deref(), Some("Running"));
    assert_eq!(status.host_ip.as_deref(), Some("192.0.2.1"));
    assert_eq!(status.observed_generation, Some(1));
    assert_eq!(status.qos_class.as_deref(), Some("BestEffort"));
    let shown = bed.pods();
    let source = shown[0].metadata.annotations.as_ref().unwrap();
    assert_eq!(source["kubernetes.io/config.source"], "api");

    bed.api().delete("uid-web", None);
    bed.wait_gone("uid-web", SOON);
    assert_eq!(
        bed.line.sent_about("StopContainer", "web/main")[0].grace_seconds,
        5
    );
    bed.wait("nobody shows it any more", SOON, |bed| bed.pods().is_empty());
    let written = bed.api().written();
    let stopped = times(&bed, "StopPodSandbox", "web")[0];
    let ended = written
        .iter()
        .find(|one| matches!(one.status.phase.as_deref(), Some("Succeeded" | "Failed")));
    assert!(ended.expect("its end is told").at > stopped, "{}", bed.trace());
    bed.wait("nothing is left", seconds(100), |bed| {
        bed.runtime.leftovers().is_empty()
    });
}

#[test]
fn a_pod_that_never_started_can_go() {
    let mut bed = Bed::in_cluster();
    bed.create(&ApiPod::new("web", &[]).container("image", json!("registry.test/missing:1")));
    bed.wait("its image is missed", seconds(20), |bed| {
        bed.waiting_reason("uid-web").0.contains("Image")
    });
    bed.api().delete("uid-web", None);
    bed.wait_gone("uid-web", SOON);
    let written = bed.api().written();
    let last = written.last().unwrap();
    assert_eq!(last.status.phase.as_deref(), Some("Failed"));
    let statuses = last.status.container_statuses.as_ref().unwrap();
    let end = statuses[0].state.as_ref().unwrap().terminated.as_ref().unwrap();
    assert_eq!(
        (end.exit_code, end.reason.as_deref()),
        (137, Some("ContainerStatusUnknown"))
    );
}

#[test]
fn the_grace_of_a_deletion_shrinks() {
    let mut bed = Bed::in_cluster();
    let pod = ApiPod::new("deaf", &["term=ignore"]).spec("terminationGracePeriodSeconds", json!(100));
    bed.create_and_wait(&pod);
    bed.api().delete("uid-deaf", Some(60));
    bed.wait("its stop is asked for", SOON, |bed| {
        !times(bed, "StopContainer", "deaf/main").is_empty()
    });
    bed.api().delete("uid-deaf", Some(3));
    bed.wait_gone("uid-deaf", seconds(15));
    let graces: Vec<i64> = bed
        .line
        .sent_about("StopContainer", "deaf/main")
        .iter()
        .map(|sent| sent.grace_seconds)
        .collect();
    assert_eq!(graces, [60, 3]);
}

#[test]
fn a_forced_deletion_leaves_the_pod_its_own_grace() {
    let mut bed = Bed::in_cluster();
    bed.create_and_wait(&ApiPod::new("web", &[]));
    bed.api().delete("uid-web", Some(0));
    bed.wait_gone("uid-web", seconds(1));
    bed.wait("its sandbox is stopped", SOON, |bed| {
        !times(bed, "StopPodSandbox", "web").is_empty()
    });
    assert_eq!(
        bed.line.sent_about("StopContainer", "web/main")[0].grace_seconds,
        5
    );
    bed.wait("nothing is left", seconds(100), |bed| {
        bed.runtime.leftovers().is_empty()
    });
}

#[test]
fn a_name_is_used_again_at_once() {
    let mut bed = Bed::in_cluster();
    let deaf = ApiPod::new("web", &["term=ignore"]).spec("terminationGracePeriodSeconds", json!(100));
    bed.create_and_wait(&deaf);
    bed.api().delete("uid-web", Some(0));
    bed.create_and_wait(&ApiPod::new("web", &[]).uid("uid-next"));
    assert!(
        times(&bed, "StopPodSandbox", "web").is_empty(),
        "the old one is still on its way out"
    );
    bed.wait("the old one ends", seconds(130), |bed| {
        !times(bed, "StopPodSandbox", "web").is_empty()
    });
    assert!(holds(&bed.api_status("uid-next"), "Ready"));
}

#[test]
fn an_end_is_told_once_and_stays() {
    let mut bed = Bed::in_cluster();
    let pod = ApiPod::new("job", &["runs=500:3"]).spec("restartPolicy", json!("Never"));
    bed.create(&pod);
    bed.wait("it has failed", seconds(20), |bed| {
        bed.api_phase("uid-job") == "Failed"
    });
    bed.kill();
    bed.runtime.lose_state();
    bed.start();
    bed.pass(seconds(120));
    assert_eq!(bed.api_phase("uid-job"), "Failed");
    let end = bed.api_container("uid-job").state.unwrap().terminated.unwrap();
    assert_eq!(end.exit_code, 3);
    assert_eq!(bed.line.sent_about("CreateContainer", "job/main").len(), 1);
    bed.api().delete("uid-job", None);
    bed.wait_gone("uid-job", seconds(1));
    bed.wait("nobody knows it any more", SOON, |bed| bed.pods().is_empty());
}

#[test]
fn somebody_else_may_end_a_pod() {
    let mut bed = Bed::in_cluster();
    bed.create_and_wait(&ApiPod::new("web", &[]));
    bed.api().change("uid-web", |pod| {
        let status = pod.status.get_or_insert_default();
        status.phase = Some("Failed".to_owned());
        status.reason = Some("NodeLost".to_owned());
    });
    bed.wait("it is stopped", SOON, |bed| {
        !times(bed, "StopPodSandbox", "web").is_empty()
    });
    bed.pass(seconds(5));
    let status = bed.api_status("uid-web");
    assert_eq!(
        (status.phase.as_deref(), status.reason.as_deref()),
        (Some("Failed"), Some("NodeLost"))
    );
    assert!(!holds(&status, "Ready"));
}

/// A pod that needs a volume plugin or a resource driver waits for it: a controller would replace a failed one without end.
#[test]
fn what_needs_a_driver_waits_for_it() {
    let mut bed = Bed::in_cluster();
    let pod = ApiPod::new("disk", &[])
        .spec(
            "volumes",
            json!([{"name": "d", "persistentVolumeClaim": {"claimName": "d"}}]),
        )
        .container("volumeMounts", json!([{"name": "d", "mountPath": "/d"}]));
    let claims = ApiPod::new("claims", &[])
        .spec(
            "resourceClaims",
            json!([{"name": "gpu", "resourceClaimName": "g"}]),
        )
        .spec(
            "initContainers",
            json!([{"name": "first", "image": "registry.test/app:1"}]),
        );
    let check = |bed: &mut Bed, name: &str, event: &str, reason: &str, field: &str| {
        let uid = format!("uid-{name}");
        bed.wait("it is retried", seconds(120), |bed| {
            bed.api_events(name, event).len() >= 3
        });
        assert_eq!(bed.api_phase(&uid), "Pending");
        let (shown, message) = bed.waiting_reason(&uid);
        assert_eq!(shown, reason);
        assert!(message.contains(field), "{message}");
        let text = bed.api_events(name, event)[0].message.clone();
        assert!(text.contains(field), "{text}");
        let explained = bed.explanations().into_iter().find(|one| one.name == name);
        let wait = explained.and_then(|one| one.waits_for);
        let why = wait.and_then(|wait| wait.last_error).unwrap_or_default();
        assert!(why.contains(field), "{why}");
        assert!(times(bed, "RunPodSandbox", name).is_empty());
        bed.api().delete(&uid, None);
        bed.wait_gone(&uid, seconds(1));
    };
    bed.create(&pod);
    check(
        &mut bed,
        "disk",
        "FailedMount",
        "ContainerCreating",
        "spec.volumes[0].persistentVolumeClaim",
    );
    bed.create(&claims);
    check(
        &mut bed,
        "claims",
        "FailedPrepareDynamicResources",
        "PodInitializing",
        "spec.resourceClaims",
    );

    // One that is deleted before its first status was written goes as well.
    bed.api().set_up(false);
    bed.pass(seconds(2));
    let late = ApiPod {
        name: "late".to_owned(),
        ..pod.clone()
    }
    .uid("uid-late");
    bed.create(&late);
    bed.api().delete("uid-late", None);
    bed.api().set_up(true);
    bed.wait_gone("uid-late", seconds(10));
    assert!(times(&bed, "RunPodSandbox", "late").is_empty());
}

/// A container that had a device from another kubelet does not start again without it.
#[test]
fn a_container_waits_for_its_device() {
    let mut bed = Bed::in_cluster();
    let limits = json!({"limits": {"example.com/gpu": "1"}, "requests": {"example.com/gpu": "1"}});
    bed.create_and_wait(&ApiPod::new("gpu", &[]).container("resources", limits));
    bed.kill();
    let others = &mut bed.settings.admission.allocatable.resources.others;
    others.insert("example.com/gpu".to_owned(), 0);
    bed.start();
    bed.pass(seconds(5));
    assert!(holds(&bed.api_status("uid-gpu"), "Ready"), "it goes on");
    assert!(bed.runtime.crash_container(0, 1));
    bed.wait("it waits for the device", seconds(60), |bed| {
        !bed.api_events("gpu", "FailedSync").is_empty()
    });
    bed.pass(seconds(60));
    let (reason, message) = bed.waiting_reason("uid-gpu");
    assert_eq!(reason, "ContainerCreating");
    let field = "spec.containers[0].resources.limits[example.com/gpu]";
    assert!(message.contains(field), "{message}");
    assert_eq!(times(&bed, "CreateContainer", "gpu/main").len(), 1);
    bed.api().delete("uid-gpu", None);
    bed.wait_gone("uid-gpu", SOON);
}

/// A pod that another kubelet started keeps a volume that rubelet cannot take down: its deletion waits, and says for what.
#[test]
fn a_volume_of_an_unknown_plugin_keeps_a_deleted_pod() {
    let mut bed = Bed::in_cluster();
    let pod = ApiPod::new("db", &[]).spec(
        "volumes",
        json!([{"name": "d", "persistentVolumeClaim": {"claimName": "d"}}]),
    );
    bed.create_and_wait(&pod);
    let volume = Path::new(node::ROOT).join("pods/uid-db/volumes/kubernetes.io~csi/pvc-1");
    bed.files.make_directory(&volume);
    bed.api().delete("uid-db", None);
    bed.wait("an event names the volume", seconds(120), |bed| {
        let events = bed.api_events("db", "FailedUnmount");
        events
            .iter()
            .any(|event| event.message.contains("kubernetes.io~csi/pvc-1"))
    });
    let explained = bed.explanations().into_iter().find(|one| one.name == "db");
    let wait = explained.and_then(|one| one.waits_for).expect("it waits");
    let why = wait.last_error.unwrap_or_default();
    assert!(why.contains("rubelet has no plugin for the volume at"), "{why}");
    bed.files.take_away(&volume);
    bed.wait_gone("uid-db", seconds(200));
}

#[test]
fn an_outage_ends_nobody_and_hides_nobody() {
    let mut bed = Bed::in_cluster();
    let (kept, removed) = (ApiPod::new("kept", &[]), ApiPod::new("removed", &[]));
    bed.create_and_wait(&kept);
    bed.create_and_wait(&removed);
    bed.api().set_up(false);
    let since = bed.elapsed();
    bed.api().delete("uid-removed", Some(0));
    bed.create(&ApiPod::new("new", &[]));
    bed.put_and_wait(&PodText::new("static", &[]));
    bed.pass(seconds(120));
    assert!(bed.line.sent("StopContainer", since).is_empty());
    assert!(times(&bed, "RunPodSandbox", "new").is_empty());
    // Its newest state is told when that is possible again.
    bed.runtime.crash_container(0, 1);
    bed.pass(seconds(20));
    bed.api().set_up(true);
    bed.wait("the new one runs", seconds(10), |bed| {
        holds(&bed.api_status("uid-new"), "Ready")
    });
    bed.wait("the removed one is stopped", seconds(10), |bed| {
        !times(bed, "StopPodSandbox", "removed").is_empty()
    });
    bed.wait("what is told is true", seconds(30), |bed| {
        let said = bed.pods();
        let said = said
            .iter()
            .find(|pod| pod.metadata.uid.as_deref() == Some("uid-kept"));
        said.and_then(|pod| pod.status.clone()) == Some(bed.api_status("uid-kept"))
    });
    assert!(times(&bed, "StopContainer", "kept/main").is_empty());
}

#[test]
fn nothing_is_followed_before_the_node_is_known() {
    let mut bed = Bed::in_cluster();
    bed.kill();
    bed.cluster().node.send_replace(None);
    bed.start();
    bed.create(&ApiPod::new("web", &[]));
    bed.pass(seconds(30));
    assert_eq!(bed.pods().len(), 0);
    bed.cluster().node.send_replace(Some(Arc::new(known_node())));
    bed.wait("it runs", SOON, |bed| holds(&bed.api_status("uid-web"), "Ready"));
}

#[test]
fn mirrors_show_static_pods_and_are_not_run() {
    let mut bed = Bed::in_cluster();
    bed.put_and_wait(&PodText::new("static", &[]));
    let uid = bed.until("its mirror is ready", SOON, |bed| {
        let uid = bed.mirror_uid("static")?;
        holds(&bed.api_status(&uid), "Ready").then_some(uid)
    });
    bed.pass(seconds(10));
    assert_eq!(times(&bed, "RunPodSandbox", "static").len(), 1);
    assert_eq!(bed.pods().len(), 1);
    let asked = uid.clone();
    let uids = bed.ask(|handle| {
        async move { [asked.as_str(), "other"].map(|uid| handle.uid_on_node(uid).to_string()) }.boxed()
    });
    assert_eq!(uids, ["uid-static", "other"]);
    let started = bed.api_status(&uid).start_time;

    // Also while the runtime says nothing the mirror is nobody's orphan, and keeps its status.
    bed.kill();
    bed.runtime.restart(seconds(30));
    bed.pass(seconds(1));
    bed.start();
    bed.pass(seconds(20));
    assert!(holds(&bed.api_status(&uid), "Ready"));
    bed.pass(seconds(60));
    assert!(holds(&bed.api_status(&uid), "Ready"));
    assert_eq!(bed.api_status(&uid).start_time, started);

    bed.remove(&PodText::new("static", &[]));
    bed.wait_gone(&uid, seconds(30));
}

#[test]
fn what_others_say_stays_and_counts() {
    let mut bed = Bed::in_cluster();
    let pod =
        ApiPod::new("gated", &[]).spec("readinessGates", json!([{"conditionType": "example.com/open"}]));
    bed.create(&pod);
    bed.wait("it runs", SOON, |bed| {
        holds(&bed.api_status("uid-gated"), "ContainersReady")
    });
    assert!(!holds(&bed.api_status("uid-gated"), "Ready"));
    bed.api().set_condition("uid-gated", "example.com/open", true);
    bed.api().change("uid-gated", |pod| {
        pod.status.get_or_insert_default().nominated_node_name = Some("other".to_owned());
    });
    bed.wait("the gate opens it", SOON, |bed| {
        holds(&bed.api_status("uid-gated"), "Ready")
    });
    bed.api().set_condition("uid-gated", "example.com/open", false);
    bed.wait("and closes it", SOON, |bed| {
        !holds(&bed.api_status("uid-gated"), "Ready")
    });
    let status = bed.api_status("uid-gated");
    assert_eq!(condition(&status, "example.com/open").unwrap().status, "False");
    assert_eq!(status.nominated_node_name.as_deref(), Some("other"));
}

#[test]
fn a_change_that_needs_a_missing_feature_is_an_event() {
    let mut bed = Bed::in_cluster();
    bed.kill();
    bed.settings.admission.features.declared = true;
    bed.start();
    let amounts = |cpu: &str| json!({"requests": {"cpu": cpu}});
    bed.create_and_wait(&ApiPod::new("web", &[]).spec("resources", amounts("100m")));
    let resized = ApiPod::new("web", &[])
        .spec("resources", amounts("200m"))
        .object();
    bed.api().change("uid-web", |pod| pod.spec = resized.spec.clone());
    let told = |bed: &Bed| bed.api_events("web", "FailedNodeDeclaredFeaturesCheck");
    bed.wait("it is told", SOON, |bed| !told(bed).is_empty());
    assert_eq!(
        told(&bed)[0].message,
        "Pod requires node features that are not available: InPlacePodLevelResourcesVerticalScaling"
    );
}
