//! Volumes that show objects of the API server: what is asked, when files change, and what becomes of objects that are missing.

use std::sync::Arc;
use std::time::Duration;

use rubelet_ports::PodVolumes;
use rubelet_sim::volumes::VolumeFaults;
use serde_json::json;

use crate::bed::{Bed, all_kinds, api_kinds, pod, volume};

const MAP: &str = "kubernetes.io~configmap";
const SECRET: &str = "kubernetes.io~secret";
const PROJECTED: &str = "kubernetes.io~projected";

impl Bed {
    fn file(&self, plugin: &str, name: &str, file: &str) -> Option<String> {
        let content = self.files.content(&volume("u1", plugin, name).join(file))?;
        Some(String::from_utf8(content).unwrap())
    }
}

#[test]
fn objects_become_files() {
    let bed = Bed::new();
    let pod = pod("u1", api_kinds());
    bed.set_up(&pod).unwrap();
    assert_eq!(bed.batches().len(), 1, "all of them at once");
    assert_eq!(bed.file(MAP, "map", "b").unwrap(), "2");
    assert_eq!(bed.file(SECRET, "key", "word").unwrap(), "hush");
    assert_eq!(bed.file(PROJECTED, "access", "ca.crt").unwrap(), "1");
    assert_eq!(bed.file(PROJECTED, "access", "namespace").unwrap(), "default");
    let token = bed.file(PROJECTED, "access", "token").unwrap();
    assert_eq!(token, "default/ for [] 3607 s u1/u1 #0");
    assert_eq!(
        bed.objects().questions(),
        [
            "configmap \"settings\"",
            "secret \"keys\"",
            "token default/ for [] 3607 s u1/u1",
        ],
        "each once"
    );
    assert_eq!(bed.machine.leftovers().len(), 2, "a ConfigMap is on disk");
    bed.set_up(&pod).unwrap();
    assert_eq!(
        bed.batches(),
        [],
        "what has not changed asks nothing of the machine"
    );
    assert_eq!(bed.events(), [""; 0]);
    bed.tear_down("u1").unwrap();
    assert_eq!(bed.left(), [""; 0]);
}

#[test]
fn a_change_reaches_only_its_volumes() {
    let bed = Bed::new();
    let pod = pod("u1", api_kinds());
    bed.set_up(&pod).unwrap();
    let _ = bed.batches();
    let touched = |bed: &Bed| {
        let batches = bed.batches();
        let names = batches
            .iter()
            .flat_map(|batch| &batch.steps)
            .map(|step| step.volume.clone());
        let mut names: Vec<String> = names.collect();
        names.dedup();
        names
    };
    bed.objects().put_secret("keys", &[("word", b"louder")]);
    bed.set_up(&pod).unwrap();
    assert_eq!(touched(&bed), ["key"]);
    assert_eq!(bed.file(SECRET, "key", "word").unwrap(), "louder");
    bed.objects().renew();
    bed.set_up(&pod).unwrap();
    assert_eq!(touched(&bed), ["access"]);
    assert!(bed.file(PROJECTED, "access", "token").unwrap().ends_with("#1"));
    bed.objects().put_config_map("settings", &[("a", "new")], &[]);
    bed.set_up(&pod).unwrap();
    assert_eq!(touched(&bed), ["map", "access"]);
    assert_eq!(bed.file(PROJECTED, "access", "ca.crt").unwrap(), "new");
}

#[test]
fn a_missing_object_is_waited_for_and_told() {
    let bed = Bed::new();
    bed.objects().take("settings");
    let pod = pod(
        "u1",
        json!([
            { "name": "disk", "emptyDir": {} },
            { "name": "map", "configMap": { "name": "settings" } },
        ]),
    );
    let problem = "MountVolume.SetUp failed for volume \"map\" : configmap \"settings\" not found";
    let failure = bed.set_up(&pod).unwrap_err();
    assert_eq!(failure.message, problem);
    assert_eq!(failure.retry_at, Some(bed.now().plus(Duration::from_millis(500))));
    assert_eq!(bed.events(), [format!("FailedMount: {problem}")]);
    for pause in [500, 1000, 2000, 4000, 8000] {
        bed.pass(Duration::from_millis(pause));
        bed.set_up(&pod).unwrap_err();
        assert_eq!(bed.events().len(), 1, "after {pause} ms");
        assert_eq!(bed.set_up(&pod).unwrap_err().message, problem);
        assert_eq!(bed.events(), [""; 0], "it was told a moment ago");
    }
    bed.objects().put_config_map("settings", &[("a", "1")], &[]);
    bed.set_up(&pod).unwrap();
    assert_eq!(
        bed.file(MAP, "map", "a").unwrap(),
        "1",
        "without waiting for the backoff"
    );
    assert_eq!(bed.events(), [""; 0]);
}

#[test]
fn the_newest_problem_is_what_the_pod_waits_for() {
    let bed = Bed::new();
    bed.objects().fail(Some("connection refused"));
    let items = json!([{ "key": "none", "path": "f" }]);
    let pod = pod(
        "u1",
        json!([{ "name": "map", "configMap": { "name": "settings", "items": items } }]),
    );
    let failure = bed.set_up(&pod).unwrap_err();
    let words = |problem: &str| format!("MountVolume.SetUp failed for volume \"map\" : {problem}");
    assert_eq!(failure.message, words("connection refused"));
    bed.objects().fail(None);
    let failure = bed.set_up(&pod).unwrap_err();
    assert_eq!(
        failure.message,
        words("configmap references non-existent config key: none")
    );
    assert_eq!(bed.events().len(), 1, "an event only after the pause");
    bed.pass(Duration::from_millis(500));
    bed.set_up(&pod).unwrap_err();
    assert_eq!(bed.events(), [format!("FailedMount: {}", failure.message)]);
}

#[test]
fn files_of_a_running_pod_stay_when_they_cannot_be_renewed() {
    let bed = Bed::new();
    let pod = pod("u1", api_kinds());
    bed.set_up(&pod).unwrap();
    let _ = bed.batches();
    bed.objects().take("settings");
    bed.set_up(&pod).unwrap();
    let mut events = bed.events();
    events.sort();
    assert_eq!(
        events,
        [
            "FailedMount: MountVolume.SetUp failed for volume \"access\" : configmap \"settings\" not found",
            "FailedMount: MountVolume.SetUp failed for volume \"map\" : configmap \"settings\" not found",
        ]
    );
    assert_eq!(bed.batches(), [], "nothing is touched");
    assert_eq!(bed.file(MAP, "map", "b").unwrap(), "2");
    bed.set_up(&pod).unwrap();
    assert_eq!(bed.events(), [""; 0], "and told with growing pauses");
    bed.objects()
        .put_config_map("settings", &[("a", "1"), ("b", "2")], &[]);
    bed.set_up(&pod).unwrap();
    assert_eq!(bed.batches(), [], "it is as it was");
    assert_eq!(bed.events(), [""; 0]);
}

#[test]
fn a_write_that_fails_on_a_running_pod_is_tried_again() {
    let bed = Bed::new();
    let pod = pod(
        "u1",
        json!([{ "name": "map", "configMap": { "name": "settings" } }]),
    );
    bed.set_up(&pod).unwrap();
    let broken = VolumeFaults {
        fails: 10_000,
        ..VolumeFaults::default()
    };
    bed.machine.set_faults(broken);
    bed.objects().put_config_map("settings", &[("a", "new")], &[]);
    bed.set_up(&pod).unwrap();
    assert_eq!(bed.events().len(), 1);
    let _ = bed.batches();
    bed.set_up(&pod).unwrap();
    assert_eq!(bed.batches(), [], "its backoff is not over");
    bed.machine.set_faults(VolumeFaults::default());
    bed.objects().put_config_map("settings", &[("a", "newer")], &[]);
    bed.set_up(&pod).unwrap();
    assert_eq!(
        bed.file(MAP, "map", "a").unwrap(),
        "newer",
        "other files do not wait"
    );
    bed.machine.set_faults(VolumeFaults {
        fails: 10_000,
        ..VolumeFaults::default()
    });
    bed.objects().put_config_map("settings", &[("a", "newest")], &[]);
    bed.set_up(&pod).unwrap();
    bed.machine.set_faults(VolumeFaults::default());
    bed.pass(Duration::from_secs(2));
    // Back to what stood before the failure: it is not known how far the failed attempt came.
    bed.objects().put_config_map("settings", &[("a", "newer")], &[]);
    let _ = bed.batches();
    bed.set_up(&pod).unwrap();
    assert_eq!(bed.batches().len(), 1, "written again to be sure");
    assert_eq!(bed.file(MAP, "map", "a").unwrap(), "newer");
}

#[test]
fn a_pod_without_such_volumes_asks_nobody() {
    let bed = Bed::new();
    bed.set_up(&pod("u1", all_kinds())).unwrap();
    assert_eq!(bed.objects().questions(), [""; 0]);
}

#[test]
fn everything_is_asked_for_at_once() {
    let bed = Bed::new();
    bed.objects().put_bundle("root", "anchors");
    bed.objects().hold(true);
    let pod = Arc::new(pod(
        "u1",
        json!([
            { "name": "map", "configMap": { "name": "settings" } },
            { "name": "key", "secret": { "secretName": "keys" } },
            { "name": "all", "projected": { "sources": [
                { "serviceAccountToken": { "path": "t" } },
                { "serviceAccountToken": { "path": "v", "audience": "vault" } },
                { "clusterTrustBundle": { "name": "root", "path": "b" } },
                { "podCertificate": { "signerName": "x/y", "keyType": "ED25519", "keyPath": "k" } },
            ] } },
        ]),
    ));
    let asked = Arc::clone(&pod);
    let mut answer = bed.ask(|actor| Box::pin(async move { actor.set_up(asked).await }));
    bed.pass(Duration::from_secs(1));
    assert_eq!(bed.objects().questions().len(), 6, "before any answer");
    bed.objects().hold(false);
    bed.answer_within(&mut answer, Duration::from_secs(1)).unwrap();
    assert_eq!(bed.file(PROJECTED, "all", "k").unwrap(), "key #0\n");
}

#[test]
fn nobody_is_waited_for_without_end() {
    let bed = Bed::new();
    bed.objects().hold(true);
    let begun = bed.executor.elapsed();
    let hung = Arc::new(pod("u1", api_kinds()));
    let asked = Arc::clone(&hung);
    let mut asked = bed.ask(|actor| Box::pin(async move { actor.set_up(asked).await }));
    let failure = bed
        .answer_within(&mut asked, Duration::from_secs(130))
        .unwrap_err();
    assert_eq!(
        failure.message,
        "MountVolume.SetUp failed for volume \"access\" : [a token of service account \"\": no result within 120 s, \
        configmap \"settings\": no result within 120 s]; \
        MountVolume.SetUp failed for volume \"key\" : secret \"keys\": no result within 120 s; \
        MountVolume.SetUp failed for volume \"map\" : configmap \"settings\": no result within 120 s",
    );
    assert!(bed.executor.elapsed() - begun < Duration::from_secs(121));
    let other = pod("u2", all_kinds());
    let mut asked = bed.ask(|actor| Box::pin(async move { actor.set_up(hung).await }));
    bed.set_up(&other).unwrap();
    bed.answer_within(&mut asked, Duration::from_secs(130))
        .unwrap_err();
    bed.tear_down("u1").unwrap();
}

#[test]
fn who_gives_up_asking_does_not_keep_the_end_waiting() {
    let bed = Bed::new();
    bed.objects().hold(true);
    let hung = Arc::new(pod("u1", api_kinds()));
    let (give_up, given_up) = tokio::sync::oneshot::channel::<()>();
    let mut asked = bed.ask(|actor| {
        Box::pin(async move {
            tokio::select! {
                _ = actor.set_up(hung) => false,
                _ = given_up => true,
            }
        })
    });
    bed.pass(Duration::from_secs(1));
    give_up.send(()).unwrap();
    assert!(bed.answer_within(&mut asked, Duration::from_secs(1)));
    let begun = bed.executor.elapsed();
    bed.tear_down("u1").unwrap();
    assert!(bed.executor.elapsed() - begun < Duration::from_secs(1));
}

#[test]
fn a_node_without_an_api_server_says_so() {
    let bed = Bed::with(None);
    let failure = bed.set_up(&pod("u1", api_kinds())).unwrap_err();
    assert_eq!(
        failure.message,
        "MountVolume.SetUp failed for volume \"access\" : [a service account token cannot be had: this node has no API server, \
        configmap \"settings\" cannot be had: this node has no API server]; \
        MountVolume.SetUp failed for volume \"key\" : secret \"keys\" cannot be had: this node has no API server; \
        MountVolume.SetUp failed for volume \"map\" : configmap \"settings\" cannot be had: this node has no API server",
    );
    bed.set_up(&pod("u2", all_kinds())).unwrap();
    let optional = pod(
        "u3",
        json!([{ "name": "m", "configMap": { "name": "x", "optional": true } }]),
    );
    assert!(bed.set_up(&optional).is_err(), "nobody knows that there is none");
}

#[test]
fn what_is_secret_is_never_printed() {
    let bed = Bed::new();
    bed.set_up(&pod("u1", api_kinds())).unwrap();
    let printed = format!("{:?}", bed.batches());
    assert!(
        printed.contains("\"word\"") && printed.contains("\"token\""),
        "{printed}"
    );
    assert!(
        !printed.contains("hush") && !printed.contains("3607"),
        "{printed}"
    );
}
