//! Rubelet's own log in the trace, for runs that somebody looks at.

use std::fmt::{Debug, Write};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::executor::Executor;
use crate::trace::{Actor, Trace};

struct Logger {
    trace: Trace,
    executor: Executor,
}

#[derive(Default)]
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = match field.name() {
            "message" => write!(self.0, " {value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}

impl Subscriber for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("rubelet")
    }

    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(event.metadata().level().to_string());
        event.record(&mut text);
        self.trace.say(self.executor.elapsed(), Actor::Log, text.0);
    }

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}

/// Runs with what rubelet logs written into the trace.
pub(crate) fn into_trace<T>(trace: &Trace, executor: &Executor, run: impl FnOnce() -> T) -> T {
    let logger = Logger {
        trace: trace.clone(),
        executor: executor.clone(),
    };
    tracing::subscriber::with_default(logger, run)
}
