//! The pod's status while a job runs.
//!
//! Owns the call of the pure derivation with what this node knows. Results of devices come with their own part; until then they are
//! empty.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::PodStatus;
use rubelet_lifecycle::restart::restarts_after_exit;
use rubelet_lifecycle::status::{
    Derived, NodeFacts, Phase, PodResources, Refusal, RuntimeFacts, Settling, StatusBase, StatusInputs,
    Termination, derive_status, finished_status, generate_status, phase_of, pod_resources, settle,
};
use rubelet_model::observation::PodObservation;
use rubelet_ports::PodEvent;

use super::{PodJob, Progress};
use crate::metrics::container_type;

impl PodJob {
    /// Derives the status, keeps it and tells it. `ended`: nothing starts again.
    pub(super) async fn publish(&mut self, observation: &PodObservation, ended: bool) -> Option<Phase> {
        // A container that is over waits for nothing, whatever went wrong with it before.
        let mut failures = std::mem::take(&mut self.work.start_failures);
        failures.retain(|name, _| !self.is_over(name, observation));
        self.work.start_failures = failures;
        let probes = self.probes_of(observation, ended);
        let settings = &self.shared.settings;
        let (no_devices, no_images) = (BTreeMap::new(), BTreeMap::new());
        let resources = if settings.status_gates.pod_level_resources {
            pod_resources(&self.pod, self.work.status.as_ref(), &settings.node)
        } else {
            PodResources::default()
        };
        let mirror = self.mirror_status();
        // Without an API server upstream shows no addresses of the node either.
        let has_api = self.shared.ports.api.is_some();
        let host_ips = if has_api { self.host_ips() } else { Vec::new() };
        self.check_host_ip_family(&host_ips);
        let mut inputs = StatusInputs {
            pod: &self.pod,
            observation,
            previous: self.work.status.as_ref(),
            mirror: mirror.as_ref(),
            terminal: ended,
            eviction: self.eviction.as_ref(),
            start_failures: &self.work.start_failures,
            probes: &probes,
            resize_conditions: self.resize.as_slice(),
            qos_class: self.qos_class,
            pod_resources: &resources,
            allocated_resources_status: &no_devices,
            image_volume_references: &no_images,
            runtime: RuntimeFacts {
                name: &settings.runtime_name,
                recursive_read_only: self.supports_recursive_read_only(),
            },
            node: NodeFacts {
                host_ips: &host_ips,
                prefers_ipv6: settings.node.node_ips.first().is_some_and(IpAddr::is_ipv6),
            },
            gates: settings.status_gates,
            now: self.now(),
        };
        let mut derived = derive_status(&inputs);
        if is_dropped(&derived) && self.work.status.is_none() && inputs.mirror.is_some() {
            // The API server shows ends that the runtime does not: of another pod of this identity, as upstream has it.
            self.work.is_reborn = true;
            inputs.mirror = None;
            derived = derive_status(&inputs);
        }
        if is_dropped(&derived) {
            // What was an end for good is none when the runtime shows a successor, as of init containers in a new sandbox.
            let previous = self.without_replaced_ends(observation);
            derived = derive_status(&StatusInputs {
                previous: previous.as_ref(),
                ..inputs
            });
        }
        // A status that was dropped still says how the pod is; what is kept may be from before its last restart.
        let was_dropped = is_dropped(&derived);
        let Derived {
            status,
            changed,
            refused,
            terminations,
            probe_now,
        } = derived;
        let phase = if was_dropped {
            phase_of(&generate_status(&inputs).status)
        } else {
            phase_of(&status)
        };
        self.count_ends(&terminations);
        for refusal in refused {
            tracing::warn!(pod = %self.uid, %refusal, "A change of the pod's status was dropped");
            self.recorder.note(self.now(), refusal.to_string());
            self.shared.ports.metrics.refused_statuses.inc();
        }
        self.shared.ports.probes.probe_now(&self.uid, &probe_now);
        self.published_at = self.shared.ports.clock.moment();
        if changed || self.work.status.is_none() {
            self.tell(status.clone()).await;
        }
        self.work.status = Some(status);
        phase
    }

    /// A node whose addresses have another family than before is most often one whose cloud provider sees it otherwise.
    fn check_host_ip_family(&self, host_ips: &[IpAddr]) {
        let shown = self.work.status.as_ref().or(self.pod.status.as_ref());
        let before = shown.and_then(|status| status.host_ip.as_deref()?.parse::<IpAddr>().ok());
        let (Some(before), Some(now)) = (before, host_ips.first()) else {
            return;
        };
        if before.is_ipv4() == now.is_ipv4() {
            return;
        }
        let family = |ip: &IpAddr| if ip.is_ipv4() { "4" } else { "6" };
        let message = format!(
            "Kubelet detected an IPv{} node IP ({before}), but the cloud provider selected an IPv{} node IP ({now}); \
             pass an explicit `--node-ip` to kubelet to fix this.",
            family(&before),
            family(now)
        );
        self.record(PodEvent::warning("HostIPsIPFamilyMismatch", message));
    }

    fn count_ends(&self, ends: &[Termination]) {
        for end in ends {
            let code = end.exit_code.to_string();
            let labels = [container_type(end.kind), code.as_str(), end.reason.as_str()];
            let counter = &self.shared.ports.metrics.starts.container_ends;
            counter.with_label_values(&labels).inc();
        }
    }

    /// What the API server shows of a static pod.
    pub(super) fn mirror_status(&self) -> Option<PodStatus> {
        if self.work.is_reborn {
            return None;
        }
        let mirrors = self.shared.mirrors.borrow();
        mirrors
            .mirror_of(&self.uid)
            .and_then(|mirror| mirror.status.clone())
    }

    /// The last word: what has no known end has failed.
    pub(super) async fn publish_end(&mut self) {
        let last = self.work.status.as_ref();
        let settling = Settling {
            pod: &self.pod,
            base: StatusBase::of(&self.pod, last, self.mirror_status().as_ref()),
            force: true,
            gates: self.shared.settings.status_gates,
            now: self.now(),
        };
        let settled = settle(&settling, finished_status(&self.pod, last));
        self.count_ends(&settled.terminations);
        let status = settled.status;
        if last != Some(&status) {
            self.tell(status.clone()).await;
            self.work.status = Some(status);
        }
    }

    /// The last status, in which the ends of containers that have a successor are history.
    fn without_replaced_ends(&self, observation: &PodObservation) -> Option<PodStatus> {
        let mut status = self.work.status.clone()?;
        let lists = [
            &mut status.init_container_statuses,
            &mut status.container_statuses,
        ];
        for container in lists.into_iter().flatten().flatten() {
            let has_ended = container
                .state
                .as_ref()
                .is_some_and(|state| state.terminated.is_some());
            let newest = observation.newest_container(&container.name);
            let newest = newest.map(|newest| newest.id.with_runtime(&self.shared.settings.runtime_name));
            if has_ended && newest.is_some() && newest != container.container_id {
                container.last_state = container.state.take();
            }
        }
        Some(status)
    }

    /// Whether a regular container ended for good and the runtime has lost all trace of it.
    pub(super) fn is_over(&self, name: &str, observation: &PodObservation) -> bool {
        let known = self.work.status.as_ref();
        let (Some(spec), Some(status)) = (&self.pod.spec, known) else {
            return false;
        };
        let mut containers = spec.containers.iter();
        let mut statuses = status.container_statuses.iter().flatten();
        let (Some(container), Some(last)) = (
            containers.find(|one| one.name == name),
            statuses.find(|one| one.name == name),
        ) else {
            return false;
        };
        let gates = self.shared.settings.status_gates.restart;
        let end = last.state.as_ref().and_then(|state| state.terminated.as_ref());
        end.is_some_and(|end| !restarts_after_exit(container, spec, end.exit_code, gates))
            && observation.newest_container(name).is_none()
    }

    /// Hands the status to whoever shows it.
    async fn tell(&self, status: PodStatus) {
        let progress = Progress {
            uid: self.uid.clone(),
            status: Arc::new(status),
        };
        // Nobody listens any more when the agent ends.
        let _ = self.progress.send(progress).await;
    }
}

/// Whether the new status was given up for a container's sake.
fn is_dropped(derived: &Derived) -> bool {
    let mut refused = derived.refused.iter();
    refused.any(|refusal| matches!(refusal, Refusal::Container { .. }))
}
