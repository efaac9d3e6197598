//! The tree of cgroups that pods run in.
//!
//! Owns what is in the tree and when it changes: the node's level at start-up, the tiers with every pod that is added or removed, a
//! pod's own cgroup before its sandbox and after its last process. `resources` decides names and values; ports write them. It must
//! not know the agent: pods come in through [`PodCgroups`].
//!
//! ```text
//! <cgroupRoot>/kubepods                what the node leaves for pods; Guaranteed pods are directly below
//!                 ├── burstable        shares: the sum of its pods' requests
//!                 │     └── pod<uid>
//!                 ├── besteffort       shares: 2
//!                 └── pod<uid>
//! ```

mod held;
mod metrics;
mod node;
mod settings;
mod system;
mod tier_writer;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Pod;
use rubelet_model::cgroup::{CgroupValues, PodCgroupPart, PodCgroupReading};
use rubelet_model::observation::PodUid;
use rubelet_model::pod::uid_text;
use rubelet_ports::{CgroupError, CgroupErrorKind, PodCgroups};
use rubelet_resources::cgroup_files::{read_files, reading_files};
use rubelet_resources::cgroup_name::{CgroupName, node_allocatable, pod_cgroup_name, pod_uid_of};
use rubelet_resources::slice::cgroup_values;
use rubelet_resources::{PodCgroup, PodDemand, QosClass, pod_cgroup, qos_class};
use tokio::sync::Notify;

use held::HeldPods;
pub use metrics::{CgroupMetrics, MeasuredWriter, MemoryMetrics};
pub use node::NodeCgroupError;
pub use settings::{CgroupPorts, CgroupSettings};
pub use system::{SystemCgroupPorts, SystemCgroupSettings, keep_processes_in_place};

const CLASSES: [QosClass; 3] = [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort];

/// The tree of pods' cgroups. Jobs of pods use it from many tasks; one task writes the tiers, see [`Cgroups::run`].
pub struct Cgroups {
    settings: CgroupSettings,
    ports: CgroupPorts,
    kubepods: CgroupName,
    /// Held for a few steps, never across an await.
    held: Mutex<HeldPods>,
    /// The pods that count have changed.
    changed: Notify,
    memory_metrics: Option<MemoryMetrics>,
}

impl Cgroups {
    #[must_use]
    pub fn new(settings: CgroupSettings, ports: CgroupPorts) -> Self {
        Self {
            kubepods: node_allocatable(&settings.cgroup_root),
            settings,
            ports,
            held: Mutex::default(),
            changed: Notify::new(),
            memory_metrics: None,
        }
    }

    #[must_use]
    pub fn with_memory_metrics(self, metrics: Option<MemoryMetrics>) -> Self {
        Self {
            memory_metrics: metrics,
            ..self
        }
    }

    fn held(&self) -> MutexGuard<'_, HeldPods> {
        // A panic elsewhere cannot leave the table half changed: nothing in it calls out.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pod_name(&self, class: QosClass, uid: &str) -> Result<CgroupName, CgroupError> {
        pod_cgroup_name(&self.settings.cgroup_root, class, uid)
            .map_err(|error| CgroupError::new(uid, CgroupErrorKind::Other, error.to_string()))
    }

    /// The place of a pod's cgroup, and all its values.
    fn of_pod(&self, pod: &Pod) -> Result<(CgroupName, PodCgroup), CgroupError> {
        let uid = uid_text(pod);
        let demand = PodDemand::read(pod)
            .map_err(|error| CgroupError::new(uid, CgroupErrorKind::Other, error.to_string()))?;
        let (rules, facts) = (&self.settings.rules, &self.settings.facts);
        let name = self.pod_name(qos_class(&demand, rules), uid)?;
        Ok((name, pod_cgroup(&demand, rules, facts, false)))
    }
}

/// Sizes of huge pages that a part does not name would be limited to nothing.
fn without_huge_pages(mut values: CgroupValues) -> CgroupValues {
    values.files.retain(|file| file.controller != "hugetlb");
    values
}

#[async_trait]
impl PodCgroups for Cgroups {
    fn hold(&self, pod: &Arc<Pod>) {
        if self.held().hold(pod, &self.settings.rules) {
            self.changed.notify_one();
        }
    }

    fn release(&self, uid: &PodUid) {
        self.held().release(uid);
        self.changed.notify_one();
    }

    async fn create(&self, pod: &Pod) -> Result<(), CgroupError> {
        let uid = uid_text(pod);
        let (name, cgroup) = self.of_pod(pod)?;
        let values = cgroup_values(&name, &cgroup, self.settings.driver, &self.settings.facts);
        let problems = self.ports.writer.create(values).await?;
        for problem in problems {
            // As for upstream, the pod runs all the same: its containers have limits of their own.
            tracing::warn!(pod = uid, problem, "A value of the pod's cgroup is not in effect");
        }
        Ok(())
    }

    async fn exists(&self, pod: &Pod) -> Result<bool, CgroupError> {
        let uid = uid_text(pod);
        let demand = PodDemand::read(pod)
            .map_err(|error| CgroupError::new(uid, CgroupErrorKind::Other, error.to_string()))?;
        let class = qos_class(&demand, &self.settings.rules);
        let driver = self.settings.driver;
        let path = self.pod_name(class, uid)?.path(driver);
        // What runs in the pod has a cgroup below it.
        if !self.ports.reader.children(&path).await?.is_empty() {
            return Ok(true);
        }
        // A list that fails is an error. A look at the one path could not distinguish that from a missing cgroup.
        let (tier, name) = path.rsplit_once('/').unwrap_or_default();
        Ok(self.ports.reader.children(tier).await?.contains(name))
    }

    async fn read(&self, pod: &Pod) -> Result<Option<PodCgroupReading>, CgroupError> {
        let (name, _) = self.of_pod(pod)?;
        let version = self.settings.facts.cgroup;
        let path = name.path(self.settings.driver);
        let texts = self.ports.reader.read(&path, reading_files(version)).await?;
        Ok(Some(read_files(&texts, version)))
    }

    async fn update(&self, pod: &Pod, part: PodCgroupPart) -> Result<(), CgroupError> {
        let (name, cgroup) = self.of_pod(pod)?;
        let settings = &self.settings;
        let values = cgroup_values(&name, &cgroup.part(part), settings.driver, &settings.facts);
        self.ports.writer.update(without_huge_pages(values)).await
    }

    async fn remove(&self, uid: &PodUid) -> Result<(), CgroupError> {
        let known = self.held().class(uid);
        // The QoS class of an orphan is not known.
        let classes: &[QosClass] = known.as_slice();
        let classes = if classes.is_empty() { &CLASSES[..] } else { classes };
        for class in classes {
            let place = self.pod_name(*class, uid.as_str())?.place(self.settings.driver);
            self.ports.writer.remove(place).await?;
        }
        self.held().forget(uid);
        Ok(())
    }

    async fn pods(&self) -> Result<BTreeSet<PodUid>, CgroupError> {
        let driver = self.settings.driver;
        let mut found = BTreeSet::new();
        for class in CLASSES {
            let tier = self.kubepods.tier(class).path(driver);
            let names = self.ports.reader.children(&tier).await?;
            let uids = names.iter().filter_map(|name| pod_uid_of(name, driver));
            found.extend(uids.map(PodUid::from));
        }
        Ok(found)
    }
}
