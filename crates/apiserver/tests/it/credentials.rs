//! Who we are: certificates that are replaced, tokens that are rejected.

use std::time::Duration;

use rubelet_ports::api::{ApiErrorKind, Change, NodeReader, PodReader};
use serde_json::{Value, json};
use tokio::join;

use crate::scene::{Scene, change, connect, soon, while_following};

fn node() -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}})
}

#[tokio::test]
async fn a_replaced_certificate_is_shown_and_old_connections_end_when_idle() {
    let mut scene = Scene::new().await;
    let first = scene.authority.client("first");
    let user = json!({
        "client-certificate": scene.write("me.crt", &first.certificate),
        "client-key": scene.write("me.key", &first.key),
    });
    let api = connect(&scene.kubeconfig(&user), |_| {}).unwrap();
    assert_eq!(api.identity().certificate_chain_der(), [first.der()]);
    assert!(api.identity().expires_at().is_some());

    let mut pods = api.follow_pods("n");
    let server = async {
        let ask = scene.ask().await;
        assert_eq!(ask.peer, Some(first.der()));
        ask.list("1", &[]);
        scene
    };
    let (_, mut scene) = join!(change(&mut pods), server);
    let watch = while_following(&mut pods, scene.ask()).await;
    assert!(watch.is_watch());
    assert_eq!(watch.peer, Some(first.der()));
    let old_connection = watch.connection;
    let watching = watch.watch();
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "resourceVersion": "2"}});
    watching.send("ADDED", &pod);
    assert!(matches!(change(&mut pods).await, Change::Applied(_)));

    let second = scene.authority.client("second");
    api.identity()
        .replace(second.certificate.as_bytes(), second.key.as_bytes())
        .unwrap();
    // New requests show it; the watch is not cut.
    let server = async {
        let ask = scene.ask().await;
        assert_eq!(ask.peer, Some(second.der()));
        ask.json(&node());
    };
    let (answer, ()) = join!(api.node("n"), server);
    answer.unwrap();
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "resourceVersion": "3"}});
    watching.send("MODIFIED", &pod);
    assert!(matches!(change(&mut pods).await, Change::Applied(_)));
    // When it ends it goes on with the new certificate, and the old connection is closed.
    drop(watching);
    let watch = while_following(&mut pods, scene.ask()).await;
    assert_eq!(watch.peer, Some(second.der()));
    assert_eq!(watch.query("resourceVersion").as_deref(), Some("3"));
    let _watching = watch.watch();
    while_following(&mut pods, scene.closed(old_connection)).await;
}

#[tokio::test]
async fn a_certificate_file_that_changed_is_read_again() {
    let mut scene = Scene::new().await;
    let first = scene.authority.client("first");
    // As upstream writes them: both in one file.
    let both = |pair: &crate::scene::Pair| format!("{}{}", pair.certificate, pair.key);
    let file = scene.write("kubelet-client-current.pem", &both(&first));
    let user = json!({"client-certificate": file, "client-key": file});
    let api = connect(&scene.kubeconfig(&user), |_| {}).unwrap();
    let second = scene.authority.client("second");
    let server = async {
        let ask = scene.ask().await;
        assert_eq!(ask.peer, Some(first.der()));
        scene.write("new.pem", &both(&second));
        std::fs::rename(scene.path("new.pem"), &file).unwrap();
        // Being rejected makes it look at once.
        ask.fail(401, "Unauthorized", "Unauthorized");
    };
    let (answer, ()) = join!(api.node("n"), server);
    assert_eq!(answer.unwrap_err().kind, ApiErrorKind::Unauthorized);
    let server = async {
        let ask = scene.ask().await;
        assert_eq!(ask.peer, Some(second.der()));
        ask.json(&node());
    };
    let (answer, ()) = join!(api.node("n"), server);
    answer.unwrap();
    assert_eq!(api.identity().certificate_chain_der(), [second.der()]);
}

#[tokio::test]
async fn a_client_without_certificate_may_get_one_later() {
    let mut scene = Scene::new().await;
    let missing = scene.path("missing.pem");
    let kubeconfig = scene.kubeconfig(&json!({"client-certificate": missing, "client-key": missing}));
    let error = connect(&kubeconfig, |_| {}).unwrap_err().to_string();
    assert!(
        error.contains("users[u].user.client-certificate: ") && error.contains("missing.pem"),
        "{error}"
    );

    let api = connect(&kubeconfig, |options| options.may_lack_certificate = true).unwrap();
    assert_eq!(api.identity().expires_at(), None);
    let server = async {
        let ask = scene.ask().await;
        assert_eq!(ask.peer, None);
        ask.fail(401, "Unauthorized", "Unauthorized");
    };
    let (answer, ()) = join!(api.node("n"), server);
    assert_eq!(
        answer.unwrap_err().message,
        "Unauthorized: we have no credentials"
    );

    let pair = scene.authority.client("late");
    api.identity()
        .replace(pair.certificate.as_bytes(), pair.key.as_bytes())
        .unwrap();
    let server = async {
        let ask = scene.ask().await;
        assert_eq!(ask.peer, Some(pair.der()));
        ask.json(&node());
    };
    let (answer, ()) = join!(api.node("n"), server);
    answer.unwrap();
}

#[tokio::test]
async fn an_expired_client_certificate_says_so() {
    let scene = Scene::new().await;
    let expired = scene.authority.expired_client();
    let user = json!({
        "client-certificate": scene.write("me.crt", &expired.certificate),
        "client-key": scene.write("me.key", &expired.key),
    });
    let api = connect(&scene.kubeconfig(&user), |_| {}).unwrap();
    // This server refuses it in the handshake; the API server answers 401.
    let error = soon("the refusal", api.node("n")).await.unwrap_err();
    assert_eq!(error.kind, ApiErrorKind::Tls, "{error}");
    assert!(
        error.message.contains("our client certificate expired"),
        "{error}"
    );
}

#[tokio::test]
async fn a_rejected_token_names_the_clock() {
    let mut scene = Scene::new().await;
    let api = scene.client();
    let server = async {
        let ask = scene.ask().await;
        let date = [("date", "Tue, 01 Jan 2030 00:00:00 GMT")];
        ask.reply(401, &date, r#"{"kind":"Status","message":"Unauthorized"}"#);
    };
    let (answer, ()) = join!(api.node("n"), server);
    let error = answer.unwrap_err();
    assert_eq!(error.kind, ApiErrorKind::Unauthorized);
    assert!(error.message.contains("behind the API server's"), "{error}");
    assert!(!error.to_string().contains("hunter2"), "{error}");
}

#[tokio::test]
async fn a_plugin_gives_the_token_and_is_not_run_for_every_call() {
    let mut scene = Scene::new().await;
    let script = r#"echo run >> "$LOG"
echo '{"apiVersion":"client.authentication.k8s.io/v1","status":{"token":"from-plugin"}}'"#;
    let log = scene.path("runs");
    let user = json!({"exec": {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "/bin/sh",
        "args": [scene.write("plugin.sh", script)],
        "env": [{"name": "LOG", "value": log}],
    }});
    let api = connect(&scene.kubeconfig(&user), |_| {}).unwrap();
    for _ in 0..3 {
        let server = async {
            let ask = scene.ask().await;
            assert_eq!(ask.header("authorization"), "Bearer from-plugin");
            ask.json(&node());
        };
        let (answer, ()) = join!(api.node("n"), server);
        answer.unwrap();
    }
    assert_eq!(std::fs::read_to_string(log).unwrap(), "run\n");

    let user = json!({"exec": {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "/nonexistent/plugin",
    }});
    let api = connect(&scene.kubeconfig(&user), |_| {}).unwrap();
    let error = api.node("n").await.unwrap_err();
    assert_eq!(error.kind, ApiErrorKind::Credentials);
    assert!(error.message.contains("/nonexistent/plugin"), "{error}");
}

#[tokio::test]
async fn a_plugin_that_is_slower_than_its_callers_comes_to_its_end() {
    let mut scene = Scene::new().await;
    let script = r#"echo run >> "$LOG"
while [ ! -e "$GO" ]; do sleep 0.05; done
echo '{"apiVersion":"client.authentication.k8s.io/v1","status":{"token":"from-plugin"}}'"#;
    let (log, go) = (scene.path("runs"), scene.path("go"));
    let user = json!({"exec": {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "/bin/sh",
        "args": [scene.write("plugin.sh", script)],
        "env": [{"name": "LOG", "value": log}, {"name": "GO", "value": go}],
    }});
    let kubeconfig = scene.kubeconfig(&user);
    let api = connect(&kubeconfig, |options| {
        options.heartbeat_timeout = Duration::from_millis(200);
    })
    .unwrap();
    for _ in 0..3 {
        let error = api.node("n").await.unwrap_err();
        assert_eq!(error.kind, ApiErrorKind::DeadlineExceeded, "{error}");
    }
    std::fs::write(&go, "").unwrap();
    let server = async {
        let ask = scene.ask().await;
        assert_eq!(ask.header("authorization"), "Bearer from-plugin");
        ask.json(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}));
    };
    let (answer, ()) = join!(api.pod("d", "p"), server);
    answer.unwrap();
    assert_eq!(std::fs::read_to_string(log).unwrap(), "run\n");
}
