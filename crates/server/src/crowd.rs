//! Who has a place on a port, and who gives it up when there are too many.
//!
//! Owns the number of connections of one port. Whoever gets an answer and takes it keeps the place; when all places are taken, a
//! newcomer gets that of one who has been waiting for long enough: first of all of one that was never let in, and of these the
//! one that waits longest. So thousands of connections that say nothing, or half a request, or something that they may not ask,
//! keep nobody out.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::Instant;

use crate::pace::{Pace, Waiting};

/// Whoever has just come, or has just been answered, is not sent away: the next request may be on its way.
const PATIENCE: Duration = Duration::from_secs(1);
/// An answer that is cut off is lost: whoever takes it slowly may pause for a while.
const STALL_PATIENCE: Duration = Duration::from_secs(10);
/// How often a newcomer looks for somebody who waits too long.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

pub(crate) struct Crowd {
    places: Arc<Semaphore>,
    // Held for a few assignments and one walk, never across an await.
    members: Mutex<Members>,
}

#[derive(Default)]
struct Members {
    next_id: u64,
    by_id: BTreeMap<u64, Member>,
}

struct Member {
    pace: Arc<Pace>,
    /// Gone once it was used.
    leave: Option<oneshot::Sender<()>>,
}

impl Crowd {
    pub(crate) fn new(places: usize) -> Arc<Self> {
        Arc::new(Self {
            places: Arc::new(Semaphore::new(places)),
            members: Mutex::default(),
        })
    }

    fn members(&self) -> MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a place; where everybody is being served there is none to be had.
    pub(crate) async fn enter(self: &Arc<Self>) -> Place {
        let permit = loop {
            if let Ok(permit) = Arc::clone(&self.places).try_acquire_owned() {
                break Some(permit);
            }
            self.send_one_away(Instant::now());
            tokio::select! {
                biased;
                // The semaphore is never closed.
                permit = Arc::clone(&self.places).acquire_owned() => break permit.ok(),
                // Cancel-safe: it is only time to look again who waits too long.
                () = tokio::time::sleep(LOOK_INTERVAL) => {}
            }
        };
        let (sender, leave) = oneshot::channel();
        let pace = Pace::new();
        let mut members = self.members();
        members.next_id += 1;
        let id = members.next_id;
        let member = Member {
            pace: Arc::clone(&pace),
            leave: Some(sender),
        };
        members.by_id.insert(id, member);
        Place {
            pace,
            leave: Some(leave),
            _seat: Seat {
                crowd: Some((Arc::clone(self), id)),
                _permit: permit,
            },
        }
    }

    /// Sends the one away that has been waiting longest, if that is long enough.
    fn send_one_away(&self, now: Instant) {
        let mut members = self.members();
        let waiting = members.by_id.values_mut().filter(|member| member.leave.is_some());
        let longest = waiting
            .filter_map(|member| Some((member.pace.waiting()?, member)))
            .filter(|((waiting, since), _)| now.saturating_duration_since(*since) >= patience_with(*waiting))
            .min_by_key(|(waiting, _)| *waiting);
        if let Some((_, member)) = longest
            && let Some(leave) = member.leave.take()
        {
            // A connection that has just ended gives its place up anyway.
            let _ = leave.send(());
        }
    }
}

fn patience_with(waiting: Waiting) -> Duration {
    match waiting {
        Waiting::Silent | Waiting::Stranger | Waiting::Known => PATIENCE,
        Waiting::Stalled => STALL_PATIENCE,
    }
}

/// A connection's place.
pub(crate) struct Place {
    pub(crate) pace: Arc<Pace>,
    /// Comes when the place is needed for somebody else.
    leave: Option<oneshot::Receiver<()>>,
    _seat: Seat,
}

struct Seat {
    crowd: Option<(Arc<Crowd>, u64)>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Place {
    /// One that nobody else wants.
    #[cfg(test)]
    pub(crate) fn of_its_own() -> Self {
        Self {
            pace: Pace::new(),
            leave: None,
            _seat: Seat {
                crowd: None,
                _permit: None,
            },
        }
    }

    /// Ends when the place is needed. Cancel-safe: what was said stays said.
    pub(crate) async fn needed(&mut self) {
        if let Some(leave) = &mut self.leave
            && leave.await.is_ok()
        {
            // Said once: a channel must not be asked again.
            self.leave = None;
            return;
        }
        std::future::pending::<()>().await;
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if let Some((crowd, id)) = self.crowd.take() {
            crowd.members().by_id.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::pace::PacedStream;

    fn is_needed(place: &mut Place) -> bool {
        place.needed().now_or_never().is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn the_one_that_waits_longest_makes_room() {
        let crowd = Crowd::new(3);
        let mut busy = crowd.enter().await;
        busy.pace.admitted();
        let mut known = crowd.enter().await;
        known.pace.admitted();
        known.pace.answer_ended();
        tokio::time::advance(PATIENCE).await;
        let mut silent = crowd.enter().await;
        let begun = Instant::now();
        // The silent one came last, but has never asked for anything. It is given its time all the same.
        known.pace.admitted();
        let (fourth, ()) = tokio::join!(crowd.enter(), async {
            silent.needed().await;
            assert!(begun.elapsed() >= PATIENCE);
            assert!(!is_needed(&mut busy) && !is_needed(&mut known));
            drop(silent);
        });
        fourth.pace.admitted();
        known.pace.answer_ended();
        let (fifth, ()) = tokio::join!(crowd.enter(), async {
            known.needed().await;
            assert!(!is_needed(&mut busy));
            drop(known);
        });
        fifth.pace.admitted();
        // Everybody is being served: nobody has to go.
        let waiting = tokio::time::timeout(10 * PATIENCE, crowd.enter());
        assert!(waiting.await.is_err() && !is_needed(&mut busy));
        drop((busy, fourth));
        crowd.enter().await;
    }

    #[tokio::test(start_paused = true)]
    async fn requests_that_nobody_has_allowed_and_answers_that_nobody_takes_make_room() {
        let crowd = Crowd::new(2);
        let mut reader = crowd.enter().await;
        reader.pace.admitted();
        let (mut client, server) = tokio::io::duplex(1);
        let mut stream = PacedStream::new(server, Arc::clone(&reader.pace));
        assert!(stream.write_all(b"answer").now_or_never().is_none());
        let mut stranger = crowd.enter().await;
        stranger.pace.request_began();
        tokio::time::advance(STALL_PATIENCE).await;
        // The reader has more to lose.
        let (third, ()) = tokio::join!(crowd.enter(), async {
            stranger.needed().await;
            assert!(!is_needed(&mut reader));
            drop(stranger);
        });
        third.pace.admitted();
        // One that reads on, however slowly, stays.
        client.read_u8().await.unwrap();
        assert!(stream.write_all(b"answer").now_or_never().is_none());
        let waiting = tokio::time::timeout(STALL_PATIENCE / 2, crowd.enter());
        assert!(waiting.await.is_err() && !is_needed(&mut reader));
        let begun = Instant::now();
        tokio::join!(crowd.enter(), async {
            reader.needed().await;
            assert!(begun.elapsed() < STALL_PATIENCE);
            drop(reader);
        });
    }
}
