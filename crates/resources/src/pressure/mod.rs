//! Whether the node runs short of memory, disk, inodes or processes.
//!
//! Owns thresholds, grace periods and how long a condition stays: one step per round of readings, as data. It reads nothing,
//! knows no clock and reclaims nothing.
//!
//! ```text
//!          below the threshold                       grace period over
//!   unmet ─────────────────────► met (condition) ───────────────────────► due (reported)
//!    ▲                            │                                        │
//!    ├── not below any more ──────┘                                        │
//!    └── not below threshold + minimum reclaim ────────────────────────────┘
//! ```
//!
//! A condition holds while any of its thresholds is met, and for the transition period after it was last seen. A signal that
//! could not be read changes nothing: its thresholds stay as they are.

pub mod observation;
pub mod pace;
pub mod signal;
pub mod threshold;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use rubelet_model::{Pressure, Quantity};

pub use observation::{Observation, Readings};
pub use pace::{Pace, memory_marks};
pub use signal::{Condition, Signal};
pub use threshold::{
    DiskLayout, PressureSettings, Threshold, ThresholdError, ThresholdKey, ThresholdTexts, ThresholdValue,
};

/// What is remembered from round to round. Times are of one clock that only goes forward.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PressureState {
    /// Since when each threshold is met.
    met_since: BTreeMap<ThresholdKey, Duration>,
    /// Met for longer than their grace period.
    due: BTreeSet<ThresholdKey>,
    last_seen: BTreeMap<Condition, Duration>,
    layout: DiskLayout,
}

/// What one round has shown.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Findings {
    pub pressure: Pressure,
    /// Thresholds that something has to be done about, and had not before; memory first.
    pub crossed: Vec<Crossing>,
    /// All thresholds that something has to be done about and whose signal was read, in the order in which shortages are handled.
    pub due: Vec<Crossing>,
    /// Where images and containers are, as far as it was ever read.
    pub layout: DiskLayout,
    /// Thresholds that nothing has to be done about any more.
    pub left: Vec<ThresholdKey>,
}

/// A threshold that was crossed for longer than its grace period.
#[derive(Clone, Debug, PartialEq)]
pub struct Crossing {
    pub key: ThresholdKey,
    /// A soft threshold without a grace period is hard.
    pub is_hard: bool,
    pub threshold: ThresholdValue,
    pub available: Quantity,
    pub capacity: Quantity,
}

impl fmt::Display for Crossing {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.key.is_soft { "soft" } else { "hard" };
        let (signal, available) = (self.key.signal, self.available.canonical());
        write!(
            out,
            "{signal} is {available}, below the {kind} eviction threshold of "
        )?;
        match &self.threshold {
            ThresholdValue::Quantity(quantity) => write!(out, "{}", quantity.canonical()),
            ThresholdValue::Part(part) => {
                let percent = (f64::from(*part) * 10_000.0).round() / 100.0;
                write!(out, "{percent}% of {}", self.capacity.canonical())
            }
        }
    }
}

/// Judges one round of readings.
pub fn step(
    settings: &PressureSettings,
    state: PressureState,
    readings: &Readings,
    now: Duration,
) -> (PressureState, Findings) {
    let layout = readings.layout().unwrap_or(state.layout);
    let observations = readings.observations(settings.huge_page_bytes);
    let thresholds = settings.with_containers(layout);
    let mut next = PressureState {
        layout,
        last_seen: state.last_seen,
        ..PressureState::default()
    };
    let mut findings = Findings::default();
    for threshold in &thresholds {
        let key = threshold.key();
        let met_since = state.met_since.get(&key).copied();
        let was_due = state.due.contains(&key);
        let observation = observations.get(&key.signal);
        let is_met = match observation {
            Some(observation) => is_met(threshold, *observation, was_due),
            None => met_since.is_some(),
        };
        if !is_met {
            continue;
        }
        let since = met_since.unwrap_or(now);
        next.met_since.insert(key, since);
        if observation.is_some() {
            next.last_seen.insert(key.signal.condition(), now);
        }
        let is_over = now.saturating_sub(since) >= threshold.grace.unwrap_or_default();
        if was_due || is_over && observation.is_some() {
            next.due.insert(key);
        }
        if let Some(observation) = observation.filter(|_| is_over || was_due) {
            let crossing = crossing(threshold, *observation);
            if !was_due {
                findings.crossed.push(crossing.clone());
            }
            findings.due.push(crossing);
        }
    }
    findings.crossed = told_once(findings.crossed);
    findings.due.sort_by_key(|crossing| crossing.key);
    findings.layout = layout;
    findings.left = state.due.difference(&next.due).copied().collect();
    findings.pressure = held(settings, &next, now);
    (next, findings)
}

/// Whether any threshold is crossed, soft ones without their grace period, each with its minimum reclaim: what upstream asks after it
/// has removed images and containers, before it evicts a pod.
pub fn is_any_crossed(settings: &PressureSettings, layout: DiskLayout, readings: &Readings) -> bool {
    let layout = readings.layout().unwrap_or(layout);
    let observations = readings.observations(settings.huge_page_bytes);
    settings.with_containers(layout).iter().any(|threshold| {
        let observation = observations.get(&threshold.signal);
        observation.is_some_and(|observation| is_met(threshold, *observation, true))
    })
}

/// Whether less is available than the threshold; a due threshold is met until the minimum reclaim is available as well.
fn is_met(threshold: &Threshold, observation: Observation, is_due: bool) -> bool {
    let Observation { available, capacity } = observation;
    let mut amount = threshold.value.of(capacity);
    if let Some(reclaim) = threshold.minimum_reclaim.as_ref().filter(|_| is_due) {
        amount.add(&reclaim.of(capacity));
    }
    amount > Quantity::new(available, threshold.signal.format())
}

fn crossing(threshold: &Threshold, observation: Observation) -> Crossing {
    Crossing {
        key: threshold.key(),
        is_hard: threshold.grace.unwrap_or_default().is_zero(),
        threshold: threshold.value.clone(),
        available: Quantity::new(observation.available, threshold.signal.format()),
        capacity: Quantity::new(observation.capacity, threshold.signal.format()),
    }
}

/// Memory first; and the containers' filesystem only where no other threshold covers it.
fn told_once(mut crossed: Vec<Crossing>) -> Vec<Crossing> {
    crossed.sort_by_key(|crossing| crossing.key);
    let all = crossed.clone();
    crossed.retain(|one| {
        let signal = one.key.signal;
        let is_same = |other: &Crossing| {
            !other.key.signal.is_of_containers()
                && other.key.signal.resource() == signal.resource()
                && other.available == one.available
        };
        !(signal.is_of_containers() && all.iter().any(is_same))
    });
    crossed
}

/// The conditions that hold: what is met now, and what was seen not long ago.
fn held(settings: &PressureSettings, state: &PressureState, now: Duration) -> Pressure {
    let is_met = |condition: Condition| {
        state
            .met_since
            .keys()
            .any(|key| key.signal.condition() == condition)
    };
    let is_recent = |condition: Condition| {
        let seen = state.last_seen.get(&condition);
        seen.is_some_and(|seen| now.saturating_sub(*seen) < settings.transition_period)
    };
    let holds = |condition: Condition| is_met(condition) || is_recent(condition);
    Pressure {
        memory: holds(Condition::Memory),
        disk: holds(Condition::Disk),
        pid: holds(Condition::Pid),
    }
}
