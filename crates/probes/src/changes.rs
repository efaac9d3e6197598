//! Pods whose probe results changed since the agent last took them from here.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::stream::{BoxStream, StreamExt as _, unfold};
use rubelet_model::observation::PodUid;
use tokio::sync::Notify;

/// A set, so that it never holds more than there are pods, however slow its reader is.
#[derive(Default)]
pub(crate) struct Changes {
    pods: Mutex<BTreeSet<PodUid>>,
    news: Notify,
}

impl Changes {
    pub(crate) fn add(&self, uid: PodUid) {
        self.with(|pods| pods.insert(uid));
        self.news.notify_one();
    }

    fn with<T>(&self, change: impl FnOnce(&mut BTreeSet<PodUid>) -> T) -> T {
        // Every change is a single step, which a panic elsewhere cannot tear.
        change(&mut self.pods.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn stream(self: Arc<Self>) -> BoxStream<'static, PodUid> {
        unfold(self, |changes| async {
            loop {
                if let Some(uid) = changes.with(BTreeSet::pop_first) {
                    return Some((uid, changes));
                }
                changes.news.notified().await;
            }
        })
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn each_pod_is_told_once() {
        let changes = Arc::new(Changes::default());
        let mut stream = Arc::clone(&changes).stream();
        let mut changed = || stream.next().now_or_never().flatten();
        assert_eq!(changed(), None);
        for uid in ["b", "a", "b"] {
            changes.add(PodUid::from(uid));
        }
        assert_eq!(changed(), Some(PodUid::from("a")));
        assert_eq!(changed(), Some(PodUid::from("b")));
        assert_eq!(changed(), None);
        changes.add(PodUid::from("a"));
        assert_eq!(changed(), Some(PodUid::from("a")));
    }
}
