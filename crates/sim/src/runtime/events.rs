//! The stream of container events: hints that may be late, doubled, out of order or lost.

use futures_util::stream;
use rubelet_ports::{Clock, EventStream, RuntimeError, RuntimeErrorKind};
use rubelet_wire::cri::v1;
use tokio::sync::mpsc;

use super::state::Failure;
use super::{ENDPOINT, SimRuntime};

const METHOD: &str = "GetContainerEvents";

impl SimRuntime {
    /// Tells the subscribers that something happened to a container or a sandbox.
    pub(super) fn emit(&self, id: &str, kind: v1::ContainerEventType) {
        let sandbox = self
            .lock()
            .containers
            .get(id)
            .map(|container| container.sandbox.clone());
        self.emit_in(sandbox.as_deref().unwrap_or(id), id, kind);
    }

    /// The same of a container that is gone, or of a sandbox itself.
    pub(super) fn emit_in(&self, sandbox: &str, id: &str, kind: v1::ContainerEventType) {
        let subscribers = {
            let mut state = self.lock();
            state.subscribers.retain(|subscriber| !subscriber.is_closed());
            state.subscribers.clone()
        };
        for subscriber in subscribers {
            let delays = self.inner.dice.with(|dice| {
                let faults = self.faults();
                if dice.per_myriad(faults.event_is_lost) {
                    return Vec::new();
                }
                let copies = 1 + usize::from(dice.per_myriad(faults.event_is_doubled));
                (0..copies)
                    .map(|_| dice.millis(0, faults.event_delay_ms))
                    .collect()
            });
            for delay in delays {
                let (subscriber, event) = (subscriber.clone(), self.event(sandbox, id, kind));
                let pause = self.inner.executor.sleep(delay);
                let send = async move {
                    pause.await;
                    // Nobody listens any more: the event is lost, as on a closed connection.
                    let _ = subscriber.send(Ok(event));
                };
                self.in_background("event", Box::pin(send));
            }
        }
    }

    fn event(&self, sandbox_id: &str, id: &str, kind: v1::ContainerEventType) -> v1::ContainerEventResponse {
        let created_at = self.wall_nanos();
        let state = self.lock();
        v1::ContainerEventResponse {
            container_id: id.to_owned(),
            container_event_type: kind as i32,
            created_at,
            pod_sandbox_status: state
                .sandboxes
                .get(sandbox_id)
                .map(|sandbox| sandbox.status(sandbox_id)),
            containers_statuses: state
                .containers_of(sandbox_id)
                .map(|(id, container)| container.status(id))
                .collect(),
        }
    }

    pub(super) fn subscribe(&self) -> EventStream {
        let (sender, receiver) = mpsc::unbounded_channel();
        let refusal = {
            let mut state = self.lock();
            if !state.has_events {
                Some(Failure::new(
                    RuntimeErrorKind::Unimplemented,
                    "method GetContainerEvents not implemented",
                ))
            } else if state.is_down {
                Some(Failure::new(RuntimeErrorKind::Unavailable, "connection refused"))
            } else {
                state.subscribers.push(sender.clone());
                None
            }
        };
        if let Some(failure) = refusal {
            // The receiver is here, so that sending cannot fail.
            let _ = sender.send(Err(failure));
        }
        Box::pin(stream::unfold(receiver, |mut receiver| async move {
            let item = receiver.recv().await?;
            let item =
                item.map_err(|failure| RuntimeError::new(METHOD, ENDPOINT, failure.kind, &failure.message));
            Some((item, receiver))
        }))
    }
}
