//! Tokens and rights, as an API server that a test makes up knows them.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use rubelet_fakes::ManualClock;
use rubelet_ports::Clock;
use rubelet_ports::api::{ApiErrorKind, Reviewer};
use rubelet_testbed::wait::wait_until;
use rubelet_testbed::{Scope, in_scope};
use serde_json::json;

use crate::authentication::{Authority, Flaw};
use crate::client::{Answer, Connection, DEADLINE};
use crate::fixture::{Running, Setup};
use crate::reviewer::{FakeReviewer, clock_of_now};

const ANONYMOUS: &str = "system:anonymous";

struct Scene {
    running: Running,
    reviewer: Arc<FakeReviewer>,
    clock: Arc<ManualClock>,
    authority: Authority,
}

/// Certificates, tokens and, if wanted, anonymous requests; rights come from the API server.
async fn scene(scope: &Scope, anonymous: bool) -> Result<Scene> {
    let authority = Authority::new("ours")?;
    let file = scope.path("ca.crt");
    std::fs::write(&file, authority.pem())?;
    let (reviewer, clock) = (Arc::<FakeReviewer>::default(), clock_of_now());
    let mut setup = Setup::new(scope)?
        .with(
            "authentication",
            json!({
                "anonymous": { "enabled": anonymous }, "webhook": { "enabled": true, "cacheTTL": "2m0s" },
                "x509": { "clientCAFile": file },
            }),
        )
        .with("authorization", json!({ "mode": "Webhook" }));
    setup.reviewer = Some(Arc::clone(&reviewer) as Arc<dyn Reviewer>);
    setup.clock = Arc::clone(&clock) as Arc<dyn Clock>;
    Ok(Scene {
        running: setup.start().await?,
        reviewer,
        clock,
        authority,
    })
}

impl Scene {
    async fn ask(&self, method: &str, path: &str, token: Option<&str>) -> Result<Answer> {
        let mut connection = self.running.tls().await?;
        ask(&mut connection, method, path, token).await
    }
}

async fn ask(connection: &mut Connection, method: &str, path: &str, token: Option<&str>) -> Result<Answer> {
    let bearer = format!("Bearer {}", token.unwrap_or_default());
    let headers = [("Authorization", bearer.as_str())];
    let headers = if token.is_some() { &headers[..] } else { &[] };
    connection.ask_with(method, path, headers, "").await
}

/// Every endpoint, the subresources that lead to it, and what an empty node answers to those who may ask.
const ENDPOINTS: &[(&str, &str, &[&str], u16)] = &[
    ("GET", "/healthz", &["healthz", "proxy"], 200),
    ("GET", "/healthz/ping", &["healthz", "proxy"], 200),
    ("GET", "/healthz/log", &["healthz", "proxy"], 200),
    ("GET", "/healthz/syncloop", &["healthz", "proxy"], 200),
    ("GET", "/pods", &["pods", "proxy"], 200),
    ("POST", "/pods", &["pods", "proxy"], 405),
    ("GET", "/runningpods/", &["pods", "proxy"], 200),
    ("GET", "/configz", &["configz", "proxy"], 200),
    ("GET", "/stats/summary", &["stats"], 200),
    ("GET", "/metrics", &["metrics"], 200),
    ("GET", "/metrics/cadvisor", &["metrics"], 200),
    ("GET", "/metrics/resource", &["metrics"], 200),
    ("GET", "/metrics/probes", &["metrics"], 200),
    ("GET", "/metrics/slis", &["metrics"], 200),
    ("GET", "/logs/", &["log"], 200),
    ("POST", "/checkpoint/default/web/main", &["checkpoint"], 404),
    ("GET", "/statusz", &["statusz"], 200),
    ("GET", "/flagz", &["configz"], 200),
    ("PUT", "/debug/flags/v", &["proxy"], 400),
    ("GET", "/debug/pprof/heap", &["proxy"], 501),
    ("GET", "/containerLogs/default/web/main", &["proxy"], 404),
    ("GET", "/exec/default/web/main?output=1", &["proxy"], 404),
    ("POST", "/exec/default/web/main?output=1", &["proxy"], 404),
    ("POST", "/run/default/web/main", &["proxy"], 404),
    ("POST", "/attach/default/web/main?output=1", &["proxy"], 404),
    ("POST", "/portForward/default/web", &["proxy"], 404),
    ("DELETE", "/exec/default/web/main", &["proxy"], 405),
];

fn verb(method: &str) -> &'static str {
    match method {
        "GET" => "get",
        "POST" => "create",
        "PUT" => "update",
        _ => "delete",
    }
}

#[test]
fn every_endpoint_asks_who_and_whether_they_may() {
    in_scope("access-endpoints", async |scope| {
        let scene = scene(scope, false).await?;
        scene.reviewer.know("t-nobody", "nobody-special", &[]);
        for (index, (method, path, subresources, expected)) in ENDPOINTS.iter().enumerate() {
            let place = format!("{method} {path}");
            let mut connection = scene.running.tls().await?;
            for token in [None, Some("t-wrong")] {
                let answer = ask(&mut connection, method, path, token).await?;
                assert_eq!(
                    (answer.status, answer.text().as_str()),
                    (401, "Unauthorized"),
                    "{place}"
                );
            }
            let answer = ask(&mut connection, method, path, Some("t-nobody")).await?;
            let told = format!(
                "Forbidden (user=nobody-special, verb={}, resource=nodes, subresource(s)=[{}])\n",
                verb(method),
                subresources.join(" ")
            );
            assert_eq!((answer.status, answer.text()), (403, told), "{place}");
            // Each of the subresources is enough, and only for its verb.
            for subresource in *subresources {
                let (token, user) = (
                    format!("t-{index}-{subresource}"),
                    format!("u-{index}-{subresource}"),
                );
                scene.reviewer.know(&token, &user, &[]);
                scene.reviewer.allow(&user, verb(method), subresource);
                let answer = ask(&mut connection, method, path, Some(&token)).await?;
                assert_eq!(answer.status, *expected, "{place} with {subresource}: {answer:?}");
                let answer = ask(&mut connection, "PATCH", path, Some(&token)).await?;
                assert_eq!(answer.status, 403, "PATCH {path} with {subresource}");
            }
        }
        // A path that does not exist is answered without authentication.
        assert_eq!(scene.ask("GET", "/foo", None).await?.status, 404);
        let mut read_only = scene.running.read_only().await?;
        assert_eq!(read_only.get("/pods").await?.status, 200);
        Ok(())
    });
}

#[test]
fn in_strict_mode_reaching_into_a_container_is_creating() {
    in_scope("access-strict", async |scope| {
        let file = scope.path("rubelet.yaml");
        std::fs::write(
            &file,
            "apiVersion: rubelet.dev/v1alpha1\nkind: RubeletConfiguration\nsessionsNeedCreate: true\n",
        )?;
        let mut setup = Setup::new(scope)?
            .with(
                "authentication",
                json!({ "anonymous": { "enabled": false }, "webhook": { "enabled": true } }),
            )
            .with("authorization", json!({ "mode": "Webhook" }))
            .with_rubelet_configuration(&file);
        let reviewer = Arc::<FakeReviewer>::default();
        setup.reviewer = Some(Arc::clone(&reviewer) as Arc<dyn Reviewer>);
        let running = setup.start().await?;
        let mut tls = running.tls().await?;
        for (user, verb) in [("reader", "get"), ("creator", "create")] {
            reviewer.know(&format!("t-{user}"), user, &[]);
            reviewer.allow(user, verb, "proxy");
        }
        let sessions = [
            "/exec/default/web/main?output=1",
            "/attach/default/web/main?output=1",
            "/portForward/default/web",
            "/exec/default/web/u/main?output=1",
        ];
        for path in sessions {
            for method in ["GET", "POST"] {
                let refused = ask(&mut tls, method, path, Some("t-reader")).await?;
                let told = "Forbidden (user=reader, verb=create, resource=nodes, subresource(s)=[proxy])\n";
                assert_eq!(
                    (refused.status, refused.text().as_str()),
                    (403, told),
                    "{method} {path}"
                );
                let passed = ask(&mut tls, method, path, Some("t-creator")).await?;
                assert_eq!(passed.status, 404, "{method} {path}: {}", passed.text());
            }
        }
        // What only looks is as it was.
        let path = "/containerLogs/default/web/main";
        assert_eq!(ask(&mut tls, "GET", path, Some("t-reader")).await?.status, 404);
        assert_eq!(ask(&mut tls, "GET", path, Some("t-creator")).await?.status, 403);
        Ok(())
    });
}

#[test]
fn the_api_server_hears_all_that_is_known_of_a_user() {
    in_scope("access-users", async |scope| {
        let scene = scene(scope, true).await?;
        scene.reviewer.know("t", "me", &["g1", "g2"]);
        scene.ask("GET", "/pods", Some("t")).await?;
        let identity = scene.authority.identity(Flaw::None)?;
        let mut connection = scene.running.tls_as(&identity).await?;
        // The certificate counts before the token.
        ask(&mut connection, "POST", "/exec/a/b/c", Some("t")).await?;
        scene.ask("DELETE", "/metrics", None).await?;
        let asked = scene.reviewer.access_asked();
        let asked: Vec<_> = asked.iter().map(serde_json::to_value).collect::<Result<_, _>>()?;
        let attributes = |verb: &str, subresource: &str| json!({ "name": "node-a", "resource": "nodes", "version": "v1", "verb": verb, "subresource": subresource });
        let me = |subresource: &str| {
            json!({
                "user": "me", "uid": "uid-of-me", "groups": ["g1", "g2", "system:authenticated"],
                "resourceAttributes": attributes("get", subresource),
            })
        };
        assert_eq!(asked[..2], [me("pods"), me("proxy")]);
        let credential = asked[2]["extra"]["authentication.kubernetes.io/credential-id"][0].as_str();
        let credential = credential.unwrap_or_default();
        assert!(
            credential.starts_with("X509SHA256=") && credential.len() == 11 + 64,
            "{credential}"
        );
        assert_eq!(
            (
                &asked[2]["user"],
                &asked[2]["groups"],
                &asked[2]["resourceAttributes"]
            ),
            (
                &json!("me"),
                &json!(["system:authenticated"]),
                &attributes("create", "proxy")
            )
        );
        assert_eq!(
            asked[3],
            json!({
                "user": ANONYMOUS, "groups": ["system:unauthenticated"],
                "resourceAttributes": attributes("delete", "metrics"),
            })
        );
        assert_eq!(asked.len(), 4);
        Ok(())
    });
}

#[test]
fn credentials_that_do_not_hold_are_worse_than_none() {
    in_scope("access-credentials", async |scope| {
        let scene = scene(scope, true).await?;
        let other = Authority::new("other")?;
        scene.reviewer.know("t", "me", &[]);
        for user in ["me", ANONYMOUS] {
            scene.reviewer.allow(user, "get", "pods");
        }
        let (good, expired) = (
            scene.authority.identity(Flaw::None)?,
            scene.authority.identity(Flaw::Expired)?,
        );
        let stranger = other.identity(Flaw::None)?;
        for (identity, token, expected) in [
            (None, None, 200),
            (None, Some("t"), 200),
            (None, Some("wrong"), 401),
            (Some(&good), None, 200),
            (Some(&good), Some("wrong"), 200),
            (Some(&expired), None, 401),
            (Some(&stranger), None, 401),
            // One way that holds is enough.
            (Some(&stranger), Some("t"), 200),
            (Some(&expired), Some("wrong"), 401),
        ] {
            let mut connection = match identity {
                Some(identity) => scene.running.tls_as(identity).await?,
                None => scene.running.tls().await?,
            };
            let answer = ask(&mut connection, "GET", "/pods", token).await?;
            assert_eq!(answer.status, expected, "{token:?}: {answer:?}");
        }
        // A certificate runs out while its connection lives.
        let ending = scene.authority.identity(Flaw::Ending)?;
        let mut connection = scene.running.tls_as(&ending).await?;
        assert_eq!(connection.get("/pods").await?.status, 200);
        scene.clock.advance(Duration::from_secs(100 * 365 * 24 * 60 * 60));
        assert_eq!(connection.get("/pods").await?.status, 401);
        Ok(())
    });
}

#[test]
fn a_browser_may_put_its_token_among_the_subprotocols() {
    in_scope("access-websocket", async |scope| {
        let scene = scene(scope, false).await?;
        scene.reviewer.know("t0ken", "me", &[]);
        scene.reviewer.allow("me", "get", "proxy");
        let token = |token: &str| {
            let encoded = BASE64_URL_SAFE_NO_PAD.encode(token);
            format!("base64url.bearer.authorization.k8s.io.{encoded}")
        };
        let mut connection = scene.running.tls().await?;
        for (protocols, expected) in [
            (format!("v4.channel.k8s.io,{}", token("t0ken")), 404),
            (format!("v4.channel.k8s.io,{}", token("wrong")), 401),
            (token("t0ken"), 401),
            ("v4.channel.k8s.io".to_owned(), 401),
        ] {
            let headers = [
                ("Connection", "Upgrade"),
                ("Upgrade", "websocket"),
                ("Sec-WebSocket-Protocol", protocols.as_str()),
            ];
            let path = "/exec/default/none/main?output=1";
            let answer = connection.ask_with("GET", path, &headers, "").await?;
            assert_eq!(answer.status, expected, "{protocols}");
        }
        Ok(())
    });
}

#[test]
fn answers_are_remembered_for_their_time() {
    in_scope("access-cache", async |scope| {
        let scene = scene(scope, false).await?;
        let status = async |token: &str| anyhow::Ok(scene.ask("GET", "/metrics", Some(token)).await?.status);
        let counts = || (scene.reviewer.tokens_asked(), scene.reviewer.access_asked().len());
        scene.reviewer.know("t", "me", &[]);
        scene.reviewer.allow("me", "get", "metrics");
        assert_eq!(status("t").await?, 200);
        assert_eq!(counts(), (1, 1));
        // Neither a user who is gone nor rights that are gone count before their time.
        scene.reviewer.forget("t");
        scene.reviewer.take_rights();
        scene.clock.advance(Duration::from_secs(119));
        assert_eq!((status("t").await?, counts()), (200, (1, 1)));
        scene.clock.advance(Duration::from_secs(1));
        assert_eq!((status("t").await?, counts()), (401, (2, 1)));
        // A plain no is remembered as long as a yes.
        scene.reviewer.know("t", "me", &[]);
        scene.clock.advance(Duration::from_secs(119));
        assert_eq!((status("t").await?, counts()), (401, (2, 1)));
        scene.clock.advance(Duration::from_secs(1));
        // The right was given 240 s ago and holds for 300 s.
        assert_eq!((status("t").await?, counts()), (200, (3, 1)));
        scene.clock.advance(Duration::from_secs(59));
        assert_eq!((status("t").await?, counts()), (200, (3, 1)));
        scene.clock.advance(Duration::from_secs(1));
        assert_eq!((status("t").await?, counts()), (403, (3, 2)));
        scene.reviewer.allow("me", "get", "metrics");
        scene.clock.advance(Duration::from_secs(29));
        assert_eq!((status("t").await?, counts()), (403, (3, 2)));
        scene.clock.advance(Duration::from_secs(1));
        assert_eq!((status("t").await?, counts()), (200, (3, 3)));
        // What the API server says in words may be over in a moment.
        scene
            .reviewer
            .complain("t-odd", "the token t-odd cannot be checked now");
        assert_eq!((status("t-odd").await?, counts()), (401, (4, 3)));
        assert_eq!((status("t-odd").await?, counts()), (401, (5, 3)));
        Ok(())
    });
}

#[test]
fn an_api_server_that_fails_refuses_and_is_asked_again() {
    in_scope("access-failures", async |scope| {
        let scene = scene(scope, true).await?;
        scene.reviewer.know("t", "me", &[]);
        scene.reviewer.allow("me", "get", "metrics");
        // Not heard at all: 401 for the token, and for the rights a text that says whose.
        scene.reviewer.fail(&[ApiErrorKind::Forbidden]);
        let answer = scene.ask("GET", "/metrics", Some("t")).await?;
        assert_eq!((answer.status, answer.text().as_str()), (401, "Unauthorized"));
        scene.reviewer.fail(&[ApiErrorKind::Tls]);
        let answer = scene.ask("GET", "/metrics", None).await?;
        let told =
            "Authorization error (user=system:anonymous, verb=get, resource=nodes, subresource=metrics)";
        assert_eq!((answer.status, answer.text().as_str()), (500, told));
        // Nothing of that is remembered.
        assert_eq!(scene.ask("GET", "/metrics", Some("t")).await?.status, 200);

        // A passing trouble is waited out, by many on one question.
        scene.reviewer.know("t2", "me", &[]);
        let before = scene.reviewer.tokens_asked();
        scene.reviewer.fail(&[
            ApiErrorKind::Unreachable,
            ApiErrorKind::Busy { retry_after: None },
            ApiErrorKind::ServerFailed,
        ]);
        let asked = futures_util::future::join_all((0..10).map(|_| scene.ask("GET", "/metrics", Some("t2"))));
        let turned_for = Cell::new(0);
        let turned = wait_until("all tries are made", DEADLINE, async || {
            let tries = scene.reviewer.tokens_asked() - before;
            // The limit of the whole question, and the pause after this try.
            if scene.clock.sleepers() == 2 && turned_for.replace(tries) < tries {
                scene.clock.advance(Duration::from_secs(2));
            }
            ensure!(tries == 4, "{tries} tries");
            Ok(())
        });
        let (answers, turned) = futures_util::future::join(asked, turned).await;
        turned?;
        for answer in answers {
            assert_eq!(answer?.status, 200);
        }
        assert_eq!(scene.reviewer.tokens_asked() - before, 4);
        Ok(())
    });
}

#[test]
fn tokens_whose_review_takes_long_keep_nobody_out() {
    in_scope("slow-reviews", async |scope| {
        // More than the port has places for.
        const CROWD: usize = 1100;
        let scene = scene(scope, false).await?;
        scene.reviewer.allow("me", "get", "healthz");
        // The next try is when the clock goes on, which it does not.
        scene.reviewer.fail(&[ApiErrorKind::Unreachable]);
        let request = "GET /pods HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer slow\r\n\r\n";
        let mut crowd = Vec::new();
        for number in 0..CROWD {
            let connected = tokio::time::timeout(DEADLINE, scene.running.tls()).await;
            let mut connection = connected.with_context(|| format!("number {number} is kept out"))??;
            connection.send(request.as_bytes()).await?;
            crowd.push(connection);
        }
        ensure!(scene.clock.sleepers() > 0, "no review is under way");
        let identity = scene.authority.identity(Flaw::None)?;
        let mut known = scene.running.tls_as(&identity).await?;
        assert_eq!(known.get("/healthz").await?.status, 200);
        Ok(())
    });
}

#[test]
fn clients_that_invent_tokens_have_a_bounded_number_of_reviews_pending() {
    in_scope("token-flood", async |scope| {
        /// For one address.
        const MAX_PENDING: usize = 32;
        let scene = scene(scope, false).await?;
        scene.reviewer.know("t", "me", &[]);
        scene.reviewer.allow("me", "get", "healthz");
        let identity = scene.authority.identity(Flaw::None)?;
        let mut certified = scene.running.tls_as(&identity).await?;
        assert_eq!(certified.get("/healthz").await?.status, 200);
        assert_eq!(scene.ask("GET", "/healthz", Some("t")).await?.status, 200);
        // The next try of each review is when the clock goes on, which it does not.
        scene.reviewer.fail(&[ApiErrorKind::Unreachable; 1000]);
        let mut pending = Vec::new();
        for number in 1..=MAX_PENDING {
            let mut connection = scene.running.tls().await?;
            let request = format!(
                "GET /healthz HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer invented-{number}\r\n\r\n"
            );
            connection.send(request.as_bytes()).await?;
            pending.push(connection);
            wait_until("the token is under review", DEADLINE, async || {
                ensure!(scene.reviewer.tokens_asked() == 1 + number);
                Ok(())
            })
            .await?;
        }
        for number in 0..3 {
            let refused = scene
                .ask("GET", "/healthz", Some(&format!("more-{number}")))
                .await?;
            assert_eq!((refused.status, refused.header("retry-after")), (429, "1"));
            assert_eq!(refused.text(), "Too many requests, please try again later.\n");
        }
        assert_eq!(scene.reviewer.tokens_asked(), 1 + MAX_PENDING);
        // Clients that are known already do not notice.
        assert_eq!(certified.get("/healthz").await?.status, 200);
        assert_eq!(scene.ask("GET", "/healthz", Some("t")).await?.status, 200);
        // A place is free once its client is gone.
        scene.reviewer.fail(&[]);
        pending.pop();
        wait_until("a further token is reviewed", DEADLINE, async || {
            let answer = scene.ask("GET", "/healthz", Some("more-0")).await?;
            ensure!(answer.status == 401, "{answer:?}");
            Ok(())
        })
        .await
    });
}
