//! The last status of a pod whose worker is done.
//!
//! Owns the rule that nothing is left open: what cannot be known any more counts as failed.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus};
use rubelet_model::pod::{Phase, is_static_pod, is_terminal};

use crate::restart::is_sidecar;

use super::containers::unseen_end;
use super::view::{StateView, spec_of, statuses, terminated_state};

/// Closes the last status: containers without a known end failed, and so did a pod without a terminal phase. Static pods keep
/// their phase. The result is to be settled with force.
pub fn finished_status(pod: &Pod, previous: Option<&PodStatus>) -> PodStatus {
    let api = pod.status.clone().unwrap_or_default();
    let mut status = previous.unwrap_or(&api).clone();
    if has_initialized(pod, &api) {
        status.container_statuses.iter_mut().flatten().for_each(close);
    }
    let attempted = attempted_count(statuses(status.init_container_statuses.as_ref()));
    status
        .init_container_statuses
        .iter_mut()
        .flatten()
        .take(attempted)
        .for_each(close);
    if !is_static_pod(pod) && !is_terminal(&status) {
        status.phase = Some(Phase::Failed.as_str().to_owned());
    }
    status
}

fn close(status: &mut ContainerStatus) {
    if status.terminated().is_none() {
        status.state = Some(terminated_state(unseen_end()));
    }
}

/// How many init containers, from the first, were at least tried. The first one always counts.
fn attempted_count(statuses: &[ContainerStatus]) -> usize {
    let tried = |status: &ContainerStatus| status.waiting().is_none() || status.last_terminated().is_some();
    statuses
        .iter()
        .rposition(tried)
        .map_or(statuses.len().min(1), |last| last + 1)
}

/// Whether there is evidence that regular containers could have been started.
fn has_initialized(pod: &Pod, api: &PodStatus) -> bool {
    let spec = spec_of(pod);
    let init = spec.init_containers.as_deref().unwrap_or_default();
    if init.is_empty() {
        return true;
    }
    let moved = |status: &ContainerStatus| status.last_terminated().is_some() || status.waiting().is_none();
    if api.container_statuses.iter().flatten().any(moved) {
        return true;
    }
    let shown = statuses(api.init_container_statuses.as_ref());
    let (Some(last), Some(container)) = (shown.last(), init.get(shown.len().saturating_sub(1))) else {
        return false;
    };
    if container.name != last.name {
        return false;
    }
    if is_sidecar(container) {
        return last.running().is_some() && last.started == Some(true);
    }
    [last.last_terminated(), last.terminated()]
        .into_iter()
        .flatten()
        .any(|end| end.exit_code == 0)
}
