//! The `RestartAllContainers` action: all containers restart in the same sandbox.
//!
//! Owns the removal order: containers whose exit rule asked for the restart are removed last, so that the request is still found after
//! a crash in between. The new containers start with the next plan.

use k8s_openapi::api::core::v1::Container;
use rubelet_model::observation::ContainerObservation;

use super::Draft;
use super::action::{KillReason, RemoveReason};
use crate::restart::asks_for_restart_of_all;

pub(super) fn plan_reset(draft: &mut Draft<'_>) {
    let init = draft.spec.init_containers.as_deref().unwrap_or_default();
    let regular = draft.spec.containers.as_slice();
    for askers in [false, true] {
        for list in [regular, init] {
            for (container, seen) in instances(list, &draft.input.observation.containers) {
                let exit = seen.state.exit();
                let asked = exit.is_some_and(|exit| asks_for_restart_of_all(container, exit.exit_code));
                if asked != askers {
                    continue;
                }
                if exit.is_none() {
                    draft.kill(seen, KillReason::RestartAllContainers);
                }
                draft.remove(seen, RemoveReason::RestartAllContainers);
            }
        }
    }
}

fn instances<'a>(
    containers: &'a [Container],
    seen: &'a [ContainerObservation],
) -> impl Iterator<Item = (&'a Container, &'a ContainerObservation)> {
    containers.iter().flat_map(move |container| {
        seen.iter()
            .filter(|instance| instance.name == container.name)
            .map(move |instance| (container, instance))
    })
}
