//! A proxy in front of the registry that cuts, stalls and corrupts what comes back.

use std::sync::Arc;

use anyhow::Result;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What happens to the answers of a connection beyond this many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    Cut { after_bytes: usize },
    Stall { after_bytes: usize },
    Corrupt { after_bytes: usize },
}

pub(crate) struct Proxy {
    host: String,
    fault: watch::Sender<Fault>,
    /// How many connections met the fault.
    met: Arc<watch::Sender<usize>>,
    accepting: tokio::task::JoinHandle<()>,
}

impl Proxy {
    pub(crate) async fn start(target: &str) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let host = listener.local_addr()?.to_string();
        let fault = watch::Sender::new(Fault::None);
        let met = Arc::new(watch::Sender::new(0));
        let (target, faults, counter) = (target.to_owned(), fault.clone(), Arc::clone(&met));
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (target, fault, met) = (target.clone(), faults.subscribe(), Arc::clone(&counter));
                tokio::spawn(async move {
                    // A side that hangs up ends the connection.
                    let _ = carry(client, &target, fault, &met).await;
                });
            }
        });
        Ok(Self {
            host,
            fault,
            met,
            accepting,
        })
    }

    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    pub(crate) fn set(&self, fault: Fault) {
        self.met.send_replace(0);
        self.fault.send_replace(fault);
    }

    pub(crate) fn has_met(&self) -> bool {
        *self.met.borrow() > 0
    }

    /// Waits until a connection has met the fault.
    pub(crate) async fn met(&self) {
        let mut met = self.met.subscribe();
        let _ = met.wait_for(|count| *count > 0).await;
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn carry(
    client: TcpStream,
    target: &str,
    mut fault: watch::Receiver<Fault>,
    met: &watch::Sender<usize>,
) -> Result<()> {
    let server = TcpStream::connect(target).await?;
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let asking = async {
        tokio::io::copy(&mut from_client, &mut to_server).await?;
        anyhow::Ok(())
    };
    let answering = async {
        let mut passed = 0;
        let mut chunk = vec![0; 4096];
        loop {
            let count = from_server.read(&mut chunk).await?;
            if count == 0 {
                return anyhow::Ok(());
            }
            let now = *fault.borrow_and_update();
            let is_beyond = |after: usize| passed + count > after;
            match now {
                Fault::Cut { after_bytes } if is_beyond(after_bytes) => {
                    met.send_modify(|count| *count += 1);
                    return Ok(());
                }
                Fault::Stall { after_bytes } if is_beyond(after_bytes) => {
                    met.send_modify(|count| *count += 1);
                    fault.wait_for(|now| !matches!(now, Fault::Stall { .. })).await?;
                }
                Fault::Corrupt { after_bytes } if is_beyond(after_bytes) => {
                    met.send_modify(|count| *count += 1);
                    chunk[count / 2] ^= 0x55;
                }
                Fault::None | Fault::Cut { .. } | Fault::Stall { .. } | Fault::Corrupt { .. } => {}
            }
            to_client.write_all(&chunk[..count]).await?;
            passed += count;
        }
    };
    // Whichever side ends first ends both.
    tokio::select! {
        ended = asking => ended,
        ended = answering => ended,
    }
}
