//! Statistics over HTTP: paths, methods, types and questions. What is on the pages is tested where they are made.

use std::sync::atomic::Ordering;

use anyhow::Result;
use rubelet_testbed::in_scope;

use crate::fixture::Setup;

const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores";
const ALL: &str = "{\"all\": 1}";
const SHORT: &str = "{\"short\": 1}";

#[test]
fn the_page_of_resources_is_on_both_ports() {
    in_scope("resources", async |scope| {
        let running = Setup::new(scope)?.start().await?;
        let (mut tls, mut plain) = (running.tls().await?, running.read_only().await?);
        for port in [&mut tls, &mut plain] {
            // As for upstream every method reads a page of metrics.
            for method in ["GET", "POST"] {
                let answer = port.ask(method, "/metrics/resource").await?;
                assert_eq!(
                    (answer.status, answer.header("content-type")),
                    (200, TEXT),
                    "{answer:?}"
                );
                assert!(
                    answer.text().ends_with("resources 1 1763495289123\n"),
                    "{answer:?}"
                );
            }
            let below = port.get("/metrics/resource/x").await?;
            assert_eq!(below.status, 404, "{below:?}");
        }
        Ok(()) as Result<()>
    });
}

#[test]
fn a_summary_is_given_whole_or_short() {
    in_scope("summary", async |scope| {
        let setup = Setup::new(scope)?;
        let statistics = setup.statistics.clone();
        let running = setup.start().await?;
        let (mut tls, mut plain) = (running.tls().await?, running.read_only().await?);
        for port in [&mut tls, &mut plain] {
            for (method, path, expected) in [
                ("GET", "/stats/summary", ALL),
                ("POST", "/stats/summary", ALL),
                ("GET", "/stats/summary/", ALL),
                ("GET", "/stats/summary?only_cpu_and_memory=true", SHORT),
                ("POST", "/stats/summary?only_cpu_and_memory=true", SHORT),
                ("GET", "/stats/summary?only_cpu_and_memory=false", ALL),
            ] {
                let answer = port.ask(method, path).await?;
                let kind = answer.header("content-type");
                assert_eq!(
                    (answer.status, kind),
                    (200, "application/json"),
                    "{method} {path}: {answer:?}"
                );
                assert_eq!(answer.text(), expected, "{method} {path}");
            }
            let form = [("Content-Type", "application/x-www-form-urlencoded")];
            let answer = port
                .ask_with("POST", "/stats/summary", &form, "only_cpu_and_memory=true")
                .await?;
            assert_eq!((answer.status, answer.text().as_str()), (200, SHORT));
            let wrong = port.ask("PUT", "/stats/summary").await?;
            assert_eq!(
                (wrong.status, wrong.header("allow")),
                (405, "GET, POST"),
                "{wrong:?}"
            );
            for path in ["/stats/", "/stats/other", "/stats/summary/x"] {
                let unknown = port.get(path).await?;
                assert_eq!(
                    (unknown.status, unknown.text().as_str()),
                    (404, "404: Page Not Found"),
                    "{path}"
                );
            }
        }
        statistics.has_no_summary.store(true, Ordering::Relaxed);
        let failed = tls.get("/stats/summary").await?;
        let message = "Internal Error: failed to list pod stats: the runtime is away";
        assert_eq!((failed.status, failed.text().as_str()), (500, message));
        Ok(()) as Result<()>
    });
}
