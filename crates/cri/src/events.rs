//! The stream of container events.
//!
//! Owns opening it, watching that the runtime stays alive while nothing happens, and its end. It must not open it again:
//! the observer decides whether it still wants events.

use bytes::Bytes;
use futures_util::stream::{self, StreamExt};
use rubelet_ports::{EventStream, RuntimeError};
use rubelet_wire::cri::v1;
use tonic::Streaming;
use tracing::Instrument;

use crate::call::{Caller, encoded};
use crate::method::{self, Method};
use crate::metrics::CallTimer;

/// A stream that connects when it is first read.
pub(crate) fn open(caller: Caller) -> EventStream {
    let events = Events {
        timer: caller.metrics.start(method::GET_CONTAINER_EVENTS.operation),
        caller,
        stream: None,
        span: tracing::debug_span!("cri", method = method::GET_CONTAINER_EVENTS.name),
    };
    stream::unfold(Some(events), |events| async {
        let events = events?;
        let span = events.span.clone();
        events.next().instrument(span).await
    })
    .boxed()
}

/// An open stream of events, or one that is still to be opened. Like upstream's, it counts as a failed operation whenever
/// it ends: it was meant to stay.
struct Events {
    timer: CallTimer,
    caller: Caller,
    stream: Option<Streaming<Bytes>>,
    span: tracing::Span,
}

type NextEvent = (Result<v1::ContainerEventResponse, RuntimeError>, Option<Events>);

impl Events {
    async fn next(mut self) -> Option<NextEvent> {
        let method = &method::GET_CONTAINER_EVENTS;
        let caller = self.caller.clone();
        let received = caller.while_alive(method, self.receive(method)).await;
        match received.and_then(|bytes| bytes.map(|bytes| caller.decoded(method, bytes)).transpose()) {
            Ok(Some(event)) => Some((Ok(event), Some(self))),
            Ok(None) => None,
            Err(error) => {
                tracing::debug!(kind = ?error.kind(), error = error.message(), "stream of container events failed");
                self.timer.finish(&Err::<(), _>(()));
                Some((Err(error), None))
            }
        }
    }

    async fn receive(&mut self, method: &Method) -> Result<Option<Bytes>, RuntimeError> {
        let stream = match &mut self.stream {
            Some(stream) => stream,
            closed => {
                let request = encoded(&v1::GetEventsRequest::default());
                closed.insert(self.caller.open_stream(method, request, None).await?)
            }
        };
        stream
            .message()
            .await
            .map_err(|status| self.caller.failed(method, &status))
    }
}
