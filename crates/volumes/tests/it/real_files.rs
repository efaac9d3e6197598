//! Volumes that show objects of the API server, on the real kernel: layout, modes, switches, and what survives.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use rubelet_fakes::PodEvents;
use rubelet_host::{HostClock, HostFiles, HostVolumes, TokioSpawner};
use rubelet_model::observation::PodUid;
use rubelet_ports::{FileReader as _, MountRequest, PodVolumes, VolumeFailure};
use rubelet_testbed::Scope;
use rubelet_volumes::{Volumes, VolumesMetrics, VolumesPorts};
use serde_json::{Value, json};
use tokio::runtime::Handle;

use crate::bed::{pod, settings, texts};
use crate::objects::FakeObjects;

struct Machine {
    actor: Volumes,
    objects: Arc<FakeObjects>,
    events: Arc<PodEvents>,
    scope: Scope,
}

impl Machine {
    fn new(test: &str) -> Self {
        let scope = Scope::new(test).unwrap();
        let objects = Arc::new(FakeObjects::default());
        let events = Arc::new(PodEvents::default());
        let actor = start(scope.dir(), &objects, &events);
        Self {
            actor,
            objects,
            events,
            scope,
        }
    }

    /// Another process on the same disk.
    fn restart(&mut self) {
        self.actor = start(self.scope.dir(), &self.objects, &self.events);
    }

    async fn set_up(&self, pod: &Pod) -> Result<(), VolumeFailure> {
        self.actor.set_up(Arc::new(pod.clone())).await
    }

    fn volume(&self, plugin: &str, name: &str) -> PathBuf {
        let pods = self.scope.dir().join("pods/u1/volumes");
        pods.join(format!("kubernetes.io~{plugin}")).join(name)
    }

    /// Takes the pod down; nothing may be left of it.
    async fn end(&self) {
        self.actor.tear_down(&PodUid::from("u1")).await.unwrap();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let own = self.scope.dir().to_str().unwrap();
        assert!(!mounts.contains(own), "{mounts}");
        for directory in ["volumes", "plugins/kubernetes.io~empty-dir"] {
            let directory = self.scope.dir().join("pods/u1").join(directory);
            let plugins =
                fs::read_dir(&directory).map(|plugins| plugins.map(|plugin| plugin.unwrap().path()));
            for plugin in plugins.into_iter().flatten() {
                assert_eq!(fs::read_dir(&plugin).unwrap().count(), 0, "{}", plugin.display());
            }
        }
    }
}

fn start(root: &Path, objects: &Arc<FakeObjects>, events: &Arc<PodEvents>) -> Volumes {
    let host = Arc::new(HostVolumes::new());
    let ports = VolumesPorts {
        clock: Arc::new(HostClock::new()),
        spawner: Arc::new(TokioSpawner::new(Handle::current())),
        events: events.clone(),
        reader: host.clone(),
        writer: host,
        objects: Some(objects.clone()),
        host_ips: Arc::new(Vec::new()),
        metrics: VolumesMetrics::register(&prometheus::Registry::new()).unwrap(),
    };
    Volumes::new(ports, settings(root))
}

fn filesystem(path: &Path) -> String {
    let list = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = list.lines().rfind(|line| {
        let target = line.split(' ').nth(4).unwrap();
        Path::new(target) == path
    });
    line.map_or("disk".to_owned(), |line| {
        line.split(" - ")
            .nth(1)
            .unwrap()
            .split(' ')
            .next()
            .unwrap()
            .to_owned()
    })
}

/// Mode, owner and group.
fn access(path: &Path) -> (u32, u32, u32) {
    let found = fs::metadata(path).unwrap();
    (found.mode() & 0o7777, found.uid(), found.gid())
}

/// Names that containers see.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| !name.starts_with("..")).collect();
    names.sort();
    names
}

fn versions(directory: &Path) -> usize {
    let entries = fs::read_dir(directory).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("..2")).count()
}

/// Which version is shown, and when anything in the volume was last changed.
fn version(volume: &Path) -> (PathBuf, Vec<(i64, i64)>) {
    let shown = fs::read_link(volume.join("..data")).unwrap();
    let time = |path: PathBuf| {
        let found = fs::symlink_metadata(path).unwrap();
        (found.ctime(), found.ctime_nsec())
    };
    let mut times = vec![time(volume.to_owned()), time(volume.join(&shown))];
    times.extend(
        names(volume)
            .into_iter()
            .map(|name| time(volume.join(&shown).join(name))),
    );
    (shown, times)
}

/// What every pod of a cluster has, and then some.
fn volumes() -> Value {
    json!([
        { "name": "map", "configMap": { "name": "settings", "defaultMode": 0o640 } },
        { "name": "key", "secret": { "secretName": "keys", "defaultMode": 0o400, "items": [
            { "key": "word", "path": "deep/word" }, { "key": "word", "path": "open", "mode": 0o444 },
        ] } },
        { "name": "access", "projected": { "defaultMode": 0o644, "sources": [
            { "serviceAccountToken": { "path": "token", "expirationSeconds": 3607 } },
            { "configMap": { "name": "root-ca", "items": [{ "key": "ca.crt", "path": "ca.crt" }] } },
            { "downwardAPI": { "items": [{ "path": "namespace", "fieldRef": { "fieldPath": "metadata.namespace" } }] } },
        ] } },
        { "name": "trust", "projected": { "sources": [
            { "clusterTrustBundle": { "name": "root", "path": "anchors.pem" } },
            { "podCertificate": { "signerName": "x/y", "keyType": "ED25519", "keyPath": "key.pem", "certificateChainPath": "chain.pem", "credentialBundlePath": "all.pem" } },
        ] } },
        { "name": "maybe", "secret": { "secretName": "maybe", "optional": true } },
    ])
}

fn fill(objects: &FakeObjects) {
    objects.put_config_map(
        "settings",
        &[("a", "1"), ("b.conf", "two")],
        &[("raw", &[0, 159, 10])],
    );
    objects.put_secret("keys", &[("word", b"hush")]);
    objects.put_config_map("root-ca", &[("ca.crt", "CA")], &[]);
    objects.put_bundle("root", "ANCHORS");
}

fn with_context(mut pod: Pod, context: Value) -> Pod {
    pod.spec.as_mut().unwrap().security_context = serde_json::from_value(context).unwrap();
    pod
}

#[tokio::test]
async fn files_are_where_and_as_they_should_be() {
    let machine = Machine::new("api-volumes");
    fill(&machine.objects);
    let pod = pod("u1", volumes());
    machine.set_up(&pod).await.unwrap();
    let (map, key) = (
        machine.volume("configmap", "map"),
        machine.volume("secret", "key"),
    );
    let (granted, trust) = (
        machine.volume("projected", "access"),
        machine.volume("projected", "trust"),
    );
    let maybe = machine.volume("secret", "maybe");
    let kinds = [&map, &key, &granted, &trust, &maybe].map(|volume| filesystem(volume));
    assert_eq!(kinds, ["disk", "tmpfs", "tmpfs", "tmpfs", "tmpfs"]);
    assert_eq!(names(&map), ["a", "b.conf", "raw"]);
    assert_eq!(fs::read(map.join("raw")).unwrap(), [0, 159, 10]);
    assert_eq!(access(&map.join("raw")), (0o640, 0, 0));
    assert_eq!(access(&map).0, 0o777);
    assert_eq!(fs::read_to_string(key.join("deep/word")).unwrap(), "hush");
    assert_eq!(access(&key.join("deep/word")), (0o400, 0, 0));
    assert_eq!(access(&key.join("open")), (0o444, 0, 0));
    assert_eq!(names(&granted), ["ca.crt", "namespace", "token"]);
    assert_eq!(access(&granted.join("token")), (0o644, 0, 0));
    // As the token is read when it is adopted after a restart: links of the volume lead to the file, and none out of it.
    let held = HostFiles::new();
    let held = held.read_within(&granted, Path::new("token"), 4096).await;
    assert_eq!(held.unwrap(), fs::read(granted.join("token")).unwrap());
    assert_eq!(
        fs::read_to_string(trust.join("all.pem")).unwrap(),
        "key #0\nchain of u1 trust 1 #0\n"
    );
    assert_eq!(names(&trust), ["all.pem", "anchors.pem", "chain.pem", "key.pem"]);
    assert_eq!(names(&maybe), [""; 0]);
    let marker = machine
        .scope
        .dir()
        .join("pods/u1/plugins/kubernetes.io~empty-dir/wrapped_map/ready");
    assert!(marker.exists());
    machine.end().await;
}

#[tokio::test]
async fn what_has_not_changed_is_not_touched() {
    let mut machine = Machine::new("api-volumes-still");
    fill(&machine.objects);
    let context = json!({ "runAsUser": 1000, "fsGroup": 2000 });
    let pod = with_context(pod("u1", volumes()), context);
    machine.set_up(&pod).await.unwrap();
    let all = [
        machine.volume("configmap", "map"),
        machine.volume("secret", "key"),
        machine.volume("projected", "access"),
        machine.volume("projected", "trust"),
        machine.volume("secret", "maybe"),
    ];
    let before: Vec<_> = all
        .iter()
        .map(|volume| (version(volume), access(volume)))
        .collect();
    machine.set_up(&pod).await.unwrap();
    machine.restart();
    machine.set_up(&pod).await.unwrap();
    let after: Vec<_> = all
        .iter()
        .map(|volume| (version(volume), access(volume)))
        .collect();
    assert_eq!(before, after);
    assert_eq!(texts(&machine.events), [""; 0]);
    machine.end().await;
}

#[tokio::test]
async fn users_and_groups_get_what_is_theirs() {
    let machine = Machine::new("api-volumes-group");
    fill(&machine.objects);
    let context = json!({ "runAsUser": 1000, "fsGroup": 2000 });
    machine
        .set_up(&with_context(pod("u1", volumes()), context))
        .await
        .unwrap();
    let (map, granted) = (
        machine.volume("configmap", "map"),
        machine.volume("projected", "access"),
    );
    assert_eq!(access(&map), (0o2777, 0, 2000));
    assert_eq!(access(&map.join("a")), (0o640, 0, 2000));
    assert_eq!(access(&granted.join("token")), (0o640, 1000, 2000));
    assert_eq!(access(&granted.join("ca.crt")), (0o644, 0, 2000));
    let link = fs::symlink_metadata(granted.join("token")).unwrap();
    assert_eq!(link.uid(), 1000);
    machine.objects.renew();
    machine
        .set_up(&with_context(
            pod("u1", volumes()),
            json!({ "runAsUser": 1000, "fsGroup": 2000 }),
        ))
        .await
        .unwrap();
    assert_eq!(access(&granted.join("token")), (0o640, 1000, 2000));
    assert!(fs::read_to_string(granted.join("token")).unwrap().ends_with("#1"));
    machine.end().await;
}

#[tokio::test]
async fn keys_come_change_and_go() {
    let mut machine = Machine::new("api-volumes-keys");
    let pod = pod("u1", json!([{ "name": "m", "configMap": { "name": "m" } }]));
    let volume = machine.volume("configmap", "m");
    let large = "x".repeat(1 << 20);
    let steps: [&[(&str, &str)]; 8] = [
        &[("a", "1"), ("b", "2")],
        &[("a", "1")],
        &[("a", "1"), ("c", "2")],
        &[("renamed", "1"), ("c", "2")],
        &[("renamed", "1"), ("c", ""), ("UPPER_lower.9-x", "odd")],
        &[("large", &large)],
        &[],
        &[("a", "back")],
    ];
    for (index, texts) in steps.iter().enumerate() {
        machine.objects.put_config_map("m", texts, &[("bin", &[255; 3])]);
        // An update that a killed process has left half done.
        if index % 2 == 1 {
            fs::create_dir_all(volume.join("..2020_01_01_00_00_00.1/half")).unwrap();
            std::os::unix::fs::symlink("..2020_01_01_00_00_00.1", volume.join("..data_tmp")).unwrap();
            machine.restart();
        }
        machine.set_up(&pod).await.unwrap();
        let mut expected: Vec<String> = texts.iter().map(|(key, _)| (*key).to_owned()).collect();
        expected.push("bin".to_owned());
        expected.sort();
        assert_eq!(names(&volume), expected);
        for (key, text) in *texts {
            assert_eq!(fs::read_to_string(volume.join(key)).unwrap(), *text);
        }
        assert_eq!(fs::read(volume.join("bin")).unwrap(), [255; 3]);
        assert_eq!(versions(&volume), 1);
        assert!(!volume.join("..data_tmp").exists());
    }
    machine.end().await;
}

#[tokio::test]
async fn a_running_pod_keeps_its_files() {
    let machine = Machine::new("api-volumes-gone");
    fill(&machine.objects);
    machine.objects.put_secret("maybe", &[("x", b"1")]);
    let pod = pod("u1", volumes());
    machine.set_up(&pod).await.unwrap();
    let (map, maybe) = (
        machine.volume("configmap", "map"),
        machine.volume("secret", "maybe"),
    );
    assert_eq!(names(&maybe), ["x"]);
    let before = version(&map);
    machine.objects.take("settings");
    machine.objects.take("maybe");
    machine.set_up(&pod).await.unwrap();
    assert_eq!(version(&map), before);
    assert_eq!(names(&maybe), [""; 0], "what may be missing is empty");
    assert_eq!(
        texts(&machine.events),
        ["FailedMount: MountVolume.SetUp failed for volume \"map\" : configmap \"settings\" not found"]
    );
    machine.end().await;
}

#[tokio::test]
async fn a_full_volume_keeps_its_files() {
    let machine = Machine::new("api-volumes-full");
    machine.objects.put_secret("keys", &[("word", b"hush")]);
    let mut pod = pod(
        "u1",
        json!([{ "name": "key", "secret": { "secretName": "keys" } }]),
    );
    let container = &mut pod.spec.as_mut().unwrap().containers[0];
    container.resources = serde_json::from_value(json!({ "limits": { "memory": "64Ki" } })).unwrap();
    machine.set_up(&pod).await.unwrap();
    let volume = machine.volume("secret", "key");
    machine
        .objects
        .put_secret("keys", &[("word", &[b'x'; 256 << 10])]);
    machine.set_up(&pod).await.unwrap();
    let events = texts(&machine.events);
    assert!(events[0].ends_with("no space left on device"), "{events:?}");
    assert_eq!(fs::read_to_string(volume.join("word")).unwrap(), "hush");
    assert_eq!(versions(&volume), 1);
    machine.objects.put_secret("keys", &[("word", b"short")]);
    machine.set_up(&pod).await.unwrap();
    assert_eq!(fs::read_to_string(volume.join("word")).unwrap(), "short");
    machine.end().await;
}

#[tokio::test]
async fn a_sub_path_stays_as_it_was_mounted() {
    let machine = Machine::new("api-volumes-sub");
    machine.objects.put_config_map("m", &[("a", "old")], &[]);
    let mut pod = pod("u1", json!([{ "name": "m", "configMap": { "name": "m" } }]));
    let container = &mut pod.spec.as_mut().unwrap().containers[0];
    container.volume_mounts =
        serde_json::from_value(json!([{ "name": "m", "mountPath": "/f", "subPath": "a" }])).unwrap();
    let request = MountRequest {
        container: container.clone(),
        environment: [].into(),
        images: [].into(),
        supports_recursive_read_only: false,
        pod: Arc::new(pod.clone()),
    };
    machine.set_up(&pod).await.unwrap();
    let mounts = machine.actor.mounts(request.clone()).await.unwrap();
    let bound = PathBuf::from(&mounts[0].host_path);
    assert!(mounts[0].readonly);
    assert_eq!(fs::read_to_string(&bound).unwrap(), "old");
    machine.objects.put_config_map("m", &[("a", "new")], &[]);
    machine.set_up(&pod).await.unwrap();
    assert_eq!(
        fs::read_to_string(machine.volume("configmap", "m").join("a")).unwrap(),
        "new"
    );
    assert_eq!(fs::read_to_string(&bound).unwrap(), "old");
    machine.actor.mounts(request).await.unwrap();
    assert_eq!(
        fs::read_to_string(&bound).unwrap(),
        "new",
        "the next container sees the new file"
    );
    machine.end().await;
}

#[tokio::test]
async fn other_volumes_are_mounted_below() {
    let mut machine = Machine::new("api-volumes-nested");
    fill(&machine.objects);
    let mut pod = pod(
        "u1",
        json!([
            { "name": "map", "configMap": { "name": "settings" } }, { "name": "disk", "emptyDir": {} },
        ]),
    );
    let container = &mut pod.spec.as_mut().unwrap().containers[0];
    container.volume_mounts = serde_json::from_value(json!([
        { "name": "map", "mountPath": "/etc/app" }, { "name": "disk", "mountPath": "/etc/app/cache/deep" },
    ]))
    .unwrap();
    let pod = with_context(pod, json!({ "fsGroup": 2000 }));
    let volume = machine.volume("configmap", "map");
    for text in ["1", "2", "2"] {
        machine.objects.put_config_map("settings", &[("a", text)], &[]);
        machine.set_up(&pod).await.unwrap();
        machine.restart();
        machine.set_up(&pod).await.unwrap();
        assert_eq!(names(&volume), ["a", "cache"]);
        assert_eq!(access(&volume.join("cache/deep")), (0o2755, 0, 2000));
    }
    machine.end().await;
}
