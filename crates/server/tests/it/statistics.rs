//! Statistics over HTTP: paths, methods, types and questions. What is on the pages is tested where they are made.

use std::io::Read as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::Result;
use flate2::read::GzDecoder;
use rubelet_testbed::in_scope;
use rubelet_testbed::wait::wait_until;

use crate::client::DEADLINE;
use crate::fixture::{CONTAINER_PIECES, Setup, container_piece};

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

const ZIPPED: [(&str, &str); 1] = [("Accept-Encoding", "gzip")];

#[test]
fn the_page_of_containers_comes_in_pieces() {
    in_scope("containers", async |scope| {
        let running = Setup::new(scope)?.start().await?;
        let (mut tls, mut plain) = (running.tls().await?, running.read_only().await?);
        let expected: Vec<u8> = (0..CONTAINER_PIECES).flat_map(container_piece).collect();
        for port in [&mut tls, &mut plain] {
            let answer = port.get("/metrics/cadvisor").await?;
            assert_eq!((answer.status, answer.header("content-type")), (200, TEXT));
            assert_eq!(answer.header("content-encoding"), "");
            assert!(answer.body == expected, "{} bytes", answer.body.len());
            let zipped = port.ask_with("GET", "/metrics/cadvisor", &ZIPPED, "").await?;
            assert_eq!((zipped.status, zipped.header("content-type")), (200, TEXT));
            assert_eq!(zipped.header("content-encoding"), "gzip");
            assert!(
                zipped.body.len() < expected.len() / 10,
                "{} bytes",
                zipped.body.len()
            );
            let mut text = Vec::new();
            GzDecoder::new(zipped.body.as_slice()).read_to_end(&mut text)?;
            assert!(text == expected, "{} bytes", text.len());
            let below = port.get("/metrics/cadvisor/x").await?;
            assert_eq!(below.status, 404, "{below:?}");
        }
        Ok(()) as Result<()>
    });
}

#[test]
fn other_pages_of_metrics_are_compressed_too() {
    in_scope("gzip", async |scope| {
        let running = Setup::new(scope)?.start().await?;
        let mut tls = running.tls().await?;
        for path in ["/metrics/resource", "/metrics/probes", "/metrics/slis"] {
            let plain = tls.get(path).await?;
            let zipped = tls.ask_with("GET", path, &ZIPPED, "").await?;
            assert_eq!(
                (zipped.status, zipped.header("content-encoding")),
                (200, "gzip"),
                "{path}"
            );
            let mut text = String::new();
            GzDecoder::new(zipped.body.as_slice()).read_to_string(&mut text)?;
            assert_eq!(text, plain.text(), "{path}");
        }
        Ok(()) as Result<()>
    });
}

#[test]
fn a_client_that_does_not_read_costs_a_few_pieces() {
    in_scope("slow-scraper", async |scope| {
        let setup = Setup::new(scope)?;
        let statistics = setup.statistics.clone();
        let running = setup.start().await?;
        let mut slow = Vec::new();
        for _ in 0..3 {
            let mut client = running.read_only().await?;
            client.begin("GET", "/metrics/cadvisor").await?;
            client.head().await?;
            slow.push(client);
        }
        let before = |made: usize| made < 3 * CONTAINER_PIECES;
        assert!(
            before(statistics.pieces_made.load(Ordering::Relaxed)),
            "they are not sent yet"
        );
        // Others are served meanwhile.
        let served = running.tls().await?.get("/metrics/cadvisor").await?;
        assert_eq!(served.body.len(), CONTAINER_PIECES * (64 << 10));
        // What the kernel takes for a connection is a few megabytes.
        let made = statistics.pieces_made.load(Ordering::Relaxed);
        assert!(before(made - CONTAINER_PIECES), "{made} pieces");
        // A client that goes takes its page with it.
        drop(slow);
        wait_until("the pages are gone", DEADLINE, async || {
            Ok((Arc::strong_count(&statistics.pieces_made) == 1).then_some(()))
        })
        .await?;
        let made = statistics.pieces_made.load(Ordering::Relaxed);
        assert!(before(made - CONTAINER_PIECES), "{made} pieces");
        Ok(()) as Result<()>
    });
}

#[test]
fn a_client_that_reads_byte_by_byte_holds_up_no_other() {
    in_scope("byte-scraper", async |scope| {
        let setup = Setup::new(scope)?;
        let statistics = setup.statistics.clone();
        let running = setup.start().await?;
        let mut slow = running.read_only().await?;
        slow.begin("GET", "/metrics/cadvisor").await?;
        slow.head().await?;
        let mut others = running.read_only().await?;
        for _ in 0..20 {
            assert_eq!(slow.take(1).await?.len(), 1);
            for path in ["/metrics/resource", "/stats/summary"] {
                let answer = others.get(path).await?;
                assert_eq!(answer.status, 200, "{path}: {answer:?}");
            }
        }
        // Of its page only what fits into the buffers on the way is made.
        let made = statistics.pieces_made.load(Ordering::Relaxed);
        assert!(made < CONTAINER_PIECES, "{made} pieces");
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
