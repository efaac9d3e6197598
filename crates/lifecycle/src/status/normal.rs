//! The form in which statuses are compared.
//!
//! Owns precision, order and the length of messages; no meaning changes.

use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Pod, PodStatus};

use rubelet_model::message::{MAX_MESSAGE_BYTES, bound};

use super::moments::to_whole_seconds;
use super::view::spec_of;

/// All termination messages of a pod together; the containers share it evenly.
const POD_TERMINATION_MESSAGE_BYTES: usize = 12 * 1024;

/// Brings a status into the API server's form: whole seconds, sorted lists, bounded messages.
pub fn normalize(pod: &Pod, status: &mut PodStatus) {
    let spec = spec_of(pod);
    let count = |list: Option<usize>| list.unwrap_or_default();
    let containers = spec.containers.len()
        + count(spec.init_containers.as_ref().map(Vec::len))
        + count(spec.ephemeral_containers.as_ref().map(Vec::len));
    let message_bytes = POD_TERMINATION_MESSAGE_BYTES / containers.max(1);

    if let Some(time) = &mut status.start_time {
        to_whole_seconds(time);
    }
    bound_message(&mut status.message);
    for condition in status.conditions.iter_mut().flatten() {
        bound_message(&mut condition.message);
        let times = [
            &mut condition.last_probe_time,
            &mut condition.last_transition_time,
        ];
        times.into_iter().flatten().for_each(to_whole_seconds);
    }
    for list in [
        &mut status.container_statuses,
        &mut status.init_container_statuses,
        &mut status.ephemeral_container_statuses,
    ] {
        for container in list.iter_mut().flatten() {
            let states = [&mut container.state, &mut container.last_state];
            states
                .into_iter()
                .flatten()
                .for_each(|state| normalize_state(state, message_bytes));
        }
    }
    let by_name = |list: &mut Option<Vec<ContainerStatus>>| {
        if let Some(list) = list {
            list.sort_by(|a, b| a.name.cmp(&b.name));
        }
    };
    by_name(&mut status.container_statuses);
    by_name(&mut status.ephemeral_container_statuses);
    if let Some(list) = &mut status.init_container_statuses {
        let order = spec.init_containers.as_deref().unwrap_or_default();
        let place = |name: &str| {
            order
                .iter()
                .position(|one| one.name == name)
                .unwrap_or(order.len())
        };
        list.sort_by_key(|status| place(&status.name));
    }
}

fn bound_message(message: &mut Option<String>) {
    if let Some(message) = message {
        bound(message, MAX_MESSAGE_BYTES);
    }
}

fn normalize_state(state: &mut ContainerState, message_bytes: usize) {
    if let Some(waiting) = &mut state.waiting {
        bound_message(&mut waiting.message);
    }
    if let Some(running) = &mut state.running {
        running.started_at.as_mut().into_iter().for_each(to_whole_seconds);
    }
    if let Some(end) = &mut state.terminated {
        let times = [&mut end.started_at, &mut end.finished_at];
        times.into_iter().flatten().for_each(to_whole_seconds);
        if let Some(message) = &mut end.message
            && message.len() > message_bytes
        {
            // Never within a character: half a character is no text.
            message.truncate(message.floor_char_boundary(message_bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{ContainerStateWaiting, PodCondition};

    use super::*;

    #[test]
    fn no_message_of_a_status_is_long() {
        let long = || Some("é".repeat(1 << 20));
        let mut status = PodStatus {
            message: long(),
            conditions: Some(vec![PodCondition {
                message: long(),
                ..PodCondition::default()
            }]),
            container_statuses: Some(vec![ContainerStatus {
                state: Some(ContainerState {
                    waiting: Some(ContainerStateWaiting {
                        message: long(),
                        ..ContainerStateWaiting::default()
                    }),
                    ..ContainerState::default()
                }),
                ..ContainerStatus::default()
            }]),
            ..PodStatus::default()
        };
        normalize(&Pod::default(), &mut status);
        let waiting = |status: &PodStatus| {
            let container = status.container_statuses.as_ref()?.first()?.clone();
            container.state?.waiting?.message
        };
        let condition = |status: &PodStatus| status.conditions.as_ref()?.first()?.message.clone();
        for message in [status.message.clone(), condition(&status), waiting(&status)] {
            let message = message.unwrap_or_default();
            assert!(message.len() <= MAX_MESSAGE_BYTES, "{} bytes", message.len());
            assert!(message.ends_with("é…"));
        }
    }
}
