//! Reading a document over HTTP, for the pod source of that kind.
//!
//! Owns the shape of the edge. Header values may be secret: they appear in no error.

use async_trait::async_trait;
use thiserror::Error;

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FetchError {
    #[error("{url:?} is no usable address: {problem}")]
    BadAddress { url: String, problem: String },
    /// The server answered, with another status than success.
    #[error("{url} answered {status}")]
    Status { url: String, status: u16 },
    #[error("{url} answered more than {limit_bytes} bytes")]
    TooLarge { url: String, limit_bytes: u64 },
    /// No connection, no answer in time, a broken answer.
    #[error("{url}: {problem}")]
    Failed { url: String, problem: String },
}

#[async_trait]
pub trait HttpFetcher: Send + Sync {
    /// The body of a successful answer. Redirects are followed; the whole exchange has a deadline of the implementation.
    async fn get(
        &self,
        url: &str,
        headers: &[(String, String)],
        limit_bytes: u64,
    ) -> Result<Vec<u8>, FetchError>;
}
