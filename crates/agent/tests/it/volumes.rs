//! Volumes on a pod's way: before its containers, after them, and when they do not come.

use std::path::Path;
use std::time::Duration;

use rubelet_sim::node;
use rubelet_sim::volumes::VolumeFaults;
use serde_json::{Value, json};

use crate::bed::{Bed, PodText, SOON};

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn with_volumes(name: &str, volumes: Value) -> PodText {
    let mounts: Vec<Value> = volumes
        .as_array()
        .unwrap()
        .iter()
        .map(|volume| json!({"name": volume["name"], "mountPath": format!("/v/{}", volume["name"].as_str().unwrap())}))
        .collect();
    PodText::new(name, &[])
        .container("volumeMounts", json!(mounts))
        .spec("volumes", volumes)
}

fn host_path(path: &str) -> Value {
    json!([{"name": "own", "emptyDir": {"medium": "Memory"}}, {"name": "host", "hostPath": {"path": path, "type": "Directory"}}])
}

fn pods_left(bed: &Bed) -> Vec<String> {
    let paths = bed.files.paths_below(&Path::new(node::ROOT).join("pods"));
    let paths = paths.iter().map(|path| path.display().to_string());
    bed.volumes.leftovers().into_iter().chain(paths).collect()
}

#[test]
fn a_pod_waits_for_its_volumes_and_says_so() {
    let mut bed = Bed::started();
    let pod = with_volumes("web", host_path("/data"));
    bed.put(&pod);
    bed.wait("it is told", SOON, |bed| {
        !bed.events("web", "FailedMount").is_empty()
    });
    let words = "MountVolume.SetUp failed for volume \"host\" : hostPath type check failed, /data is not a directory, unable to \
        determine its type: path \"/data\" does not exist";
    assert_eq!(bed.events("web", "FailedMount")[0].message, words);
    assert!(bed.last_error("web").contains(words), "{}", bed.last_error("web"));
    bed.pass(seconds(20));
    assert!(
        bed.line.sent_about("RunPodSandbox", "web").is_empty(),
        "no sandbox before the volumes"
    );
    let tries = bed.events("web", "FailedMount").len();
    assert!((4..=7).contains(&tries), "{tries} tries in 20 s: pauses grow");
    bed.files.make_directory(Path::new("/data"));
    bed.wait("it runs", seconds(60), |bed| bed.is_ready("web"));
    bed.remove(&pod);
    bed.wait("nothing is left", seconds(100), |bed| pods_left(bed).is_empty());
    assert!(bed.files.exists(Path::new("/data")));
}

#[test]
fn a_dead_volume_holds_up_nobody_else_and_no_restart() {
    let mut bed = Bed::started();
    bed.volumes.set_faults(VolumeFaults {
        dead: Some("/dead".into()),
        ..VolumeFaults::default()
    });
    let stuck = with_volumes("stuck", host_path("/dead/x"));
    bed.put(&stuck);
    bed.wait("it waits", SOON, |bed| {
        bed.waits_for("stuck").contains("the pod's volumes: own, host")
    });
    let begun = bed.elapsed();
    bed.put_and_wait(&with_volumes("fine", json!([{"name": "own", "emptyDir": {}}])));
    bed.put_and_wait(&PodText::new("plain", &[]));
    assert!(bed.elapsed() - begun < seconds(10));
    bed.kill();
    bed.start();
    bed.wait("the others are there again", SOON, |bed| {
        bed.is_ready("fine") && bed.is_ready("plain")
    });
    assert_eq!(bed.line.sent_about("CreateContainer", "fine/main").len(), 1);
    // It can be removed although it hangs.
    bed.remove(&stuck);
    bed.wait("its mounts are gone", seconds(120), |bed| {
        bed.volumes.leftovers().is_empty()
    });
}

#[test]
fn files_follow_the_definition_of_a_running_pod() {
    let mut bed = Bed::started();
    let field = json!({"path": "word", "fieldRef": {"fieldPath": "metadata.annotations['word']"}});
    let pod = |word: &str| {
        let mut pod = with_volumes(
            "web",
            json!([{"name": "info", "downwardAPI": {"items": [field.clone()]}}]),
        )
        .uid("uid-web");
        pod.metadata = json!({"annotations": {"word": word}});
        pod
    };
    bed.put_and_wait(&pod("one"));
    let file = Path::new(node::ROOT).join("pods/uid-web/volumes/kubernetes.io~downward-api/info/word");
    assert_eq!(bed.files.content(&file).unwrap(), b"one");
    bed.put(&pod("two"));
    bed.wait("the file is new", SOON, |bed| {
        bed.files.content(&file).as_deref() == Some(b"two")
    });
    assert_eq!(
        bed.line.sent_about("CreateContainer", "web/main").len(),
        1,
        "its container goes on"
    );
}

#[test]
fn a_pod_is_over_only_when_its_volumes_are() {
    let mut bed = Bed::started();
    let first =
        with_volumes("web", json!([{"name": "own", "emptyDir": {"medium": "Memory"}}])).uid("uid-first");
    let second = PodText::new("web", &[]).uid("uid-second");
    bed.put_and_wait(&first);
    bed.volumes.set_faults(VolumeFaults {
        fails: 10_000,
        ..VolumeFaults::default()
    });
    bed.put(&second);
    bed.wait("the first one is stopped", SOON, |bed| {
        !bed.line.sent_about("StopPodSandbox", "first").is_empty()
    });
    bed.pass(seconds(10));
    assert!(
        bed.line.sent_about("RunPodSandbox", "second").is_empty(),
        "its name is not free yet"
    );
    bed.volumes.set_faults(VolumeFaults::default());
    bed.wait("the second one runs", seconds(60), |bed| {
        !bed.line.sent_about("StartContainer", "second/main").is_empty()
    });
    assert!(bed.volumes.leftovers().is_empty());
}

#[test]
fn what_an_orphan_left_goes_after_all_sources_delivered() {
    let mut bed = Bed::started();
    let pod = with_volumes("web", json!([{"name": "own", "emptyDir": {"medium": "Memory"}}]));
    bed.put_and_wait(&pod);
    bed.kill();
    bed.remove(&pod);
    bed.add_http_source();
    bed.start();
    bed.pass(seconds(100));
    assert_eq!(
        bed.volumes.leftovers().len(),
        1,
        "another source may still want it"
    );
    bed.http.serve(Some(
        br#"{"apiVersion": "v1", "kind": "PodList", "items": []}"#.to_vec(),
    ));
    bed.wait("nothing is left", seconds(200), |bed| pods_left(bed).is_empty());
}

#[test]
fn files_follow_the_definition_while_a_hook_takes_long() {
    let mut bed = Bed::started();
    let field = json!({"path": "word", "fieldRef": {"fieldPath": "metadata.annotations['word']"}});
    let hook = json!({"postStart": {"exec": {"command": ["take", "600000"]}}});
    let pod = |word: &str| {
        let volumes = json!([{"name": "info", "downwardAPI": {"items": [field.clone()]}}]);
        let mut pod = with_volumes("web", volumes)
            .uid("uid-web")
            .container("lifecycle", hook.clone());
        pod.metadata = json!({"annotations": {"word": word}});
        pod
    };
    let file = Path::new(node::ROOT).join("pods/uid-web/volumes/kubernetes.io~downward-api/info/word");
    bed.put(&pod("one"));
    bed.wait("the hook runs", SOON, |bed| {
        bed.waits_for("web").contains("postStart")
    });
    assert_eq!(bed.files.content(&file).unwrap(), b"one");
    bed.put(&pod("two"));
    bed.wait("the file is new", SOON, |bed| {
        bed.files.content(&file).as_deref() == Some(b"two")
    });
    assert!(
        bed.waits_for("web").contains("postStart"),
        "{}",
        bed.waits_for("web")
    );
}
