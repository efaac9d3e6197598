//! Volumes on the real kernel: every step, and the bad days of mounts.

mod attacker;
mod dead_mounts;
mod kills;
mod many_pods;
mod payloads;
mod steps;
mod sub_paths;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rubelet_host::HostVolumes;
use rubelet_ports::volume_host::{
    Ownership, OwnershipPolicy, PayloadFile, VolumeAction, VolumeBatch, VolumeStep, VolumeStepError,
};
use rubelet_ports::{PodOnDisk, VolumeErrorKind, VolumeHostReader, VolumeHostWriter};
use rubelet_testbed::Scope;

pub(crate) const LONG: Duration = Duration::from_secs(60);

/// A node's directory of pods in a scope of the test's own, which unmounts and removes what a failed test leaves.
struct Node {
    volumes: HostVolumes,
    scope: Scope,
}

impl Node {
    fn new(test: &str) -> Self {
        let scope = Scope::new(test).unwrap();
        fs::create_dir(scope.dir().join("pods")).unwrap();
        Self {
            volumes: HostVolumes::new(),
            scope,
        }
    }

    fn pods(&self) -> PathBuf {
        self.scope.dir().join("pods")
    }

    fn path(&self, relative: &str) -> PathBuf {
        self.scope.path(relative)
    }

    fn text(&self, relative: &str) -> String {
        self.path(relative).display().to_string()
    }

    async fn execute(&self, key: &str, steps: Vec<VolumeStep>) -> Vec<VolumeStepError> {
        self.execute_within(key, steps, LONG).await
    }

    async fn execute_within(
        &self,
        key: &str,
        steps: Vec<VolumeStep>,
        deadline: Duration,
    ) -> Vec<VolumeStepError> {
        let batch = VolumeBatch {
            key: PathBuf::from(key),
            steps,
            deadline,
        };
        self.volumes.execute(batch).await
    }

    /// One step that succeeds.
    async fn does(&self, action: VolumeAction) {
        let step = action.verb();
        assert_eq!(self.execute("step", vec![of("v", action)]).await, [], "{step}");
    }

    /// One step that fails: its kind and words.
    async fn fails(&self, action: VolumeAction) -> (VolumeErrorKind, String) {
        let errors = self.execute("step", vec![of("v", action.clone())]).await;
        let [error] = errors.as_slice() else {
            panic!("{action:?} did not fail: {errors:?}");
        };
        assert_eq!((&*error.volume, error.step), ("v", action.verb()));
        (error.kind, error.message.clone())
    }

    async fn on_disk(&self) -> Vec<PodOnDisk> {
        self.volumes.pods_on_disk(&self.pods()).await.unwrap()
    }

    /// Filesystem and options of each mount at or below a path.
    fn mounts(&self, relative: &str) -> Vec<(String, String)> {
        mounts_below(&self.path(relative))
    }
}

fn of(volume: &str, action: VolumeAction) -> VolumeStep {
    VolumeStep {
        volume: volume.to_owned(),
        action,
    }
}

fn mounts_below(path: &Path) -> Vec<(String, String)> {
    let list = fs::read_to_string("/proc/self/mountinfo").unwrap();
    list.lines()
        .filter(|line| {
            let target = line.split(' ').nth(4).unwrap_or_default();
            Path::new(target).starts_with(path)
        })
        .filter_map(|line| {
            let mut fields = line.split(' ').skip_while(|field| *field != "-").skip(1);
            Some((fields.next()?.to_owned(), fields.nth(1)?.to_owned()))
        })
        .collect()
}

/// The steps of an emptyDir, as they are planned.
fn empty_dir(pod: &Path, name: &str, in_memory: bool) -> Vec<VolumeStep> {
    let directory = pod.join("volumes/kubernetes.io~empty-dir").join(name);
    let marker = pod.join("plugins/kubernetes.io~empty-dir").join(name);
    let mut actions = vec![
        VolumeAction::EndIfReady {
            marker: marker.clone(),
            directory: directory.clone(),
            mounted: in_memory,
        },
        VolumeAction::MakeDirectory {
            path: directory.clone(),
            mode: 0o777,
        },
    ];
    if in_memory {
        actions.push(VolumeAction::MountTmpfs {
            target: directory.clone(),
            size_bytes: Some(1 << 20),
        });
    }
    actions.push(VolumeAction::SetOwnership {
        path: directory,
        ownership: group(4711),
    });
    actions.push(VolumeAction::MarkReady { marker });
    actions.into_iter().map(|action| of(name, action)).collect()
}

/// The steps of a downwardAPI volume.
fn downward(pod: &Path, name: &str, content: &str) -> Vec<VolumeStep> {
    let target = pod.join("volumes/kubernetes.io~downward-api").join(name);
    let actions = [
        VolumeAction::MakeDirectory {
            path: target.clone(),
            mode: 0o777,
        },
        VolumeAction::MountTmpfs {
            target: target.clone(),
            size_bytes: None,
        },
        VolumeAction::WritePayload {
            target,
            files: vec![file("labels", content), file("more/annotations", content)],
            ownership: Some(group(4711)),
        },
    ];
    actions.into_iter().map(|action| of(name, action)).collect()
}

fn sub_path(volume_root: &Path, relative: &str, target: &Path) -> VolumeAction {
    VolumeAction::BindSubPath {
        volume_root: volume_root.to_owned(),
        relative: relative.into(),
        target: target.to_owned(),
    }
}

fn group(group: u32) -> Ownership {
    Ownership {
        group,
        policy: OwnershipPolicy::Always,
        read_only: false,
    }
}

fn file(path: &str, content: &str) -> PayloadFile {
    PayloadFile {
        path: path.into(),
        content: content.into(),
        mode: 0o644,
        owner: None,
    }
}

/// The steps that remove whatever a pod has on disk.
fn clean_up(pod: &PodOnDisk, pods: &Path) -> Vec<VolumeStep> {
    let mut actions = Vec::new();
    for mount in pod.mounts.iter().rev() {
        actions.push(VolumeAction::Unmount {
            target: mount.path.clone(),
            lazy: false,
        });
    }
    let paths = pod.sub_paths.iter().map(|sub_path| &sub_path.path);
    for path in paths.chain(pod.volumes.iter().map(|volume| &volume.path)) {
        actions.push(VolumeAction::RemoveTree { path: path.clone() });
    }
    actions.push(VolumeAction::RemoveTree {
        path: pods.join(pod.uid.as_str()),
    });
    actions.into_iter().map(|action| of("all", action)).collect()
}

fn mode_of(path: &Path) -> u32 {
    use std::os::unix::fs::MetadataExt;
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

fn group_of(path: &Path) -> u32 {
    use std::os::unix::fs::MetadataExt;
    fs::symlink_metadata(path).unwrap().gid()
}
