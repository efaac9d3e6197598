//! What single pods take of the disks, measured when it is asked for: for limits of local storage, which cannot wait for the walks
//! through all volumes.
//!
//! Owns which pods are measured. The figures are those of the summary; writable layers are as old as the runtime's own figures.

use std::collections::BTreeSet;

use rubelet_model::pod::uid_text;
use rubelet_ports::{NoPodUsage, PodUsage, StorageQuestion};

use crate::pod_usage::pod_usages;
use crate::pods::RunningPod;
use crate::sampler::{ContainerSample, NodeSample, PodSample, Scope};
use crate::statistics::Shared;
use crate::summary::assemble;
use crate::walks::WalkedVolumes;

impl Shared {
    pub(crate) async fn storage_of(&self, question: &StorageQuestion) -> Result<Vec<PodUsage>, NoPodUsage> {
        let running = self.sampler.running().await;
        let running = running.ok_or_else(|| NoPodUsage("the runtime does not list its pods".to_owned()))?;
        let uids: BTreeSet<&str> = question.pods.iter().map(|pod| uid_text(pod)).collect();
        let asked: Vec<RunningPod> = running
            .iter()
            .filter(|pod| uids.contains(pod.uid.as_str()))
            .cloned()
            .collect();
        if asked.is_empty() {
            return Ok(Vec::new());
        }
        let volumes = match &self.storage.walks {
            Some(walks) => walks.measure(&question.pods).await,
            None => WalkedVolumes::new(),
        };
        let layers = match question.with_writable_layers {
            true => self.sampler.figures().await,
            false => None,
        };
        let pods = asked.into_iter().map(|pod| PodSample {
            row: None,
            sandbox: None,
            containers: pod
                .containers
                .iter()
                .map(|container| ContainerSample {
                    row: None,
                    runtime: layers
                        .as_ref()
                        .and_then(|layers| layers.get(&container.id).cloned()),
                })
                .collect(),
            runtime: None,
            pod,
        });
        let sample = NodeSample {
            booted_at: None,
            is_runtime_answering: true,
            root: None,
            system: Vec::new(),
            pods: pods.collect(),
        };
        let mut summary = assemble(&sample, Scope::Usage, &self.facts);
        self.storage.add_to_pods(&mut summary, &sample, &volumes).await;
        let mut usages = pod_usages(&sample, summary, self.ports.clock.now());
        for usage in &mut usages {
            // No cgroup was read.
            usage.working_set_bytes = None;
            for container in &mut usage.containers {
                container.working_set_bytes = None;
            }
        }
        Ok(usages)
    }
}
