//! Storms: whatever fails or ends is tried again after a pause.

use std::time::Duration;

use super::Checker;
use super::truth::Instance;
use crate::history::Ask;

const STORM_TIME: Duration = Duration::from_secs(60);
/// More starts of one container within the time: crash-loop backoff does not work.
const STORM_STARTS: usize = 8;
/// More calls of one kind about one thing within the time: they are repeated without a pause.
const STORM_ASKS: usize = 30;
const BURST_TIME: Duration = Duration::from_secs(2);
/// The same within a shorter time: whoever pauses for a second is not that often there.
const BURST_ASKS: usize = 5;

/// What a call is for: one that is repeated has the same words.
fn words(ask: &Ask) -> String {
    match ask {
        Ask::RunSandbox { uid, .. } => format!("RunPodSandbox {uid}"),
        Ask::StopSandbox { id } => format!("StopPodSandbox {id}"),
        Ask::RemoveSandbox { id } => format!("RemovePodSandbox {id}"),
        Ask::Create { sandbox, name, .. } => format!("CreateContainer {name} in {sandbox}"),
        Ask::Start { id } => format!("StartContainer {id}"),
        Ask::Stop { id, .. } => format!("StopContainer {id}"),
        Ask::Remove { id } => format!("RemoveContainer {id}"),
        Ask::Update { id } => format!("UpdateContainerResources {id}"),
        Ask::Hook { id, kind } => format!("{kind:?} {id}"),
    }
}

/// Adds a time and gives how many there were within the last minute.
fn count(times: &mut Vec<Duration>, at: Duration) -> usize {
    times.push(at);
    times.retain(|time| at.saturating_sub(*time) < STORM_TIME);
    times.len()
}

impl Checker {
    /// When a pod whose sandbox is stopped was last added or removed: its next stop begins anew.
    fn last_change(&self, ask: &Ask) -> Duration {
        let Ask::StopSandbox { id } = ask else {
            return Duration::ZERO;
        };
        let sandbox = self.truth.sandboxes.get(id);
        let pod = sandbox.and_then(|sandbox| self.truth.pods.get(&sandbox.uid));
        let changes = pod.map(|pod| pod.told.map(|told| told.at).max(pod.removal_learnt));
        changes.flatten().unwrap_or_default()
    }

    pub(super) fn check_asks(&mut self, at: Duration, ask: &Ask) {
        let words = words(ask);
        let changed = self.last_change(ask);
        let times = self.truth.asks.entry(words.clone()).or_default();
        let recent = count(times, at);
        let burst = times
            .iter()
            .filter(|time| at.saturating_sub(**time) < BURST_TIME && **time >= changed)
            .count();
        if recent > STORM_ASKS || burst > BURST_ASKS {
            self.violate(format!(
                "{words} is asked for {recent} times within {STORM_TIME:?}, {burst} times within {BURST_TIME:?}"
            ));
        }
    }

    pub(super) fn check_starts(&mut self, at: Duration, instance: &Instance) {
        let pod = self.truth.pod(&instance.uid);
        let starts = pod.starts.entry(instance.name.clone()).or_default();
        let recent = count(starts, at);
        // A restart of all forgets how often each has failed, as upstream's does.
        let allowed = STORM_STARTS * if pod.resets > 0 { 2 } else { 1 };
        if recent > allowed {
            self.violate(format!(
                "{} of {} started {recent} times within {STORM_TIME:?}",
                instance.name, instance.uid
            ));
        }
    }
}
