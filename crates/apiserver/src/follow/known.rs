//! What was told of a set last.
//!
//! Owns the newest version of each object that could be decoded: when a later one cannot, the object is still there, and is told as
//! it was. Consumers keep the same objects, so this costs references only.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::Object;

/// Namespace, name, UID: another object of the same name is another one.
type Key = (String, String, String);

pub(super) struct Known<T>(BTreeMap<Key, Arc<T>>);

impl<T: Object> Known<T> {
    pub(super) fn none() -> Self {
        Self(BTreeMap::new())
    }

    pub(super) fn replace(&mut self, objects: &[Arc<T>]) {
        let one = |object: &Arc<T>| (key(object.metadata()), Arc::clone(object));
        self.0 = objects.iter().map(one).collect();
    }

    pub(super) fn objects(&self) -> Vec<Arc<T>> {
        self.0.values().map(Arc::clone).collect()
    }

    pub(super) fn put(&mut self, object: &Arc<T>) {
        self.0.insert(key(object.metadata()), Arc::clone(object));
    }

    pub(super) fn remove(&mut self, object: &T) {
        self.0.remove(&key(object.metadata()));
    }

    pub(super) fn get(&self, metadata: &ObjectMeta) -> Option<Arc<T>> {
        self.0.get(&key(metadata)).map(Arc::clone)
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
