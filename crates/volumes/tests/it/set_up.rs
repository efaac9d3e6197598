//! Setting up: what reaches the machine, when, and how failures are reported.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rubelet_ports::{MountRequest, PodVolumes};
use rubelet_sim::volumes::VolumeFaults;
use serde_json::json;

use crate::bed::{Bed, all_kinds, pod, volume};

#[test]
fn everything_is_there_and_stays_without_more_work() {
    let bed = Bed::new();
    let mut pod = pod("u1", all_kinds());
    bed.set_up(&pod).unwrap();
    let batches = bed.batches();
    assert_eq!(
        batches.len(),
        2,
        "the pod's own volumes at once, the node's path by itself"
    );
    let info = volume("u1", "kubernetes.io~downward-api", "info");
    assert_eq!(bed.files.content(&info.join("revision")).unwrap(), b"1");
    assert_eq!(bed.machine.leftovers().len(), 2);
    bed.set_up(&pod).unwrap();
    assert_eq!(bed.batches(), [], "nothing is asked of the machine");
    pod.metadata
        .annotations
        .as_mut()
        .unwrap()
        .insert("revision".to_owned(), "2".to_owned());
    bed.set_up(&pod).unwrap();
    let batches = bed.batches();
    assert_eq!(batches.len(), 1);
    assert!(
        batches[0].steps.iter().all(|step| step.volume == "info"),
        "{batches:?}"
    );
    assert_eq!(bed.files.content(&info.join("revision")).unwrap(), b"2");
    assert_eq!(bed.events(), [""; 0]);
}

#[test]
fn files_follow_the_nodes_addresses() {
    let bed = Bed::new();
    let item = json!({ "path": "node", "fieldRef": { "fieldPath": "status.hostIP" } });
    let pod = pod(
        "u1",
        json!([{ "name": "info", "downwardAPI": { "items": [item] } }]),
    );
    let file = volume("u1", "kubernetes.io~downward-api", "info").join("node");
    bed.set_up(&pod).unwrap_err();
    for address in ["10.0.0.1", "10.0.0.2"] {
        bed.addresses.set(address);
        bed.pass(Duration::from_secs(10));
        bed.set_up(&pod).unwrap();
        assert_eq!(bed.files.content(&file).unwrap(), address.as_bytes());
    }
}

#[test]
fn a_pod_without_volumes_asks_for_nothing() {
    let bed = Bed::new();
    bed.set_up(&pod("u1", json!([]))).unwrap();
    assert_eq!(bed.batches(), []);
    assert_eq!(bed.executor.elapsed(), Duration::ZERO);
}

#[test]
fn failures_are_told_and_wait() {
    let bed = Bed::new();
    let pod = pod(
        "u1",
        json!([
            { "name": "good", "emptyDir": {} },
            { "name": "bad", "hostPath": { "path": "/missing", "type": "Directory" } },
            { "name": "worse", "emptyDir": { "medium": "Ssd" } },
        ]),
    );
    let problem = "MountVolume.SetUp failed for volume \"bad\" : hostPath type check failed, /missing is not a directory, \
        unable to determine its type: path \"/missing\" does not exist";
    let worse = "MountVolume.SetUp failed for volume \"worse\" : unknown storage medium \"Ssd\"";
    let failure = bed.set_up(&pod).unwrap_err();
    assert_eq!(failure.message, format!("{problem}; {worse}"));
    assert_eq!(failure.retry_at, Some(bed.now().plus(Duration::from_millis(500))));
    assert_eq!(
        bed.events(),
        [format!("FailedMount: {problem}"), format!("FailedMount: {worse}")]
    );
    assert!(bed.files.exists(&volume("u1", "kubernetes.io~empty-dir", "good")));
    let _ = bed.batches();
    let again = bed.set_up(&pod).unwrap_err();
    assert_eq!(again.message, failure.message);
    assert_eq!(bed.batches(), [], "its backoff is not over");
    assert_eq!(bed.events(), [""; 0]);
    bed.pass(Duration::from_millis(500));
    let later = bed.set_up(&pod).unwrap_err();
    assert_eq!(later.retry_at, Some(bed.now().plus(Duration::from_secs(1))));
    assert_eq!(bed.batches().len(), 1, "only the bad one is tried again");
    bed.files.make_directory(Path::new("/missing"));
    bed.pass(Duration::from_secs(1));
    let left = bed.set_up(&pod).unwrap_err();
    assert_eq!(left.message, worse);
}

#[test]
fn a_dead_path_degrades_only_its_pod() {
    let bed = Bed::new();
    bed.machine.set_faults(VolumeFaults {
        dead: Some("/dead".into()),
        ..VolumeFaults::default()
    });
    let hung = pod(
        "hung",
        json!([
            { "name": "own", "emptyDir": {} },
            { "name": "dead", "hostPath": { "path": "/dead/x", "type": "Directory" } },
        ]),
    );
    let hung_pod = Arc::new(hung.clone());
    let mut asked = bed.ask(|actor| Box::pin(async move { actor.set_up(hung_pod).await }));
    let begun = bed.executor.elapsed();
    bed.set_up(&pod("fine", all_kinds())).unwrap();
    assert!(
        bed.executor.elapsed() - begun < Duration::from_secs(1),
        "others go on"
    );
    let failure = bed
        .answer_within(&mut asked, Duration::from_secs(40))
        .unwrap_err();
    assert!(failure.message.contains("volume \"dead\""), "{failure}");
    bed.pass(Duration::from_secs(1));
    let begun = bed.executor.elapsed();
    bed.set_up(&hung).unwrap_err();
    assert!(
        bed.executor.elapsed() - begun < Duration::from_secs(1),
        "what hangs is not asked again"
    );
    bed.tear_down("hung").unwrap();
    bed.tear_down("fine").unwrap();
    assert_eq!(bed.left(), [""; 0]);
}

#[test]
fn sub_paths_are_bound_for_each_container() {
    let bed = Bed::new();
    let mut pod = pod("u1", json!([{ "name": "disk", "emptyDir": {} }]));
    let container = &mut pod.spec.as_mut().unwrap().containers[0];
    container.volume_mounts = serde_json::from_value(json!([
        { "name": "disk", "mountPath": "/a", "subPathExpr": "logs/$(NAME)" },
        { "name": "disk", "mountPath": "/b" },
    ]))
    .unwrap();
    let request = MountRequest {
        container: container.clone(),
        environment: [("NAME".to_owned(), "x".to_owned())].into(),
        images: BTreeMap::new(),
        supports_recursive_read_only: false,
        pod: Arc::new(pod.clone()),
    };
    bed.set_up(&pod).unwrap();
    let mut asked = {
        let request = request.clone();
        bed.ask(|actor| Box::pin(async move { actor.mounts(request).await }))
    };
    let mounts = bed.answer_within(&mut asked, Duration::from_secs(1)).unwrap();
    let hosts: Vec<&str> = mounts.iter().map(|mount| mount.host_path.as_str()).collect();
    assert_eq!(
        hosts,
        [
            "/var/lib/kubelet/pods/u1/volume-subpaths/disk/main/0",
            "/var/lib/kubelet/pods/u1/volumes/kubernetes.io~empty-dir/disk",
        ]
    );
    assert_eq!(bed.machine.leftovers().len(), 1);
    bed.machine.set_faults(VolumeFaults {
        fails: 10_000,
        ..VolumeFaults::default()
    });
    let mut asked = bed.ask(|actor| Box::pin(async move { actor.mounts(request).await }));
    let failure = bed.answer_within(&mut asked, Duration::from_secs(1)).unwrap_err();
    assert_eq!(
        failure.message, "failed to prepare subPath for volumeMount \"disk\" of container \"main\"",
        "what is on the node is not told"
    );
    bed.machine.set_faults(VolumeFaults::default());
    bed.tear_down("u1").unwrap();
    assert_eq!(bed.left(), [""; 0]);
}
