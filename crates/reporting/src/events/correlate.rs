//! Combines events that repeat each other.
//!
//! Owns what client-go's correlator does, with its numbers: many events that differ only in their messages become one, the same event
//! again becomes a count, and an object with too many events is cut off. Pure but for its memory, which is bounded.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use rubelet_ports::Moment;
use serde_json::{Value, json};

use super::fingerprint::fingerprint;
use super::lru::Lru;

const MAX_REMEMBERED: usize = 4096;
/// So many different messages within the interval are sent as they are; further ones are combined.
const MAX_SIMILAR: usize = 10;
const SIMILAR_INTERVAL: Duration = Duration::from_secs(600);
const COMBINED: &str = "(combined from similar events): ";
/// So many events of one object at once, then one in five minutes.
const SPAM_BURST: f64 = 25.0;
const SPAM_REFILL_SECONDS: f64 = 300.0;

/// Events that differ in their message only.
struct Similar {
    messages: BTreeSet<u128>,
    last: Moment,
}

/// An event that was seen before.
#[derive(Clone, Debug, Default)]
struct Seen {
    count: i32,
    first: Option<Time>,
    name: String,
}

struct Budget {
    tokens: f64,
    at: Moment,
}

impl Budget {
    fn spend(&mut self, now: Moment) -> bool {
        let refill = now.since(self.at).as_secs_f64() / SPAM_REFILL_SECONDS;
        self.tokens = (self.tokens + refill).min(SPAM_BURST);
        self.at = now;
        if self.tokens < 1.0 {
            return false;
        }
        self.tokens -= 1.0;
        true
    }
}

/// An event to be sent.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Correlated {
    pub(super) event: Event,
    /// For an event that exists already.
    pub(super) patch: Option<Value>,
    key: u128,
}

pub(super) struct Correlator {
    similar: Lru<Similar>,
    seen: Lru<Seen>,
    budgets: Lru<Budget>,
}

impl Correlator {
    pub(super) fn new() -> Self {
        Self {
            similar: Lru::new(MAX_REMEMBERED),
            seen: Lru::new(MAX_REMEMBERED),
            budgets: Lru::new(MAX_REMEMBERED),
        }
    }

    /// What to send for an event; `None` when its object has had enough.
    pub(super) fn correlate(&mut self, event: Event, now: Moment) -> Option<Correlated> {
        let (event, key) = self.combine(event, now);
        let (event, patch) = self.repeat(event, key);
        let spam = fingerprint(object_parts(&event));
        let budget = self.budgets.get_or(spam, || Budget {
            tokens: SPAM_BURST,
            at: now,
        });
        budget.spend(now).then_some(Correlated { event, patch, key })
    }

    /// What the API server made of it.
    pub(super) fn delivered(&mut self, sent: &Correlated, answer: &Event) {
        let seen = self.seen.get_or(sent.key, Seen::default);
        seen.count = answer.count.unwrap_or(seen.count);
        seen.first.clone_from(&answer.first_timestamp);
        if let Some(name) = &answer.metadata.name {
            seen.name.clone_from(name);
        }
    }

    fn combine(&mut self, event: Event, now: Moment) -> (Event, u128) {
        let reporter = [text(&event.reporting_component), text(&event.reporting_instance)];
        let group = object_parts(&event)
            .into_iter()
            .chain([text(&event.reason)])
            .chain(reporter);
        let group = fingerprint(group);
        let message = fingerprint([text(&event.message)]);
        let similar = self.similar.get_or(group, || Similar {
            messages: BTreeSet::new(),
            last: now,
        });
        if now.since(similar.last) > SIMILAR_INTERVAL {
            similar.messages.clear();
        }
        similar.last = now;
        // Messages that were sent as they are stay so; only others are combined.
        if !similar.messages.contains(&message) && similar.messages.len() + 1 >= MAX_SIMILAR {
            let message = format!("{COMBINED}{}", text(&event.message));
            let combined = Event {
                message: Some(message),
                reporting_component: None,
                reporting_instance: None,
                ..event
            };
            return (combined, group);
        }
        similar.messages.insert(message);
        let object = &event.involved_object;
        let rest = [
            text(&object.field_path),
            text(&event.reason),
            text(&event.message),
        ];
        let key = fingerprint(object_parts(&event).into_iter().chain(rest));
        (event, key)
    }

    fn repeat(&mut self, mut event: Event, key: u128) -> (Event, Option<Value>) {
        let seen = self.seen.get_or(key, Seen::default);
        let mut patch = None;
        if seen.count > 0 {
            event.metadata.name = Some(seen.name.clone());
            event.first_timestamp.clone_from(&seen.first);
            event.count = Some(seen.count.saturating_add(1));
            patch = Some(json!({
                "count": event.count,
                "lastTimestamp": event.last_timestamp,
                "message": event.message,
            }));
        }
        *seen = Seen {
            count: event.count.unwrap_or(1),
            first: event.first_timestamp.clone(),
            name: event.metadata.name.clone().unwrap_or_default(),
        };
        (event, patch)
    }
}

/// Source, object and type.
fn object_parts(event: &Event) -> [&str; 8] {
    let object = &event.involved_object;
    let source = event.source.as_ref();
    [
        source
            .and_then(|source| source.component.as_deref())
            .unwrap_or_default(),
        source
            .and_then(|source| source.host.as_deref())
            .unwrap_or_default(),
        text(&object.kind),
        text(&object.namespace),
        text(&object.name),
        text(&object.uid),
        text(&object.api_version),
        text(&event.type_),
    ]
}

fn text(value: &Option<String>) -> &str {
    value.as_deref().unwrap_or_default()
}

#[cfg(test)]
mod tests;
