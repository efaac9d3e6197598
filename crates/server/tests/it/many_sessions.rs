//! As many sessions as the server bears, and one more.

use std::fs;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use futures_util::{StreamExt, TryStreamExt, stream};
use rubelet_testbed::in_scope;
use rubelet_testbed::wait::wait_until;

use crate::client::{Connection, DEADLINE};
use crate::fixture::{Running, Setup};
use crate::runtime::StreamingServer;
use crate::sessions::{EXEC, SPDY, set_pod};

const LIMIT: usize = 1000;

/// Sockets on these ports that a process holds, whatever their state; those that listen are left out.
pub(crate) fn held_sockets(ports: &[u16]) -> Result<Vec<String>> {
    const LISTENS: &str = "0A";
    let table = fs::read_to_string("/proc/self/net/tcp")?;
    let port = |address: &str| {
        let (_, port) = address.rsplit_once(':')?;
        u16::from_str_radix(port, 16).ok()
    };
    let held = table.lines().skip(1).filter(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_ours = [fields[1], fields[2]]
            .iter()
            .any(|address| port(address).is_some_and(|port| ports.contains(&port)));
        is_ours && fields[3] != LISTENS && fields[9] != "0"
    });
    Ok(held.map(str::to_owned).collect())
}

async fn open(running: Arc<Running>) -> Result<Connection> {
    let mut client = running.tls().await?;
    let answer = client.ask_with("POST", EXEC, &SPDY, "").await?;
    ensure!(answer.status == 101, "{answer:?}");
    client.take(5).await?;
    Ok(client)
}

/// A few at a time: a handshake that takes long is given up.
async fn open_many(running: &Arc<Running>, count: usize) -> Result<Vec<Connection>> {
    let clients = (0..count).map(|_| open(Arc::clone(running)));
    stream::iter(clients).buffer_unordered(32).try_collect().await
}

#[test]
fn sessions_are_bounded_and_leave_nothing() {
    in_scope("sessions-many", async |scope| {
        let streaming = StreamingServer::start().await?;
        let running = Arc::new(Setup::new(scope)?.start().await?);
        set_pod(&running.pods)?;
        running
            .runtime
            .serve_sessions_at(streaming.address("/echo/t0ken"));
        let none_left = async || {
            wait_until("all sockets are gone", DEADLINE, async || {
                let held = held_sockets(&[streaming.port, running.ports.tls])?;
                ensure!(
                    held.is_empty(),
                    "{} are left, e.g. {:?}",
                    held.len(),
                    held.first()
                );
                Ok(())
            })
            .await
        };

        let clients = open_many(&running, LIMIT).await?;
        assert_eq!(streaming.open(), LIMIT);
        let mut one_more = running.tls().await?;
        let answer = one_more.ask_with("POST", EXEC, &SPDY, "").await?;
        assert_eq!(
            (answer.status, answer.header("retry-after")),
            (429, "60"),
            "{answer:?}"
        );
        // Sessions take no place from other requests.
        assert_eq!(one_more.get("/healthz").await?.status, 200);
        drop(one_more);

        // Every other one vanishes in the middle of what it sends.
        let mut kept = Vec::new();
        for (number, mut client) in clients.into_iter().enumerate() {
            if number % 2 == 0 {
                kept.push(client);
            } else {
                client.send(&[0; 10_000]).await?;
            }
        }
        wait_until("half of them are left", DEADLINE, async || {
            let open = streaming.open();
            ensure!(open == LIMIT / 2, "{open} are open");
            Ok(())
        })
        .await?;
        for client in &mut kept {
            client.send(b"ping").await?;
            assert_eq!(client.take(4).await?, b"ping");
        }
        // Their places are free again.
        drop(open(Arc::clone(&running)).await?);
        drop(kept);
        none_left().await?;

        // And with the server itself gone.
        let clients = open_many(&running, 50).await?;
        Arc::into_inner(running)
            .context("a client still holds the server")?
            .server
            .stop()
            .await;
        wait_until("the runtime is left alone", DEADLINE, async || {
            let open = streaming.open();
            ensure!(open == 0, "{open} are open");
            Ok(())
        })
        .await?;
        drop(clients);
        Ok(())
    });
}
