//! The handle of the observer, and the requests that it sends.

use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt};
use rubelet_model::observation::{PodObservation, PodUid};
use rubelet_ports::{Moment, RuntimeError, RuntimeErrorKind};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};

/// The names of tables that grow with the pods, and how many entries each has.
pub(crate) type TableSizes = Vec<(&'static str, usize)>;

pub(super) type Look = Result<Arc<PodObservation>, RuntimeError>;
pub(super) type Everything = Result<Vec<Arc<PodObservation>>, RuntimeError>;

pub(super) enum Request {
    /// A look that began at `after` or later.
    Look {
        uid: PodUid,
        after: Moment,
        reply: oneshot::Sender<Look>,
    },
    /// A job works on the pod and looks itself: hints about the pod can wait.
    Busy {
        uid: PodUid,
    },
    Idle {
        uid: PodUid,
    },
    /// The facts of the pod's containers have changed at `at`, though their states may not have.
    Outdate {
        uid: PodUid,
        at: Moment,
    },
    /// How many entries each table has.
    Tables {
        reply: oneshot::Sender<TableSizes>,
    },
    /// Everything, after a new list.
    All {
        reply: oneshot::Sender<Everything>,
    },
}

#[derive(Clone)]
pub(crate) struct ObserverHandle {
    pub(super) requests: mpsc::Sender<Request>,
}

impl ObserverHandle {
    /// The pod as it was at `after` or later.
    pub(crate) async fn look(&self, uid: &PodUid, after: Moment) -> Look {
        let (reply, answer) = oneshot::channel();
        let request = Request::Look {
            uid: uid.clone(),
            after,
            reply,
        };
        if self.requests.send(request).await.is_err() {
            return Err(gone());
        }
        answer.await.unwrap_or_else(|_| Err(gone()))
    }

    /// A look from now on reads the status of every container of the pod that runs.
    pub(crate) async fn outdate(&self, uid: &PodUid, at: Moment) {
        let request = Request::Outdate { uid: uid.clone(), at };
        // An observer that is gone takes the agent with it.
        let _ = self.requests.send(request).await;
    }

    pub(crate) async fn busy(&self, uid: &PodUid) {
        // An observer that is gone takes the agent with it.
        let _ = self.requests.send(Request::Busy { uid: uid.clone() }).await;
    }

    /// The end of a job that [`Self::busy`] announced. Returns what is left to wait for when the channel is full.
    pub(crate) fn idle(&self, uid: &PodUid) -> Option<BoxFuture<'static, ()>> {
        let request = Request::Idle { uid: uid.clone() };
        match self.requests.try_send(request) {
            Ok(()) | Err(TrySendError::Closed(_)) => None,
            Err(TrySendError::Full(request)) => {
                let requests = self.requests.clone();
                Some(async move { requests.send(request).map(|_| ()).await }.boxed())
            }
        }
    }

    pub(crate) async fn all(&self) -> Everything {
        let (reply, answer) = oneshot::channel();
        if self.requests.send(Request::All { reply }).await.is_err() {
            return Err(gone());
        }
        answer.await.unwrap_or_else(|_| Err(gone()))
    }

    /// How many entries each table has; nothing when the observer is gone.
    pub(crate) async fn table_sizes(&self) -> TableSizes {
        let (reply, answer) = oneshot::channel();
        // An observer that is gone drops the question, and with it the answer.
        let _ = self.requests.send(Request::Tables { reply }).await;
        answer.await.unwrap_or_default()
    }
}

fn gone() -> RuntimeError {
    RuntimeError::new("observe", "", RuntimeErrorKind::Cancelled, "rubelet is stopping")
}
