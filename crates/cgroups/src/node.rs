//! The node's level: `kubepods`, its tiers, and the cgroups that resources are reserved for.
//!
//! Owns what has to be there before the first pod. What fails here keeps rubelet from starting, but for the limits of
//! `kubepods`: those are tried again every minute, because pods may use more memory than they may have just now.

use rubelet_model::cgroup::CgroupValues;
use rubelet_ports::{CgroupError, EventType, NodeEvent};
use rubelet_resources::amounts::Amounts;
use rubelet_resources::cgroup_name::CgroupName;
use rubelet_resources::node_cgroup::{Enforced, kubepods, reserved};
use rubelet_resources::slice::cgroup_values;
use rubelet_resources::tiers::{TierSums, Tiers, plan_tiers};
use rubelet_resources::{PodCgroup, QosClass};
use thiserror::Error;

use crate::Cgroups;

/// Upstream's reasons of the node's events.
const ENFORCED: &str = "NodeAllocatableEnforced";
const NOT_ENFORCED: &str = "FailedNodeAllocatableEnforcement";

#[derive(Debug, Error)]
pub enum NodeCgroupError {
    #[error("cgroupRoot {root:?} is not a cgroup that pods can be placed below")]
    Root {
        root: String,
        #[source]
        source: CgroupError,
    },
    #[error("the cgroups of pods cannot be made")]
    Create(#[source] CgroupError),
    #[error("{setting} {cgroup:?}: reserved resources cannot be enforced on it")]
    Reserved {
        setting: &'static str,
        cgroup: String,
        #[source]
        source: CgroupError,
    },
}

impl Cgroups {
    /// Makes the tree above the pods and enforces reserved resources.
    ///
    /// # Errors
    /// When the cgroups that pods need cannot be made or limited.
    pub async fn set_up(&self) -> Result<(), NodeCgroupError> {
        let settings = &self.settings;
        let root = CgroupName::from_cgroupfs(&settings.cgroup_root).path(settings.driver);
        let checked = self.ports.reader.check(&root).await;
        checked.map_err(|source| NodeCgroupError::Root {
            root: settings.cgroup_root.clone(),
            source,
        })?;
        let tiers = plan_tiers(&TierSums::default(), &settings.rules, &settings.facts);
        let Tiers {
            kubepods,
            mut burstable,
            best_effort,
            // Shown from the first refresh on too.
            protected: _,
        } = tiers;
        // The pods that may run below count from the first refresh on.
        burstable.cpu_shares = None;
        let parts = [
            (QosClass::Guaranteed, self.enforced(&kubepods)),
            (QosClass::Burstable, burstable),
            (QosClass::BestEffort, best_effort),
        ];
        for (class, cgroup) in parts {
            let values = self.tier_values(class, &cgroup);
            let problems = self.ports.writer.create(values).await;
            for problem in problems.map_err(NodeCgroupError::Create)? {
                tracing::warn!(problem, "A value of the pods' cgroups is not in effect");
            }
        }
        self.enforce_reserved().await
    }

    pub(crate) fn tier_values(&self, class: QosClass, cgroup: &PodCgroup) -> CgroupValues {
        let name = self.kubepods.tier(class);
        cgroup_values(&name, cgroup, self.settings.driver, &self.settings.facts)
    }

    /// `kubepods` with what the node leaves for pods. Its huge pages are those of the tiers, as they end up at upstream's: the
    /// pages that exist are the limit.
    pub(crate) fn enforced(&self, tier: &PodCgroup) -> PodCgroup {
        let settings = &self.settings;
        let cgroup = kubepods(&settings.capacity, &settings.reservation, settings.enforcement);
        PodCgroup {
            cpus: Some(settings.cpus.clone()).filter(|cpus| !cpus.is_empty()),
            huge_page_limits: tier.huge_page_limits.clone(),
            unified: tier.unified.clone(),
            ..cgroup
        }
    }

    async fn enforce_reserved(&self) -> Result<(), NodeCgroupError> {
        let settings = &self.settings;
        let (enforcement, reservation) = (settings.enforcement, &settings.reservation);
        let system = ("System", "systemReservedCgroup", &settings.system_reserved_cgroup);
        self.enforce_on(system, &reservation.system, enforcement.system)
            .await?;
        let kube = ("Kube", "kubeReservedCgroup", &settings.kube_reserved_cgroup);
        self.enforce_on(kube, &reservation.kube, enforcement.kube).await
    }

    async fn enforce_on(
        &self,
        (title, setting, cgroup): (&'static str, &'static str, &String),
        amounts: &Amounts,
        enforced: Option<Enforced>,
    ) -> Result<(), NodeCgroupError> {
        let Some(enforced) = enforced else {
            return Ok(());
        };
        let settings = &self.settings;
        let name = CgroupName::from_driver(cgroup, settings.driver);
        let limits = reserved(amounts, enforced, &settings.rules, &settings.facts);
        let values = cgroup_values(&name, &limits, settings.driver, &settings.facts);
        let failed = |source: CgroupError| {
            let part = match enforced {
                Enforced::All => "",
                Enforced::Compressible => "Compressible ",
            };
            self.record_not_enforced(format!(
                "Failed to enforce {title} Reserved {part}Cgroup Limits on {cgroup:?}: {source}"
            ));
            NodeCgroupError::Reserved {
                setting,
                cgroup: cgroup.clone(),
                source,
            }
        };
        self.ports.reader.check(&values.path).await.map_err(failed)?;
        self.ports.writer.update(values).await.map_err(failed)?;
        let whose = title.to_lowercase();
        self.record_enforced(format!("Updated limits on {whose} reserved cgroup {cgroup}"));
        Ok(())
    }

    pub(crate) fn record_enforced(&self, message: String) {
        self.record_event(EventType::Normal, ENFORCED, message);
    }

    pub(crate) fn record_not_enforced(&self, message: String) {
        self.record_event(EventType::Warning, NOT_ENFORCED, message);
    }

    fn record_event(&self, event_type: EventType, reason: &'static str, message: String) {
        self.ports.events.record_node(NodeEvent {
            event_type,
            reason: reason.into(),
            message,
            node_uid: None,
        });
    }
}
