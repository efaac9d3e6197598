//! What a pod needs of the node beside the runtime, before anything of it starts: volumes, and drivers for its claims.
//!
//! Owns how a pod waits for a volume plugin or a resource driver that this node does not have. Upstream keeps such a pod Pending
//! and tries again; so does this, and the containers' statuses name the fields that the pod waits for.

use k8s_openapi::api::core::v1::Pod;
use rubelet_lifecycle::configuration::{Provider, Unsupported, unprovided};
use rubelet_lifecycle::pod_state::Retry;
use rubelet_lifecycle::status::{StartFailure, creation_reason};
use rubelet_model::observation::PodObservation;
use rubelet_ports::PodEvent;

use super::{PodJob, Stop};

/// Upstream's reason for a claim that cannot be prepared.
const FAILED_CLAIMS: &str = "FailedPrepareDynamicResources";
const FAILED_SYNC: &str = "FailedSync";

impl PodJob {
    /// Makes sure of everything that the pod's sandbox and containers are made from.
    pub(super) async fn provide(&mut self, observation: &PodObservation) -> Result<(), Stop> {
        let mut missing = unprovided(&self.pod, &self.shared.settings.node);
        missing.extend(self.missing_devices());
        if !missing.is_empty() {
            self.show_unprovided(&missing);
            self.publish(observation, false).await;
        }
        // Volumes that need a plugin fail here, with an event and a backoff of their own.
        self.set_up_volumes().await?;
        let claims = missing
            .iter()
            .filter(|one| one.provider == Some(Provider::ResourceDriver));
        let claims: Vec<Unsupported> = claims.cloned().collect();
        if !claims.is_empty() {
            let text = format!("Failed to prepare dynamic resources: {}", texts(&claims));
            self.record(PodEvent::warning(FAILED_CLAIMS, text.clone()));
            return Err(self.fail(text, Retry::Later));
        }
        if missing.is_empty() {
            return Ok(());
        }
        let text = texts(&missing);
        self.record(PodEvent::warning(FAILED_SYNC, text.clone()));
        Err(self.fail(text, Retry::Later))
    }

    /// Devices that the pod's containers had from another kubelet. Admission rejects a new pod that asks for them.
    fn missing_devices(&self) -> Vec<Unsupported> {
        let terms = &self.shared.settings.admission;
        let spec = self.pod.spec.iter();
        let containers = spec.flat_map(|spec| spec.containers.iter().enumerate());
        let limits = containers.flat_map(|(index, container)| {
            let limits = container.resources.iter().filter_map(|all| all.limits.as_ref());
            let wanted = limits.flatten().filter(|(_, amount)| amount.0 != "0");
            wanted.map(move |(name, _)| (index, name))
        });
        let lacking = limits.filter(|(_, name)| terms.lacks_devices(name));
        lacking
            .map(|(index, name)| Unsupported {
                field: format!("spec.containers[{index}].resources.limits[{name}]"),
                reason: "no device plugin has registered this resource",
                provider: Some(Provider::DevicePlugin),
            })
            .collect()
    }

    fn show_unprovided(&mut self, missing: &[Unsupported]) {
        let failure = StartFailure {
            reason: creation_reason(&self.pod).to_owned(),
            message: texts(missing),
        };
        for name in container_names(&self.pod) {
            self.work.start_failures.insert(name, failure.clone());
        }
    }
}

fn texts(fields: &[Unsupported]) -> String {
    let texts: Vec<String> = fields.iter().map(ToString::to_string).collect();
    texts.join("; ")
}

fn container_names(pod: &Pod) -> Vec<String> {
    let Some(spec) = &pod.spec else {
        return Vec::new();
    };
    let init = spec.init_containers.iter().flatten().chain(&spec.containers);
    let ephemeral = spec.ephemeral_containers.iter().flatten();
    let names = init.map(|one| &one.name).chain(ephemeral.map(|one| &one.name));
    names.cloned().collect()
}
