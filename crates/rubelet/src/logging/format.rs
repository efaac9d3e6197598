//! How a log line looks. Both forms are upstream's, because log agents on nodes parse them.
//!
//! Text: `I0102 15:04:05.000000   pid file.rs:1] "message" key="value"`. JSON: `ts`, `caller`, `msg`, `v`, then the fields.
//! Fields of the spans around an event come first, so that a pod's lines carry its name.

use std::fmt::{Debug, Write as _};
use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::LookupSpan;

use super::filter::level_verbosity;

/// The form of the lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Text,
    Json,
}

/// Writes one line per event.
pub(super) struct Lines<W> {
    format: Format,
    writer: W,
}

impl<W> Lines<W> {
    pub(super) fn new(format: Format, writer: W) -> Self {
        Self { format, writer }
    }
}

impl<S, W, O> Layer<S> for Lines<W>
where
    S: Subscriber + for<'lookup> LookupSpan<'lookup>,
    W: Fn() -> O + 'static,
    O: Write,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(fields);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(fields) = span.extensions_mut().get_mut::<Fields>()
        {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Fields::default();
        for span in context
            .event_scope(event)
            .into_iter()
            .flat_map(tracing_subscriber::registry::Scope::from_root)
        {
            if let Some(outer) = span.extensions().get::<Fields>() {
                fields.values.extend(
                    outer
                        .values
                        .iter()
                        .map(|(name, value)| (name.clone(), value.clone())),
                );
            }
        }
        event.record(&mut fields);
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let line = match self.format {
            Format::Text => text_line(event.metadata(), &fields, since.as_micros()),
            Format::Json => json_line(event.metadata(), &fields, since.as_micros()),
        };
        // There is no place to report that the log itself cannot be written.
        let _ = (self.writer)().write_all(line.as_bytes());
    }
}

#[derive(Default)]
struct Fields {
    message: String,
    values: Map<String, Value>,
}

impl Fields {
    fn set(&mut self, field: &Field, value: Value) {
        if field.name() == "message" {
            self.message = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        } else {
            self.values.insert(field.name().to_owned(), value);
        }
    }
}

impl Visit for Fields {
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field, value.into());
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(field, value.into());
    }
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.set(field, value.into());
    }
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set(field, value.into());
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        self.set(field, value.into());
    }
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.set(field, format!("{value:?}").into());
    }
}

fn caller(metadata: &Metadata<'_>) -> String {
    let file = metadata
        .file()
        .and_then(|path| path.rsplit('/').next())
        .unwrap_or("unknown");
    format!("{file}:{}", metadata.line().unwrap_or(0))
}

fn text_line(metadata: &Metadata<'_>, fields: &Fields, unix_us: u128) -> String {
    let severity = match *metadata.level() {
        Level::ERROR => 'E',
        Level::WARN => 'W',
        Level::INFO | Level::DEBUG | Level::TRACE => 'I',
    };
    let time = utc_time(unix_us);
    let mut line = format!(
        "{severity}{time} {:>7} {}] {:?}",
        std::process::id(),
        caller(metadata),
        fields.message
    );
    for (name, value) in &fields.values {
        // Writing to a string cannot fail.
        let _ = match value {
            Value::String(text) => write!(line, " {name}={text:?}"),
            other => write!(line, " {name}={other}"),
        };
    }
    line.push('\n');
    line
}

fn json_line(metadata: &Metadata<'_>, fields: &Fields, unix_us: u128) -> String {
    let mut line = Map::new();
    line.insert("ts".into(), serde_json::json!(unix_us as f64 / 1000.0));
    line.insert("caller".into(), caller(metadata).into());
    line.insert("msg".into(), fields.message.clone().into());
    // Upstream marks info by its verbosity and leaves that out for errors.
    match *metadata.level() {
        Level::ERROR => {}
        Level::WARN => drop(line.insert("level".into(), "warning".into())),
        level => drop(line.insert("v".into(), level_verbosity(level).into())),
    }
    for (name, value) in &fields.values {
        let name = if name == "error" { "err" } else { name };
        line.entry(name).or_insert_with(|| value.clone());
    }
    Value::Object(line).to_string() + "\n"
}

/// Month, day and time of day in UTC, as in `0102 15:04:05.000000`.
fn utc_time(unix_us: u128) -> String {
    let seconds = unix_us / 1_000_000;
    let (month, day) = month_and_day(seconds / 86_400);
    let of_day = seconds % 86_400;
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!(
        "{month:02}{day:02} {hour:02}:{minute:02}:{second:02}.{:06}",
        unix_us % 1_000_000
    )
}

/// The month and day of the month of a day since 1970, in years that begin in March, so that the leap day comes last.
fn month_and_day(days_since_1970: u128) -> (u128, u128) {
    let days = days_since_1970 + 719_468;
    let day_of_era = days % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    (
        if month_from_march < 10 {
            month_from_march + 3
        } else {
            month_from_march - 9
        },
        day,
    )
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[derive(Clone, Default)]
    struct Buffer(Arc<Mutex<Vec<u8>>>);

    impl Write for Buffer {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn logged(format: Format, log: impl FnOnce()) -> String {
        let buffer = Buffer::default();
        let writer = buffer.clone();
        let lines = Lines::new(format, move || writer.clone());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(lines), log);
        String::from_utf8(buffer.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn text_lines_have_upstreams_header_and_the_spans_fields() {
        let line = logged(Format::Text, || {
            let _pod = tracing::info_span!("pod", namespace = "default", name = "web").entered();
            tracing::warn!(attempt = 3, "sandbox \"changed\"");
        });
        assert!(line.starts_with('W') && line.ends_with('\n'), "{line}");
        let (header, rest) = line.split_once("] ").unwrap();
        assert!(header.contains(" format.rs:"), "{line}");
        assert_eq!(
            rest.trim_end(),
            r#""sandbox \"changed\"" attempt=3 name="web" namespace="default""#
        );
    }

    #[test]
    fn json_lines_have_upstreams_keys() {
        let line = logged(Format::Json, || tracing::info!(ready = true, "runtime"));
        let value: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(
            (&value["msg"], &value["v"], &value["ready"]),
            (&"runtime".into(), &0.into(), &true.into())
        );
        assert!(value["ts"].as_f64().unwrap() > 1.6e12);
        let line = logged(Format::Json, || tracing::error!(error = "gone", "failed"));
        let value: Value = serde_json::from_str(&line).unwrap();
        assert_eq!((&value["err"], value.get("v")), (&"gone".into(), None));
    }

    #[test]
    fn a_line_break_in_a_value_does_not_break_the_line() {
        let line = logged(Format::Text, || tracing::error!(error = "a\nb", "x\ny"));
        assert_eq!(line.lines().count(), 1, "{line}");
    }

    #[test]
    fn times_are_utc() {
        let check = |unix_s: u128, expect: &str| {
            assert_eq!(utc_time(unix_s * 1_000_000 + 7), format!("{expect}.000007"));
        };
        check(0, "0101 00:00:00");
        check(951_782_399, "0228 23:59:59");
        check(951_782_400, "0229 00:00:00");
        check(1_735_689_599, "1231 23:59:59");
        check(1_772_323_200, "0301 00:00:00");
    }
}
