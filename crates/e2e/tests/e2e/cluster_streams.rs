//! Entering containers with kubectl: exec, attach, cp, port-forward and logs, through the API server and the kubelet.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rubelet_testkit::cluster::Cluster;
use rubelet_testkit::control_plane::Options;
use rubelet_testkit::in_scope;
use rubelet_testkit::node::Kubelet;
use rubelet_testkit::node::manifest::{UNTIL_TERM, pod, server, shell, with};
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
        cluster
            .create_pod(
                pod("attached")
                    .container(reader)
                    .spec("restartPolicy", json!("Never"))
                    .json(),
            )
            .await?;
        cluster.wait_until_ready("entered").await?;
        cluster.wait_until_ready("attached").await?;
        input_reaches_a_command(&cluster)
            .await
            .context("exec with input")?;
        a_terminal_is_one(&cluster)
            .await
            .context("exec with a terminal")?;
        files_are_copied(&cluster).await.context("cp")?;
        logs_are_shown(&cluster).await.context("logs")?;
        logs_come_over_a_websocket(&cluster)
            .await
            .context("logs over a websocket")?;
        ports_are_forwarded(&cluster).await.context("port-forward")?;
        input_reaches_a_container(&cluster).await.context("attach")?;
        nobody_else_may(&cluster).await.context("access")
    });
}

async fn input_reaches_a_command(cluster: &Cluster<'_>) -> Result<()> {
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
    let output = cluster
        .control_plane
        .kubectl_with_input(&arguments, input.clone())
        .await?;
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

async fn a_terminal_is_one(cluster: &Cluster<'_>) -> Result<()> {
    // Without a terminal of its own kubectl asks for none, so `script` gives it one.
    let kubectl = cluster
        .control_plane
        .kubectl_command(&[
            "exec",
            "-it",
            "entered",
            "--container=main",
            "--",
            "sh",
            "-c",
            SIZED,
        ])
        .await?;
    let mut line = format!(
        "stty rows 33 cols 77; {}",
        kubectl.get_program().to_string_lossy()
    );
    for argument in kubectl.get_args() {
        line.push_str(&format!(" '{}'", argument.to_string_lossy()));
    }
    let mut command = std::process::Command::new("script");
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

async fn files_are_copied(cluster: &Cluster<'_>) -> Result<()> {
    let dir = cluster.bed.scope.path("copied");
    std::fs::create_dir_all(&dir)?;
    let bytes: Vec<u8> = (0..500_000_u32).flat_map(u32::to_be_bytes).collect();
    std::fs::write(dir.join("there"), &bytes)?;
    let (there, back) = (
        dir.join("there").display().to_string(),
        dir.join("back").display().to_string(),
    );
    cluster
        .kubectl(&["cp", "--container=main", &there, "entered:/tmp/there"])
        .await?;
    cluster
        .kubectl(&["cp", "--container=main", "entered:/tmp/there", &back])
        .await?;
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

async fn ports_are_forwarded(cluster: &Cluster<'_>) -> Result<()> {
    let port = cluster.bed.scope.port()?;
    let command = cluster
        .control_plane
        .kubectl_command(&["port-forward", "entered", &format!("{port}:8080")])
        .await?;
    let forwarder = cluster.bed.scope.spawn("port-forward", command)?;
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

async fn input_reaches_a_container(cluster: &Cluster<'_>) -> Result<()> {
    let output = cluster
        .control_plane
        .kubectl_with_input(&["attach", "--stdin", "attached"], b"hello\nthere\n".to_vec())
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
    let answer = tokio::task::spawn_blocking(move || {
        std::process::Command::new("curl")
            .args([
                "--silent",
                "--insecure",
                "--max-time",
                "20",
                "--write-out",
                "%{http_code}",
            ])
            .args(["--output", "/dev/null", &format!("https://127.0.0.1:{port}/pods")])
            .output()
    })
    .await??;
    let code = String::from_utf8_lossy(&answer.stdout).into_owned();
    ensure!(code == "401", "without credentials /pods answered {code:?}");
    Ok(())
}
