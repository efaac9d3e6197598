//! Reading what a client sends behind the head of its request.
//!
//! Owns the limits in size and time: a body that never comes must not hold a connection, and few requests have one.

use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use http_body_util::{BodyExt, Limited};
use hyper::body::Body;

/// For all of it.
const READ_LIMIT: Duration = Duration::from_secs(30);

/// Why a body could not be read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unreadable {
    pub(crate) status: StatusCode,
    pub(crate) why: String,
}

pub(crate) async fn read<B>(body: B, limit_bytes: usize) -> Result<Bytes, Unreadable>
where
    B: Body,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let whole = Limited::new(body, limit_bytes).collect();
    match tokio::time::timeout(READ_LIMIT, whole).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) => Err(Unreadable {
            status: StatusCode::BAD_REQUEST,
            why: error.to_string(),
        }),
        Err(_) => Err(Unreadable {
            status: StatusCode::REQUEST_TIMEOUT,
            why: format!("it did not come within {} seconds", READ_LIMIT.as_secs()),
        }),
    }
}
