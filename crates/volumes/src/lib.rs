//! Volumes of pods on the node: set up before containers start, mounted into them, taken down after them.
//!
//! Owns which volumes are set up, the backoff of each volume that failed, and its events. `storage` plans the steps; the ports
//! execute them and read the objects that volumes show. It must not know the agent: it meets it at [`PodVolumes`].
//!
//! Work on one pod's volumes is serialised by the pod's own lock, and goes on when the caller has gone: so a tear-down never runs
//! beside a set-up of the same pod. Nothing is kept over a restart: the disk and the mount table show which volumes exist.

mod backoff;
mod collect;
mod metrics;
mod record;
mod set_up;
mod tear_down;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use rubelet_model::observation::PodUid;
use rubelet_model::pod::uid_of;
use rubelet_ports::{
    Clock, EventRecorder, HostIps, MountRequest, PodObjects, PodVolumes, Spawner, VolumeBatch, VolumeFailure,
    VolumeHostReader, VolumeHostWriter, VolumeStepError,
};
use rubelet_storage::layout::pods_directory;
use rubelet_storage::{MountInputs, PodLayout, StorageNode, plan_mounts, uses_volumes};
use rubelet_wire::cri::v1;
use tokio::sync::oneshot;

pub use metrics::VolumesMetrics;

use crate::record::{Locked, Records};

/// What a list of steps may take. Everything but a filesystem that does not answer is done within milliseconds.
const STEPS_DEADLINE: Duration = Duration::from_secs(30);

/// The edges.
#[derive(Clone)]
pub struct VolumesPorts {
    pub clock: Arc<dyn Clock>,
    pub spawner: Arc<dyn Spawner>,
    pub events: Arc<dyn EventRecorder>,
    pub reader: Arc<dyn VolumeHostReader>,
    pub writer: Arc<dyn VolumeHostWriter>,
    /// `None` on a node without an API server: volumes that show its objects then fail.
    pub objects: Option<Arc<dyn PodObjects>>,
    /// The node's addresses, for downward API files.
    pub host_ips: Arc<dyn HostIps>,
    pub metrics: VolumesMetrics,
}

/// Settings that do not change while the process runs.
#[derive(Clone, Debug)]
pub struct VolumesSettings {
    /// `--root-dir`
    pub root_dir: PathBuf,
    /// Without its addresses, which change.
    pub node: StorageNode,
}

/// Handles are cheap to copy.
#[derive(Clone)]
pub struct Volumes {
    inner: Arc<Inner>,
}

struct Inner {
    ports: VolumesPorts,
    node: StorageNode,
    /// `<root>/pods`
    pods: PathBuf,
    /// Held to look up, never across an await.
    records: Mutex<Records>,
}

impl Volumes {
    #[must_use]
    pub fn new(ports: VolumesPorts, settings: VolumesSettings) -> Self {
        Self {
            inner: Arc::new(Inner {
                ports,
                node: settings.node,
                pods: pods_directory(&settings.root_dir),
                records: Mutex::default(),
            }),
        }
    }

    /// The number of pods that have a record.
    #[must_use]
    pub fn known_pods(&self) -> usize {
        self.inner.with_records(|records| records.len())
    }

    /// Runs the work to its end, also when the caller no longer waits for it.
    async fn finish<T: Send + 'static>(
        &self,
        name: &'static str,
        work: BoxFuture<'static, Result<T, VolumeFailure>>,
    ) -> Result<T, VolumeFailure> {
        let (sender, receiver) = oneshot::channel();
        self.inner.ports.spawner.spawn(
            name,
            Box::pin(async move {
                // The caller no longer waits when the pod terminates.
                let _ = sender.send(work.await);
            }),
        );
        receiver.await.unwrap_or_else(|_| {
            // The task is gone without an answer only when the program ends, or after a defect that was reported.
            Err(VolumeFailure {
                message: "work on the pod's volumes was broken off".to_owned(),
                retry_at: None,
            })
        })
    }
}

impl Inner {
    fn layout(&self, uid: &PodUid) -> PodLayout {
        PodLayout::new(&self.pods, uid)
    }

    /// Waits until no other task works on the pod's volumes; each such task has a deadline.
    async fn lock(&self, uid: &PodUid) -> Locked {
        let record = self.with_records(|records| records.of(uid));
        record.lock_owned().await
    }

    fn with_records<T>(&self, change: impl FnOnce(&mut Records) -> T) -> T {
        // A panic elsewhere leaves the records whole: every change is a single step.
        change(&mut self.records.lock().unwrap_or_else(PoisonError::into_inner))
    }

    async fn execute(&self, batches: Vec<VolumeBatch>) -> Vec<VolumeStepError> {
        let all = batches.into_iter().map(|batch| self.ports.writer.execute(batch));
        let errors = futures_util::future::join_all(all).await;
        errors.into_iter().flatten().collect()
    }

    async fn mounts(&self, request: MountRequest) -> Result<Vec<v1::Mount>, VolumeFailure> {
        let uid = uid_of(&request.pod);
        let layout = self.layout(&uid);
        let inputs = MountInputs {
            layout: &layout,
            environment: &request.environment,
            images: &request.images,
            supports_recursive_read_only: request.supports_recursive_read_only,
            node: &self.node,
        };
        let planned =
            plan_mounts(&request.pod, &request.container, inputs).map_err(|error| VolumeFailure {
                message: error.to_string(),
                retry_at: None,
            })?;
        if planned.binds.is_empty() {
            return Ok(planned.mounts);
        }
        let _locked = self.lock(&uid).await;
        let batch = VolumeBatch {
            key: layout.sub_paths(),
            steps: planned.binds,
            deadline: STEPS_DEADLINE,
        };
        match self.execute(vec![batch]).await.into_iter().next() {
            None => Ok(planned.mounts),
            Some(error) => {
                let container = &request.container.name;
                tracing::warn!(
                    pod = %uid, container, volume = error.volume, step = error.step, path = %error.path.display(), %error,
                    "A sub path cannot be prepared"
                );
                // The details show paths of the node, which the pod's owner must not see.
                let volume = &error.volume;
                Err(VolumeFailure {
                    message: format!(
                        "failed to prepare subPath for volumeMount {volume:?} of container {container:?}"
                    ),
                    retry_at: None,
                })
            }
        }
    }
}

#[async_trait]
impl PodVolumes for Volumes {
    async fn set_up(&self, pod: Arc<Pod>) -> Result<(), VolumeFailure> {
        if !uses_volumes(&pod) {
            return Ok(());
        }
        // The lock is held from the first request for objects on, so that files never go back to older objects. Nothing is changed
        // before all requests are answered, and a caller that gives up cancels them: a pod that terminates waits for none of them.
        let record = self.inner.lock(&uid_of(&pod)).await;
        let answers = self.inner.collect(&pod).await;
        let inner = Arc::clone(&self.inner);
        let work = Box::pin(async move { inner.set_up(&pod, record, answers).await });
        self.finish("volumes of a pod", work).await
    }

    async fn mounts(&self, request: MountRequest) -> Result<Vec<v1::Mount>, VolumeFailure> {
        let has_mounts = |list: Option<usize>| list.is_some_and(|count| count > 0);
        let container = &request.container;
        if !has_mounts(container.volume_mounts.as_ref().map(Vec::len))
            && !has_mounts(container.volume_devices.as_ref().map(Vec::len))
        {
            return Ok(Vec::new());
        }
        let inner = Arc::clone(&self.inner);
        let work = Box::pin(async move { inner.mounts(request).await });
        self.finish("mounts of a container", work).await
    }

    async fn tear_down(&self, uid: &PodUid) -> Result<(), VolumeFailure> {
        let inner = Arc::clone(&self.inner);
        let uid = uid.clone();
        let work = Box::pin(async move { inner.tear_down(&uid).await });
        self.finish("end of a pod's volumes", work).await
    }
}
