//! Ports that are taken, clients that ask for too much, and the orderly end.

use std::net::TcpListener;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use rubelet_testkit::in_scope;
use rubelet_testkit::wait::wait_until;
use serde_json::json;

use crate::client::{Connection, DEADLINE};
use crate::fixture::Setup;

#[test]
fn a_port_that_is_taken_is_named() {
    in_scope("taken", async |scope| {
        for (port, setting) in [(0, "port"), (1, "readOnlyPort")] {
            let setup = Setup::new(scope)?;
            let number = [setup.ports.tls, setup.ports.read_only][port];
            let _taken = TcpListener::bind(("127.0.0.1", number))?;
            let error = setup.try_start().await?.err().context("it started")?;
            let told = format!("{:#}", anyhow::Error::from(error));
            let expected = format!("{setting}: cannot listen on 127.0.0.1:{number}");
            assert!(told.starts_with(&expected) && told.contains("in use"), "{told}");
        }
        Ok(())
    });
}

#[test]
fn a_health_port_that_is_taken_is_tried_again() {
    in_scope("healthz-taken", async |scope| {
        let setup = Setup::new(scope)?;
        let taken = TcpListener::bind(("127.0.0.1", setup.ports.healthz))?;
        let running = setup.start().await?;
        assert_eq!(running.tls().await?.get("/healthz").await?.status, 200);
        drop(taken);
        wait_until("the health port listens", DEADLINE, async || {
            let status = running.healthz().await?.get("/healthz").await?.status;
            ensure!(status == 200, "{status}");
            Ok(())
        })
        .await
    });
}

#[test]
fn without_a_server_only_health_and_why_are_left() {
    in_scope("no-server", async |scope| {
        let running = Setup::new(scope)?
            .with("enableServer", json!(false))
            .start()
            .await?;
        assert!(Connection::plain(running.ports.tls).await.is_err());
        assert!(Connection::plain(running.ports.read_only).await.is_err());
        assert_eq!(running.healthz().await?.get("/healthz").await?.status, 200);
        let mut why = Connection::local(&running.socket).await?;
        assert_eq!(why.get("/why").await?.status, 200);
        Ok(())
    });
}

#[test]
fn requests_that_are_too_large_or_no_requests_are_refused() {
    in_scope("too-large", async |scope| {
        let running = Setup::new(scope)?.start().await?;
        let large = format!(
            "GET /pods HTTP/1.1\r\nHost: x\r\nX: {}\r\n\r\n",
            "x".repeat(100 * 1024)
        );
        for (bytes, expected) in [(large.as_str(), 431), ("no http at all\r\n\r\n", 400)] {
            let mut connection = running.read_only().await?;
            connection.send(bytes.as_bytes()).await?;
            assert_eq!(connection.head().await?.status, expected);
        }
        // Not HTTP where TLS is spoken.
        let mut connection = Connection::plain(running.ports.tls).await?;
        connection.send(b"GET / HTTP/1.1\r\n\r\n").await?;
        while connection.receive().await.unwrap_or(false) {}
        assert_eq!(running.tls().await?.get("/healthz").await?.status, 200);
        Ok(())
    });
}

#[test]
fn many_requests_share_a_connection_and_many_connections_the_server() {
    in_scope("many", async |scope| {
        let running = Arc::new(Setup::new(scope)?.start().await?);
        let ask = async |running: Arc<crate::fixture::Running>| -> Result<()> {
            let mut connection = running.read_only().await?;
            for _ in 0..20 {
                assert_eq!(connection.get("/pods").await?.status, 200);
            }
            Ok(())
        };
        let mut tasks = tokio::task::JoinSet::new();
        // More than the port serves at a time: the others wait for their turn.
        for _ in 0..200 {
            tasks.spawn(ask(Arc::clone(&running)));
        }
        while let Some(result) = tasks.join_next().await {
            result??;
        }
        Ok(())
    });
}

#[test]
fn stopping_closes_idle_connections_and_takes_no_new_ones() {
    in_scope("stop", async |scope| {
        let running = Setup::new(scope)?.start().await?;
        let mut idle = running.tls().await?;
        assert_eq!(idle.get("/healthz").await?.status, 200);
        let (tls, read_only, healthz) = (running.ports.tls, running.ports.read_only, running.ports.healthz);
        let start = std::time::Instant::now();
        running.server.stop().await;
        assert!(start.elapsed() < DEADLINE / 4, "{:?}", start.elapsed());
        assert!(!idle.receive().await?);
        for port in [tls, read_only, healthz] {
            assert!(Connection::plain(port).await.is_err());
        }
        assert!(!running.socket.exists());
        Ok(())
    });
}
