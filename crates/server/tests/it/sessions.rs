//! Reaching into pods: what the runtime is asked for, and what becomes of both connections.

use std::sync::Arc;

use anyhow::{Result, ensure};
use rubelet_model::Timestamp;
use rubelet_model::observation::{
    ContainerExit, ContainerObservation, ContainerState, PodObservation, SandboxObservation, SandboxState,
};
use rubelet_ports::RuntimeErrorKind;
use rubelet_testbed::in_scope;
use rubelet_testbed::wait::wait_until;
use rubelet_wire::cri::v1;
use serde_json::json;

use crate::client::{Connection, DEADLINE};
use crate::fixture::{FakePods, Running, Setup};
use crate::runtime::{Asked, StreamingServer};

pub(crate) const SPDY: [(&str, &str); 3] = [
    ("Connection", "Upgrade"),
    ("Upgrade", "SPDY/3.1"),
    ("X-Stream-Protocol-Version", "v4.channel.k8s.io"),
];
pub(crate) const EXEC: &str =
    "/exec/default/web/main?command=sh&command=-c&command=echo%20a%26b&input=1&output=1&tty=1";

/// A pod whose container `main` runs and whose container `over` has ended.
pub(crate) fn set_pod(pods: &FakePods) -> Result<()> {
    pods.set(json!({
        "metadata": { "name": "web", "namespace": "default", "uid": "u" },
        "spec": {
            "containers": [{ "name": "main", "tty": true }, { "name": "over" }, { "name": "bare" }],
        },
    }))?;
    let now = Timestamp::from_unix_seconds(1);
    let exit = ContainerExit {
        exit_code: 1,
        reason: String::new(),
        message: String::new(),
        started_at: now,
        finished_at: now,
    };
    let running = ContainerState::Running { started_at: now };
    let containers = vec![
        ContainerObservation::new("c-old", "main", "s-2", ContainerState::Exited(exit.clone()), now),
        ContainerObservation::new("c-main", "main", "s-2", running.clone(), now),
        ContainerObservation::new("c-over", "over", "s-2", ContainerState::Exited(exit), now),
        ContainerObservation::new("c-bare", "bare", "s-2", running, now),
    ];
    let sandboxes = vec![
        SandboxObservation::new("s-1", 0, SandboxState::NotReady, now),
        SandboxObservation::new("s-2", 1, SandboxState::Ready, now),
    ];
    let identity = ("u".into(), "default".to_owned(), "web".to_owned());
    let observed = PodObservation::new(identity, sandboxes, containers, now);
    *pods.observed.lock().unwrap() = vec![Arc::new(observed)];
    Ok(())
}

async fn start(setup: Setup<'_>, path: &str) -> Result<(Running, StreamingServer)> {
    let streaming = StreamingServer::start().await?;
    let running = setup.start().await?;
    set_pod(&running.pods)?;
    let mirror = ("mirror".to_owned(), "u".to_owned());
    running.pods.mirrors.lock().unwrap().extend([mirror]);
    running.runtime.serve_sessions_at(streaming.address(path));
    Ok((running, streaming))
}

async fn wait_for_open(streaming: &StreamingServer, expected: usize) -> Result<()> {
    wait_until(
        "the runtime's connections are as expected",
        DEADLINE,
        async || {
            let open = streaming.open();
            ensure!(open == expected, "{open} are open");
            Ok(())
        },
    )
    .await
}

#[test]
fn the_runtime_is_asked_for_what_the_client_wants() {
    in_scope("sessions-asked", async |scope| {
        let (running, _streaming) = start(Setup::new(scope)?, "/echo/t0ken").await?;
        let exec = |cmd: &[&str], stdin, stdout, stderr, tty| {
            Asked::Exec(v1::ExecRequest {
                container_id: "c-main".to_owned(),
                cmd: cmd.iter().map(|word| (*word).to_owned()).collect(),
                stdin,
                stdout,
                stderr,
                tty,
            })
        };
        let attach = |container: &str, tty| {
            Asked::Attach(v1::AttachRequest {
                container_id: container.to_owned(),
                stdin: false,
                stdout: true,
                stderr: true,
                tty,
            })
        };
        let forward = |port: &[i32]| {
            Asked::PortForward(v1::PortForwardRequest {
                pod_sandbox_id: "s-2".to_owned(),
                port: port.to_vec(),
            })
        };
        let websocket = [
            ("Connection", "keep-alive, Upgrade"),
            ("Upgrade", "websocket"),
            ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ("Sec-WebSocket-Version", "13"),
            ("Sec-WebSocket-Protocol", "v4.channel.k8s.io"),
        ];
        let (spdy, websocket): (&[_], &[_]) = (&SPDY, &websocket);
        for (method, path, headers, expected) in [
            (
                "GET",
                EXEC,
                spdy,
                exec(&["sh", "-c", "echo a&b"], true, true, false, true),
            ),
            (
                "POST",
                EXEC,
                websocket,
                exec(&["sh", "-c", "echo a&b"], true, true, false, true),
            ),
            (
                "POST",
                "/exec/default/web/u/main?command=ls&error=1",
                spdy,
                exec(&["ls"], false, false, true, false),
            ),
            // The name decides, as with upstream.
            (
                "POST",
                "/exec/default/web/other/main?output=1",
                spdy,
                exec(&[], false, true, false, false),
            ),
            // Whether there is a terminal is the pod's to say.
            (
                "POST",
                "/attach/default/web/main?output=1&error=1",
                spdy,
                attach("c-main", true),
            ),
            (
                "GET",
                "/attach/default/web/u/bare?output=1&error=1",
                websocket,
                attach("c-bare", false),
            ),
            ("POST", "/portForward/default/web", spdy, forward(&[])),
            ("POST", "/portForward/default/web/u?port=x", spdy, forward(&[])),
            ("POST", "/portForward/default/web/mirror", spdy, forward(&[])),
            (
                "POST",
                "/attach/default/web/mirror/main?output=1&error=1",
                spdy,
                attach("c-main", true),
            ),
            (
                "GET",
                "/portForward/default/web?port=80&port=81,82",
                websocket,
                forward(&[80, 81, 82]),
            ),
        ] {
            let mut client = running.tls().await?;
            let answer = client.ask_with(method, path, headers, "").await?;
            assert_eq!(answer.status, 101, "{path}: {answer:?}");
            assert_eq!(answer.header("upgrade"), headers[1].1, "{path}");
            assert_eq!(answer.header("x-stream-protocol-version"), "v4.channel.k8s.io");
            assert_eq!(client.take(5).await?, b"hello", "{path}");
            client.send(b"ping").await?;
            assert_eq!(client.take(4).await?, b"ping", "{path}");
            assert_eq!(running.runtime.take_asked(), [expected], "{path}");
        }
        running.pods.assert_no_relist();
        Ok(())
    });
}

#[test]
fn the_request_is_passed_on_without_credentials() {
    in_scope("sessions-headers", async |scope| {
        let (running, streaming) = start(Setup::new(scope)?, "/echo/t0ken?a=b").await?;
        let mut client = running.tls().await?;
        let headers = [
            ("Connection", "Upgrade"),
            ("Upgrade", "websocket"),
            ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
            (
                "Sec-WebSocket-Protocol",
                "v4.channel.k8s.io, base64url.bearer.authorization.k8s.io.c2VjcmV0",
            ),
            ("Authorization", "Bearer secret"),
            ("Cookie", "secret"),
            ("X-Own", "kept"),
        ];
        let answer = client.ask_with("POST", EXEC, &headers, "").await?;
        assert_eq!(answer.status, 101);
        let head = streaming.heads().join("").to_ascii_lowercase();
        assert!(head.starts_with("post /echo/t0ken?a=b http/1.1\r\n"), "{head}");
        for kept in [
            "connection: upgrade\r\n",
            "upgrade: websocket\r\n",
            "sec-websocket-key: dghlihnhbxbszsbub25jzq==\r\n",
            "sec-websocket-protocol: v4.channel.k8s.io\r\n",
            "x-own: kept\r\n",
            "host: node-a\r\n",
        ] {
            assert!(head.contains(kept), "{kept} is missing in {head}");
        }
        for hidden in ["secret", "bearer", "c2vjcmv0", "cookie", "authorization:"] {
            assert!(!head.contains(hidden), "{hidden} is in {head}");
        }
        Ok(())
    });
}

#[test]
fn what_cannot_be_opened_is_told_as_upstream_does() {
    in_scope("sessions-errors", async |scope| {
        let (running, streaming) = start(Setup::new(scope)?, "/echo/t0ken").await?;
        let mut client = running.tls().await?;
        let no_streams = "you must specify at least 1 of stdin, stdout, stderr";
        let websocket = [("Connection", "Upgrade"), ("Upgrade", "websocket")];
        for (path, headers, status, expected) in [
            ("/exec/default/web/main", &SPDY[..], 400, no_streams),
            ("/exec/default/none/main", &SPDY, 400, no_streams),
            ("/attach/default/web/main?tty=1&error=1", &SPDY, 400, no_streams),
            (
                "/exec/default/none/main?output=1",
                &SPDY,
                404,
                "pod does not exist",
            ),
            ("/exec/other/web/main?output=1", &SPDY, 404, "pod does not exist"),
            (
                "/attach/default/none/main?output=1",
                &SPDY,
                404,
                "pod does not exist",
            ),
            ("/portForward/default/none", &SPDY, 404, "pod does not exist"),
            ("/run/default/none/main", &SPDY, 404, "pod does not exist"),
            ("/portForward/default/web/other", &SPDY, 404, "pod not found"),
            (
                "/exec/default/web/none?output=1",
                &SPDY,
                500,
                "container not found (\"none\")",
            ),
            (
                "/exec/default/web/over?output=1",
                &SPDY,
                500,
                "container not found (\"over\")",
            ),
            (
                "/run/default/web/over?cmd=ls",
                &SPDY,
                500,
                "container not found (\"over\")",
            ),
            (
                "/attach/default/web/over?output=1",
                &SPDY,
                500,
                "container over not found in pod web_default",
            ),
            (
                "/attach/default/web/other/main?output=1",
                &SPDY,
                500,
                "pod web_default not found",
            ),
            (
                "/exec/default/web/main?output=1",
                &[],
                500,
                "Upgrade request required\n",
            ),
            (
                "/exec/default/web/main?output=1",
                &SPDY[..1],
                500,
                "Upgrade request required\n",
            ),
            (
                "/exec/default/web/main?output=1",
                &SPDY[1..],
                500,
                "Upgrade request required\n",
            ),
            (
                "/portForward/default/web",
                &websocket,
                400,
                "query parameter \"port\" is required",
            ),
            (
                "/portForward/default/web?port=0",
                &websocket,
                400,
                "port \"0\" must be > 0",
            ),
        ] {
            let answer = client.ask_with("POST", path, headers, "").await?;
            assert_eq!(
                (answer.status, answer.text().as_str()),
                (status, expected),
                "{path}"
            );
        }
        for (path, protocol) in [
            ("/exec/default/web/main?output=1", "v5.channel.k8s.io"),
            ("/portForward/default/web", "SPDY/3.1+portforward.k8s.io"),
        ] {
            let headers = [websocket[0], websocket[1], ("Sec-WebSocket-Protocol", protocol)];
            let answer = client.ask_with("GET", path, &headers, "").await?;
            assert_eq!(
                (answer.status, answer.text().as_str()),
                (400, "missing or bad WebSocket Version\n"),
                "{path}"
            );
        }
        assert_eq!(running.runtime.take_asked(), []);
        running.pods.observed.lock().unwrap().clear();
        let answer = client
            .ask_with("POST", "/portForward/default/web", &SPDY, "")
            .await?;
        assert_eq!(
            (answer.status, answer.text().as_str()),
            (500, "pod not found (\"web_default\")")
        );
        assert_eq!(streaming.heads().len(), 0);
        Ok(())
    });
}

#[test]
fn a_runtime_that_refuses_is_heard_and_its_address_is_not() {
    in_scope("sessions-refused", async |scope| {
        let (running, streaming) = start(Setup::new(scope)?, "/refuse/t0ken").await?;
        let answer = running.tls().await?.ask_with("POST", EXEC, &SPDY, "").await?;
        assert_eq!((answer.status, answer.text().as_str()), (403, "no session"));
        assert_eq!(answer.header("content-type"), "text/x-own");
        let nobody = format!("http://127.0.0.1:{}/exec/t0ken", scope.port()?);
        for (address, status, expected) in [
            (
                streaming.address("/ok/t0ken"),
                500,
                "invalid upgrade response: status code 200\n",
            ),
            (
                streaming.address("/cut/t0ken"),
                500,
                "the container runtime's streaming server hung up",
            ),
            (nobody, 500, "error dialing backend: "),
            (
                "https://127.0.0.1:1/exec/t0ken".to_owned(),
                500,
                "the container runtime serves streams over https, which rubelet does not speak",
            ),
            (
                "t0ken".to_owned(),
                500,
                "the container runtime gave an address for its stream that is none",
            ),
        ] {
            running.runtime.serve_sessions_at(address.clone());
            let answer = running.tls().await?.ask_with("POST", EXEC, &SPDY, "").await?;
            assert_eq!(answer.status, status, "{address}");
            let told = answer.text();
            assert!(
                told.starts_with(expected) && !told.contains("t0ken"),
                "{address}: {told}"
            );
        }
        for (kind, status, retry) in [
            (RuntimeErrorKind::NotFound, 404, ""),
            (RuntimeErrorKind::ResourceExhausted, 429, "60"),
            (RuntimeErrorKind::Unavailable, 500, ""),
        ] {
            *running.runtime.failure.lock().unwrap() = Some(kind);
            let answer = running.tls().await?.ask_with("POST", EXEC, &SPDY, "").await?;
            assert_eq!(
                (answer.status, answer.header("retry-after")),
                (status, retry),
                "{kind:?}"
            );
        }
        Ok(())
    });
}

#[test]
fn a_session_carries_much_and_ends_with_either_side() {
    in_scope("sessions-ends", async |scope| {
        let (running, streaming) = start(Setup::new(scope)?, "/echo/t0ken").await?;
        let open = async || -> Result<Connection> {
            let mut client = running.tls().await?;
            let answer = client.ask_with("POST", EXEC, &SPDY, "").await?;
            ensure!(answer.status == 101, "{answer:?}");
            client.take(5).await?;
            Ok(client)
        };
        let mut client = open().await?;
        let sent: Vec<u8> = (0..100_000u32).flat_map(u32::to_be_bytes).collect();
        for part in sent.chunks(50_000) {
            client.send(part).await?;
            assert!(client.take(part.len()).await? == part);
        }
        // What is on its way still arrives after the client has ended its half.
        client.send(b"last words").await?;
        client.finish().await?;
        assert_eq!(client.take(10).await?, b"last words");
        ensure!(!client.receive().await?, "more after the end");
        wait_for_open(&streaming, 0).await?;

        // A client that is gone.
        let client = open().await?;
        wait_for_open(&streaming, 1).await?;
        drop(client);
        wait_for_open(&streaming, 0).await?;

        // A runtime that is gone.
        running.runtime.serve_sessions_at(streaming.address("/bye/t0ken"));
        let mut client = running.tls().await?;
        assert_eq!(client.ask_with("POST", EXEC, &SPDY, "").await?.status, 101);
        assert_eq!(client.take(3).await?, b"bye");
        ensure!(!client.receive().await?, "more after the end");

        // A client that does not wait for a runtime that says nothing.
        running
            .runtime
            .serve_sessions_at(streaming.address("/hang/t0ken"));
        let mut client = running.tls().await?;
        client
            .send(
                format!("GET {EXEC} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n")
                    .as_bytes(),
            )
            .await?;
        wait_for_open(&streaming, 1).await?;
        drop(client);
        wait_for_open(&streaming, 0).await
    });
}

#[test]
fn sessions_end_when_nothing_moves_and_when_the_server_stops() {
    in_scope("sessions-idle", async |scope| {
        let setup = Setup::new(scope)?.with("streamingConnectionIdleTimeout", json!("300ms"));
        let (running, streaming) = start(setup, "/echo/t0ken").await?;
        let mut client = running.tls().await?;
        assert_eq!(client.ask_with("POST", EXEC, &SPDY, "").await?.status, 101);
        client.take(5).await?;
        ensure!(!client.receive().await?, "it does not end");
        wait_for_open(&streaming, 0).await?;
        running.server.stop().await;

        let (running, streaming) = start(Setup::new(scope)?, "/echo/t0ken").await?;
        let mut client = running.tls().await?;
        assert_eq!(client.ask_with("POST", EXEC, &SPDY, "").await?.status, 101);
        client.take(5).await?;
        running.server.stop().await;
        // In order, not cut off when the server would wait no longer.
        ensure!(!client.receive().await?, "it does not end");
        wait_for_open(&streaming, 0).await
    });
}

#[test]
fn a_command_is_run_to_its_end() {
    in_scope("sessions-run", async |scope| {
        let (running, _streaming) = start(Setup::new(scope)?, "").await?;
        let mut client = running.tls().await?;
        let ran = |words: &[&str]| {
            let words = words.iter().map(|word| (*word).to_owned()).collect();
            [Asked::ExecSync("c-main".to_owned(), words)]
        };
        *running.runtime.output.lock().unwrap() = v1::ExecSyncResponse {
            stdout: b"out".to_vec(),
            stderr: b"err".to_vec(),
            exit_code: 0,
        };
        let answer = client.ask("POST", "/run/default/web/main?cmd=ls+-l%20/").await?;
        assert_eq!((answer.status, answer.text().as_str()), (200, "outerr"));
        assert_eq!(answer.header("content-type"), "application/json");
        assert_eq!(running.runtime.take_asked(), ran(&["ls", "-l", "/"]));
        let form = [("Content-Type", "application/x-www-form-urlencoded; charset=utf-8")];
        let path = "/run/default/web/u/main?cmd=no";
        let answer = client.ask_with("POST", path, &form, "cmd=id+-u").await?;
        assert_eq!((answer.status, answer.text().as_str()), (200, "outerr"));
        assert_eq!(running.runtime.take_asked(), ran(&["id", "-u"]));
        let large = format!("cmd={}", "x".repeat(100 * 1024));
        let answer = running.tls().await?.ask_with("POST", path, &form, &large).await?;
        assert_eq!(answer.status, 400);

        running.runtime.output.lock().unwrap().exit_code = 3;
        let answer = client.ask("POST", "/run/default/web/main?cmd=false+x").await?;
        let expected = "command 'false x' exited with 3: err";
        assert_eq!((answer.status, answer.text().as_str()), (500, expected));
        *running.runtime.output.lock().unwrap() = v1::ExecSyncResponse::default();
        let answer = client.ask("POST", "/run/default/web/main?cmd=true").await?;
        assert_eq!((answer.status, answer.text().as_str()), (200, ""));
        assert_eq!(answer.header("content-type"), "");
        Ok(())
    });
}
