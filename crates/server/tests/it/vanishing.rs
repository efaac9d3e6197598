//! Clients that vanish in the middle of a stream, of whatever kind, leave nothing: no socket, no open file, no process.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rubelet_testbed::process::write_script;
use rubelet_testbed::wait::wait_until;
use rubelet_testbed::{Scope, in_scope};
use serde_json::json;

use crate::client::{Connection, DEADLINE};
use crate::fixture::{Running, Setup};
use crate::logs::{PATH, running_container};
use crate::many_sessions::held_sockets;
use crate::runtime::StreamingServer;
use crate::sessions::{SPDY, set_pod};

const LOG: &str = "2026-01-01T00:00:00Z stdout F line\n";

/// In place of the journal's program: at this first argument it notes its own number, and is then silent.
fn write_journal(scope: &Scope, silent_at: &str) -> Result<()> {
    let child = scope.path("child");
    let script = format!(
        "case $1 in {silent_at}) echo $$ > {child}.new; mv {child}.new {child}; exec sleep 1000;; esac\n\
         echo kubelet.service",
        child = child.display()
    );
    write_script(&scope.path("journalctl"), &script)
}

/// Files below the scope that this process has open for reading a log.
fn open_logs(scope: &Scope) -> Result<Vec<String>> {
    let is_log =
        |path: &Path| path.starts_with(scope.path("logs-of-pods")) || path.starts_with(scope.path("var-log"));
    let open = fs::read_dir("/proc/self/fd")?.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    Ok(open
        .filter(|path| is_log(path))
        .map(|path| path.display().to_string())
        .collect())
}

async fn nothing_is_left(scope: &Scope, running: &Running, streaming: &StreamingServer) -> Result<()> {
    // Sooner than anything ends that has a limit of its own.
    wait_until("nothing is left", Duration::from_secs(8), async || {
        let sockets = held_sockets(&[running.ports.tls, streaming.port])?;
        ensure!(sockets.is_empty(), "sockets: {sockets:?}");
        ensure!(
            streaming.open() == 0,
            "{} are open at the runtime",
            streaming.open()
        );
        let files = open_logs(scope)?;
        ensure!(files.is_empty(), "files: {files:?}");
        if let Ok(child) = fs::read_to_string(scope.path("child")) {
            let child = Path::new("/proc").join(child.trim());
            ensure!(!child.exists(), "{} runs", child.display());
        }
        Ok(())
    })
    .await
}

/// Opens a stream and waits until it is under way.
async fn begin(running: &Running, path: &str, headers: &[(&str, &str)]) -> Result<Connection> {
    let mut client = running.tls().await?;
    let mut head = format!("GET {path} HTTP/1.1\r\nHost: node-a\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    client.send(format!("{head}\r\n").as_bytes()).await?;
    let answer = client.head().await?;
    let expected = if headers.is_empty() { 200 } else { 101 };
    ensure!(answer.status == expected, "{path}: {answer:?}");
    Ok(client)
}

#[test]
fn clients_that_vanish_leave_nothing() {
    in_scope("vanishing", async |scope| {
        let streaming = StreamingServer::start().await?;
        let running = Setup::new(scope)?
            .with("enableSystemLogQuery", json!(true))
            .start()
            .await?;
        running
            .runtime
            .serve_sessions_at(streaming.address("/echo/t0ken"));
        fs::write(running_container(&running, 0)?, LOG)?;
        // More than the connection holds between two ends that do not read.
        fs::File::create(scope.path("var-log/large"))?.set_len(64 << 20)?;

        let mut client = begin(&running, &format!("{PATH}?follow=true"), &[]).await?;
        client.body_until("line\n").await?;
        ensure!(!open_logs(scope)?.is_empty(), "the log is not open");
        drop(client);
        nothing_is_left(scope, &running, &streaming)
            .await
            .context("follow")?;

        let client = begin(&running, "/logs/large", &[]).await?;
        ensure!(!open_logs(scope)?.is_empty(), "the file is not open");
        drop(client);
        nothing_is_left(scope, &running, &streaming)
            .await
            .context("download")?;

        // While the program lists its units, and while it is silent about one of them.
        for silent_at in ["--field", "--utc"] {
            write_journal(scope, silent_at)?;
            let client = begin(&running, "/logs/?query=kubelet", &[]).await?;
            let child = wait_until("the program runs", DEADLINE, async || {
                Ok(fs::read_to_string(scope.path("child"))?)
            })
            .await?;
            ensure!(
                Path::new("/proc").join(child.trim()).exists(),
                "it ended by itself"
            );
            drop(client);
            nothing_is_left(scope, &running, &streaming)
                .await
                .context("query")?;
            fs::remove_file(scope.path("child"))?;
        }

        set_pod(&running.pods)?;
        let websocket = |protocol| {
            [
                ("Connection", "Upgrade"),
                ("Upgrade", "websocket"),
                ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
                ("Sec-WebSocket-Version", "13"),
                ("Sec-WebSocket-Protocol", protocol),
            ]
        };
        let forward = "/portForward/default/web?port=80";
        let attach = "/attach/default/web/main?output=1&input=1";
        for (path, headers, runtime) in [
            (forward, &SPDY[..], "echo"),
            (forward, &websocket("v4.channel.k8s.io"), "echo"),
            (forward, &websocket("SPDY/3.1+portforward.k8s.io"), "echo"),
            (attach, &SPDY, "echo"),
            (attach, &websocket("v4.channel.k8s.io"), "echo"),
            (attach, &websocket("v5.channel.k8s.io"), "accept"),
            // One that takes no stream.
            (attach, &websocket("v5.channel.k8s.io"), "echo"),
        ] {
            let address = streaming.address(&format!("/{runtime}/t0ken"));
            running.runtime.serve_sessions_at(address);
            let client = begin(&running, path, headers).await?;
            wait_until("the runtime serves it", DEADLINE, async || {
                ensure!(streaming.open() == 1, "{} are open", streaming.open());
                Ok(())
            })
            .await?;
            drop(client);
            let what = || format!("{path} {headers:?} {runtime}");
            nothing_is_left(scope, &running, &streaming)
                .await
                .with_context(what)?;
        }
        Ok(())
    });
}

#[test]
fn queries_are_bounded() {
    in_scope("queries-bounded", async |scope| {
        const LIMIT: usize = 16;
        let running = Setup::new(scope)?
            .with("enableSystemLogQuery", json!(true))
            .start()
            .await?;
        write_journal(scope, "--utc")?;
        let query = "/logs/?query=kubelet";
        let mut asking = Vec::new();
        for _ in 0..LIMIT {
            asking.push(begin(&running, query, &[]).await?);
        }
        let mut one_more = running.tls().await?;
        let answer = one_more.get(query).await?;
        assert_eq!((answer.status, answer.header("retry-after")), (429, "60"));
        // Files need no place.
        fs::write(scope.path("var-log/syslog"), "one\n")?;
        assert_eq!(one_more.get("/logs/syslog").await?.text(), "one\n");
        drop(asking);
        wait_until("a place is free again", DEADLINE, async || {
            begin(&running, query, &[]).await.map(drop)
        })
        .await
    });
}
