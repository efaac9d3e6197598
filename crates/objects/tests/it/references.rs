//! What a pod refers to.

use std::collections::BTreeMap;

use rubelet_objects::references::{Purpose, References};
use rubelet_ports::TrustQuestion;
use serde_json::{Value, json};

use crate::bed::pod;

fn shown(names: &BTreeMap<String, Purpose>) -> String {
    let letter = |purpose: &Purpose| match purpose {
        Purpose::Pull => 'p',
        Purpose::Environment => 'e',
        Purpose::Volume => 'v',
    };
    let shown: Vec<String> = names
        .iter()
        .map(|(name, purpose)| format!("{name}:{}", letter(purpose)))
        .collect();
    shown.join(" ")
}

#[test]
fn every_place_of_a_name_counts() {
    let check = |spec: Value, config_maps: &str, secrets: &str| {
        let text = spec.to_string();
        let found = References::of(&pod("u", spec));
        assert_eq!(shown(&found.config_maps), config_maps, "{text}");
        assert_eq!(shown(&found.secrets), secrets, "{text}");
        let has_files = config_maps.contains(":v") || secrets.contains(":v");
        assert_eq!(found.has_files(), has_files, "{text}");
    };
    let volume = |source: Value| {
        let mut volume = source;
        volume["name"] = json!("v");
        json!({ "volumes": [volume] })
    };
    check(json!({}), "", "");
    check(
        json!({"imagePullSecrets": [{"name": "a"}, {"name": ""}]}),
        "",
        "a:p",
    );
    let env = json!([
        {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}},
        {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        {"name": "C", "value": "x", "valueFrom": {"secretKeyRef": {"name": "unused", "key": "k"}}},
        {"name": "D", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    ]);
    let from = json!([{"configMapRef": {"name": "fm"}}, {"secretRef": {"name": "fs"}, "prefix": "X"}]);
    let container = json!([{"name": "c", "env": env, "envFrom": from}]);
    check(json!({"containers": container}), "fm:e m:e", "fs:e s:e");
    check(json!({"initContainers": container}), "fm:e m:e", "fs:e s:e");
    check(json!({"ephemeralContainers": container}), "fm:e m:e", "fs:e s:e");
    check(volume(json!({"configMap": {"name": "m"}})), "m:v", "");
    check(volume(json!({"secret": {"secretName": "s"}})), "", "s:v");
    check(
        volume(json!({"projected": {"sources": [
            {"configMap": {"name": "m"}}, {"secret": {"name": "s"}}, {"downwardAPI": {}},
            {"serviceAccountToken": {"path": "p"}}]}})),
        "m:v",
        "s:v",
    );
    check(
        volume(json!({"azureFile": {"secretName": "s", "shareName": "x"}})),
        "",
        "s:v",
    );
    check(
        volume(json!({"csi": {"driver": "d", "nodePublishSecretRef": {"name": "s"}}})),
        "",
        "s:v",
    );
    check(
        volume(json!({"cephfs": {"monitors": [], "secretRef": {"name": "s"}}})),
        "",
        "s:v",
    );
    check(volume(json!({"emptyDir": {}})), "", "");
    // The strongest purpose counts.
    check(
        json!({"containers": container, "imagePullSecrets": [{"name": "s"}, {"name": "fs"}],
            "volumes": [{"name": "v", "secret": {"secretName": "s"}}]}),
        "fm:e m:e",
        "fs:e s:v",
    );
}

#[test]
fn projected_sources_ask_for_trust_and_certificates() {
    let spec = json!({"volumes": [
        {"name": "a", "projected": {"sources": [
            {"clusterTrustBundle": {"name": "n", "signerName": "unused", "path": "p"}},
            {"clusterTrustBundle": {"signerName": "s", "labelSelector": {"matchLabels": {"k": "v"}}, "path": "p"}},
            {"clusterTrustBundle": {"path": "p"}},
        ]}},
        {"name": "b", "projected": {"sources": [
            {"downwardAPI": {}},
            {"podCertificate": {"signerName": "s", "keyType": "ED25519"}},
        ]}},
    ]});
    let found = References::of(&pod("u", spec));
    let labels = serde_json::from_value(json!({"matchLabels": {"k": "v"}})).unwrap();
    let expected = [
        TrustQuestion::Named("n".to_owned()),
        TrustQuestion::Signed {
            signer: "s".to_owned(),
            labels: Some(labels),
        },
    ];
    assert_eq!(found.trust, expected);
    let places: Vec<_> = found
        .certificates
        .iter()
        .map(|place| (place.volume.as_str(), place.source, place.wish.key_type.as_str()))
        .collect();
    assert_eq!(places, [("b", 1, "ED25519")]);
}
