//! Following sets of objects while the server misbehaves.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use rubelet_apiserver::Liveness;
use rubelet_ports::api::{ApiErrorKind, Change, Changes, NodeReader, ObjectReader, PodReader};
use serde_json::{Value, json};
use tokio::join;

use crate::scene::{Scene, Watching, change, connect, soon, while_following};

fn pod(name: &str, version: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "d", "uid": name, "resourceVersion": version,
            "managedFields": [{"manager": "x", "time": "9999-12-31T23:59:59Z"}],
        },
        "spec": {"containers": [{"name": "c"}]},
    })
}

fn names(change: &Change<Pod>) -> (&'static str, Vec<String>) {
    let name = |pod: &Pod| {
        assert_eq!(pod.metadata.managed_fields, None);
        pod.metadata.name.clone().unwrap()
    };
    match change {
        Change::All(pods) => ("all", pods.iter().map(|pod| name(pod)).collect()),
        Change::Applied(pod) => ("applied", vec![name(pod)]),
        Change::Deleted(pod) => ("deleted", vec![name(pod)]),
        Change::Broken(error) => ("broken", vec![error.to_string()]),
        Change::Resumed => ("resumed", Vec::new()),
    }
}

async fn expect(pods: &mut Changes<Pod>, kind: &str, expected: &[&str]) {
    let change = change(pods).await;
    let (found, found_names) = names(&change);
    assert_eq!(found, kind, "{change:?}");
    assert_eq!(found_names, expected);
}

/// A list of one pod delivered, and its watch open.
async fn following(scene: &mut Scene, pods: &mut Changes<Pod>) -> Watching {
    let server = async {
        let ask = scene.ask().await;
        assert_eq!(ask.path, "/api/v1/pods");
        assert!(!ask.is_watch());
        assert_eq!(ask.query("fieldSelector").as_deref(), Some("spec.nodeName=n"));
        assert_eq!(ask.query("resourceVersion").as_deref(), Some("0"));
        assert_eq!(ask.query("limit").as_deref(), Some("500"));
        ask.list("10", &[pod("a", "5")]);
    };
    let ((), ()) = join!(expect(pods, "all", &["a"]), server);
    let ask = while_following(pods, scene.ask()).await;
    assert!(ask.is_watch());
    assert_eq!(ask.query("resourceVersion").as_deref(), Some("10"));
    assert_eq!(ask.query("allowWatchBookmarks").as_deref(), Some("true"));
    let seconds: u64 = ask.query("timeoutSeconds").unwrap().parse().unwrap();
    assert!((1800..3600).contains(&seconds), "{seconds}");
    ask.watch()
}

#[tokio::test]
async fn a_set_is_listed_and_then_followed() {
    let mut scene = Scene::new().await;
    let mut pods = scene.client().follow_pods("n");
    let watching = following(&mut scene, &mut pods).await;
    watching.send("ADDED", &pod("b", "11"));
    watching.send("MODIFIED", &pod("b", "12"));
    watching.send("DELETED", &pod("b", "13"));
    expect(&mut pods, "applied", &["b"]).await;
    expect(&mut pods, "applied", &["b"]).await;
    expect(&mut pods, "deleted", &["b"]).await;
}

#[tokio::test]
async fn a_watch_that_breaks_is_resumed_where_it_was() {
    let mut scene = Scene::new().await;
    let mut pods = scene.client().follow_pods("n");
    let watching = following(&mut scene, &mut pods).await;
    watching.send("ADDED", &pod("b", "11"));
    expect(&mut pods, "applied", &["b"]).await;
    watching.break_off();
    let ask = while_following(&mut pods, scene.ask()).await;
    assert_eq!(ask.query("resourceVersion").as_deref(), Some("11"));
    let watching = ask.watch();
    watching.send("ADDED", &pod("c", "12"));
    expect(&mut pods, "applied", &["c"]).await;
    watching.send("BOOKMARK", &json!({"metadata": {"resourceVersion": "21"}}));
    // So is one that the server ends in peace, and one whose connection is cut.
    drop(watching);
    let ask = while_following(&mut pods, scene.ask()).await;
    assert_eq!(ask.query("resourceVersion").as_deref(), Some("21"));
    let watching = ask.watch();
    watching.send("MODIFIED", &pod("c", "22"));
    expect(&mut pods, "applied", &["c"]).await;
    scene.cut();
    let ask = while_following(&mut pods, scene.ask()).await;
    assert!(ask.is_watch());
    assert_eq!(ask.query("resourceVersion").as_deref(), Some("22"));
}

#[tokio::test]
async fn what_the_server_forgot_is_listed_again() {
    let mut scene = Scene::new().await;
    let mut pods = scene.client().follow_pods("n");
    let watching = following(&mut scene, &mut pods).await;
    let gone = json!({"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"});
    watching.send("ERROR", &gone);
    let server = async {
        let ask = scene.ask().await;
        assert!(!ask.is_watch());
        // Nothing that we know may be asked for.
        assert_eq!(ask.query("resourceVersion"), None);
        assert_eq!(ask.query("limit").as_deref(), Some("500"));
        let metadata = json!({"resourceVersion": "30", "continue": "more"});
        ask.page(&metadata, &json!([pod("x", "29")]));
        let ask = scene.ask().await;
        assert_eq!(ask.query("continue").as_deref(), Some("more"));
        ask.list("31", &[pod("y", "28")]);
    };
    let ((), ()) = join!(expect(&mut pods, "all", &["x", "y"]), server);
    // A watch may be refused with the same reason from the start.
    let ask = while_following(&mut pods, scene.ask()).await;
    assert_eq!(ask.query("resourceVersion").as_deref(), Some("31"));
    ask.fail(410, "Expired", "too old");
    let server = async {
        let ask = scene.ask().await;
        assert!(!ask.is_watch());
        ask.list("40", &[]);
    };
    let ((), ()) = join!(expect(&mut pods, "all", &[]), server);
}

#[tokio::test]
async fn after_an_outage_a_watch_goes_on_where_it_was() {
    let mut scene = Scene::new().await;
    let api = scene.client();
    let mut pods = api.follow_pods("n");
    let watching = following(&mut scene, &mut pods).await;
    watching.send("ADDED", &pod("b", "11"));
    expect(&mut pods, "applied", &["b"]).await;
    scene.stop().await;
    let Change::Broken(error) = change(&mut pods).await else {
        panic!("the server is gone");
    };
    assert_eq!(error.kind, ApiErrorKind::Unreachable);
    assert_eq!(error.operation, "watch pods of node n");
    assert!(!api.is_reachable());
    scene.restart().await;
    let server = async {
        let ask = scene.ask().await;
        assert!(ask.is_watch());
        assert_eq!(ask.query("resourceVersion").as_deref(), Some("11"));
        ask.watch()
    };
    let ((), watching) = join!(expect(&mut pods, "resumed", &[]), server);
    watching.send("MODIFIED", &pod("b", "12"));
    expect(&mut pods, "applied", &["b"]).await;
}

/// Less than the shortest pause of a watch after four failures to connect.
const PAUSE_AFTER_FOUR: Duration = Duration::from_secs(6);

#[tokio::test]
async fn the_end_of_an_outage_ends_the_pauses_of_watches() {
    let mut scene = Scene::new().await;
    let api = scene.client();
    let mut pods = api.follow_pods("n");
    let watching = following(&mut scene, &mut pods).await;
    scene.stop().await;
    drop(watching);
    for _ in 0..4 {
        let (kind, _) = names(&change(&mut pods).await);
        assert_eq!(kind, "broken");
    }
    scene.restart().await;
    let server = async {
        // Another component's call is answered; the watch follows it, and then the list, because the version was dropped.
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}});
        let answered = async { scene.ask().await.json(&node) };
        let (answer, ()) = join!(api.node("n"), answered);
        answer.unwrap();
        let watching = scene.ask().await.watch();
        let gone = json!({"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"});
        watching.send("ERROR", &gone);
        let ask = scene.ask().await;
        assert!(!ask.is_watch());
        assert_eq!(ask.query("resourceVersion"), None);
        ask.list("50", &[pod("z", "50")]);
    };
    let follow = async {
        expect(&mut pods, "resumed", &[]).await;
        expect(&mut pods, "all", &["z"]).await;
    };
    let done = tokio::time::timeout(PAUSE_AFTER_FOUR, async { join!(follow, server) });
    done.await.expect("no pause is left");
}

#[tokio::test]
async fn services_without_an_address_are_not_asked_for() {
    let mut scene = Scene::new().await;
    let mut services = scene.client().follow_services();
    let server = async {
        let ask = scene.ask().await;
        assert_eq!(ask.path, "/api/v1/services");
        assert_eq!(
            ask.query("fieldSelector").as_deref(),
            Some("spec.clusterIP!=None")
        );
        ask.stream("1", &[])
    };
    let (first, _watching) = join!(change(&mut services), server);
    assert_eq!(first, Change::All(Vec::new()));
}

#[tokio::test]
async fn a_failed_list_is_told_and_tried_again() {
    let mut scene = Scene::new().await;
    let mut pods = scene.client().follow_pods("n");
    let server = async { scene.ask().await.fail(403, "Forbidden", "not yours") };
    let ((), ()) = join!(
        expect(&mut pods, "broken", &["list pods of node n: not yours"]),
        server
    );
    let server = async { scene.ask().await.list("1", &[]) };
    let ((), ()) = join!(expect(&mut pods, "all", &[]), server);
}

/// An answer to a list that is not a list of these objects: it is delivered as a failure and tried again soon, and the set stays.
async fn check_is_no_empty_set<T: std::fmt::Debug>(
    scene: &mut Scene,
    set: &mut Changes<T>,
    status: u16,
    body: &str,
    kind: ApiErrorKind,
) {
    let server = async {
        let ask = scene.ask().await;
        assert!(!ask.is_watch());
        ask.reply(status, &[], body);
    };
    let (told, ()) = join!(change(set), server);
    let Change::Broken(error) = told else {
        panic!("{status} {body} was told as {told:?}");
    };
    assert_eq!(error.kind, kind, "{error}");
}

#[tokio::test]
async fn an_answer_that_is_no_list_is_no_empty_set() {
    let answers = [
        (404, "404 page not found", ApiErrorKind::NotFound),
        (
            404,
            r#"{"kind":"Status","reason":"NotFound"}"#,
            ApiErrorKind::NotFound,
        ),
        (200, "{}", ApiErrorKind::Malformed),
        (
            200,
            r#"{"kind":"PodList","metadata":{}}"#,
            ApiErrorKind::Malformed,
        ),
        (
            200,
            r#"{"kind":"ServiceList","metadata":{},"items":[]}"#,
            ApiErrorKind::Malformed,
        ),
        (200, r#"{"metadata":{},"items":[]}"#, ApiErrorKind::Malformed),
    ];
    let checks = answers.map(|(status, body, kind)| async move {
        let mut scene = Scene::new().await;
        let mut pods = scene.client().follow_pods("n");
        let watching = following(&mut scene, &mut pods).await;
        let gone = json!({"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"});
        watching.send("ERROR", &gone);
        check_is_no_empty_set(&mut scene, &mut pods, status, body, kind).await;
        let server = async { scene.ask().await.list("20", &[pod("a", "5")]) };
        let ((), ()) = join!(expect(&mut pods, "all", &["a"]), server);

        let mut scene = Scene::new().await;
        let mut nodes = scene.client().follow_node("n");
        check_is_no_empty_set(&mut scene, &mut nodes, status, body, kind).await;
        let server = async { scene.ask().await.list("20", &[]) };
        let (told, ()) = join!(change(&mut nodes), server);
        assert_eq!(told, Change::All(Vec::new()));
    });
    futures_util::future::join_all(checks).await;
}

#[tokio::test]
async fn an_empty_list_may_be_null() {
    let mut scene = Scene::new().await;
    let mut pods = scene.client().follow_pods("n");
    let server = async {
        let ask = scene.ask().await;
        ask.page(&json!({"resourceVersion": "1"}), &Value::Null);
    };
    let ((), ()) = join!(expect(&mut pods, "all", &[]), server);
}

#[tokio::test]
async fn a_connection_that_dies_silently_is_noticed() {
    let mut scene = Scene::new().await;
    let path = scene.kubeconfig(&json!({}));
    let liveness = Liveness {
        ping_interval: Duration::from_millis(500),
        ping_timeout: Duration::from_secs(5),
    };
    let api = connect(&path, |options| options.liveness = liveness).unwrap();
    let mut pods = api.follow_pods("n");
    let watching = following(&mut scene, &mut pods).await;
    watching.send("ADDED", &pod("b", "11"));
    expect(&mut pods, "applied", &["b"]).await;
    scene.freeze();
    // No call, no event: only pings can tell.
    let ask = while_following(&mut pods, scene.ask()).await;
    assert!(ask.is_watch());
    assert_eq!(ask.query("resourceVersion").as_deref(), Some("11"));
}

#[tokio::test]
async fn an_object_that_cannot_be_decoded_hides_no_other() {
    let mut scene = Scene::new().await;
    let mut pods = scene.client().follow_pods("n");
    let mut bad = pod("bad", "6");
    bad["spec"] = json!("hunter2");
    let server = async {
        scene
            .ask()
            .await
            .list("10", &[pod("a", "5"), bad.clone(), pod("b", "7")]);
    };
    let (told, ()) = join!(change(&mut pods), server);
    assert_eq!(names(&told).1, ["a", "bad", "b"]);
    let Change::All(all) = told else {
        panic!("{told:?}");
    };
    let has_spec = all.iter().map(|pod| pod.spec.is_some());
    assert_eq!(has_spec.collect::<Vec<_>>(), [true, false, true]);
    let watching = while_following(&mut pods, scene.ask()).await.watch();
    bad["metadata"]["resourceVersion"] = json!("12");
    bad["metadata"]["deletionTimestamp"] = json!("2026-11-18T04:05:06Z");
    bad["metadata"]["deletionGracePeriodSeconds"] = json!(7);
    watching.send("MODIFIED", &bad);
    let Change::Applied(deleted) = change(&mut pods).await else {
        panic!("the deletion is hidden");
    };
    assert_eq!(deleted.metadata.deletion_grace_period_seconds, Some(7));
    watching.send("DELETED", &bad);
    expect(&mut pods, "deleted", &["bad"]).await;
    watching.send("MODIFIED", &pod("a", "13"));
    expect(&mut pods, "applied", &["a"]).await;
    // Where we are in the history counts for these objects too.
    bad["metadata"]["resourceVersion"] = json!("14");
    watching.send("ADDED", &bad);
    expect(&mut pods, "applied", &["bad"]).await;
    watching.break_off();
    let ask = while_following(&mut pods, scene.ask()).await;
    assert_eq!(ask.query("resourceVersion").as_deref(), Some("14"));
}

#[tokio::test]
async fn a_known_object_that_cannot_be_decoded_any_more_keeps_its_content() {
    let mut scene = Scene::new().await;
    let mut pods = scene.client().follow_pods("n");
    let watching = following(&mut scene, &mut pods).await;
    let bad = |name: &str, uid: &str| {
        let mut bad = pod(name, "12");
        bad["metadata"]["uid"] = json!(uid);
        bad["metadata"]["deletionTimestamp"] = json!("2026-11-18T04:05:06Z");
        bad["spec"] = json!("hunter2");
        bad
    };
    let check = |pod: &Pod, has_spec: bool| {
        assert_eq!(pod.spec.is_some(), has_spec, "{:?}", pod.metadata);
        assert!(pod.metadata.deletion_timestamp.is_some());
    };
    watching.send("ADDED", &pod("b", "11"));
    expect(&mut pods, "applied", &["b"]).await;
    let gone = json!({"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"});
    watching.send("ERROR", &gone);
    // Another pod of the same name was never known.
    let listed = [bad("a", "a"), bad("b", "another"), pod("c", "13")];
    let server = async { scene.ask().await.list("20", &listed) };
    let (told, ()) = join!(change(&mut pods), server);
    assert_eq!(names(&told).1, ["a", "b", "c"]);
    let Change::All(all) = told else {
        panic!("{told:?}");
    };
    check(&all[0], true);
    check(&all[1], false);
    let watching = while_following(&mut pods, scene.ask()).await.watch();
    watching.send("MODIFIED", &bad("c", "c"));
    let Change::Applied(changed) = change(&mut pods).await else {
        panic!("the deletion is hidden");
    };
    check(&changed, true);
    watching.send("DELETED", &bad("b", "another"));
    expect(&mut pods, "deleted", &["b"]).await;
    watching.send("DELETED", &bad("a", "a"));
    expect(&mut pods, "deleted", &["a"]).await;
}

#[tokio::test]
async fn a_config_map_that_cannot_be_decoded_is_no_empty_one() {
    let mut scene = Scene::new().await;
    let mut maps = scene.client().follow_config_map("n", "a");
    let bad = json!({"metadata": {"name": "a", "namespace": "n", "resourceVersion": "5"}, "data": "hunter2"});
    let server = async { scene.ask().await.stream("10", &[bad]) };
    let (told, _watching) = join!(change(&mut maps), server);
    assert_eq!(told, Change::All(Vec::new()));
}

#[tokio::test]
async fn a_line_that_is_no_event_makes_a_new_list() {
    let mut scene = Scene::new().await;
    let mut pods = scene.client().follow_pods("n");
    let watching = following(&mut scene, &mut pods).await;
    watching.send_text("{\"type\":\n");
    let server = async { scene.ask().await.list("1", &[]) };
    let ((), ()) = join!(expect(&mut pods, "all", &[]), server);
}

#[tokio::test]
async fn one_object_is_followed_by_its_name_and_may_be_absent() {
    let mut scene = Scene::new().await;
    let mut maps: Changes<ConfigMap> = scene.client().follow_config_map("d", "c");
    let server = async {
        let ask = scene.ask().await;
        assert_eq!(ask.path, "/api/v1/namespaces/d/configmaps");
        assert_eq!(ask.query("fieldSelector").as_deref(), Some("metadata.name=c"));
        assert_eq!(ask.query("resourceVersion").as_deref(), Some("0"));
        ask.stream("3", &[])
    };
    let (first, watching) = join!(change(&mut maps), server);
    assert_eq!(first, Change::All(Vec::new()));
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "data": {"k": "v"},
        "metadata": {"name": "c", "namespace": "d", "resourceVersion": "4"},
    });
    watching.send("ADDED", &map);
    let Change::Applied(map) = change(&mut maps).await else {
        panic!("it was added");
    };
    assert_eq!(map.data.as_ref().unwrap()["k"], "v");
}

fn config_map(name: &str, version: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "d", "uid": name, "resourceVersion": version},
    })
}

#[tokio::test]
async fn a_set_is_listed_by_its_watch_in_one_request() {
    let mut scene = Scene::new().await;
    let mut maps = scene.client().follow_config_map("d", "c");
    let server = async { scene.ask().await.stream("10", &[config_map("c", "4")]) };
    let (first, watching) = join!(change(&mut maps), server);
    assert!(matches!(&first, Change::All(all) if all.len() == 1), "{first:?}");
    watching.send("MODIFIED", &config_map("c", "11"));
    assert!(matches!(change(&mut maps).await, Change::Applied(_)));
    // From here on it is a watch as any other.
    drop(watching);
    let ask = while_following(&mut maps, scene.ask()).await;
    assert_eq!(ask.query("resourceVersion").as_deref(), Some("11"));
    assert_eq!(ask.query("sendInitialEvents"), None);
    let gone = json!({"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"});
    ask.watch().send("ERROR", &gone);
    let server = async {
        let ask = scene.ask().await;
        assert_eq!(ask.query("resourceVersion").as_deref(), Some(""));
        // An object may change or go while the set is on its way.
        let watching = ask.stream("20", &[config_map("c", "11")]);
        drop(watching);
    };
    let (again, ()) = join!(change(&mut maps), server);
    assert!(matches!(&again, Change::All(all) if all.len() == 1), "{again:?}");
}

#[tokio::test]
async fn a_stream_that_ends_early_is_no_empty_set() {
    let mut scene = Scene::new().await;
    let mut maps = scene.client().follow_config_map("d", "c");
    let server = async { scene.ask().await.watch().send("ADDED", &config_map("c", "4")) };
    let (told, ()) = join!(change(&mut maps), server);
    assert!(matches!(&told, Change::Broken(_)), "{told:?}");
    let server = async { scene.ask().await.stream("10", &[config_map("c", "4")]) };
    let (told, _watching) = join!(change(&mut maps), server);
    assert!(matches!(&told, Change::All(all) if all.len() == 1), "{told:?}");
}

#[tokio::test]
async fn a_server_without_streaming_lists_is_asked_for_one_once() {
    let mut scene = Scene::new().await;
    let api = scene.client();
    let mut maps = api.follow_config_map("d", "c");
    let server = async {
        let ask = scene.ask().await;
        assert_eq!(ask.query("sendInitialEvents").as_deref(), Some("true"));
        ask.fail(422, "Invalid", "sendInitialEvents: Forbidden");
        let ask = scene.ask().await;
        assert!(!ask.is_watch());
        ask.list("3", &[config_map("c", "2")]);
    };
    let (told, ()) = join!(change(&mut maps), server);
    assert!(matches!(&told, Change::All(all) if all.len() == 1), "{told:?}");
    let mut others = api.follow_config_map("d", "other");
    let server = async {
        let ask = scene.ask().await;
        assert!(!ask.is_watch());
        ask.list("3", &[]);
    };
    let (told, ()) = join!(change(&mut others), server);
    assert_eq!(told, Change::All(Vec::new()));
}

#[tokio::test]
async fn a_server_that_lost_a_part_of_its_history_is_listed() {
    let mut scene = Scene::new().await;
    let mut pods = scene.client().follow_pods("n");
    let watching = following(&mut scene, &mut pods).await;
    watching.send("BOOKMARK", &json!({"metadata": {"resourceVersion": "7"}}));
    let server = async {
        let ask = scene.ask().await;
        assert!(!ask.is_watch());
        assert_eq!(ask.query("resourceVersion"), None);
        ask.list("8", &[]);
    };
    let ((), ()) = join!(expect(&mut pods, "all", &[]), server);
}

#[tokio::test]
async fn trust_bundles_come_in_the_version_that_is_served() {
    let mut scene = Scene::new().await;
    let mut bundles = scene.client().follow_trust_bundles();
    let bundle = |version: &str| {
        json!({
            "apiVersion": "certificates.k8s.io/v1beta1", "kind": "ClusterTrustBundle",
            "metadata": {"name": "t", "resourceVersion": version}, "spec": {"trustBundle": "PEM"},
        })
    };
    let server = async {
        let ask = scene.ask().await;
        assert_eq!(ask.path, "/apis/certificates.k8s.io/v1/clustertrustbundles");
        ask.reply(404, &[], "404 page not found");
        let ask = scene.ask().await;
        assert_eq!(ask.path, "/apis/certificates.k8s.io/v1beta1/clustertrustbundles");
        ask.list("1", &[bundle("1")]);
    };
    let (first, ()) = join!(change(&mut bundles), server);
    let Change::All(all) = first else {
        panic!("the list was told");
    };
    assert_eq!(all[0].spec.trust_bundle, "PEM");
    let ask = while_following(&mut bundles, scene.ask()).await;
    assert_eq!(ask.path, "/apis/certificates.k8s.io/v1beta1/clustertrustbundles");
    let watching = ask.watch();
    watching.send("MODIFIED", &bundle("2"));
    assert!(matches!(change(&mut bundles).await, Change::Applied(_)));
}

#[tokio::test]
async fn a_type_that_is_not_served_is_an_empty_set() {
    let mut scene = Scene::new().await;
    let mut bundles = scene.client().follow_trust_bundles();
    let server = async {
        for _ in 0..2 {
            scene.ask().await.reply(404, &[], "404 page not found");
        }
    };
    let (first, ()) = join!(change(&mut bundles), server);
    assert_eq!(first, Change::All(Vec::new()));
}

#[tokio::test]
async fn many_watches_are_spread_over_connections() {
    let mut scene = Scene::new().await;
    let path = scene.kubeconfig(&json!({}));
    let api = connect(&path, |options| options.calls = None).unwrap();
    let followers: Vec<_> = (0..100)
        .map(|number| {
            let mut maps = api.follow_config_map("d", &number.to_string());
            tokio::spawn(async move { while !matches!(change(&mut maps).await, Change::Applied(_)) {} })
        })
        .collect();
    let mut watchings = Vec::new();
    let mut per_connection = std::collections::BTreeMap::<usize, usize>::new();
    while watchings.len() < 100 {
        let ask = scene.ask().await;
        *per_connection.entry(ask.connection).or_default() += 1;
        watchings.push(ask.stream("1", &[]));
    }
    assert_eq!(per_connection.len(), 2, "{per_connection:?}");
    assert!(
        per_connection.values().all(|watches| *watches <= 80),
        "{per_connection:?}"
    );
    for watching in &watchings {
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "resourceVersion": "2"}});
        watching.send("ADDED", &map);
    }
    for follower in followers {
        soon("all were told", follower).await.unwrap();
    }
}

#[tokio::test]
async fn who_stops_following_ends_the_watch() {
    let mut scene = Scene::new().await;
    let mut pods = scene.client().follow_pods("n");
    let watching = following(&mut scene, &mut pods).await;
    watching.send("ADDED", &pod("b", "11"));
    expect(&mut pods, "applied", &["b"]).await;
    drop(pods);
    watching.left().await;
}

#[tokio::test]
async fn a_busy_server_is_left_alone_as_long_as_it_wants() {
    let mut scene = Scene::new().await;
    let mut pods = scene.client().follow_pods("n");
    let asked_at = tokio::time::Instant::now();
    let server = async { scene.ask().await.reply(429, &[("retry-after", "2")], "") };
    let ((), ()) = join!(
        expect(
            &mut pods,
            "broken",
            &["list pods of node n: 429 Too Many Requests"]
        ),
        server
    );
    let ask = while_following(&mut pods, scene.ask()).await;
    assert!(asked_at.elapsed() >= Duration::from_secs(2));
    ask.list("1", &[]);
}
