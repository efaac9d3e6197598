//! Starting tasks, and what their panics mean.
//!
//! Owns the two kinds of tasks: a singleton whose panic ends the agent with a message, and a job whose panic is its outcome.
//! It must not know what the tasks do.

use std::any::Any;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use rubelet_ports::Spawner;
use tokio::sync::mpsc;

/// A job panicked; this is what it said.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the task panicked: {0}")]
pub(crate) struct Panicked(pub(crate) String);

#[derive(Clone)]
pub(crate) struct Supervisor {
    spawner: Arc<dyn Spawner>,
    fatal: mpsc::Sender<String>,
}

impl Supervisor {
    /// The receiver gets a sentence when the agent cannot go on.
    pub(crate) fn new(spawner: Arc<dyn Spawner>) -> (Self, mpsc::Receiver<String>) {
        let (fatal, receiver) = mpsc::channel(1);
        (Self { spawner, fatal }, receiver)
    }

    /// A task that the agent cannot live without.
    pub(crate) fn spawn(&self, name: &'static str, future: impl Future<Output = ()> + Send + 'static) {
        let fatal = self.fatal.clone();
        let guarded = AssertUnwindSafe(future).catch_unwind().map(move |result| {
            if let Err(payload) = result {
                // One message is enough: the agent ends with the first.
                let _ = fatal.try_send(format!("{name} panicked: {}", words(payload.as_ref())));
            }
        });
        self.spawner.spawn(name, guarded.boxed());
    }

    /// A task whose panic concerns only its own pod: `done` gets its result or its last words.
    pub(crate) fn spawn_job<T, D>(
        &self,
        name: &'static str,
        future: impl Future<Output = T> + Send + 'static,
        done: impl FnOnce(Result<T, Panicked>) -> D + Send + 'static,
    ) where
        T: Send + 'static,
        D: Future<Output = ()> + Send + 'static,
    {
        self.spawner.spawn(name, contained(future).then(done).boxed());
    }
}

/// Runs a future to its end. A panic in it is its result, so that the caller can go on with its other work.
pub(crate) async fn contained<T>(future: impl Future<Output = T>) -> Result<T, Panicked> {
    let result = AssertUnwindSafe(future).catch_unwind().await;
    result.map_err(|payload| Panicked(words(payload.as_ref())))
}

fn words(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}
