//! What pods use, from a look at the node, for decisions about them.
//!
//! Owns which figures stand for a pod: its cgroup's memory, the processes of its containers, and the same disk figures that the summary
//! shows.

use rubelet_model::Timestamp;
use rubelet_model::observation::PodUid;
use rubelet_ports::{Aged, ContainerUsage, PodUsage, VolumeUsage};
use rubelet_usage::DiskUsage;
use rubelet_usage::summary::{FsStats, MemoryStats, PodStats, Summary};

use crate::sampler::{NodeSample, PodSample};

/// The summary is of this sample.
pub(crate) fn pod_usages(sample: &NodeSample, summary: Summary, now: Timestamp) -> Vec<PodUsage> {
    let pods = sample.pods.iter().zip(summary.pods);
    pods.map(|(sample, stats)| pod_usage(sample, stats, now))
        .collect()
}

fn pod_usage(sample: &PodSample, stats: PodStats, now: Timestamp) -> PodUsage {
    let used = |fs: Option<&FsStats>| fs.and_then(|fs| used(fs, now));
    PodUsage {
        uid: PodUid::from(stats.pod_ref.uid),
        namespace: stats.pod_ref.namespace,
        name: stats.pod_ref.name,
        working_set_bytes: working_set(stats.memory.as_ref(), now),
        processes: processes(sample, now),
        ephemeral_storage: used(stats.ephemeral_storage.as_ref()),
        containers: stats
            .containers
            .iter()
            .map(|container| ContainerUsage {
                name: container.name.clone(),
                working_set_bytes: working_set(container.memory.as_ref(), now),
                writable_layer: used(container.rootfs.as_ref()),
                logs: used(container.logs.as_ref()),
            })
            .collect(),
        volumes: stats
            .volumes
            .into_iter()
            .filter_map(|volume| {
                Some(VolumeUsage {
                    used: used(Some(&volume.fs))?,
                    name: volume.name,
                })
            })
            .collect(),
    }
}

fn working_set(memory: Option<&MemoryStats>, now: Timestamp) -> Option<Aged<u64>> {
    let memory = memory?;
    Some(Aged::new(memory.working_set_bytes?, memory.time.0, now))
}

/// As old as the oldest of its containers' figures.
fn processes(sample: &PodSample, now: Timestamp) -> Option<Aged<u64>> {
    if let Some(counted) = &sample.runtime {
        let process = counted.linux.as_ref()?.process?;
        let read_at = Timestamp::from_unix_nanos(process.timestamp);
        return Some(Aged::new(process.process_count?.value, read_at, now));
    }
    let counts = sample.containers.iter().filter_map(|container| {
        let reading = &container.row.as_ref()?.reading;
        Some((reading.figures.processes?, reading.read_at))
    });
    let (sum, read_at) =
        counts.reduce(|(sum, oldest), (count, read_at)| (sum + count, oldest.min(read_at)))?;
    Some(Aged::new(sum, read_at, now))
}

fn used(fs: &FsStats, now: Timestamp) -> Option<Aged<DiskUsage>> {
    let usage = DiskUsage {
        bytes: fs.used_bytes?,
        inodes: fs.inodes_used.unwrap_or(0),
    };
    Some(Aged::new(usage, fs.time.0, now))
}
