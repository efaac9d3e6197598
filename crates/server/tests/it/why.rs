//! The local socket.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::sync::atomic::Ordering;

use anyhow::{Context, ensure};
use rubelet_model::Timestamp;
use rubelet_model::explanation::{PodExplanation, WaitExplanation};
use rubelet_testbed::in_scope;
use rubelet_testbed::wait::wait_until;
use serde_json::json;

use crate::client::{Connection, DEADLINE};
use crate::fixture::Setup;

#[test]
fn the_socket_answers_root_only() {
    in_scope("why", async |scope| {
        let setup = Setup::new(scope)?;
        let statistics = setup.statistics.clone();
        let running = setup.start().await?;
        let explanation = PodExplanation {
            namespace: "default".to_owned(),
            name: "web".to_owned(),
            uid: "u1".into(),
            phase: "Pending".to_owned(),
            containers_ready: 0,
            containers: 1,
            restarts: 2,
            waits_for: Some(WaitExplanation {
                what: "pull image x".to_owned(),
                since: Timestamp::from_unix_seconds(1),
                age_seconds: 3,
                last_error: None,
            }),
        };
        *running.pods.explanations.lock().unwrap() = vec![explanation.clone()];
        let record = json!({ "schema": 1 });
        running
            .pods
            .records
            .lock()
            .unwrap()
            .insert("u 1".to_owned(), record.clone());

        let mode = fs::symlink_metadata(&running.socket)?.permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let mut why = Connection::local(&running.socket).await?;
        let answer = why.get("/why").await?;
        let told: Vec<PodExplanation> = serde_json::from_slice(&answer.body)?;
        assert_eq!(told, [explanation]);
        assert_eq!(why.get("/flight/u%201").await?.json()?, record);
        let unknown = why.get("/flight/u2").await?;
        assert_eq!(
            (unknown.status, unknown.text().as_str()),
            (404, "no pod has the uid \"u2\"\n")
        );
        assert_eq!(
            why.get("/events").await?.json()?,
            json!([{ "reason": "Started" }])
        );
        let summary = why.get("/stats/summary").await?;
        assert_eq!(summary.json()?, json!({ "all": 1 }));
        let summary = why.get("/stats/summary?only_cpu_and_memory=true").await?;
        assert_eq!(summary.json()?, json!({ "short": 1 }));
        statistics.has_no_summary.store(true, Ordering::Relaxed);
        let none = why.get("/stats/summary").await?;
        assert_eq!(
            (none.status, none.text().as_str()),
            (503, "failed to list pod stats: the runtime is away\n")
        );
        assert_eq!(why.get("/pods").await?.status, 404);
        assert_eq!(why.ask("POST", "/why").await?.status, 405);
        Ok(())
    });
}

#[test]
fn a_socket_left_behind_is_replaced_and_a_served_one_is_not() {
    in_scope("why-taken", async |scope| {
        fs::create_dir_all(scope.path("root"))?;
        let path = scope.path("root/rubelet.sock");
        drop(UnixListener::bind(&path)?);
        // A process that another test starts just now holds it for a moment too.
        wait_until("nobody serves it", DEADLINE, async || {
            ensure!(Connection::local(&path).await.is_err(), "somebody serves it");
            Ok(())
        })
        .await?;
        let running = Setup::new(scope)?.start().await?;
        let mut why = Connection::local(&path).await?;
        assert_eq!(why.get("/why").await?.status, 200);

        let second = Setup::new(scope)?
            .try_start()
            .await?
            .err()
            .context("it started")?;
        let expected = format!(
            "another rubelet runs on this root directory: it serves {}",
            path.display()
        );
        assert_eq!(second.to_string(), expected);
        assert_eq!(Connection::local(&path).await?.get("/why").await?.status, 200);
        running.server.stop().await;

        // Not a socket at all.
        fs::write(&path, "")?;
        let running = Setup::new(scope)?.start().await?;
        assert_eq!(Connection::local(&path).await?.get("/why").await?.status, 200);
        drop(running);
        Ok(())
    });
}

#[test]
fn a_root_directory_may_have_a_long_name() {
    in_scope("why-long", async |scope| {
        let long = scope.path(&format!("root/{}", "x".repeat(150)));
        fs::create_dir_all(&long)?;
        let directory = fs::File::open(&long)?;
        let setup = Setup::new(scope)?.at_root(long);
        let server = setup.try_start().await?.context("the server starts")?;
        let path = rubelet_server::short_path(&directory, rubelet_server::SOCKET_NAME);
        assert_eq!(Connection::local(&path).await?.get("/why").await?.status, 200);
        drop(server);
        Ok(())
    });
}
