//! The HTTP API of a node that runs pods, and what keeps a node from starting.

use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use rubelet_testbed::containerd::Flavour;
use rubelet_testbed::in_scope;
use rubelet_testbed::node::manifest::{pod, server, shell};
use rubelet_testbed::node::{Bed, DEADLINE, Kubelet, Node, Options, PodFacts};
use rubelet_testbed::wait::wait_for;
use serde_json::{Value, json};

fn rubelet() -> Kubelet {
    Kubelet::Rubelet(env!("CARGO_BIN_EXE_rubelet").into())
}

fn port(node: &Node, field: &str) -> Result<String> {
    let configuration: Value = serde_json::from_slice(&fs::read(node.dir().join("kubelet.yaml"))?)?;
    Ok(configuration[field].to_string())
}

/// Status and body of an answer on the TLS port.
fn get(node: &Node, path: &str) -> Result<(u16, String)> {
    let mut client = Command::new("openssl")
        .args(["s_client", "-quiet", "-connect"])
        .arg(format!("127.0.0.1:{}", port(node, "port")?))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("run openssl")?;
    let mut input = client.stdin.take().context("no input")?;
    write!(input, "GET {path} HTTP/1.0\r\n\r\n")?;
    input.flush()?;
    let output = client.wait_with_output()?;
    drop(input);
    let answer = String::from_utf8(output.stdout)?;
    let (head, body) = answer.split_once("\r\n\r\n").context(answer.clone())?;
    let status = head.split(' ').nth(1).context("no status")?.parse()?;
    Ok((status, body.to_owned()))
}

fn get_json(node: &Node, path: &str) -> Result<Value> {
    let (status, body) = get(node, path)?;
    ensure!(status == 200, "{path}: {status} {body}");
    Ok(serde_json::from_str(&body)?)
}

fn logs(node: &Node, pod: &str, rest: &str) -> Result<(u16, String)> {
    get(
        node,
        &format!("/containerLogs/default/{}/{rest}", node.pod_name(pod)),
    )
}

#[test]
fn a_node_answers_over_http() {
    in_scope("http", async |scope| {
        let bed = Bed::start(scope, Flavour::Debian, Options::new(rubelet())).await?;
        let node = &bed.node;
        node.write("web", &pod("web").container(server("main", &[])).json())?;
        let crashing = pod("crash").container(shell("main", "echo out; echo err >&2; exit 3"));
        node.write("crash", &crashing.json())?;
        let slow = pod("slow").spec("restartPolicy", json!("Never")).container(shell(
            "main",
            "echo one; sleep 5; printf two; sleep 1; echo; echo three",
        ));
        node.wait_until_ready("web").await?;
        node.write("slow", &slow.json())?;

        // Until the container has ended, and not a moment longer or less.
        node.wait_for_pod("slow", "runs", |pod| pod.running_id("main").map(drop))
            .await?;
        assert_eq!(
            logs(node, "slow", "main?follow=true")?,
            (200, "one\ntwo\nthree\n".to_owned())
        );
        assert_eq!(
            logs(node, "slow", "main?tailLines=1")?,
            (200, "three\n".to_owned())
        );
        let stamped = logs(node, "slow", "main?timestamps=true&tailLines=1")?.1;
        assert!(
            stamped.starts_with("20") && stamped.ends_with("Z three\n"),
            "{stamped}"
        );
        let (status, text) = logs(node, "slow", "main?previous=true")?;
        let expected = format!(
            "previous terminated container \"main\" in pod {:?} not found",
            node.pod_name("slow")
        );
        assert_eq!((status, text), (400, expected));

        node.wait_for_pod("crash", "was restarted", |pod| {
            ensure!(pod.container("main")?.restart_count > 0, "not yet");
            Ok(())
        })
        .await?;
        for query in ["main", "main?previous=true"] {
            // An attempt that has just begun has not written all of its lines.
            wait_for(query, DEADLINE, || {
                let (status, text) = logs(node, "crash", query)?;
                let mut lines: Vec<&str> = text.lines().collect();
                // Two streams, so their order is not certain.
                lines.sort_unstable();
                ensure!((status, lines) == (200, vec!["err", "out"]), "{status}: {text}");
                Ok(())
            })?;
        }

        let pods = get_json(node, "/pods")?;
        assert_eq!(
            (&pods["kind"], &pods["apiVersion"], &pods["metadata"]),
            (&json!("PodList"), &json!("v1"), &json!({}))
        );
        let items = pods["items"].as_array().context("no items")?;
        assert_eq!(items.len(), 3);
        assert!(items.iter().all(|item| item.get("kind").is_none()), "{pods}");
        let read_only: Value = serde_json::from_slice(&node.get("/pods")?.body)?;
        assert_eq!(read_only["items"].as_array().map(Vec::len), Some(3));
        let running = get_json(node, "/runningpods/")?;
        let web = running["items"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|item| item["metadata"]["name"] == node.pod_name("web"))
            .context("web does not run")?;
        assert_eq!(web["spec"]["containers"][0]["name"], "main");
        let configz = get_json(node, "/configz")?;
        assert_eq!(configz["kubeletconfig"]["podLogsDir"], json!(node.pod_logs()));
        assert_eq!(get(node, "/healthz")?, (200, "ok".to_owned()));
        assert_eq!(node.healthz()?.text(), "ok");
        Ok(())
    });
}

#[test]
fn a_node_that_cannot_serve_touches_no_pod() {
    in_scope("cannot-serve", async |scope| {
        let bed = Bed::start(scope, Flavour::Debian, Options::new(rubelet())).await?;
        let node = &bed.node;
        node.write("web", &pod("web").container(server("main", &[])).json())?;
        let id = node.wait_until_ready("web").await?.running_id("main")?;
        let tls = port(node, "port")?;
        let taken = TcpListener::bind("127.0.0.1:0")?;
        let free = scope.port()?.to_string();
        let read_only = taken.local_addr()?.port().to_string();
        // Each of them would stop the pod as an orphan, if it came that far.
        for (name, arguments, expected) in [
            (
                "tls-port",
                vec!["--port", &tls],
                format!("port: cannot listen on 127.0.0.1:{tls}"),
            ),
            (
                "read-only-port",
                vec!["--port", &free, "--read-only-port", &read_only],
                format!("readOnlyPort: cannot listen on 127.0.0.1:{read_only}"),
            ),
            (
                "webhook",
                vec!["--port", &free, "--authentication-token-webhook=true"],
                "no client provided, cannot use webhook authentication".to_owned(),
            ),
            (
                "authorization",
                vec!["--port", &free, "--authorization-mode=Webhook"],
                "no client provided, cannot use webhook authorization".to_owned(),
            ),
            (
                "root-dir",
                vec!["--port", &free, "--root-dir", ""],
                "another rubelet runs on this root directory".to_owned(),
            ),
        ] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_rubelet"));
            let root = if name == "root-dir" {
                node.root_dir()
            } else {
                scope.path(&format!("{name}/root"))
            };
            command
                .args(["--address=127.0.0.1", "--healthz-port=0", "--read-only-port=0"])
                .args(["--fail-cgroupv1=false", "--hostname-override=other"])
                .args(arguments)
                .arg(format!("--root-dir={}", root.display()))
                .arg(format!("--cert-dir={}", node.dir().join("pki").display()))
                .arg(format!(
                    "--container-runtime-endpoint={}",
                    bed.containerd.endpoint()
                ));
            let mut process = scope.spawn(name, command)?;
            let code = process.wait(DEADLINE)?.code();
            let log = fs::read_to_string(process.log())?;
            assert_eq!(code, Some(1), "{name}: {log}");
            assert!(log.contains(&expected), "{name}: no {expected:?} in:\n{log}");
        }
        assert_eq!(node.pod("web")?.running_id("main")?, id);
        wait_for("the pod still runs", DEADLINE, || node.pod("web")?.check_ready())
    });
}
