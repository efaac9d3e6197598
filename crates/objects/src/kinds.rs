//! ConfigMap and Secret: the kinds of objects that are followed or read by name.
//!
//! Owns what differs between them (the calls, immutability) and the comparison of two versions of an object.

use futures_util::future::BoxFuture;
use k8s_openapi::Metadata;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rubelet_ports::api::{ApiError, Changes, ObjectReader};

/// A kind of object that is read by its name.
pub(crate) trait Kind: Metadata<Ty = ObjectMeta> + Clone + PartialEq + Send + Sync + 'static {
    /// As messages call it.
    const WORD: &'static str;

    fn follow(reader: &dyn ObjectReader, namespace: &str, name: &str) -> Changes<Self>;

    fn fetch<'a>(
        reader: &'a dyn ObjectReader,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Self, ApiError>>;

    /// It will never change, only go.
    fn is_immutable(&self) -> bool;
}

impl Kind for ConfigMap {
    const WORD: &'static str = "configmap";

    fn follow(reader: &dyn ObjectReader, namespace: &str, name: &str) -> Changes<Self> {
        reader.follow_config_map(namespace, name)
    }

    fn fetch<'a>(
        reader: &'a dyn ObjectReader,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Self, ApiError>> {
        reader.config_map(namespace, name)
    }

    fn is_immutable(&self) -> bool {
        self.immutable == Some(true)
    }
}

impl Kind for Secret {
    const WORD: &'static str = "secret";

    fn follow(reader: &dyn ObjectReader, namespace: &str, name: &str) -> Changes<Self> {
        reader.follow_secret(namespace, name)
    }

    fn fetch<'a>(
        reader: &'a dyn ObjectReader,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Self, ApiError>> {
        reader.secret(namespace, name)
    }

    fn is_immutable(&self) -> bool {
        self.immutable == Some(true)
    }
}

/// Whether these are one and the same state of an object.
pub(crate) fn is_same<T: Metadata<Ty = ObjectMeta> + PartialEq>(one: &T, other: &T) -> bool {
    let (own, others) = (one.metadata(), other.metadata());
    match (&own.resource_version, &others.resource_version) {
        (Some(version), Some(others_version)) => version == others_version && own.uid == others.uid,
        (Some(_) | None, None) | (None, Some(_)) => one == other,
    }
}

/// Whether `new` is an older state than `old`, as an answer from a cache of the API server may be.
pub(crate) fn is_older<T: Metadata<Ty = ObjectMeta>>(new: &T, old: &T) -> bool {
    let version = |object: &T| object.metadata().resource_version.as_ref()?.parse::<u64>().ok();
    matches!((version(new), version(old)), (Some(new), Some(old)) if new < old)
}
