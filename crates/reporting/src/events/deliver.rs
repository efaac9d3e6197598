//! Sends events, one after the other.
//!
//! Owns the retries. While the server cannot be reached everything behind the first event waits, as upstream's does: the order
//! stays, and the queue's bound is the only loss.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Event;
use rubelet_ports::api::{ApiError, ApiErrorKind};
use rubelet_ports::within;
use tokio::sync::mpsc;

use super::EventShared;
use super::correlate::{Correlated, Correlator};
use crate::figures::count;

const MAX_TRIES: u32 = 12;
const RETRY_PAUSE: Duration = Duration::from_secs(10);
const CALL_DEADLINE: Duration = Duration::from_secs(10);
/// The API server's message for a namespace that takes nothing new.
const NAMESPACE_ENDS: &str = "because it is being terminated";

impl EventShared {
    pub(super) async fn deliver_all(self: Arc<Self>, mut events: mpsc::Receiver<Event>) {
        let mut correlator = Correlator::new();
        let mut last_problem = String::new();
        // The queue is closed: nothing can be recorded any more.
        while let Some(event) = events.recv().await {
            match correlator.correlate(event, self.ports.clock.moment()) {
                None => count(&self.counters.filtered),
                Some(sent) => match self.deliver(&sent).await {
                    Ok(answer) => {
                        last_problem.clear();
                        count(&self.counters.sent);
                        correlator.delivered(&sent, &answer);
                    }
                    Err(error) => self.give_up(&sent, &error, &mut last_problem),
                },
            }
        }
    }

    async fn deliver(&self, sent: &Correlated) -> Result<Event, ApiError> {
        let mut tries = 0;
        loop {
            let error = match self.try_once(sent).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            tries += 1;
            let pause = match error.retry_after() {
                _ if tries == MAX_TRIES => return Err(error),
                Some(wait) => wait.min(RETRY_PAUSE * 6),
                // The first pause is chance, so that a server that comes back does not meet all its nodes at once.
                _ if may_pass(&error) && tries == 1 => self.ports.randomness.part_of(RETRY_PAUSE),
                _ if may_pass(&error) => RETRY_PAUSE,
                _ => return Err(error),
            };
            self.ports.clock.sleep(pause).await;
        }
    }

    async fn try_once(&self, sent: &Correlated) -> Result<Event, ApiError> {
        let event = &sent.event;
        let metadata = &event.metadata;
        let namespace = metadata.namespace.as_deref().unwrap_or_default();
        let name = metadata.name.as_deref().unwrap_or_default();
        let call = async {
            if let Some(patch) = &sent.patch {
                let patched = self
                    .ports
                    .writer
                    .patch_event(namespace, name, patch.clone())
                    .await;
                // The server forgets events after a while; then it is a new one.
                if !matches!(&patched, Err(error) if error.kind == ApiErrorKind::NotFound) {
                    return patched;
                }
            }
            self.ports.writer.create_event(event).await
        };
        let called = within(self.ports.clock.as_ref(), CALL_DEADLINE, call).await;
        called.unwrap_or_else(|elapsed| {
            let what = format!("send event {namespace}/{name}");
            Err(ApiError::new(
                what,
                ApiErrorKind::DeadlineExceeded,
                elapsed.to_string(),
            ))
        })
    }

    /// Logs a problem once, not once for each event.
    fn give_up(&self, sent: &Correlated, error: &ApiError, last_problem: &mut String) {
        count(&self.counters.failed);
        let object = &sent.event.involved_object;
        let (kind, name) = (object.kind.as_deref(), object.name.as_deref());
        let (namespace, reason) = (object.namespace.as_deref(), sent.event.reason.as_deref());
        // Not worth a line: a namespace that is being removed, and an event whose first try was stored.
        let is_usual = error.kind == ApiErrorKind::AlreadyExists || error.message.contains(NAMESPACE_ENDS);
        if is_usual || *last_problem == error.message {
            tracing::debug!(kind, namespace, name, reason, %error, "The API server does not take an event");
        } else {
            tracing::warn!(kind, namespace, name, reason, %error, "The API server does not take an event");
            last_problem.clone_from(&error.message);
        }
    }
}

fn may_pass(error: &ApiError) -> bool {
    error.is_passing() || error.kind == ApiErrorKind::Malformed
}
