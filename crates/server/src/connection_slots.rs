//! The bounded number of connections of one port.
//!
//! Owns the slots. A connection that is being served keeps its slot. When all are taken, an incoming connection evicts one that has
//! been idle for a second: one that was never authorized before one that was, and among equal ones the longest idle. A client that has
//! not read its answer for ten seconds comes last. So thousands of connections that send nothing, half a request or unauthorized
//! requests keep no client out.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::Instant;

use crate::connection_phase::{ConnectionPhase, Waiting};

/// A connection that is new, or was just answered, is not closed: its next request may be in transit.
const PATIENCE: Duration = Duration::from_secs(1);
/// An answer that is cut off is lost: a slow reader may pause for a while.
const STALL_PATIENCE: Duration = Duration::from_secs(10);
/// How often a new connection looks for one that waits too long.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

pub(crate) struct ConnectionSlots {
    permits: Arc<Semaphore>,
    // Held for a few assignments and one walk, never across an await.
    connections: Mutex<Connections>,
}

#[derive(Default)]
struct Connections {
    next_id: u64,
    by_id: BTreeMap<u64, Connection>,
}

struct Connection {
    phase: Arc<ConnectionPhase>,
    /// Gone once it was used.
    leave: Option<oneshot::Sender<()>>,
}

impl ConnectionSlots {
    pub(crate) fn new(permits: usize) -> Arc<Self> {
        Arc::new(Self {
            permits: Arc::new(Semaphore::new(permits)),
            connections: Mutex::default(),
        })
    }

    fn connections(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a slot; while every connection is being served there is none.
    pub(crate) async fn enter(self: &Arc<Self>) -> Slot {
        let permit = loop {
            if let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() {
                break Some(permit);
            }
            self.close_longest_waiting(Instant::now());
            tokio::select! {
                biased;
                // The semaphore is never closed.
                permit = Arc::clone(&self.permits).acquire_owned() => break permit.ok(),
                // Cancel-safe: it is only time to look again which connection waits too long.
                () = tokio::time::sleep(LOOK_INTERVAL) => {}
            }
        };
        let (sender, leave) = oneshot::channel();
        let phase = ConnectionPhase::new();
        let mut connections = self.connections();
        connections.next_id += 1;
        let id = connections.next_id;
        let connection = Connection {
            phase: Arc::clone(&phase),
            leave: Some(sender),
        };
        connections.by_id.insert(id, connection);
        Slot {
            phase,
            leave: Some(leave),
            _registration: Registration {
                slots: Some((Arc::clone(self), id)),
                _permit: permit,
            },
        }
    }

    /// Closes the connection that has been waiting longest, if that is long enough.
    fn close_longest_waiting(&self, now: Instant) {
        let mut connections = self.connections();
        let waiting = connections
            .by_id
            .values_mut()
            .filter(|connection| connection.leave.is_some());
        let longest = waiting
            .filter_map(|connection| Some((connection.phase.waiting()?, connection)))
            .filter(|((waiting, since), _)| now.saturating_duration_since(*since) >= patience_with(*waiting))
            .min_by_key(|(waiting, _)| *waiting);
        if let Some((_, connection)) = longest
            && let Some(leave) = connection.leave.take()
        {
            // A connection that has just ended frees its slot anyway.
            let _ = leave.send(());
        }
    }
}

fn patience_with(waiting: Waiting) -> Duration {
    match waiting {
        Waiting::Silent | Waiting::Unauthorized | Waiting::Known => PATIENCE,
        Waiting::Stalled => STALL_PATIENCE,
    }
}

/// A connection's slot.
pub(crate) struct Slot {
    pub(crate) phase: Arc<ConnectionPhase>,
    /// Comes when another connection needs the slot.
    leave: Option<oneshot::Receiver<()>>,
    _registration: Registration,
}

struct Registration {
    slots: Option<(Arc<ConnectionSlots>, u64)>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Slot {
    /// One that no other connection needs.
    #[cfg(test)]
    pub(crate) fn of_its_own() -> Self {
        Self {
            phase: ConnectionPhase::new(),
            leave: None,
            _registration: Registration {
                slots: None,
                _permit: None,
            },
        }
    }

    /// Ends when the slot is needed. Cancel-safe: the message stays in the channel.
    pub(crate) async fn needed(&mut self) {
        if let Some(leave) = &mut self.leave
            && leave.await.is_ok()
        {
            // A channel that has delivered must not be polled again.
            self.leave = None;
            return;
        }
        std::future::pending::<()>().await;
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some((slots, id)) = self.slots.take() {
            slots.connections().by_id.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::connection_phase::TrackedStream;

    fn is_needed(slot: &mut Slot) -> bool {
        slot.needed().now_or_never().is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn the_one_that_waits_longest_makes_room() {
        let slots = ConnectionSlots::new(3);
        let mut busy = slots.enter().await;
        busy.phase.admitted();
        let mut known = slots.enter().await;
        known.phase.admitted();
        known.phase.answer_ended();
        tokio::time::advance(PATIENCE).await;
        let mut silent = slots.enter().await;
        let begun = Instant::now();
        // The silent one came last, but has never sent a request. It gets its time all the same.
        known.phase.admitted();
        let (fourth, ()) = tokio::join!(slots.enter(), async {
            silent.needed().await;
            assert!(begun.elapsed() >= PATIENCE);
            assert!(!is_needed(&mut busy) && !is_needed(&mut known));
            drop(silent);
        });
        fourth.phase.admitted();
        known.phase.answer_ended();
        let (fifth, ()) = tokio::join!(slots.enter(), async {
            known.needed().await;
            assert!(!is_needed(&mut busy));
            drop(known);
        });
        fifth.phase.admitted();
        // Every connection is being served: none is closed.
        let waiting = tokio::time::timeout(10 * PATIENCE, slots.enter());
        assert!(waiting.await.is_err() && !is_needed(&mut busy));
        drop((busy, fourth));
        slots.enter().await;
    }

    #[tokio::test(start_paused = true)]
    async fn requests_that_nobody_has_allowed_and_answers_that_nobody_takes_make_room() {
        let slots = ConnectionSlots::new(2);
        let mut reader = slots.enter().await;
        reader.phase.admitted();
        let (mut client, server) = tokio::io::duplex(1);
        let mut stream = TrackedStream::new(server, Arc::clone(&reader.phase));
        assert!(stream.write_all(b"answer").now_or_never().is_none());
        let mut stranger = slots.enter().await;
        stranger.phase.request_began();
        tokio::time::advance(STALL_PATIENCE).await;
        // The reader has more to lose.
        let (third, ()) = tokio::join!(slots.enter(), async {
            stranger.needed().await;
            assert!(!is_needed(&mut reader));
            drop(stranger);
        });
        third.phase.admitted();
        // One that reads on, however slowly, stays.
        client.read_u8().await.unwrap();
        assert!(stream.write_all(b"answer").now_or_never().is_none());
        let waiting = tokio::time::timeout(STALL_PATIENCE / 2, slots.enter());
        assert!(waiting.await.is_err() && !is_needed(&mut reader));
        let begun = Instant::now();
        tokio::join!(slots.enter(), async {
            reader.needed().await;
            assert!(begun.elapsed() < STALL_PATIENCE);
            drop(reader);
        });
    }
}
