//! Status, headers and texts, path by path. The expectations are what upstream's kubelet v1.37.1 answered to the same requests.

use std::sync::Arc;

use anyhow::{Context, Result};
use rubelet_model::Timestamp;
use rubelet_model::observation::{
    ContainerObservation, ContainerState, PodObservation, SandboxObservation, SandboxState,
};
use rubelet_testbed::in_scope;
use rubelet_testbed::wait::wait_until;
use serde_json::{Value, json};

use crate::client::{Connection, DEADLINE};
use crate::fixture::Setup;

const PLAIN: &str = "text/plain; charset=utf-8";

/// Status, content type, the `Allow` or `Location` header, and the body.
type Expected<'a> = (u16, &'a str, &'a str, &'a str);

async fn check(
    connection: &mut Connection,
    method: &str,
    path: &str,
    (status, content_type, header, body): Expected<'_>,
) -> Result<()> {
    let answer = connection
        .ask(method, path)
        .await
        .with_context(|| path.to_owned())?;
    let place = format!("{method} {path}: {answer:?}");
    assert_eq!(answer.status, status, "{place}");
    assert_eq!(answer.header("content-type"), content_type, "{place}");
    let found = match status {
        405 => answer.header("allow"),
        307 => answer.header("location"),
        _ => "",
    };
    assert_eq!(found, header, "{place}");
    assert_eq!(answer.text(), body, "{place}");
    assert!(!answer.header("date").is_empty(), "{place}");
    Ok(())
}

const UNKNOWN: Expected<'_> = (404, PLAIN, "", "404 page not found\n");
const UNKNOWN_BELOW: Expected<'_> = (404, PLAIN, "", "404: Page Not Found");
const GET_ONLY: Expected<'_> = (405, PLAIN, "GET", "405: Method Not Allowed");
const DISABLED: Expected<'_> = (405, PLAIN, "", "Debug endpoints are disabled.\n");
const OK: Expected<'_> = (200, PLAIN, "", "ok");
const NO_PODS: &str = "{\"kind\":\"PodList\",\"apiVersion\":\"v1\",\"metadata\":{},\"items\":null}\n";

#[test]
fn the_api_answers_as_upstream() {
    in_scope("answers", async |scope| {
        let running = Setup::new(scope)?.start().await?;
        let mut tls = running.tls().await?;
        let redirect = |to: &str| {
            (
                307,
                "text/html; charset=utf-8",
                to.to_owned(),
                format!("<a href=\"{to}\">Temporary Redirect</a>.\n\n"),
            )
        };
        for (path, expected) in [
            ("/", UNKNOWN),
            ("/foo", UNKNOWN),
            ("/configz/", UNKNOWN),
            ("/metrics/foo", UNKNOWN),
            ("/healthz", OK),
            ("/healthz/ping", OK),
            ("/healthz/log", OK),
            ("/healthz/syncloop", OK),
            ("/healthz/nope", UNKNOWN),
            ("/pods", (200, "application/json", "", NO_PODS)),
            ("/pods/", (200, "application/json", "", NO_PODS)),
            ("/pods/x", UNKNOWN_BELOW),
            ("/runningpods/", (200, "application/json", "", NO_PODS)),
            ("/runningpods/x", UNKNOWN_BELOW),
            ("/containerLogs", UNKNOWN_BELOW),
            ("/containerLogs/", UNKNOWN_BELOW),
            ("/containerLogs/default/web", UNKNOWN_BELOW),
            ("/containerLogs/default/web/main/extra", UNKNOWN_BELOW),
            (
                "/containerLogs/default/web/main",
                (404, PLAIN, "", "pod \"web\" does not exist"),
            ),
            ("/stats/", UNKNOWN_BELOW),
            ("/exec", UNKNOWN_BELOW),
            (
                "/healthz?verbose",
                (
                    200,
                    PLAIN,
                    "",
                    "[+]ping ok\n[+]log ok\n[+]syncloop ok\nhealthz check passed\n",
                ),
            ),
            (
                "/healthz?exclude=ping&exclude=nope&verbose",
                (
                    200,
                    PLAIN,
                    "",
                    "[+]ping excluded: ok\n[+]log ok\n[+]syncloop ok\n\
                     warn: some health checks cannot be excluded: no matches for \"nope\"\nhealthz check passed\n",
                ),
            ),
        ] {
            check(&mut tls, "GET", path, expected).await?;
        }
        for (from, to) in [
            ("/runningpods", "/runningpods/"),
            ("/stats", "/stats/"),
            ("/logs", "/logs/"),
            ("/debug/pprof", "/debug/pprof/"),
            ("//pods", "/pods"),
            ("/foo/../pods", "/pods"),
            ("/containerLogs//web/main", "/containerLogs/web/main"),
        ] {
            let (status, content_type, location, body) = redirect(to);
            check(&mut tls, "GET", from, (status, content_type, &location, &body)).await?;
        }
        for (method, path, expected) in [
            ("POST", "/pods", GET_ONLY),
            ("OPTIONS", "/pods", GET_ONLY),
            ("POST", "/runningpods/", GET_ONLY),
            ("POST", "/containerLogs/default/web/main", GET_ONLY),
            ("POST", "/foo", UNKNOWN),
            ("POST", "/healthz", OK),
            (
                "DELETE",
                "/exec/default/web/main",
                (405, PLAIN, "GET, POST", "405: Method Not Allowed"),
            ),
            (
                "GET",
                "/run/default/web/main",
                (405, PLAIN, "POST", "405: Method Not Allowed"),
            ),
            (
                "GET",
                "/checkpoint/default/web/main",
                (405, PLAIN, "POST", "405: Method Not Allowed"),
            ),
        ] {
            check(&mut tls, method, path, expected).await?;
        }
        let head = tls.ask("HEAD", "/pods").await?;
        assert_eq!((head.status, head.header("allow")), (405, "GET"));
        Ok(())
    });
}

#[test]
fn the_read_only_port_has_no_debugging() {
    in_scope("read-only", async |scope| {
        let running = Setup::new(scope)?.start().await?;
        let mut port = running.read_only().await?;
        for path in [
            "/runningpods/",
            "/containerLogs/default/web/main",
            "/exec/x",
            "/run/x",
            "/attach/x",
            "/portForward/x",
            "/logs/",
            "/debug/pprof/",
        ] {
            check(&mut port, "GET", path, DISABLED).await?;
        }
        for path in [
            "/configz",
            "/flagz",
            "/checkpoint/a/b/c",
            "/debug/flags/v",
            "/foo",
        ] {
            check(&mut port, "GET", path, UNKNOWN).await?;
        }
        check(&mut port, "GET", "/pods", (200, "application/json", "", NO_PODS)).await?;
        check(&mut port, "POST", "/pods", GET_ONLY).await?;
        check(&mut port, "GET", "/healthz", OK).await?;
        let mut healthz = running.healthz().await?;
        check(&mut healthz, "GET", "/healthz", OK).await?;
        check(&mut healthz, "GET", "/healthz/ping", OK).await?;
        check(&mut healthz, "GET", "/healthz/syncloop", UNKNOWN).await?;
        check(&mut healthz, "GET", "/pods", UNKNOWN).await
    });
}

#[test]
fn handlers_can_be_switched_off() {
    in_scope("switches", async |scope| {
        let running = Setup::new(scope)?
            .with("enableDebuggingHandlers", json!(false))
            .start()
            .await?;
        let mut tls = running.tls().await?;
        check(&mut tls, "GET", "/runningpods/", DISABLED).await?;
        check(&mut tls, "GET", "/configz", UNKNOWN).await?;
        drop((tls, running));
        let running = Setup::new(scope)?
            .with("enableSystemLogHandler", json!(false))
            .with("enableProfilingHandler", json!(false))
            .with("enableDebugFlagsHandler", json!(false))
            .with("readOnlyPort", json!(0))
            .with("featureGates", json!({ "ContainerCheckpoint": false }));
        let read_only = running.ports.read_only;
        // The first server's socket goes with its tasks.
        let running = wait_until("the second server starts", DEADLINE, async || {
            running.try_start().await?.context("start")
        })
        .await
        .map(|server| (server, running))?;
        let certificate = scope.path("pki/kubelet.crt");
        let mut tls = Connection::tls(running.1.ports.tls, &certificate, None).await?;
        let off = |text| (405, PLAIN, "", text);
        check(&mut tls, "GET", "/logs/", off("logs endpoint is disabled.\n")).await?;
        check(
            &mut tls,
            "GET",
            "/debug/pprof/",
            off("profiling endpoint is disabled.\n"),
        )
        .await?;
        check(
            &mut tls,
            "GET",
            "/debug/flags/v",
            off("flags endpoint is disabled.\n"),
        )
        .await?;
        check(&mut tls, "POST", "/checkpoint/a/b/c", UNKNOWN).await?;
        assert!(Connection::plain(read_only).await.is_err());
        Ok(())
    });
}

#[test]
fn a_sync_loop_that_hangs_is_told() {
    in_scope("unhealthy", async |scope| {
        let running = Setup::new(scope)?.start().await?;
        let mut tls = running.tls().await?;
        *running.pods.sync_loop_problem.lock().unwrap() =
            Some("sync Loop took longer than expected".to_owned());
        check(
            &mut tls,
            "GET",
            "/healthz",
            (
                500,
                PLAIN,
                "",
                "[+]ping ok\n[+]log ok\n[-]syncloop failed: reason withheld\nhealthz check failed\n",
            ),
        )
        .await?;
        check(
            &mut tls,
            "GET",
            "/healthz/syncloop",
            (
                500,
                PLAIN,
                "",
                "internal server error: sync Loop took longer than expected\n",
            ),
        )
        .await?;
        check(&mut tls, "GET", "/healthz?exclude=syncloop", OK).await?;
        check(&mut running.healthz().await?, "GET", "/healthz", OK).await
    });
}

/// A pod as `/pods` of upstream's kubelet showed it.
fn upstreams_pod() -> Value {
    json!({
        "metadata": {
            "name": "web-node-a", "namespace": "default", "uid": "ef9b8b8ded4cc93021b383867653a6bc",
            "annotations": { "kubernetes.io/config.source": "file" },
        },
        "spec": {
            "containers": [{
                "name": "main", "image": "rubelet.test/pause:1", "resources": {},
                "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
                "imagePullPolicy": "Never",
            }],
            "restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst",
            "nodeName": "node-a", "securityContext": {}, "schedulerName": "default-scheduler",
            "tolerations": [{ "operator": "Exists", "effect": "NoExecute" }], "enableServiceLinks": true,
        },
        "status": {
            "phase": "Pending",
            "conditions": [{
                "type": "Initialized", "status": "True", "lastProbeTime": null,
                "lastTransitionTime": "2026-11-16T02:38:03Z",
            }],
            "podIP": "10.161.251.2", "podIPs": [{ "ip": "10.161.251.2" }],
            "startTime": "2026-11-16T02:38:03Z",
            "containerStatuses": [{
                "name": "main", "state": { "running": { "startedAt": "2026-11-16T02:38:04Z" } },
                "lastState": {}, "ready": true, "restartCount": 0, "image": "rubelet.test/pause:1",
                "imageID": "sha256:7a31", "containerID": "containerd://3ebb", "started": true, "resources": {},
            }, {
                "name": "other", "state": { "waiting": { "reason": "ErrImageNeverPull" } },
                "lastState": { "terminated": { "exitCode": 1, "startedAt": null, "finishedAt": null } },
                "ready": false, "restartCount": 0, "image": "x", "imageID": "", "started": false,
            }],
            "qosClass": "BestEffort", "resources": {},
        },
    })
}

/// Without fields that say nothing, as an agent has it.
fn without_empty(value: Value) -> Value {
    match value {
        Value::Object(fields) => Value::Object(
            fields
                .into_iter()
                .filter(|(name, value)| match name.as_str() {
                    "lastState" | "resources" => *value != json!({}),
                    _ => !value.is_null(),
                })
                .map(|(name, value)| (name, without_empty(value)))
                .collect(),
        ),
        Value::Array(items) => Value::Array(items.into_iter().map(without_empty).collect()),
        other => other,
    }
}

#[test]
fn pods_have_upstreams_shape() {
    in_scope("shape", async |scope| {
        let running = Setup::new(scope)?.start().await?;
        let mut expected = upstreams_pod();
        running.pods.set(without_empty(expected.clone()))?;
        // These two are left out where there is nothing: they are pointers in upstream's types.
        expected["status"]["containerStatuses"][0]
            .as_object_mut()
            .and_then(|status| status.remove("resources"));
        expected["status"]
            .as_object_mut()
            .and_then(|status| status.remove("resources"));
        // Also when it is asked again, and after a change.
        for _ in 0..2 {
            let answer = running.read_only().await?.get("/pods").await?.json()?;
            assert_eq!(
                answer,
                json!({ "kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": [expected] })
            );
        }
        let mut changed = without_empty(expected.clone());
        changed["status"]["phase"] = json!("Running");
        running.pods.set(changed)?;
        let answer = running.tls().await?.get("/pods").await?.json()?;
        assert_eq!(answer["items"][0]["status"]["phase"], "Running");
        Ok(())
    });
}

#[test]
fn running_pods_are_what_the_runtime_has() {
    in_scope("running-pods", async |scope| {
        let running = Setup::new(scope)?.start().await?;
        let now = Timestamp::from_unix_seconds(1);
        let container = |name: &str, state: ContainerState| {
            let mut container = ContainerObservation::new(format!("{name}-id"), name, "s", state, now);
            container.image = "rubelet.test/pause:1".to_owned();
            container.image_id = "sha256:7a31".to_owned();
            container
        };
        let pod = |uid: &str, sandbox: SandboxState, containers: Vec<ContainerObservation>| {
            let identity = (uid.into(), "default".to_owned(), format!("web-{uid}"));
            let sandboxes = vec![SandboxObservation::new("s", 0, sandbox, now)];
            Arc::new(PodObservation::new(identity, sandboxes, containers, now))
        };
        let runs = || ContainerState::Running { started_at: now };
        *running.pods.observed.lock().unwrap() = vec![
            pod(
                "a",
                SandboxState::Ready,
                vec![
                    container("dead", ContainerState::Created),
                    container("main", runs()),
                ],
            ),
            pod("b", SandboxState::Ready, vec![]),
            pod(
                "c",
                SandboxState::NotReady,
                vec![container("dead", ContainerState::Created)],
            ),
        ];
        let answer = running.tls().await?.get("/runningpods/").await?.json()?;
        let item = |uid: &str, containers: Value| {
            json!({
                "metadata": { "name": format!("web-{uid}"), "namespace": "default", "uid": uid },
                "spec": { "containers": containers },
                "status": {},
            })
        };
        let main = json!([{ "name": "main", "image": "sha256:7a31", "resources": {} }]);
        assert_eq!(answer["items"], json!([item("a", main), item("b", Value::Null)]));
        Ok(())
    });
}

#[test]
fn the_configuration_is_shown_as_upstream_shows_it() {
    in_scope("configz", async |scope| {
        let setup = Setup::new(scope)?.with("staticPodURLHeader", json!({ "Authorization": ["secret"] }));
        let mut expected = setup.settings()?.configz_json();
        let running = setup.start().await?;
        let mut tls = running.tls().await?;
        let answer = tls.get("/configz").await?;
        assert_eq!(answer.header("x-content-type-options"), "nosniff");
        assert!(!answer.text().contains("secret"), "{}", answer.text());
        expected["tlsCertFile"] = json!(scope.path("pki/kubelet.crt"));
        expected["tlsPrivateKeyFile"] = json!(scope.path("pki/kubelet.key"));
        assert_eq!(answer.json()?, json!({ "kubeletconfig": expected }));
        Ok(())
    });
}
