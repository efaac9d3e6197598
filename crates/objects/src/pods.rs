//! The pods of this node that need objects.
//!
//! Owns which pods are registered and which objects each refers to, and leads to the pods to sync again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::Pod;
use rubelet_model::observation::PodUid;
pub(crate) use rubelet_model::pod::{namespace_of, uid_of};

use crate::changed_pods::ChangedPods;
use crate::references::References;

pub(crate) struct Registered {
    pub(crate) pod: Arc<Pod>,
    pub(crate) references: Arc<References>,
}

/// The registered pods, and those to sync again.
#[derive(Default)]
pub(crate) struct Pods {
    /// Held to look up and to note, never across an await.
    table: Mutex<BTreeMap<PodUid, Registered>>,
    pub(crate) changed: Arc<ChangedPods>,
}

/// What a pod referred to before and refers to now, where that is not the same.
pub(crate) struct Difference {
    pub(crate) old: Option<Arc<References>>,
    pub(crate) new: Arc<References>,
}

impl Pods {
    fn table(&self) -> MutexGuard<'_, BTreeMap<PodUid, Registered>> {
        // Every change puts or removes a whole pod.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None` when nothing changed for it.
    pub(crate) fn register(&self, uid: &PodUid, pod: &Arc<Pod>) -> Option<Difference> {
        let mut table = self.table();
        let old = table.get_mut(uid);
        if let Some(old) = &old
            && Arc::ptr_eq(&old.pod, pod)
        {
            return None;
        }
        let references = References::of(pod);
        if let Some(old) = old
            && *old.references == references
        {
            old.pod = Arc::clone(pod);
            return None;
        }
        let new = Arc::new(references);
        let registered = Registered {
            pod: Arc::clone(pod),
            references: Arc::clone(&new),
        };
        let old = table.insert(uid.clone(), registered);
        let old = old.map(|old| old.references);
        Some(Difference { old, new })
    }

    pub(crate) fn unregister(&self, uid: &PodUid) -> Option<Registered> {
        let gone = self.table().remove(uid);
        self.changed.remove(uid);
        gone
    }

    pub(crate) fn pod(&self, uid: &PodUid) -> Option<Arc<Pod>> {
        self.table()
            .get(uid)
            .map(|registered| Arc::clone(&registered.pod))
    }

    /// Queues a sync of the pods that a change concerns.
    pub(crate) fn resync_where(&self, is_affected: impl Fn(&Registered) -> bool) {
        let table = self.table();
        let affected = table.iter().filter(|(_, registered)| is_affected(registered));
        let affected: Vec<PodUid> = affected.map(|(uid, _)| uid.clone()).collect();
        drop(table);
        self.changed.add(affected);
    }
}
