//! The prober's part in a job: it is shown what the job sees, and says what the probes found.

use rubelet_lifecycle::status::Probes;
use rubelet_model::observation::PodObservation;
use rubelet_ports::{ProbeReading, ProbedPod};

use super::PodJob;

impl PodJob {
    /// Shows the pod as it is now and reads its results, which the next plan is made from too. Of a pod that has `ended`
    /// nothing is probed any more.
    pub(super) fn probes_of(&mut self, observation: &PodObservation, ended: bool) -> Probes {
        let reading = if ended {
            ProbeReading::default()
        } else {
            let ip = self.pod_address(&observation.ips).unwrap_or_default();
            let mirror = self.mirror_status();
            let known = mirror.as_ref().or(self.pod.status.as_ref());
            self.ports().probes.show(ProbedPod {
                pod: &self.pod,
                observation,
                ip: &ip,
                last_status: self.work.status.as_ref().or(known),
            })
        };
        let ProbeReading {
            results,
            startup,
            readiness,
        } = reading;
        self.probe_results = results.clone();
        Probes {
            results,
            startup,
            readiness,
            agent_started_at: self.shared.started_at,
        }
    }
}
