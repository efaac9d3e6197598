//! The readers of what the API server sends, for the fuzzer. No program is built with this.

use std::convert::Infallible;

use bytes::Bytes;
use futures_util::{FutureExt as _, stream};
use http_body_util::StreamBody;
use hyper::body::Frame;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, Secret, Service};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::decode;
use crate::watch_lines::WatchLines;

/// Reads the text as an object of each kind: what was read is what is written.
///
/// # Panics
/// When it is not.
pub fn objects(text: &[u8]) {
    round_trip::<Pod>(text);
    round_trip::<Node>(text);
    round_trip::<ConfigMap>(text);
    round_trip::<Secret>(text);
    round_trip::<Service>(text);
    decode::metadata(text);
    let _ = decode::without_spec::<Pod>(text);
}

fn round_trip<T: DeserializeOwned + Serialize>(text: &[u8]) {
    let Ok(object) = decode::object::<T>(text) else {
        return;
    };
    let write = |object: &T| serde_json::to_vec(object).unwrap_or_default();
    let written = write(&object);
    let again = decode::object::<T>(&written).map(|object| write(&object));
    assert_eq!(again.ok(), Some(written));
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
