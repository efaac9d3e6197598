//! Services, runtime classes and trust bundles.

use std::time::Duration;

use rubelet_ports::api::ApiErrorKind;
use rubelet_ports::{PodObjects as _, TrustQuestion};
use serde_json::{Value, json};

use crate::api::Mood;
use crate::bed::{Bed, not_found, unavailable};

const UNREACHABLE: Mood = Mood::Fails(ApiErrorKind::Unreachable);
const LONG: Duration = Duration::from_secs(30);

fn service(namespace: &str, name: &str, address: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "namespace": namespace, "labels": {"x": "y"}},
        "spec": {"clusterIP": address, "ports": [{"port": 80}], "selector": {"a": "b"}}})
}

async fn names(bed: &Bed, namespace: &str) -> Vec<String> {
    let services = bed.objects.services(namespace).await.unwrap();
    let names = services
        .iter()
        .map(|service| service.metadata.name.clone().unwrap());
    names.collect()
}

#[tokio::test(start_paused = true)]
async fn services_of_a_namespace_and_the_api_servers() {
    let bed = Bed::new();
    bed.api.services.put(service("default", "kubernetes", "10.0.0.1"));
    bed.api.services.put(service("default", "other", "10.0.0.2"));
    bed.api.services.put(service("n", "b", "10.0.0.3"));
    bed.api.services.put(service("n", "a", "10.0.0.4"));
    bed.api.services.put(service("n", "headless", "None"));
    bed.api.services.put(service("n", "external", ""));
    bed.api.services.put(service("n1", "c", "10.0.0.5"));
    assert_eq!(bed.api.services.follows(), (0, 0));
    bed.register("p", json!({}));
    assert_eq!(names(&bed, "n").await, ["a", "b", "kubernetes"]);
    assert_eq!(names(&bed, "default").await, ["kubernetes", "other"]);
    assert_eq!(names(&bed, "none").await, ["kubernetes"]);
    assert_eq!(bed.api.services.follows(), (1, 1));

    let one = bed.objects.services("n").await.unwrap().remove(0);
    assert_eq!(one.metadata.labels, None);
    assert_eq!(one.spec.as_ref().unwrap().selector, None);

    bed.api.services.put(service("n", "a", "None"));
    bed.api.services.delete("n", "b");
    bed.settle().await;
    assert_eq!(names(&bed, "n").await, ["kubernetes"]);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_was_refused_for_lack_of_services_is_told_when_they_are_known() {
    let mut bed = Bed::new();
    bed.api.services.set(Mood::Hangs, Mood::Well);
    bed.register("p", json!({}));
    let message = "services have not yet been read at least once, cannot construct envvars";
    let refused = bed.objects.services("n").await;
    assert_eq!(refused, Err(unavailable(message)));
    assert_eq!(bed.elapsed(), Duration::from_secs(5));

    // Who knows that it fails does not wait.
    bed.api.services.set(UNREACHABLE, UNREACHABLE);
    bed.settle().await;
    let before = bed.elapsed();
    let refused = bed.objects.services("n").await;
    assert_eq!(
        refused,
        Err(unavailable(&format!("{message}: call: Unreachable")))
    );
    assert_eq!(bed.elapsed(), before);

    bed.api.services.set(Mood::Well, Mood::Well);
    bed.told(&["p"]).await;
    bed.api.services.put(service("n", "a", "10.0.0.1"));
    bed.nobody_told(LONG).await;
    // What is known is served in an outage.
    bed.api.services.set(UNREACHABLE, UNREACHABLE);
    bed.settle().await;
    assert_eq!(names(&bed, "n").await, ["a"]);
}

#[tokio::test(start_paused = true)]
async fn a_runtime_class_is_found_or_waited_for() {
    let mut bed = Bed::new();
    let class = |name: &str| {
        json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass",
            "metadata": {"name": name}, "handler": "h"})
    };
    bed.api.classes.put(class("a"));
    bed.register("p", json!({"runtimeClassName": "b"}));
    bed.register("q", json!({"runtimeClassName": "c"}));
    assert_eq!(bed.objects.runtime_class("a").await.unwrap().handler, "h");
    let missing = bed.objects.runtime_class("b").await;
    assert_eq!(
        missing,
        Err(not_found("runtimeclass.node.k8s.io \"b\" not found"))
    );
    bed.api.classes.put(class("b"));
    bed.told(&["p"]).await;
    assert_eq!(bed.objects.runtime_class("b").await.unwrap().handler, "h");
    bed.nobody_told(LONG).await;
    assert_eq!(bed.api.classes.follows(), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn classes_that_cannot_be_listed_are_not_missing() {
    let bed = Bed::new();
    bed.api
        .classes
        .set(Mood::Fails(ApiErrorKind::Forbidden), Mood::Well);
    let failure = bed.objects.runtime_class("a").await;
    assert_eq!(
        failure,
        Err(unavailable(
            "runtime classes have not yet been read: call: Forbidden"
        ))
    );
}

fn bundle(name: &str, signer: Option<&str>, labels: &Value, text: &str) -> Value {
    json!({"apiVersion": "certificates.k8s.io/v1", "kind": "ClusterTrustBundle",
        "metadata": {"name": name, "labels": labels},
        "spec": {"signerName": signer, "trustBundle": text}})
}

fn certificate(base64: &str) -> String {
    format!("-----BEGIN CERTIFICATE-----\n{base64}\n-----END CERTIFICATE-----\n")
}

fn projected(source: &Value) -> Value {
    json!({"volumes": [{"name": "v", "projected": {"sources": [
        {"clusterTrustBundle": source}
    ]}}]})
}

fn signed(signer: &str, labels: Value) -> TrustQuestion {
    TrustQuestion::Signed {
        signer: signer.to_owned(),
        labels: serde_json::from_value(labels).unwrap(),
    }
}

#[tokio::test(start_paused = true)]
async fn a_trust_bundle_by_its_name() {
    let mut bed = Bed::new();
    let (one, two) = (certificate("YQ=="), certificate("Yg=="));
    bed.register("p", projected(&json!({"name": "a", "path": "x"})));
    bed.register("q", projected(&json!({"name": "b", "path": "x"})));
    let question = TrustQuestion::Named("a".to_owned());
    let missing = bed.objects.trust_bundle(&question).await;
    let message = "while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io \"a\" not found";
    assert_eq!(missing, Err(not_found(message)));

    bed.api
        .bundles
        .put(bundle("a", None, &json!({}), &format!("words\n{one}\n{one}")));
    bed.told(&["p"]).await;
    assert_eq!(bed.objects.trust_bundle(&question).await.unwrap().as_ref(), one);
    bed.api.bundles.put(bundle("a", None, &json!({}), &two));
    bed.told(&["p"]).await;
    assert_eq!(bed.objects.trust_bundle(&question).await.unwrap().as_ref(), two);
    bed.api.bundles.delete("", "a");
    bed.told(&["p"]).await;
    assert!(
        bed.objects
            .trust_bundle(&question)
            .await
            .unwrap_err()
            .is_not_found()
    );
    assert_eq!(bed.api.bundles.follows(), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn trust_bundles_by_signer_and_labels() {
    let mut bed = Bed::new();
    let (one, two) = (certificate("YQ=="), certificate("Yg=="));
    bed.api
        .bundles
        .put(bundle("s:a", Some("s"), &json!({"x": "1"}), &one));
    bed.api
        .bundles
        .put(bundle("s:b", Some("s"), &json!({"x": "2"}), &two));
    bed.api
        .bundles
        .put(bundle("t:a", Some("t"), &json!({"x": "1"}), &two));
    let selector = json!({"matchLabels": {"x": "1"}});
    bed.register(
        "p",
        projected(&json!({"signerName": "s", "labelSelector": selector, "path": "x"})),
    );
    let first = signed("s", selector);
    assert_eq!(bed.objects.trust_bundle(&first).await.unwrap().as_ref(), one);
    let all = bed.objects.trust_bundle(&signed("s", json!({}))).await.unwrap();
    assert!(all.contains(&one) && all.contains(&two) && all.len() == one.len() + two.len());
    let none = "combination of signerName and labelSelector matched zero ClusterTrustBundles";
    for question in [signed("s", Value::Null), signed("u", json!({}))] {
        let missing = bed.objects.trust_bundle(&question).await;
        assert_eq!(missing, Err(not_found(none)));
    }
    let wrong = json!({"matchExpressions": [{"key": "x", "operator": "Like"}]});
    let failure = bed.objects.trust_bundle(&signed("s", wrong)).await;
    let message = "while parsing label selector: \"Like\" is not a valid label selector operator";
    assert_eq!(failure, Err(unavailable(message)));

    bed.told(&["p"]).await;
    bed.api.bundles.put(bundle("t:a", Some("t"), &json!({}), &one));
    bed.nobody_told(LONG).await;
    // One more that the labels select now.
    bed.api
        .bundles
        .put(bundle("s:b", Some("s"), &json!({"x": "1"}), &two));
    bed.told(&["p"]).await;
    let both = bed.objects.trust_bundle(&first).await.unwrap();
    assert!(both.contains(&one) && both.contains(&two));
}

#[tokio::test(start_paused = true)]
async fn bundles_that_cannot_be_listed_are_not_missing() {
    let bed = Bed::new();
    bed.api.bundles.set(Mood::Hangs, Mood::Well);
    let question = TrustQuestion::Named("a".to_owned());
    let failure = bed.objects.trust_bundle(&question).await;
    assert_eq!(
        failure,
        Err(unavailable("ClusterTrustBundle informer has not yet synced"))
    );
    assert_eq!(bed.elapsed(), Duration::from_secs(8));
}
