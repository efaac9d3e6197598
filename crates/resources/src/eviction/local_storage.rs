//! Pods that take more local storage than they may: an emptyDir beyond its size limit, a container or a pod beyond its limit of
//! ephemeral storage.
//!
//! Owns upstream's comparison and words, and when a pod is measured again. Such a pod is evicted whatever the node has left.

use std::fmt;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use rubelet_model::Quantity;
use rubelet_model::quantity::Format;

use super::figures::PodFigures;
use super::rank::amount;
use crate::amounts::EPHEMERAL_STORAGE;
use crate::demand::{ContainerDemand, Overhead, PodDemand};
use crate::pressure::DiskLayout;
use crate::rules::Rules;

/// A limit that a pod exceeds, with the limit's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exceeded {
    EmptyDir { volume: String, limit: String },
    Pod { limit: String },
    Container { name: String, limit: String },
}

impl Exceeded {
    /// As metrics call it.
    #[must_use]
    pub fn signal(&self) -> &'static str {
        match self {
            Self::EmptyDir { .. } => "emptydirfs.limit",
            Self::Pod { .. } => "ephemeralpodfs.limit",
            Self::Container { .. } => "ephemeralcontainerfs.limit",
        }
    }
}

/// Upstream's message, with its trailing blank.
impl fmt::Display for Exceeded {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EmptyDir { volume, limit } => {
                write!(
                    out,
                    "Usage of EmptyDir volume {volume:?} exceeds the limit {limit:?}. "
                )
            }
            Self::Pod { limit } => write!(
                out,
                "Pod ephemeral local storage usage exceeds the total limit of containers {limit}. "
            ),
            Self::Container { name, limit } => write!(
                out,
                "Container {name} exceeded its local ephemeral storage limit {limit:?}. "
            ),
        }
    }
}

/// What limits mean on this node.
#[derive(Clone, Debug, Default)]
pub struct LocalStorageRules {
    pub rules: Rules,
}

impl LocalStorageRules {
    /// Whether the pod has any limit that can be exceeded.
    #[must_use]
    pub fn has_limit(&self, pod: &Pod, demand: &PodDemand) -> bool {
        size_limits(pod).next().is_some()
            || self.pod_limit(demand).is_some()
            || limited_containers(demand).next().is_some()
    }

    /// Whether writable layers count for any limit of the pod.
    #[must_use]
    pub fn limits_layers(&self, demand: &PodDemand) -> bool {
        self.pod_limit(demand).is_some() || limited_containers(demand).next().is_some()
    }

    /// The first limit that the pod exceeds.
    #[must_use]
    pub fn exceeded(
        &self,
        pod: &Pod,
        demand: &PodDemand,
        figures: &PodFigures,
        layout: DiskLayout,
    ) -> Option<Exceeded> {
        let volume = size_limits(pod).find(|(name, limit)| {
            let used = figures.volume(name);
            used.is_some_and(|used| amount(used.bytes, Format::BinarySi) > *limit)
        });
        if let Some((volume, limit)) = volume {
            return Some(Exceeded::EmptyDir {
                volume: volume.to_owned(),
                limit: limit.canonical(),
            });
        }
        let used = amount(figures.ephemeral_storage_bytes.unwrap_or(0), Format::BinarySi);
        if let Some(limit) = self.pod_limit(demand).filter(|limit| used > *limit) {
            let limit = limit.canonical();
            return Some(Exceeded::Pod { limit });
        }
        figures.containers.iter().find_map(|container| {
            let (_, limit) = limited_containers(demand).find(|(name, _)| *name == container.name)?;
            let logs = container.logs.unwrap_or_default();
            let layer = container.writable_layer.unwrap_or_default();
            let used = match layout {
                DiskLayout::OneFilesystem => logs.plus(layer),
                DiskLayout::ContainersOnImageFs | DiskLayout::ContainersOnNodeFs => logs,
            };
            (amount(used.bytes, Format::BinarySi) > limit).then(|| Exceeded::Container {
                name: container.name.clone(),
                limit: limit.canonical(),
            })
        })
    }

    /// How much of its limits the pod has used, from 0 on; above 1 it exceeds one.
    #[must_use]
    pub fn share(&self, pod: &Pod, demand: &PodDemand, figures: &PodFigures) -> f64 {
        let part = |used: u64, limit: &Quantity| {
            #[expect(clippy::cast_precision_loss, reason = "a pause need not be exact")]
            let used = used as f64;
            used / limit.to_f64_approximate().max(1.0)
        };
        let volumes =
            size_limits(pod).filter_map(|(name, limit)| Some(part(figures.volume(name)?.bytes, &limit)));
        let all = figures.ephemeral_storage_bytes.zip(self.pod_limit(demand));
        let whole = all.map(|(used, limit)| part(used, &limit));
        let containers = figures.containers.iter().filter_map(|container| {
            let (_, limit) = limited_containers(demand).find(|(name, _)| *name == container.name)?;
            let layer = container.writable_layer.unwrap_or_default();
            let used = container.logs.unwrap_or_default().plus(layer);
            Some(part(used.bytes, &limit))
        });
        volumes.chain(whole).chain(containers).fold(0.0, f64::max)
    }

    /// The sum of the containers' limits.
    fn pod_limit(&self, demand: &PodDemand) -> Option<Quantity> {
        let limits = demand.limits(&self.rules, Overhead::Included);
        limits.get(EPHEMERAL_STORAGE).cloned()
    }
}

/// emptyDirs with a limit that counts.
fn size_limits(pod: &Pod) -> impl Iterator<Item = (&str, Quantity)> {
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref());
    volumes.unwrap_or_default().iter().filter_map(|volume| {
        // A limit that is no quantity was refused when the pod was read.
        let limit: Quantity = volume.empty_dir.as_ref()?.size_limit.as_ref()?.0.parse().ok()?;
        (limit.signum() > 0).then_some((volume.name.as_str(), limit))
    })
}

/// Regular containers and sidecars with a limit.
fn limited_containers(demand: &PodDemand) -> impl Iterator<Item = (&str, Quantity)> {
    let sidecars = demand.init_containers.iter().filter(|one| one.is_sidecar);
    let all = demand.containers.iter().chain(sidecars);
    all.filter_map(|container: &ContainerDemand| {
        let limit = container.resources.limits.get(EPHEMERAL_STORAGE)?;
        (!limit.is_zero()).then(|| (container.name.as_str(), limit.clone()))
    })
}

/// How a pod with limits comes nearer to them, to know when it is measured again.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StorageWatch {
    last: Option<(Duration, f64)>,
}

impl StorageWatch {
    /// While nothing is written.
    pub const LONGEST: Duration = Duration::from_secs(10);
    /// While a pod writes fast.
    pub const SHORTEST: Duration = Duration::from_secs(1);
    /// Between two looks at a pod that was not seen to write.
    const CALM: Duration = Duration::from_secs(3);
    /// Measuring may take this part of the time.
    const MEASURING_PART: u32 = 50;

    /// The time until the pod is measured again: half of that until it reaches a limit as fast as it writes now. `share` is that of
    /// [`LocalStorageRules::share`], `now` of a clock that only goes forward, `took` how long this measuring took.
    #[must_use]
    pub fn next(self, share: f64, now: Duration, took: Duration) -> (Self, Duration) {
        let calm = (took * Self::MEASURING_PART).clamp(Self::CALM, Self::LONGEST);
        let grown = self.last.map(|(at, before)| {
            let seconds = now.saturating_sub(at).max(Self::SHORTEST).as_secs_f64();
            (share - before) / seconds
        });
        let pause = match grown {
            Some(rate) if rate > 0.0 && share < 1.0 => {
                let reached = Duration::try_from_secs_f64((1.0 - share) / rate / 2.0);
                reached.unwrap_or(calm).min(calm)
            }
            Some(_) | None => calm,
        };
        // Measuring that takes long is not done all the time, however fast the pod writes.
        let shortest = Self::SHORTEST.max(took * 4).min(Self::LONGEST);
        let last = Some((now, share));
        (Self { last }, pause.max(shortest))
    }
}
