//! Resources that change while a pod runs.

use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::api::core::v1::{PodCondition, ResourceRequirements};
use rubelet_ports::RuntimeErrorKind;
use rubelet_sim::node;
use serde_json::{Value, json};

use crate::bed::{Bed, IMAGE, SOON};
use crate::cluster::{ApiPod, condition, holds};
use crate::line::Fault;

const MINUTES: Duration = Duration::from_mins(10);

fn pod(name: &str, resources: &Value) -> ApiPod {
    ApiPod::new(name, &[]).container("resources", resources.clone())
}

fn cpu(request: &str) -> Value {
    json!({"requests": {"cpu": request}})
}

fn memory(limit: &str) -> Value {
    json!({"requests": {"memory": "16Mi"}, "limits": {"memory": limit}})
}

/// Another value for the resources of the pod's container, as `kubectl patch --subresource resize` makes it.
fn resize(bed: &Bed, name: &str, resources: &Value) {
    let resources: ResourceRequirements = serde_json::from_value(resources.clone()).expect("resources");
    bed.api().change(&format!("uid-{name}"), |pod| {
        pod.spec.get_or_insert_default().containers[0].resources = Some(resources);
        *pod.metadata.generation.get_or_insert_default() += 1;
    });
}

fn shown(bed: &Bed, name: &str, type_: &str) -> Option<PodCondition> {
    condition(&bed.api_status(&format!("uid-{name}")), type_).cloned()
}

fn pending_reason(bed: &Bed, name: &str) -> Option<String> {
    shown(bed, name, "PodResizePending")?.reason
}

/// Requests and limits as the status has them, and the allocated requests.
fn has(bed: &Bed, name: &str) -> (Value, Value) {
    let container = bed.api_container(&format!("uid-{name}"));
    (json!(container.resources), json!(container.allocated_resources))
}

fn wait_until_it_has(bed: &mut Bed, name: &str, resources: &Value) {
    bed.wait(&format!("{name} has {resources}"), SOON, |bed| {
        let is_done =
            shown(bed, name, "PodResizeInProgress").is_none() && pending_reason(bed, name).is_none();
        is_done && has(bed, name) == (resources.clone(), resources["requests"].clone())
    });
}

fn count(bed: &Bed, method: &str, about: &str) -> usize {
    bed.line.sent_about(method, about).len()
}

fn starts(bed: &Bed, name: &str) -> usize {
    count(bed, "StartContainer", &format!("{name}/main"))
}

fn file(name: &str) -> PathBuf {
    Path::new(node::ROOT).join(name)
}

#[test]
fn a_container_gets_its_new_resources_without_a_restart() {
    let mut bed = Bed::in_cluster();
    bed.create_and_wait(&pod("web", &cpu("100m")));
    resize(&bed, "web", &cpu("200m"));
    wait_until_it_has(&mut bed, "web", &cpu("200m"));
    let updated = bed.line.updated("web/main");
    assert_eq!(updated.len(), 1);
    assert_eq!(updated[0].cpu_shares, 204);
    assert_eq!(starts(&bed, "web"), 1);
    let message = |reason: &str| {
        let events = bed.api_events("web", reason);
        assert_eq!(events.len(), 1, "{reason}: {events:?}");
        events[0].message.clone()
    };
    let summary =
        r#"{"containers":[{"name":"main","resources":{"requests":{"cpu":"200m"}}}],"generation":2}"#;
    assert_eq!(message("ResizeStarted"), format!("Pod resize started: {summary}"));
    assert_eq!(
        message("ResizeCompleted"),
        format!("Pod resize completed: {summary}")
    );
    // The records have upstream's form.
    bed.pass(Duration::from_secs(3));
    for name in ["allocated_pods_state", "actuated_pods_state"] {
        let text = String::from_utf8(bed.files.content(&file(name)).expect(name)).unwrap();
        assert!(
            text.contains(r#"\"requests\":{\"cpu\":\"200m\"}"#),
            "{name}: {text}"
        );
    }
}

#[test]
fn what_does_not_fit_waits_until_room_comes_free() {
    let mut bed = Bed::in_cluster();
    bed.create_and_wait(&pod("big", &cpu("3")));
    bed.create_and_wait(&pod("web", &cpu("500m")));
    resize(&bed, "web", &cpu("2"));
    bed.wait("it is deferred", SOON, |bed| {
        pending_reason(bed, "web").as_deref() == Some("Deferred")
    });
    let pending = shown(&bed, "web", "PodResizePending").unwrap();
    let message = "Node didn't have enough resource: cpu, requested: 2000, used: 3000, capacity: 4000";
    assert_eq!(pending.message.as_deref(), Some(message));
    assert_eq!(pending.observed_generation, Some(2));
    let events = bed.api_events("web", "ResizeDeferred");
    assert_eq!(events.len(), 1);
    assert!(
        events[0].message.starts_with("Pod resize Deferred: {"),
        "{events:?}"
    );
    assert_eq!(has(&bed, "web").1, json!({"cpu": "500m"}));
    // Judged again in vain, it is no news.
    bed.pass(MINUTES);
    assert_eq!(shown(&bed, "web", "PodResizePending"), Some(pending));
    assert_eq!(bed.api_events("web", "ResizeDeferred").len(), 1);

    bed.api().delete("uid-big", Some(0));
    wait_until_it_has(&mut bed, "web", &cpu("2"));
    assert_eq!(starts(&bed, "web"), 1);
}

#[test]
fn a_pod_that_gets_less_makes_room_for_another() {
    let mut bed = Bed::in_cluster();
    bed.create_and_wait(&pod("big", &cpu("3")));
    bed.create_and_wait(&pod("web", &cpu("500m")));
    resize(&bed, "web", &cpu("2"));
    bed.wait("it is deferred", SOON, |bed| pending_reason(bed, "web").is_some());
    resize(&bed, "big", &cpu("1"));
    wait_until_it_has(&mut bed, "big", &cpu("1"));
    wait_until_it_has(&mut bed, "web", &cpu("2"));
}

#[test]
fn a_resize_that_is_taken_back_is_over() {
    let mut bed = Bed::in_cluster();
    bed.create_and_wait(&pod("web", &cpu("500m")));
    resize(&bed, "web", &cpu("5"));
    bed.wait("it is deferred", SOON, |bed| pending_reason(bed, "web").is_some());
    resize(&bed, "web", &cpu("0.5"));
    bed.wait("nothing waits", SOON, |bed| pending_reason(bed, "web").is_none());
    assert_eq!(count(&bed, "UpdateContainerResources", "web/main"), 0);
    assert!(bed.api_events("web", "ResizeStarted").is_empty());
}

#[test]
fn a_container_is_restarted_where_its_policy_says_so() {
    let mut bed = Bed::in_cluster();
    let policy = json!([{"resourceName": "memory", "restartPolicy": "RestartContainer"}]);
    let web = pod("web", &memory("64Mi")).container("resizePolicy", policy);
    bed.create_and_wait(&web);
    resize(&bed, "web", &memory("128Mi"));
    wait_until_it_has(&mut bed, "web", &memory("128Mi"));
    assert_eq!(starts(&bed, "web"), 2, "{}", bed.trace());
    assert_eq!(count(&bed, "UpdateContainerResources", "web/main"), 0);
    let created = bed.line.created("web/main");
    let linux = created[1].linux.clone().unwrap().resources.unwrap();
    assert_eq!(linux.memory_limit_in_bytes, 128 << 20);
    let killed = bed.api_events("web", "Killing");
    assert_eq!(killed[0].message, "Container main resize requires restart");
    // Neither a crash nor time is a reason for another one.
    bed.kill();
    bed.start();
    bed.pass(MINUTES);
    assert_eq!(starts(&bed, "web"), 2);
}

#[test]
fn a_memory_limit_stays_above_what_is_used() {
    let mut bed = Bed::in_cluster();
    bed.create_and_wait(&pod("web", &memory("64Mi")));
    resize(&bed, "web", &memory("8Mi"));
    bed.wait("it is an error", SOON, |bed| {
        shown(bed, "web", "PodResizeInProgress").is_some_and(|one| one.reason.as_deref() == Some("Error"))
    });
    let problem = "cannot decrease memory limits: attempting to set container \"main\" memory limit (8388608) below current usage (16777216)";
    let failed = shown(&bed, "web", "PodResizeInProgress").unwrap();
    assert_eq!(failed.message.as_deref(), Some(problem));
    assert_eq!(count(&bed, "UpdateContainerResources", "web/main"), 0);
    bed.pass(Duration::from_mins(2));
    let events = bed.api_events("web", "ResizeError");
    assert_eq!(events.len(), 1, "the same error is no news");
    assert!(events[0].message.starts_with("Pod resize error: {"), "{events:?}");
    // Another size is another resize.
    resize(&bed, "web", &memory("32Mi"));
    wait_until_it_has(&mut bed, "web", &memory("32Mi"));
}

#[test]
fn an_update_that_fails_is_tried_again() {
    let mut bed = Bed::in_cluster();
    bed.create_and_wait(&pod("web", &cpu("100m")));
    let fault = Fault::Fail(RuntimeErrorKind::Unknown);
    bed.line.fault("UpdateContainerResources", "web/main", fault, 1);
    resize(&bed, "web", &cpu("200m"));
    bed.wait("it is an error", SOON, |bed| {
        !bed.api_events("web", "ResizeError").is_empty()
    });
    bed.wait("it has it after all", Duration::from_mins(1), |bed| {
        has(bed, "web").0 == cpu("200m") && shown(bed, "web", "PodResizeInProgress").is_none()
    });
    assert_eq!(starts(&bed, "web"), 1);
}

/// The answer is lost, and the pod wants its old resources back: what the container has is read from the runtime.
#[test]
fn an_update_without_an_answer_is_undone() {
    let mut bed = Bed::in_cluster();
    bed.create_and_wait(&pod("web", &cpu("100m")));
    let fault = Fault::SlowAnswer(Duration::from_secs(300));
    bed.line.fault("UpdateContainerResources", "web/main", fault, 1);
    resize(&bed, "web", &cpu("200m"));
    bed.wait("it is asked for", SOON, |bed| {
        count(bed, "UpdateContainerResources", "web/main") == 1
    });
    bed.kill();
    resize(&bed, "web", &cpu("100m"));
    bed.start();
    bed.wait("it is asked back", Duration::from_mins(1), |bed| {
        let updated = bed.line.updated("web/main");
        updated.len() == 2 && updated[1].cpu_shares == 102
    });
    wait_until_it_has(&mut bed, "web", &cpu("100m"));
}

#[test]
fn a_resize_goes_on_after_a_restart_of_the_agent() {
    let mut bed = Bed::in_cluster();
    bed.create_and_wait(&pod("web", &cpu("100m")));
    let fault = Fault::Hang;
    bed.line.fault("UpdateContainerResources", "web/main", fault, 1);
    resize(&bed, "web", &cpu("200m"));
    bed.wait("it is asked for", SOON, |bed| {
        count(bed, "UpdateContainerResources", "web/main") == 1
    });
    bed.kill();
    // What was accepted stays, also where it would not fit any more.
    bed.create(&pod("other", &cpu("3900m")));
    bed.start();
    wait_until_it_has(&mut bed, "web", &cpu("200m"));
    assert_eq!(starts(&bed, "web"), 1);
    assert_eq!(bed.api_phase("uid-other"), "Failed", "{}", bed.trace());
}

/// Files that are gone or broken are no reason to restart anything.
#[test]
fn records_that_cannot_be_used_are_made_anew() {
    for content in [&b"{\"data\":\"{}\",\"checksum\":1}"[..], b"half of a fi", b""] {
        let mut bed = Bed::in_cluster();
        let policy = json!([{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]);
        bed.create_and_wait(&pod("web", &cpu("100m")).container("resizePolicy", policy));
        bed.pass(Duration::from_secs(3));
        bed.kill();
        for name in ["allocated_pods_state", "actuated_pods_state"] {
            bed.files.place(&file(name), content);
        }
        bed.start();
        bed.pass(Duration::from_mins(2));
        assert_eq!(starts(&bed, "web"), 1, "{}", bed.trace());
        assert!(holds(&bed.api_status("uid-web"), "Ready"));
        assert_eq!(count(&bed, "UpdateContainerResources", "web/main"), 0);
        let kept = bed.files.content(&file("allocated_pods_state.bad"));
        assert_eq!(kept.as_deref(), Some(content));
        let text = bed.files.content(&file("allocated_pods_state")).unwrap();
        assert!(String::from_utf8(text).unwrap().contains("100m"));
    }
}

/// Upstream's kubelet has accepted a resize and was replaced in the middle of it.
#[test]
fn a_resize_of_another_kubelet_is_finished() {
    let mut bed = Bed::in_cluster();
    bed.create_and_wait(&pod("web", &cpu("100m")));
    bed.pass(Duration::from_secs(3));
    bed.kill();
    resize(&bed, "web", &cpu("300m"));
    let read = |name: &str| bed.files.content(&file(name)).unwrap();
    let records = rubelet_lifecycle::allocation::checkpoint::read(&read("allocated_pods_state")).unwrap();
    let mut one = records.into_iter().next().unwrap();
    let main = one.1.containers.get_mut("main").unwrap();
    *main = serde_json::from_value(cpu("300m")).unwrap();
    let entry = rubelet_lifecycle::allocation::checkpoint::entry(&one.0, &one.1);
    let text = rubelet_lifecycle::allocation::checkpoint::write([entry.as_str()]);
    bed.files.place(&file("allocated_pods_state"), text.as_bytes());
    bed.start();
    wait_until_it_has(&mut bed, "web", &cpu("300m"));
    assert_eq!(bed.line.updated("web/main").len(), 1);
    assert!(
        bed.api_events("web", "ResizeStarted").is_empty(),
        "it was accepted before"
    );
    assert_eq!(starts(&bed, "web"), 1);
}

/// A container without a limit of its own has the pod's, and a sidecar is resized like any other.
#[test]
fn the_pod_as_a_whole_and_its_sidecars_are_resized() {
    let mut bed = Bed::in_cluster();
    let whole = |cpu: &str| json!({"requests": {"cpu": cpu}, "limits": {"cpu": cpu}});
    let side = |request: &str| {
        json!([{"name": "side", "image": IMAGE, "imagePullPolicy": "IfNotPresent", "restartPolicy": "Always",
            "resources": {"requests": {"cpu": request}}}])
    };
    let web = ApiPod::new("web", &[])
        .spec("resources", whole("1"))
        .spec("initContainers", side("100m"));
    bed.create_and_wait(&web);
    let other = web
        .spec("resources", whole("2"))
        .spec("initContainers", side("200m"));
    bed.api().change("uid-web", |pod| {
        pod.spec = other.object().spec;
        *pod.metadata.generation.get_or_insert_default() += 1;
    });
    bed.wait("the pod has its new limit", SOON, |bed| {
        let shown = bed.api_status("uid-web").resources.and_then(|all| all.limits);
        let is_over = shown_condition_is_gone(bed);
        is_over && shown.is_some_and(|limits| limits["cpu"].0 == "2")
    });
    let last = |about: &str| bed.line.updated(about).last().cloned().expect("an update");
    assert_eq!(last("web/main").cpu_quota, 200_000);
    assert_eq!(
        (last("web/side").cpu_quota, last("web/side").cpu_shares),
        (200_000, 204)
    );
    assert_eq!(
        (starts(&bed, "web"), count(&bed, "StartContainer", "web/side")),
        (1, 1)
    );
}

fn shown_condition_is_gone(bed: &Bed) -> bool {
    shown(bed, "web", "PodResizeInProgress").is_none() && pending_reason(bed, "web").is_none()
}

/// An init container that runs is resized too, and the ones that start after it begin with the new resources.
#[test]
fn a_pod_is_resized_while_it_begins() {
    let mut bed = Bed::in_cluster();
    let init = |request: &str| {
        json!([{"name": "first", "image": IMAGE, "imagePullPolicy": "IfNotPresent", "args": ["runs=20000:0"],
            "resources": {"requests": {"cpu": request}}}])
    };
    let web = pod("web", &cpu("100m")).spec("initContainers", init("100m"));
    bed.create(&web);
    bed.wait("the first one runs", SOON, |bed| {
        count(bed, "StartContainer", "web/first") == 1
    });
    let other = web
        .spec("initContainers", init("200m"))
        .container("resources", cpu("300m"));
    bed.api().change("uid-web", |pod| {
        pod.spec = other.object().spec;
        *pod.metadata.generation.get_or_insert_default() += 1;
    });
    bed.wait("it is resized", SOON, |bed| {
        bed.line
            .updated("web/first")
            .iter()
            .any(|linux| linux.cpu_shares == 204)
    });
    bed.wait("it is ready", Duration::from_mins(1), |bed| {
        holds(&bed.api_status("uid-web"), "Ready")
    });
    let created = bed.line.created("web/main");
    let linux = created[0].linux.clone().unwrap().resources.unwrap();
    assert_eq!(linux.cpu_shares, 307);
    assert_eq!(count(&bed, "UpdateContainerResources", "web/main"), 0);
    assert_eq!(count(&bed, "StartContainer", "web/first"), 1);
}

/// A critical pod gets the room of a less important one.
#[test]
fn a_critical_pod_takes_the_room_that_it_needs() {
    let mut bed = Bed::in_cluster();
    bed.create_and_wait(&pod("other", &cpu("3")));
    let critical = pod("web", &cpu("500m"))
        .spec("priority", json!(2_000_001_000))
        .spec("priorityClassName", json!("system-node-critical"));
    bed.create_and_wait(&critical);
    resize(&bed, "web", &cpu("2"));
    bed.wait("the other one fails", Duration::from_mins(1), |bed| {
        bed.api_phase("uid-other") == "Failed"
    });
    wait_until_it_has(&mut bed, "web", &cpu("2"));
    assert_eq!(starts(&bed, "web"), 1);
}
