//! Ports that are taken, clients that ask for too much, and the orderly end.

use std::net::TcpListener;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rubelet_testbed::in_scope;
use rubelet_testbed::wait::wait_until;
use serde_json::json;

use crate::client::{Connection, DEADLINE};
use crate::fixture::Setup;
use crate::sessions::set_pod;

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
        assert_eq!(running.healthz().await?.get("/healthz").await?.status, 200);
        Ok(())
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

/// As many as an attacker opens without a thought; the port has places for far fewer.
const CROWD: usize = 1500;
const ANOTHER_CROWD: usize = 5000;
/// Between two bytes of a client that takes its time.
const TRICKLE: Duration = Duration::from_secs(1);

#[test]
fn a_crowd_that_says_nothing_keeps_nobody_out() {
    in_scope("crowd", async |scope| {
        let running = Setup::new(scope)?.start().await?;
        // Known, and silent for a while.
        let mut served = running.tls().await?;
        assert_eq!(served.get("/healthz").await?.status, 200);
        let begun = "GET /pods HTTP/1.1\r\nHost: x\r\nX-Slow: ";
        for (port, words) in [
            (running.ports.tls, ""),
            // The first bytes of a handshake, and never the rest.
            (running.ports.tls, "\x16\x03\x01"),
            (running.ports.read_only, ""),
            (running.ports.read_only, begun),
        ] {
            let mut crowd = Vec::new();
            for number in 0..CROWD {
                let mut connection = Connection::plain(port).await?;
                // Those that had to make room may not hear it.
                let _ = connection.send(words.as_bytes()).await;
                crowd.push(connection);
                if number % 500 == 250 {
                    check_served(&running, port).await?;
                }
            }
            check_served(&running, port).await?;
        }
        assert_eq!(running.healthz().await?.get("/healthz").await?.status, 200);
        Ok(())
    });
}

#[test]
fn five_thousand_connections_of_another_process_keep_nobody_out() {
    in_scope("crowd-of-a-process", async |scope| {
        let running = Setup::new(scope)?.start().await?;
        let crowd = scope.path("crowd");
        // The process says how many it has open, also when it could not open all of them.
        let script = format!(
            "ulimit -n 6000; for i in $(seq {ANOTHER_CROWD}); do exec {{place}}<>/dev/tcp/127.0.0.1/{} || break; done
             find /proc/$$/fd -lname 'socket:*' | wc -l > {crowd}.new; mv {crowd}.new {crowd}; exec sleep 1000",
            running.ports.tls,
            crowd = crowd.display()
        );
        let mut command = Command::new("bash");
        command.args(["-c", &script]);
        let _crowd = scope.spawn("crowd", command)?;
        let patience = 6 * DEADLINE;
        let came = wait_until("the crowd has come", patience, async || {
            // Meanwhile, and not only afterwards, others are served.
            check_served(&running, running.ports.tls).await?;
            Ok(std::fs::read_to_string(&crowd)?)
        })
        .await?;
        assert_eq!(came.trim().parse::<usize>()?, ANOTHER_CROWD);
        wait_until("served among the crowd", patience, async || {
            check_served(&running, running.ports.tls).await
        })
        .await
    });
}

async fn check_served(running: &crate::fixture::Running, port: u16) -> Result<()> {
    let mut connection = if port == running.ports.tls {
        running.tls().await?
    } else {
        running.read_only().await?
    };
    assert_eq!(connection.get("/healthz").await?.status, 200);
    Ok(())
}

#[test]
fn upgrades_that_make_no_sense_are_refused_and_the_server_lives() {
    in_scope("malformed-upgrades", async |scope| {
        let running = Setup::new(scope)?.start().await?;
        running.pods.set(json!({
            "metadata": { "name": "web", "namespace": "default", "uid": "u" },
            "spec": { "containers": [{ "name": "main" }] },
        }))?;
        let path = "/exec/default/web/main?output=1&command=x";
        for head in [
            "Connection: Upgrade\r\n",
            "Connection: Upgrade\r\nUpgrade:\r\n",
            "Connection: Upgrade\r\nUpgrade: \u{1}\r\n",
            "Connection: Upgrade\r\nUpgrade: websocket\r\n",
            "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\nSec-WebSocket-Version: 99\r\n",
            "Connection: Upgrade, Upgrade\r\nUpgrade: SPDY/3.1, websocket, foo\r\n",
            "Connection: keep-alive\r\nUpgrade: SPDY/3.1\r\n",
            "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\nContent-Length: 99999\r\n",
            "Connection: Upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: \r\n",
        ] {
            for method in ["GET", "POST"] {
                let mut connection = running.tls().await?;
                let request = format!("{method} {path} HTTP/1.1\r\nHost: x\r\n{head}\r\n");
                connection.send(request.as_bytes()).await?;
                let status = connection.head().await?.status;
                assert!((400..=501).contains(&status), "{status}: {head:?}");
            }
        }
        // A client that goes in the middle of it.
        for _ in 0..20 {
            let mut connection = running.tls().await?;
            let request =
                format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n");
            connection.send(request.as_bytes()).await?;
            drop(connection);
        }
        assert_eq!(running.tls().await?.get("/healthz").await?.status, 200);
        Ok(())
    });
}

#[test]
fn a_form_that_does_not_come_ends_its_request() {
    in_scope("slow-forms", async |scope| {
        let running = Setup::new(scope)?.start().await?;
        set_pod(&running.pods)?;
        let refused = async |path: &str| -> Result<()> {
            let mut connection = running.tls().await?;
            let head =
                "Host: x\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 60000\r\n";
            let begun = format!("POST {path} HTTP/1.1\r\n{head}\r\ncmd=");
            connection.send(begun.as_bytes()).await?;
            // A byte now and then is not enough; there are more to come than the time allows.
            let refusal = async {
                while tokio::time::timeout(TRICKLE, connection.receive()).await.is_err() {
                    connection.send(b"x").await?;
                }
                connection.head().await
            };
            let answer = tokio::time::timeout(3 * DEADLINE, refusal).await??;
            ensure!(answer.status == 408, "{path}: {answer:?}");
            Ok(())
        };
        let others = async {
            for _ in 0..20 {
                check_served(&running, running.ports.tls).await?;
            }
            Ok::<_, anyhow::Error>(())
        };
        tokio::try_join!(
            refused("/exec/default/web/main?output=1&command=x"),
            refused("/attach/default/web/main?output=1"),
            refused("/run/default/web/main?cmd=x"),
            others
        )?;
        assert_eq!(running.runtime.take_asked(), []);
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

/// A process that another test starts just now holds the port for a moment too.
async fn stops_listening(port: u16) -> Result<()> {
    wait_until("nobody listens", DEADLINE, async || {
        ensure!(Connection::plain(port).await.is_err(), "{port} still listens");
        Ok(())
    })
    .await
}

#[test]
fn stopping_closes_idle_connections_and_takes_no_new_ones() {
    in_scope("stop", async |scope| {
        let running = Setup::new(scope)?.start().await?;
        let mut idle = running.tls().await?;
        assert_eq!(idle.get("/healthz").await?.status, 200);
        let (tls, read_only, healthz) = (running.ports.tls, running.ports.read_only, running.ports.healthz);
        running.server.stop().await;
        // In order: a connection that had to be cut off ends without a farewell.
        assert!(!idle.receive().await?);
        for port in [tls, read_only, healthz] {
            stops_listening(port).await?;
        }
        assert!(!running.socket.exists());
        Ok(())
    });
}

#[test]
fn an_answer_under_way_comes_to_its_end_while_the_server_stops() {
    in_scope("stop-answers", async |scope| {
        // More than the connection holds between two ends that do not read.
        const SIZE_BYTES: usize = 8 << 20;
        let running = Setup::new(scope)?.start().await?;
        std::fs::File::create(scope.path("var-log/large"))?.set_len(SIZE_BYTES as u64)?;
        let port = running.ports.tls;
        let mut client = running.tls().await?;
        client.begin("GET", "/logs/large").await?;
        let mut answer = client.head().await?;
        assert_eq!(answer.status, 200);
        let read = async {
            stops_listening(port).await?;
            client.rest_of(&mut answer).await?;
            // That was the last answer of this connection.
            ensure!(!client.receive().await?, "it goes on");
            Ok(())
        };
        let ((), read) = tokio::join!(running.server.stop(), read);
        read?;
        assert_eq!(answer.body.len(), SIZE_BYTES);
        Ok(())
    });
}
