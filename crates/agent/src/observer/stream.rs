//! The runtime's stream of container events.
//!
//! Owns opening it, judging whether it works, and what an event hints at. An event carries no state.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::FutureExt;
use rubelet_model::Timestamp;
use rubelet_model::observation::PodUid;
use rubelet_ports::{RuntimeError, RuntimeErrorKind};
use rubelet_wire::cri::v1;

use super::relist::RELIST_WITHOUT_EVENTS;
use super::{Done, Observer};

/// The pause before the stream of events is opened again, doubling.
pub(super) const STREAM_RETRY: Duration = Duration::from_secs(1);
const STREAM_RETRY_MAX: Duration = Duration::from_secs(60);
/// A runtime that has no events may get them with an update.
const STREAM_RETRY_UNIMPLEMENTED: Duration = Duration::from_secs(60);

impl Observer {
    pub(super) fn open_stream(&mut self) {
        self.stream = Some(self.ports.runtime_reader.container_events());
        self.stream_opened_at = self.ports.clock.moment();
    }

    /// A runtime without events says so at once; a stream that is still open has them.
    pub(super) fn judge_stream(&mut self) {
        let open_for = self.ports.clock.moment().since(self.stream_opened_at);
        if self.stream.is_some() && !self.stream_works && open_for >= RELIST_WITHOUT_EVENTS {
            self.stream_works = true;
            self.ports.metrics.observer.streams.inc();
            tracing::info!("The runtime tells of container events; lists are a safety net now");
        }
    }

    pub(super) fn event(&mut self, event: Option<Result<v1::ContainerEventResponse, RuntimeError>>) {
        match event {
            Some(Ok(event)) => {
                let sent_at = Timestamp::from_unix_nanos(event.created_at);
                let delay = self.ports.clock.now().since(sent_at);
                self.ports
                    .metrics
                    .observer
                    .event_delays
                    .observe(delay.as_secs_f64());
                self.stream_retry = STREAM_RETRY;
                self.hint(&event);
            }
            Some(Err(error)) if error.kind() == RuntimeErrorKind::Unimplemented => {
                self.ports.metrics.observer.stream_errors.inc();
                if self.stream_retry != STREAM_RETRY_UNIMPLEMENTED {
                    tracing::info!("The runtime has no container events; pods are listed every second");
                }
                self.stream_ended(STREAM_RETRY_UNIMPLEMENTED);
            }
            Some(Err(error)) => {
                self.ports.metrics.observer.stream_errors.inc();
                tracing::debug!(%error, "The stream of container events broke");
                self.stream_ended((self.stream_retry * 2).min(STREAM_RETRY_MAX));
            }
            None => self.stream_ended((self.stream_retry * 2).min(STREAM_RETRY_MAX)),
        }
    }

    fn stream_ended(&mut self, next_retry: Duration) {
        self.stream = None;
        if self.stream_works {
            self.stream_works = false;
            tracing::info!("The runtime tells of no container events any more; pods are listed every second");
            // What happened since the last event is not known.
            self.is_tick_stale = true;
            self.relist_anew();
        }
        let pause = self.stream_retry;
        self.stream_retry = next_retry;
        let clock = Arc::clone(&self.ports.clock);
        self.running.push(
            async move { clock.sleep(pause).await }
                .map(|()| Done::StreamRetry)
                .boxed(),
        );
    }

    fn hint(&mut self, event: &v1::ContainerEventResponse) {
        let uid = event
            .pod_sandbox_status
            .as_ref()
            .and_then(|status| status.metadata.as_ref())
            .map(|metadata| PodUid::new(metadata.uid.clone()))
            .filter(|uid| !uid.is_empty());
        let Some(uid) = uid else {
            // It does not say which pod it is about.
            return self.relist_anew();
        };
        if self.is_old_news(&uid, event.created_at) {
            return;
        }
        let now = self.ports.clock.moment();
        self.look_or_remember(uid, now);
    }

    /// Whether a look began after the event. A clock that was set back makes the comparison worthless.
    fn is_old_news(&self, uid: &PodUid, event_unix_nanos: i64) -> bool {
        let now = self.ports.clock.now();
        self.pods.get(uid).is_some_and(|entry| {
            let seen_at = entry.observation.observed_at;
            seen_at <= now && event_unix_nanos < seen_at.unix_nanos()
        })
    }
}
