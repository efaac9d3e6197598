//! What following knows of the type of its objects.
//!
//! Owns the way from text to an object and back from an object of some type to one of its own. All else of following exists once
//! for all types, and not once for each: it is much code.

use std::any::Any;
use std::sync::Arc;

use k8s_openapi::Metadata;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rubelet_ports::api::{ApiError, Change};
use serde::de::DeserializeOwned;

use crate::decode;

/// What can be followed.
pub(crate) trait Object:
    Clone + DeserializeOwned + Metadata<Ty = ObjectMeta> + Send + Sync + 'static
{
}

impl<T: Clone + DeserializeOwned + Metadata<Ty = ObjectMeta> + Send + Sync + 'static> Object for T {}

/// An object of some type.
pub(super) trait AnyObject: Any + Send + Sync {
    fn object_metadata(&self) -> &ObjectMeta;

    /// The same object with other metadata.
    fn with_metadata(&self, metadata: ObjectMeta) -> Item;
}

pub(super) type Item = Arc<dyn AnyObject>;

impl<T: Object> AnyObject for T {
    fn object_metadata(&self) -> &ObjectMeta {
        self.metadata()
    }

    fn with_metadata(&self, metadata: ObjectMeta) -> Item {
        let mut object = self.clone();
        *object.metadata_mut() = metadata;
        Arc::new(object)
    }
}

type Read = fn(&[u8]) -> Result<Item, serde_json::Error>;

/// The type of the objects of a set.
#[derive(Clone, Copy)]
pub(super) struct Kind {
    pub(super) name: &'static str,
    pub(super) read: Read,
    /// Reads an object of an older version with the same fields.
    pub(super) read_older: Read,
    pub(super) read_without_spec: Read,
}

impl Kind {
    pub(super) const fn of<T: Object>() -> Self {
        Self {
            name: T::KIND,
            read: |text| decode::object::<T>(text).map(item),
            read_older: |text| decode::older_object::<T>(text, T::API_VERSION).map(item),
            read_without_spec: |text| decode::without_spec::<T>(text).map(item),
        }
    }
}

fn item<T: Object>(object: T) -> Item {
    Arc::new(object)
}

/// A [`Change`] of objects of some type.
pub(super) enum AnyChange {
    All(Vec<Item>),
    Applied(Item),
    Deleted(Item),
    Broken(ApiError),
    Resumed,
}

impl AnyChange {
    /// `None` when the object is of another type, which it never is: [`Kind::of`] the same type has read it.
    pub(super) fn typed<T: Object>(self) -> Option<Change<T>> {
        Some(match self {
            Self::All(items) => Change::All(items.into_iter().filter_map(typed).collect()),
            Self::Applied(item) => Change::Applied(typed(item)?),
            Self::Deleted(item) => Change::Deleted(typed(item)?),
            Self::Broken(error) => Change::Broken(error),
            Self::Resumed => Change::Resumed,
        })
    }
}

fn typed<T: Object>(item: Item) -> Option<Arc<T>> {
    let any: Arc<dyn Any + Send + Sync> = item;
    any.downcast().ok()
}
