//! The parts of a full summary that are on disks: the node's filesystem, images, writable layers, logs, volumes and what they are together;
//! and the limit of processes.
//!
//! Owns which figure stands where. A part that cannot be read is missing, and the log says why.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{OptionFuture, join_all, join5};
use rubelet_model::Timestamp;
use rubelet_ports::{Clock, DiskReader, DiskSubject, ImageReader, NodeSignals, within};
use rubelet_usage::summary::{FsStats, PodStats, RlimitStats, RuntimeStats, ShownTime, Summary, VolumeStats};
use rubelet_usage::{DiskUsage, FilesystemFigures};
use rubelet_wire::cri::v1;

use crate::metrics::LogUse;
use crate::pods::RunningPod;
use crate::sampler::{NodeSample, PodSample};
use crate::single_flight::SingleFlight;
use crate::walks::{VolumeWalks, WalkedVolumes};

/// What the runtime may take to name its filesystems.
const IMAGES_LIMIT: Duration = Duration::from_secs(4);
/// The runtime is asked at most this often.
const IMAGES_AGE: Duration = Duration::from_secs(10);

/// Where things are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoragePlaces {
    /// `--root-dir`.
    pub root_dir: PathBuf,
    /// Where pods' logs are.
    pub pod_logs_dir: PathBuf,
}

pub(crate) struct Storage {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) images: Arc<dyn ImageReader>,
    pub(crate) signals: Arc<dyn NodeSignals>,
    pub(crate) disk: Arc<dyn DiskReader>,
    pub(crate) places: StoragePlaces,
    /// `None` where `volumeStatsAggPeriod` switches them off.
    pub(crate) walks: Option<Arc<VolumeWalks>>,
    pub(crate) image_filesystem: SingleFlight<Option<v1::FilesystemUsage>>,
}

/// What one pod has beside its volumes.
#[derive(Default)]
struct PodFiles {
    /// Of each container, in their order.
    logs: Vec<Option<DiskUsage>>,
    /// Files directly in the pod's directory of logs.
    own_logs: Option<DiskUsage>,
    etc_hosts: Option<DiskUsage>,
}

impl Storage {
    pub(crate) async fn add_to(&self, summary: &mut Summary, sample: &NodeSample) {
        let now = self.clock.now();
        let volumes = OptionFuture::from(self.walks.as_ref().map(VolumeWalks::results));
        let images = OptionFuture::from(sample.is_runtime_answering.then(|| self.image_filesystem()));
        let (root, images, processes, files, volumes) = join5(
            self.filesystem(&self.places.root_dir),
            images,
            self.signals.processes(),
            self.files(sample.pods.iter().map(|sample| &sample.pod)),
            volumes,
        )
        .await;
        let images = images.flatten();
        let mounts = self.mounts(images.as_ref(), &sample.pods).await;
        let node = &mut summary.node;
        let root_time = sample.root.as_ref().map_or(now, |root| root.reading.read_at);
        node.fs = root.map(|root| fs_stats(root_time, Some(&root), Some(root.used())));
        node.runtime = images.map(|images| {
            let image_fs = Some(runtime_stats(&images, &mounts));
            RuntimeStats {
                container_fs: image_fs.clone(),
                image_fs,
            }
        });
        match processes {
            Ok(processes) => {
                node.rlimit = Some(RlimitStats {
                    time: ShownTime(now),
                    max_pid: Some(processes.most),
                    running: Some(processes.running),
                });
            }
            Err(error) => tracing::warn!(%error, "The limit of processes cannot be read"),
        }
        let volumes = volumes.unwrap_or_default();
        for ((stats, pod), files) in summary.pods.iter_mut().zip(&sample.pods).zip(files) {
            add_to_pod(stats, pod, &files, (now, root.as_ref(), &mounts));
            add_volumes(stats, &files, &volumes, (now, root.as_ref()));
        }
    }

    /// What the files of these pods take, and nothing of the filesystems that they are on.
    pub(crate) async fn add_to_pods(
        &self,
        summary: &mut Summary,
        sample: &NodeSample,
        volumes: &WalkedVolumes,
    ) {
        let now = self.clock.now();
        let files = self.files(sample.pods.iter().map(|sample| &sample.pod)).await;
        let mounts = Mounts::new();
        for ((stats, pod), files) in summary.pods.iter_mut().zip(&sample.pods).zip(files) {
            add_to_pod(stats, pod, &files, (now, None, &mounts));
            add_volumes(stats, &files, volumes, (now, None));
        }
    }

    async fn filesystem(&self, path: &Path) -> Option<FilesystemFigures> {
        let figures = self.disk.filesystem(path).await;
        figures
            .inspect_err(|error| tracing::warn!(%error, "A filesystem cannot be read; it is left out"))
            .ok()
    }

    async fn image_filesystem(&self) -> Option<v1::FilesystemUsage> {
        let (images, clock) = (Arc::clone(&self.images), Arc::clone(&self.clock));
        let start = || async move { image_filesystem(images.as_ref(), clock.as_ref()).await }.boxed();
        self.image_filesystem.get(&self.clock, IMAGES_AGE, start).await
    }

    /// Where the runtime keeps images and writable layers.
    async fn mounts(
        &self,
        images: Option<&v1::FilesystemUsage>,
        pods: &[PodSample],
    ) -> BTreeMap<String, FilesystemFigures> {
        let layers = pods.iter().flat_map(|pod| &pod.containers);
        let layers = layers.filter_map(|container| container.runtime.as_ref()?.writable_layer.as_ref());
        let places: BTreeSet<&str> = images.into_iter().chain(layers).filter_map(mount_point).collect();
        let figures = places.into_iter().map(async |place| {
            let figures = self.filesystem(Path::new(place)).await?;
            Some((place.to_owned(), figures))
        });
        join_all(figures).await.into_iter().flatten().collect()
    }

    /// What the logs of these pods' containers take.
    pub(crate) async fn logs(&self, pods: &[RunningPod]) -> Vec<LogUse> {
        let files = self.files(pods.iter()).await;
        let of_pods = pods.iter().zip(files).flat_map(|(pod, files)| {
            let logs = pod.containers.iter().zip(files.logs);
            logs.filter_map(|(container, used)| {
                let labels = [&pod.uid, &pod.namespace, &pod.name, &container.name].map(Clone::clone);
                let bytes = used?.bytes;
                Some(LogUse { labels, bytes })
            })
        });
        of_pods.collect()
    }

    async fn files(&self, pods: impl Iterator<Item = &RunningPod> + Clone + Send) -> Vec<PodFiles> {
        let mut subjects = Vec::new();
        for pod in pods.clone() {
            let logs = self.logs_dir(pod);
            let etc_hosts = self.places.root_dir.join("pods").join(&pod.uid).join("etc-hosts");
            subjects.push(DiskSubject::File(etc_hosts));
            subjects.push(DiskSubject::FilesIn(logs.clone()));
            let containers = pod.containers.iter();
            subjects.extend(containers.map(|container| DiskSubject::FilesIn(logs.join(&container.name))));
        }
        let mut found = self.disk.measure(subjects).await.into_iter();
        let mut next = || found.next().flatten();
        pods.map(|pod| PodFiles {
            etc_hosts: next(),
            own_logs: next(),
            logs: pod.containers.iter().map(|_| next()).collect(),
        })
        .collect()
    }

    fn logs_dir(&self, pod: &RunningPod) -> PathBuf {
        let name = [pod.namespace.as_str(), &pod.name, &pod.uid].join("_");
        self.places.pod_logs_dir.join(name)
    }
}

async fn image_filesystem(images: &dyn ImageReader, clock: &dyn Clock) -> Option<v1::FilesystemUsage> {
    let problem = match within(clock, IMAGES_LIMIT, images.image_fs_info()).await {
        Ok(Ok(info)) => return info.image_filesystems.into_iter().next(),
        Ok(Err(error)) => error.to_string(),
        Err(elapsed) => elapsed.to_string(),
    };
    tracing::warn!(
        problem,
        "The runtime does not name its filesystem; it is left out"
    );
    None
}

fn mount_point(usage: &v1::FilesystemUsage) -> Option<&str> {
    let mount_point = usage.fs_id.as_ref()?.mountpoint.as_str();
    Some(mount_point).filter(|mount_point| !mount_point.is_empty())
}

fn fs_stats(at: Timestamp, filesystem: Option<&FilesystemFigures>, used: Option<DiskUsage>) -> FsStats {
    FsStats {
        time: ShownTime(at),
        available_bytes: filesystem.map(|filesystem| filesystem.available_bytes),
        capacity_bytes: filesystem.map(|filesystem| filesystem.capacity_bytes),
        used_bytes: used.map(|used| used.bytes),
        inodes_free: filesystem.map(|filesystem| filesystem.inodes_free),
        inodes: filesystem.map(|filesystem| filesystem.inodes),
        inodes_used: used.map(|used| used.inodes),
    }
}

/// What the runtime counts itself; the rest is what its mount point has.
fn runtime_stats(usage: &v1::FilesystemUsage, mounts: &BTreeMap<String, FilesystemFigures>) -> FsStats {
    let filesystem = mount_point(usage).and_then(|mount_point| mounts.get(mount_point));
    let value = |value: &Option<v1::UInt64Value>| value.as_ref().map(|value| value.value);
    FsStats {
        used_bytes: value(&usage.used_bytes),
        inodes_used: value(&usage.inodes_used),
        ..fs_stats(Timestamp::from_unix_nanos(usage.timestamp), filesystem, None)
    }
}

type Mounts = BTreeMap<String, FilesystemFigures>;

fn add_to_pod(
    stats: &mut PodStats,
    sample: &PodSample,
    files: &PodFiles,
    (now, root, mounts): (Timestamp, Option<&FilesystemFigures>, &Mounts),
) {
    let containers = stats
        .containers
        .iter_mut()
        .zip(&sample.containers)
        .zip(&files.logs);
    for ((container, sample), logs) in containers {
        let layer = sample
            .runtime
            .as_ref()
            .and_then(|runtime| runtime.writable_layer.as_ref());
        container.rootfs = layer.map(|layer| runtime_stats(layer, mounts));
        container.logs = logs.map(|logs| fs_stats(now, root, Some(logs)));
    }
}

fn add_volumes(
    stats: &mut PodStats,
    files: &PodFiles,
    volumes: &WalkedVolumes,
    (now, root): (Timestamp, Option<&FilesystemFigures>),
) {
    let own = volumes
        .get(&stats.pod_ref.uid)
        .map(Vec::as_slice)
        .unwrap_or_default();
    stats.volumes = own
        .iter()
        .map(|volume| VolumeStats {
            fs: volume.fs.clone(),
            name: volume.name.clone(),
            pvc_ref: volume.claim.clone(),
        })
        .collect();
    let of_containers = stats
        .containers
        .iter()
        .flat_map(|container| [container.rootfs.as_ref(), container.logs.as_ref()]);
    let of_volumes = own
        .iter()
        .filter(|volume| volume.is_ephemeral)
        .map(|volume| Some(&volume.fs));
    let parts: Vec<&FsStats> = of_containers.chain(of_volumes).flatten().collect();
    let measured = [files.own_logs, files.etc_hosts].into_iter().flatten();
    let used = parts.iter().map(|part| DiskUsage {
        bytes: part.used_bytes.unwrap_or(0),
        inodes: part.inodes_used.unwrap_or(0),
    });
    let used = used.chain(measured).fold(DiskUsage::default(), DiskUsage::plus);
    let newest = parts.iter().map(|part| part.time.0).max().unwrap_or(now);
    stats.ephemeral_storage = Some(fs_stats(newest, root, Some(used)));
}
