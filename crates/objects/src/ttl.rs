//! The annotation `node.alpha.kubernetes.io/ttl` of the Node.
//!
//! Owns how long a cached object counts as fresh with the strategy `Cache`: as long as the annotation says, or one minute.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;

/// The annotation with which the control plane makes large clusters ask less often.
const ANNOTATION: &str = "node.alpha.kubernetes.io/ttl";
const DEFAULT: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(crate) struct ObjectTtl(Mutex<Option<Duration>>);

impl ObjectTtl {
    pub(crate) fn get(&self) -> Duration {
        let set = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        set.unwrap_or(DEFAULT)
    }

    pub(crate) fn set(&self, ttl: Option<Duration>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = ttl;
    }
}

/// The Node's annotation; nothing when it is missing or no number of seconds.
pub(crate) fn ttl_of(node: &Node) -> Option<Duration> {
    let text = node.metadata.annotations.as_ref()?.get(ANNOTATION)?;
    let seconds: i64 = text.parse().ok()?;
    // Less than nothing is nothing: every question goes to the API server.
    Some(Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_annotation_is_seconds() {
        let check = |text: Option<&str>, expected: Option<u64>| {
            let mut node = Node::default();
            node.metadata.annotations = text.map(|text| [(ANNOTATION.to_owned(), text.to_owned())].into());
            assert_eq!(ttl_of(&node), expected.map(Duration::from_secs), "{text:?}");
        };
        check(None, None);
        check(Some("0"), Some(0));
        check(Some("300"), Some(300));
        check(Some("-5"), Some(0));
        check(Some("5s"), None);
        check(Some(""), None);
    }
}
