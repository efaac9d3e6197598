//! Connections for watches.
//!
//! Owns how watches are spread: an API server allows about a hundred streams per connection, so a new connection is opened
//! before that. Connections without watches are closed.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::channel::Channel;
use crate::dial::Dialler;
use crate::server::Liveness;

const WATCHES_PER_CONNECTION: usize = 80;

pub(crate) struct WatchPool {
    dialler: Dialler,
    liveness: Liveness,
    connections: Mutex<Vec<Arc<WatchConnection>>>,
}

struct WatchConnection {
    channel: Channel,
    watches: AtomicUsize,
}

/// The right to one watch.
pub(crate) struct Seat {
    connection: Arc<WatchConnection>,
}

impl WatchPool {
    pub(crate) fn new(dialler: &Dialler, liveness: Liveness) -> Self {
        Self {
            dialler: dialler.clone(),
            liveness,
            connections: Mutex::default(),
        }
    }

    pub(crate) fn seat(&self) -> Seat {
        // A panic while the lock is held would leave nothing half-changed here.
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        let is_free = |connection: &&Arc<WatchConnection>| {
            connection.watches.load(Ordering::Acquire) < WATCHES_PER_CONNECTION
        };
        let found = connections.iter().find(is_free).map(Arc::clone);
        let connection = found.unwrap_or_else(|| {
            let new = Arc::new(WatchConnection {
                channel: Channel::new(&self.dialler, self.liveness, None),
                watches: AtomicUsize::new(0),
            });
            connections.push(Arc::clone(&new));
            new
        });
        connection.watches.fetch_add(1, Ordering::AcqRel);
        connections.retain(|connection| connection.watches.load(Ordering::Acquire) > 0);
        Seat { connection }
    }

    #[cfg(test)]
    fn count(&self) -> usize {
        self.connections.lock().unwrap().len()
    }
}

impl Seat {
    pub(crate) fn channel(&self) -> &Channel {
        &self.connection.channel
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.connection.watches.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dial::Route;
    use crate::identity::ClientIdentity;

    #[tokio::test]
    async fn watches_are_spread_and_empty_connections_go() {
        let dialler = Dialler {
            route: Route::new(None, None),
            server_name: None,
            tls: None,
            identity: ClientIdentity::none(),
        };
        let pool = WatchPool::new(&dialler, Liveness::default());
        let mut seats: Vec<Seat> = (0..WATCHES_PER_CONNECTION).map(|_| pool.seat()).collect();
        assert_eq!(pool.count(), 1);
        seats.push(pool.seat());
        assert_eq!(pool.count(), 2);
        // A free seat on the first is used before the second fills.
        seats.remove(0);
        let seat = pool.seat();
        assert_eq!(pool.count(), 2);
        drop(seats);
        let last = pool.seat();
        assert_eq!(pool.count(), 1);
        drop((seat, last));
    }
}
