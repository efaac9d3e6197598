//! Logs of containers: what is asked is what comes, also while the container still writes.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::{Result, ensure};
use rubelet_model::Timestamp;
use rubelet_model::observation::{ContainerExit, ContainerObservation, ContainerState, PodObservation};
use rubelet_testbed::in_scope;
use rubelet_testbed::wait::wait_until;
use serde_json::{Value, json};

use crate::client::DEADLINE;
use crate::fixture::{Running, Setup};

pub(crate) const PATH: &str = "/containerLogs/default/web/main";
const LOG: &str = "\
2026-01-01T00:00:01.5Z stdout F one\n\
2026-01-01T00:00:02Z stderr P two \n\
2026-01-01T00:00:02Z stderr F and a half\n\
2026-01-01T00:00:03Z stdout F three\n";

pub(crate) fn pod(state: &Value, last_state: &Value, restart_count: u32) -> Value {
    json!({
        "metadata": { "name": "web", "namespace": "default", "uid": "u" },
        "spec": {
            "containers": [{ "name": "main" }],
            "initContainers": [{ "name": "first" }],
        },
        "status": { "containerStatuses": [{
            "name": "main", "image": "", "imageID": "", "ready": false, "restartCount": restart_count,
            "containerID": "containerd://new", "state": state, "lastState": last_state,
        }] },
    })
}

pub(crate) fn ended(id: &str) -> Value {
    json!({ "terminated": { "exitCode": 1, "containerID": id } })
}

/// A container that runs, and its log file.
pub(crate) fn running_container(running: &Running, restart_count: u32) -> Result<PathBuf> {
    running
        .pods
        .set(pod(&json!({ "running": {} }), &json!({}), restart_count))?;
    let directory = running.logs_dir.join("default_web_u/main");
    fs::create_dir_all(&directory)?;
    Ok(directory.join(format!("{restart_count}.log")))
}

#[test]
fn a_log_is_shown_as_asked() {
    in_scope("logs", async |scope| {
        let running = Setup::new(scope)?.start().await?;
        let file = running_container(&running, 2)?;
        fs::write(&file, LOG)?;
        let mut tls = running.tls().await?;
        for (query, expected) in [
            ("", "one\ntwo and a half\nthree\n"),
            ("?tailLines=1", "three\n"),
            ("?tailLines=2", "and a half\nthree\n"),
            ("?tail=all", "one\ntwo and a half\nthree\n"),
            ("?tailLines=0", ""),
            ("?tailLines=100", "one\ntwo and a half\nthree\n"),
            ("?limitBytes=6", "one\ntw"),
            ("?sinceTime=2026-01-01T00:00:03Z", "three\n"),
            (
                "?tailLines=1&timestamps=true",
                "2026-01-01T00:00:03.000000000Z three\n",
            ),
            (
                "?timestamps=true&limitBytes=35",
                "2026-01-01T00:00:01.500000000Z one\n",
            ),
        ] {
            let answer = tls.get(&format!("{PATH}{query}")).await?;
            assert_eq!(
                (answer.status, answer.text().as_str()),
                (200, expected),
                "{query}"
            );
            assert_eq!(answer.header("transfer-encoding"), "chunked");
        }
        Ok(())
    });
}

#[test]
fn one_stream_can_be_asked_for_where_the_gate_is_on() {
    in_scope("logs-streams", async |scope| {
        let running = Setup::new(scope)?
            .with("featureGates", json!({ "PodLogsQuerySplitStreams": true }))
            .start()
            .await?;
        fs::write(running_container(&running, 0)?, LOG)?;
        let mut tls = running.tls().await?;
        for (stream, expected) in [
            ("Stdout", "one\nthree\n"),
            ("Stderr", "two and a half\n"),
            ("All", "one\ntwo and a half\nthree\n"),
        ] {
            let answer = tls.get(&format!("{PATH}?stream={stream}")).await?;
            assert_eq!(answer.text(), expected, "{stream}");
        }
        Ok(())
    });
}

#[test]
fn what_cannot_be_shown_is_told_as_upstream_does() {
    in_scope("logs-errors", async |scope| {
        let running = Setup::new(scope)?.start().await?;
        let mut tls = running.tls().await?;
        running.pods.set(pod(
            &json!({ "waiting": { "reason": "ContainerCreating" } }),
            &json!({}),
            0,
        ))?;
        let undecodable = "{\"message\": \"Unable to decode query.\"}";
        let invalid = "{\"message\": \"Invalid request.\"}";
        for (path, status, expected) in [
            (
                "/containerLogs/default/none/main",
                404,
                "pod \"none\" does not exist",
            ),
            (
                "/containerLogs/default/web/none",
                404,
                "container \"none\" not found in pod \"web\"",
            ),
            (
                "/containerLogs/default/web/first",
                400,
                "container \"first\" in pod \"web\" is not available",
            ),
            (
                PATH,
                400,
                "container \"main\" in pod \"web\" is waiting to start: ContainerCreating",
            ),
            (
                "/containerLogs/default/web/main?previous=true",
                400,
                "previous terminated container \"main\" in pod \"web\" not found",
            ),
            ("/containerLogs/default/web/main?tailLines=x", 400, undecodable),
            ("/containerLogs/default/web/main?sinceTime=abc", 400, undecodable),
            ("/containerLogs/default/web/main?tailLines=-1", 422, invalid),
            ("/containerLogs/default/web/main?limitBytes=0", 422, invalid),
            (
                "/containerLogs/default/web/main?stream=Stdout",
                400,
                "unable to return the given log stream: \"Stdout\". Please enable PodLogsQuerySplitStreams \
                 feature gate in kubelet",
            ),
        ] {
            let answer = tls.get(path).await?;
            assert_eq!(
                (answer.status, answer.text().as_str()),
                (status, expected),
                "{path}"
            );
        }
        let file = running_container(&running, 0)?;
        let answer = tls.get(PATH).await?;
        assert_eq!(answer.status, 400);
        assert!(
            answer
                .text()
                .starts_with("failed to try resolving symlinks in path"),
            "{}",
            answer.text()
        );
        fs::create_dir(&file)?;
        assert_eq!(tls.get(PATH).await?.status, 400);
        fs::remove_dir(&file)?;
        fs::write(&file, "noise\n")?;
        let answer = tls.get(PATH).await?;
        let expected = "failed to get parse function: unsupported log format: \"noise\\n\"";
        assert_eq!((answer.status, answer.text().as_str()), (200, expected));
        Ok(())
    });
}

#[test]
fn an_earlier_container_is_found_through_the_runtime() {
    in_scope("logs-previous", async |scope| {
        let running = Setup::new(scope)?.start().await?;
        let file = running_container(&running, 5)?;
        fs::write(&file, "2026-01-01T00:00:01Z stdout F new\n")?;
        fs::write(
            file.with_file_name("4.log"),
            "2026-01-01T00:00:01Z stdout F old\n",
        )?;
        running
            .pods
            .set(pod(&json!({ "running": {} }), &ended("containerd://old"), 5))?;
        let mut tls = running.tls().await?;
        let previous = format!("{PATH}?previous=true");
        let answer = tls.get(&previous).await?;
        assert_eq!(
            (answer.status, answer.text().as_str()),
            (400, "unable to retrieve container logs for containerd://old")
        );
        let now = Timestamp::from_unix_seconds(1);
        let exit = ContainerExit {
            exit_code: 1,
            reason: String::new(),
            message: String::new(),
            started_at: now,
            finished_at: now,
        };
        let mut old = ContainerObservation::new("old", "main", "s", ContainerState::Exited(exit), now);
        old.log_path = file.with_file_name("4.log").display().to_string();
        let identity = ("u".into(), "default".to_owned(), "web".to_owned());
        let observed = PodObservation::new(identity, Vec::new(), vec![old], now);
        *running.pods.observed.lock().unwrap() = vec![Arc::new(observed)];
        assert_eq!(tls.get(&previous).await?.text(), "old\n");
        running.pods.assert_no_relist();
        assert_eq!(tls.get(PATH).await?.text(), "new\n");
        // While it waits for its next start, the last one is shown.
        running.pods.set(pod(
            &json!({ "waiting": { "reason": "CrashLoopBackOff" } }),
            &ended("containerd://old"),
            5,
        ))?;
        assert_eq!(tls.get(PATH).await?.text(), "old\n");
        Ok(())
    });
}

#[test]
fn a_follower_sees_what_is_written_until_the_container_ends() {
    in_scope("logs-follow", async |scope| {
        let running = Setup::new(scope)?.start().await?;
        let path = running_container(&running, 0)?;
        let mut file = File::create(&path)?;
        file.write_all(LOG.as_bytes())?;
        let mut tls = running.tls().await?;
        tls.begin("GET", &format!("{PATH}?follow=true&tailLines=1"))
            .await?;
        assert_eq!(tls.head().await?.status, 200);
        assert_eq!(tls.body_until("three\n").await?, "three\n");
        file.write_all(b"2026-01-01T00:00:04Z stdout F fo")?;
        file.write_all(b"ur\n")?;
        assert_eq!(tls.body_until("four\n").await?, "four\n");
        // Rotated away: the rest of the old file comes before the new one.
        fs::rename(&path, path.with_file_name("0.log.20260101-000005"))?;
        file.write_all(b"2026-01-01T00:00:05Z stdout F five\n")?;
        drop(file);
        let mut file = File::create(&path)?;
        file.write_all(b"2026-01-01T00:00:06Z stdout F six\n")?;
        assert_eq!(tls.body_until("six\n").await?, "five\nsix\n");
        // The container has ended, and the runtime still has some of its words in hand.
        running.pods.set(pod(&ended("containerd://new"), &json!({}), 0))?;
        file.write_all(b"2026-01-01T00:00:07Z stdout F last\n")?;
        assert_eq!(tls.body_until("last\n").await?, "last\n");
        drop(file);
        ensure!(tls.chunk().await?.is_none(), "more after the end");
        // The same connection goes on, and a log of the past ends by itself.
        let answer = tls.get(&format!("{PATH}?follow=true")).await?;
        assert_eq!(answer.text(), "six\nlast\n");
        Ok(())
    });
}

#[test]
fn a_follower_stops_with_the_server() {
    in_scope("logs-stop", async |scope| {
        let running = Setup::new(scope)?.start().await?;
        fs::write(running_container(&running, 0)?, LOG)?;
        let mut tls = running.tls().await?;
        tls.begin("GET", &format!("{PATH}?follow=true")).await?;
        tls.head().await?;
        tls.body_until("three\n").await?;
        running.server.stop().await;
        ensure!(tls.chunk().await?.is_none(), "more after the end");
        Ok(())
    });
}

#[test]
fn a_large_log_comes_whole() {
    in_scope("logs-large", async |scope| {
        let running = Setup::new(scope)?.start().await?;
        let path = running_container(&running, 0)?;
        let line = "x".repeat(1000);
        let log: String = (0..4_000)
            .map(|number| format!("2026-01-01T00:00:01Z stdout F {number} {line}\n"))
            .collect();
        fs::write(&path, &log)?;
        let expected: String = (0..4_000).map(|number| format!("{number} {line}\n")).collect();
        let mut tls = running.tls().await?;
        assert!(tls.get(PATH).await?.text() == expected);
        let tail = tls.get(&format!("{PATH}?tailLines=3000")).await?.text();
        assert!(
            expected.ends_with(&tail) && tail.starts_with("1000 "),
            "{}",
            &tail[..20]
        );
        Ok(())
    });
}

/// A log's only file, put there by `put`; the answer to a request for it.
async fn ask_for(running: &Running, put: impl FnOnce(&Path) -> Result<()>) -> Result<(u16, String)> {
    let pod_dir = running.logs_dir.join("default_web_u");
    if pod_dir.is_symlink() {
        fs::remove_file(&pod_dir)?;
    } else if pod_dir.exists() {
        fs::remove_dir_all(&pod_dir)?;
    }
    fs::create_dir_all(pod_dir.join("main"))?;
    put(&pod_dir.join("main/0.log"))?;
    let answer = running.tls().await?.get(PATH).await?;
    Ok((answer.status, answer.text()))
}

#[test]
fn what_others_put_in_the_directory_of_logs_leads_nowhere_else() {
    in_scope("logs-links", async |scope| {
        let running = Setup::new(scope)?.start().await?;
        running.pods.set(pod(&json!({ "running": {} }), &json!({}), 0))?;
        let line = "2026-01-01T00:00:01Z stdout F line\n";
        let secret = scope.path("outside/main/0.log");
        fs::create_dir_all(secret.parent().unwrap())?;
        fs::write(&secret, "secret\n")?;
        let neighbour = running.logs_dir.join("neighbour.log");
        fs::create_dir_all(&running.logs_dir)?;
        fs::write(&neighbour, line)?;
        let link = |target: PathBuf| move |log: &Path| Ok(symlink(target, log)?);
        let out = "it leads out of the directory of logs";
        // Put in place of the log, of its directory, and of the pod's.
        for (levels, target) in [
            (0, secret.clone()),
            (0, "../../../outside/main/0.log".into()),
            (0, "/proc/self/environ".into()),
            (1, scope.path("outside/main")),
            (1, "../../outside/main".into()),
            (2, scope.path("outside")),
        ] {
            let told = target.display().to_string();
            let put = |log: &Path| {
                let place = log.ancestors().nth(levels).unwrap();
                if levels > 0 {
                    fs::remove_dir_all(place)?;
                }
                Ok(symlink(target, place)?)
            };
            let (status, text) = ask_for(&running, put).await?;
            ensure!(
                status == 400 && text.contains(out),
                "{levels} {told}: {status} {text}"
            );
        }
        let as_before = (200, "line\n".to_owned());
        assert_eq!(ask_for(&running, link(neighbour.clone())).await?, as_before);
        assert_eq!(
            ask_for(&running, link("../../neighbour.log".into())).await?,
            as_before
        );
        let (status, text) = ask_for(&running, link("0.log".into())).await?;
        ensure!(
            status == 400 && text.starts_with("failed to try"),
            "{status} {text}"
        );
        // A pipe, asked for more often than there are places for reading.
        for _ in 0..10 {
            let pipe = |log: &Path| {
                ensure!(Command::new("mkfifo").arg(log).status()?.success(), "no pipe");
                Ok(())
            };
            let (status, text) = ask_for(&running, pipe).await?;
            ensure!(
                status == 400 && text.ends_with("it is no regular file"),
                "{status} {text}"
            );
        }
        let plain = |log: &Path| Ok(fs::write(log, line)?);
        assert_eq!(ask_for(&running, plain).await?, as_before);
        Ok(())
    });
}

#[test]
fn a_log_of_docker_is_reached_through_its_link() {
    in_scope("logs-docker", async |scope| {
        let running = Setup::new(scope)?.start().await?;
        let mut docker = pod(&json!({ "running": {} }), &json!({}), 0);
        docker["status"]["containerStatuses"][0]["containerID"] = json!("docker://abc");
        running.pods.set(docker)?;
        let line = "{\"log\":\"line\\n\",\"stream\":\"stdout\",\"time\":\"2026-01-01T00:00:01Z\"}\n";
        let containers = scope.path("docker/containers");
        for id in ["abc", "other"] {
            fs::create_dir_all(containers.join(id))?;
            fs::write(containers.join(format!("{id}/{id}-json.log")), line)?;
        }
        let link = |target: PathBuf| move |log: &Path| Ok(symlink(target, log)?);
        let own = containers.join("abc/abc-json.log");
        let answered = ask_for(&running, link(own.clone())).await?;
        assert_eq!(answered, (200, "line\n".to_owned()));
        let answered = ask_for(&running, link(containers.join("other/other-json.log"))).await?;
        assert_eq!(answered.0, 400, "{}", answered.1);
        // The right name, and behind it something else.
        fs::remove_file(&own)?;
        symlink("/etc/passwd", &own)?;
        let answered = ask_for(&running, link(own)).await?;
        assert_eq!(answered.0, 400, "{}", answered.1);
        Ok(())
    });
}

#[test]
fn a_follower_is_not_led_away_when_the_log_is_replaced() {
    in_scope("logs-replaced", async |scope| {
        let running = Setup::new(scope)?.start().await?;
        let path = running_container(&running, 0)?;
        fs::write(scope.path("secret"), "secret\n")?;
        fs::write(&path, LOG)?;
        let mut tls = running.tls().await?;
        tls.begin("GET", &format!("{PATH}?follow=true")).await?;
        tls.head().await?;
        tls.body_until("three\n").await?;
        fs::rename(&path, path.with_file_name("0.log.20260101-000005"))?;
        symlink(scope.path("secret"), &path)?;
        let mut rest = String::new();
        while let Some(chunk) = tls.chunk().await? {
            rest.push_str(&String::from_utf8_lossy(&chunk));
        }
        ensure!(
            rest.contains("failed to read log file") && !rest.contains("secret\n"),
            "{rest}"
        );
        Ok(())
    });
}

#[test]
fn followers_are_bounded_and_leave_places_for_others() {
    in_scope("logs-followers", async |scope| {
        const LIMIT: usize = 512;
        let running = Setup::new(scope)?.start().await?;
        fs::write(running_container(&running, 0)?, LOG)?;
        let path = format!("{PATH}?follow=true");
        let mut followers = Vec::new();
        for _ in 0..LIMIT {
            let mut tls = running.tls().await?;
            tls.begin("GET", &path).await?;
            assert_eq!(tls.head().await?.status, 200);
            followers.push(tls);
        }
        let mut one_more = running.tls().await?;
        let answer = one_more.get(&path).await?;
        assert_eq!((answer.status, answer.header("retry-after")), (429, "60"));
        // A request without `follow` is served.
        assert_eq!(one_more.get(PATH).await?.status, 200);
        followers.pop();
        wait_until("a place is free again", DEADLINE, async || {
            let mut tls = running.tls().await?;
            tls.begin("GET", &path).await?;
            let status = tls.head().await?.status;
            ensure!(status == 200, "{status}");
            Ok(())
        })
        .await
    });
}
