//! The whole derivation: generate a status, settle it against the last one, and decide what counts when a container's change is
//! refused.
//!
//! A refused change of a container means that the last status belongs to something else than what the runtime shows. There are
//! two such cases, tried in this order:
//! 1. The base is the mirror pod's status, and it shows the end of an earlier pod of the same UID: derive without the mirror.
//! 2. The last status shows the end of a container that has a successor by now, as init containers have in a new sandbox: that end
//!    moves to `lastState`.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use rubelet_model::observation::PodObservation;

use super::settle::{Refusal, Settling, StatusBase, settle};
use super::view::{self, StateView, find_status};
use super::{Derived, StatusInputs, generate_status, phase_of};
use crate::restart::{RestartGates, restarts_after_exit};

/// Derives the status of a pod.
pub fn derive_status(inputs: &StatusInputs<'_>) -> Derived {
    let mut inputs = *inputs;
    let mut derived = derive_once(&inputs);
    let ignores_mirror = is_refused(&derived) && inputs.previous.is_none() && inputs.mirror.is_some();
    if ignores_mirror {
        inputs.mirror = None;
        derived = derive_once(&inputs);
    }
    if is_refused(&derived) {
        let previous = without_replaced_ends(&inputs);
        derived = derive_once(&StatusInputs {
            previous: previous.as_ref(),
            ..inputs
        });
    }
    if is_refused(&derived) {
        // The status that is kept may be from before the pod's last restart; the refused one has the current phase.
        derived.phase = phase_of(&generate_status(&inputs).status);
    }
    Derived {
        ignores_mirror,
        ..derived
    }
}

fn derive_once(inputs: &StatusInputs<'_>) -> Derived {
    let generated = generate_status(inputs);
    let settling = Settling {
        pod: inputs.pod,
        base: StatusBase::of(inputs.pod, inputs.previous, inputs.mirror),
        // A pod that is being deleted is sent again even unchanged: its deletion waits for it.
        force: view::is_deleted(inputs.pod),
        gates: inputs.gates,
        now: inputs.now,
    };
    let settled = settle(&settling, generated.status);
    let mut refused: Vec<_> = generated.refused.into_iter().collect();
    refused.extend(settled.refused);
    Derived {
        phase: phase_of(&settled.status),
        status: settled.status,
        changed: settled.changed,
        refused,
        terminations: settled.terminations,
        probe_now: generated.probe_now,
        ignores_mirror: false,
    }
}

/// Whether the new status was refused because of a container.
fn is_refused(derived: &Derived) -> bool {
    let mut refused = derived.refused.iter();
    refused.any(|refusal| matches!(refusal, Refusal::Container { .. }))
}

/// The last status, in which the ends of containers that have a successor are in `lastState`.
fn without_replaced_ends(inputs: &StatusInputs<'_>) -> Option<PodStatus> {
    let mut status = inputs.previous?.clone();
    let lists = [
        &mut status.init_container_statuses,
        &mut status.container_statuses,
    ];
    for container in lists.into_iter().flatten().flatten() {
        let newest = inputs.observation.newest_container(&container.name);
        let newest = newest.map(|newest| newest.id.with_runtime(inputs.runtime.name));
        if container.terminated().is_some() && newest.is_some() && newest != container.container_id {
            container.last_state = container.state.take();
        }
    }
    Some(status)
}

/// Names of the regular containers that ended for good according to the last status, and of which the runtime has lost every
/// trace. They do not start again.
#[must_use]
pub fn ended_for_good(
    pod: &Pod,
    last: Option<&PodStatus>,
    observation: &PodObservation,
    gates: RestartGates,
) -> BTreeSet<String> {
    let (Some(spec), Some(status)) = (&pod.spec, last) else {
        return BTreeSet::new();
    };
    let statuses = status.container_statuses.as_deref().unwrap_or_default();
    let ended = spec.containers.iter().filter(|container| {
        let end = find_status(statuses, &container.name).and_then(StateView::terminated);
        end.is_some_and(|end| !restarts_after_exit(container, spec, end.exit_code, gates))
            && observation.newest_container(&container.name).is_none()
    });
    ended.map(|container| container.name.clone()).collect()
}
