//! Certificates of pods.

use std::time::Duration;

use k8s_openapi::api::certificates::v1::PodCertificateRequest;
use k8s_openapi::jiff;
use rubelet_ports::api::ApiErrorKind;
use rubelet_ports::{PodCertificate, PodObjects as _};
use serde_json::{Value, json};

use crate::api::Mood;
use crate::bed::{Bed, EPOCH_SECONDS, JITTER, pod, unavailable};

const CHAIN: &str = "-----BEGIN CERTIFICATE-----\nYQ==\n-----END CERTIFICATE-----\n";

fn with_certificate(key_type: &str) -> Value {
    json!({"volumes": [{"name": "v", "projected": {"sources": [
        {"downwardAPI": {"items": []}},
        {"podCertificate": {"signerName": "example.com/s", "keyType": key_type, "keyPath": "k",
            "maxExpirationSeconds": 7200, "userAnnotations": {"example.com/a": "b"}}},
    ]}}]})
}

fn time(seconds: u64) -> String {
    let seconds = EPOCH_SECONDS + i64::try_from(seconds).unwrap();
    jiff::Timestamp::from_second(seconds).unwrap().to_string()
}

impl Bed {
    fn with_account() -> Self {
        let bed = Self::new();
        bed.api
            .accounts
            .put(json!({"apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": "account", "namespace": "n", "uid": "account-uid"}}));
        bed.api.nodes.put(json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": "node", "uid": "node-uid"}}));
        bed
    }

    async fn certificate(&self, uid: &str) -> Result<PodCertificate, String> {
        let pod = pod(uid, json!({}));
        let answer = self.objects.pod_certificate(&pod, "v", 1).await;
        answer.map_err(|failure| failure.to_string())
    }

    /// The only request there is.
    async fn request(&self) -> PodCertificateRequest {
        self.settle().await;
        let names = self.api.requests.names();
        assert_eq!(names.len(), 1, "{names:?}");
        self.api.requests.find("n", &names[0]).unwrap().as_ref().clone()
    }

    fn conclude(&self, request: &PodCertificateRequest, kind: &str, status: Value) {
        let mut request = serde_json::to_value(request).unwrap();
        request["status"] = status;
        request["status"]["conditions"] = json!([{"type": kind, "status": "True", "reason": "R",
            "message": "M", "lastTransitionTime": time(0)}]);
        self.api.requests.put(request);
    }

    fn issue(&self, request: &PodCertificateRequest, refresh: u64, end: u64) {
        let status = json!({"certificateChain": format!("noise\n{CHAIN}"),
            "beginRefreshAt": time(refresh), "notAfter": time(end), "notBefore": time(0)});
        self.conclude(request, "Issued", status);
    }

    fn states(&self) -> Vec<(&'static str, usize)> {
        let states = self.objects.certificate_states();
        states
            .into_iter()
            .map(|((_, state), count)| (state, count))
            .collect()
    }
}

#[tokio::test(start_paused = true)]
async fn a_certificate_is_requested_issued_and_renewed() {
    let mut bed = Bed::with_account();
    assert_eq!(bed.api.requests.follows(), (0, 0));
    bed.register("p", with_certificate("ECDSAP256"));
    let request = bed.request().await;
    let spec = serde_json::to_value(&request.spec).unwrap();
    let proof = spec["stubPKCS10Request"].as_str().unwrap().to_owned();
    assert!(!proof.is_empty());
    let expected = json!({"signerName": "example.com/s", "podName": "pod-p", "podUID": "p",
        "serviceAccountName": "account", "serviceAccountUID": "account-uid", "nodeName": "node",
        "nodeUID": "node-uid", "maxExpirationSeconds": 7200, "stubPKCS10Request": proof,
        "unverifiedUserAnnotations": {"example.com/a": "b"}});
    assert_eq!(spec, expected);
    let owner = &request.metadata.owner_references.as_ref().unwrap()[0];
    assert_eq!((owner.kind.as_str(), owner.uid.as_str()), ("Pod", "p"));
    assert_eq!(
        bed.certificate("p").await,
        Err("credential bundle is not issued yet".to_owned())
    );
    assert_eq!(bed.states(), [("not_yet_issued", 1)]);
    bed.nobody_told(Duration::from_secs(30)).await;

    bed.issue(&request, 3600, 7200);
    bed.told(&["p"]).await;
    let first = bed.certificate("p").await.unwrap();
    assert_eq!(first.chain, CHAIN.as_bytes());
    assert!(first.key.starts_with(b"-----BEGIN PRIVATE KEY-----\n"));
    assert_eq!(bed.states(), [("fresh", 1)]);
    assert_eq!(bed.api.requests.names().len(), 1);

    // At the time that the signer named, and a little later.
    tokio::time::sleep_until(bed.start + Duration::from_secs(3600) + JITTER).await;
    bed.settle().await;
    let names = bed.api.requests.names();
    assert_eq!(names.len(), 2, "{names:?}");
    assert_eq!(bed.certificate("p").await.unwrap(), first);
    let name = names
        .iter()
        .find(|name| **name != *request.metadata.name.as_ref().unwrap());
    let second = bed.api.requests.find("n", name.unwrap()).unwrap();
    assert_ne!(
        second.spec.stub_pkc_s10_request,
        request.spec.stub_pkc_s10_request
    );
    bed.issue(&second, 9000, 12_000);
    bed.told(&["p"]).await;
    assert_ne!(bed.certificate("p").await.unwrap().key, first.key);
    assert_eq!(bed.events(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_for_good_and_people_are_told() {
    for (kind, past, verb) in [("Denied", "denied", "was denied"), ("Failed", "failed", "failed")] {
        let mut bed = Bed::with_account();
        bed.register("p", with_certificate("ED25519"));
        let request = bed.request().await;
        bed.conclude(&request, kind, json!({}));
        bed.told(&["p"]).await;
        let text = format!("PodCertificateRequest was permanently {past}: reason=\"R\" message=\"M\"");
        assert_eq!(bed.certificate("p").await, Err(text));
        let name = request.metadata.name.clone().unwrap();
        let event =
            format!("Warning {kind}: PodCertificateRequest n/{name} {verb}, reason=\"R\", message=\"M\"");
        assert_eq!(bed.events(), [event]);
        bed.nobody_told(Duration::from_secs(36_000)).await;
        assert_eq!(bed.api.requests.names().len(), 1);
        assert_eq!(bed.states(), [(past, 1)]);
    }
}

#[tokio::test(start_paused = true)]
async fn what_stands_in_the_way_is_said_and_tried_again() {
    let mut bed = Bed::new();
    bed.register("p", with_certificate("ECDSAP256"));
    bed.settle().await;
    let text = "credential bundle is not issued yet: while fetching service account: call: NotFound";
    assert_eq!(bed.certificate("p").await, Err(text.to_owned()));
    bed.api
        .accounts
        .put(json!({"apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": {"name": "account", "namespace": "n", "uid": "account-uid"}}));
    bed.api.nodes.put(json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "node", "uid": "node-uid"}}));
    bed.api
        .requests
        .set(Mood::Well, Mood::Fails(ApiErrorKind::Forbidden));
    tokio::time::sleep(Duration::from_secs(10)).await;
    let text = "credential bundle is not issued yet: while creating PodCertificateRequest: call: Forbidden";
    assert_eq!(bed.certificate("p").await, Err(text.to_owned()));
    bed.api.requests.set(Mood::Well, Mood::Well);
    tokio::time::sleep(Duration::from_secs(30)).await;
    let request = bed.request().await;
    bed.issue(&request, 3600, 7200);
    bed.told(&["p"]).await;
    assert!(bed.certificate("p").await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_key_type_that_nobody_knows_is_said() {
    let bed = Bed::with_account();
    bed.register("p", with_certificate("RSA2048"));
    bed.settle().await;
    let text = "credential bundle is not issued yet: unknown key type \"RSA2048\"";
    assert_eq!(bed.certificate("p").await, Err(text.to_owned()));
    assert_eq!(bed.api.requests.names().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_deleted_request_is_made_again() {
    let mut bed = Bed::with_account();
    bed.register("p", with_certificate("ECDSAP256"));
    let request = bed.request().await;
    bed.api
        .requests
        .delete("n", request.metadata.name.as_ref().unwrap());
    tokio::time::sleep(Duration::from_secs(599)).await;
    assert_eq!(bed.api.requests.names().len(), 0);
    tokio::time::sleep(Duration::from_secs(70)).await;
    let again = bed.request().await;
    bed.issue(&again, 3600, 7200);
    bed.told(&["p"]).await;
    assert!(bed.certificate("p").await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn nothing_is_left_of_a_pod_that_is_gone() {
    let mut bed = Bed::with_account();
    bed.register("p", with_certificate("ECDSAP256"));
    let request = bed.request().await;
    bed.unregister("p");
    bed.issue(&request, 60, 120);
    bed.nobody_told(Duration::from_secs(36_000)).await;
    assert_eq!(bed.states(), []);
    assert_eq!(bed.api.requests.names().len(), 1);
    let pod = pod("p", json!({}));
    let failure = bed.objects.pod_certificate(&pod, "v", 1).await;
    assert_eq!(
        failure.unwrap_err(),
        unavailable("no credentials yet for source 1 of volume \"v\"")
    );
}

#[tokio::test(start_paused = true)]
async fn a_late_renewal_is_an_event() {
    let bed = Bed::with_account();
    bed.register("p", with_certificate("ECDSAP256"));
    let request = bed.request().await;
    bed.issue(&request, 3600, 7200);
    bed.settle().await;
    bed.api
        .requests
        .set(Mood::Well, Mood::Fails(ApiErrorKind::Unreachable));
    let late = Duration::from_secs(3600 + 600 + 660);
    tokio::time::sleep_until(bed.start + late).await;
    let overdue = "Warning CertificateOverdueForRefresh: PodCertificate refresh overdue";
    assert_eq!(bed.events(), [overdue]);
    assert_eq!(bed.states(), [("overdue_for_refresh", 1)]);
    tokio::time::sleep_until(bed.start + Duration::from_secs(7200 + 660)).await;
    assert_eq!(
        bed.events(),
        [overdue, "Warning CertificateExpired: PodCertificate expired"]
    );
    assert!(bed.certificate("p").await.is_ok());
    // It is issued in the end.
    bed.api.requests.set(Mood::Well, Mood::Well);
    tokio::time::sleep(Duration::from_secs(660)).await;
    assert_eq!(bed.api.requests.names().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn keys_are_made_one_after_the_other() {
    let bed = Bed::with_account();
    bed.keys.take(Duration::from_secs(30));
    for uid in ["p", "q", "r", "s", "t"] {
        bed.register(uid, with_certificate("ECDSAP256"));
    }
    // All of them together take longer than one may.
    tokio::time::sleep(Duration::from_secs(151)).await;
    assert_eq!((bed.api.requests.names().len(), bed.keys.most_at_once()), (5, 1));
}
