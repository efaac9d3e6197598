//! A new version of a static pod starts also while other sources deliver nothing.

use std::time::Duration;

use serde_json::json;

use crate::bed::{Bed, PodText, SOON};
use crate::cluster::ApiPod;

const LONG: Duration = Duration::from_secs(120);

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn control_plane() -> PodText {
    PodText::new("apiserver", &["runs=forever"]).uid("uid-old")
}

/// The old version has ended before the new one began.
fn check_replaced(bed: &mut Bed, since: Duration) {
    bed.wait("the new version runs", seconds(30), |bed| {
        !bed.line.sent_about("StartContainer", "new/main").is_empty()
    });
    let stopped = bed.line.sent_about("StopPodSandbox", "old");
    let started = bed.line.sent_about("RunPodSandbox", "new");
    assert!(
        stopped[0].at >= since && stopped[0].at < started[0].at,
        "{}",
        bed.trace()
    );
    assert_eq!(started.len(), 1);
}

/// Nothing of the pod was asked to end.
fn check_untouched(bed: &Bed, pod: &str) {
    for (method, about) in [
        ("StopContainer", format!("{pod}/main")),
        ("StopPodSandbox", pod.to_owned()),
    ] {
        assert!(bed.line.sent_about(method, &about).is_empty(), "{method} {about}");
    }
}

#[test]
fn a_manifest_that_was_repaired_while_the_agent_was_down_starts_without_the_api_server() {
    let mut bed = Bed::in_cluster();
    bed.put_and_wait(&control_plane());
    bed.put_and_wait(&PodText::new("removed", &[]));
    bed.create_and_wait(&ApiPod::new("bound", &[]));
    bed.kill();
    bed.api().set_up(false);
    bed.put(&control_plane().uid("uid-new"));
    bed.remove(&PodText::new("removed", &[]));
    bed.start();
    let since = bed.elapsed();
    check_replaced(&mut bed, since);
    bed.pass(LONG);
    // Nothing says that these are not wanted any more.
    check_untouched(&bed, "bound");
    check_untouched(&bed, "removed");
    bed.api().set_up(true);
    bed.wait("the removed one ends", seconds(20), |bed| {
        !bed.line.sent_about("StopPodSandbox", "removed").is_empty()
    });
    check_untouched(&bed, "bound");
}

#[test]
fn a_manifest_that_is_repaired_after_a_restart_starts_without_the_api_server() {
    let mut bed = Bed::in_cluster();
    bed.put_and_wait(&control_plane());
    bed.kill();
    bed.api().set_up(false);
    bed.start();
    bed.wait("the old version is adopted", SOON, |bed| {
        bed.is_ready("apiserver")
    });
    let since = bed.elapsed();
    bed.put(&control_plane().uid("uid-new"));
    check_replaced(&mut bed, since);
    // Back to what it was before.
    bed.put(&control_plane());
    bed.wait("the old version runs again", seconds(30), |bed| {
        bed.line.sent_about("RunPodSandbox", "old").len() == 2 && bed.is_ready("apiserver")
    });
    let ended = bed.line.sent_about("StopPodSandbox", "new");
    let began = bed.line.sent_about("RunPodSandbox", "old");
    assert!(ended[0].at < began[1].at, "{}", bed.trace());
}

#[test]
fn a_new_version_that_needs_the_host_port_of_the_old_one_starts_without_the_api_server() {
    let mut bed = Bed::in_cluster();
    let old = control_plane()
        .spec("hostNetwork", json!(true))
        .container("ports", json!([{"containerPort": 6443}]));
    bed.put_and_wait(&old);
    bed.kill();
    bed.api().set_up(false);
    bed.start();
    bed.wait("the old version is adopted", SOON, |bed| {
        bed.is_ready("apiserver")
    });
    let since = bed.elapsed();
    bed.put(&old.uid("uid-new"));
    check_replaced(&mut bed, since);
}

#[test]
fn a_pod_whose_own_source_has_not_delivered_stays() {
    let mut bed = Bed::new();
    bed.add_http_source();
    let old = control_plane();
    bed.http.serve(Some(old.document().to_string().into_bytes()));
    bed.start();
    bed.wait("it runs", SOON, |bed| bed.is_ready("apiserver"));
    bed.kill();
    bed.http.serve(None);
    bed.put(&old.uid("uid-new"));
    bed.start();
    bed.pass(LONG);
    check_untouched(&bed, "old");
    assert!(bed.line.sent_about("RunPodSandbox", "new").is_empty());
    let since = bed.elapsed();
    bed.http.serve(Some(
        json!({"apiVersion": "v1", "kind": "PodList", "items": []})
            .to_string()
            .into_bytes(),
    ));
    check_replaced(&mut bed, since);
}

#[test]
fn a_new_version_that_cannot_start_ends_nothing_before_all_sources_have_delivered() {
    let mut bed = Bed::in_cluster();
    bed.put_and_wait(&control_plane());
    bed.kill();
    bed.api().set_up(false);
    bed.put(
        &control_plane()
            .uid("uid-new")
            .spec("nodeSelector", json!({"no": "such"})),
    );
    bed.start();
    bed.pass(LONG);
    check_untouched(&bed, "old");
}
