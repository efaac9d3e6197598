//! The one task that writes the tiers.
//!
//! Owns when: soon after a pod is added or removed, and everything once a minute, in case another program wrote to the tree. A write
//! that fails or hangs delays no pod: jobs of pods make the pods' cgroups themselves.

use std::sync::Arc;
use std::time::Duration;

use rubelet_ports::{CgroupError, Moment};
use rubelet_resources::cgroup_name::CgroupDriver;
use rubelet_resources::tiers::{Tiers, plan_tiers};
use rubelet_resources::{PodCgroup, QosClass};

use crate::Cgroups;

/// As often as upstream.
const INTERVAL: Duration = Duration::from_secs(60);

/// The values that were written to the kernel without an error.
#[derive(Default)]
struct Written {
    kubepods: Option<PodCgroup>,
    burstable: Option<PodCgroup>,
    best_effort: Option<PodCgroup>,
    /// The last failure that was logged, so that a lasting one is logged once.
    logged: Option<String>,
}

impl Cgroups {
    /// Maintains the values of the tiers; it never ends.
    pub async fn run(self: Arc<Self>) {
        let clock = Arc::clone(&self.ports.clock);
        let mut written = Written::default();
        let mut is_enforced = false;
        let mut everything_at = clock.moment();
        loop {
            let now = clock.moment();
            if now >= everything_at {
                everything_at = now.plus(INTERVAL);
                written = Written {
                    logged: written.logged,
                    ..Written::default()
                };
                if !is_enforced {
                    is_enforced = self.enforce().await;
                }
            }
            self.refresh(&mut written).await;
            self.wait(everything_at).await;
        }
    }

    async fn wait(&self, until: Moment) {
        let clock = &self.ports.clock;
        let sleep = clock.sleep(until.since(clock.moment()));
        // Both arms may be dropped: a notice that was not taken stays.
        tokio::select! {
            biased;
            () = self.changed.notified() => {}
            () = sleep => {}
        }
    }

    /// The limits of all pods together. True when they are in effect.
    async fn enforce(&self) -> bool {
        let cgroup = self.enforced(&self.plan().kubepods);
        let values = self.tier_values(QosClass::Guaranteed, &cgroup);
        match self.ports.writer.update(values).await {
            Ok(()) => {
                self.record_enforced("Updated Node Allocatable limit across pods".to_owned());
                true
            }
            Err(error) => {
                let path = self.kubepods.path(CgroupDriver::Cgroupfs);
                let parts = path.split('/').filter(|part| !part.is_empty());
                let parts: Vec<String> = parts.map(|part| format!("{part:?}")).collect();
                let name = parts.join(" ");
                self.record_not_enforced(format!(
                    "Failed to update Node Allocatable Limits [{name}]: {error}"
                ));
                false
            }
        }
    }

    fn plan(&self) -> Tiers {
        let settings = &self.settings;
        let sums = self.held().sums();
        plan_tiers(&sums, &settings.rules, &settings.facts)
    }

    /// Writes what differs from what was written.
    async fn refresh(&self, written: &mut Written) {
        let mut tiers = self.plan();
        if let Some(metrics) = &self.memory_metrics {
            metrics.show(tiers.protected);
        }
        if !self.settings.rules.is_tiered() {
            // They were reset at start-up; setting them again makes systemd write all properties of the slice.
            tiers.kubepods.unified.clear();
            tiers.burstable.unified.clear();
        }
        let parts = [
            (QosClass::Guaranteed, tiers.kubepods, &mut written.kubepods),
            (QosClass::Burstable, tiers.burstable, &mut written.burstable),
            (QosClass::BestEffort, tiers.best_effort, &mut written.best_effort),
        ];
        let mut failure: Option<CgroupError> = None;
        for (class, cgroup, written) in parts {
            if written.as_ref() == Some(&cgroup) {
                continue;
            }
            match self.ports.writer.update(self.tier_values(class, &cgroup)).await {
                Ok(()) => *written = Some(cgroup),
                Err(error) => {
                    *written = None;
                    failure = Some(error);
                }
            }
        }
        let problem = failure.map(|error| error.to_string());
        if let Some(problem) = problem.as_ref().filter(|_| problem != written.logged) {
            tracing::warn!(problem, "The cgroups of the QoS classes are not up to date");
        }
        written.logged = problem;
    }
}
