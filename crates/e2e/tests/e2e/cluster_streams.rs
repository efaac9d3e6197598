//! Entering containers with kubectl: exec, attach, cp, port-forward and logs, through the API server and the kubelet.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::ServiceAccount;
use rubelet_testbed::cluster::Cluster;
use rubelet_testbed::control_plane::Options;
use rubelet_testbed::in_scope;
use rubelet_testbed::node::Kubelet;
use rubelet_testbed::node::manifest::{UNTIL_TERM, pod, server, shell, with};
use serde_json::json;

#[test]
fn containers_can_be_entered() {
    in_scope("cluster_streams", async |scope| {
        let cluster =
            Cluster::start(scope, Options::default(), Kubelet::chosen()?, |options| options).await?;
        let reader = with(
            with(
                shell("reader", "while read line; do echo got $line; done; echo end"),
                "stdin",
                json!(true),
            ),
            "stdinOnce",
            json!(true),
        );
        cluster
            .create_pod(
                pod("entered")
                    .container(shell(
                        "main",
                        &format!("echo line one; echo line two; {UNTIL_TERM}"),
                    ))
                    .container(server("web", &["serve", "--http", "8080"]))
                    .spec("restartPolicy", json!("Never"))
                    .json(),
            )
            .await?;
        for name in ["attached", "attached-too"] {
            let manifest = pod(name)
                .container(reader.clone())
                .spec("restartPolicy", json!("Never"));
            cluster.create_pod(manifest.json()).await?;
        }
        for name in ["entered", "attached", "attached-too"] {
            cluster.wait_until_ready(name).await?;
        }
        for wire in [Wire::WebSocket, Wire::Spdy] {
            sessions_work(&cluster, wire)
                .await
                .with_context(|| format!("over {wire:?}"))?;
        }
        logs_are_shown(&cluster).await.context("logs")?;
        logs_are_followed(&cluster).await.context("logs -f")?;
        logs_come_over_a_websocket(&cluster)
            .await
            .context("logs over a websocket")?;
        nobody_else_may(&cluster).await.context("access")
    });
}

/// What kubectl speaks with the API server, and the API server with the kubelet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wire {
    WebSocket,
    Spdy,
}

impl Wire {
    /// Kubectl as the administrator, speaking this.
    async fn kubectl(self, cluster: &Cluster<'_>, arguments: &[&str]) -> Result<Command> {
        let mut command = cluster.control_plane.kubectl_command(arguments).await?;
        let is_websocket = (self == Self::WebSocket).to_string();
        command
            .env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", &is_websocket)
            .env("KUBECTL_PORT_FORWARD_WEBSOCKETS", &is_websocket);
        Ok(command)
    }

    /// What it said, whether it succeeded or not.
    async fn run(self, cluster: &Cluster<'_>, arguments: &[&str], input: Vec<u8>) -> Result<Output> {
        let command = self.kubectl(cluster, arguments).await?;
        cluster.control_plane.run_with_input(command, input).await
    }
}

async fn sessions_work(cluster: &Cluster<'_>, wire: Wire) -> Result<()> {
    input_reaches_a_command(cluster, wire)
        .await
        .context("exec with input")?;
    a_terminal_is_one(cluster, wire)
        .await
        .context("exec with a terminal")?;
    files_are_copied(cluster, wire).await.context("cp")?;
    ports_are_forwarded(cluster, wire).await.context("port-forward")?;
    input_reaches_a_container(cluster, wire).await.context("attach")
}

async fn input_reaches_a_command(cluster: &Cluster<'_>, wire: Wire) -> Result<()> {
    // More than any buffer on the way holds.
    let input: Vec<u8> = (0..1_000_000_u32).flat_map(u32::to_le_bytes).collect();
    let arguments = [
        "exec",
        "--stdin",
        "entered",
        "--container=main",
        "--",
        "sh",
        "-c",
        "cat; echo done >&2; exit 3",
    ];
    let output = wire.run(cluster, &arguments, input.clone()).await?;
    ensure!(output.status.code() == Some(3), "{:?}", output.status);
    ensure!(
        output.stdout == input,
        "{} bytes came back of {}",
        output.stdout.len(),
        input.len()
    );
    ensure!(
        String::from_utf8_lossy(&output.stderr).contains("done"),
        "{:?}",
        output.stderr
    );
    Ok(())
}

/// The size comes a moment after the command's start.
const SIZED: &str = "tty; for i in $(seq 100); do stty size 2>/dev/null | grep 33 && break; sleep 0.1; done";

async fn a_terminal_is_one(cluster: &Cluster<'_>, wire: Wire) -> Result<()> {
    // Without a terminal of its own kubectl asks for none, so `script` gives it one.
    let arguments = [
        "exec",
        "-it",
        "entered",
        "--container=main",
        "--",
        "sh",
        "-c",
        SIZED,
    ];
    let kubectl = wire.kubectl(cluster, &arguments).await?;
    let mut line = format!(
        "stty rows 33 cols 77; {}",
        kubectl.get_program().to_string_lossy()
    );
    for argument in kubectl.get_args() {
        line.push_str(&format!(" '{}'", argument.to_string_lossy()));
    }
    let mut command = Command::new("script");
    command.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
    for (name, value) in kubectl.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let output = tokio::task::spawn_blocking(move || command.output()).await??;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(text.contains("/dev/pts/"), "{text:?}");
    ensure!(text.contains("33 77"), "{text:?}");
    Ok(())
}

async fn files_are_copied(cluster: &Cluster<'_>, wire: Wire) -> Result<()> {
    let dir = cluster.bed.scope.path("copied");
    std::fs::create_dir_all(&dir)?;
    let bytes: Vec<u8> = (0..500_000_u32).flat_map(u32::to_be_bytes).collect();
    std::fs::write(dir.join("there"), &bytes)?;
    let (there, back) = (
        dir.join("there").display().to_string(),
        dir.join("back").display().to_string(),
    );
    for (from, to) in [
        (there.as_str(), "entered:/tmp/there"),
        ("entered:/tmp/there", &back),
    ] {
        let arguments = ["cp", "--container=main", from, to];
        let output = wire.run(cluster, &arguments, Vec::new()).await?;
        ensure!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    ensure!(
        std::fs::read(dir.join("back"))? == bytes,
        "another file came back"
    );
    Ok(())
}

async fn logs_are_shown(cluster: &Cluster<'_>) -> Result<()> {
    let all = cluster.kubectl(&["logs", "entered", "--container=main"]).await?;
    ensure!(all == "line one\nline two\n", "{all:?}");
    let last = cluster
        .kubectl(&["logs", "entered", "--container=main", "--tail=1", "--timestamps"])
        .await?;
    ensure!(
        last.ends_with(" line two\n") && last.starts_with("20"),
        "{last:?}"
    );
    Ok(())
}

/// The API server drops the last piece of the kubelet's answer here, when it comes together with the answer's end.
async fn logs_come_over_a_websocket(cluster: &Cluster<'_>) -> Result<()> {
    let port = cluster.bed.scope.port()?;
    let command = cluster
        .control_plane
        .kubectl_command(&["proxy", &format!("--port={port}")])
        .await?;
    let proxy = cluster.bed.scope.spawn("proxy", command)?;
    let path = "/api/v1/namespaces/default/pods/entered/log?container=main";
    cluster
        .eventually("the proxy answers", async || read_websocket(port, path).map(drop))
        .await?;
    // It was a matter of who is faster.
    for _ in 0..20 {
        let log = read_websocket(port, path)?;
        ensure!(log == "line one\nline two\n", "{log:?}");
    }
    drop(proxy);
    Ok(())
}

/// Everything that comes over a websocket until it is closed.
fn read_websocket(port: u16, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nOrigin: http://localhost\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\
         Sec-WebSocket-Protocol: binary.k8s.io\r\n\r\n"
    )?;
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        ensure!(reader.read_line(&mut head)? > 0, "the connection ended: {head}");
    }
    ensure!(head.starts_with("HTTP/1.1 101 "), "{head}");
    let mut content = Vec::new();
    loop {
        let mut start = [0; 2];
        reader.read_exact(&mut start)?;
        let length = match start[1] {
            126 => {
                let mut length = [0; 2];
                reader.read_exact(&mut length)?;
                usize::from(u16::from_be_bytes(length))
            }
            short => usize::from(short),
        };
        ensure!(start[1] < 127, "no frame of these logs is that long: {start:?}");
        let mut payload = vec![0; length];
        reader.read_exact(&mut payload)?;
        match start[0] & 0x0f {
            1 | 2 => content.append(&mut payload),
            8 => return Ok(String::from_utf8(content)?),
            _ => {}
        }
    }
}

/// What is written after the command began arrives, and the command ends with its container.
async fn logs_are_followed(cluster: &Cluster<'_>) -> Result<()> {
    let name = "followed";
    let script = "echo begin; while ! test -e /tmp/go; do sleep 0.1; done; echo middle; echo end";
    let manifest = pod(name)
        .container(shell("main", script))
        .spec("restartPolicy", json!("Never"));
    cluster.create_pod(manifest.json()).await?;
    cluster.wait_until_ready(name).await?;
    let mut command = cluster
        .control_plane
        .kubectl_command(&["logs", "--follow", name])
        .await?;
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut follower = command.spawn().context("start kubectl")?;
    let mut lines = BufReader::new(follower.stdout.take().context("its output")?);
    let reading = tokio::task::spawn_blocking(move || {
        let mut first = String::new();
        lines.read_line(&mut first).map(|_| (first, lines))
    });
    let (first, mut lines) = reading.await??;
    ensure!(first == "begin\n", "{first:?}");
    cluster.kubectl(&["exec", name, "--", "touch", "/tmp/go"]).await?;
    let reading = tokio::task::spawn_blocking(move || {
        let mut rest = String::new();
        lines.read_to_string(&mut rest)?;
        follower.wait().map(|status| (rest, status))
    });
    let (rest, status) = reading.await??;
    ensure!(rest == "middle\nend\n" && status.success(), "{rest:?} {status}");
    Ok(())
}

async fn ports_are_forwarded(cluster: &Cluster<'_>, wire: Wire) -> Result<()> {
    let port = cluster.bed.scope.port()?;
    let arguments = ["port-forward", "entered", &format!("{port}:8080")];
    let command = wire.kubectl(cluster, &arguments).await?;
    let forwarder = cluster
        .bed
        .scope
        .spawn(&format!("port-forward {wire:?}"), command)?;
    cluster
        .eventually("the forwarded port answers", async || {
            let mut stream = TcpStream::connect(("127.0.0.1", port))?;
            stream.set_read_timeout(Some(Duration::from_secs(10)))?;
            stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
            let mut start = [0; 7];
            stream.read_exact(&mut start)?;
            ensure!(start.starts_with(b"HTTP/1."), "{start:?}");
            Ok(())
        })
        .await?;
    drop(forwarder);
    Ok(())
}

async fn input_reaches_a_container(cluster: &Cluster<'_>, wire: Wire) -> Result<()> {
    // Its input ends with the session, and the container with its input.
    let name = match wire {
        Wire::WebSocket => "attached",
        Wire::Spdy => "attached-too",
    };
    let output = wire
        .run(cluster, &["attach", "--stdin", name], b"hello\nthere\n".to_vec())
        .await?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(
        text.contains("got there"),
        "{text:?} {:?}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

/// The kubelet's own port asks the API server who may do what.
async fn nobody_else_may(cluster: &Cluster<'_>) -> Result<()> {
    let node = cluster.node().await?;
    let status = node.status.context("a status")?;
    let endpoints = status.daemon_endpoints.and_then(|all| all.kubelet_endpoint);
    let port = endpoints.context("the kubelet's port")?.port;
    // Somebody the cluster knows, who may do nothing; and one who may read everything of nodes.
    for name in ["nobody", "reader"] {
        cluster
            .create::<ServiceAccount>(json!({ "metadata": { "name": name } }))
            .await?;
    }
    let binding = [
        "create",
        "clusterrolebinding",
        "reader",
        "--clusterrole=system:kubelet-api-admin",
        "--serviceaccount=default:reader",
    ];
    cluster.kubectl(&binding).await?;
    let stranger = cluster.kubectl(&["create", "token", "nobody"]).await?;
    let reader = cluster.kubectl(&["create", "token", "reader"]).await?;
    for path in [
        "/pods",
        "/metrics",
        "/configz",
        "/containerLogs/default/entered/main",
    ] {
        let check = async |token: Option<&str>, expected: &str| {
            let code = code_of(port, path, token).await?;
            ensure!(code == expected, "{path} answered {code:?} instead of {expected}");
            Ok(())
        };
        check(None, "401").await?;
        check(Some("forged"), "401").await?;
        check(Some(stranger.trim()), "403").await?;
        check(Some(reader.trim()), "200").await?;
    }
    Ok(())
}

/// What the kubelet answers to a request with this bearer token, or none.
async fn code_of(port: i32, path: &str, token: Option<&str>) -> Result<String> {
    let mut command = Command::new("curl");
    command
        .args(["--silent", "--insecure", "--max-time", "20"])
        .args(["--write-out", "%{http_code}", "--output", "/dev/null"])
        .arg(format!("https://127.0.0.1:{port}{path}"));
    if let Some(token) = token {
        command
            .arg("--header")
            .arg(format!("Authorization: Bearer {token}"));
    }
    let answer = tokio::task::spawn_blocking(move || command.output()).await??;
    Ok(String::from_utf8_lossy(&answer.stdout).into_owned())
}
