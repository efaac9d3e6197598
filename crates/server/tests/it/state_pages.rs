//! What the process was told and is, its verbosity, and checkpoints of containers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};
use rubelet_model::Timestamp;
use rubelet_model::observation::{ContainerObservation, ContainerState, PodObservation};
use rubelet_ports::RuntimeErrorKind;
use rubelet_testkit::in_scope;
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
        Ok(())
    });
}
