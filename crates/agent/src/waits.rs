//! Named waits: what a pod waits for, since when, and what went wrong last.
//!
//! Owns the register. Every await on a pod's path that can take long goes through [`Waits::named`], so that "why is it not
//! running" is only a view of it. It decides nothing.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use rubelet_model::Timestamp;
use rubelet_model::explanation::WaitExplanation;
use rubelet_model::message::{MAX_WAIT_BYTES, bound};
use rubelet_ports::{Clock, Moment};

/// How far it is, at the moment of the question.
pub(crate) type Progress = Box<dyn Fn() -> Option<String> + Send>;

struct Open {
    id: u64,
    what: String,
    progress: Option<Progress>,
    since: Timestamp,
    begun: Moment,
}

#[derive(Default)]
struct Register {
    open: Vec<Open>,
    next_id: u64,
    last_error: Option<String>,
}

/// The register of one pod. The lock is held for a few instructions, never across an await.
#[derive(Clone)]
pub(crate) struct Waits {
    clock: Arc<dyn Clock>,
    register: Arc<Mutex<Register>>,
}

impl Waits {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            register: Arc::default(),
        }
    }

    fn with<T>(&self, change: impl FnOnce(&mut Register) -> T) -> T {
        // A panic elsewhere leaves the register whole: every change is a single step.
        change(&mut self.register.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits for something that has its own end, such as a call with a deadline or a cancellation.
    pub(crate) async fn named<T>(&self, what: impl Into<String>, future: impl Future<Output = T>) -> T {
        let _open = self.open(what.into(), None);
        future.await
    }

    /// The same for something that can tell how far it is.
    pub(crate) async fn named_with_progress<T>(
        &self,
        what: String,
        progress: Progress,
        future: impl Future<Output = T>,
    ) -> T {
        let _open = self.open(what, Some(progress));
        future.await
    }

    fn open(&self, mut what: String, progress: Option<Progress>) -> OpenWait {
        bound(&mut what, MAX_WAIT_BYTES);
        let (since, begun) = (self.clock.now(), self.clock.moment());
        let id = self.with(|register| {
            let id = register.next_id;
            register.next_id += 1;
            register.open.push(Open {
                id,
                what,
                progress,
                since,
                begun,
            });
            id
        });
        OpenWait {
            waits: self.clone(),
            id,
        }
    }

    /// Remembers what went wrong, until something goes well.
    pub(crate) fn failed(&self, error: impl Into<String>) {
        let mut error = error.into();
        bound(&mut error, MAX_WAIT_BYTES);
        self.with(|register| register.last_error = Some(error));
    }

    pub(crate) fn succeeded(&self) {
        self.with(|register| register.last_error = None);
    }

    pub(crate) fn last_error(&self) -> Option<String> {
        self.with(|register| register.last_error.clone())
    }

    /// The innermost wait.
    pub(crate) fn current(&self) -> Option<WaitExplanation> {
        let now = self.clock.moment();
        self.with(|register| {
            let last_error = register.last_error.clone();
            register.open.last().map(|open| WaitExplanation {
                what: match open.progress.as_ref().and_then(|progress| progress()) {
                    Some(progress) => format!("{}: {progress}", open.what),
                    None => open.what.clone(),
                },
                since: open.since,
                age_seconds: now.since(open.begun).as_secs(),
                last_error,
            })
        })
    }
}

/// Closes its wait when it is dropped, so that a cancelled wait does not stay in the register.
struct OpenWait {
    waits: Waits,
    id: u64,
}

impl Drop for OpenWait {
    fn drop(&mut self) {
        let id = self.id;
        self.waits
            .with(|register| register.open.retain(|open| open.id != id));
    }
}
