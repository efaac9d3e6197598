//! What must hold when the world is calm: exactly the wanted pods run, and rubelet says what is true.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use rubelet_ports::ProbeKind;

use super::truth::{Instance, State};
use super::{Checker, rules};
use crate::runtime::is_missing;

const IMAGE_REASONS: [&str; 2] = ["ErrImagePull", "ImagePullBackOff"];

impl Checker {
    /// Whether this pod is as it should be.
    ///
    /// # Errors
    /// With the first thing that is not.
    pub fn check_one(&self, uid: &str) -> Result<(), String> {
        match self.truth.wanted(uid).cloned() {
            Some(pod) => self
                .check_pod(&pod)
                .map_err(|sentence| format!("{uid}: {sentence}")),
            None => Ok(()),
        }
    }

    /// Whether everything is as it should be. Pods whose runtime calls hang are left out.
    #[must_use]
    pub fn is_settled(&self, hanging: Option<&str>) -> bool {
        let wanted = self.truth.wanted_uids();
        // The pods come first: one that is not there yet is the usual reason, and saves the rest.
        self.unsettled_pods(&wanted, hanging).next().is_none() && self.unsettled(hanging).is_empty()
    }

    fn unsettled_pods<'a>(
        &'a self,
        wanted: &'a BTreeSet<String>,
        hanging: Option<&'a str>,
    ) -> impl Iterator<Item = String> + 'a {
        let others = wanted.iter().filter(move |uid| Some(uid.as_str()) != hanging);
        others.filter_map(move |uid| {
            let pod = self.truth.wanted(uid)?;
            let sentence = self.check_pod(pod).err()?;
            Some(format!("{uid} ({}): {sentence}", rules::pod_name(pod)))
        })
    }

    /// What is not as it should be yet, one sentence each. Pods whose runtime calls hang are left out.
    #[must_use]
    pub fn unsettled(&self, hanging: Option<&str>) -> Vec<String> {
        let truth = &self.truth;
        let wanted = truth.wanted_uids();
        let mut open: Vec<String> = self.unsettled_pods(&wanted, hanging).collect();
        for instance in truth.instances.values() {
            let hangs = Some(instance.uid.as_str()) == hanging;
            if instance.is_running() && !wanted.contains(&instance.uid) && !hangs {
                open.push(format!("{} of {} still runs", instance.id, instance.uid));
            }
        }
        open.extend(self.api_unsettled());
        open.extend(self.mirrors_unsettled(hanging));
        for pod in &truth.published {
            if !wanted.contains(rules::uid(pod)) {
                open.push(format!("{} is still published", rules::uid(pod)));
            }
        }
        open
    }

    /// Whether rubelet said something since its last start.
    #[must_use]
    pub fn has_published(&self) -> bool {
        self.truth.listed_in_life
    }

    fn check_pod(&self, pod: &Arc<Pod>) -> Result<(), String> {
        let uid = rules::uid(pod);
        let truth = &self.truth;
        let said = truth
            .published
            .iter()
            .find(|said| rules::uid(said) == uid)
            .ok_or("it is not published")?;
        if rules::is_refused(said) {
            return self.check_refused(pod);
        }
        let running = truth.running(uid).count();
        let phase = rules::phase(said);
        if rules::needs_driver(pod) {
            return match phase {
                "Pending" => Ok(()),
                _ => Err(format!("it waits for the driver of its volume, and is {phase}")),
            };
        }
        let has_deadline = rules::deadline_seconds(pod).is_some();
        let (had_loss, was_reborn) = truth
            .pods
            .get(uid)
            .map_or((false, false), |one| (one.had_loss, one.incarnation > 0));
        if had_loss && running == 0 && rules::is_terminal(phase) {
            // It ended before the loss, and rubelet remembers.
            return Ok(());
        }
        let is_stuck = |one: &&Instance| one.handled.is_starting() && rules::post_start_hangs(pod, &one.name);
        let stuck = truth.running(uid).find(is_stuck);
        // As long as its hook runs, what is said of a container is from before it.
        let check_alone = || match stuck {
            Some(stuck) => self.check_stuck(stuck, phase),
            None => self.check_statuses(pod, said),
        };
        if rules::pod_policy(pod) == "Never" && (had_loss || was_reborn) {
            // What a pod that never restarts does then depends on what the runtime still has of it.
            return check_alone();
        }
        let is_complete = truth.is_complete(pod) && stuck.is_none();
        if is_complete || (has_deadline && running == 0 && rules::is_terminal(phase)) {
            return self.check_complete(pod, phase, has_deadline);
        }
        if has_deadline && truth.clock_moved {
            // The deadline is one of the wall clock, which may have gone back by hours.
            return check_alone();
        }
        if has_deadline {
            return Err(format!(
                "its deadline has passed, it is {phase} and {running} containers run"
            ));
        }
        check_alone()?;
        if stuck.is_some() {
            return Ok(());
        }
        self.check_ephemeral(pod, said)?;
        self.check_resized(pod, said)?;
        self.check_running(pod, said)?;
        self.check_whole(pod, said)
    }

    /// A pod that waits for the first hook of a container does nothing else, but it lives: in one sandbox, and not as one that
    /// has ended. Whoever starts after a crash takes the container as it is and has nothing to wait for.
    fn check_stuck(&self, stuck: &Instance, phase: &str) -> Result<(), String> {
        if rules::is_terminal(phase) {
            return Err(format!("it is {phase}, but {} runs its postStart hook", stuck.id));
        }
        self.check_sandbox(stuck)?;
        match self.truth.ready_sandboxes(&stuck.uid) {
            1 => Ok(()),
            count => Err(format!("it has {count} sandboxes")),
        }
    }

    /// What is said of the pod as a whole, once all of its containers run.
    fn check_whole(&self, pod: &Pod, said: &Pod) -> Result<(), String> {
        let all = rules::init_containers(pod)
            .iter()
            .chain(rules::regular_containers(pod));
        let mut of_interest = all
            .filter(|one| rules::stays(pod, &one.name))
            .map(|one| &one.name);
        let runs = |name: &String| {
            let newest = self.truth.newest_instance(rules::uid(pod), name);
            newest.is_some_and(Instance::is_running) && !rules::loops(pod, name)
        };
        if !of_interest.clone().all(runs) {
            return Ok(());
        }
        let phase = rules::phase(said);
        if phase != "Running" {
            return Err(format!("all of it runs, but its phase is {phase:?}"));
        }
        let is_ready = of_interest.all(|name| Self::status(said, name).is_some_and(|status| status.ready));
        let expected = if is_ready { "True" } else { "False" };
        for type_ in ["ContainersReady", "Ready"] {
            let found = rules::condition(said, type_);
            if found != Some(expected) {
                return Err(format!("{type_} is {found:?} where {expected} is right"));
            }
        }
        Ok(())
    }

    /// Each ephemeral container was made once, or waits for its image.
    fn check_ephemeral(&self, pod: &Pod, said: &Pod) -> Result<(), String> {
        let uid = rules::uid(pod);
        let had_loss = self.truth.pods.get(uid).is_some_and(|truth| truth.had_loss);
        for container in rules::ephemeral_containers(pod) {
            let name = &container.name;
            let was_made = self.truth.was_made(uid, name);
            if !was_made && !had_loss && !Self::waits_for_image(said, name) {
                return Err(format!("the ephemeral container {name} was never created"));
            }
        }
        Ok(())
    }

    fn check_complete(&self, pod: &Pod, phase: &str, has_deadline: bool) -> Result<(), String> {
        let uid = rules::uid(pod);
        let truth = &self.truth;
        if let Some(instance) = truth.running(uid).next() {
            return Err(format!("it is complete, but {} runs", instance.id));
        }
        if truth.ready_sandboxes(uid) > 0 {
            return Err("it is complete, but its sandbox is up".to_owned());
        }
        let codes: Vec<Option<i32>> = rules::regular_containers(pod)
            .iter()
            .map(
                |container| match truth.newest_instance(uid, &container.name)?.state {
                    State::Ended { code, .. } => Some(code),
                    State::Created | State::Running { .. } => None,
                },
            )
            .collect();
        let all_ended = codes.iter().all(Option::is_some);
        let expected = if codes.iter().all(|code| *code == Some(0)) && !truth.init_failed(pod) {
            "Succeeded"
        } else {
            "Failed"
        };
        if !rules::is_terminal(phase) || (all_ended && !has_deadline && phase != expected) {
            return Err(format!("it is complete with {codes:?}, but its phase is {phase}"));
        }
        Ok(())
    }

    fn status<'a>(said: &'a Pod, name: &str) -> Option<&'a ContainerStatus> {
        rules::statuses(said).find(|status| status.name == name)
    }

    fn waits_for_image(said: &Pod, name: &str) -> bool {
        Self::status(said, name)
            .and_then(|status| status.state.as_ref()?.waiting.as_ref()?.reason.as_deref())
            .is_some_and(|reason| IMAGE_REASONS.contains(&reason))
    }

    /// What is said of each container that runs, and of each that is said to run.
    fn check_statuses(&self, pod: &Pod, said: &Pod) -> Result<(), String> {
        let uid = rules::uid(pod);
        let named = rules::init_containers(pod)
            .iter()
            .chain(rules::regular_containers(pod))
            .map(|container| &container.name);
        let ephemeral = rules::ephemeral_containers(pod).iter();
        for name in named.chain(ephemeral.map(|container| &container.name)) {
            let status = Self::status(said, name).ok_or_else(|| format!("no status of {name}"))?;
            let state = status.state.clone().unwrap_or_default();
            let runs = self.truth.running(uid).find(|instance| instance.name == *name);
            match (runs, state.running) {
                (Some(instance), Some(_)) => {
                    let id = status.container_id.as_deref().unwrap_or_default();
                    if id != format!("containerd://{}", instance.id) {
                        return Err(format!("{name} is {}, its status says {id}", instance.id));
                    }
                    if i64::from(status.restart_count) < i64::from(instance.attempt) {
                        return Err(format!(
                            "{name} runs for the {}. time, its status says {} restarts",
                            instance.attempt + 1,
                            status.restart_count
                        ));
                    }
                    self.check_readiness(pod, status, instance)?;
                }
                (Some(instance), None) => {
                    return Err(format!(
                        "{name} runs as {}, but its status does not say so",
                        instance.id
                    ));
                }
                (None, Some(_)) => return Err(format!("{name} does not run, but its status says so")),
                (None, None) => {}
            }
        }
        Ok(())
    }

    /// A container that runs is ready, unless its probes say otherwise.
    fn check_readiness(
        &self,
        pod: &Pod,
        status: &ContainerStatus,
        instance: &Instance,
    ) -> Result<(), String> {
        let name = &instance.name;
        // One that is killed again and again may be in the middle of anything.
        let Some(container) =
            rules::find(pod, name).filter(|_| rules::stays(pod, name) && !rules::loops(pod, name))
        else {
            return Ok(());
        };
        let mut kinds = [ProbeKind::Startup, ProbeKind::Readiness].into_iter();
        let is_ready = kinds.all(|kind| rules::passes(container, kind, instance.attempt));
        match (is_ready, status.ready) {
            (true, false) => Err(format!("{name} runs, but is not ready")),
            (false, true) => Err(format!("{name} is ready, but its probes fail")),
            (true, true) | (false, false) => Ok(()),
        }
    }

    fn check_running(&self, pod: &Pod, said: &Pod) -> Result<(), String> {
        let uid = rules::uid(pod);
        for container in rules::init_containers(pod) {
            let name = &container.name;
            if rules::image(pod, name).is_some_and(is_missing) {
                // Nothing after it can start.
                return if Self::waits_for_image(said, name) {
                    Ok(())
                } else {
                    Err(format!("{name} has no image, but its status does not say so"))
                };
            }
            if rules::is_sidecar(pod, name) {
                self.check_runs(pod, said, name)?;
                if rules::never_starts(container) {
                    return Ok(());
                }
            }
        }
        for container in rules::regular_containers(pod) {
            let name = &container.name;
            if rules::image(pod, name).is_some_and(is_missing) {
                // One that was stopped for its new image and does not restart is not tried a second time.
                let is_over = self.truth.ended_for_good(pod, name).is_some();
                if !is_over && !Self::waits_for_image(said, name) {
                    return Err(format!("{name} has no image, but its status does not say so"));
                }
            } else {
                self.check_runs(pod, said, name)?;
            }
        }
        if self.truth.ready_sandboxes(uid) != 1 {
            return Err(format!("it has {} sandboxes", self.truth.ready_sandboxes(uid)));
        }
        Ok(())
    }

    fn check_runs(&self, pod: &Pod, said: &Pod, name: &str) -> Result<(), String> {
        let uid = rules::uid(pod);
        let Some(newest) = self.truth.newest_instance(uid, name) else {
            let had_loss = self.truth.pods.get(uid).is_some_and(|truth| truth.had_loss);
            let end = Self::status(said, name).and_then(|status| status.state.as_ref()?.terminated.as_ref());
            // It ended for good before the loss, and rubelet remembers.
            return match end {
                Some(end) if had_loss && !rules::restarts(pod, name, end.exit_code) => Ok(()),
                Some(_) | None => Err(format!("{name} was never created")),
            };
        };
        match newest.state {
            State::Running { .. } => self
                .check_place(pod, newest)
                .and_then(|()| check_alive(pod, newest)),
            State::Created => Err(format!("{name} {} was never started", newest.id)),
            State::Ended { code, .. } if !rules::restarts(pod, name, code) => Ok(()),
            State::Ended { .. } if newest.ran && rules::loops(pod, name) => Ok(()),
            State::Ended { code, cause, at } => Err(format!(
                "{name} {} ended with {code} ({cause:?}) at {:.3} s and was not started again",
                newest.id,
                at.as_secs_f64()
            )),
        }
    }

    fn check_place(&self, pod: &Pod, instance: &Instance) -> Result<(), String> {
        if rules::image(pod, &instance.name) != Some(instance.image.as_str()) {
            return Err(format!(
                "{} runs with the old image {}",
                instance.id, instance.image
            ));
        }
        self.check_sandbox(instance)
    }

    fn check_sandbox(&self, instance: &Instance) -> Result<(), String> {
        let sandbox = self.truth.sandboxes.get(&instance.sandbox);
        if sandbox.is_none_or(|sandbox| !sandbox.is_ready) {
            return Err(format!("{} runs in a dead sandbox", instance.id));
        }
        Ok(())
    }
}

/// What fails its probes in this attempt has to be gone by now.
fn check_alive(pod: &Pod, instance: &Instance) -> Result<(), String> {
    let container = rules::find(pod, &instance.name).filter(|_| !rules::loops(pod, &instance.name));
    let Some(container) = container else {
        return Ok(());
    };
    let mut kinds = [ProbeKind::Startup, ProbeKind::Liveness].into_iter();
    match kinds.find(|kind| !rules::passes(container, *kind, instance.attempt)) {
        Some(kind) => Err(format!(
            "{} {} fails its {} probe, but runs",
            instance.name,
            instance.id,
            kind.as_str()
        )),
        None => Ok(()),
    }
}
