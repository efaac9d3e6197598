//! Single calls: what is sent, what comes back, on which connection.

use std::time::Duration;

use k8s_openapi::api::authentication::v1::{TokenRequest, TokenReview};
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::core::v1::{Event, Pod, Secret};
use prometheus::Registry;
use rubelet_apiserver::{ApiServerMetrics, RateLimit};
use rubelet_ports::api::{
    ApiErrorKind, EventWriter, LeaseKeeper, NodeReader, NodeWriter, ObjectReader, PodReader, PodWriter,
    Reviewer, TokenIssuer,
};
use serde_json::{Value, json};
use tokio::join;

use crate::scene::{Faults, Scene, connect, soon};

fn node() -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "managedFields": [{"manager": "x"}]}})
}

fn pod() -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "d", "uid": "u"}})
}

#[tokio::test]
async fn a_request_says_who_we_are_and_the_answer_is_decoded() {
    let mut scene = Scene::new().await;
    let api = scene.client();
    let server = async {
        let ask = scene.ask().await;
        assert_eq!(
            (ask.method.as_str(), ask.path.as_str()),
            ("GET", "/api/v1/nodes/n")
        );
        assert_eq!(ask.header("authorization"), "Bearer hunter2");
        assert_eq!(
            ask.header("user-agent"),
            "kubelet/v1.37.1 (linux/amd64) rubelet/test"
        );
        assert_eq!(ask.header("accept"), "application/json");
        assert!(ask.is_http2);
        ask.json(&node());
    };
    let (node, ()) = join!(api.node("n"), server);
    let node = node.unwrap();
    assert_eq!(node.metadata.name.as_deref(), Some("n"));
    assert_eq!(node.metadata.managed_fields, None);
    assert!(api.is_reachable());
    assert_eq!(api.server_url(), format!("https://{}", scene.address));
}

#[tokio::test]
async fn a_status_is_patched_strategically() {
    let mut scene = Scene::new().await;
    let api = scene.client();
    let patch = json!({"metadata": {"uid": "u"}, "status": {"phase": "Running"}});
    let server = async {
        let ask = scene.ask().await;
        assert_eq!(ask.method, "PATCH");
        assert_eq!(ask.path, "/api/v1/namespaces/d/pods/p/status");
        assert_eq!(
            ask.header("content-type"),
            "application/strategic-merge-patch+json"
        );
        assert_eq!(serde_json::from_slice::<Value>(&ask.body).unwrap(), patch);
        ask.json(&pod());
    };
    let (answer, ()) = join!(api.patch_pod_status("d", "p", patch.clone()), server);
    assert_eq!(answer.unwrap().metadata.uid.as_deref(), Some("u"));
}

#[tokio::test]
async fn a_pod_is_deleted_only_with_its_uid() {
    let mut scene = Scene::new().await;
    let api = scene.client();
    let server = async {
        let ask = scene.ask().await;
        assert_eq!(
            (ask.method.as_str(), ask.path.as_str()),
            ("DELETE", "/api/v1/namespaces/d/pods/p")
        );
        let body: Value = serde_json::from_slice(&ask.body).unwrap();
        assert_eq!(body["preconditions"]["uid"], "u");
        assert_eq!(body["gracePeriodSeconds"], 0);
        ask.fail(409, "Conflict", "the UID in the precondition does not match");
    };
    let (answer, ()) = join!(api.delete_pod("d", "p", "u", 0), server);
    let error = answer.unwrap_err();
    assert_eq!(error.kind, ApiErrorKind::Conflict);
    assert_eq!(
        error.to_string(),
        "delete pod d/p: the UID in the precondition does not match"
    );
    let server = async {
        scene
            .ask()
            .await
            .json(&json!({"kind": "Status", "status": "Success"}));
    };
    let (answer, ()) = join!(api.delete_pod("d", "p", "u", 30), server);
    answer.unwrap();
}

#[tokio::test]
async fn objects_are_created_where_they_belong() {
    let mut scene = Scene::new().await;
    let api = scene.client();
    let pod: Pod = serde_json::from_value(pod()).unwrap();
    let server = async {
        let ask = scene.ask().await;
        assert_eq!(
            (ask.method.as_str(), ask.path.as_str()),
            ("POST", "/api/v1/namespaces/d/pods")
        );
        let body: Value = serde_json::from_slice(&ask.body).unwrap();
        assert_eq!(
            (&body["kind"], &body["apiVersion"]),
            (&json!("Pod"), &json!("v1"))
        );
        ask.fail(409, "AlreadyExists", "pods \"p\" already exists");
    };
    let (answer, ()) = join!(api.create_pod(&pod), server);
    assert_eq!(answer.unwrap_err().kind, ApiErrorKind::AlreadyExists);

    let request: TokenRequest = serde_json::from_value(json!({"spec": {"audiences": ["a"]}})).unwrap();
    let server = async {
        let ask = scene.ask().await;
        assert_eq!(ask.path, "/api/v1/namespaces/d/serviceaccounts/s/token");
        let mut answer: Value = serde_json::from_slice(&ask.body).unwrap();
        answer["status"] = json!({"token": "t", "expirationTimestamp": "2030-01-01T00:00:00Z"});
        ask.json(&answer);
    };
    let (answer, ()) = join!(api.request_token("d", "s", &request), server);
    assert_eq!(answer.unwrap().status.unwrap().token.as_deref(), Some("t"));

    let review: TokenReview = serde_json::from_value(json!({"spec": {"token": "x"}})).unwrap();
    let server = async {
        let ask = scene.ask().await;
        assert_eq!(ask.path, "/apis/authentication.k8s.io/v1/tokenreviews");
        ask.reply(
            201,
            &[],
            &json!({"spec": {}, "status": {"authenticated": true}}).to_string(),
        );
    };
    let (answer, ()) = join!(api.review_token(&review), server);
    assert_eq!(answer.unwrap().authenticated, Some(true));
}

#[tokio::test]
async fn answers_may_be_compressed_and_watches_are_not() {
    let mut scene = Scene::new().await;
    let api = scene.client();
    let server = async {
        let ask = scene.ask().await;
        assert_eq!(ask.header("accept-encoding"), "gzip");
        ask.compressed(&pod());
    };
    let (answer, ()) = join!(api.pod("d", "p"), server);
    answer.unwrap();
    let mut pods = api.follow_pods("n");
    let server = async {
        let ask = scene.ask().await;
        assert_eq!(ask.header("accept-encoding"), "gzip");
        let list = json!({"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": [pod()]});
        ask.compressed(&list);
    };
    let (told, ()) = join!(crate::scene::change(&mut pods), server);
    assert!(matches!(&told, rubelet_ports::api::Change::All(all) if all.len() == 1));
    let ask = crate::scene::while_following(&mut pods, scene.ask()).await;
    assert_eq!(ask.header("accept-encoding"), "");
}

#[tokio::test]
async fn a_busy_server_says_how_long() {
    let mut scene = Scene::new().await;
    let api = scene.client();
    let server = async { scene.ask().await.reply(429, &[("retry-after", "7")], "slow down") };
    let (answer, ()) = join!(api.pod("d", "p"), server);
    let error = answer.unwrap_err();
    let retry_after = Some(Duration::from_secs(7));
    assert_eq!(error.kind, ApiErrorKind::Busy { retry_after });
}

#[tokio::test]
async fn what_is_no_answer_is_told_without_its_content() {
    let mut scene = Scene::new().await;
    let api = scene.client();
    let server = async {
        scene
            .ask()
            .await
            .reply(200, &[], r#"{"kind":"Secret","data":"hunter2"}"#);
    };
    let (answer, ()) = join!(api.secret("d", "s"), server);
    let error = answer.map(|secret: Secret| secret.metadata).unwrap_err();
    assert_eq!(error.kind, ApiErrorKind::Malformed);
    assert!(!error.to_string().contains("hunter2"), "{error}");
    assert!(error.to_string().starts_with("get Secret d/s: "), "{error}");
}

#[tokio::test]
async fn a_call_has_a_deadline() {
    let mut scene = Scene::new().await;
    let path = scene.kubeconfig(&json!({}));
    let api = connect(&path, |options| options.call_timeout = Duration::from_millis(50)).unwrap();
    let error = soon("the deadline", api.pod("d", "p")).await.unwrap_err();
    assert_eq!(error.kind, ApiErrorKind::DeadlineExceeded);
    assert_eq!(error.message, "no answer within 0.05 s");
    // The server is still good. What was given up may have come to it, or not.
    let api = connect(&path, |_| {}).unwrap();
    let server = async {
        loop {
            scene.ask().await.json(&pod());
        }
    };
    tokio::select! {
        answer = api.pod("d", "p") => drop(answer.unwrap()),
        () = server => {}
    }
}

#[tokio::test]
async fn purposes_have_connections_of_their_own_and_calls_share_one() {
    let mut scene = Scene::new().await;
    let api = scene.client();
    let event: Event = serde_json::from_value(json!({
        "metadata": {"name": "e", "namespace": "d"}, "involvedObject": {},
    }))
    .unwrap();
    let server = async {
        let mut connections = Vec::new();
        for _ in 0..5 {
            let ask = scene.ask().await;
            connections.push((ask.path.clone(), ask.connection));
            ask.fail(403, "Forbidden", "not yours");
        }
        connections
    };
    let (pod, other_pod, node, lease, event, connections) = join!(
        api.pod("d", "p"),
        api.pod("d", "q"),
        api.node("n"),
        api.lease("n"),
        api.create_event(&event),
        server
    );
    for result in [pod.err(), other_pod.err(), node.err(), lease.err(), event.err()] {
        assert_eq!(result.unwrap().kind, ApiErrorKind::Forbidden);
    }
    let of = |part: &str| {
        let found = connections.iter().find(|(path, _)| path.contains(part));
        found.unwrap_or_else(|| panic!("no request for {part}")).1
    };
    assert_eq!(of("/pods/p"), of("/pods/q"));
    assert_eq!(of("/nodes/n"), of("/leases/n"));
    let distinct = [of("/pods/"), of("/nodes/"), of("/events")];
    assert!(distinct[0] != distinct[1] && distinct[1] != distinct[2] && distinct[0] != distinct[2]);
    assert_eq!(scene.connection_count(), 3);
}

#[tokio::test]
async fn a_hundred_calls_at_once_make_one_connection() {
    let mut scene = Scene::new().await;
    let api = scene.client();
    let calls = (0..100).map(|number| {
        let api = api.clone();
        async move { api.pod("d", &number.to_string()).await }
    });
    let server = async {
        for _ in 0..100 {
            scene.ask().await.json(&pod());
        }
    };
    let (answers, ()) = join!(futures_util::future::join_all(calls), server);
    assert!(answers.iter().all(Result::is_ok));
    assert_eq!(scene.connection_count(), 1);
}

#[tokio::test]
async fn heartbeats_reconnect_on_demand_and_wait_for_no_limit() {
    let mut scene = Scene::new().await;
    let path = scene.kubeconfig(&json!({}));
    let limit = RateLimit {
        per_second: 1,
        burst: 1,
    };
    let api = connect(&path, |options| options.calls = Some(limit)).unwrap();
    let mut connections = Vec::new();
    for round in 0..4 {
        if round == 2 {
            NodeWriter::reconnect(&api);
        }
        let server = async {
            let ask = scene.ask().await;
            connections.push(ask.connection);
            ask.json(&node());
        };
        let patch = json!({"status": {}});
        let (answer, ()) = join!(api.patch_node_status("n", patch), server);
        answer.unwrap();
    }
    assert_eq!(connections, [0, 0, 1, 1]);
}

#[tokio::test]
async fn deletions_wait_for_no_limit() {
    let mut scene = Scene::new().await;
    let path = scene.kubeconfig(&json!({}));
    let limit = RateLimit {
        per_second: 1,
        burst: 1,
    };
    let api = connect(&path, |options| options.calls = Some(limit)).unwrap();
    let gets: Vec<_> = (0..30)
        .map(|_| {
            let api = api.clone();
            tokio::spawn(async move { api.pod("d", "p").await })
        })
        .collect();
    scene.ask().await.json(&pod());
    let server = async {
        // Of those that wait for the limit one a second comes through.
        for _ in 0..15 {
            let ask = scene.ask().await;
            let is_deletion = ask.method == "DELETE";
            ask.json(&pod());
            if is_deletion {
                return;
            }
        }
        panic!("the deletion waits for the limit");
    };
    let (answer, ()) = join!(api.delete_pod("d", "p", "u", 0), server);
    answer.unwrap();
    gets.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn token_reviews_without_an_answer_hold_up_no_other_call() {
    const FLOOD: usize = 300;
    let mut scene = Scene::new().await;
    let path = scene.kubeconfig(&json!({}));
    let limit = RateLimit {
        per_second: 1,
        burst: 150,
    };
    let api = connect(&path, |options| options.calls = Some(limit)).unwrap();
    let reviews: Vec<_> = (0..FLOOD)
        .map(|number| {
            let api = api.clone();
            let review = json!({"spec": {"token": number.to_string()}});
            let review: TokenReview = serde_json::from_value(review).unwrap();
            tokio::spawn(async move { api.review_token(&review).await })
        })
        .collect();
    // The server takes as many as one connection carries and answers none; the others wait for our limit.
    let mut held = Vec::new();
    while held.len() < 100 {
        held.push(scene.ask().await);
    }
    let review_connection = held[0].connection;
    let mut server = async |part: &str, answer: Value| {
        loop {
            let ask = scene.ask().await;
            if ask.path.contains("tokenreviews") {
                held.push(ask);
                assert!(held.len() < FLOOD, "all reviews come first");
                continue;
            }
            assert!(ask.path.contains(part), "{}", ask.path);
            assert_ne!(ask.connection, review_connection);
            return ask.json(&answer);
        }
    };
    let patch = json!({"status": {}});
    let (answer, ()) = join!(
        api.patch_pod_status("d", "p", patch.clone()),
        server("/pods/p/status", pod())
    );
    answer.unwrap();
    let (answer, ()) = join!(api.pod("d", "p"), server("/pods/p", pod()));
    answer.unwrap();
    let (answer, ()) = join!(
        api.patch_node_status("n", patch),
        server("/nodes/n/status", node())
    );
    answer.unwrap();
    assert!(reviews.iter().all(|review| !review.is_finished()));
    reviews.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn access_reviews_wait_for_no_token_review() {
    let mut scene = Scene::new().await;
    let path = scene.kubeconfig(&json!({}));
    let limit = RateLimit {
        per_second: 1,
        burst: 1,
    };
    let api = connect(&path, |options| options.calls = Some(limit)).unwrap();
    let token_review: TokenReview = serde_json::from_value(json!({"spec": {"token": "x"}})).unwrap();
    let reviews: Vec<_> = (0..30)
        .map(|_| {
            let (api, review) = (api.clone(), token_review.clone());
            tokio::spawn(async move { api.review_token(&review).await })
        })
        .collect();
    scene.ask().await.fail(500, "InternalError", "no");
    let review: SubjectAccessReview = serde_json::from_value(json!({"spec": {"user": "u"}})).unwrap();
    let server = async {
        // Of those that wait for the limit one a second comes through.
        for _ in 0..15 {
            let ask = scene.ask().await;
            if ask.path.contains("subjectaccessreviews") {
                return ask.json(&json!({"spec": {}, "status": {"allowed": true}}));
            }
        }
        panic!("the access review waits for the token reviews");
    };
    let (answer, ()) = join!(api.review_access(&review), server);
    assert!(answer.unwrap().allowed);
    reviews.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn a_server_without_http2_is_spoken_to_as_it_can() {
    let faults = Faults {
        only_http1: true,
        ..Faults::default()
    };
    let mut scene = Scene::with(faults).await;
    let api = scene.client();
    let server = async {
        for _ in 0..2 {
            let ask = scene.ask().await;
            assert!(!ask.is_http2);
            ask.json(&pod());
        }
    };
    let (first, second, ()) = join!(api.pod("d", "p"), api.pod("d", "q"), server);
    first.unwrap();
    second.unwrap();
}

#[tokio::test]
async fn all_who_waited_for_a_connection_learn_why_there_is_none() {
    let mut scene = Scene::new().await;
    let api = scene.client();
    scene.stop().await;
    let calls = (0..20).map(|number| {
        let api = api.clone();
        async move { api.pod("d", &number.to_string()).await }
    });
    for answer in soon("the failures", futures_util::future::join_all(calls)).await {
        let error = answer.unwrap_err();
        assert_eq!(error.kind, ApiErrorKind::Unreachable);
        assert!(error.message.contains("Connection refused"), "{error}");
    }
}

#[tokio::test]
async fn a_server_that_is_gone_is_named_and_found_again() {
    let mut scene = Scene::new().await;
    let api = scene.client();
    scene.stop().await;
    let error = soon("the failure", api.pod("d", "p")).await.unwrap_err();
    assert_eq!(error.kind, ApiErrorKind::Unreachable);
    let expected = format!(
        "get pod d/p: cannot reach https://{}: Connection refused",
        scene.address
    );
    assert!(error.to_string().starts_with(&expected), "{error}");
    assert!(!api.is_reachable());
    scene.restart().await;
    let server = async { scene.ask().await.json(&pod()) };
    let (answer, ()) = join!(api.pod("d", "p"), server);
    answer.unwrap();
    assert!(api.is_reachable());
}

#[tokio::test]
async fn calls_are_counted_under_upstreams_names() {
    let mut scene = Scene::new().await;
    let registry = Registry::new();
    let metrics = ApiServerMetrics::register(&registry).unwrap();
    let kubeconfig = scene.kubeconfig(&json!({"token": "hunter2"}));
    let api = connect(&kubeconfig, |options| options.metrics = Some(metrics)).unwrap();
    let server = async {
        scene.ask().await.json(&node());
        scene.ask().await.fail(404, "NotFound", "none");
    };
    let calls = async { (api.node("n").await, api.node("gone").await) };
    let ((found, missing), ()) = join!(calls, server);
    assert!(found.is_ok() && missing.is_err());
    scene.stop().await;
    assert!(api.node("n").await.is_err());
    let host = scene.address.to_string();
    let counts: Vec<(String, f64)> = samples(&registry, "rest_client_requests_total")
        .iter()
        .map(|sample| {
            assert_eq!(label(sample, "host"), host);
            assert_eq!(label(sample, "method"), "GET");
            (label(sample, "code").to_owned(), sample.get_counter().get_value())
        })
        .collect();
    let expected = [("200", 1.0), ("404", 1.0), ("<error>", 1.0)];
    assert_eq!(counts, expected.map(|(code, count)| (code.to_owned(), count)));
    let count = |name: &str| {
        let samples = samples(&registry, name);
        samples
            .iter()
            .map(|sample| sample.get_histogram().get_sample_count())
            .sum::<u64>()
    };
    assert_eq!(count("rest_client_request_duration_seconds"), 3);
    assert_eq!(count("rest_client_request_size_bytes"), 3);
    assert_eq!(count("rest_client_response_size_bytes"), 1);
    // Heartbeats have no limit to wait for.
    assert_eq!(count("rest_client_rate_limiter_duration_seconds"), 0);
}

fn samples(registry: &Registry, name: &str) -> Vec<prometheus::proto::Metric> {
    let families = registry.gather();
    let family = families.iter().find(|family| family.name() == name);
    family
        .map(|family| family.get_metric().to_vec())
        .unwrap_or_default()
}

fn label<'a>(sample: &'a prometheus::proto::Metric, name: &str) -> &'a str {
    let label = sample.get_label().iter().find(|label| label.name() == name);
    label.map_or("", |label| label.value())
}
