//! The node's copy of a set of objects, and the position in the server's history that it shows.
//!
//! Owns the newest version of each object that could be decoded. When a later version cannot be decoded, the object stays with its
//! last content. Consumers keep the same objects, so the copy costs references only. It makes no request.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rubelet_ports::api::ApiErrorKind;
use serde_json::value::RawValue;

use super::Followed;
use super::kind::{AnyChange, AnyObject, Item, Kind};
use super::requests::History;
use super::wire::Line;
use crate::decode;
use crate::failure::{describe_decode_error, from_watch_error};

/// The annotation of the bookmark behind the initial events of a watch.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// So many objects that cannot be decoded are named in the log.
const MAX_NAMED: usize = 64;

pub(super) enum Event {
    Changed(AnyChange),
    /// Everything before this is the whole set at this version.
    Listed(String),
    Nothing,
    Ended,
    Gone,
}

/// Namespace, name, UID: another object of the same name is another one.
type Key = (String, String, String);

/// Objects by their key.
pub(super) struct Objects(BTreeMap<Key, Item>);

impl Objects {
    pub(super) fn new(objects: &[Item]) -> Self {
        let one = |object: &Item| (key(object.object_metadata()), Arc::clone(object));
        Self(objects.iter().map(one).collect())
    }

    pub(super) fn put(&mut self, object: &Item) {
        self.0.insert(key(object.object_metadata()), Arc::clone(object));
    }

    pub(super) fn remove(&mut self, object: &dyn AnyObject) {
        self.0.remove(&key(object.object_metadata()));
    }
}

fn key(metadata: &ObjectMeta) -> Key {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    (
        text(&metadata.namespace),
        text(&metadata.name),
        text(&metadata.uid),
    )
}

pub(super) struct Replica {
    pub(super) kind: Kind,
    pub(super) history: History,
    objects: Objects,
    /// Objects that cannot be decoded and have been named in the log.
    named: BTreeSet<String>,
}

impl Replica {
    pub(super) fn empty(kind: Kind) -> Self {
        Self {
            kind,
            history: History::Unknown,
            objects: Objects::new(&[]),
            named: BTreeSet::new(),
        }
    }

    pub(super) fn objects(&self) -> Vec<Item> {
        self.objects.0.values().map(Arc::clone).collect()
    }

    /// Becomes the whole set at a version.
    pub(super) fn replace(&mut self, objects: Objects, version: String) {
        self.objects = objects;
        self.history = History::At(version);
    }

    /// Drops all objects: the server does not have their type.
    pub(super) fn clear(&mut self) {
        self.objects = Objects::new(&[]);
    }

    /// Reads and applies one line of a watch. `path` is the index of the path that the watch was opened at.
    pub(super) fn apply(&mut self, followed: &Followed, path: usize, line: &[u8]) -> Event {
        let line: Line<'_> = match serde_json::from_slice(line) {
            Ok(line) => line,
            Err(error) => {
                let problem = describe_decode_error(&error);
                tracing::warn!(
                    what = followed.what,
                    problem,
                    "a line of the watch is no event; listing again"
                );
                return Event::Gone;
            }
        };
        let is_deletion = match line.r#type.as_str() {
            "ADDED" | "MODIFIED" => false,
            "DELETED" => true,
            "BOOKMARK" => return self.bookmark(followed, line.object),
            "ERROR" => {
                let (kind, message) = from_watch_error(line.object.get().as_bytes());
                tracing::debug!(what = followed.what, message, "the server ended a watch");
                return match kind {
                    ApiErrorKind::Gone => Event::Gone,
                    _ => Event::Ended,
                };
            }
            other => {
                tracing::warn!(
                    what = followed.what,
                    r#type = other,
                    "an unknown event of a watch"
                );
                return Event::Nothing;
            }
        };
        let Some(object) = self.read(followed, path, line.object) else {
            return Event::Nothing;
        };
        self.history.seen(
            object
                .object_metadata()
                .resource_version
                .as_deref()
                .unwrap_or_default(),
        );
        if is_deletion {
            self.objects.remove(object.as_ref());
            return Event::Changed(AnyChange::Deleted(object));
        }
        self.objects.put(&object);
        Event::Changed(AnyChange::Applied(object))
    }

    fn bookmark(&mut self, followed: &Followed, object: &RawValue) -> Event {
        let metadata = decode::metadata(object.get().as_bytes());
        let version = metadata.resource_version.unwrap_or_default();
        let annotations = metadata.annotations.unwrap_or_default();
        if annotations
            .get(INITIAL_EVENTS_END)
            .is_some_and(|end| end == "true")
        {
            return Event::Listed(version);
        }
        if self.history.is_after(&version) {
            tracing::warn!(
                what = followed.what,
                "the server is older than what it gave before; listing again"
            );
            return Event::Gone;
        }
        self.history.seen(&version);
        Event::Nothing
    }

    /// Decodes one object. An object that cannot be decoded must not hide the others, nor its own deletion: it keeps the content that
    /// was decoded last and gets the current metadata. The log names it once.
    pub(super) fn read(&mut self, followed: &Followed, path: usize, raw: &RawValue) -> Option<Item> {
        let text = raw.get().as_bytes();
        let decoded = match path {
            0 => (self.kind.read)(text),
            _ => (self.kind.read_older)(text),
        };
        let error = match decoded {
            Ok(object) => return Some(object),
            Err(error) => error,
        };
        let metadata = decode::metadata(text);
        self.name_unreadable(&metadata, &error);
        if let Some(known) = self.objects.0.get(&key(&metadata)) {
            return Some(known.with_metadata(metadata));
        }
        self.history
            .seen(metadata.resource_version.as_deref().unwrap_or_default());
        if !followed.keeps_unreadable {
            return None;
        }
        (self.kind.read_without_spec)(text).ok()
    }

    fn name_unreadable(&mut self, metadata: &ObjectMeta, error: &serde_json::Error) {
        let namespace = metadata.namespace.as_deref().unwrap_or_default();
        let name = metadata.name.as_deref().unwrap_or_default();
        if self.named.len() < MAX_NAMED && self.named.insert(format!("{namespace}/{name}")) {
            tracing::error!(
                kind = self.kind.name,
                namespace,
                name,
                problem = describe_decode_error(error),
                "an object cannot be decoded: only its metadata is followed"
            );
        }
    }
}
