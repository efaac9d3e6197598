//! Lifecycle hooks.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::scenarios;
use super::{until, wait_until_stopped};
use rubelet_testbed::node::manifest::{Manifest, UNTIL_TERM, pause, pod, server, shell, with};
use rubelet_testbed::node::{Bed, DEADLINE, PodFacts, Scenario};

pub(super) const ALL: &[Scenario] = scenarios![
    post_start_hook_comes_before_the_next_container,
    failed_post_start_hook_kills_the_container,
    post_start_hook_that_hangs_ends_with_its_pod,
    pre_stop_hook_runs_before_the_signal,
    pre_stop_sleep_uses_the_grace_period,
    pre_stop_hook_goes_on_until_its_container_ends,
    http_hooks_ask_as_upstream,
    https_hook_falls_back_to_http,
    pre_stop_http_hook_finds_the_pods_port,
];

fn hooked(container: Value, hooks: Value) -> Value {
    with(container, "lifecycle", hooks)
}

fn script(text: &str) -> Value {
    json!({ "exec": { "command": ["sh", "-c", text] } })
}

async fn post_start_hook_comes_before_the_next_container(bed: &Bed<'_>) -> Result<()> {
    let name = "post-start";
    let hook = script("sleep 1; cat /proc/uptime >/tmp/hook");
    let second = format!("cat /proc/uptime >/tmp/begun; {UNTIL_TERM}");
    let manifest = pod(name)
        .container(hooked(shell("main", UNTIL_TERM), json!({ "postStart": hook })))
        .container(shell("second", &second));
    bed.node.write(name, &manifest.json())?;
    let pod = bed.node.wait_until_ready(name).await?;
    // The machine's clock, in seconds since its start.
    let uptime = async |container: &str, file: &str| -> Result<f64> {
        until(&format!("{file} is written"), async || {
            let text = bed.view.exec(&pod.running_id(container)?, &["cat", file]).await?;
            let word = text.split(' ').next().context("no number")?;
            word.parse().with_context(|| format!("{word:?} is no number"))
        })
        .await
    };
    let (hook, second) = (
        uptime("main", "/tmp/hook").await?,
        uptime("second", "/tmp/begun").await?,
    );
    ensure!(
        hook <= second,
        "the hook ended at {hook}, the other container began at {second}"
    );
    bed.node.remove(name)
}

async fn failed_post_start_hook_kills_the_container(bed: &Bed<'_>) -> Result<()> {
    let name = "post-start-fails";
    let hook = script("echo nothing works >&2; exit 3");
    let manifest = pod(name).container(hooked(shell("main", UNTIL_TERM), json!({ "postStart": hook })));
    bed.node.write(name, &manifest.json())?;
    let message = bed
        .node
        .wait_for_pod(name, "says that its hook failed", |pod| {
            let (reason, message) = pod.waiting("main")?;
            ensure!(reason == "PostStartHookError", "{reason}: {message}");
            Ok(message)
        })
        .await?;
    let words = [
        "Exec lifecycle hook ([sh -c echo nothing works >&2; exit 3]) for Container \"main\" in Pod",
        "exited with 3: nothing works",
    ];
    ensure!(words.iter().all(|words| message.contains(words)), "{message}");
    bed.node
        .wait_for_pod(name, "was tried again", |pod| {
            ensure!(pod.container("main")?.restart_count >= 1, "not yet");
            Ok(())
        })
        .await?;
    bed.node.remove(name)
}

async fn post_start_hook_that_hangs_ends_with_its_pod(bed: &Bed<'_>) -> Result<()> {
    let name = "post-start-hangs";
    let manifest = pod(name)
        .container(hooked(
            shell("main", UNTIL_TERM),
            json!({ "postStart": script("touch /tmp/begun; sleep 3600") }),
        ))
        .container(pause("second"));
    bed.node.write(name, &manifest.json())?;
    let uid = bed
        .node
        .wait_for_pod(name, "is known", |pod| Ok(pod.uid().to_owned()))
        .await?;
    until("the hook runs", async || {
        let all = bed.view.containers_of(&uid).await?;
        let main = all.iter().find(|one| one.running).context("nothing runs")?;
        bed.view.exec(&main.id, &["cat", "/tmp/begun"]).await
    })
    .await?;
    let pod = bed.node.pod(name)?;
    pod.check_phase("Pending")?;
    ensure!(
        bed.view.containers_of(&uid).await?.len() == 1,
        "the second container did not wait"
    );
    let removed = Instant::now();
    bed.node.remove(name)?;
    wait_until_stopped(bed, &uid).await?;
    ensure!(
        removed.elapsed() < DEADLINE / 2,
        "it took {:?}",
        removed.elapsed()
    );
    Ok(())
}

/// The time from a manifest's removal to the end of the process of its container `main`.
async fn ended_after(bed: &Bed<'_>, name: &str, manifest: Manifest) -> Result<Duration> {
    bed.node.write(name, &manifest.json())?;
    let pod = bed.node.wait_until_ready(name).await?;
    let process = format!("/proc/{}", bed.view.pid(&pod.running_id("main")?).await?);
    ensure!(Path::new(&process).exists(), "no {process}");
    let removed = Instant::now();
    bed.node.remove(name)?;
    until("the process has ended", async || {
        ensure!(!Path::new(&process).exists(), "{process} is there");
        Ok(())
    })
    .await?;
    let took = removed.elapsed();
    wait_until_stopped(bed, pod.uid()).await?;
    Ok(took)
}

async fn pre_stop_hook_runs_before_the_signal(bed: &Bed<'_>) -> Result<()> {
    let name = "pre-stop";
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let port = listener.local_addr()?.port();
    // The hook asks process 1 before it says so: at that time it has heard no signal.
    let hook = format!("(test -e /tmp/signalled && echo late || echo in time) | nc 127.0.0.1 {port}");
    let main = "trap 'touch /tmp/signalled; exit 0' TERM; while :; do sleep 0.1; done";
    let manifest = pod(name)
        .container(hooked(shell("main", main), json!({ "preStop": script(&hook) })))
        .spec("hostNetwork", json!(true))
        .spec("terminationGracePeriodSeconds", json!(30));
    let said = async {
        let (mut stream, _) = listener.accept().await?;
        let mut said = String::new();
        stream.read_to_string(&mut said).await?;
        anyhow::Ok(said)
    };
    let said = tokio::time::timeout(DEADLINE, said);
    let (ended, said) = tokio::join!(ended_after(bed, name, manifest), said);
    ensure!(ended? < Duration::from_secs(30), "the hook did not end");
    let said = said.context("the hook never came")??;
    ensure!(said.trim() == "in time", "{said:?}");
    Ok(())
}

async fn pre_stop_sleep_uses_the_grace_period(bed: &Bed<'_>) -> Result<()> {
    let name = "pre-stop-sleep";
    // It does not hear SIGTERM, so that it is killed when the grace period is over: three seconds of sleep, two of grace.
    let manifest = pod(name)
        .container(hooked(
            server("main", &["serve", "--on-term", "ignore"]),
            json!({ "preStop": { "sleep": { "seconds": 3 } } }),
        ))
        .spec("terminationGracePeriodSeconds", json!(5));
    let took = ended_after(bed, name, manifest).await?;
    ensure!(
        took >= Duration::from_secs(5) && took < Duration::from_secs(40),
        "it was killed after {took:?}"
    );
    Ok(())
}

/// Reads one request and answers it.
/// The container is told to end when the grace period is over, and finds its hook still running.
async fn pre_stop_hook_goes_on_until_its_container_ends(bed: &Bed<'_>) -> Result<()> {
    let name = "pre-stop-endless";
    let dir = bed.scope.path(name);
    std::fs::create_dir_all(&dir)?;
    // The pattern does not find the script that it stands in.
    let main =
        "trap 'grep -l endles[s] /proc/[0-9]*/cmdline >/h/found; exit 0' TERM; while :; do sleep 0.1; done";
    let hook = script("while :; do sleep 0.1; done; echo endless");
    let main = hooked(shell("main", main), json!({ "preStop": hook }));
    let manifest = pod(name)
        .container(with(
            main,
            "volumeMounts",
            json!([{ "name": "h", "mountPath": "/h" }]),
        ))
        .spec(
            "volumes",
            json!([{ "name": "h", "hostPath": { "path": dir, "type": "Directory" } }]),
        );
    bed.node.write(name, &manifest.json())?;
    let ready = bed.node.wait_until_ready(name).await?;
    bed.node.remove(name)?;
    wait_until_stopped(bed, ready.uid()).await?;
    let found = std::fs::read_to_string(dir.join("found")).context("the container was not told to end")?;
    ensure!(found.contains("/cmdline"), "the hook had ended: {found:?}");
    Ok(())
}

async fn serve_one(listener: &TcpListener, answer: &str) -> Result<String> {
    let (mut stream, _) = listener.accept().await?;
    let mut request = Vec::new();
    let mut part = [0; 4096];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let read = stream.read(&mut part).await?;
        request.extend_from_slice(&part[..read]);
        // A greeting of TLS has no such end.
        if read == 0 || request.first() == Some(&0x16) {
            break;
        }
    }
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await?;
    Ok(String::from_utf8_lossy(&request).into_owned())
}

async fn http_hooks_ask_as_upstream(bed: &Bed<'_>) -> Result<()> {
    let name = "http-hook";
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let port = listener.local_addr()?.port();
    let get = json!({ "httpGet": { "host": "127.0.0.1", "port": port, "path": "/hook?a=b",
        "httpHeaders": [{ "name": "X-Test", "value": "one" }] } });
    let manifest = pod(name).container(hooked(pause("main"), json!({ "postStart": get })));
    bed.node.write(name, &manifest.json())?;
    // Whatever the answer is, the hook has done its work.
    let answer = "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n";
    let request = tokio::time::timeout(DEADLINE, serve_one(&listener, answer))
        .await
        .context("the hook never came")??;
    let lower = request.to_lowercase();
    ensure!(request.starts_with("GET /hook?a=b HTTP/1.1\r\n"), "{request}");
    for header in [
        format!("host: 127.0.0.1:{port}\r\n"),
        "x-test: one\r\n".to_owned(),
        "user-agent: kube-lifecycle/1.37\r\n".to_owned(),
        "accept: */*\r\n".to_owned(),
    ] {
        ensure!(lower.contains(&header), "no {header:?} in {request}");
    }
    bed.node.wait_until_ready(name).await?;
    bed.node.remove(name)
}

async fn https_hook_falls_back_to_http(bed: &Bed<'_>) -> Result<()> {
    let name = "https-hook";
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let port = listener.local_addr()?.port();
    let get = json!({ "httpGet": { "host": "127.0.0.1", "port": port, "path": "/", "scheme": "HTTPS",
        "httpHeaders": [{ "name": "Authorization", "value": "hush" }] } });
    let manifest = pod(name).container(hooked(pause("main"), json!({ "postStart": get })));
    bed.node.write(name, &manifest.json())?;
    let answers = async {
        let refused = "HTTP/1.0 400 Bad Request\r\nConnection: close\r\n\r\nClient sent an HTTPS request.\n";
        let first = serve_one(&listener, refused).await?;
        let second = serve_one(&listener, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await?;
        anyhow::Ok((first, second))
    };
    let (first, second) = tokio::time::timeout(DEADLINE, answers)
        .await
        .context("the hook did not come twice")??;
    ensure!(first.starts_with('\u{16}'), "no TLS: {first:?}");
    ensure!(second.starts_with("GET / HTTP/1.1\r\n"), "{second}");
    ensure!(!second.contains("hush"), "credentials went out in the clear");
    bed.node.wait_until_ready(name).await?;
    bed.node.remove(name)
}

async fn pre_stop_http_hook_finds_the_pods_port(bed: &Bed<'_>) -> Result<()> {
    let name = "pre-stop-http";
    let main = with(
        server("main", &["serve", "--http", "8080", "--on-term", "ignore"]),
        "ports",
        json!([{ "name": "web", "containerPort": 8080 }]),
    );
    let main = with(
        main,
        "readinessProbe",
        json!({ "tcpSocket": { "port": "web" }, "periodSeconds": 1 }),
    );
    // The server ends when it is asked to, long before it would be killed.
    let get = json!({ "httpGet": { "port": "web", "path": "/exit/0" } });
    let manifest = pod(name)
        .container(hooked(main, json!({ "preStop": get })))
        .spec("terminationGracePeriodSeconds", json!(60));
    let took = ended_after(bed, name, manifest).await?;
    ensure!(took < Duration::from_secs(30), "it took {took:?}");
    Ok(())
}
