//! From bytes to static pods: what is added, what is refused and where, and that no input panics.

use proptest::prelude::*;
use rubelet_config::FeatureGates;
use rubelet_manifest::{ManifestError, read_file, read_url};

const GOOD: &str =
    "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  containers: [{name: c, image: nginx}]\n";

#[test]
fn a_file_becomes_a_pod_of_this_node() {
    let done = read_file(GOOD.as_bytes(), "/m/web.yaml", "Node-1", &FeatureGates::default());
    let errors = done.as_ref().err().map(ToString::to_string).unwrap_or_default();
    // The node's name is part of the pod: upper case is fine in the suffix, not as the node's own name.
    assert!(
        errors.starts_with("invalid pod: spec.nodeName: invalid"),
        "{errors}"
    );

    let done = read_file(GOOD.as_bytes(), "/m/web.yaml", "node-1", &FeatureGates::default()).unwrap();
    let pod = &done.pods[0];
    assert_eq!(pod.metadata.name.as_deref(), Some("web-node-1"));
    assert_eq!(pod.metadata.namespace.as_deref(), Some("default"));
    let uid = pod.metadata.uid.clone().unwrap();
    assert_eq!(uid.len(), 32);
    let hash = &pod.metadata.annotations.as_ref().unwrap()["kubernetes.io/config.hash"];
    assert_eq!(*hash, uid);
    let spec = pod.spec.as_ref().unwrap();
    assert_eq!(spec.node_name.as_deref(), Some("node-1"));
    assert_eq!(spec.containers[0].image_pull_policy.as_deref(), Some("Always"));
    let toleration = &spec.tolerations.as_ref().unwrap()[0];
    assert_eq!(toleration.effect.as_deref(), Some("NoExecute"));
    assert_eq!(pod.status.as_ref().unwrap().phase.as_deref(), Some("Pending"));
}

#[test]
fn a_given_uid_wins_and_a_response_may_hold_a_list() {
    let list = r#"{"apiVersion":"v1","kind":"PodList","items":[{"metadata":{"name":"a","uid":"mine"},"spec":{"containers":[{"name":"c","image":"i"}]}},
        {"metadata":{"name":"b"},"spec":{"containers":[{"name":"c","image":"i"}]}}]}"#;
    let done = read_url(list.as_bytes(), "http://x", "n", &FeatureGates::default()).unwrap();
    assert_eq!(done.pods.len(), 2);
    assert_eq!(done.pods[0].metadata.uid.as_deref(), Some("mine"));
    assert_eq!(done.pods[1].spec.as_ref().unwrap().tolerations, None);
    for wrong_type in ["\"kind\":1", "\"apiVersion\":[]"] {
        let text = list.replacen("{\"metadata\"", &format!("{{{wrong_type},\"metadata\""), 1);
        let refused = read_url(text.as_bytes(), "http://x", "n", &FeatureGates::default()).unwrap_err();
        assert!(refused.to_string().contains("items[0]."), "{refused}");
    }
    let one_bad = list.replace("\"i\"}]}}]}", "\"\"}]}}]}");
    assert!(matches!(
        read_url(one_bad.as_bytes(), "http://x", "n", &FeatureGates::default()),
        Err(ManifestError::Invalid(_))
    ));
    assert_eq!(
        read_url(GOOD.as_bytes(), "http://x", "n", &FeatureGates::default())
            .unwrap()
            .pods
            .len(),
        1
    );
}

#[test]
fn a_refused_manifest_names_what_and_where() {
    for (text, expected) in [
        ("", "the file is empty"),
        ("\u{0}\u{1}binary", "cannot be read"),
        ("- a list", "not an object"),
        ("kind: Pod", "apiVersion is missing"),
        ("apiVersion: v1\nkind: Node", "only v1 Pod"),
        ("apiVersion: v1\nkind: Pod\nspec: {containers: []}", "needs a name"),
        (&GOOD.replace("image: nginx", "image: 5"), "spec.containers[0].image"),
        (&with_metadata("uid: /etc"), "metadata.uid: \"/etc\""),
        (&with_metadata("uid: .."), "metadata.uid: \"..\""),
        (&with_metadata("uid: ../../a"), "metadata.uid: \"../../a\""),
        (&with_metadata("generateName: é-"), "metadata.generateName"),
        (&GOOD.replace("image: nginx", "image: x, resources: {limits: {cpu: much}}"), "spec.containers[0].resources.limits.cpu"),
        (&GOOD.replace("name: c", "name: C_"), "spec.containers[0].name: invalid"),
        (&GOOD.replace("spec:\n", "spec:\n  serviceAccountName: x\n"), "may not reference serviceaccounts"),
        (&GOOD.replace("spec:\n", "spec:\n  volumes: [{name: v, secret: {secretName: s}}]\n"), "may not reference secrets"),
        (&GOOD.replace("spec:\n", "spec:\n  volumes: [{name: v, ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1}}}}}}]\n"), "may not reference persistentvolumeclaims"),
    ] {
        let error = refused_on(text);
        assert!(error.contains(expected), "{text:?}: {error}");
    }
    assert!(refused_on("x: [").contains("not valid YAML"));
}

fn with_metadata(field: &str) -> String {
    GOOD.replace("{name: web}", &format!("{{name: web, {field}}}"))
}

#[track_caller]
fn refused_on(text: &str) -> String {
    match read_file(text.as_bytes(), "/m/web.yaml", "n", &FeatureGates::default()) {
        Ok(done) => panic!("{text:?} is accepted: {done:?}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_second_document_is_a_warning() {
    let done = read_file(
        format!("{GOOD}---\n{GOOD}").as_bytes(),
        "/m",
        "n",
        &FeatureGates::default(),
    )
    .unwrap();
    assert_eq!(done.warnings.len(), 1, "{:?}", done.warnings);
}

proptest! {
    #[test]
    fn any_bytes_give_an_answer(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = read_file(&bytes, "/m", "n", &FeatureGates::default());
        let _ = read_url(&bytes, "http://x", "n", &FeatureGates::default());
    }

    #[test]
    fn any_spec_gives_an_answer(spec in "\\PC{0,120}") {
        let text = format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: web}}\nspec: {spec}\n");
        let _ = read_file(text.as_bytes(), "/m", "n", &FeatureGates::default());
    }
}
