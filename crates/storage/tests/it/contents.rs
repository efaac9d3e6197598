//! The files of volumes that show objects of the API server.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use proptest::prelude::*;
use rubelet_model::volume_step::VolumeAction;
use rubelet_storage::{
    Absence, Answer, BundleNeed, CertificateNeed, Credentials, ObjectAnswers, ObjectNeeds, StorageNode,
    TokenNeed, plan_set_up,
};
use serde_json::{Value, json};

use crate::{layout, node, pod, pod_with};

fn absent<T>(message: &str, is_not_found: bool) -> Answer<T> {
    Err(Absence {
        message: message.to_owned(),
        is_not_found,
    })
}

/// What the API server has: objects of some names, and a sentence for all others.
fn answers(needs: &ObjectNeeds) -> ObjectAnswers {
    let mut answers = ObjectAnswers::default();
    for name in &needs.config_maps {
        let answer = match name.as_str() {
            "settings" => Ok(Arc::new(ConfigMap {
                data: Some(
                    [("a", "1"), ("b.conf", "two\n")]
                        .map(|(k, v)| (k.to_owned(), v.to_owned()))
                        .into(),
                ),
                binary_data: Some([("raw".to_owned(), ByteString(vec![0, 255, 10]))].into()),
                ..ConfigMap::default()
            })),
            "both" => Ok(Arc::new(ConfigMap {
                data: Some([("k".to_owned(), "text".to_owned())].into()),
                binary_data: Some([("k".to_owned(), ByteString(b"binary".to_vec()))].into()),
                ..ConfigMap::default()
            })),
            "odd" => Ok(Arc::new(ConfigMap {
                data: Some([("..data".to_owned(), String::new())].into()),
                ..ConfigMap::default()
            })),
            "empty" => Ok(Arc::default()),
            "hidden" => absent("configmaps \"hidden\" is forbidden", false),
            _ => absent(&format!("configmap {name:?} not found"), true),
        };
        answers.config_maps.insert(name.clone(), answer);
    }
    for name in &needs.secrets {
        let answer = match name.as_str() {
            "keys" => Ok(Arc::new(Secret {
                data: Some(
                    [("user", "root"), ("word", "hush")]
                        .map(|(k, v)| (k.to_owned(), ByteString(v.into())))
                        .into(),
                ),
                ..Secret::default()
            })),
            _ => absent(&format!("secret {name:?} not found"), true),
        };
        answers.secrets.insert(name.clone(), answer);
    }
    for need in &needs.tokens {
        let audience = need.audience.as_deref().unwrap_or("api");
        let answer = match audience {
            "refused" => absent("failed to fetch token: refused", false),
            audience => Ok(format!("token for {audience} of {} s", need.expiration_seconds)),
        };
        answers.tokens.insert(need.clone(), answer);
    }
    for need in &needs.bundles {
        let answer = match need {
            BundleNeed::Named(name) if name == "root" => Ok(Arc::from("anchors of root")),
            BundleNeed::Named(name) => absent(&format!("no bundle {name}"), true),
            BundleNeed::Signed { signer, labels } => {
                Ok(Arc::from(format!("anchors of {signer} {}", labels.is_some())))
            }
        };
        answers.bundles.push((need.clone(), answer));
    }
    for need in &needs.certificates {
        let answer = match need.source {
            9 => absent("no certificate yet", false),
            source => Ok(Credentials {
                key: format!("key {source}\n").into_bytes(),
                chain: format!("chain {source}\n").into_bytes(),
            }),
        };
        answers.certificates.insert(need.clone(), answer);
    }
    answers
}

/// The files of the only volume as `path mode owner content`, or why there are none.
fn files(pod: &Pod, node: &StorageNode) -> Result<Vec<String>, String> {
    let answers = answers(&ObjectNeeds::of(pod));
    let mut volumes = plan_set_up(pod, node, &layout(), &answers).volumes;
    assert_eq!(volumes.len(), 1);
    let steps = volumes.remove(0).plan.map_err(|error| error.to_string())?;
    let Some(VolumeAction::WritePayload { files, .. }) = steps.last().map(|step| &step.action) else {
        panic!("{steps:?}");
    };
    let line = |file: &rubelet_model::volume_step::PayloadFile| {
        let owner = file.owner.map_or("-".to_owned(), |owner| owner.to_string());
        let content = file.content.escape_ascii();
        format!("{} {:o} {owner} {content}", file.path.display(), file.mode)
    };
    Ok(files.iter().map(line).collect())
}

#[track_caller]
fn check_pod(pod: &Pod, node: &StorageNode, expected: Result<&[&str], &str>) {
    let expected = expected
        .map(|lines| lines.iter().map(ToString::to_string).collect::<Vec<_>>())
        .map_err(ToOwned::to_owned);
    assert_eq!(files(pod, node), expected);
}

#[track_caller]
fn check(source: Value, expected: Result<&[&str], &str>) {
    let mut volume = source;
    volume["name"] = json!("v");
    check_pod(&pod_with(json!([volume])), &node(), expected);
}

#[track_caller]
fn check_projected(sources: Value, expected: Result<&[&str], &str>) {
    check(json!({ "projected": { "sources": sources } }), expected);
}

#[test]
fn config_maps() {
    let map = |source: Value| json!({ "configMap": source });
    check(
        map(json!({ "name": "settings" })),
        Ok(&["a 644 - 1", "b.conf 644 - two\\n", "raw 644 - \\x00\\xff\\n"]),
    );
    check(
        map(json!({ "name": "settings", "defaultMode": 0o440, "items": [
            { "key": "a", "path": "deep/./er/a" },
            { "key": "raw", "path": "raw.bin", "mode": 0o400 },
            { "key": "a", "path": "again" },
        ] })),
        Ok(&[
            "again 440 - 1",
            "deep/er/a 440 - 1",
            "raw.bin 400 - \\x00\\xff\\n",
        ]),
    );
    check(
        map(json!({ "name": "settings", "items": [] })),
        Ok(&["a 644 - 1", "b.conf 644 - two\\n", "raw 644 - \\x00\\xff\\n"]),
    );
    check(map(json!({ "name": "empty" })), Ok(&[]));
    check(map(json!({ "name": "both" })), Ok(&["k 644 - binary"]));
    check(
        map(json!({ "name": "both", "items": [{ "key": "k", "path": "k" }] })),
        Ok(&["k 644 - text"]),
    );
    check(
        map(json!({ "name": "none" })),
        Err("configmap \"none\" not found"),
    );
    check(
        map(json!({ "name": "none", "optional": false })),
        Err("configmap \"none\" not found"),
    );
    check(map(json!({ "name": "none", "optional": true })), Ok(&[]));
    check(
        map(json!({ "name": "none", "optional": true, "items": [{ "key": "k", "path": "k" }] })),
        Ok(&[]),
    );
    check(
        map(json!({ "name": "hidden", "optional": true })),
        Err("configmaps \"hidden\" is forbidden"),
    );
    let items = json!([{ "key": "a", "path": "a" }, { "key": "z", "path": "z" }]);
    check(
        map(json!({ "name": "settings", "items": items })),
        Err("configmap references non-existent config key: z"),
    );
    check(
        map(json!({ "name": "settings", "items": items, "optional": true })),
        Ok(&["a 644 - 1"]),
    );
    check(
        map(json!({ "name": "odd" })),
        Err("invalid path: must not start with '..': ..data"),
    );
    check(
        map(json!({ "name": "settings", "items": [
            { "key": "a", "path": "x/y" }, { "key": "a", "path": "x.y" }, { "key": "a", "path": "x" },
        ] })),
        Err("invalid path: x cannot be both a file and the directory of x/y"),
    );
    check(
        map(json!({ "name": "settings", "items": [
            { "key": "a", "path": "x" }, { "key": "raw", "path": "x" },
        ] })),
        Ok(&["x 644 - \\x00\\xff\\n"]),
    );
}

#[test]
fn secrets() {
    let secret = |source: Value| json!({ "secret": source });
    check(
        secret(json!({ "secretName": "keys", "defaultMode": 0o400 })),
        Ok(&["user 400 - root", "word 400 - hush"]),
    );
    check(
        secret(json!({ "secretName": "keys", "items": [{ "key": "word", "path": "p/w", "mode": 0o600 }] })),
        Ok(&["p/w 600 - hush"]),
    );
    check(
        secret(json!({ "secretName": "keys", "items": [{ "key": "none", "path": "w" }] })),
        Err("references non-existent secret key: none"),
    );
    check(
        secret(json!({ "secretName": "gone" })),
        Err("secret \"gone\" not found"),
    );
    check(secret(json!({ "secretName": "gone", "optional": true })), Ok(&[]));
}

#[test]
fn kept_on_disk_or_in_memory() {
    let check = |volume: Value, expected: &[&str]| {
        let with_group = |group: Option<i64>| {
            let mut pod = pod_with(json!([volume]));
            let context = json!({ "fsGroup": group });
            pod.spec.as_mut().unwrap().security_context = serde_json::from_value(context).unwrap();
            let answers = answers(&ObjectNeeds::of(&pod));
            let plan = plan_set_up(&pod, &node(), &layout(), &answers);
            let steps = plan.volumes[0].plan.clone().unwrap();
            let line = |action: &VolumeAction| {
                let path = action
                    .path()
                    .strip_prefix(layout().directory())
                    .unwrap()
                    .display()
                    .to_string();
                match action {
                    VolumeAction::MakeDirectory { mode, .. } => format!("make directory {path} {mode:o}"),
                    VolumeAction::WritePayload { ownership, .. } => {
                        format!(
                            "write files {path} {:?}",
                            ownership.map(|one| (one.group, one.read_only))
                        )
                    }
                    other => format!("{} {path}", other.verb()),
                }
            };
            steps.iter().map(|step| line(&step.action)).collect::<Vec<_>>()
        };
        let both = [
            with_group(None),
            vec!["with a group".to_owned()],
            with_group(Some(7)),
        ]
        .concat();
        assert_eq!(both, expected);
    };
    check(
        json!({ "name": "m", "configMap": { "name": "settings" } }),
        &[
            "make directory volumes/kubernetes.io~configmap/m 777",
            "mark as ready plugins/kubernetes.io~empty-dir/wrapped_m",
            "write files volumes/kubernetes.io~configmap/m None",
            "with a group",
            "make directory volumes/kubernetes.io~configmap/m 2777",
            "mark as ready plugins/kubernetes.io~empty-dir/wrapped_m",
            "write files volumes/kubernetes.io~configmap/m Some((7, true))",
        ],
    );
    check(
        json!({ "name": "s", "secret": { "secretName": "keys" } }),
        &[
            "make directory volumes/kubernetes.io~secret/s 777",
            "mount tmpfs volumes/kubernetes.io~secret/s",
            "mark as ready plugins/kubernetes.io~empty-dir/wrapped_s",
            "write files volumes/kubernetes.io~secret/s None",
            "with a group",
            "make directory volumes/kubernetes.io~secret/s 777",
            "mount tmpfs volumes/kubernetes.io~secret/s",
            "mark as ready plugins/kubernetes.io~empty-dir/wrapped_s",
            "write files volumes/kubernetes.io~secret/s Some((7, true))",
        ],
    );
}

#[test]
fn projected_sources() {
    check_projected(
        json!([
            { "serviceAccountToken": { "path": "token" } },
            { "configMap": { "name": "settings", "items": [{ "key": "a", "path": "ca.crt" }] } },
            { "downwardAPI": { "items": [{ "path": "namespace", "fieldRef": { "fieldPath": "metadata.namespace" } }] } },
            { "secret": { "name": "keys" } },
            { "serviceAccountToken": { "path": "other/token", "audience": "vault", "expirationSeconds": 600 } },
            { "clusterTrustBundle": { "name": "root", "path": "anchors" } },
            { "clusterTrustBundle": { "signerName": "x/y", "path": "signed", "labelSelector": {} } },
            { "podCertificate": { "signerName": "x/y", "keyType": "ED25519", "keyPath": "key", "certificateChainPath": "chain", "credentialBundlePath": "bundle" } },
        ]),
        Ok(&[
            "anchors 644 - anchors of root",
            "bundle 644 - key 7\\nchain 7\\n",
            "ca.crt 644 - 1",
            "chain 644 - chain 7\\n",
            "key 644 - key 7\\n",
            "namespace 644 - default",
            "other/token 644 - token for vault of 600 s",
            "signed 644 - anchors of x/y true",
            "token 644 - token for api of 3600 s",
            "user 644 - root",
            "word 644 - hush",
        ]),
    );
    check_projected(json!([]), Ok(&[]));
    check_projected(
        json!([
            { "secret": { "name": "keys" } },
            { "configMap": { "name": "settings", "items": [{ "key": "a", "path": "./word" }] } },
        ]),
        Ok(&["user 644 - root", "word 644 - 1"]),
    );
    check_projected(
        json!([
            { "configMap": { "name": "gone", "optional": true } },
            { "secret": { "name": "gone", "optional": true } },
            { "clusterTrustBundle": { "name": "gone", "path": "anchors", "optional": true } },
        ]),
        Ok(&["anchors 644 - "]),
    );
    check_projected(
        json!([{ "podCertificate": { "signerName": "x/y", "keyType": "ED25519", "credentialBundlePath": "only", "keyPath": "" } }]),
        Ok(&["only 644 - key 0\\nchain 0\\n"]),
    );
}

#[test]
fn problems_of_projected_sources() {
    check_projected(
        json!([{ "configMap": { "name": "gone" } }]),
        Err("configmap \"gone\" not found"),
    );
    check_projected(
        json!([
            { "configMap": { "name": "gone" } },
            { "secret": { "name": "keys", "items": [{ "key": "none", "path": "p" }] } },
            { "configMap": { "name": "gone" } },
            { "serviceAccountToken": { "path": "t", "audience": "refused" } },
            { "downwardAPI": { "items": [
                { "path": "f", "fieldRef": { "fieldPath": "spec.none" } },
                { "path": "g", "fieldRef": { "fieldPath": "metadata.name" } },
                { "path": "/h", "fieldRef": { "fieldPath": "metadata.name" } },
            ] } },
            { "clusterTrustBundle": { "name": "gone", "path": "anchors" } },
            { "clusterTrustBundle": { "path": "anchors" } },
            { "configMap": { "name": "settings" } },
            { "secret": { "name": "keys" } },
            { "podCertificate": { "signerName": "x/y", "keyType": "ED25519", "credentialBundlePath": "p" } },
        ]),
        Err(
            "[configmap \"gone\" not found, references non-existent secret key: none, failed to fetch token: refused, \
            file \"f\": fieldPath \"spec.none\" is not supported, no bundle gone, \
            ClusterTrustBundle projection requires either name or signerName to be set, no certificate yet]",
        ),
    );
    check_projected(
        json!([{ "configMap": { "name": "gone" } }, { "configMap": { "name": "gone" } }]),
        Err("configmap \"gone\" not found"),
    );
    check_projected(
        json!([
            { "serviceAccountToken": { "path": "/t" } },
            { "configMap": { "name": "settings", "items": [{ "key": "a", "path": "../a" }] } },
        ]),
        Err("[invalid path: must be relative path: /t, invalid path: must not contain '..': ../a]"),
    );
    check_projected(
        json!([
            { "serviceAccountToken": { "path": "a" } },
            { "serviceAccountToken": { "path": "a/token" } },
        ]),
        Err("invalid path: a cannot be both a file and the directory of a/token"),
    );
}

#[test]
fn nothing_is_made_up_for_what_nobody_asked() {
    let volumes = json!([{ "name": "v", "projected": { "sources": [
        { "configMap": { "name": "settings", "optional": true } },
        { "serviceAccountToken": { "path": "t" } },
    ] } }]);
    let plan = plan_set_up(&pod_with(volumes), &node(), &layout(), &ObjectAnswers::default());
    let problem = plan.volumes[0].plan.clone().unwrap_err().to_string();
    assert_eq!(
        problem,
        "[the ConfigMap was not asked for, the token was not asked for]"
    );
}

#[test]
fn who_may_read_credentials() {
    struct Users {
        pod: Option<i64>,
        containers: [Option<i64>; 2],
        init: Option<i64>,
        ephemeral: Option<i64>,
        group: Option<i64>,
    }
    let none = Users {
        pod: None,
        containers: [None, None],
        init: None,
        ephemeral: None,
        group: None,
    };
    let check = |users: Users, expected: &str| {
        let context = |user: Option<i64>| json!({ "runAsUser": user });
        let mounts = json!([{ "name": "v", "mountPath": "/v" }]);
        let pod = pod(json!({
            "securityContext": { "runAsUser": users.pod, "fsGroup": users.group },
            "initContainers": [{ "name": "i", "securityContext": context(users.init) }],
            "containers": [
                { "name": "a", "securityContext": context(users.containers[0]), "volumeMounts": mounts },
                { "name": "b", "securityContext": context(users.containers[1]) },
            ],
            "ephemeralContainers": [{ "name": "e", "securityContext": context(users.ephemeral) }],
            "volumes": [{ "name": "v", "projected": { "defaultMode": 0o444, "sources": [
                { "serviceAccountToken": { "path": "a" } },
                { "clusterTrustBundle": { "name": "root", "path": "b" } },
                { "podCertificate": { "signerName": "x/y", "keyType": "ED25519", "keyPath": "c" } },
                { "secret": { "name": "keys", "items": [{ "key": "user", "path": "d" }] } },
            ] } }],
        }));
        let expected = [
            format!("a {expected} token for api of 3600 s"),
            format!("b {expected} anchors of root"),
            format!("c {expected} key 2\\n"),
            "d 444 - root".to_owned(),
        ];
        let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
        check_pod(&pod, &node(), Ok(&expected));
    };
    let same = |user| Users {
        containers: [Some(user); 2],
        init: Some(user),
        ephemeral: Some(user),
        ..none
    };
    check(Users { ..none }, "444 -");
    check(Users { pod: Some(9), ..none }, "600 9");
    check(Users { pod: Some(0), ..none }, "600 0");
    check(
        Users {
            group: Some(7),
            ..none
        },
        "600 -",
    );
    check(same(5), "600 5");
    check(
        Users {
            init: Some(6),
            ..same(5)
        },
        "444 -",
    );
    check(
        Users {
            ephemeral: None,
            ..same(5)
        },
        "444 -",
    );
    check(
        Users {
            pod: Some(5),
            ephemeral: None,
            ..same(5)
        },
        "600 5",
    );
    check(
        Users {
            pod: Some(6),
            containers: [Some(5), None],
            ..none
        },
        "444 -",
    );
    check(
        Users {
            pod: Some(6),
            group: Some(7),
            containers: [Some(5), None],
            ..none
        },
        "600 -",
    );
}

#[test]
fn owners_of_files_have_a_gate() {
    let volumes = json!([{ "name": "v", "projected": { "defaultUser": 8, "sources": [
        { "serviceAccountToken": { "path": "a" } },
        { "serviceAccountToken": { "path": "b", "user": 9 } },
        { "secret": { "name": "keys", "items": [{ "key": "user", "path": "c", "user": 10 }, { "key": "user", "path": "d" }] } },
        { "configMap": { "name": "both" } },
    ] } }]);
    let mut pod = pod_with(volumes);
    pod.spec.as_mut().unwrap().security_context = serde_json::from_value(json!({ "runAsUser": 5 })).unwrap();
    let mut node = node();
    let token = "token for api of 3600 s";
    check_pod(
        &pod,
        &node,
        Ok(&[
            &format!("a 600 5 {token}"),
            &format!("b 600 5 {token}"),
            "c 644 - root",
            "d 644 - root",
            "k 644 - binary",
        ]),
    );
    node.gates.file_users = true;
    check_pod(
        &pod,
        &node,
        Ok(&[
            &format!("a 600 8 {token}"),
            &format!("b 600 9 {token}"),
            "c 644 10 root",
            "d 644 8 root",
            "k 644 8 binary",
        ]),
    );
}

#[test]
fn needs_are_asked_for_once_and_only_for_used_volumes() {
    let volumes = json!([
        { "name": "one", "configMap": { "name": "m1" } },
        { "name": "two", "secret": { "secretName": "s1", "optional": true } },
        { "name": "three", "projected": { "sources": [
            { "configMap": { "name": "m1" } }, { "secret": { "name": "s2" } },
            { "serviceAccountToken": { "path": "a" } },
            { "serviceAccountToken": { "path": "b", "expirationSeconds": 3600, "audience": "" } },
            { "serviceAccountToken": { "path": "c", "audience": "x" } },
            { "clusterTrustBundle": { "name": "root", "path": "d" } },
            { "clusterTrustBundle": { "name": "root", "path": "e" } },
            { "clusterTrustBundle": { "signerName": "x/y", "path": "f" } },
            { "clusterTrustBundle": { "path": "g" } },
            { "podCertificate": { "signerName": "x/y", "keyType": "ED25519", "keyPath": "h" } },
            { "downwardAPI": {} },
        ] } },
        { "name": "disk", "emptyDir": {} },
        { "name": "unused", "configMap": { "name": "m9" } },
    ]);
    let mut pod = pod_with(volumes);
    let mounts = pod.spec.as_mut().unwrap().containers[0]
        .volume_mounts
        .as_mut()
        .unwrap();
    mounts.retain(|mount| mount.name != "unused");
    let token = |audience: Option<&str>| TokenNeed {
        audience: audience.map(ToOwned::to_owned),
        expiration_seconds: 3600,
    };
    let needs = ObjectNeeds::of(&pod);
    let expected = ObjectNeeds {
        config_maps: ["m1".to_owned()].into(),
        secrets: ["s1".to_owned(), "s2".to_owned()].into(),
        tokens: [token(None), token(Some("x"))].into(),
        bundles: vec![
            BundleNeed::Named("root".to_owned()),
            BundleNeed::Signed {
                signer: "x/y".to_owned(),
                labels: None,
            },
        ],
        certificates: [CertificateNeed {
            volume: "three".to_owned(),
            source: 9,
        }]
        .into(),
    };
    assert_eq!(needs, expected);
    assert!(!needs.is_empty());
    assert!(ObjectNeeds::of(&pod_with(json!([{ "name": "a", "emptyDir": {} }]))).is_empty());
}

#[derive(Clone, Debug)]
struct Item {
    source: usize,
    path: &'static str,
    mode: Option<i32>,
}

fn items() -> impl Strategy<Value = Vec<Item>> {
    let path = prop::sample::select(vec!["a", "b", "./a", "c/d", "c/e", "c//d", "f/g/h", "b.x"]);
    let mode = prop::option::of(prop::sample::select(vec![0o400, 0o600, 0o777]));
    let item = (0_usize..4, path, mode).prop_map(|(source, path, mode)| Item { source, path, mode });
    prop::collection::vec(item, 0..12)
}

proptest! {
    /// Merging is a map by cleaned path in the order of sources and items.
    #[test]
    fn later_files_replace_earlier_ones(items in items(), default_mode in prop::option::of(0_i32..0o1000)) {
        let of_source = |source: usize| {
            let chosen = items.iter().enumerate().filter(move |(_, item)| item.source == source);
            let list: Vec<Value> = chosen
                .map(|(index, item)| json!({ "key": format!("k{index}"), "path": item.path, "mode": item.mode }))
                .collect();
            (list, format!("m{source}"))
        };
        let mut answers = ObjectAnswers::default();
        let mut sources = Vec::new();
        let mut expected: BTreeMap<String, (u32, String)> = BTreeMap::new();
        for source in 0..4 {
            let (list, name) = of_source(source);
            // Without items all keys would be files.
            if list.is_empty() {
                continue;
            }
            let keys = |index: usize| format!("k{index}");
            let data: BTreeMap<String, String> = (0..items.len()).map(|index| (keys(index), format!("of {index}"))).collect();
            if source % 2 == 0 {
                let map = ConfigMap { data: Some(data), ..ConfigMap::default() };
                answers.config_maps.insert(name.clone(), Ok(Arc::new(map)));
                sources.push(json!({ "configMap": { "name": name, "items": list } }));
            } else {
                let data = data.into_iter().map(|(key, text)| (key, ByteString(text.into_bytes()))).collect();
                let secret = Secret { data: Some(data), ..Secret::default() };
                answers.secrets.insert(name.clone(), Ok(Arc::new(secret)));
                sources.push(json!({ "secret": { "name": name, "items": list } }));
            }
            for (index, item) in items.iter().enumerate().filter(|(_, item)| item.source == source) {
                let clean = item.path.trim_start_matches("./").replace("//", "/");
                let mode = item.mode.or(default_mode).unwrap_or(0o644);
                expected.insert(clean, (u32::try_from(mode).unwrap(), format!("of {index}")));
            }
        }
        let pod = pod_with(json!([{ "name": "v", "projected": { "sources": sources, "defaultMode": default_mode } }]));
        let plan = plan_set_up(&pod, &node(), &layout(), &answers);
        let steps = plan.volumes[0].plan.clone().unwrap();
        let Some(VolumeAction::WritePayload { files, .. }) = steps.last().map(|step| &step.action) else {
            panic!("{steps:?}");
        };
        let found: BTreeMap<String, (u32, String)> = files
            .iter()
            .map(|file| {
                let content = String::from_utf8(file.content.clone()).unwrap();
                (file.path.to_str().unwrap().to_owned(), (file.mode, content))
            })
            .collect();
        prop_assert_eq!(found.len(), files.len());
        prop_assert_eq!(found, expected);
        let sorted = files.is_sorted_by(|one, other| one.path < other.path);
        prop_assert!(sorted);
    }

    /// Pods of an API server are not validated again; whatever their numbers are, a plan has modes that files can have.
    #[test]
    fn no_number_upsets_a_plan(modes: [Option<i32>; 4], users: [Option<i64>; 3], group: Option<i64>, seconds: Option<i64>) {
        let [default_mode, mode, other_mode, directory_mode] = modes;
        let [default_user, user, run_as] = users;
        let items = json!([{ "key": "a", "path": "a", "mode": mode, "user": user }]);
        let volumes = json!([
            { "name": "map", "configMap": { "name": "settings", "defaultMode": default_mode, "defaultUser": default_user, "items": items } },
            { "name": "secret", "secret": { "secretName": "keys", "defaultMode": other_mode, "defaultUser": default_user } },
            { "name": "downward", "downwardAPI": { "defaultMode": other_mode, "items": [
                { "path": "a", "fieldRef": { "fieldPath": "metadata.name" }, "mode": mode, "user": user }] } },
            { "name": "projected", "projected": { "defaultMode": default_mode, "sources": [
                { "serviceAccountToken": { "path": "token", "expirationSeconds": seconds } },
                { "configMap": { "name": "settings", "items": items } }] } },
            { "name": "empty", "emptyDir": { "mode": directory_mode } },
        ]);
        let mut pod = pod_with(volumes);
        let context = json!({ "runAsUser": run_as, "fsGroup": group });
        pod.spec.as_mut().unwrap().security_context = Some(serde_json::from_value(context).unwrap());
        let plan = plan_set_up(&pod, &node(), &layout(), &answers(&ObjectNeeds::of(&pod)));
        prop_assert_eq!(plan.volumes.len(), 5);
        let steps = plan.volumes.iter().filter_map(|volume| volume.plan.as_ref().ok()).flatten();
        for step in steps {
            if let VolumeAction::WritePayload { files, .. } = &step.action {
                prop_assert!(files.iter().all(|file| file.mode <= 0o7777), "{:?}", files);
            }
        }
    }

    /// A path is either refused or stays in the volume, under names that are not the layout's.
    #[test]
    fn paths_stay_in_the_volume(path in "[a./]{0,8}|\\PC{0,12}") {
        let items = json!([{ "key": "a", "path": path }]);
        let pod = pod_with(json!([{ "name": "v", "configMap": { "name": "settings", "items": items } }]));
        let answers = answers(&ObjectNeeds::of(&pod));
        let plan = plan_set_up(&pod, &node(), &layout(), &answers);
        if let Ok(steps) = plan.volumes[0].plan.clone() {
            let Some(VolumeAction::WritePayload { files, .. }) = steps.last().map(|step| &step.action) else {
                panic!("{steps:?}");
            };
            let kept = &files[0].path;
            let names: Vec<_> = kept.components().collect();
            prop_assert!(!names.is_empty());
            prop_assert!(names.iter().all(|name| matches!(name, std::path::Component::Normal(_))), "{:?}", kept);
            prop_assert!(!kept.to_str().unwrap().starts_with(".."), "{:?}", kept);
        }
    }
}
