//! Who is let in, who waits for room, and who makes it.

use std::time::Duration;

use serde_json::json;

use crate::bed::{Bed, PodText, SOON};
use crate::cluster::{ApiPod, holds};
use crate::line::Fault;

fn seconds(number: u64) -> Duration {
    Duration::from_secs(number)
}

/// A node on which pods have one processor.
fn small() -> Bed {
    let mut bed = Bed::new();
    bed.settings.admission.allocatable.resources.milli_cpu = 1000;
    bed
}

fn asking(name: &str, milli_cpu: i64) -> PodText {
    let requests = json!({"requests": {"cpu": format!("{milli_cpu}m")}});
    PodText::new(name, &["term=1000:0"]).container("resources", requests)
}

fn starts(bed: &Bed, name: &str) -> usize {
    bed.line
        .sent_about("StartContainer", &format!("{name}/main"))
        .len()
}

fn wait_until_refused(bed: &mut Bed, name: &str) {
    bed.wait(&format!("{name} is refused"), SOON, |bed| {
        bed.waits_for(name) == "room on the node"
    });
    let status = bed.status(name);
    assert_eq!(status.phase.as_deref(), Some("Failed"));
    assert_eq!(status.reason.as_deref(), Some("UnexpectedAdmissionError"));
    assert!(
        status
            .message
            .is_some_and(|text| text.starts_with("Pod was rejected: "))
    );
    assert_eq!(starts(bed, name), 0);
}

#[test]
fn a_refused_static_pod_starts_when_there_is_room() {
    let mut bed = small();
    bed.start();
    let (one, two, three) = (asking("one", 600), asking("two", 400), asking("three", 500));
    bed.put_and_wait(&one);
    bed.put_and_wait(&two);
    bed.put(&three);
    wait_until_refused(&mut bed, "three");
    assert_eq!(
        bed.last_error("three"),
        "UnexpectedAdmissionError: Node didn't have enough resource: cpu, requested: 500, used: 1000, capacity: 1000"
    );
    // Not enough, and no news: it was told once.
    bed.remove(&two);
    bed.pass(seconds(20));
    wait_until_refused(&mut bed, "three");
    assert_eq!(bed.events("three", "UnexpectedAdmissionError").len(), 1);
    bed.remove(&one);
    bed.wait("it starts", SOON, |bed| bed.is_ready("three"));
    // What it takes the place of has ended before.
    let stopped = bed.line.sent_about("StopPodSandbox", "one")[0].at;
    let started = bed.line.sent_about("RunPodSandbox", "three")[0].at;
    assert!(stopped <= started, "{stopped:?} {started:?}");
}

#[test]
fn a_pod_that_ended_for_good_holds_nothing() {
    let mut bed = small();
    bed.start();
    let ends = PodText::new("ends", &["runs=3000:0"])
        .spec("restartPolicy", json!("Never"))
        .container("resources", json!({"requests": {"cpu": "1"}}));
    bed.put(&ends);
    bed.wait("it runs", SOON, |bed| bed.phase("ends") == "Running");
    bed.put(&asking("next", 1000));
    wait_until_refused(&mut bed, "next");
    bed.wait("it ends, and the next one starts", seconds(20), |bed| {
        bed.is_ready("next")
    });
    assert_eq!(bed.phase("ends"), "Succeeded");
    // In its next life the agent finds an end there, and does not judge it.
    bed.kill();
    bed.start();
    bed.wait("both are known again", SOON, |bed| {
        bed.is_ready("next") && bed.phase("ends") == "Succeeded"
    });
    assert_eq!((starts(&bed, "ends"), starts(&bed, "next")), (1, 1));
}

#[test]
fn living_pods_are_never_judged_again() {
    let mut bed = small();
    bed.start();
    let (one, two) = (asking("one", 500), asking("two", 500));
    bed.put_and_wait(&one);
    bed.put_and_wait(&two);
    bed.kill();
    bed.settings.admission.allocatable.resources.milli_cpu = 600;
    bed.put(&asking("new", 300));
    bed.start();
    wait_until_refused(&mut bed, "new");
    bed.pass(seconds(10));
    assert!(bed.is_ready("one") && bed.is_ready("two"));
    assert_eq!((starts(&bed, "one"), starts(&bed, "two")), (1, 1));
    bed.remove(&one);
    bed.pass(seconds(10));
    wait_until_refused(&mut bed, "new");
    bed.remove(&two);
    bed.wait("it starts", SOON, |bed| bed.is_ready("new"));
}

#[test]
fn an_edited_pod_is_not_in_its_own_way() {
    let mut bed = small();
    bed.start();
    bed.put_and_wait(&asking("web", 800));
    bed.put(&asking("web", 900).uid("uid-new"));
    bed.wait("the new one runs", SOON, |bed| {
        starts(bed, "new") == 1 && bed.is_ready("web")
    });
    assert!(bed.events("web", "UnexpectedAdmissionError").is_empty());
    // The old one gave back what it held.
    bed.put_and_wait(&asking("other", 100));
}

#[test]
fn an_important_pod_is_given_room() {
    let mut bed = small();
    bed.start();
    let ranked = |name: &str, milli, priority| asking(name, milli).spec("priority", json!(priority));
    bed.put_and_wait(&ranked("lesser", 700, 1));
    bed.put_and_wait(&ranked("bystander", 200, 1));
    bed.put(&ranked("greater", 500, 2));
    bed.wait("it waits for the other's end", SOON, |bed| {
        bed.waits_for("greater")
            .starts_with("the end of pods that have to make room for it: lesser")
    });
    assert_eq!(bed.phase("greater"), "Pending");
    bed.wait("it runs", SOON, |bed| bed.is_ready("greater"));
    let stopped = bed.line.sent_about("StopPodSandbox", "lesser")[0].at;
    let started = bed.line.sent_about("RunPodSandbox", "greater")[0].at;
    assert!(stopped <= started, "{stopped:?} {started:?}");
    let status = bed.status("lesser");
    assert_eq!(
        (status.phase.as_deref(), status.reason.as_deref()),
        (Some("Failed"), Some("Preempting"))
    );
    assert_eq!(bed.events("lesser", "Preempting").len(), 1);
    bed.pass(seconds(60));
    assert!(bed.is_ready("bystander") && bed.is_ready("greater"));
    assert_eq!(starts(&bed, "lesser"), 1);
}

/// A node of a cluster on which pods have one processor.
fn small_in_cluster() -> Bed {
    let mut bed = Bed::in_cluster();
    bed.kill();
    bed.settings.admission.allocatable.resources.milli_cpu = 1000;
    bed.start();
    bed
}

fn in_cluster(name: &str, milli_cpu: i64) -> ApiPod {
    let requests = json!({"requests": {"cpu": format!("{milli_cpu}m")}});
    ApiPod::new(name, &["term=1000:0"]).container("resources", requests)
}

fn wait_until_it_waits(bed: &mut Bed, name: &str, holder: &str) {
    let expected = format!("what terminating pods still hold: {holder}_default");
    bed.wait(&format!("{name} waits for {holder}"), SOON, |bed| {
        let explanations = bed.explanations().into_iter();
        let mut waits = explanations
            .filter(|one| one.name == name)
            .filter_map(|one| one.waits_for);
        waits.any(|wait| wait.what == expected)
    });
    assert!(bed.line.sent_about("RunPodSandbox", name).is_empty());
}

#[test]
fn a_pod_waits_for_a_force_deleted_one_to_end() {
    let mut bed = small_in_cluster();
    let port = json!([{"containerPort": 80, "hostPort": 80}]);
    let proxy = |name: &str, milli| in_cluster(name, milli).container("ports", port.clone());
    let check = |bed: &mut Bed, old: &str, new: &ApiPod| {
        bed.api().delete(&format!("uid-{old}"), Some(0));
        bed.create(new);
        wait_until_it_waits(bed, &new.name, old);
        assert_ne!(bed.api_phase(&new.uid), "Failed");
        bed.wait("it runs", SOON, |bed| holds(&bed.api_status(&new.uid), "Ready"));
        let stopped = bed.line.sent_about("StopPodSandbox", old)[0].at;
        let started = bed.line.sent_about("RunPodSandbox", &new.name)[0].at;
        assert!(stopped <= started, "{stopped:?} {started:?}");
    };
    // For its host port, then for its processor.
    bed.create_and_wait(&proxy("one", 100));
    check(&mut bed, "one", &proxy("two", 700));
    check(&mut bed, "two", &in_cluster("three", 500));
    // What is booked for a pod that waits is not given to another one.
    bed.api().delete("uid-three", Some(0));
    bed.create(&in_cluster("four", 800));
    wait_until_it_waits(&mut bed, "four", "three");
    bed.create(&in_cluster("five", 300));
    bed.wait("five is refused", SOON, |bed| {
        bed.api_phase("uid-five") == "Failed"
    });
    assert_eq!(bed.api_status("uid-five").reason.as_deref(), Some("OutOfcpu"));
    // One that leaves while it waits gives its place back.
    bed.api().delete("uid-four", Some(0));
    bed.create_and_wait(&in_cluster("six", 900));
}

#[test]
fn a_removed_pod_that_does_not_end_delays_others_for_its_time_to_end() {
    let mut bed = small_in_cluster();
    bed.create_and_wait(&in_cluster("old", 700));
    bed.line
        .fault("StopContainer", "old/main", Fault::Hang, usize::MAX);
    bed.api().delete("uid-old", Some(0));
    bed.create(&in_cluster("new", 700));
    wait_until_it_waits(&mut bed, "new", "old");
    let began = bed.elapsed();
    bed.wait("it runs beside the old one", seconds(20), |bed| {
        holds(&bed.api_status("uid-new"), "Ready")
    });
    assert!(bed.elapsed() - began >= seconds(9), "{:?}", bed.elapsed() - began);
    assert!(bed.line.sent_about("StopPodSandbox", "old").is_empty());
    // Nor does another pod wait for it again.
    bed.create_and_wait(&in_cluster("next", 300));
}

#[test]
fn a_deleted_pod_that_does_not_end_counts_after_its_time_to_end() {
    let mut bed = small_in_cluster();
    bed.create_and_wait(&in_cluster("old", 700));
    bed.line
        .fault("StopContainer", "old/main", Fault::Hang, usize::MAX);
    bed.api().delete("uid-old", None);
    bed.create(&in_cluster("new", 700));
    wait_until_it_waits(&mut bed, "new", "old");
    bed.wait("it is refused as upstream does", seconds(20), |bed| {
        bed.api_phase("uid-new") == "Failed"
    });
    assert_eq!(bed.api_status("uid-new").reason.as_deref(), Some("OutOfcpu"));
    assert_eq!(bed.api_events("new", "OutOfcpu").len(), 1);
}

#[test]
fn a_critical_pod_preempts_only_what_terminating_pods_do_not_free() {
    let mut bed = small_in_cluster();
    bed.create_and_wait(&in_cluster("ends", 500));
    bed.create_and_wait(&in_cluster("victim", 300));
    bed.create_and_wait(&in_cluster("bystander", 200));
    bed.line.fault(
        "StopContainer",
        "ends/main",
        Fault::SlowAnswer(seconds(4)),
        usize::MAX,
    );
    bed.api().delete("uid-ends", Some(0));
    bed.wait("it terminates", SOON, |bed| {
        !bed.line.sent_about("StopContainer", "ends/main").is_empty()
    });
    bed.put(&asking("critical", 800));
    bed.wait("it runs", seconds(20), |bed| bed.is_ready("critical"));
    assert_eq!(bed.api_events("victim", "Preempting").len(), 1);
    assert!(bed.api_events("bystander", "Preempting").is_empty());
    let stopped = bed.line.sent_about("StopPodSandbox", "ends")[0].at;
    let started = bed.line.sent_about("RunPodSandbox", "critical")[0].at;
    assert!(stopped <= started, "{stopped:?} {started:?}");
}
