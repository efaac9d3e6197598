//! When the signals are read again.
//!
//! Owns the time between two rounds: long while everything is far from its threshold, short when something comes near. A threshold
//! that is met already needs no haste: what is done about it reads the signals itself.

use std::collections::BTreeMap;
use std::time::Duration;

use rubelet_model::signals::MemoryReading;

use super::observation::{Observation, Readings};
use super::signal::Signal;
use super::threshold::{DiskLayout, PressureSettings};

/// As often as upstream; the longest time between two rounds.
pub const LONGEST: Duration = Duration::from_secs(10);
/// The shortest time between two rounds.
pub const SHORTEST: Duration = Duration::from_millis(250);
/// How fast memory and disks may fill without being seen to do so before.
const BYTES_PER_SECOND: f64 = 500_000_000.0;
const INODES_PER_SECOND: f64 = 50_000.0;
const PROCESSES_PER_SECOND: f64 = 5_000.0;

/// What was seen last, to know how fast it goes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pace {
    last: Option<(Duration, BTreeMap<Signal, Observation>)>,
}

impl Pace {
    /// The time until the next round, and what is remembered for it. `now` is of the clock of [`super::step`].
    #[must_use]
    pub fn next(
        self,
        settings: &PressureSettings,
        layout: DiskLayout,
        readings: &Readings,
        now: Duration,
    ) -> (Self, Duration) {
        let layout = readings.layout().unwrap_or(layout);
        let observations = readings.observations(settings.huge_page_bytes);
        let before = self.last.as_ref();
        let mut pause = LONGEST;
        for threshold in settings.with_containers(layout) {
            let Some(observation) = observations.get(&threshold.signal) else {
                continue;
            };
            let distance = observation.available - threshold.value.of(observation.capacity).value();
            if distance < 0 {
                // A soft threshold is due at the end of its grace period.
                let grace = threshold.grace.unwrap_or(LONGEST);
                pause = pause.min(grace.max(SHORTEST));
                continue;
            }
            let rate = seen_rate(before, threshold.signal, *observation, now);
            let rate = rate.max(burst_rate(threshold.signal));
            #[expect(clippy::cast_precision_loss, reason = "a pause need not be exact")]
            let seconds = distance as f64 / rate;
            pause = pause.min(Duration::try_from_secs_f64(seconds).unwrap_or(LONGEST));
        }
        let last = Some((now, observations));
        (Self { last }, pause.clamp(SHORTEST, LONGEST))
    }
}

/// How much may be used before a memory threshold is crossed, by its signal: where the kernel can wake a reader. Of several thresholds of
/// a signal the first that is reached counts.
pub fn memory_marks(settings: &PressureSettings, readings: &Readings) -> Vec<(Signal, u64)> {
    let observations = readings.observations(settings.huge_page_bytes);
    let all = [
        (Signal::MemoryAvailable, readings.memory),
        (Signal::AllocatableMemoryAvailable, readings.pods_memory),
    ];
    let mark = |(signal, reading): (Signal, Option<MemoryReading>)| {
        let (reading, observation) = (reading?, observations.get(&signal)?);
        let thresholds = settings.thresholds.iter().filter(|one| one.signal == signal);
        let highest = thresholds
            .map(|threshold| threshold.value.of(observation.capacity).value())
            .max()?;
        // Inactive files count as used for the kernel, and not for the threshold.
        let used = u64::try_from(observation.capacity - highest).ok()?;
        Some((signal, used.saturating_add(reading.inactive_file_bytes)))
    };
    all.into_iter().filter_map(mark).collect()
}

/// Twice what went each second since the last round, so that two more rounds fit in.
fn seen_rate(
    before: Option<&(Duration, BTreeMap<Signal, Observation>)>,
    signal: Signal,
    observation: Observation,
    now: Duration,
) -> f64 {
    let Some((at, last)) = before.and_then(|(at, all)| Some((*at, all.get(&signal)?))) else {
        return 0.0;
    };
    let seconds = now.saturating_sub(at).max(SHORTEST).as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "a pause need not be exact")]
    let gone = (last.available - observation.available) as f64;
    2.0 * gone / seconds
}

/// How fast it may go without notice.
fn burst_rate(signal: Signal) -> f64 {
    match signal {
        Signal::MemoryAvailable
        | Signal::AllocatableMemoryAvailable
        | Signal::NodeFsAvailable
        | Signal::ImageFsAvailable
        | Signal::ContainerFsAvailable => BYTES_PER_SECOND,
        Signal::NodeFsInodesFree | Signal::ImageFsInodesFree | Signal::ContainerFsInodesFree => {
            INODES_PER_SECOND
        }
        Signal::PidAvailable => PROCESSES_PER_SECOND,
    }
}
