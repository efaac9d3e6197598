//! Static pods that another kubelet made under a UID of its own.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rubelet_ports::RuntimeErrorKind;
use rubelet_sim::node;
use serde_json::json;

use crate::bed::{Bed, PodText, SOON, full};
use crate::line::Fault;

const FOREIGN: &str = "0123456789abcdef0123456789abcdef";

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn record() -> PathBuf {
    Path::new(node::ROOT).join("rubelet-static-pods.json")
}

/// A manifest without a UID.
fn manifest() -> PodText {
    PodText::new("etcd", &["runs=forever"]).uid("")
}

fn uid(bed: &mut Bed) -> String {
    let pods = bed.pods();
    let pod = pods
        .iter()
        .find(|pod| pod.metadata.name.as_deref() == Some(&full("etcd")));
    pod.and_then(|pod| pod.metadata.uid.clone()).unwrap_or_default()
}

/// A node that another kubelet has left with the pod running: its UID is that kubelet's, and rubelet has no record.
fn after_a_switch() -> Bed {
    let mut bed = Bed::in_cluster();
    bed.put_and_wait(&manifest().uid(FOREIGN));
    let mirror = bed.until("it has a mirror", SOON, |bed| bed.mirror_uid("etcd"));
    // As the API server admits it.
    bed.api().change(&mirror, |pod| {
        let spec = pod.spec.get_or_insert_default();
        spec.priority = Some(0);
        spec.preemption_policy = Some("PreemptLowerPriority".to_owned());
    });
    bed.pass(seconds(1));
    bed.kill();
    bed.files.take_away(&record());
    bed.put(&manifest());
    bed
}

fn stops(bed: &Bed, since: Duration) -> usize {
    bed.line.sent("StopPodSandbox", since).len() + bed.line.sent("StopContainer", since).len()
}

/// The pod runs on under the other kubelet's UID.
fn check_kept(bed: &mut Bed, since: Duration) {
    bed.wait("it is adopted", seconds(20), |bed| bed.is_ready("etcd"));
    bed.pass(seconds(120));
    assert_eq!(uid(bed), FOREIGN, "{}", bed.trace());
    assert_eq!(stops(bed, since), 0, "{}", bed.trace());
    assert_eq!(bed.line.sent("RunPodSandbox", since).len(), 0);
}

/// The pod starts anew under its own UID, and an event says why.
fn check_replaced(bed: &mut Bed, why: &str) {
    bed.wait("it runs under its own UID", seconds(60), |bed| {
        bed.is_ready("etcd") && uid(bed) != FOREIGN
    });
    let events = bed.events("etcd", "StaticPodReplaced");
    assert_eq!(events.len(), 1, "{events:?}");
    assert!(events[0].message.contains(why), "{events:?}");
}

#[test]
fn a_static_pod_keeps_running_when_its_mirror_shows_the_same() {
    let mut bed = after_a_switch();
    let mirror = bed.mirror_uid("etcd");
    bed.start();
    let since = bed.elapsed();
    check_kept(&mut bed, since);
    assert_eq!(bed.mirror_uid("etcd"), mirror, "its mirror stays");
    assert!(bed.events("etcd", "StaticPodReplaced").is_empty());
    // Also over a restart that cannot see the mirror.
    bed.kill();
    bed.api().set_up(false);
    bed.start();
    check_kept(&mut bed, since);
    bed.api().set_up(true);
    // An edit is another pod.
    bed.put(&manifest().container("args", json!(["runs=forever", "term=1:0"])));
    bed.wait("the edited one runs", seconds(30), |bed| {
        uid(bed) != FOREIGN && bed.is_ready("etcd")
    });
    let edited = uid(&mut bed);
    bed.put(&manifest());
    bed.wait("the first one runs again", seconds(30), |bed| {
        uid(bed) != edited && bed.is_ready("etcd")
    });
    assert_ne!(
        uid(&mut bed),
        FOREIGN,
        "what was taken over is forgotten with its manifest"
    );
}

#[test]
fn a_static_pod_starts_anew_when_its_mirror_shows_something_else() {
    let mut bed = after_a_switch();
    bed.put(&manifest().container("args", json!(["runs=forever", "term=1:0"])));
    bed.start();
    check_replaced(&mut bed, "in spec.containers[0].args");
}

#[test]
fn a_static_pod_starts_anew_when_it_has_no_mirror() {
    let mut bed = after_a_switch();
    let mirror = bed.mirror_uid("etcd").expect("it has one");
    bed.api().delete(&mirror, Some(0));
    bed.start();
    check_replaced(&mut bed, "no mirror pod of that UID");
}

#[test]
fn a_static_pod_does_not_wait_for_its_mirror_for_ever() {
    let mut bed = after_a_switch();
    bed.api().set_up(false);
    bed.start();
    let since = bed.elapsed();
    bed.pass(seconds(5));
    assert_eq!(stops(&bed, since), 0, "{}", bed.trace());
    check_replaced(&mut bed, "has not shown its mirror pod");
}

#[test]
fn an_older_version_of_our_own_is_replaced_at_once() {
    let mut bed = Bed::in_cluster();
    bed.put_and_wait(&manifest());
    let old = uid(&mut bed);
    bed.pass(seconds(1));
    bed.kill();
    bed.api().set_up(false);
    bed.put(&manifest().container("args", json!(["runs=forever", "term=1:0"])));
    bed.start();
    bed.wait("the new version runs", seconds(8), |bed| {
        let uid = uid(bed);
        bed.is_ready("etcd") && !uid.is_empty() && uid != old
    });
    assert!(bed.events("etcd", "StaticPodReplaced").is_empty());
}

#[test]
fn a_record_that_makes_no_sense_is_set_aside() {
    let mut bed = after_a_switch();
    bed.files.place(&record(), b"{\"version\": 1, \"own\"");
    bed.start();
    let since = bed.elapsed();
    check_kept(&mut bed, since);
    let aside = record().with_file_name("rubelet-static-pods.json.bad");
    assert_eq!(
        bed.files.content(&aside).as_deref(),
        Some(&b"{\"version\": 1, \"own\""[..])
    );
    let written = bed.files.content(&record()).expect("a new one is written");
    assert!(String::from_utf8_lossy(&written).contains(FOREIGN));
}

#[test]
fn a_source_that_delivers_late_does_not_wait_for_the_runtime_again() {
    let mut bed = Bed::new();
    bed.add_http_source();
    let old = PodText::new("old", &["runs=forever"]);
    bed.put(&old);
    bed.start();
    bed.wait("it runs", SOON, |bed| bed.is_ready("old"));
    let fault = Fault::Fail(RuntimeErrorKind::Unavailable);
    bed.line.fault("ListPodSandbox", "", fault, usize::MAX);
    let items = [manifest().document()];
    let list = json!({"apiVersion": "v1", "kind": "PodList", "items": items}).to_string();
    bed.http.serve(Some(list.into_bytes()));
    bed.wait("the pod is known", seconds(5), |bed| bed.pods().len() == 2);
    bed.remove(&old);
    bed.wait("the other source's pod ends", seconds(5), |bed| {
        bed.pods().len() == 1
    });
}
