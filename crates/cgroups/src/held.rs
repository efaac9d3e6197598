//! The pods that have a place in the tree, and the sums that the tiers are made from.
//!
//! Owns which pods count. The sums change with each pod that begins or ends to count, so that no sum is ever made of all pods.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use rubelet_model::observation::PodUid;
use rubelet_model::pod::uid_of;
use rubelet_resources::tiers::{TierShare, TierSums};
use rubelet_resources::{PodDemand, QosClass, Rules, qos_class};

/// What is known of a pod until its cgroup is gone.
struct Held {
    pod: Arc<Pod>,
    class: QosClass,
    share: TierShare,
    /// Whether it counts for its tier.
    is_active: bool,
}

#[derive(Default)]
pub(crate) struct HeldPods {
    pods: BTreeMap<PodUid, Held>,
    /// Of those that count.
    sums: TierSums,
}

impl HeldPods {
    /// From now on the pod counts. The answer is whether that changes anything.
    pub(crate) fn hold(&mut self, pod: &Arc<Pod>, rules: &Rules) -> bool {
        let uid = uid_of(pod);
        let known = self.pods.get_mut(&uid).filter(|known| known.is_active);
        if known.as_ref().is_some_and(|known| Arc::ptr_eq(&known.pod, pod)) {
            return false;
        }
        // A pod whose quantities cannot be read never gets a cgroup; its creation fails with the reason.
        let Ok(demand) = PodDemand::read(pod) else {
            return false;
        };
        let share = TierShare::of(&demand, rules);
        if let Some(known) = known
            && known.share == share
        {
            known.pod = Arc::clone(pod);
            return false;
        }
        self.release(&uid);
        self.sums.add(share);
        let one = Held {
            pod: Arc::clone(pod),
            class: qos_class(&demand, rules),
            share,
            is_active: true,
        };
        self.pods.insert(uid, one);
        true
    }

    /// The pod does not count any more.
    pub(crate) fn release(&mut self, uid: &PodUid) {
        if let Some(one) = self.pods.get_mut(uid).filter(|one| one.is_active) {
            one.is_active = false;
            self.sums.remove(one.share);
        }
    }

    /// The cgroup of a pod is gone.
    pub(crate) fn forget(&mut self, uid: &PodUid) {
        if self.pods.get(uid).is_some_and(|one| !one.is_active) {
            self.pods.remove(uid);
        }
    }

    /// `None` for a pod that has no place.
    pub(crate) fn class(&self, uid: &PodUid) -> Option<QosClass> {
        self.pods.get(uid).map(|one| one.class)
    }

    pub(crate) fn sums(&self) -> TierSums {
        self.sums
    }
}
