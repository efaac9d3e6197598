//! The API server, as the node needs it.
//!
//! Owns the shape of the edge: narrow halves per purpose, so that the code that renews the lease cannot delete a pod. The adapter
//! decides about connections, rate limits and credentials. Dropping a call's future cancels
//! it, but a writing call may have taken effect.
//!
//! Every call has deadlines of its own: one for its turn under our rate limit and, once it is sent, one for the answer. A
//! caller must not count the first as silence of the API server.

mod certificates;
mod error;
mod node;
mod objects;
mod pods;
mod reviews;

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::BoxStream;

pub use certificates::{PodCertificates, SigningRequests};
pub use error::{ApiError, ApiErrorKind};
pub use node::{EventWriter, LeaseKeeper, NodeReader, NodeWriter};
pub use objects::{ObjectReader, TokenIssuer};
pub use pods::{PodReader, PodWriter};
pub use reviews::Reviewer;

/// Longer than any call takes, its turn included. A wait of this length is a defect.
pub const LONGEST_CALL: Duration = Duration::from_secs(100);

/// A change of a set of objects that is followed.
#[derive(Clone, Debug, PartialEq)]
pub enum Change<T> {
    /// The whole set, at first and whenever the watch could not be resumed: what is not in it is gone.
    All(Vec<Arc<T>>),
    /// An object is new or another one than before.
    Applied(Arc<T>),
    /// An object is gone; this is the last that was seen of it.
    Deleted(Arc<T>),
    /// The set cannot be followed at the moment; what was delivered may be old. Tries go on, and [`Change::Resumed`] or
    /// [`Change::All`] follows.
    Broken(ApiError),
    /// The watch goes on after [`Change::Broken`] from the last version that was delivered: the changes since then follow.
    Resumed,
}

/// Follows a set of objects for as long as it is polled: it lists, watches, resumes, lists again when the server has dropped the resource version, and notices a connection that died silently. It never ends by itself. Unused fields (`managedFields`) are dropped.
pub type Changes<T> = BoxStream<'static, Change<T>>;
