//! Flags and facts of the process, its verbosity, and checkpoints of containers.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};
use rubelet_model::observation::{ContainerObservation, ContainerState, PodObservation};
use rubelet_model::{MAX_PERIOD_SECONDS, Timestamp};
use rubelet_ports::RuntimeErrorKind;
use rubelet_testbed::{in_scope, workspace_root};
use serde_json::json;

use crate::fixture::Setup;
use crate::runtime::Asked;

#[test]
fn flags_and_status_are_shown_in_both_forms() {
    in_scope("zpages", async |scope| {
        let running = Setup::new(scope)?.start().await?;
        let mut tls = running.tls().await?;
        let page = tls.get("/flagz").await?;
        assert_eq!(
            (page.status, page.header("content-type")),
            (200, "text/plain; charset=utf-8")
        );
        let text = page.text();
        assert!(text.starts_with("\nkubelet flagz\nWarning: "), "{text}");
        assert!(
            text.contains("\nhostname-override=node-a\n") && text.contains("\nport=10250\n"),
            "{text}"
        );
        let page = tls.get("/statusz").await?;
        let text = page.text();
        assert!(text.starts_with("\nkubelet statusz\nWarning: "), "{text}");
        assert!(
            text.contains("\nBinary version: 1.37.1\nEmulation version: 1.37\nPaths: "),
            "{text}"
        );
        assert!(
            text.contains(" /containerLogs ") && text.contains(" /statusz"),
            "{text}"
        );
        for (path, kind) in [("/flagz", "Flagz"), ("/statusz", "Statusz")] {
            for (version, warning) in [("v1beta1", false), ("v1alpha1", true)] {
                let accept = format!("application/json;as={kind};v={version};g=config.k8s.io");
                let page = tls.ask_with("GET", path, &[("Accept", &accept)], "").await?;
                let object = page.json()?;
                assert_eq!(page.header("content-type"), "application/json");
                assert_eq!(object["kind"], kind);
                assert_eq!(object["apiVersion"], format!("config.k8s.io/{version}"));
                assert_eq!(object["metadata"]["name"], "kubelet");
                assert_eq!(!page.header("warning").is_empty(), warning, "{path} {version}");
            }
            let page = tls
                .ask_with("GET", path, &[("Accept", "application/json")], "")
                .await?;
            assert_eq!(page.status, 406);
        }
        Ok(())
    });
}

/// The paths of the document's table, and whether the read-only port has them.
fn documented_paths() -> Result<BTreeMap<String, bool>> {
    let document = fs::read_to_string(workspace_root().join("docs/compatibility.md"))?;
    let (_, table) = document
        .split_once("<!-- endpoints: begin -->")
        .context("no table")?;
    let (table, _) = table.split_once("<!-- endpoints: end -->").context("no end")?;
    let rows = table.lines().filter_map(|line| line.strip_prefix("| `"));
    let paths = rows.filter_map(|row| row.split_once('`'));
    Ok(paths
        .map(|(path, rest)| (path.to_owned(), rest.starts_with(" *r* |")))
        .collect())
}

#[test]
fn the_document_lists_every_path() {
    in_scope("endpoints", async |scope| {
        let documented = documented_paths()?;
        let running = Setup::new(scope)?.start().await?;
        let page = running.tls().await?.get("/statusz").await?.text();
        let known = page.lines().find_map(|line| line.strip_prefix("Paths: "));
        let known: BTreeSet<&str> = known.context("no paths")?.split_whitespace().collect();
        // That page has the first part of each path.
        let first_parts = documented.keys().map(|path| match path[1..].find('/') {
            Some(end) => &path[..=end],
            None => path,
        });
        assert_eq!(first_parts.collect::<BTreeSet<_>>(), known);
        for (path, is_read_only) in &documented {
            let mut read_only = running.read_only().await?;
            let mut status = read_only.get(path).await?.status;
            if status == 307 {
                status = read_only.get(&format!("{path}/")).await?.status;
            }
            assert_eq!(!matches!(status, 404 | 405), *is_read_only, "{path}: {status}");
        }
        Ok(())
    });
}

#[test]
fn the_verbosity_can_be_changed() {
    in_scope("verbosity", async |scope| {
        let level = Arc::new(AtomicU32::new(2));
        let mut setup = Setup::new(scope)?;
        let seen = Arc::clone(&level);
        setup.set_verbosity = Arc::new(move |level| seen.store(level, Ordering::SeqCst));
        let running = setup.start().await?;
        let mut tls = running.tls().await?;
        for (method, body, status, text, now) in [
            ("PUT", "6", 200, "successfully set klog.logging.verbosity to 6", 6),
            (
                "PUT",
                "x",
                400,
                "strconv.ParseUint: parsing \"x\": invalid syntax",
                6,
            ),
            ("GET", "", 406, "unsupported http method", 6),
            ("PUT", "0", 200, "successfully set klog.logging.verbosity to 0", 0),
        ] {
            let answer = tls.ask_with(method, "/debug/flags/v", &[], body).await?;
            assert_eq!(
                (answer.status, answer.text().as_str()),
                (status, text),
                "{method} {body}"
            );
            assert_eq!(answer.header("content-type"), "text/plain");
            assert_eq!(level.load(Ordering::SeqCst), now);
        }
        Ok(())
    });
}

#[test]
fn a_checkpoint_is_written_by_the_runtime() {
    in_scope("checkpoint", async |scope| {
        let running = Setup::new(scope)?.start().await?;
        running.pods.set(json!({
            "metadata": { "name": "web", "namespace": "default", "uid": "u" },
            "spec": { "containers": [{ "name": "main" }, { "name": "ended" }] },
        }))?;
        let now = Timestamp::from_unix_seconds(1);
        let state = ContainerState::Running { started_at: now };
        let container = ContainerObservation::new("id-of-main", "main", "s", state, now);
        let identity = ("u".into(), "default".to_owned(), "web".to_owned());
        let observed = PodObservation::new(identity, Vec::new(), vec![container], now);
        *running.pods.observed.lock().unwrap() = vec![Arc::new(observed)];
        let mut tls = running.tls().await?;
        let answer = tls
            .ask("POST", "/checkpoint/default/web/main?timeout=1&timeout=300")
            .await?;
        assert_eq!(
            (answer.status, answer.header("content-type")),
            (200, "application/json")
        );
        let asked = running.runtime.take_asked();
        let [Asked::Checkpoint(request)] = asked.as_slice() else {
            panic!("{asked:?}");
        };
        assert_eq!(
            (request.container_id.as_str(), request.timeout),
            ("id-of-main", 300)
        );
        let place = answer.json()?["items"][0]
            .as_str()
            .context("no place")?
            .to_owned();
        assert_eq!(request.location, place);
        let longest = format!("/checkpoint/default/web/main?timeout={}", i64::MAX);
        assert_eq!(tls.ask("POST", &longest).await?.status, 200);
        let asked = running.runtime.take_asked();
        let [Asked::Checkpoint(request)] = asked.as_slice() else {
            panic!("{asked:?}");
        };
        assert_eq!(request.timeout, MAX_PERIOD_SECONDS);
        let begin = scope.path("root/checkpoints/checkpoint-web_default-main-2");
        assert!(
            place.starts_with(&begin.display().to_string()) && place.ends_with("Z.tar"),
            "{place}"
        );
        let check = async |path: &str, status: u16, told: &str| -> Result<()> {
            let answer = running.tls().await?.ask("POST", path).await?;
            assert_eq!((answer.status, answer.text().as_str()), (status, told), "{path}");
            Ok(())
        };
        check("/checkpoint/default/none/main", 404, "pod does not exist").await?;
        check(
            "/checkpoint/default/web/none",
            404,
            "container none does not exist",
        )
        .await?;
        check(
            "/checkpoint/default/web/main?timeout=x",
            404,
            "cannot parse value of timeout parameter",
        )
        .await?;
        check(
            "/checkpoint/default/web/ended",
            500,
            "checkpointing of default/web/ended failed (container ended not found)",
        )
        .await?;
        assert!(running.runtime.take_asked().is_empty());
        *running.runtime.failure.lock().unwrap() = Some(RuntimeErrorKind::Unimplemented);
        let answer = tls.ask("POST", "/checkpoint/default/web/main").await?;
        assert_eq!(answer.status, 500);
        let told = answer.text();
        assert!(
            told.starts_with("checkpointing of default/web/main failed ("),
            "{told}"
        );
        running.pods.assert_no_relist();
        Ok(())
    });
}
