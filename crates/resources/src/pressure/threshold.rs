//! Eviction thresholds of the configuration.
//!
//! Owns the reading of `evictionHard`, `evictionSoft`, their grace periods and minimum reclaims, and which further thresholds
//! follow from them: memory of all pods where that is enforced, and the containers' filesystem, which has those of the
//! filesystem it is on. What is observed is not known here.

use std::collections::BTreeMap;
use std::time::Duration;

use rubelet_config::gates::{FeatureGates, Gate};
use rubelet_config::kubelet_configuration::KubeletConfiguration;
use rubelet_model::quantity::Format;
use rubelet_model::{GoDuration, Quantity};

use super::signal::Signal;

const PODS_ENFORCED: &str = "pods";

/// An amount, or a part of what there is.
#[derive(Clone, Debug, PartialEq)]
pub enum ThresholdValue {
    Quantity(Quantity),
    /// From 0 to 1, in upstream's precision.
    Part(f32),
}

impl ThresholdValue {
    /// As an amount, where there is so much in all.
    pub fn of(&self, capacity: i64) -> Quantity {
        match self {
            Self::Quantity(quantity) => quantity.clone(),
            Self::Part(part) => {
                #[expect(
                    clippy::cast_precision_loss,
                    clippy::cast_possible_truncation,
                    reason = "the same rounding as upstream's"
                )]
                let amount = (capacity as f64 * f64::from(*part)) as i64;
                Quantity::new(amount, Format::BinarySi)
            }
        }
    }
}

/// One threshold. A signal has at most one hard and one soft.
#[derive(Clone, Debug, PartialEq)]
pub struct Threshold {
    pub signal: Signal,
    pub value: ThresholdValue,
    /// `None` for a hard one.
    pub grace: Option<Duration>,
    /// What has to be there beyond the threshold before it counts as left again.
    pub minimum_reclaim: Option<ThresholdValue>,
}

impl Threshold {
    pub fn key(&self) -> ThresholdKey {
        ThresholdKey {
            signal: self.signal,
            is_soft: self.grace.is_some(),
        }
    }

    fn on(&self, signal: Signal) -> Self {
        Self {
            signal,
            ..self.clone()
        }
    }
}

/// Which threshold it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ThresholdKey {
    pub signal: Signal,
    pub is_soft: bool,
}

/// Where images and containers are, seen from the node's own filesystem.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DiskLayout {
    /// Images and containers are on the filesystem of the kubelet.
    #[default]
    OneFilesystem,
    /// Images and containers have a filesystem of their own.
    ContainersOnImageFs,
    /// Images are apart from containers, which count as written where the kubelet writes.
    ContainersOnNodeFs,
}

/// What is wrong with a threshold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ThresholdError {
    #[error("{field}: unsupported eviction signal {signal}")]
    UnknownSignal { field: &'static str, signal: String },
    #[error("{field}: {signal} {value:?}: {problem}")]
    BadValue {
        field: &'static str,
        signal: Signal,
        value: String,
        problem: String,
    },
    #[error("evictionSoftGracePeriod: a grace period must be specified for the soft eviction threshold {0}")]
    NoGracePeriod(Signal),
}

/// What pressure is judged by.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PressureSettings {
    /// Hard ones before soft ones, without those of the containers' filesystem.
    pub thresholds: Vec<Threshold>,
    /// How long a condition stays after it was last seen.
    pub transition_period: Duration,
    /// Memory that was set aside for huge pages: no page of it is available otherwise.
    pub huge_page_bytes: u64,
    /// Thresholds of the containers' filesystem that were set and do not count: they follow from the others.
    pub overridden: Vec<Signal>,
}

impl PressureSettings {
    /// `huge_page_bytes` is what the machine has; `ignores_allocatable` is `--experimental-allocatable-ignore-eviction`.
    ///
    /// # Errors
    /// The first threshold that cannot be understood.
    pub fn new(
        configuration: &KubeletConfiguration,
        gates: &FeatureGates,
        ignores_allocatable: bool,
        huge_page_bytes: u64,
    ) -> Result<Self, ThresholdError> {
        let nothing = BTreeMap::new();
        let hard = configuration.eviction_hard.as_ref().unwrap_or(&nothing);
        let enforced = configuration.enforce_node_allocatable.iter();
        let texts = ThresholdTexts {
            hard,
            soft: &configuration.eviction_soft,
            soft_grace: &configuration.eviction_soft_grace_period,
            minimum_reclaim: &configuration.eviction_minimum_reclaim,
            are_pods_enforced: !ignores_allocatable
                && enforced.flatten().any(|what| what.as_str() == PODS_ENFORCED),
        };
        let (thresholds, overridden) = texts.read()?;
        let period = configuration.eviction_pressure_transition_period;
        let knows_huge_pages = gates.enabled(Gate::HugepageAwareEviction);
        Ok(Self {
            thresholds,
            transition_period: period.to_std().unwrap_or_default(),
            huge_page_bytes: if knows_huge_pages { huge_page_bytes } else { 0 },
            overridden,
        })
    }

    /// All thresholds, where disks are laid out like this.
    pub fn with_containers(&self, layout: DiskLayout) -> Vec<Threshold> {
        let (bytes, inodes) = match layout {
            DiskLayout::OneFilesystem | DiskLayout::ContainersOnNodeFs => {
                (Signal::NodeFsAvailable, Signal::NodeFsInodesFree)
            }
            DiskLayout::ContainersOnImageFs => (Signal::ImageFsAvailable, Signal::ImageFsInodesFree),
        };
        let derived = self.thresholds.iter().filter_map(|threshold| {
            if threshold.signal == bytes {
                Some(threshold.on(Signal::ContainerFsAvailable))
            } else if threshold.signal == inodes {
                Some(threshold.on(Signal::ContainerFsInodesFree))
            } else {
                None
            }
        });
        self.thresholds.iter().cloned().chain(derived).collect()
    }
}

type Texts = BTreeMap<String, String>;

/// The settings' maps from signals to texts.
#[derive(Clone, Copy, Debug)]
pub struct ThresholdTexts<'a> {
    pub hard: &'a Texts,
    pub soft: &'a Texts,
    pub soft_grace: &'a Texts,
    pub minimum_reclaim: &'a Texts,
    /// Whether pods in sum are held to what is allocatable.
    pub are_pods_enforced: bool,
}

impl ThresholdTexts<'_> {
    /// The thresholds, and the signals whose thresholds do not count.
    ///
    /// # Errors
    /// The first text that cannot be understood.
    pub fn read(self) -> Result<(Vec<Threshold>, Vec<Signal>), ThresholdError> {
        let hard = values("evictionHard", self.hard)?;
        let soft = values("evictionSoft", self.soft)?;
        let graces = each("evictionSoftGracePeriod", self.soft_grace, grace_period)?;
        let reclaims = each("evictionMinimumReclaim", self.minimum_reclaim, minimum_reclaim)?;
        let threshold = |signal: Signal, value: ThresholdValue, grace: Option<Duration>| Threshold {
            signal,
            value,
            grace,
            minimum_reclaim: reclaims.get(&signal).cloned(),
        };
        let mut all: Vec<Threshold> = hard
            .into_iter()
            .map(|(signal, value)| threshold(signal, value, None))
            .collect();
        for (signal, value) in soft {
            let grace = graces.get(&signal).ok_or(ThresholdError::NoGracePeriod(signal))?;
            all.push(threshold(signal, value, Some(*grace)));
        }
        let (overridden, mut all): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|one| one.signal.is_of_containers());
        let copied = Signal::AllocatableMemoryAvailable;
        let of_node = |one: &&Threshold| one.signal == Signal::MemoryAvailable && one.grace.is_none();
        let is_set = all.iter().any(|one| one.signal == copied && one.grace.is_none());
        if let Some(memory) = all.iter().find(of_node).filter(|_| self.are_pods_enforced)
            && !is_set
        {
            all.push(memory.on(copied));
        }
        Ok((all, overridden.iter().map(|one| one.signal).collect()))
    }
}

fn each<T>(
    field: &'static str,
    texts: &Texts,
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<BTreeMap<Signal, T>, ThresholdError> {
    let entries = texts.iter().map(|(name, text)| {
        let signal = Signal::by_name(name).ok_or_else(|| ThresholdError::UnknownSignal {
            field,
            signal: name.clone(),
        })?;
        let value = read(text).map_err(|problem| ThresholdError::BadValue {
            field,
            signal,
            value: text.clone(),
            problem,
        })?;
        Ok((signal, value))
    });
    entries.collect()
}

fn values(
    field: &'static str,
    texts: &Texts,
) -> Result<impl Iterator<Item = (Signal, ThresholdValue)>, ThresholdError> {
    let read = each(field, texts, threshold_value)?;
    Ok(read
        .into_iter()
        .filter_map(|(signal, value)| value.map(|value| (signal, value))))
}

/// A threshold's value; nothing for the two percentages that switch it off.
pub fn threshold_value(text: &str) -> Result<Option<ThresholdValue>, String> {
    if matches!(text, "0%" | "100%") {
        return Ok(None);
    }
    if let Some(part) = part(text)? {
        return match part {
            part if part < 0.0 => Err("must be >= 0%".to_owned()),
            part if part > 1.0 => Err("must be <= 100%".to_owned()),
            part => Ok(Some(ThresholdValue::Part(part))),
        };
    }
    let quantity = quantity(text)?;
    if quantity.signum() <= 0 {
        return Err("must be positive".to_owned());
    }
    Ok(Some(ThresholdValue::Quantity(quantity)))
}

fn minimum_reclaim(text: &str) -> Result<ThresholdValue, String> {
    match part(text)? {
        Some(part) if part <= 0.0 => Err("must be positive".to_owned()),
        Some(part) => Ok(ThresholdValue::Part(part)),
        None => match quantity(text)? {
            quantity if quantity.signum() < 0 => Err("must not be negative".to_owned()),
            quantity => Ok(ThresholdValue::Quantity(quantity)),
        },
    }
}

fn grace_period(text: &str) -> Result<Duration, String> {
    let period: GoDuration = text
        .parse()
        .map_err(|error: rubelet_model::duration::ParseDurationError| error.to_string())?;
    period.to_std().ok_or_else(|| "must not be negative".to_owned())
}

/// The part of one that a percentage is; nothing for a text that is none.
fn part(text: &str) -> Result<Option<f32>, String> {
    if !text.ends_with('%') {
        return Ok(None);
    }
    let number: f32 = text
        .trim_end_matches('%')
        .parse()
        .map_err(|_| "is no percentage".to_owned())?;
    if number.is_nan() {
        return Err("is no percentage".to_owned());
    }
    Ok(Some(number / 100.0))
}

fn quantity(text: &str) -> Result<Quantity, String> {
    text.parse()
        .map_err(|error: rubelet_model::quantity::ParseQuantityError| error.to_string())
}
