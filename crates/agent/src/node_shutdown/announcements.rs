//! Following the service that shuts the machine down.
//!
//! Owns the connection, the longest delay of a shutdown, and when both are tried again. Each connection begins with a fresh lock and the
//! question whether the machine shuts down just now, so that nothing is missed that was announced while there was none.

use std::sync::Arc;
use std::time::Duration;

use rubelet_ports::{
    Clock, LogThrottle, ShutdownConnection, ShutdownError, ShutdownLock, ShutdownNews, ShutdownService,
};
use tokio::sync::mpsc;

use super::ShutdownPorts;

/// After a lost connection, as upstream; and between tries that fail, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// The service answers before it has read its settings again: so often it is asked, with pauses that double.
const DELAY_TRIES: u32 = 5;
const FIRST_DELAY_PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) enum Announcement {
    /// There is a connection. Without a lock the machine shuts down already.
    Attached {
        lock: Option<ShutdownLock>,
        /// `None` where the service does not say.
        is_shutting_down: Option<bool>,
    },
    Begins,
    /// Without a lock, that is tried again with a new connection.
    Cancelled {
        lock: Option<ShutdownLock>,
    },
}

/// The receiver of announcements is gone.
struct Unheard;

type Connection = Box<dyn ShutdownConnection>;

pub(super) struct Announcements {
    clock: Arc<dyn Clock>,
    service: Arc<dyn ShutdownService>,
    /// How long the pods may take.
    wanted: Duration,
    sender: mpsc::Sender<Announcement>,
    failures: LogThrottle,
    short_delay: LogThrottle,
}

impl Announcements {
    pub(super) fn new(ports: &ShutdownPorts, wanted: Duration, sender: mpsc::Sender<Announcement>) -> Self {
        Self {
            clock: Arc::clone(&ports.clock),
            service: Arc::clone(&ports.service),
            wanted,
            sender,
            failures: LogThrottle::default(),
            short_delay: LogThrottle::default(),
        }
    }

    pub(super) async fn run(mut self) {
        let mut pause = FIRST_PAUSE;
        loop {
            match self.attach().await {
                Ok((connection, attached)) => {
                    pause = FIRST_PAUSE;
                    self.failures.end();
                    tracing::info!("The machine's shutdowns are followed");
                    let heard = async {
                        self.send(attached).await?;
                        self.listen(connection).await
                    };
                    if let Err(Unheard) = heard.await {
                        return;
                    }
                    self.sleep(FIRST_PAUSE).await;
                }
                Err(error) => {
                    if self.failures.is_due(&error.to_string(), self.clock.moment()) {
                        tracing::error!(
                            %error,
                            "The machine's shutdowns cannot be followed, so that pods do not end gracefully with it; it is tried again"
                        );
                    }
                    self.sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
            if self.sender.is_closed() {
                return;
            }
        }
    }

    async fn sleep(&self, pause: Duration) {
        // Both arms can be dropped: nothing is taken from either.
        tokio::select! {
            biased;
            () = self.sender.closed() => {}
            () = self.clock.sleep(pause) => {}
        }
    }

    async fn send(&self, announcement: Announcement) -> Result<(), Unheard> {
        self.sender.send(announcement).await.map_err(|_| Unheard)
    }

    async fn attach(&mut self) -> Result<(Connection, Announcement), ShutdownError> {
        let connection = self.service.connect().await?;
        self.settle_delay(connection.as_ref()).await;
        // Before the lock: one that is granted after a shutdown was seen would hold it up for nothing.
        let is_shutting_down = connection.is_shutting_down().await.ok();
        let lock = match connection.take_lock().await {
            Ok(lock) => Some(lock),
            Err(_) if is_shutting_down == Some(true) => None,
            Err(error) => return Err(error),
        };
        let attached = Announcement::Attached {
            lock,
            is_shutting_down,
        };
        Ok((connection, attached))
    }

    /// Passes on what the service announces, until the connection is lost.
    async fn listen(&self, mut connection: Connection) -> Result<(), Unheard> {
        loop {
            // Both arms can be dropped: news stay until they are taken.
            let news = tokio::select! {
                biased;
                () = self.sender.closed() => return Err(Unheard),
                news = connection.next() => news,
            };
            match news {
                Some(ShutdownNews::Begins) => self.send(Announcement::Begins).await?,
                Some(ShutdownNews::Cancelled) => {
                    let lock = connection.take_lock().await;
                    if let Err(error) = &lock {
                        tracing::warn!(%error, "The lock on the machine's shutdown cannot be taken anew; it is tried again");
                    }
                    let is_locked = lock.is_ok();
                    self.send(Announcement::Cancelled { lock: lock.ok() }).await?;
                    if !is_locked {
                        return Ok(());
                    }
                }
                Some(ShutdownNews::ServiceRestarted) => {
                    tracing::info!(
                        "The service that shuts the machine down was restarted; the lock is taken anew"
                    );
                    return Ok(());
                }
                None => {
                    tracing::warn!("The connection to the service that shuts the machine down is lost");
                    return Ok(());
                }
            }
        }
    }

    /// Raises the longest delay if the pods may take longer. A lock that delays for too short a time is better than none.
    async fn settle_delay(&mut self, connection: &dyn ShutdownConnection) {
        let Err(error) = self.raise_delay(connection).await else {
            self.short_delay.end();
            return;
        };
        if self.short_delay.is_due(&error.to_string(), self.clock.moment()) {
            tracing::warn!(
                %error,
                wanted_s = self.wanted.as_secs(),
                "The machine's shutdown may not wait for as long as the pods may take"
            );
        }
    }

    async fn raise_delay(&self, connection: &dyn ShutdownConnection) -> Result<(), ShutdownError> {
        let mut longest = connection.longest_delay().await?;
        if longest >= self.wanted {
            return Ok(());
        }
        self.service.allow_delay(self.wanted).await?;
        connection.reload().await?;
        let mut pause = FIRST_DELAY_PAUSE;
        for attempt in 1..=DELAY_TRIES {
            longest = connection.longest_delay().await?;
            if longest >= self.wanted {
                return Ok(());
            }
            if attempt < DELAY_TRIES {
                self.clock.sleep(pause).await;
                pause *= 2;
            }
        }
        Err(ShutdownError(format!(
            "InhibitDelayMaxSec of logind stays at {} s",
            longest.as_secs()
        )))
    }
}
