//! Pages of metrics, and what the server itself counts.

use anyhow::{Context, Result, ensure};
use rubelet_testbed::in_scope;
use rubelet_testbed::metrics_text::MetricsText;
use rubelet_testbed::wait::wait_until;

use crate::client::{Connection, DEADLINE};
use crate::fixture::{Running, Setup};
use crate::runtime::StreamingServer;
use crate::sessions::{EXEC, SPDY, set_pod};

async fn page(connection: &mut Connection, path: &str) -> Result<MetricsText> {
    let answer = connection.get(path).await?;
    ensure!(answer.status == 200, "{path}: {}", answer.text());
    let kind = answer.header("content-type");
    ensure!(
        kind == "text/plain; version=0.0.4; charset=utf-8; escaping=underscores",
        "{kind}"
    );
    MetricsText::parse(&answer.text()).with_context(|| format!("the page {path}"))
}

fn requests(page: &MetricsText, labels: &[(&str, &str)]) -> f64 {
    page.sum("kubelet_http_requests_total", labels).unwrap_or(0.0)
}

fn in_flight(page: &MetricsText, labels: &[(&str, &str)]) -> f64 {
    page.sum("kubelet_http_inflight_requests", labels).unwrap_or(0.0)
}

/// The page when nothing but itself is under way.
async fn settled(running: &Running) -> Result<MetricsText> {
    wait_until("every answer is over", DEADLINE, async || {
        let page = page(&mut running.tls().await?, "/metrics").await?;
        let open = (in_flight(&page, &[("path", "metrics")]), in_flight(&page, &[]));
        ensure!(open == (1.0, 1.0), "{open:?} are open");
        Ok(page)
    })
    .await
}

#[test]
fn requests_count_by_what_they_ask_for() {
    in_scope("metrics-requests", async |scope| {
        let running = Setup::new(scope)?.start().await?;
        let (mut tls, mut plain) = (running.tls().await?, running.read_only().await?);
        for path in [
            "/pods",
            "/healthz/ping",
            "/no/such/path",
            "/metrics/slis",
            "/debug/pprof/heap",
        ] {
            tls.get(path).await?;
        }
        tls.ask("BREW", "/pods").await?;
        plain.get("/pods").await?;
        plain.get("/debug/pprof/heap").await?;
        // The port for supervisors is not counted.
        running.healthz().await?.get("/healthz").await?;
        let page = settled(&running).await?;
        let check = |method: &str, path: &str, server: &str, long: &str, expected: f64| {
            let labels = [
                ("method", method),
                ("path", path),
                ("server_type", server),
                ("long_running", long),
            ];
            assert_eq!(requests(&page, &labels), expected, "{labels:?}");
        };
        check("GET", "pods", "readwrite", "false", 1.0);
        check("other", "pods", "readwrite", "false", 1.0);
        check("GET", "pods", "readonly", "false", 1.0);
        check("GET", "healthz", "readwrite", "false", 1.0);
        check("GET", "debug", "readwrite", "true", 1.0);
        check("GET", "other", "readwrite", "false", 2.0);
        check("GET", "other", "readonly", "false", 1.0);
        assert_eq!(
            requests(&page, &[]) - requests(&page, &[("path", "metrics")]),
            8.0
        );
        let over = |labels: &[(&str, &str)]| page.sum("kubelet_http_requests_duration_seconds_count", labels);
        let over_metrics = over(&[("path", "metrics")]).unwrap_or(0.0);
        assert_eq!(over(&[]).unwrap_or(0.0) - over_metrics, 8.0);
        let durations = page
            .family("kubelet_http_requests_duration_seconds")
            .context("durations")?;
        let labels = ["long_running", "method", "path", "server_type"];
        assert_eq!(durations.label_names(), labels.into());
        Ok(())
    });
}

#[test]
fn strangers_are_counted_before_they_are_sent_away() {
    in_scope("metrics-strangers", async |scope| {
        let setup = Setup::new(scope)?;
        let strict = serde_json::json!({ "anonymous": { "enabled": false }, "webhook": { "enabled": false }, "x509": { "clientCAFile": scope.path("pki/kubelet.crt") } });
        let running = setup.with("authentication", strict).start().await?;
        let refused = running.tls().await?.get("/pods").await?;
        assert_eq!(refused.status, 401);
        let page = page(&mut running.read_only().await?, "/metrics").await?;
        assert_eq!(
            requests(&page, &[("path", "pods"), ("server_type", "readwrite")]),
            1.0
        );
        Ok(())
    });
}

#[test]
fn health_checks_have_a_page_of_their_own() {
    in_scope("metrics-health", async |scope| {
        let running = Setup::new(scope)?.start().await?;
        let mut tls = running.tls().await?;
        assert_eq!(page(&mut tls, "/metrics/slis").await?, MetricsText::default());
        tls.get("/healthz").await?;
        *running.pods.sync_loop_problem.lock().unwrap() = Some("it stands still".to_owned());
        tls.get("/healthz").await?;
        // One that is left out is not made, and a single one does not count.
        tls.get("/healthz?exclude=ping").await?;
        tls.get("/healthz/log").await?;
        running.healthz().await?.get("/healthz").await?;
        let slis = page(&mut tls, "/metrics/slis").await?;
        let checks = |name: &str, status: &str| {
            let labels = [("name", name), ("type", "healthz"), ("status", status)];
            slis.sum("kubernetes_healthchecks_total", &labels)
        };
        assert_eq!(checks("ping", "success"), Some(3.0));
        assert_eq!(checks("log", "success"), Some(3.0));
        assert_eq!(checks("syncloop", "success"), Some(1.0));
        assert_eq!(checks("syncloop", "error"), Some(2.0));
        let now = |name: &str| slis.sum("kubernetes_healthcheck", &[("name", name), ("type", "healthz")]);
        assert_eq!((now("ping"), now("syncloop")), (Some(1.0), Some(0.0)));
        let reset = tls.ask("DELETE", "/metrics/slis").await?;
        assert_eq!((reset.status, reset.text().as_str()), (200, "metrics reset\n"));
        assert_eq!(page(&mut tls, "/metrics/slis").await?, MetricsText::default());
        Ok(())
    });
}

#[test]
fn pages_are_read_with_every_method_on_both_ports() {
    in_scope("metrics-methods", async |scope| {
        let running = Setup::new(scope)?.start().await?;
        for mut connection in [running.tls().await?, running.read_only().await?] {
            assert!(
                page(&mut connection, "/metrics/probes")
                    .await?
                    .family("probes")
                    .is_some()
            );
            assert!(
                page(&mut connection, "/metrics")
                    .await?
                    .family("probes")
                    .is_none()
            );
            for method in ["POST", "PUT", "DELETE"] {
                assert_eq!(connection.ask(method, "/metrics").await?.status, 200, "{method}");
            }
            assert_eq!(connection.get("/metrics/").await?.status, 404);
        }
        Ok(())
    });
}

async fn wait_for_sessions(running: &Running, expected: f64) -> Result<()> {
    wait_until("sessions are counted", DEADLINE, async || {
        let page = page(&mut running.tls().await?, "/metrics").await?;
        let open = in_flight(&page, &[("path", "exec"), ("long_running", "true")]);
        let over = page.sum(
            "kubelet_http_requests_duration_seconds_count",
            &[("path", "exec")],
        );
        let found = (open, over.unwrap_or(0.0));
        ensure!(found == (expected, 1.0 - expected), "{found:?} are open and over");
        Ok(())
    })
    .await
}

#[test]
fn a_session_is_in_flight_until_it_is_over() {
    in_scope("metrics-sessions", async |scope| {
        let streaming = StreamingServer::start().await?;
        let running = Setup::new(scope)?.start().await?;
        set_pod(&running.pods)?;
        running
            .runtime
            .serve_sessions_at(streaming.address("/echo/t0ken"));
        let mut session = running.tls().await?;
        let head = session.ask_with("POST", EXEC, &SPDY, "").await?;
        assert_eq!(head.status, 101);
        wait_for_sessions(&running, 1.0).await?;
        drop(session);
        wait_for_sessions(&running, 0.0).await
    });
}
