//! Pods to sync again because an object changed, until the agent takes them.
//!
//! Owns the set of these pods and its stream to the agent.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::stream::{BoxStream, StreamExt as _, unfold};
use rubelet_model::observation::PodUid;
use tokio::sync::Notify;

/// A set, so that it never holds more than there are pods, however slow its reader is.
#[derive(Default)]
pub(crate) struct ChangedPods {
    pods: Mutex<BTreeSet<PodUid>>,
    news: Notify,
}

impl ChangedPods {
    pub(crate) fn add(&self, uids: impl IntoIterator<Item = PodUid>) {
        let any = self.with(|pods| {
            let before = pods.len();
            pods.extend(uids);
            pods.len() > before
        });
        if any {
            self.news.notify_one();
        }
    }

    pub(crate) fn remove(&self, uid: &PodUid) {
        self.with(|pods| pods.remove(uid));
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
