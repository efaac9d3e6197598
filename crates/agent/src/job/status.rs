//! The pod's status while a job runs.
//!
//! Owns the last derived status, why containers wait, and the results of probes that plan and status share. The derivation itself is
//! `lifecycle::status`. Device health is not known yet and stays empty.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::PodStatus;
use rubelet_lifecycle::plan::{Plan, WaitReason, pod_text};
use rubelet_lifecycle::resize::is_in_progress;
use rubelet_lifecycle::status::{
    Derived, Eviction, NodeFacts, Phase, PodResources, Probes, RuntimeFacts, Settling, StartFailure,
    StartFailures, StatusBase, StatusInputs, Termination, conditions, creation_reason, derive_status,
    ended_for_good, find_condition, finished_status, pod_resources, settle,
};
use rubelet_model::observation::{PodObservation, ProbeResults};
use rubelet_ports::{Moment, PodEvent, ProbeReading, ProbedPod};
use tokio::sync::mpsc;

use super::Progress;
use super::context::JobContext;
use super::host::PodHost;
use super::resize::{ResizeReport, ResizeState};
use crate::metrics::container_type;

/// What is known of the pod's status from one job to the next.
#[derive(Default)]
pub(super) struct StatusMemory {
    /// The last status that was derived.
    pub(super) last: Option<PodStatus>,
    pub(super) start_failures: StartFailures,
    /// The mirror pod shows the end of an earlier pod of the same UID.
    pub(super) ignores_mirror: bool,
    /// The last report of how far the pod's resize is.
    pub(super) resize: Option<ResizeReport>,
}

/// What a job is given for the pod's status.
pub(super) struct StatusOrder {
    pub(super) qos_class: &'static str,
    /// Why the pod has to fail, if it has to.
    pub(super) eviction: Option<Eviction>,
    /// Which allocation of the pod the job works with.
    pub(super) allocation: u64,
    pub(super) progress: mpsc::Sender<Progress>,
}

pub(super) struct StatusPublisher {
    context: Arc<JobContext>,
    pub(super) memory: StatusMemory,
    order: StatusOrder,
    published_at: Moment,
    probe_results: ProbeResults,
    /// Why the pod's resize could not go on.
    resize_failure: Option<String>,
}

impl StatusPublisher {
    pub(super) fn new(context: Arc<JobContext>, memory: StatusMemory, order: StatusOrder) -> Self {
        Self {
            context,
            memory,
            order,
            published_at: Moment::default(),
            probe_results: ProbeResults::default(),
            resize_failure: None,
        }
    }

    /// When the status was last derived.
    pub(super) fn published_at(&self) -> Moment {
        self.published_at
    }

    /// What the probes found when the status was last derived.
    pub(super) fn probe_results(&self) -> &ProbeResults {
        &self.probe_results
    }

    pub(super) fn is_known(&self) -> bool {
        self.memory.last.is_some()
    }

    /// Whether the last status shows a restart of all containers.
    pub(super) fn is_restarting_all(&self) -> bool {
        let last = self.memory.last.as_ref();
        let all = last
            .and_then(|status| status.conditions.as_deref())
            .unwrap_or_default();
        let restarting = find_condition(all, conditions::ALL_CONTAINERS_RESTARTING);
        restarting.is_some_and(|condition| condition.status == "True")
    }

    /// Containers that do not start again, though the runtime knows nothing of their end.
    pub(super) fn ended(&self, observation: &PodObservation) -> BTreeSet<String> {
        let gates = self.context.agent.settings.status_gates.restart;
        ended_for_good(&self.context.pod, self.memory.last.as_ref(), observation, gates)
    }

    /// Shows why containers of the plan wait for their backoff.
    pub(super) fn note_waits(&mut self, plan: &Plan) {
        for wait in plan.waits() {
            let (name, WaitReason::CrashLoopBackOff { message, .. }) = (&wait.name, &wait.reason) else {
                continue;
            };
            let failure = StartFailure {
                reason: "CrashLoopBackOff".to_owned(),
                message: message.clone(),
            };
            let known = self.memory.start_failures.insert(name.clone(), failure.clone());
            if known.as_ref() != Some(&failure) {
                let text = format!(
                    "Back-off restarting failed container {name} in pod {}",
                    pod_text(&self.context.pod)
                );
                self.context
                    .record(PodEvent::warning("BackOff", text).of_container(name));
            }
        }
    }

    /// Shows in all containers what the node has no provider for.
    pub(super) fn note_missing(&mut self, message: &str) {
        let failure = StartFailure {
            reason: creation_reason(&self.context.pod).to_owned(),
            message: message.to_owned(),
        };
        if let Some(spec) = &self.context.pod.spec {
            let init = spec.init_containers.iter().flatten().chain(&spec.containers);
            let ephemeral = spec.ephemeral_containers.iter().flatten();
            for name in init.map(|one| &one.name).chain(ephemeral.map(|one| &one.name)) {
                self.memory.start_failures.insert(name.clone(), failure.clone());
            }
        }
    }

    /// Remembers why the container waits.
    pub(super) fn note_failure(&mut self, name: &str, failure: StartFailure) {
        let StartFailure { reason, message } = &failure;
        self.context
            .waits
            .failed(format!("container {name}: {reason}: {message}"));
        self.memory.start_failures.insert(name.to_owned(), failure);
    }

    pub(super) fn note_started(&mut self, name: &str) {
        self.memory.start_failures.remove(name);
    }

    /// The next status goes with this report of the pod's resize.
    pub(super) fn note_resize_failed(&mut self, problem: String) {
        self.resize_failure = Some(problem);
    }

    /// How far the pod's resize is, if that is new.
    fn resize_report(&mut self, observation: &PodObservation) -> Option<ResizeReport> {
        let context = &self.context;
        context.pod.spec.as_ref()?;
        let number = self.order.allocation;
        let actuated = context.agent.resources.actuated.get(&context.uid);
        let state = if is_in_progress(&context.pod, actuated.as_deref(), observation) {
            ResizeState::InProgress
        } else {
            ResizeState::Settled
        };
        let seen = ResizeReport { number, state };
        let is_new = self.memory.resize.as_ref() != Some(&seen);
        self.memory.resize = Some(seen.clone());
        match self.resize_failure.take() {
            Some(problem) => Some(ResizeReport {
                number,
                state: ResizeState::Failed(problem),
            }),
            None => is_new.then_some(seen),
        }
    }

    /// The pod ends as failed from now on.
    pub(super) fn fail_pod(&mut self, eviction: Eviction) {
        self.order.eviction = Some(eviction);
    }

    /// Derives the status and publishes what is new. The result is the pod's phase.
    pub(super) async fn publish(&mut self, observation: &PodObservation, host: &PodHost) -> Option<Phase> {
        self.derive_and_publish(observation, host, false).await
    }

    /// The same for a pod of which nothing starts again.
    pub(super) async fn publish_ended(&mut self, observation: &PodObservation, host: &PodHost) {
        self.derive_and_publish(observation, host, true).await;
    }

    async fn derive_and_publish(
        &mut self,
        observation: &PodObservation,
        host: &PodHost,
        terminal: bool,
    ) -> Option<Phase> {
        // A container that has ended waits for nothing.
        let ended = self.ended(observation);
        self.memory.start_failures.retain(|name, _| !ended.contains(name));
        let probes = self.read_probes(observation, terminal);
        let derived = self.derive(observation, host, &probes, terminal);
        let context = &self.context;
        let ports = context.ports();
        self.memory.ignores_mirror |= derived.ignores_mirror;
        self.count_ends(&derived.terminations);
        for refusal in derived.refused {
            tracing::warn!(%refusal, "A change of the pod's status was refused");
            context.note(refusal.to_string());
            ports.metrics.refused_statuses.inc();
        }
        ports.probes.probe_now(&context.uid, &derived.probe_now);
        self.published_at = ports.clock.moment();
        let resize = (!terminal).then(|| self.resize_report(observation)).flatten();
        if derived.changed || self.memory.last.is_none() || resize.is_some() {
            self.send(derived.status.clone(), resize).await;
        }
        self.memory.last = Some(derived.status);
        derived.phase
    }

    fn derive(
        &self,
        observation: &PodObservation,
        host: &PodHost,
        probes: &Probes,
        terminal: bool,
    ) -> Derived {
        let context = &self.context;
        let settings = &context.agent.settings;
        let last = self.memory.last.as_ref();
        let (no_devices, no_images) = (BTreeMap::new(), BTreeMap::new());
        let actuated = context.agent.resources.actuated.get(&context.uid);
        let resources = if settings.status_gates.pod_level_resources {
            let has = actuated
                .as_ref()
                .and_then(|actuated| actuated.applied(&context.pod));
            pod_resources(&context.pod, has.as_ref(), last, &settings.node)
        } else {
            PodResources::default()
        };
        // Without an API server upstream shows no addresses of the node either.
        let has_api = context.ports().api.pods.is_some();
        let host_ips = if has_api { context.host_ips() } else { Vec::new() };
        self.check_host_ip_family(&host_ips);
        derive_status(&StatusInputs {
            pod: &context.pod,
            observation,
            previous: last,
            mirror: self.mirror_status().as_ref(),
            terminal,
            eviction: self.order.eviction.as_ref(),
            start_failures: &self.memory.start_failures,
            probes,
            // The sync loop adds them.
            resize_conditions: &[],
            qos_class: self.order.qos_class,
            pod_resources: &resources,
            actuated: actuated.as_deref(),
            allocated_resources_status: &no_devices,
            image_volume_references: &no_images,
            runtime: RuntimeFacts {
                name: &settings.runtime_name,
                recursive_read_only: host.supports_recursive_read_only(),
            },
            node: NodeFacts {
                host_ips: &host_ips,
                prefers_ipv6: settings.node.node_ips.first().is_some_and(IpAddr::is_ipv6),
            },
            gates: settings.status_gates,
            now: context.now(),
        })
    }

    /// Gives the prober the pod as it is now and reads its results, which the next plan depends on too. Probes of a pod that has
    /// ended have no results.
    fn read_probes(&mut self, observation: &PodObservation, has_ended: bool) -> Probes {
        let context = &self.context;
        let reading = if has_ended {
            ProbeReading::default()
        } else {
            let ip = context.pod_address(&observation.ips).unwrap_or_default();
            let mirror = self.mirror_status();
            let known = mirror.as_ref().or(context.pod.status.as_ref());
            context.ports().probes.show(ProbedPod {
                pod: &context.pod,
                observation,
                ip: &ip,
                last_status: self.memory.last.as_ref().or(known),
            })
        };
        self.probe_results = reading.results.clone();
        Probes {
            results: reading.results,
            startup: reading.startup,
            readiness: reading.readiness,
            agent_started_at: context.agent.started_at,
        }
    }

    /// A node whose addresses have another family than before is most often one whose cloud provider selects another address.
    fn check_host_ip_family(&self, host_ips: &[IpAddr]) {
        let shown = self.memory.last.as_ref().or(self.context.pod.status.as_ref());
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
        self.context
            .record(PodEvent::warning("HostIPsIPFamilyMismatch", message));
    }

    fn count_ends(&self, ends: &[Termination]) {
        for end in ends {
            let code = end.exit_code.to_string();
            let labels = [container_type(end.kind), code.as_str(), end.reason.as_str()];
            let counter = &self.context.ports().metrics.starts.container_ends;
            counter.with_label_values(&labels).inc();
        }
    }

    /// What the API server shows of a static pod.
    fn mirror_status(&self) -> Option<PodStatus> {
        if self.memory.ignores_mirror {
            return None;
        }
        let mirrors = self.context.agent.mirrors.borrow();
        let mirror = mirrors.mirror_of(&self.context.uid);
        mirror.and_then(|mirror| mirror.status.clone())
    }

    /// Publishes the final status: containers without a known end have failed.
    pub(super) async fn publish_final(&mut self) {
        let context = &self.context;
        let last = self.memory.last.as_ref();
        let settling = Settling {
            pod: &context.pod,
            base: StatusBase::of(&context.pod, last, self.mirror_status().as_ref()),
            force: true,
            gates: context.agent.settings.status_gates,
            now: context.now(),
        };
        let settled = settle(&settling, finished_status(&context.pod, last));
        self.count_ends(&settled.terminations);
        let status = settled.status;
        if last != Some(&status) {
            self.send(status.clone(), None).await;
            self.memory.last = Some(status);
        }
    }

    async fn send(&self, status: PodStatus, resize: Option<ResizeReport>) {
        let progress = Progress {
            uid: self.context.uid.clone(),
            status: Arc::new(status),
            resize,
        };
        // The receiver is gone only when the agent ends.
        let _ = self.order.progress.send(progress).await;
    }
}
