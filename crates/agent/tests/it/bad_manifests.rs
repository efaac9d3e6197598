//! Manifests that are bad when the agent starts: what ran from them goes on.

use std::time::Duration;

use crate::bed::{Bed, PodText, SOON};

const BAD: &[u8] = b"apiVersion: v1\nkind: Pod\nmetadata: {na";

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn stops(bed: &Bed, name: &str) -> usize {
    let about = format!("{name}/main");
    bed.line.sent_about("StopContainer", &about).len()
}

/// A node that was killed with these pods running; the manifest of the first has gone bad since.
fn with_bad_manifest(pods: &[&PodText]) -> Bed {
    let mut bed = Bed::started();
    for pod in pods {
        bed.put_and_wait(pod);
    }
    bed.kill();
    bed.files.place(&pods[0].path(), BAD);
    bed
}

#[test]
fn a_pod_goes_on_whose_manifest_went_bad_before_a_restart() {
    let (web, other) = (PodText::new("web", &[]), PodText::new("other", &[]));
    let mut bed = with_bad_manifest(&[&web, &other]);
    bed.start();
    bed.wait("the other one is adopted", seconds(30), |bed| {
        bed.is_ready("other")
    });
    // Also over several searches for garbage.
    bed.pass(seconds(300));
    assert_eq!(stops(&bed, "web"), 0, "{}", bed.trace());
    assert!(
        bed.files
            .content("/var/log/pods/default_web-sim_uid-web/main/0.log".as_ref())
            .is_some()
    );
    let wait = bed.explain("web").waits_for.expect("it waits for its file");
    assert!(wait.what.contains("a manifest that can be used"), "{wait:?}");
    let path = web.path().display().to_string();
    assert!(
        wait.last_error.is_some_and(|text| text.contains(&path)),
        "the file is named"
    );

    bed.put(&web);
    bed.wait("it is adopted", seconds(30), |bed| bed.is_ready("web"));
    assert_eq!((stops(&bed, "web"), stops(&bed, "other")), (0, 0));
    assert_eq!(bed.line.sent_about("CreateContainer", "web/main").len(), 1);
}

#[test]
fn it_ends_with_its_file() {
    let web = PodText::new("web", &[]);
    let mut bed = with_bad_manifest(&[&web]);
    bed.start();
    bed.pass(seconds(60));
    assert_eq!(stops(&bed, "web"), 0);
    bed.remove(&web);
    bed.wait("it is gone", seconds(100), |bed| {
        !bed.line.sent_about("RemovePodSandbox", "web").is_empty()
    });
}

#[test]
fn a_bad_manifest_keeps_nobody_whom_this_life_knows_or_replaces() {
    let (bad, web, gone) = (
        PodText::new("bad", &[]),
        PodText::new("web", &[]),
        PodText::new("gone", &[]),
    );
    let mut bed = with_bad_manifest(&[&bad, &web, &gone]);
    // Another pod of the name takes its place.
    bed.put(&web.clone().uid("uid-second"));
    bed.start();
    bed.wait("the second one runs", seconds(60), |bed| {
        !bed.line.sent_about("StartContainer", "second/main").is_empty()
    });
    assert_eq!(stops(&bed, "web"), 1);
    bed.wait("the other one is adopted", SOON, |bed| bed.is_ready("gone"));
    // A pod that this life has seen ends with its file.
    bed.remove(&gone);
    bed.wait("it is gone", seconds(100), |bed| {
        !bed.line.sent_about("RemovePodSandbox", "gone").is_empty()
    });
    assert_eq!(stops(&bed, "bad"), 0, "{}", bed.trace());
}

#[test]
fn what_cannot_be_used_and_what_all_pods_wait_for_is_explained() {
    let mut bed = Bed::new();
    bed.add_http_source();
    bed.start();
    let waits = |bed: &mut Bed| {
        let waits = bed.node_explanation().waits_for.into_iter();
        waits.map(|wait| wait.what).collect::<Vec<_>>()
    };
    bed.wait("only the second source is waited for", SOON, |bed| {
        waits(bed) == ["pods from staticPodURL (until then no pod is removed)"]
    });
    let (web, twin) = (PodText::new("web", &[]), PodText::new("web", &[]));
    let twin = PodText {
        file: "twin.json".to_owned(),
        uid: "uid-twin".to_owned(),
        ..twin
    };
    bed.put_and_wait(&web);
    assert!(bed.node_explanation().manifests.is_empty());
    bed.files.place(&web.path(), BAD);
    let problem_of = |bed: &mut Bed, path: &std::path::Path| {
        let path = path.display().to_string();
        let manifests = bed.node_explanation().manifests.into_iter();
        let mut found = manifests.filter(|manifest| manifest.file == path);
        found.next().map(|manifest| manifest.problem)
    };
    bed.wait("the file is named", seconds(30), |bed| {
        problem_of(bed, &web.path()).is_some_and(|problem| !problem.is_empty())
    });
    bed.put(&web);
    bed.put(&twin);
    bed.wait("the second pod of one name is named", seconds(30), |bed| {
        let problems = [problem_of(bed, &web.path()), problem_of(bed, &twin.path())];
        let mut problems = problems.into_iter().flatten();
        problems.next().is_some_and(|text| text.contains("same name")) && problems.next().is_none()
    });
    bed.remove(&twin);
    bed.wait("every file is good", seconds(30), |bed| {
        bed.node_explanation().manifests.is_empty()
    });
}
