//! The readers of what the API server sends, for the fuzzer. No program is built with this.

use std::convert::Infallible;

use bytes::Bytes;
use futures_util::{FutureExt as _, stream};
use http_body_util::StreamBody;
use hyper::body::Frame;
use k8s_openapi::Resource;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenReview};
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, ClusterTrustBundle, PodCertificateRequest,
};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Node, Pod, Secret, Service};
use k8s_openapi::api::node::v1::RuntimeClass;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::decode;
use crate::watch_lines::WatchLines;

/// A kind of object that is read from the API server.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    pub api_version: &'static str,
    pub name: &'static str,
    /// Reads an object and writes it again.
    pub reread: fn(&[u8]) -> Result<Vec<u8>, serde_json::Error>,
}

const fn kind<T: Resource + DeserializeOwned + Serialize>() -> Kind {
    Kind {
        api_version: T::API_VERSION,
        name: T::KIND,
        reread: |text| decode::object::<T>(text).and_then(|object| serde_json::to_vec(&object)),
    }
}

/// All kinds that are read: the objects of a node and of its pods, and the answers to what is created.
pub const KINDS: &[Kind] = &[
    kind::<Pod>(),
    kind::<Node>(),
    kind::<ConfigMap>(),
    kind::<Secret>(),
    kind::<Service>(),
    kind::<Lease>(),
    kind::<Event>(),
    kind::<RuntimeClass>(),
    kind::<ClusterTrustBundle>(),
    kind::<CertificateSigningRequest>(),
    kind::<PodCertificateRequest>(),
    kind::<TokenRequest>(),
    kind::<TokenReview>(),
    kind::<SubjectAccessReview>(),
];

/// Reads the text as an object of each kind: what was read is what is written.
///
/// # Panics
/// When it is not.
pub fn objects(text: &[u8]) {
    for kind in KINDS {
        round_trip(kind, text);
    }
    decode::metadata(text);
    let _ = decode::without_spec::<Pod>(text);
}

fn round_trip(kind: &Kind, text: &[u8]) {
    let Ok(written) = (kind.reread)(text) else {
        return;
    };
    let again = (kind.reread)(&written);
    assert_eq!(again.ok(), Some(written), "{}", kind.name);
}

/// The lines of a watch whose body arrives in these pieces.
#[must_use]
pub fn watch_lines(pieces: &[&[u8]]) -> Vec<Bytes> {
    let frames: Vec<_> = pieces
        .iter()
        .map(|piece| Ok::<_, Infallible>(Frame::data(Bytes::copy_from_slice(piece))))
        .collect();
    let mut lines = WatchLines::new(StreamBody::new(stream::iter(frames)));
    let mut found = Vec::new();
    while let Some(Ok(Some(line))) = lines.next().now_or_never() {
        found.push(line);
    }
    found
}
