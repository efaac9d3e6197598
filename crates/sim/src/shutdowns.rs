//! The simulated service that shuts the machine down.
//!
//! Owns its state: whether it runs, what it has announced, which locks are held, and for how long they may delay a shutdown. It
//! answers at once. Whether the machine goes off is for the caller to decide.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use rubelet_ports::{ShutdownConnection, ShutdownError, ShutdownLock, ShutdownNews, ShutdownService};
use tokio::sync::mpsc;

/// As systemd has it.
const USUAL_DELAY: Duration = Duration::from_secs(5);

struct State {
    is_up: bool,
    is_shutting_down: bool,
    longest_delay: Duration,
    /// What the settings say, for when they are read.
    written_delay: Option<Duration>,
    /// How many more questions are answered before the settings are read.
    delays_reading: u32,
    are_settings_read_only: bool,
    refuses_locks: bool,
    locks: usize,
    /// A lock belongs to one process of the service.
    process: u64,
    connections: Vec<mpsc::UnboundedSender<ShutdownNews>>,
    connected: usize,
}

/// Handles of one service.
#[derive(Clone)]
pub struct SimShutdowns {
    state: Arc<Mutex<State>>,
}

impl Default for SimShutdowns {
    fn default() -> Self {
        let state = State {
            is_up: true,
            is_shutting_down: false,
            longest_delay: USUAL_DELAY,
            written_delay: None,
            delays_reading: 0,
            are_settings_read_only: false,
            refuses_locks: false,
            locks: 0,
            process: 0,
            connections: Vec::new(),
            connected: 0,
        };
        Self {
            state: Arc::new(Mutex::new(state)),
        }
    }
}

impl SimShutdowns {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn announce(&self, news: ShutdownNews) {
        self.lock()
            .connections
            .retain(|connection| connection.send(news).is_ok());
    }

    /// The machine is to shut down.
    pub fn begin(&self) {
        self.lock().is_shutting_down = true;
        self.announce(ShutdownNews::Begins);
    }

    /// The machine goes on.
    pub fn cancel(&self) {
        self.lock().is_shutting_down = false;
        self.announce(ShutdownNews::Cancelled);
    }

    /// Another process serves, which knows no locks.
    pub fn restart(&self) {
        {
            let mut state = self.lock();
            state.process += 1;
            state.locks = 0;
        }
        self.announce(ShutdownNews::ServiceRestarted);
    }

    /// All connections are lost. While it is down, none can be made.
    pub fn cut(&self, stays_down: bool) {
        let mut state = self.lock();
        state.is_up = !stays_down;
        state.connections.clear();
    }

    pub fn set_up(&self) {
        self.lock().is_up = true;
    }

    /// The state changes and nobody hears of it.
    pub fn set_shutting_down(&self, is_shutting_down: bool) {
        self.lock().is_shutting_down = is_shutting_down;
    }

    /// How many questions for the longest delay are answered before new settings are read.
    pub fn delay_reading(&self, questions: u32) {
        self.lock().delays_reading = questions;
    }

    pub fn make_settings_read_only(&self) {
        self.lock().are_settings_read_only = true;
    }

    pub fn refuse_locks(&self, refuses: bool) {
        self.lock().refuses_locks = refuses;
    }

    #[must_use]
    pub fn locks(&self) -> usize {
        self.lock().locks
    }

    #[must_use]
    pub fn is_shutting_down(&self) -> bool {
        self.lock().is_shutting_down
    }

    #[must_use]
    pub fn longest_delay(&self) -> Duration {
        self.lock().longest_delay
    }

    /// How many connections were made.
    #[must_use]
    pub fn connected(&self) -> usize {
        self.lock().connected
    }
}

#[async_trait]
impl ShutdownService for SimShutdowns {
    async fn connect(&self) -> Result<Box<dyn ShutdownConnection>, ShutdownError> {
        let mut state = self.lock();
        if !state.is_up {
            return Err(ShutdownError("nothing listens".to_owned()));
        }
        state.connected += 1;
        let (sender, news) = mpsc::unbounded_channel();
        state.connections.push(sender);
        Ok(Box::new(SimConnection {
            service: self.clone(),
            news,
        }))
    }

    async fn allow_delay(&self, delay: Duration) -> Result<(), ShutdownError> {
        let mut state = self.lock();
        if state.are_settings_read_only {
            return Err(ShutdownError("read-only file system".to_owned()));
        }
        state.written_delay = Some(delay);
        Ok(())
    }
}

struct SimConnection {
    service: SimShutdowns,
    news: mpsc::UnboundedReceiver<ShutdownNews>,
}

/// Counts as long as the process that granted it serves.
struct Held {
    service: SimShutdowns,
    process: u64,
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut state = self.service.lock();
        if state.process == self.process {
            state.locks -= 1;
        }
    }
}

#[async_trait]
impl ShutdownConnection for SimConnection {
    async fn longest_delay(&self) -> Result<Duration, ShutdownError> {
        let mut state = self.service.lock();
        match state.delays_reading.checked_sub(1) {
            Some(left) => state.delays_reading = left,
            None => {
                if let Some(delay) = state.written_delay.take() {
                    state.longest_delay = delay;
                }
            }
        }
        Ok(state.longest_delay)
    }

    async fn reload(&self) -> Result<(), ShutdownError> {
        Ok(())
    }

    async fn take_lock(&self) -> Result<ShutdownLock, ShutdownError> {
        let mut state = self.service.lock();
        if state.is_shutting_down || state.refuses_locks {
            return Err(ShutdownError(
                "The operation inhibition has been requested for is already running".to_owned(),
            ));
        }
        state.locks += 1;
        Ok(ShutdownLock::new(Held {
            service: self.service.clone(),
            process: state.process,
        }))
    }

    async fn is_shutting_down(&self) -> Result<bool, ShutdownError> {
        Ok(self.service.lock().is_shutting_down)
    }

    async fn next(&mut self) -> Option<ShutdownNews> {
        self.news.recv().await
    }
}
